"""The two clients: one for programs with a loop, one for those without."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from msgspec import Struct

from quarterdeck.client.session import RemoteSession
from quarterdeck.client.wire import TIMEOUT_S, Wire, closed
from quarterdeck.events import Event, Image

T = TypeVar("T")


#: How long what is under way may take to end by itself when a client is closed.
_GOODBYE_S = 1.0


class _Created(Struct):
    id: str


class _Sessions(Struct):
    sessions: list[dict[str, Any]]


class _Agents(Struct):
    agents: list[dict[str, Any]]


class AsyncClient:
    """`async with AsyncClient(url, token) as deck`. The names are those of `quarterdeck.open`'s deck."""

    def __init__(self, url: str, token: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self._wire = Wire(url, token, timeout_s)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._wire.close()

    async def create(
        self,
        agent: str,
        prompt: str | None = None,
        *,
        cwd: str = ".",
        images: Sequence[Image] = (),
        model: str = "",
        name: str = "",
        mode: str = "",
        env: Mapping[str, str] | None = None,
        record: bool = False,
        arguments: Sequence[str] = (),
        client_id: str = "",
    ) -> RemoteSession:
        """A new session; with a prompt it starts at once. A relative `cwd` is one of this program's."""
        body = {
            "agent": agent,
            "prompt": prompt,
            "cwd": _absolute(cwd),
            "images": images,
            "model": model,
            "name": name,
            "mode": mode,
            "env": env,
            "record": record,
            "options": {"arguments": arguments},
            "client_id": client_id,
        }
        return RemoteSession(self._wire, (await self._wire.ask("POST", "/sessions", _Created, body)).id)

    def session(self, session_id: str) -> RemoteSession:
        """One by its id; whether it exists shows with the first request."""
        return RemoteSession(self._wire, session_id)

    async def list(self, *, limit: int = 20, cursor: str = "", **wanted: str) -> dict[str, Any]:
        """One page of the list, newest first: sessions, next_cursor, badge."""
        query = {"limit": str(limit), **({"cursor": cursor} if cursor else {}), **wanted}
        return await self._wire.ask("GET", "/sessions", dict[str, Any], query=query)

    async def attention(self) -> list[dict[str, Any]]:
        """The sessions that want a person, the most urgent first."""
        return (await self._wire.ask("GET", "/attention", _Sessions)).sessions

    async def agents(self) -> list[dict[str, Any]]:
        return (await self._wire.ask("GET", "/agents", _Agents)).agents

    def subscribe(self, since: str = "", types: Collection[str] | None = None) -> AsyncGenerator[Event]:
        """All events of all sessions after a cursor, and whatever comes."""
        return self._wire.events("/events", since, ",".join(types or ()))


def _absolute(folder: str) -> str:
    """As the server needs it; `~` is the home of whoever runs the server."""
    return folder if folder.startswith("~") else os.path.abspath(folder)


class Client:
    """The same without a loop: every method waits for its answer, and `subscribe` is a plain iterator."""

    def __init__(self, url: str, token: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self._url = url
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="qd-client", daemon=True)
        self._thread.start()
        self._client = AsyncClient(url, token, timeout_s=timeout_s)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Every stream ends, every open request fails, also those that other threads wait for."""
        if not self._is_closed:
            self._is_closed = True
            self._result(_ended(self._client))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of something asynchronous."""
        if self._is_closed:
            work.close()
            raise closed(self._url)
        return self._result(work)

    def _result(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # whoever interrupts the waiting wants no more of the work
            raise

    def create(self, agent: str, prompt: str | None = None, **options: Any) -> Session:
        """A new session; with a prompt it starts at once. The options are AsyncClient.create's."""
        return Session(self, self.wait(self._client.create(agent, prompt, **options)))

    def session(self, session_id: str) -> Session:
        return Session(self, self._client.session(session_id))

    def list(self, **wanted: Any) -> dict[str, Any]:
        """One page of the list, newest first."""
        return self.wait(self._client.list(**wanted))

    def attention(self) -> list[dict[str, Any]]:
        return self.wait(self._client.attention())

    def agents(self) -> list[dict[str, Any]]:
        return self.wait(self._client.agents())

    def subscribe(self, since: str = "", types: Collection[str] | None = None) -> Iterator[Event]:
        return self.each(self._client.subscribe(since, types))

    def each(self, events: AsyncGenerator[Event]) -> Iterator[Event]:
        """A stream as a plain iterator; leaving it closes the stream."""
        try:
            while not self._is_closed:
                yield self.wait(_next(events))
        except StopAsyncIteration:
            return
        finally:
            if not self._is_closed:
                self.wait(_closed(events))


async def _next(events: AsyncGenerator[Event]) -> Event:
    return await anext(events)


async def _closed(events: AsyncGenerator[Event]) -> None:
    # its reader may have been interrupted, and it is being told so in this moment
    while getattr(events, "ag_running", False):  # noqa: ASYNC110 - nothing rings when it is over
        await asyncio.sleep(0)
    await events.aclose()


async def _ended(client: AsyncClient) -> None:
    await client.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, stuck = await asyncio.wait(others, timeout=_GOODBYE_S)
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)


class Session:
    """A session for programs without a loop: the methods of RemoteSession, each waited for."""

    def __init__(self, client: Client, remote: RemoteSession) -> None:
        self._client = client
        self._remote = remote
        self.id = remote.id

    def subscribe(self, since: int = 0, types: Collection[str] | None = None) -> Iterator[Event]:
        return self._client.each(self._remote.subscribe(since, types))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._remote, name)

        def call(*arguments: Any, **options: Any) -> Any:
            return self._client.wait(method(*arguments, **options))

        return call
