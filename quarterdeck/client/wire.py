"""Requests and streams of the client: one connection pool, errors of the server as the errors they were."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any, TypeVar

import aiohttp
import msgspec

from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event, decode_event

T = TypeVar("T")

#: A request that has no answer after this long is given up; a stream may be silent for as long as its server beats.
TIMEOUT_S = 30.0
_SILENCE_S = 60.0
#: How long to wait before a stream that was cut is opened again, at first and at most.
_PAUSE_S = (0.1, 5.0)
_LINE_LIMIT = 64 * 1024 * 1024


class Unreachable(QuarterdeckError):
    """The server cannot be reached."""

    code = "unreachable"

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"{url} cannot be reached: {why}", "Start it with `qd up`.")


class TimedOut(QuarterdeckError):
    """The server did not answer in time. Whether it did what was asked is not known; the same client_id finds out."""

    code = "timed_out"

    def __init__(self, what: str) -> None:
        super().__init__(f"no answer to {what} within {TIMEOUT_S:g} seconds", "Send it again with the same client_id.")


class Refused(QuarterdeckError):
    """An error that only the server knows by name."""

    def __init__(self, code: str, message: str, hint: str, status: int) -> None:
        super().__init__(message, hint)
        self.code = code
        self.status = status


class Wire:
    """One server."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._http: aiohttp.ClientSession | None = None

    @property
    def http(self) -> aiohttp.ClientSession:
        if self._http is None:
            headers = {"Authorization": f"Bearer {self._token}"}
            self._http = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))
        return self._http

    async def close(self) -> None:
        """Every stream ends, every open request fails."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: Any = None,
        query: Mapping[str, str] | None = None,
        accept: str = "*/*",
    ) -> T:
        """The answer, of this type; an error as the error it was."""
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Accept": accept} | ({} if data is None else {"Content-Type": "application/json"})
        try:
            async with self.http.request(method, self.url + path, data=data, params=query, headers=headers) as answer:
                content = await answer.read()
        except TimeoutError:
            raise TimedOut(f"{method} {path}") from None
        except aiohttp.ClientError as error:
            raise Unreachable(self.url, str(error) or type(error).__name__) from None
        if answer.status >= 400:
            raise error_of(content, answer.status)
        return msgspec.json.decode(content or b"null", type=kind)

    async def events(self, path: str, since: str, types: str) -> AsyncGenerator[Event]:
        """A stream that goes on after every cut from the event after the last one. It ends when the client is closed."""
        pause = _PAUSE_S[0]
        while self._http is not None or pause == _PAUSE_S[0]:
            try:
                async for identifier, event in self._stream(path, since, types):
                    since, pause = identifier, _PAUSE_S[0]
                    if event is not None:
                        yield event
            except (aiohttp.ClientError, TimeoutError, ConnectionError):
                pass
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_S[1])

    async def _stream(self, path: str, since: str, types: str) -> AsyncGenerator[tuple[str, Event | None]]:
        query = {"since": since or "0"} if path != "/events" else {"since": since}
        if types:
            query["types"] = types
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT_S, sock_read=_SILENCE_S)
        async with self.http.get(
            self.url + path, params=query, timeout=timeout, read_bufsize=_LINE_LIMIT, headers=_STREAM
        ) as answer:
            if answer.status >= 400:
                raise error_of(await answer.read(), answer.status)
            async for name, identifier, data in blocks(answer.content):
                known = name not in ("gap", "snapshot", "cursor", "end")
                yield identifier, decode_event(data) if known else None


_STREAM = {"Accept": "text/event-stream"}


async def blocks(content: aiohttp.StreamReader) -> AsyncGenerator[tuple[str, str, bytes]]:
    """Name, id and data of every block of an SSE stream; what has no data is a heartbeat."""
    name, identifier, data = "", "", b""
    while line := await content.readline():
        line = line.rstrip(b"\r\n")
        if not line:
            if data:
                yield name, identifier, data
            name, data = "", b""
        elif line.startswith(b"data: "):
            data += line[6:]
        elif line.startswith(b"event: "):
            name = line[7:].decode()
        elif line.startswith(b"id: "):
            identifier = line[4:].decode()


def error_of(content: bytes, status: int) -> QuarterdeckError:
    """The error behind an answer: of the class that raised it where this program knows it."""
    try:
        found = msgspec.json.decode(content)["error"]
        code, message, hint = found["code"], found["message"], found["hint"]
    except (msgspec.MsgspecError, UnicodeError, TypeError, KeyError):
        return Refused("bad_answer", f"the server answered {status}", "Is this the address of a Quarterdeck?", status)
    kind = _classes().get(code)
    if kind is None:
        return Refused(code, message, hint, status)
    error = kind.__new__(kind)
    QuarterdeckError.__init__(error, message, hint)
    return error


def _classes() -> dict[str, type[QuarterdeckError]]:
    found: dict[str, type[QuarterdeckError]] = {}
    open_ends = [QuarterdeckError]
    while open_ends:
        kind = open_ends.pop()
        if kind is not Refused:
            found.setdefault(kind.code, kind)
        open_ends += kind.__subclasses__()
    return found
