"""Run blocking work in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def run_in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work in a new daemon thread and return or raise what it does.

    Every call gets its own thread. A shared pool has few threads, and one tool that blocks for long would delay all
    others. If the caller is cancelled, the thread runs to its end and its result is dropped.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            value = context.run(work, *args, **kwargs)
        except BaseException as error:
            _resolve(loop, result, None, error)
        else:
            _resolve(loop, result, value, None)

    threading.Thread(target=run, daemon=True).start()
    return await result


async def run_in_thread_to_end(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work that must not be left half done: a cancelled caller waits for its end before it returns."""
    running = asyncio.ensure_future(run_in_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # Retrieve the exception so asyncio doesn't log it as never retrieved.
        raise


def _resolve(
    loop: asyncio.AbstractEventLoop, result: asyncio.Future[T], value: T | None, error: BaseException | None
) -> None:
    def set_result() -> None:
        if result.done():
            return
        if error is None:
            result.set_result(value)  # pyright: ignore[reportArgumentType]  # A T here, also if T includes None.
        else:
            result.set_exception(_as_settable(error))

    with contextlib.suppress(RuntimeError):  # The loop is closed, so nothing waits for the result.
        loop.call_soon_threadsafe(set_result)


def _as_settable(error: BaseException) -> BaseException:
    """Wrap exceptions that a future can't carry.

    A future refuses StopIteration. SystemExit and KeyboardInterrupt would end the event loop, which a tool must not do.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
