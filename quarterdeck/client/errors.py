"""Errors that clients raise. Cheap to import, because every `qd` command imports it."""

from __future__ import annotations

import json

from quarterdeck.errors import QuarterdeckError


class Unreachable(QuarterdeckError):
    """The server can't be reached, or the connection was lost."""

    code = "unreachable"


class TimedOut(QuarterdeckError):
    """The server didn't answer in time, so the outcome of the request is unknown."""

    code = "timed_out"

    def __init__(self, request: str, timeout_s: float) -> None:
        super().__init__(f"no answer to {request} within {timeout_s:g} seconds", _repeat_hint(request))


class Gap(QuarterdeckError):
    """The server's log ends before the position that the client has read: another log, or an older copy of this one.

    To continue, read a snapshot of the session and subscribe from `to`, where the log ends.
    """

    code = "gap"

    def __init__(self, since: str, to: int | str) -> None:
        super().__init__(f"the log ends at {to}, before {since}", f"Read the session again and continue from {to}.")
        self.to = to


class Refused(QuarterdeckError):
    """The server refused the request with an error code that this program has no class for."""

    def __init__(self, status: int, code: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        #: HTTP status.
        self.status = status
        self.code = code


def unreachable(url: str, reason: Exception | str) -> Unreachable:
    """Return the error for a server that doesn't accept connections."""
    return Unreachable(f"{url} can't be reached: {_describe(reason)}", "Start the server with `qd up`.")


def connection_lost(request: str, reason: Exception) -> Unreachable:
    """Return the error for a connection that was lost after the request may have been received."""
    return Unreachable(
        f"the connection was lost before the answer to {request}: {_describe(reason)}", _repeat_hint(request)
    )


def is_server_away(error: QuarterdeckError) -> bool:
    """Return whether the error means that there is no server now. One that shuts down still answers, with an error."""
    return error.code in ("unreachable", "deck_closed")


def client_closed(url: str) -> Unreachable:
    """Return the error for a request on a closed client."""
    return unreachable(url, "this client is closed")


def _repeat_hint(request: str) -> str:
    if request.startswith("GET "):
        return "Try again."
    return "The request may have been carried out. Send it again with the same client_id."


def _describe(reason: Exception | str) -> str:
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return str(reason) or type(reason).__name__


def decode_refusal(status: int, content: bytes) -> Refused:
    """Decode the JSON error of a response. Anything else comes from a server that isn't Quarterdeck."""
    try:
        error = json.loads(content)["error"]
        return Refused(status, str(error["code"]), str(error["message"]), str(error["hint"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return Refused(
            status,
            "bad_answer",
            f"the server answered {status} without a Quarterdeck error",
            "Check that this is the address of a Quarterdeck server, and look into its log.",
        )


def decode_error(status: int, content: bytes) -> QuarterdeckError:
    """Decode an error response into the class that the server raised, or into `Refused` if this program lacks it."""
    refused = decode_refusal(status, content)
    error_class = _error_classes().get(refused.code)
    if error_class is None:
        return refused
    # The class's own __init__ takes other arguments; only code, message and hint travel.
    error = error_class.__new__(error_class)
    QuarterdeckError.__init__(error, refused.message, refused.hint)
    return error


def _error_classes() -> dict[str, type[QuarterdeckError]]:
    """Return the imported error classes by code."""
    classes: dict[str, type[QuarterdeckError]] = {}
    unvisited = [QuarterdeckError]
    while unvisited:
        error_class = unvisited.pop()
        # Some errors of the command line reuse a server error's code to get the same exit code.
        if error_class is not Refused and not error_class.__module__.startswith("quarterdeck.cli."):
            classes.setdefault(error_class.code, error_class)
        unvisited += error_class.__subclasses__()
    return classes
