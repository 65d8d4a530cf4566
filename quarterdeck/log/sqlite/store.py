"""The adapter: the loop's side of the writer and the reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event
from quarterdeck.log.base import PAGE, START, Append, Cursor, Fence, LogUnavailable, Receipt, Row, Stored
from quarterdeck.log.sqlite.reader import Reader
from quarterdeck.log.sqlite.writer import Outcome, Writer, cursor_text

_T = TypeVar("_T")


class _Gathering:
    """Appends that will share a commit, and the one future that tells them all."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.appends: list[Append] = []
        self.done: asyncio.Future[list[Outcome]] = loop.create_future()


class SqliteLog:
    """Open one with `await SqliteLog.open(path)`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, writing: ThreadPoolExecutor, reading: ThreadPoolExecutor
    ) -> None:
        self._loop = loop
        self._writing = writing
        self._reading = reading
        self._writer: Writer
        self._reader: Reader
        self._gathering: _Gathering | None = None
        self._busy = False
        self._closed = False

    @classmethod
    async def open(cls, path: Path) -> SqliteLog:
        """Creates the file if need be, brings it to the newest version, and takes its ownership."""
        log = cls(
            asyncio.get_running_loop(),
            ThreadPoolExecutor(1, thread_name_prefix="qd-log-writer"),
            ThreadPoolExecutor(1, thread_name_prefix="qd-log-reader"),
        )
        try:
            log._writer = await log._loop.run_in_executor(log._writing, Writer, path)
            log._reader = await log._loop.run_in_executor(log._reading, Reader, path)
        except BaseException:
            log._writing.shutdown(wait=False)
            log._reading.shutdown(wait=False)
            raise
        return log

    async def append(self, append: Append) -> Receipt:
        if self._closed:
            raise _closed()
        gathering = self._gathering
        if gathering is None:
            gathering = self._gathering = _Gathering(self._loop)
            if not self._busy:
                # not at once: what else this pass of the loop appends joins the same commit
                self._loop.call_soon(self._flush)
        place = len(gathering.appends)
        gathering.appends.append(append)
        # shielded: a caller that gives up must not cancel the commit of the others
        outcomes = await asyncio.shield(gathering.done)
        outcome = outcomes[place]
        if isinstance(outcome, QuarterdeckError):
            raise outcome
        return outcome

    def _flush(self) -> None:
        gathering, self._gathering = self._gathering, None
        if gathering is None:
            return
        self._busy = True
        commit = self._writing.submit(self._writer.commit, gathering.appends)
        commit.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._committed, gathering, done))

    def _committed(self, gathering: _Gathering, commit: Future[list[Outcome]]) -> None:
        self._busy = False
        error = commit.exception()
        if error is None:
            gathering.done.set_result(commit.result())
        else:
            gathering.done.set_exception(error)
            gathering.done.exception()  # looked at, so that a group whose callers all left is not reported as lost
        self._flush()

    async def read(
        self, session_id: str, since: int = 0, limit: int = PAGE, types: Collection[str] | None = None
    ) -> list[Event]:
        return await self._on_reader(lambda: self._reader.read(session_id, since, limit, types))

    async def read_all(
        self, since: Cursor = START, limit: int = PAGE, types: Collection[str] | None = None
    ) -> list[Event]:
        return await self._on_reader(lambda: self._reader.read_all(int(since or 0), limit, types))

    async def sessions(self) -> list[Stored]:
        return [self._stored(*found) for found in await self._on_reader(self._reader.sessions)]

    async def session(self, session_id: str) -> Stored:
        return self._stored(*await self._on_reader(lambda: self._reader.session(session_id)))

    async def delete(self, session_id: str, fence: Fence, event: Event) -> Receipt:
        if self._closed:
            raise _closed()
        return await self._loop.run_in_executor(self._writing, self._writer.delete, session_id, fence, event)

    async def last_cursor(self) -> Cursor:
        newest = await self._loop.run_in_executor(self._writing, lambda: self._writer.last_cursor)
        return cursor_text(newest) if newest else START

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # the writer's queue is in order, so what was appended before is committed before
        self._flush()
        # the writer last: only who is alone with the file, and may write it, folds the write-ahead log into it
        await self._loop.run_in_executor(self._reading, self._reader.close)
        await self._loop.run_in_executor(self._writing, self._writer.close)
        self._writing.shutdown()
        self._reading.shutdown()

    async def _on_reader(self, work: Callable[[], _T]) -> _T:
        return await self._loop.run_in_executor(self._reading, work)

    def _stored(self, row: Row, last_index: int, view: bytes, view_index: int) -> Stored:
        return Stored(row, last_index, view, view_index, self._writer.fence_at(last_index))


def _closed() -> LogUnavailable:
    return LogUnavailable("it is closed", "Open the log again.")
