"""Define what a model reads and writes: messages, one request, the chunks of a reply, and the port that providers implement.

Providers (`engine/providers/`) translate these types to their own wire formats. Nothing here knows any of those formats.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import FailureKind, Image, Json, TokenUsage

# ----------------------------------------------------------------------------------------------------------- messages


class Text(Struct, frozen=True, tag="text"):
    """Text of the user or of the model."""

    text: str


class Thinking(Struct, frozen=True, tag="thinking"):
    """Reasoning of the model."""

    text: str
    #: Opaque proof that the provider expects back unchanged. It names its provider; other providers leave it out.
    signature: str = ""


class Picture(Struct, frozen=True, tag="image"):
    """An inline image."""

    image: Image


class Call(Struct, frozen=True, tag="call"):
    """A tool call of the model."""

    call_id: str
    name: str
    args: dict[str, Json]
    #: The raw arguments if they aren't a JSON object. `args` is empty then.
    broken: str = ""


class Result(Struct, frozen=True, tag="result"):
    """The result of a tool call, as the model reads it."""

    call_id: str
    name: str
    text: str
    ok: bool = True
    images: tuple[Image, ...] = ()


Part: TypeAlias = Text | Thinking | Picture | Call | Result


class Message(Struct, frozen=True):
    """One message of a conversation.

    Results are in messages with the role `tool`; all results of one batch of calls are in one message.
    """

    role: Literal["user", "assistant", "tool"]
    parts: tuple[Part, ...]
    message_id: str = ""

    @property
    def text(self) -> str:
        """The text of the message, without reasoning."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(part for part in self.parts if isinstance(part, Call))


# ------------------------------------------------------------------------------------------------------------ request


class ToolSpec(Struct, frozen=True):
    """A tool as it is described to a model. `parameters` is the JSON schema of an object."""

    name: str
    description: str
    parameters: dict[str, Json]


class Request(Struct, frozen=True, kw_only=True):
    """One request to a model."""

    #: The provider's own name of the model, without the provider prefix.
    model: str
    messages: Sequence[Message]
    system: str = ""
    tools: Sequence[ToolSpec] = ()
    max_tokens: int | None = None
    #: A JSON schema that the reply must match.
    response_format: dict[str, Json] | None = None
    #: `off`, `low`, `medium` or `high`. Empty means the provider's default.
    thinking: str = ""
    #: Options in the provider's own vocabulary. They are copied into the request unchanged.
    options: Mapping[str, Json] = {}


# ------------------------------------------------------------------------------------------------- chunks of a reply


class TextPiece(Struct, frozen=True):
    """More text."""

    text: str


class ThinkingPiece(Struct, frozen=True):
    """More reasoning."""

    text: str


class ThinkingSigned(Struct, frozen=True):
    """The signature that ends a reasoning block.

    Without reasoning before it, it is a reasoning block without text. Some services hide the reasoning itself but still
    require its signature at the same position in the next request.
    """

    signature: str


class CallBegun(Struct, frozen=True):
    """The beginning of a tool call. `index` identifies the call within this reply."""

    index: int
    call_id: str
    name: str


class CallPiece(Struct, frozen=True):
    """More of a call's arguments, as a piece of JSON text."""

    index: int
    arguments: str


class Finished(Struct, frozen=True):
    """The last chunk of a complete reply. A stream that ends without it was cut off."""

    stop_reason: Literal["end", "tools", "length", "refused"]
    usage: TokenUsage | None = None


Chunk: TypeAlias = TextPiece | ThinkingPiece | ThinkingSigned | CallBegun | CallPiece | Finished

# --------------------------------------------------------------------------------------------------------------- port


class ModelError(QuarterdeckError):
    """A request to a model failed.

    The provider classifies the failure; the turn loop decides what to do about it.

    Attributes:
        kind: the failure kind that is reported to the user. `overflow` means that the conversation doesn't fit the
            model's context; the turn loop then compacts it and tries again.
        is_transient: whether the same request may succeed later.
        retry_after: seconds to wait before the next attempt, if the provider named a time.
        resets_at: when a usage limit is lifted, in milliseconds since the epoch.
    """

    code = "model_failed"

    def __init__(
        self,
        kind: FailureKind | Literal["overflow"],
        message: str,
        hint: str = "",
        *,
        is_transient: bool = False,
        retry_after: float | None = None,
        resets_at: int | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.kind = kind
        self.is_transient = is_transient
        self.retry_after = retry_after
        self.resets_at = resets_at


class ModelStalled(ModelError):
    """The model sent no chunk for too long."""

    def __init__(self, elapsed_s: float) -> None:
        super().__init__("network", f"the model sent nothing for {elapsed_s:g} s", "Try again.", is_transient=True)
        self.elapsed_s = elapsed_s


class Model(Protocol):
    """One configured provider: key, address, options. It keeps no connection and no state of a conversation."""

    #: `anthropic`, `openai`, `chat`, `gemini` or `demo`.
    provider: str

    def stream(self, request: Request) -> AsyncGenerator[Sequence[Chunk]]:
        """Send a request and yield the reply as it arrives, one sequence of chunks per network read.

        Closing the generator cancels the request.

        Raises:
            ModelError: the request failed, possibly in the middle of the reply.
        """
        ...


@asynccontextmanager
async def stall_timeout(seconds: float) -> AsyncGenerator[Callable[[], None]]:
    """Limit the time between two network reads of a reply. Call the yielded function after each read.

    Raises:
        ModelStalled: nothing arrived for this many seconds.
    """
    loop = asyncio.get_running_loop()
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield lambda: limit.reschedule(loop.time() + seconds)
    except TimeoutError:
        # A TimeoutError of the provider itself isn't a stall.
        if limit.expired():
            raise ModelStalled(seconds) from None
        raise


class SelectedModel(Struct, frozen=True):
    """A model that an agent uses, with the provider that serves it."""

    provider: Model
    #: The provider's own name of the model.
    name: str
    #: `provider:name`, as users write it.
    full_name: str
    #: Options in the provider's own vocabulary.
    options: Mapping[str, Json] = {}
