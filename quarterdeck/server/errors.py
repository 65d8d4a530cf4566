"""Errors that the server answers with, and the HTTP status of every error.

A new error code needs an entry in `STATUS_BY_CODE` unless its status is 409.
"""

from __future__ import annotations

from quarterdeck.errors import QuarterdeckError

#: All other codes are 409: the command isn't allowed in the current state.
STATUS_BY_CODE = {
    "invalid_input": 400,
    "invalid_command": 400,
    "malformed_event": 400,
    "invalid_rule": 400,
    "bad_request": 400,
    "no_token": 401,
    "foreign_host": 403,
    "foreign_origin": 403,
    "view_only": 403,
    "outside_workspace": 403,
    "unknown_agent": 404,
    "no_such_folder": 404,
    "no_such_session": 404,
    "no_such_gate": 404,
    "no_such_text": 404,
    "no_such_rule": 404,
    "no_such_token": 404,
    "no_such_trace": 404,
    "no_such_route": 404,
    "method_not_allowed": 405,
    "too_slow": 408,
    "too_large": 413,
    "too_many_failures": 429,
    "log_unavailable": 503,
    "deck_closed": 503,
    "git_failed": 503,
    "tokens_unreadable": 503,
    "internal": 500,
}


def status_of(error: QuarterdeckError) -> int:
    """Return the HTTP status of an error."""
    return STATUS_BY_CODE.get(error.code, 409)


class BadRequest(QuarterdeckError):
    """The request can't be read. The message names the field."""

    code = "bad_request"


class UnreadableBody(BadRequest):
    """The body is cut off, or isn't compressed as its header says."""

    def __init__(self) -> None:
        super().__init__("the body can't be read", "Send the whole body, compressed as Content-Encoding says.")


class NoToken(QuarterdeckError):
    """The request has no valid token."""

    code = "no_token"

    def __init__(self) -> None:
        super().__init__(
            "the request has no valid token",
            "Send the header 'Authorization: Bearer TOKEN', or open the address that `qd up` prints.",
        )


class NoSecret(NoToken):
    """A request to /ingest/ has no valid secret."""

    def __init__(self) -> None:
        QuarterdeckError.__init__(
            self,
            "the request has no valid secret of this install or session",
            "Install the hooks again. The secret changes with the owner's token.",
        )


class ForeignHost(QuarterdeckError):
    """The Host header isn't one of our names."""

    code = "foreign_host"

    def __init__(self, host: str) -> None:
        super().__init__(
            f"this server isn't called {host[:100]!r}", "Start it with --allow-host NAME to allow the name."
        )


class ForeignOrigin(QuarterdeckError):
    """A page of another site sent the request."""

    code = "foreign_origin"

    def __init__(self) -> None:
        super().__init__("the request comes from a page of another site", "Open this server's own page.")


class ViewOnly(QuarterdeckError):
    """The token's role is view."""

    code = "view_only"

    def __init__(self) -> None:
        super().__init__("this token has the role view", "Use a token with the role operate.")


class TooManyFailures(QuarterdeckError):
    """Too many wrong tokens came from this address."""

    code = "too_many_failures"

    def __init__(self, seconds: int) -> None:
        super().__init__("too many wrong tokens came from your address", f"Wait {seconds} seconds.")
        self.seconds = seconds


class NoSuchRoute(QuarterdeckError):
    """There is no route with this path."""

    code = "no_such_route"

    def __init__(self, path: str) -> None:
        super().__init__(f"there is no route {path[:200]}", "Look up the routes in /openapi.json.")


class MethodNotAllowed(QuarterdeckError):
    """The route takes other methods."""

    code = "method_not_allowed"

    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        super().__init__(f"{method} isn't allowed here", f"Use {', '.join(allowed)}.")
        self.allowed = allowed


class TooLarge(QuarterdeckError):
    """The body is too large."""

    code = "too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes", "Put the text into a file and name the file.")


class TooSlow(QuarterdeckError):
    """The body didn't arrive in time."""

    code = "too_slow"

    def __init__(self) -> None:
        super().__init__("the body didn't arrive in time", "Send it again over a faster connection, or send less.")


class Internal(QuarterdeckError):
    """A bug in the server. Only its log says which one."""

    code = "internal"

    def __init__(self) -> None:
        super().__init__("the server failed at this request", "Look into server.log, and report the bug.")
