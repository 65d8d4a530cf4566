"""Requests and streams of the client: one connection pool, errors of the server as the errors they were."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import aiohttp
import msgspec

from quarterdeck.client.blocks import Block, Splitter
from quarterdeck.client.failures import Refused, Unreachable, refusal
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event, decode_event

T = TypeVar("T")

#: A request that has no answer after this long is given up; a stream may be silent for as long as its server beats.
TIMEOUT_S = 30.0
_SILENCE_S = 60.0
#: How long to wait before a stream that was cut is opened again, at first and at most.
_PAUSE_S = (0.1, 5.0)


class TimedOut(QuarterdeckError):
    """The server did not answer in time. Whether it did what was asked is not known; the same client_id finds out."""

    code = "timed_out"

    def __init__(self, what: str, timeout_s: float) -> None:
        super().__init__(f"no answer to {what} within {timeout_s:g} seconds", "Send it again with the same client_id.")


class Gap(QuarterdeckError):
    """The server's log does not reach as far as we have read: another log, or an older copy of this one.

    `to` is where it ends. Whoever wants to go on reads a snapshot there and subscribes from it.
    """

    code = "gap"

    def __init__(self, since: str, to: int | str) -> None:
        super().__init__(f"the log ends at {to}, before {since}", f"Read the session again and go on from {to}.")
        self.to = to


class Wire:
    """One server. `timeout_s` is how long an answer may take."""

    def __init__(self, url: str, token: str, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url.rstrip("/")
        self._token = token.strip()  # as it lies in a file
        self._timeout_s = timeout_s
        self._http: aiohttp.ClientSession | None = None
        self._ended = asyncio.Event()
        self._streams: set[aiohttp.ClientResponse] = set()

    @property
    def http(self) -> aiohttp.ClientSession:
        if self._ended.is_set():
            raise closed(self.url)
        if self._http is None:
            headers = {"Authorization": f"Bearer {self._token}"}
            self._http = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=self._timeout_s))
        return self._http

    async def close(self) -> None:
        """Every stream ends, every open request fails."""
        self._ended.set()
        for stream in self._streams:
            stream.close()  # wakes whoever waits for its next words
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
            raise TimedOut(f"{method} {path}", self._timeout_s) from None
        except aiohttp.ClientConnectorError as error:
            raise _unreachable(self.url, error) from None
        except aiohttp.ClientError as error:
            raise _cut_off(f"{method} {path}", error) from None
        if answer.status >= 400:
            raise error_of(content, answer.status)
        try:
            return msgspec.json.decode(content or b"null", type=kind)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise refusal(answer.status, b"") from None

    async def events(self, path: str, since: str, types: str) -> AsyncGenerator[Event]:
        """A stream that goes on after every cut from the event after the last one.

        It ends when the session is deleted or the client is closed. Only the first connection can fail: whoever
        subscribes learns at once that there is no server, and later waits for it to come back.
        """
        pause, has_begun = _PAUSE_S[0], False
        while not self._ended.is_set():
            try:
                async with aclosing(self._blocks(path, since, types)) as blocks:
                    async for block in blocks:
                        has_begun, pause = True, _PAUSE_S[0]
                        since = block.id or since
                        if block.name == "end" and msgspec.json.decode(block.data)["reason"] == "deleted":
                            return
                        if block.name not in _OURS:
                            yield decode_event(block.data)
            except (aiohttp.ClientError, TimeoutError, ConnectionError, _Busy) as error:
                if not has_begun and not self._ended.is_set():
                    raise _first_failure(self.url, error) from None
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), pause)
            pause = min(2 * pause, _PAUSE_S[1])

    async def _blocks(self, path: str, since: str, types: str) -> AsyncGenerator[Block]:
        query = ({"since": since} if since else {}) | ({"types": types} if types else {})
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s, sock_read=_SILENCE_S)
        url = self.url + path
        async with self.http.get(url, params=query, timeout=timeout, headers=_STREAM) as answer:
            if answer.status >= 400:
                error = error_of(await answer.read(), answer.status)
                raise _Busy(error) if answer.status in _LATER else error
            if answer.content_type != "text/event-stream":
                raise refusal(answer.status, b"")  # a page of somebody else's would be opened again and again
            yield Block("open", "", b"")
            self._streams.add(answer)
            splitter = Splitter()
            try:
                async for data in answer.content.iter_any():
                    for block in splitter.feed(data):
                        if block.name == "gap":
                            raise Gap(since, msgspec.json.decode(block.data)["to"])
                        yield block
            finally:
                self._streams.discard(answer)


_STREAM = {"Accept": "text/event-stream"}
#: Blocks that are no events.
_OURS = frozenset({"open", "snapshot", "cursor", "end"})
#: The server is there and cannot serve now: it starts, or it ends.
_LATER = frozenset({429, 502, 503, 504})


class _Busy(Exception):
    """Come again later."""

    def __init__(self, error: QuarterdeckError) -> None:
        super().__init__(str(error))
        self.error = error


def _first_failure(url: str, error: Exception) -> QuarterdeckError:
    return error.error if isinstance(error, _Busy) else _unreachable(url, error)


def _unreachable(url: str, why: Exception | str) -> Unreachable:
    return Unreachable(f"{url} cannot be reached: {str(why) or type(why).__name__}", "Start it with `qd up`.")


def _cut_off(what: str, why: Exception) -> Unreachable:
    """It was sent, maybe, and maybe done."""
    message = f"the connection was lost before the answer to {what}: {str(why) or type(why).__name__}"
    return Unreachable(message, "Whether it was done is not known. Send it again with the same client_id.")


def closed(url: str) -> Unreachable:
    """Nothing is asked any more."""
    return _unreachable(url, "this client is closed")


def error_of(content: bytes, status: int) -> QuarterdeckError:
    """The error behind an answer: of the class that raised it where this program knows it."""
    refused = refusal(status, content)
    kind = _classes().get(refused.code)
    if kind is None:
        return refused
    error = kind.__new__(kind)
    QuarterdeckError.__init__(error, refused.message, refused.hint)
    return error


#: Some of what it says has the code of an error of ours, for the sake of the exit code; no server ever answers it.
_COMMAND_LINE = "quarterdeck.cli."


def _classes() -> dict[str, type[QuarterdeckError]]:
    found: dict[str, type[QuarterdeckError]] = {}
    open_ends = [QuarterdeckError]
    while open_ends:
        kind = open_ends.pop()
        if kind is not Refused and not kind.__module__.startswith(_COMMAND_LINE):
            found.setdefault(kind.code, kind)
        open_ends += kind.__subclasses__()
    return found
