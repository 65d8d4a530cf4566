"""Send requests to model services over HTTP and read their replies as server-sent events.

A wire format subclasses `HttpModel` and provides two things: the HTTP request for a `Request`, and a `Reader` that turns the
events of a reply into chunks. Everything else is here: sessions and proxies, server-sent events, errors, prices, and helpers
that several formats need.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import re
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, cast
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from msgspec import Struct
from yarl import URL

from quarterdeck.engine.model import Chunk, Finished, ModelError, Part, Request, Thinking
from quarterdeck.engine.providers.credentials import SETUP_OPTIONS, Credentials
from quarterdeck.engine.providers.failure import (
    Service,
    classify_error,
    interrupted_error,
    parse_error_response,
    parse_stream_error,
    unreachable_error,
)
from quarterdeck.events import Image, Json, TokenUsage

Body = dict[str, Any]

_HEADERS = {
    "content-type": "application/json",
    "accept": "text/event-stream",
    # A compressed stream arrives later and in larger pieces.
    "accept-encoding": "identity",
    "user-agent": "quarterdeck",
}
#: How many bytes of an error response to read, and for how long.
_ERROR_BYTES, _ERROR_WAIT_S = 1 << 16, 10.0

#: How long an idle connection is kept for the next request.
_KEEPALIVE_S = 20.0
#: Only connecting has a time limit here. The turn loop limits how long a reply may take.
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30)
#: How long to wait for the end of a response that is already complete.
_DRAIN_S = 0.5
#: aiohttp warns about larger bodies given as bytes, because they are written at once. It takes files in pieces.
_LARGE_BODY = 1 << 20
_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})

#: A longer server-sent event ends the stream.
EVENT_LIMIT = 1 << 26
_SAFE_CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


# ------------------------------------------------------------------------------------------------------- HTTP models


class HttpRequest(Struct, frozen=True):
    """A request in a provider's format."""

    url: URL
    body: Body
    headers: Mapping[str, str] = {}


class Reader(Protocol):
    """Reads the events of one reply."""

    #: Set when the reply is complete.
    finished: Finished | None

    def read(self, event: bytes, chunks: list[Chunk]) -> None:
        """Convert the data of one event and append its chunks, also if an error follows in the same event.

        Raises:
            ModelError: the service reported an error.
            msgspec.MsgspecError: the event isn't in the expected format.
        """
        ...

    def close(self) -> None:
        """Handle the end of the response, for formats whose final event is optional."""
        ...


class HttpModel:
    """A model of one provider. It holds no connection and no state of a conversation."""

    def __init__(self, credentials: Credentials) -> None:
        self.provider = credentials.name
        self.credentials = credentials
        key = credentials.api_key
        self._headers = {**_HEADERS, **(self.auth_headers(key) if key else {}), **credentials.headers}

    # Implemented by each format:

    def auth_headers(self, key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    def build_request(self, request: Request) -> HttpRequest:
        raise NotImplementedError

    def make_reader(self, service: Service) -> Reader:
        raise NotImplementedError

    # The same for all formats:

    async def stream(self, request: Request) -> AsyncGenerator[Sequence[Chunk]]:
        """Send a request and yield the chunks of the reply, one sequence per network read.

        Raises:
            ModelError: the request failed, possibly in the middle of the reply.
        """
        credentials = self.credentials
        service = Service(credentials.name, request.model, credentials.key_hint, credentials.secrets)
        response = await self._send(self.build_request(request), service)
        reader, events = self.make_reader(service), ServerSentEvents()
        try:
            while reader.finished is None:
                data = await response.content.readany()
                chunks: list[Chunk] = []
                try:
                    _read_chunks(reader, events, data, chunks)
                except (ModelError, msgspec.MsgspecError, UnicodeError, EventTooLong):
                    if chunks:
                        yield chunks  # What arrived before the error is part of the reply.
                    raise
                if reader.finished is not None:
                    await _drain(response)
                    chunks.append(self._with_cost(reader.finished, request.model))
                elif not data:
                    raise interrupted_error(service)
                if chunks:
                    yield chunks
        except (aiohttp.ClientError, TimeoutError) as error:
            raise interrupted_error(service, f"the connection broke ({type(error).__name__})") from None
        except (msgspec.MsgspecError, UnicodeError, EventTooLong):
            raise interrupted_error(service, "the reply isn't in the expected format") from None
        finally:
            # A connection can only be used again if its response was read to the end.
            if reader.finished is None:
                response.close()
            else:
                response.release()

    async def _send(self, request: HttpRequest, service: Service) -> aiohttp.ClientResponse:
        try:
            body = msgspec.json.encode(request.body)
        except (TypeError, UnicodeError):
            raise ModelError(
                "internal", "the request can't be encoded as JSON", "Check the values in provider_opts."
            ) from None
        try:
            response = await _post(request.url, {**self._headers, **request.headers}, body)
        except aiohttp.ClientConnectorCertificateError as error:
            raise unreachable_error(service, str(error.certificate_error), is_transient=False) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unreachable_error(service, str(error) or type(error).__name__) from None
        if response.status == 200:
            return response
        raise await _read_error(response, service)

    def _with_cost(self, finished: Finished, model: str) -> Finished:
        """Add the cost, if the price of the model is known."""
        price, usage = self.credentials.prices.get(model), finished.usage
        if price is None or usage is None:
            return finished
        return Finished(finished.stop_reason, msgspec.structs.replace(usage, cost_usd=price.of(usage)))

    def with_options(self, body: Body, request: Request) -> Body:
        """Add the caller's own options. A table is merged with one that is already there; other values replace it."""
        for options in (self.credentials.options, request.options):
            for name, value in options.items():
                if name not in SETUP_OPTIONS:
                    old = body.get(name)
                    body[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
        return body


def _read_chunks(reader: Reader, events: ServerSentEvents, data: bytes, chunks: list[Chunk]) -> None:
    """Convert what one network read returned. No data is the end of the response."""
    for event in events.feed(data) if data else events.close():
        reader.read(event, chunks)
        if reader.finished is not None:
            return
    if not data:
        reader.close()


async def _read_error(response: aiohttp.ClientResponse, service: Service) -> ModelError:
    now, body = time.time(), b""
    try:
        async with asyncio.timeout(_ERROR_WAIT_S):
            while len(body) < _ERROR_BYTES and (data := await response.content.readany()):
                body += data
    except (aiohttp.ClientError, TimeoutError):
        pass  # Use what was received.
    finally:
        response.close()
    return classify_error(parse_error_response(response.status, body, response.headers, now), service, now)


# --------------------------------------------------------------------------------------------------------- sessions
# One aiohttp session per event loop, shared by all agents of the process. The first request creates it. aiohttp closes
# idle connections after some seconds.


class _Session(NamedTuple):
    session: aiohttp.ClientSession
    #: An open async generator. asyncio.run closes all of them before it closes the loop (`shutdown_asyncgens`), which is
    #: how the session learns that its loop ends.
    closer: AsyncGenerator[None]


_sessions: dict[asyncio.AbstractEventLoop, _Session] = {}


async def _post(url: URL, headers: dict[str, str], body: bytes) -> aiohttp.ClientResponse:
    """Send a request and return the response without its body. Redirects aren't followed: the key would go along."""
    loop = asyncio.get_running_loop()
    session = (_sessions.get(loop) or await _open_session(loop)).session
    data = body if len(body) < _LARGE_BODY else io.BytesIO(body)
    return await session.post(url, data=data, headers=headers, proxy=_find_proxy(url.origin()), allow_redirects=False)


async def _open_session(loop: asyncio.AbstractEventLoop) -> _Session:
    for other in [other for other in _sessions if other.is_closed()]:
        del _sessions[other]  # A loop that wasn't run by asyncio.run.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S)
    session = aiohttp.ClientSession(
        connector=connector, timeout=_TIMEOUT, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=True
    )
    closer = _close_with_loop(session, loop)
    _sessions[loop] = _Session(session, closer)
    await anext(closer)
    return _sessions[loop]


async def _close_with_loop(session: aiohttp.ClientSession, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        _sessions.pop(loop, None)
        await session.close()


@lru_cache(maxsize=64)
def _find_proxy(origin: URL) -> URL | None:
    """Return the proxy from the environment (HTTPS_PROXY, NO_PROXY, …). Servers on this machine never use one."""
    if origin.host in _LOCAL_HOSTS:
        return None
    proxy = getproxies().get(origin.scheme)
    return URL(proxy) if proxy and not proxy_bypass(origin.authority) else None


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read to the end of a response that is already complete, so its connection can be used again."""
    if response.content.at_eof():
        return
    try:
        async with asyncio.timeout(_DRAIN_S):
            while await response.content.readany():
                pass
    except (TimeoutError, aiohttp.ClientError):
        response.close()


# ----------------------------------------------------------------------------------------------- server-sent events


class EventTooLong(ValueError):
    """A server-sent event that doesn't end."""


class ServerSentEvents:
    """Split a byte stream into events and return their data. Chunks may be cut anywhere, also inside a character."""

    def __init__(self) -> None:
        self._rest = b""
        self._ends_with_return = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of every event that is complete.

        Raises:
            EventTooLong: there is no end of an event within the limit.
        """
        self._rest += self._normalize(data)
        end = self._rest.rfind(b"\n\n")
        if end < 0:
            if len(self._rest) > EVENT_LIMIT:
                raise EventTooLong
            return []
        complete, self._rest = self._rest[: end + 2], self._rest[end + 2 :]
        return [event for block in complete.split(b"\n\n") if (event := _event_data(block)) is not None]

    def close(self) -> list[bytes]:
        """Return the data of a last event without its empty line, which some servers forget."""
        rest, self._rest = self._rest, b""
        data = _event_data(rest)
        return [] if data is None else [data]

    def _normalize(self, data: bytes) -> bytes:
        """Convert the line endings \\r\\n and \\r to \\n. The \\n after a \\r may only arrive with the next chunk."""
        if self._ends_with_return and data[:1] == b"\n":
            data = data[1:]
        if data:
            self._ends_with_return = data[-1:] == b"\r"
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _event_data(block: bytes) -> bytes | None:
    """Return the data lines of an event, joined. Return None for comments and events without data (keep-alives)."""
    lines = [line.removeprefix(b"data:") for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(line.removeprefix(b" ") for line in lines) or None


# ------------------------------------------------------------------------------------------ helpers for wire formats


def stream_error(service: Service, error: Mapping[str, Any]) -> ModelError:
    """Return the error for a failure that the service reported inside a stream."""
    return classify_error(parse_stream_error(error), service, time.time())


class _TypedEvent(Struct):
    type: str


_decode_type = msgspec.json.Decoder(_TypedEvent).decode


def is_unknown_event(event: bytes, known_types: frozenset[str]) -> bool:
    """Return whether an event has a type we don't know. Services add types, so an unknown one isn't an error."""
    return _decode_type(event).type not in known_types


def data_url(image: Image) -> str:
    return f"data:{image.media_type};base64,{image.data}"


def missing_image_note(image: Image) -> str:
    """Return the text that replaces an image whose data isn't stored any more."""
    return f"[image no longer available: {image.path}]"


def safe_call_id(call_id: str) -> str:
    """Return an id that every service accepts. One made by another service may be too long or have other characters."""
    if _SAFE_CALL_ID.fullmatch(call_id):
        return call_id
    return "call_" + hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def signature_for(part: Thinking, wire: str) -> str:
    """Return the signature of a reasoning block, or "" if it was made by a service with another format."""
    origin, _, signature = part.signature.partition(":")
    return signature if origin == wire else ""


def has_text(part: Part) -> bool:
    """Return whether a part may be sent. Services reject empty texts."""
    text = getattr(part, "text", "x")
    return bool(text.strip())


def is_strict_schema(schema: Json) -> bool:
    """Return whether every object in a schema requires all its fields. OpenAI enforces only such schemas."""
    if isinstance(schema, list):
        return all(map(is_strict_schema, cast("list[Json]", schema)))
    if not isinstance(schema, dict):
        return True
    fields = cast("dict[str, Json]", schema)
    if "properties" in fields:
        names = set(fields["properties"])
        if fields.get("additionalProperties") is not False or set(fields.get("required", ())) != names:
            return False
    return all(map(is_strict_schema, fields.values()))


def split_usage(prompt: int, cached: int, output: int) -> TokenUsage:
    """Count cached tokens apart. These services include them in the prompt; our counts don't overlap."""
    cached = min(cached, prompt)
    return TokenUsage(input=prompt - cached, output=output, cache_read=cached)
