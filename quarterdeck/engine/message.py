"""A conversation as a model reads it. Providers write it in their own format; nothing here knows any of them."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from quarterdeck.events import Image, Json


class Text(Struct, frozen=True, tag="text"):
    """Something said."""

    text: str


class Thinking(Struct, frozen=True, tag="thinking"):
    """Reasoning. `signature` is what the provider wants back with it, word for word; no other provider gets it."""

    text: str
    signature: str = ""


class Picture(Struct, frozen=True, tag="image"):
    """An image, inline."""

    image: Image


class Call(Struct, frozen=True, tag="call"):
    """A tool call of the model. `broken` holds arguments that are no JSON object, as they came."""

    call_id: str
    name: str
    args: dict[str, Json]
    broken: str = ""


class Result(Struct, frozen=True, tag="result"):
    """What a call gave, as the model is told."""

    call_id: str
    name: str
    text: str
    ok: bool = True
    images: tuple[Image, ...] = ()


Part: TypeAlias = Text | Thinking | Picture | Call | Result


class Message(Struct, frozen=True):
    """One message. Results stand in messages of the role `tool`, all of one batch in one message."""

    role: Literal["user", "assistant", "tool"]
    parts: tuple[Part, ...]
    message_id: str = ""

    @property
    def text(self) -> str:
        """What was said, without reasoning."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(part for part in self.parts if isinstance(part, Call))
