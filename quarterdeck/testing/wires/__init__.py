"""The four wire formats that the scripted model speaks, one file each, with the same functions in each.

`turns` reads the conversation of a request, `frames` is a reply as a stream, `whole` the same in one piece; `refusal` is
what the service answers with an HTTP error, `broken` what it says when it fails in the middle of a stream.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, cast

import msgspec

from quarterdeck.testing.script import Fault, Step, Turn, Wire

Body = dict[str, Any]


class Reply(NamedTuple):
    """What is to be said, to which model, and the name of this reply, which is in every id of it."""

    step: Step
    model: str
    name: str
    now: int

    def call_id(self, prefix: str, at: int) -> str:
        return self.step.calls[at].id or f"{prefix}_{self.name}_{at}"


class Format(Protocol):
    """What a module of this package offers."""

    def turns(self, body: Body) -> list[Turn]: ...

    def complaint(self, body: Body) -> str: ...

    def frames(self, reply: Reply) -> list[bytes]: ...

    def whole(self, reply: Reply) -> Body: ...

    def refusal(self, fault: Fault, model: str) -> Body: ...

    def broken(self, fault: Fault) -> bytes: ...


def format_of(wire: Wire) -> Format:
    from quarterdeck.testing.wires import anthropic, chat, gemini, responses

    found: dict[Wire, Format] = {"anthropic": anthropic, "responses": responses, "chat": chat, "gemini": gemini}
    return found[wire]


def data(value: object) -> bytes:
    """One event of a stream, without a name."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def named(kind: str, **fields: Any) -> bytes:
    """One event whose type is also its name."""
    return b"event: " + kind.encode() + b"\n" + data({"type": kind, **fields})


def text_of(content: Any) -> str:
    """The text in a message's content: a string, or parts of which some have one."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in objects(content) if isinstance(part.get("text"), str))


def objects(value: Any) -> list[Body]:
    """The objects of what should be a list of them."""
    listed = cast("list[Any]", value) if isinstance(value, list) else []
    return [one for one in listed if isinstance(one, dict)]
