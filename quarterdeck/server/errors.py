"""The HTTP status of an error, by its code. What is not named here is a state that does not allow the wish: 409."""

from __future__ import annotations

from quarterdeck.errors import QuarterdeckError

BY_CODE = {
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
    """What a client sees on the first line."""
    return BY_CODE.get(error.code, 409)


class BadRequest(QuarterdeckError):
    """A request that cannot be read: the message names the field."""

    code = "bad_request"


class UnreadableBody(BadRequest):
    """The body is cut off, or not compressed as its header says."""

    def __init__(self) -> None:
        super().__init__("the body cannot be read", "Send it whole, and compressed as the header says.")


class NoToken(QuarterdeckError):
    """Nobody gets in without a token, not even from this machine."""

    code = "no_token"

    def __init__(self) -> None:
        super().__init__(
            "a token is needed", "Send the header 'Authorization: Bearer TOKEN'; `qd up` prints an address with it."
        )


class NoSecret(NoToken):
    """What agents tell is heard from those only whom we gave a secret."""

    def __init__(self) -> None:
        QuarterdeckError.__init__(
            self,
            "the secret of this install or session is needed",
            "Install the hooks again: it changes with the token.",
        )


class ForeignHost(QuarterdeckError):
    """The request asks for a name that is not ours."""

    code = "foreign_host"

    def __init__(self, host: str) -> None:
        super().__init__(f"this server is not called {host[:100]!r}", "Start it with --allow-host NAME to allow that.")


class ForeignOrigin(QuarterdeckError):
    """The request comes from a page of another site."""

    code = "foreign_origin"

    def __init__(self) -> None:
        super().__init__("the request comes from a page of another site", "Open this server's own page.")


class ViewOnly(QuarterdeckError):
    """The token may look and nothing else."""

    code = "view_only"

    def __init__(self) -> None:
        super().__init__("this token may only look", "Use a token with the role operate.")


class TooManyFailures(QuarterdeckError):
    """Wrong tokens, again and again."""

    code = "too_many_failures"

    def __init__(self, wait: int) -> None:
        super().__init__("too many wrong tokens", f"Wait {wait} seconds.")
        self.wait = wait


class NoSuchRoute(QuarterdeckError):
    """Nothing is at this address."""

    code = "no_such_route"

    def __init__(self, path: str) -> None:
        super().__init__(f"nothing is at {path[:200]}", "GET /openapi.json lists what there is.")


class MethodNotAllowed(QuarterdeckError):
    """Something is at this address, for another method."""

    code = "method_not_allowed"

    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        super().__init__(f"{method} is not possible here", f"Allowed: {', '.join(allowed)}.")
        self.allowed = allowed


class TooLarge(QuarterdeckError):
    """The body is larger than any that is taken."""

    code = "too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes", "Put it into a file and name that.")


class TooSlow(QuarterdeckError):
    """The body did not come in time."""

    code = "too_slow"

    def __init__(self) -> None:
        super().__init__("the body took too long", "Send it again over a better line, or send less.")


class Internal(QuarterdeckError):
    """Our own fault; what it was is in the server's log and nowhere else."""

    code = "internal"

    def __init__(self) -> None:
        super().__init__("the server failed at this request", "Its log says why; please report it.")
