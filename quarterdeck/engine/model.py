"""The port of the models: one request in, chunks out. Providers implement it; the loop knows nothing else of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import FailureKind, Image, Json, TokenUsage


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


class ToolSpec(Struct, frozen=True):
    """A tool as a model is told of it; `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: dict[str, Json]


class Request(Struct, frozen=True, kw_only=True):
    """One request. `model` is the provider's own name for it, without the provider."""

    model: str
    messages: Sequence[Message]
    system: str = ""
    tools: Sequence[ToolSpec] = ()
    max_tokens: int | None = None
    #: A JSON schema that the reply must fit.
    response_format: dict[str, Json] | None = None
    #: off, low, medium, high; the provider's own default when it is empty.
    thinking: str = ""
    #: What the caller wants in the provider's own words; it goes into the request as it is.
    options: Mapping[str, Json] = {}


class TextPiece(Struct, frozen=True, gc=False):
    """More text."""

    text: str


class ThinkingPiece(Struct, frozen=True, gc=False):
    """More reasoning."""

    text: str


class ThinkingSigned(Struct, frozen=True, gc=False):
    """The reasoning block ends with this signature.

    Without reasoning before it, it is a block of its own that has no text: services may hide what was thought, and still
    want its proof back at its place among the other parts. A signature names its provider; the others leave it out.
    """

    signature: str


class CallBegun(Struct, frozen=True, gc=False):
    """A tool call begins; its place among the calls of this reply is `index`."""

    index: int
    call_id: str
    name: str


class CallPiece(Struct, frozen=True, gc=False):
    """More of the arguments of a call, a piece of JSON text."""

    index: int
    arguments: str


class Finished(Struct, frozen=True, gc=False):
    """The reply is whole; always the last chunk. A stream that ends without it was cut."""

    stop_reason: Literal["end", "tools", "length", "refused"]
    usage: TokenUsage | None = None


Chunk: TypeAlias = TextPiece | ThinkingPiece | ThinkingSigned | CallBegun | CallPiece | Finished


class ModelError(QuarterdeckError):
    """A request failed. The provider says what that means; what is done about it is the loop's business.

    `kind` is what a person is told; `overflow` is a context that is too long, which compaction may cure. `is_passing`
    when the same request may work a little later, after `retry_after` seconds if the provider named a time.
    """

    code = "model_failed"

    def __init__(
        self,
        kind: FailureKind | Literal["overflow"],
        message: str,
        hint: str = "",
        *,
        is_passing: bool = False,
        retry_after: float | None = None,
        resets_at: int | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.kind = kind
        self.is_passing = is_passing
        self.retry_after = retry_after
        self.resets_at = resets_at


class Model(Protocol):
    """One provider, set up: key, address, options. It holds no connection of its own and no state of a conversation."""

    #: `anthropic`, `openai`, `chat`, `gemini`, `demo`
    provider: str

    def stream(self, request: Request) -> AsyncGenerator[Sequence[Chunk]]:
        """The reply as it comes: what one read of the network brought is one sequence. ModelError, also in the middle.

        Closing the generator ends the request at once.
        """
        ...
