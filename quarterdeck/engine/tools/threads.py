"""Work that blocks, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` gives or raises. A thread for each call: a shared pool has a few only, and one tool that waits for long
    would keep all others waiting. It dies with the process; whoever stops waiting for it leaves it to its own end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            value = context.run(work, *args, **kwargs)
        except BaseException as error:
            _tell(loop, done, None, error)
        else:
            _tell(loop, done, value, None)

    threading.Thread(target=run, daemon=True).start()
    return await done


async def in_thread_to_its_end(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The same, for work that must not be left half done: who is cancelled waits for its end all the same."""
    running = asyncio.ensure_future(in_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # looked at, so that nobody complains that nobody did
        raise


def _tell(
    loop: asyncio.AbstractEventLoop, done: asyncio.Future[T], value: T | None, error: BaseException | None
) -> None:
    def settle() -> None:
        if done.done():
            return
        if error is None:
            done.set_result(value)  # pyright: ignore[reportArgumentType]  # a T then, also when T has None
        else:
            done.set_exception(_tellable(error))

    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(settle)


def _tellable(error: BaseException) -> BaseException:
    """A future refuses StopIteration; SystemExit and the like would end the loop, and a tool may not do that."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
