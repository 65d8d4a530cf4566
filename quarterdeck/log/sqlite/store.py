"""Adapt the SQLite writer and reader, each on its own thread, to the log's port.

All commits happen on the writer's thread. Appends from one pass of the event loop, and all that arrive while a commit is in
progress, share the next commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, TypeVarTuple

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
from quarterdeck.log.sqlite.reader import StoreReader
from quarterdeck.log.sqlite.writer import Outcome, StoreWriter, cursor_text

_T = TypeVar("_T")
_Arguments = TypeVarTuple("_Arguments")


class SqliteLog:
    """A log in a SQLite file. Open one with `await SqliteLog.open(path)`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # One thread each, because an SQLite connection can't be used by two threads at once. A thread also keeps the order:
        # what was submitted first is done first.
        self._writer_thread = ThreadPoolExecutor(1, "qd-log-writer")
        self._reader_thread = ThreadPoolExecutor(1, "qd-log-reader")
        self._writer: StoreWriter
        self._reader: StoreReader
        #: Appends for the next commit, each with the future of its caller.
        self._waiting: list[tuple[Append, asyncio.Future[Receipt]]] = []
        self._commit_task: asyncio.Task[None] | None = None
        self._delete_lock = asyncio.Lock()
        self._is_closed = False

    @classmethod
    async def open(cls, path: Path) -> SqliteLog:
        """Open a store and take its ownership. Create the file if it is missing, and migrate it if it is older.

        Raises:
            NewerLog: a newer release wrote the store.
            LogUnavailable: the file can't be opened or written.
        """
        log = cls()
        opened: list[StoreWriter | StoreReader] = []

        def open_writer() -> StoreWriter:
            opened.append(writer := StoreWriter(path))
            return writer

        def open_reader() -> StoreReader:
            opened.append(reader := StoreReader(path))
            return reader

        try:
            log._writer = await log._run(log._writer_thread, open_writer)
            log._reader = await log._run(log._reader_thread, open_reader)
        except BaseException:
            # If the caller was cancelled, a thread may still be opening the file, so close it after that on the same thread.
            log._reader_thread.submit(lambda: [store.close() for store in opened if isinstance(store, StoreReader)])
            log._writer_thread.submit(lambda: [store.close() for store in opened if isinstance(store, StoreWriter)])
            log._stop_threads()
            raise
        return log

    # --- writing

    async def append(self, append: Append) -> Receipt:
        self._check_open()
        # Each caller awaits its own future, so one that is cancelled doesn't cancel the commit of the others.
        done: asyncio.Future[Receipt] = self._loop.create_future()
        self._waiting.append((append, done))
        if self._commit_task is None:
            # The task starts in the next pass of the loop, so everything appended in this pass shares a commit.
            self._commit_task = self._loop.create_task(self._commit_waiting())
        return await done

    async def _commit_waiting(self) -> None:
        """Commit what waits, then what arrived meanwhile, until nothing is left."""
        while self._waiting:
            group, self._waiting = self._waiting, []
            appends = [append for append, _ in group]
            outcomes: list[Outcome]
            try:
                outcomes = await self._run(self._writer_thread, self._writer.commit, appends)
            except Exception as error:
                outcomes = [error] * len(group)
            for (_, done), outcome in zip(group, outcomes, strict=True):
                _resolve(done, outcome)
            # Checkpoint only after the callers know of their commit: it can take a hundred times as long.
            if self._writer.needs_checkpoint:
                await self._run(self._writer_thread, self._writer.checkpoint)
        self._commit_task = None

    async def delete(
        self, session_id: str, fence: Fence, event: Event, on_durable: Callable[[Receipt], None] | None = None
    ) -> Receipt:
        # Delete one session at a time: large deletions queued on the thread would delay all appends behind them.
        async with self._delete_lock:
            self._check_open()
            deletion = self._loop.run_in_executor(
                self._writer_thread, lambda: self._writer.delete(session_id, fence, event)
            )
            if on_durable is not None:
                # Futures call back in the order in which they were resolved, so this runs before any later append returns.
                deletion.add_done_callback(lambda done: on_durable(done.result()) if _succeeded(done) else None)
            # Shield it, so that `on_durable` is called even if the caller is cancelled while the thread deletes.
            receipt = await asyncio.shield(deletion)
            if self._writer.needs_checkpoint and not self._is_closed:
                await self._run(self._writer_thread, self._writer.checkpoint)
            return receipt

    async def probe(self) -> None:
        self._check_open()
        written = await self._run(self._writer_thread, self._writer.probe)
        self._check_open()
        if await self._run(self._reader_thread, self._reader.last_probe) < written:
            raise LogUnavailable("a committed change can't be read back", "Run `qd db check`.")

    async def last_cursor(self) -> Cursor:
        self._check_open()
        newest = await self._run(self._writer_thread, lambda: self._writer.last_cursor)
        return cursor_text(newest) if newest else START

    # --- reading

    async def read(
        self, session_id: str, since: int = 0, limit: int = PAGE, types: Collection[str] | None = None
    ) -> list[Event]:
        self._check_open()
        return await self._run(self._reader_thread, self._reader.read, session_id, since, limit, types)

    async def read_all(
        self, since: Cursor = START, limit: int = PAGE, types: Collection[str] | None = None
    ) -> list[Event]:
        self._check_open()
        return await self._run(self._reader_thread, self._reader.read_all, int(since or 0), limit, types)

    async def sessions(self) -> list[StoredSession]:
        self._check_open()
        return [self._stored(*columns) for columns in await self._run(self._reader_thread, self._reader.sessions)]

    async def session(self, session_id: str) -> StoredSession:
        self._check_open()
        return self._stored(*await self._run(self._reader_thread, self._reader.session, session_id))

    def _stored(self, row: CatalogueRow, last_index: int, snapshot: bytes, snapshot_index: int) -> StoredSession:
        return StoredSession(row, last_index, snapshot, snapshot_index, self._writer.fence_at(last_index))

    # --- closing, and threads

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._commit_task is not None:
            # Commit what was appended before. Shield it: a caller that gives up must not lose events.
            await asyncio.shield(self._commit_task)
        # Close the writer last: SQLite checkpoints the write-ahead log into the file when the last connection closes, and a
        # read-only connection can't do that.
        await self._run(self._reader_thread, self._reader.close)
        await self._run(self._writer_thread, self._writer.close)
        self._stop_threads()

    def _check_open(self) -> None:
        if self._is_closed:
            raise LogUnavailable("it is closed", "Open the log again.")

    async def _run(self, thread: ThreadPoolExecutor, work: Callable[[*_Arguments], _T], *args: *_Arguments) -> _T:
        return await self._loop.run_in_executor(thread, work, *args)

    def _stop_threads(self) -> None:
        # Don't wait: the threads end by themselves after their last work.
        self._reader_thread.shutdown(wait=False)
        self._writer_thread.shutdown(wait=False)


def _succeeded(future: asyncio.Future[Receipt]) -> bool:
    return not future.cancelled() and future.exception() is None


def _resolve(future: asyncio.Future[Receipt], outcome: Outcome) -> None:
    # The future is done already if its caller was cancelled.
    if future.done():
        return
    if isinstance(outcome, Receipt):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)
