"""A thread that does one thing after another for an event loop.

An executor would do it too, at twice the price: a lone append spends as long on its way to the thread and back as SQLite
spends on it. Both sleep on pipes, not on a lock and not on what `call_soon_threadsafe` has: whoever writes to a pipe is
about to sleep, says Linux, and wakes the reader on the same core, where it finds what it needs in the caches.
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
_ALL = 4096
#: Told on the loop how a piece of work went: what it gave, or what it raised.
Done: TypeAlias = Callable[[Any, BaseException | None], None]


class Worker:
    """Work is done in the order in which it was given."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._work: deque[tuple[Callable[[], object], Done]] = deque()
        self._did: deque[tuple[Done, object, BaseException | None]] = deque()
        self._is_over = False
        self._left = 0
        #: Whether everything is done, and told: until more is given, what the thread works with is the loop's.
        self.is_at_rest = True
        self._sleep, self._wake, self._news, self._tell = _two_pipes()
        for end in (self._wake, self._news, self._tell):
            os.set_blocking(end, False)
        loop.add_reader(self._news, self._hear)
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], object], done: Done) -> None:
        """Returns at once; `done` is called on the loop."""
        self._left += 1
        self.is_at_rest = False
        self._work.append((work, done))
        _wake(self._wake)

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
        """Ends the thread once its work is done. None may be given to it any more, and nobody hears of what is left."""
        self._is_over = True
        _wake(self._wake)
        os.close(self._wake)
        self._wake = -1
        self._loop.remove_reader(self._news)
        os.close(self._news)

    def _hear(self) -> None:
        """What was done; one wake-up may stand for several pieces of work, and one for none that is left."""
        os.read(self._news, _ALL)
        while self._did:
            done, result, error = self._did.popleft()
            self._left -= 1
            self.is_at_rest = not self._left
            try:
                done(result, error)
            except Exception as defect:  # whoever is told next must not suffer for it
                said = {"message": "whoever was told of work that is done failed", "exception": defect}
                self._loop.call_exception_handler(said)

    def _run(self) -> None:
        awake = True
        while awake:
            # not the pipe's end is the thread's: a process that was forked off holds it open
            awake = bool(os.read(self._sleep, _ALL)) and not self._is_over
            while self._work:
                self._done(*self._work.popleft())
        os.close(self._sleep)
        os.close(self._tell)

    def _done(self, work: Callable[[], object], done: Done) -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:
            error = raised
        self._did.append((done, result, error))
        _wake(self._tell)


def _two_pipes() -> tuple[int, int, int, int]:
    """Both, or none."""
    sleep, wake = os.pipe()
    try:
        return sleep, wake, *os.pipe()
    except OSError:
        os.close(sleep)
        os.close(wake)
        raise


def _wake(pipe: int) -> None:
    """A pipe that is full wakes its reader too, and one that nobody reads any more has nobody to wake."""
    with contextlib.suppress(BlockingIOError, BrokenPipeError):
        os.write(pipe, b"!")


def told(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    """Tells whoever still waits."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
