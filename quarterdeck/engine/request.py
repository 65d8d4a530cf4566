"""One request to the model, until there is a reply: streamed, watched, tried again, and shortened once if it is too long."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quarterdeck import events as ev
from quarterdeck.engine.model import Message, ModelError, Request
from quarterdeck.engine.reply import Reply
from quarterdeck.events import Body

if TYPE_CHECKING:
    from quarterdeck.engine.turn import Turn


class Stalled(ModelError):
    """No chunk for too long."""

    def __init__(self, elapsed_s: float) -> None:
        super().__init__("network", f"the model was silent for {elapsed_s:g} s", "Try again.", is_passing=True)
        self.elapsed_s = elapsed_s


class Watch:
    """Ends the wait of a task when nothing was seen for too long. One timer, however many chunks come."""

    __slots__ = ("_last", "_limit", "_loop", "_task", "_timer", "expired")

    def __init__(self, limit: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._limit = limit
        self._last = self._loop.time()
        self._timer = self._loop.call_later(limit, self._look)
        self.expired = False

    def seen(self) -> None:
        self._last = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        left = self._last + self._limit - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        elif self._task is not None:
            self.expired = True
            self._task.cancel()


async def replied(turn: Turn, messages: Sequence[Message]) -> Reply | None:
    """The whole reply; ModelError when it cannot be had. None when a plugin leaves the shortened request out."""
    attempt, shortened = 0, False
    while True:
        turn.reply = reply = Reply(turn.core.next_id("m"), turn.turn_id, turn.path)
        try:
            await _streamed(turn, messages, reply)
            return reply
        except ModelError as error:
            turn.reply = None
            cut = [reply.aborted(False)] if reply.said else []
            if error.kind == "overflow":
                turn.say(*cut, turn.made(ev.ContextOverflow, reason=error.message))
                if shortened or not await turn.compact("auto"):
                    raise ModelError("api", error.message, error.hint) from error
                shortened, again = True, await turn.to_send()
                if again is None:
                    return None
                messages = again
                continue
            attempt += 1
            await _pause(turn, error, cut, attempt)


async def _pause(turn: Turn, error: ModelError, cut: Sequence[Body], attempt: int) -> None:
    """Until the next attempt; raises when there is none."""
    policy = turn.core.options.retry
    fault: list[Body] = [*cut]
    if isinstance(error, Stalled):
        fault.append(turn.made(ev.StreamStalled, elapsed_s=error.elapsed_s))
    elif error.is_passing:
        fault.append(turn.made(ev.StreamError, reason=error.message))
    if not error.is_passing or not policy.may_wait(attempt, error.retry_after):
        turn.say(*fault)
        raise error
    delay = policy.delay(attempt, error.retry_after)
    turn.say(*fault, turn.made(ev.Retry, attempt=attempt, delay_ms=round(delay * 1000), reason=error.message))
    await asyncio.sleep(delay)


async def _streamed(turn: Turn, messages: Sequence[Message], reply: Reply) -> None:
    core, options = turn.core, turn.core.options
    request = Request(
        model=turn.own_model_name,
        messages=messages,
        system=turn.system_prompt,
        tools=turn.specs(),
        max_tokens=options.max_tokens,
        response_format=options.response_format if not turn.path else None,
        thinking=core.thinking,
        options=turn.provider_opts,
    )
    turn.tell(ev.RequestStart, model=turn.model_name, messages=len(messages))
    write, feed = core.journal.write, reply.feed
    stream = turn.model.stream(request)
    watch = Watch(options.stall_s)
    try:
        async for chunks in stream:
            watch.seen()
            bodies = feed(chunks)
            if bodies:
                write(bodies)
            if reply.finished is not None:
                return
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not watch.expired or task is None or task.uncancel() > 0:
            raise
        raise Stalled(options.stall_s) from None
    finally:
        watch.stop()
        await stream.aclose()
    raise ModelError("network", "the stream ended before the reply did", "Try again.", is_passing=True)
