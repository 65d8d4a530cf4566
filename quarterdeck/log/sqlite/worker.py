"""A thread that does one thing after another for an event loop.

An executor would do it too, at twice the price: a lone append spends as long on its way to the thread and back as SQLite
spends on it. The thread sleeps on a pipe, not on a lock: whoever writes to a pipe is about to sleep, says Linux, and wakes
the reader on the same core, where it finds what it needs in the caches.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable
from threading import Thread
from typing import Any, TypeAlias, TypeVar, cast

_T = TypeVar("_T")
#: Told on the loop how a piece of work went: what it gave, or what it raised.
Done: TypeAlias = Callable[[Any, BaseException | None], None]


class Worker:
    """Work is done in the order in which it was given."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._work: deque[tuple[Callable[[], object], Done]] = deque()
        self._sleep, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], object], done: Done) -> None:
        """Returns at once; `done` is called on the loop."""
        self._work.append((work, done))
        # a pipe that is full wakes the thread too
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b"!")

    async def call(self, work: Callable[[], _T], tell: Callable[[_T], None] | None = None) -> _T:
        """What the work gives. Whoever stops waiting does not stop the work. `tell` hears of it before anybody hears of the
        work that was given later, which a caller who only waits may not."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def done(result: Any, error: BaseException | None) -> None:
            if tell is not None and error is None:
                tell(result)
            told(future, result, error)

        self.do(work, done)
        return cast("_T", await future)

    def stop(self) -> None:
        """Ends the thread once its work is done. None may be given to it any more."""
        os.close(self._wake)
        self._wake = -1

    def _run(self) -> None:
        awake = True
        while awake:
            # one wake-up may stand for several pieces of work, and one for none that is left; its end is the thread's
            awake = bool(os.read(self._sleep, 4096))
            while self._work:
                self._done(*self._work.popleft())
        os.close(self._sleep)

    def _done(self, work: Callable[[], object], done: Done) -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:
            error = raised
        # a loop that is closed has nobody left to tell
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(done, result, error)


def told(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    """Tells whoever still waits."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
