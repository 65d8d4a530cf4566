"""What all providers over HTTP share: a request goes out, its reply comes in as chunks, and what fails gets a name."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol, cast

import aiohttp
import msgspec
from msgspec import Struct
from yarl import URL

from quarterdeck.engine.model import Chunk, Finished, ModelError, Part, Request, Thinking
from quarterdeck.engine.providers import connection, failure
from quarterdeck.engine.providers.credentials import SETUP, Access
from quarterdeck.engine.providers.failure import Service
from quarterdeck.engine.providers.sse import Events, TooLong
from quarterdeck.events import Image, Json, TokenUsage

Body = dict[str, Any]

_LONGEST_ERROR = 1 << 16
_HEADERS = {
    "content-type": "application/json",
    "accept": "text/event-stream",
    # a stream that is packed comes later, and in larger pieces
    "accept-encoding": "identity",
    "user-agent": "quarterdeck",
}
_ERROR_PATIENCE_S = 10.0
_PLAIN_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Reader(Protocol):
    """Reads one reply. `finished` is there when it is whole."""

    finished: Finished | None

    def read(self, events: Sequence[bytes], out: list[Chunk]) -> None:
        """What these events mean. ModelError when the service says that it failed, anything of msgspec if it is garbage."""
        ...

    def close(self) -> None:
        """The body has ended; for formats whose last word is optional."""
        ...


class Sent(Struct, frozen=True):
    """A request, ready to go."""

    url: URL
    body: Body
    headers: Mapping[str, str] = {}


class HttpModel:
    """One provider, set up. Holds no connection, and nothing of a conversation."""

    def __init__(self, access: Access) -> None:
        self.provider = access.name
        self.access = access
        self._headers = _HEADERS.copy()
        self._headers |= self.auth_headers(access.api_key) if access.api_key else {}
        self._headers |= access.headers

    # --- what each provider says for itself

    def auth_headers(self, key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    def sent(self, request: Request) -> Sent:
        raise NotImplementedError

    def reader(self, service: Service) -> Reader:
        raise NotImplementedError

    # --- the stream

    async def stream(self, request: Request) -> AsyncGenerator[Sequence[Chunk]]:
        """Each read of the network is one sequence; what is whole at its end is told at once."""
        access = self.access
        service = Service(access.name, request.model, access.key_hint, access.secrets)
        response = await self._asked(self.sent(request), service)
        reader, events, content = self.reader(service), Events(), response.content
        try:
            while reader.finished is None:
                piece = await content.readany()
                out: list[Chunk] = []
                try:
                    _read(reader, events, piece, out)
                except (ModelError, msgspec.MsgspecError, UnicodeError, TooLong):
                    if out:
                        yield out  # what came before it fails was said
                    raise
                if reader.finished is not None:
                    await connection.ended(response)
                    out.append(self._priced(reader.finished, request.model))
                elif not piece:
                    raise failure.cut(service)
                if out:
                    yield out
        except (aiohttp.ClientError, TimeoutError) as error:
            raise failure.cut(service, f"the connection broke ({type(error).__name__})") from None
        except (msgspec.MsgspecError, UnicodeError, TooLong):
            raise failure.cut(service, "something came that means nothing") from None
        finally:
            response.close() if reader.finished is None else response.release()

    async def _asked(self, sent: Sent, service: Service) -> aiohttp.ClientResponse:
        """The response of a request that was taken."""
        try:
            body = msgspec.json.encode(sent.body)
        except (TypeError, UnicodeError):
            raise ModelError("internal", "the request cannot be written as JSON", "provider_opts must be.") from None
        try:
            response = await connection.post(sent.url, {**self._headers, **sent.headers}, body)
        except aiohttp.ClientConnectorCertificateError as error:
            raise failure.unreachable(service, str(error.certificate_error), is_transient=False) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise failure.unreachable(service, str(error) or type(error).__name__) from None
        if response.status == 200:
            return response
        raise await _refused(response, service)

    def _priced(self, finished: Finished, model: str) -> Finished:
        """With what it cost, if the price is known."""
        price, usage = self.access.prices.get(model), finished.usage
        if price is None or usage is None:
            return finished
        return Finished(finished.stop_reason, msgspec.structs.replace(usage, cost_usd=price.of(usage)))

    def merged(self, body: Body, request: Request) -> Body:
        """With what the caller wants in the provider's own words; of tables in it, single entries."""
        for options in (self.access.options, request.options):
            for name, value in options.items():
                if name not in SETUP:
                    old = body.get(name)
                    body[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
        return body


def _read(reader: Reader, events: Events, piece: bytes, out: list[Chunk]) -> None:
    """What a read of the network brought; nothing at all is the end of the body."""
    if piece:
        reader.read(events.feed(piece), out)
    else:
        reader.read(events.close(), out)
        reader.close()


async def _refused(response: aiohttp.ClientResponse, service: Service) -> ModelError:
    now, body = time.time(), b""
    try:
        async with asyncio.timeout(_ERROR_PATIENCE_S):
            while len(body) < _LONGEST_ERROR and (piece := await response.content.readany()):
                body += piece
    except (aiohttp.ClientError, TimeoutError):
        pass  # what there is of it must do
    finally:
        response.close()
    return failure.refused(failure.told(response.status, body, response.headers, now), service, now)


# --- what several formats need


def failed(service: Service, error: Mapping[str, Any]) -> ModelError:
    """The service says in the middle of a stream that it failed."""
    return failure.refused(failure.told_in_stream(error), service, time.time())


class _Typed(Struct, gc=False):
    type: str


_type = msgspec.json.Decoder(_Typed).decode


def is_unknown(event: bytes, known: frozenset[str]) -> bool:
    """An event of a kind that we know nothing of may look like anything; that it comes is no error."""
    return _type(event).type not in known


def data_url(image: Image) -> str:
    return f"data:{image.media_type};base64,{image.data}"


def plain_id(call_id: str) -> str:
    """An id that every service takes; one of another service may have other characters, or be too long."""
    if _PLAIN_ID.fullmatch(call_id):
        return call_id
    return "call_" + hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def signature(part: Thinking, wire: str) -> str:
    """The proof of this reasoning, if it is of this format; the proof of another service means nothing here."""
    whose, _, proof = part.signature.partition(":")
    return proof if whose == wire else ""


def is_said(part: Part) -> bool:
    """Services refuse texts with nothing in them."""
    text = getattr(part, "text", "x")
    return bool(text.strip())


def is_strict(schema: Json) -> bool:
    """Whether every object in a schema names all its fields: only then does OpenAI hold a model to it."""
    if isinstance(schema, list):
        return all(map(is_strict, cast("list[Json]", schema)))
    if not isinstance(schema, dict):
        return True
    told = cast("dict[str, Json]", schema)
    if "properties" in told:
        names = set(told["properties"])
        if told.get("additionalProperties") is not False or set(told.get("required", ())) != names:
            return False
    return all(map(is_strict, told.values()))


def buckets(sent: int, cached: int, output: int) -> TokenUsage:
    """Services that count what was cached among what was sent; here the buckets do not overlap."""
    cached = min(cached, sent)
    return TokenUsage(input=sent - cached, output=output, cache_read=cached)
