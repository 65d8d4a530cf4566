"""The wire formats of the scripted model, one module each, all with the functions of `Format`."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, cast

import msgspec

from quarterdeck.testing.script import Fault, Step, Turn, Wire

Body = dict[str, Any]


class Reply(NamedTuple):
    """One reply of the script to one request."""

    step: Step
    model: str
    #: Unique, and part of every id in the reply.
    reply_id: str
    now: int

    def call_id(self, prefix: str, at: int) -> str:
        return self.step.calls[at].id or f"{prefix}_{self.reply_id}_{at}"


class Format(Protocol):
    """The functions of each module in this package."""

    def read_turns(self, body: Body) -> list[Turn]:
        """Read the conversation of a request."""
        ...

    def find_problem(self, body: Body) -> str:
        """Return why the real service would reject the request, or ""."""
        ...

    def stream_frames(self, reply: Reply) -> list[bytes]:
        """Return a reply as the frames of a stream."""
        ...

    def whole_reply(self, reply: Reply) -> Body:
        """Return a reply in one piece."""
        ...

    def error_body(self, fault: Fault, model: str) -> Body:
        """Return the body of an HTTP error."""
        ...

    def stream_error(self, fault: Fault) -> bytes:
        """Return the frame that reports an error in the middle of a stream."""
        ...


def format_of(wire: Wire) -> Format:
    from quarterdeck.testing.wires import anthropic, chat, gemini, responses

    formats: dict[Wire, Format] = {"anthropic": anthropic, "responses": responses, "chat": chat, "gemini": gemini}
    return formats[wire]


def data_event(value: object) -> bytes:
    """Return a server-sent event without a name."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def named_event(kind: str, **fields: Any) -> bytes:
    """Return a server-sent event whose type is also its name."""
    return b"event: " + kind.encode() + b"\n" + data_event({"type": kind, **fields})


def text_of(content: Any) -> str:
    """Return the text of a message's content: a string, or a list of parts of which some have a text."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in objects_in(content) if isinstance(part.get("text"), str))


def objects_in(value: Any) -> list[Body]:
    """Return the objects of a list. Return none if the value isn't a list."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [item for item in items if isinstance(item, dict)]
