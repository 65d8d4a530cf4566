"""What a client meets instead of an answer. Light enough for the command line."""

from __future__ import annotations

import json

from quarterdeck.errors import QuarterdeckError


class Unreachable(QuarterdeckError):
    """No server, or none that answers."""

    code = "unreachable"


class Refused(QuarterdeckError):
    """What the server answered instead of doing it. `status` is the HTTP status."""

    def __init__(self, status: int, code: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.status = status
        self.code = code


def refusal(status: int, content: bytes) -> Refused:
    """Behind an answer that is none."""
    try:
        error = json.loads(content)["error"]
        return Refused(status, str(error["code"]), str(error["message"]), str(error["hint"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        hint = "Is this the address of a Quarterdeck? If it is, its log says more."
        return Refused(status, "bad_answer", f"the server answered {status}", hint)
