"""Run the tool calls of one reply.

The calls of a batch run side by side, each in a task of its own so that it can be cancelled by itself. A call can be blocked
or held by plugins, queued behind another call of the same tool, skipped for steering, killed by an abort, or detached (it
outlives its turn). Whatever happens, exactly one event ends each call.

That event is written as soon as the call is cancelled. The task itself may take longer to end, with everything that it
started, so the next request waits for cancelled tasks (`Batch.unwinding`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast

from quarterdeck import events as ev
from quarterdeck.engine.conversation import call_key
from quarterdeck.engine.journal import now_ms
from quarterdeck.engine.model import Call
from quarterdeck.engine.plugins.base import Hold
from quarterdeck.engine.tool_context import CallContext
from quarterdeck.engine.tools.base import Outcome, Tool, ToolContext
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Body, Json

if TYPE_CHECKING:
    from quarterdeck.engine.turn import Turn

KillTools = Literal["killable", "all", "none"]

_SKIPPED = "the user sent a new message"


class TurnAborted(Exception):
    """A plugin ended the turn."""

    def __init__(self, reason: str, outcome: Outcome | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        #: Result for the call that the plugin was asked about, if the plugin replaced it.
        self.outcome = outcome


class CallRun:
    """One tool call of a batch.

    `status` moves forward only:

        waiting ─▶ held ─▶ queued ─▶ running ─▶ done

    A waiting call hasn't been shown to the plugins yet. A held call needs a decision. A queued call starts when another call
    of its tool is done. Any step may be left out, and every status may move to done.
    """

    def __init__(self, call: Call, tool: Tool | None) -> None:
        self.call = call
        self.tool = tool
        #: Arguments of the call. Plugins may replace them.
        self.args: dict[str, Json] = call.args
        self.status: Literal["waiting", "held", "queued", "running", "done"] = "waiting"
        self.task: asyncio.Task[None] | None = None
        self.started_at_ms = 0
        self.started_clock = 0.0
        #: Whether the call outlives its turn. It is then reported as work in the background.
        self.is_detached = False
        self.outcome: Outcome | None = None

    @property
    def name(self) -> str:
        return self.call.name

    @property
    def call_id(self) -> str:
        return self.call.call_id

    @property
    def is_done(self) -> bool:
        return self.status == "done"

    def mark_done(self) -> None:
        self.status = "done"


class Batch:
    """All tool calls of one reply."""

    def __init__(self, turn: Turn, calls: Sequence[Call]) -> None:
        self.turn = turn
        self.calls = [CallRun(call, turn.tools.get(call.name)) for call in calls]
        self._finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cancelled: set[asyncio.Task[None]] = set()
        #: Set when steering or an abort arrives. Calls that haven't started are then left out.
        self._is_stopped = False

    @property
    def unwinding(self) -> set[asyncio.Task[None]]:
        """Tasks of cancelled calls that haven't ended yet."""
        return {task for task in self._cancelled if not task.done()}

    async def run(self) -> list[tuple[str, str, Outcome]]:
        """Run all calls and return the name, id and outcome of each call that ran.

        Returns only when every call is done and every cancelled task has ended.

        Raises:
            TurnAborted: a plugin ended the turn.
            LogUnavailable: the start of a call can't be made durable.
        """
        if self.turn.has_steering():
            self.give_way()
        for call in self.calls:
            if call.status == "waiting" and not self._is_stopped:
                await self._prepare(call)
        self.finish_if_done()
        await self._finished
        if self._cancelled:
            await asyncio.wait(self._cancelled)
        return [(call.name, call.call_id, call.outcome) for call in self.calls if call.outcome is not None]

    def finish_if_done(self) -> None:
        if not self._finished.done() and all(call.is_done for call in self.calls):
            self._finished.set_result(None)

    # ------------------------------------------------------------------------------------------- before a call runs

    async def _prepare(self, call: CallRun) -> None:
        """Run the `before_tool` hooks, then start, hold or block the call."""
        turn = self.turn
        if call.tool is None:
            self._end(call, turn.body(ev.ToolCallUnknown, name=call.name, call_id=call.call_id))
            return
        if call.call.broken:
            self._end(call, self._blocked(call, f"the arguments aren't a JSON object: {call.call.broken[:200]}"))
            return
        verdict = await turn.run_hook("before_tool", call.name, call.args, call.call_id)
        if verdict.args is not None:
            call.args = verdict.args
        if call.is_done:
            # An abort or steering ended the call while the plugins were running.
            return
        if verdict.block is not None:
            self._end(call, self._blocked(call, verdict.block))
        elif verdict.hold is not None and not self._was_approved(call):
            self._hold(call, verdict.hold)
        elif not self._is_stopped and not self._queue_if_busy(call):
            turn.write(self._start(call))

    def _blocked(self, call: CallRun, reason: str) -> Body:
        return self.turn.body(ev.ToolBlocked, name=call.name, call_id=call.call_id, reason=reason)

    def _was_approved(self, call: CallRun) -> bool:
        """Return whether a person approved the same call before and it hasn't run since."""
        return call_key(call.name, call.args) in self.turn.conversation.approved_calls

    def _hold(self, call: CallRun, hold: Hold) -> None:
        call.status = "held"
        self.turn.runtime.approvals.hold(self.turn, call, hold)

    def start_approved(self, call: CallRun) -> list[Body]:
        """Start a held call that was approved. The caller writes the returned events together with the decision."""
        return [] if self._queue_if_busy(call) else [self._start(call)]

    def refuse(self, call: CallRun, reason: str) -> list[Body]:
        """End a held call that was rejected. The model reads the reason as its result."""
        call.mark_done()
        return [self._blocked(call, reason)]

    def _queue_if_busy(self, call: CallRun) -> bool:
        """Queue the call if its tool allows only one call at a time and one is running."""
        assert call.tool is not None
        is_busy = any(other.status == "running" and other.name == call.name for other in self.calls)
        if call.tool.parallel or not is_busy:
            return False
        call.status = "queued"
        return True

    # -------------------------------------------------------------------------------------------------- a call runs

    def _start(self, call: CallRun) -> Body:
        """Start the call's task and return the event for that."""
        call.status, call.started_at_ms, call.started_clock = "running", now_ms(), time.perf_counter()
        call.task = asyncio.get_running_loop().create_task(self._run(call))
        return self.turn.body(ev.ToolExecutionStart, name=call.name, call_id=call.call_id, args=call.args)

    async def _run(self, call: CallRun) -> None:
        assert call.tool is not None
        try:
            # The start must be durable before the tool runs. Otherwise the call would be made again after a crash.
            await self.turn.runtime.journal.flush()
        except QuarterdeckError as error:
            self._fail(error)
            return
        # The type checker takes a protocol's attributes as writable, but tools only read them.
        context = cast("ToolContext", CallContext(self.turn, call.call_id, call.name))
        try:
            outcome = await call.tool.run(call.args, context)
        except asyncio.CancelledError:
            if call.is_done:
                raise
            # Something that the tool awaited was cancelled, not the call.
            outcome = Outcome("the tool was cancelled", ok=False)
        except Exception as error:
            outcome = Outcome(f"{type(error).__name__}: {error}", ok=False)
        if call.is_done:
            return
        interventions: list[Body] = []
        # The turn of a detached call is over, so its plugins aren't asked any more.
        if not call.is_detached:
            try:
                outcome = await self._run_result_hooks(call, outcome, interventions)
            except TurnAborted as error:
                outcome = error.outcome or outcome
                self._fail(error)
        if not call.is_done:
            self._end_with_outcome(call, outcome, interventions)

    def _fail(self, error: Exception) -> None:
        """Make `run` raise this error."""
        if not self._finished.done():
            self._finished.set_exception(error)

    async def _run_result_hooks(self, call: CallRun, outcome: Outcome, interventions: list[Body]) -> Outcome:
        """Run the hooks for a result. Texts that plugins add are collected, because they follow the result."""
        if not outcome.ok:
            verdict = await self.turn.run_hook("on_tool_error", call.name, call.call_id, outcome.text, 1)
            if verdict.skip is not None:
                outcome = Outcome(verdict.skip, ok=False)
        verdict = await self.turn.run_hook("after_tool", call.name, call.call_id, outcome, collect=interventions)
        return outcome if verdict.outcome is None else verdict.outcome

    def _end_with_outcome(self, call: CallRun, outcome: Outcome, interventions: Sequence[Body]) -> None:
        call.outcome = outcome
        end = self.turn.body(
            ev.ToolExecutionEnd,
            name=call.name,
            call_id=call.call_id,
            ok=outcome.ok,
            result=outcome.text if outcome.value is None else outcome.value,
            told="" if outcome.value is None else outcome.text,
            path=outcome.path,
            images=outcome.images,
        )
        self._end(call, end, *interventions)

    def _end(self, call: CallRun, *bodies: Body) -> None:
        """Write the events that end a call, and start the next queued call of the same tool."""
        was_running = call.status == "running"
        call.mark_done()
        metrics = [self._metrics(call)] if was_running else []
        self.turn.write(*bodies, *metrics, *self._reattach(call))
        if was_running and not self._finished.done():
            queued = (other for other in self.calls if other.status == "queued" and other.name == call.name)
            following = next(queued, None)
            if following is not None:
                self.turn.write(self._start(following))
        self.finish_if_done()

    def _metrics(self, call: CallRun) -> Body:
        duration_ms = round((time.perf_counter() - call.started_clock) * 1000)
        return self.turn.body(
            ev.ToolExecutionMetrics,
            name=call.name,
            call_id=call.call_id,
            started_at_ms=call.started_at_ms,
            ended_at_ms=call.started_at_ms + duration_ms,
            duration_ms=duration_ms,
        )

    # ------------------------------------------------------------------------------------------- steering and aborts

    def give_way(self) -> None:
        """Make room for a steering text: cancel killable calls and skip those that haven't started. Others run on."""
        self._is_stopped = True
        bodies: list[Body] = []
        for call in self.calls:
            if call.status in ("waiting", "queued") or (call.status == "running" and self._is_killable(call)):
                bodies.append(
                    self.turn.body(ev.ToolSkippedForSteering, name=call.name, call_id=call.call_id, reason=_SKIPPED)
                )
                bodies += self._cancel(call)
        self.turn.write(*bodies)
        self.finish_if_done()

    def interrupt(self, kill: KillTools, reason: str) -> list[Body]:
        """End the batch because its turn ends, and return the events for that. Calls that run on become detached."""
        self._is_stopped = True
        bodies: list[Body] = []
        for call in self.calls:
            if call.status in ("held", "queued"):
                call.mark_done()
            elif call.status == "running" and (kill == "none" or (kill == "killable" and self._is_immune(call))):
                bodies += self._detach(call)
            elif call.status == "running":
                bodies.append(self.turn.body(ev.ToolKilled, name=call.name, call_id=call.call_id, reason=reason))
                bodies += [*self._cancel(call), *self._reattach(call)]
        return bodies

    def outlives_turn(self, call_id: str) -> bool:
        return any(call.is_detached and call.call_id == call_id for call in self.calls)

    def _is_killable(self, call: CallRun) -> bool:
        return call.tool is not None and call.tool.killable and not self._is_immune(call)

    def _is_immune(self, call: CallRun) -> bool:
        immune_tools = self.turn.runtime.options.interrupt_immune_tools
        return call.tool is not None and (call.tool.immune or call.name in immune_tools)

    def _cancel(self, call: CallRun) -> list[Body]:
        """Cancel the call's task, and return the metrics if it was running."""
        was_running = call.status == "running"
        call.mark_done()
        if call.task is not None:
            call.task.cancel()
            self._cancelled.add(call.task)
        return [self._metrics(call)] if was_running else []

    def _detach(self, call: CallRun) -> list[Body]:
        """Let the call outlive its turn, as work in the background."""
        if call.is_detached:
            return []
        call.is_detached = True
        self.turn.runtime.add_background(self)
        return [self.turn.body(ev.BackgroundStarted, kind="shell", id=call.call_id, title=call.name)]

    def _reattach(self, call: CallRun) -> list[Body]:
        """End the work in the background if the call was detached."""
        if not call.is_detached:
            return []
        call.is_detached = False
        if not any(other.is_detached for other in self.calls):
            self.turn.runtime.remove_background(self)
        return [self.turn.body(ev.BackgroundEnded, kind="shell", id=call.call_id, title=call.name)]
