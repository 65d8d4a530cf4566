"""What one telemetry record says: read once here, so that telemetry.py is about what it means."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec import Struct

from quarterdeck.events import FailureKind, Json
from quarterdeck.harness.base import Object, int_of, object_of, text_of
from quarterdeck.harness.codex import names
from quarterdeck.harness.lines import object_in

#: Errors that are not tried again, by kind; and by their words.
_FINAL_KINDS = frozenset({"auth", "usage_limit", "payment", "invalid_model"})
_FINAL_WORDS = ("context window", "context_length_exceeded")
_ERRORS = ("error.message", "error", "message")


class Failure(Struct, frozen=True, gc=False):
    """A request that failed."""

    kind: FailureKind
    message: str
    resets_at: int | None = None

    @property
    def is_final(self) -> bool:
        return self.kind in _FINAL_KINDS or any(word in self.message.lower() for word in _FINAL_WORDS)


def error_in(found: Object) -> str:
    """The error of a record."""
    return text_of(found, *_ERRORS)


def has_tokens(found: Object) -> bool:
    """Whether the record is a completion: it carries tokens, and not only zeros."""
    return int_of(found, "input_token_count") > 0 or int_of(found, "output_token_count") > 0


def made_at_of(found: Object) -> float | None:
    """When the record was made, in seconds since the epoch; the times in OTLP's own fields are of no use."""
    stamp = found.get("event.timestamp")
    if not isinstance(stamp, str):
        return None
    try:
        made = datetime.fromisoformat(stamp)
        return (made if made.tzinfo is not None else made.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def tool_in(found: Object) -> str:
    """The tool of a call."""
    server, tool = text_of(found, "mcp_server"), text_of(found, "tool_name")
    if server and not tool.startswith("mcp__"):
        return names.mcp_name(server, tool)
    return tool or "tool"


def arguments_in(found: Object) -> Json:
    """What a call was given: JSON, or the text of a tool that takes one."""
    text = text_of(found, "arguments")
    return (object_in(text) if text[:1] == "{" else None) or text


_EXITS = ("Process exited with code ", "Exit code: ")


def exit_code_in(output: str) -> int:
    """A command that failed is a success to telemetry; its code stands at the head of what the model is shown."""
    head = output[:300]
    for words in _EXITS:
        _, found, rest = head.partition(words)
        if found:
            return int_of({"code": rest.split("\n", 1)[0].strip()}, "code")
    return 0


def _error_in(message: str) -> Object:
    """The error of the API that a text carries as JSON."""
    start = message.find("{")
    found = object_in(message[start:]) if start >= 0 else None
    if found is None:
        return {}
    return object_of(found, "response", "error") or object_of(found, "error") or found


def plain_error(message: str) -> str:
    """An error of the API is passed on as JSON; a person reads its message."""
    return text_of(_error_in(message), "message") or message


def resets_at(message: str, made_at: float | None) -> int | None:
    """When a limit begins anew, in ms, if the error says so."""
    error = _error_in(message)
    at, wait = int_of(error, "resets_at"), int_of(error, "resets_in_seconds")
    if at > 0:
        return at * 1000
    return int((made_at + wait) * 1000) if wait > 0 and made_at is not None else None
