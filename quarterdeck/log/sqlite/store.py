"""The adapter: the loop's side of the writer and the reader.

Commits are made on the writer's thread, and what comes meanwhile shares the next one. A lone append that comes while the
writer is at rest is committed right here, if it is small and the disk has been quick: to wake a thread and to be woken by it
costs more than half of what such a commit does, and nobody could be told of anything before it anyway. Where several come
at once the loop has other things to do than to wait for a disk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeAlias, TypeVar

from quarterdeck.events import Event
from quarterdeck.log.base import (
    PAGE,
    START,
    Append,
    CatalogueRow,
    Cursor,
    Fence,
    LogUnavailable,
    Receipt,
    StoredSession,
)
from quarterdeck.log.sqlite.reader import Reader
from quarterdeck.log.sqlite.worker import Worker, told
from quarterdeck.log.sqlite.writer import Outcome, Writer, cursor_text

_T = TypeVar("_T")
Told: TypeAlias = Callable[[Receipt | None, BaseException | None], None]

#: What is committed on the loop: one append of not more events than these,
_FEW = 16
#: by a disk that needed less than this
_QUICK_S = 0.001
#: for so many commits in a row; for as many more as the last slow one was slower than that.
_STEADY = 8


class _Gathering:
    """Appends that will share a commit, and who waits for each."""

    __slots__ = ("appends", "waiting")

    def __init__(self) -> None:
        self.appends: list[Append] = []
        self.waiting: list[Told] = []


class SqliteLog:
    """Open one with `await SqliteLog.open(path)`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._writing, self._reading = _workers(loop)
        self._writer: Writer
        self._reader: Reader
        self._gathering: _Gathering | None = None
        self._busy = False
        #: How many commits in a row were quick; below zero when the last one that was not was very slow.
        self._quick = 0
        self._is_folding = False
        self._deleting = asyncio.Lock()
        self._closed = False

    @classmethod
    async def open(cls, path: Path) -> SqliteLog:
        """Creates the file if need be, brings it to the newest version, and takes its ownership."""
        log = cls(asyncio.get_running_loop())
        writers, readers = list[Writer](), list[Reader]()
        try:
            log._writer = await log._writing.call(lambda: _kept(Writer(path), writers))
            log._reader = await log._reading.call(lambda: _kept(Reader(path), readers))
        except BaseException:
            # in their turn: what is just being opened for somebody who waits no longer is closed too
            log._reading.do(lambda: [one.close() for one in readers], _unheard)
            log._writing.do(lambda: [one.close() for one in writers], _unheard)
            log._reading.stop()
            log._writing.stop()
            raise
        # only who appends in this very moment waits for it
        log._writing.do(log._writer.make_room, _unheard)
        return log

    async def append(self, append: Append) -> Receipt:
        # a future for each: a caller that gives up cancels its own, and not the commit of the others
        waiting: asyncio.Future[Receipt] = self._loop.create_future()
        self.submit(append, lambda receipt, error: told(waiting, receipt, error))
        return await waiting

    def submit(self, append: Append, told: Told) -> None:
        if self._closed:
            self._loop.call_soon(told, None, _closed())
            return
        gathering = self._gathering
        if gathering is None:
            gathering = self._gathering = _Gathering()
            if not self._busy:
                # not at once: what else this pass of the loop appends joins the same commit
                self._loop.call_soon(self._flush)
        gathering.appends.append(append)
        gathering.waiting.append(told)

    def _flush(self) -> None:
        """What was gathered is committed: here, if that is quick, else on the writer's thread."""
        gathering, self._gathering = self._gathering, None
        if gathering is None:
            return
        is_lone = len(gathering.appends) == 1 and len(gathering.appends[0].events) <= _FEW
        is_quick = is_lone and self._quick >= _STEADY and self._writing.is_at_rest
        if not is_quick or not self._is_committed_here(gathering):
            self._commit_there(gathering)

    def _is_committed_here(self, gathering: _Gathering) -> bool:
        """Not if another program has the store, or if it is much: that is waited for elsewhere."""
        outcomes, failure, began = None, None, time.perf_counter()
        try:
            outcomes = self._writer.commit_at_once(gathering.appends)
        except Exception as error:
            failure = error
        except BaseException:  # a person's Ctrl-C: whoever waits must not wait for ever
            self._tell(gathering, None, _interrupted())
            raise
        if outcomes is None and failure is None:
            return False
        self._took(time.perf_counter() - began if failure is None else _QUICK_S)
        self._tell(gathering, outcomes, failure)
        return True

    def _commit_there(self, gathering: _Gathering) -> None:
        self._busy = True

        def commit() -> tuple[list[Outcome], float]:
            began = time.perf_counter()
            return self._writer.commit(gathering.appends), time.perf_counter() - began

        def committed(result: tuple[list[Outcome], float] | None, error: BaseException | None) -> None:
            self._busy = False
            outcomes, took = result or (None, _QUICK_S)
            # the next group is on its way before anybody hears of this one; not here, or it would be told of before
            following, self._gathering = self._gathering, None
            if following is not None:
                self._commit_there(following)
            self._took(took)
            self._tell(gathering, outcomes, error)

        self._writing.do(commit, committed)

    def _tell(self, gathering: _Gathering, outcomes: list[Outcome] | None, error: BaseException | None) -> None:
        for place, tell in enumerate(gathering.waiting):
            outcome = error if outcomes is None else outcomes[place]
            try:
                if isinstance(outcome, Receipt):
                    tell(outcome, None)
                else:
                    tell(None, outcome)
            except Exception as defect:  # its company must not suffer for it, nor whoever closes
                said = {"message": "whoever was told of an append failed", "exception": defect}
                self._loop.call_exception_handler(said)

    def _took(self, seconds: float) -> None:
        if seconds < _QUICK_S:
            self._quick += 1
        else:
            # a disk that stood still for a second is watched for a thousand commits: the loop is not to stand still often
            self._quick = min(self._quick, -int(seconds / _QUICK_S))
        self._fold_if_long()

    def _fold_if_long(self) -> None:
        if self._writer.is_long and not self._is_folding and not self._closed:
            self._is_folding = True
            self._writing.do(self._writer.fold, self._folded)

    def _folded(self, _: object, __: BaseException | None) -> None:
        self._is_folding = False

    async def read(
        self, session_id: str, since: int = 0, limit: int = PAGE, types: Collection[str] | None = None
    ) -> list[Event]:
        return await self._on_reader(lambda: self._reader.read(session_id, since, limit, types))

    async def read_all(
        self, since: Cursor = START, limit: int = PAGE, types: Collection[str] | None = None
    ) -> list[Event]:
        return await self._on_reader(lambda: self._reader.read_all(int(since or 0), limit, types))

    async def sessions(self) -> list[StoredSession]:
        return [self._stored(*found) for found in await self._on_reader(self._reader.sessions)]

    async def session(self, session_id: str) -> StoredSession:
        return self._stored(*await self._on_reader(lambda: self._reader.session(session_id)))

    async def delete(
        self, session_id: str, fence: Fence, event: Event, on_durable: Callable[[Receipt], None] | None = None
    ) -> Receipt:
        # one at a time: appends come between two of them, and do not wait for a queue
        async with self._deleting:
            receipt = await self._on_writer(lambda: self._writer.delete(session_id, fence, event), on_durable)
            self._fold_if_long()
            return receipt

    async def last_cursor(self) -> Cursor:
        newest = await self._on_writer(lambda: self._writer.last_cursor)
        return cursor_text(newest) if newest else START

    async def probe(self) -> None:
        written = await self._on_writer(self._writer.probe)
        seen = await self._on_reader(self._reader.probed)
        if seen < written:
            raise LogUnavailable("what was written cannot be read back", "Run `qd db check`.")

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # the writer's work is in order, so what was appended before is committed before
        self._flush()
        # the writer last: only who is alone with the file, and may write it, folds the write-ahead log into it
        await self._reading.call(self._reader.close)
        await self._writing.call(self._writer.close)
        self._writing.stop()
        self._reading.stop()

    async def _on_writer(self, work: Callable[[], _T], tell: Callable[[_T], None] | None = None) -> _T:
        if self._closed:
            raise _closed()
        return await self._writing.call(work, tell)

    async def _on_reader(self, work: Callable[[], _T]) -> _T:
        if self._closed:
            raise _closed()
        return await self._reading.call(work)

    def _stored(self, row: CatalogueRow, last_index: int, view: bytes, view_index: int) -> StoredSession:
        return StoredSession(row, last_index, view, view_index, self._writer.fence_at(last_index))


def _kept(one: _T, among: list[_T]) -> _T:
    among.append(one)
    return one


def _workers(loop: asyncio.AbstractEventLoop) -> tuple[Worker, Worker]:
    """Who writes and who reads. LogUnavailable when this process may not have that many files open."""
    try:
        writing = Worker(loop, "qd-log-writer")
        try:
            return writing, Worker(loop, "qd-log-reader")
        except OSError:
            writing.stop()
            raise
    except OSError as error:
        raise LogUnavailable(str(error.strerror), "Close some files, or raise the limit (`ulimit -n`).") from None


def _unheard(_: object, __: BaseException | None) -> None:
    """Nobody waits for it."""


def _interrupted() -> LogUnavailable:
    return LogUnavailable("it was interrupted", "Read the session again: what was being written may be there.")


def _closed() -> LogUnavailable:
    return LogUnavailable("it is closed", "Open the log again.")
