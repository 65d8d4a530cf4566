"""The calls of one reply: asked about, run beside each other, held, killed, skipped; each ends with exactly one event.

A call runs in a task of its own, so that it can be ended by itself. Whoever ends a call tells so at once; that its task has
really ended, with everything that it started, is waited for before the next request goes out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.engine.conversation import family
from quarterdeck.engine.decisions import decide
from quarterdeck.engine.gates import Held
from quarterdeck.engine.journal import now_ms
from quarterdeck.engine.message import Call
from quarterdeck.engine.plugins.base import Hold
from quarterdeck.engine.tool_context import CallHands
from quarterdeck.engine.tools.base import Hands, Outcome, Tool
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Body, Json

if TYPE_CHECKING:
    from quarterdeck.engine.turn import Turn

KillTools = Literal["killable", "all", "none"]

_STEERED = "a new message of the user came first"


class TurnAborted(Exception):
    """A plugin ended the turn."""

    def __init__(self, reason: str, outcome: Outcome | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        #: What the conversation is to hold of the call after which it was ended.
        self.outcome = outcome


class CallRun:
    """One call on its way: waits → (held) → (queued) → runs → over; `detached` when it outlives its turn.

    What waits was not asked about yet; what is queued may run as soon as another call of its tool is over.
    """

    __slots__ = ("args", "began", "call", "detached", "outcome", "started_at", "status", "task", "tool")

    def __init__(self, call: Call, tool: Tool | None) -> None:
        self.call = call
        self.tool = tool
        self.args: dict[str, Json] = call.args
        self.status: Literal["waits", "held", "queued", "runs", "over"] = "waits"
        self.task: asyncio.Task[None] | None = None
        self.started_at = 0
        self.began = 0.0
        self.detached = False
        self.outcome: Outcome | None = None

    @property
    def is_over(self) -> bool:
        return self.status == "over"


class Batch:
    """All calls of one reply."""

    __slots__ = ("_done", "_dying", "_stopped", "runs", "turn")

    def __init__(self, turn: Turn, calls: Sequence[Call]) -> None:
        self.turn = turn
        self.runs = [CallRun(call, turn.tools.get(call.name)) for call in calls]
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._dying: set[asyncio.Task[None]] = set()
        #: A text of the user waits: what has not begun does not begin.
        self._stopped = False

    @property
    def dying(self) -> set[asyncio.Task[None]]:
        """Tasks that were told to end and may not have ended yet."""
        return {task for task in self._dying if not task.done()}

    async def run(self) -> list[tuple[str, str, Outcome]]:
        """Returns when every call is over and nothing of them is left; what was run, with what it gave."""
        if self.turn.has_steering():
            self.give_way()
        for one in self.runs:
            if one.status == "waits" and not self._stopped:
                await self._prepare(one)
        self._look()
        await self._done
        if self._dying:
            await asyncio.wait(self._dying)
        return [(one.call.name, one.call.call_id, one.outcome) for one in self.runs if one.outcome is not None]

    # --- before a call runs

    async def _prepare(self, one: CallRun) -> None:
        """Asks the plugins; then it runs, or does not, or is held."""
        call, turn = one.call, self.turn
        if one.tool is None:
            self._over(one, turn.made(ev.ToolCallUnknown, name=call.name, call_id=call.call_id))
            return
        if call.broken:
            self._over(one, self._blocked(one, f"the arguments are no JSON object: {call.broken[:200]}"))
            return
        if turn.core.hooks.has("before_tool"):
            verdict = await turn.hook("before_tool", call.name, one.args, call.call_id)
            one.args = one.args if verdict.args is None else verdict.args
            if one.is_over:
                return  # ended while the plugins thought about it
            if verdict.block is not None:
                self._over(one, self._blocked(one, verdict.block))
                return
            if verdict.hold is not None and not self._may_pass(one):
                self._hold(one, verdict.hold)
                return
        if not self._stopped:
            self._start(one)

    def _blocked(self, one: CallRun, reason: str) -> Body:
        return self.turn.made(ev.ToolBlocked, name=one.call.name, call_id=one.call.call_id, reason=reason)

    def _may_pass(self, one: CallRun) -> bool:
        """A person has allowed this very call before, and it did not run."""
        return family(one.call.name, one.args) in self.turn.conversation.passes

    def _hold(self, one: CallRun, hold: Hold) -> None:
        core, now = self.turn.core, now_ms()
        gate = replace(
            hold.gate,
            gate_id=core.gates.next_name(),
            ref=hold.gate.ref or core.next_id("a"),
            tool=hold.gate.tool or one.call.name,
            args=one.args if hold.gate.args is None else hold.gate.args,
            call_id=one.call.call_id,
            requested_at=now,
            deadline=None if hold.timeout is None else now + round(hold.timeout * 1000),
        )
        held = Held(self.turn, one, hold, gate)
        one.status = "held"
        core.gates.add(held)
        self.turn.tell(ev.ApprovalRequired, gate=gate)
        if hold.timeout is not None:
            loop = asyncio.get_running_loop()
            held.timer = loop.call_later(hold.timeout, decide, core, held, "timeout", "", "", True, "")

    # --- a decision

    def allowed(self, one: CallRun) -> list[Body]:
        """The held call runs; what is to be said of that stands in the batch of the decision."""
        return [] if self._is_queued(one) else self._started(one)

    def refused(self, one: CallRun, reason: str) -> list[Body]:
        """It does not run, and the model is told why."""
        one.status = "over"
        return [self._blocked(one, reason)]

    def look(self) -> None:
        """Something was decided: maybe that was all."""
        self._look()

    # --- it runs

    def _start(self, one: CallRun) -> None:
        if self._is_queued(one):
            return
        self.turn.say(*self._started(one))

    def _is_queued(self, one: CallRun) -> bool:
        """Two calls of a tool that cannot be beside itself: the later one is put off until the first is over."""
        assert one.tool is not None
        if one.tool.parallel or all(other.status != "runs" or other.call.name != one.call.name for other in self.runs):
            return False
        one.status = "queued"
        return True

    def _started(self, one: CallRun) -> list[Body]:
        one.status, one.started_at, one.began = "runs", now_ms(), time.perf_counter()
        one.task = asyncio.get_running_loop().create_task(self._run(one))
        call = one.call
        return [self.turn.made(ev.ToolExecutionStart, name=call.name, call_id=call.call_id, args=one.args)]

    async def _run(self, one: CallRun) -> None:
        assert one.tool is not None
        # a protocol's attributes may be set, says the checker; these are only looked at
        hands = cast("Hands", CallHands(self.turn, one.call.call_id, one.call.name))
        try:
            # a call that ran and that the log does not know of would be made again after a crash
            await self.turn.core.journal.flush()
        except QuarterdeckError as error:
            if not self._done.done():
                self._done.set_exception(error)
            return
        try:
            outcome = await one.tool.run(one.args, hands)
        except asyncio.CancelledError:
            if one.status == "over":
                raise
            outcome = Outcome("the tool gave up", ok=False)
        except Exception as error:
            outcome = Outcome(f"{type(error).__name__}: {error}", ok=False)
        if one.is_over:
            return
        said: list[Body] = []
        ends: TurnAborted | None = None
        if not one.detached:
            try:
                outcome = await self._judged(one, outcome, said)
            except TurnAborted as error:
                ends, outcome = error, error.outcome or outcome
        if ends is not None and not self._done.done():
            # a plugin ends the turn from inside of a call
            self._done.set_exception(ends)
        if not one.is_over:
            self._ended(one, outcome, said)

    async def _judged(self, one: CallRun, outcome: Outcome, said: list[Body]) -> Outcome:
        """What the plugins make of it. What they say to the model stands behind the result."""
        turn, call = self.turn, one.call
        if not outcome.ok and turn.core.hooks.has("on_tool_error"):
            verdict = await turn.hook("on_tool_error", call.name, call.call_id, outcome.text, 1)
            if verdict.skip is not None:
                outcome = Outcome(verdict.skip, ok=False)
        if turn.core.hooks.has("after_tool"):
            verdict = await turn.hook("after_tool", call.name, call.call_id, outcome, said=said)
            outcome = outcome if verdict.outcome is None else verdict.outcome
        return outcome

    def _ended(self, one: CallRun, outcome: Outcome, said: Sequence[Body]) -> None:
        one.outcome = outcome
        end = self.turn.made(
            ev.ToolExecutionEnd,
            name=one.call.name,
            call_id=one.call.call_id,
            ok=outcome.ok,
            result=outcome.text if outcome.value is None else outcome.value,
            told="" if outcome.value is None else outcome.text,
            path=outcome.path,
            images=outcome.images,
        )
        self._over(one, end, *said)

    def _over(self, one: CallRun, *bodies: Body) -> None:
        """It is over: told, with how long it took, and the next one that waited for it may begin."""
        ran = one.status == "runs"
        one.status = "over"
        self.turn.say(*bodies, *self._metrics(one, ran), *self._reattached(one))
        for other in self.runs if ran and not self._done.done() else ():
            if other.status == "queued" and other.call.name == one.call.name:
                self.turn.say(*self._started(other))
                break
        self._look()

    def _metrics(self, one: CallRun, ran: bool) -> list[Body]:
        if not ran:
            return []
        took = round((time.perf_counter() - one.began) * 1000)
        return [
            self.turn.made(
                ev.ToolExecutionMetrics,
                name=one.call.name,
                call_id=one.call.call_id,
                started_at_ms=one.started_at,
                ended_at_ms=one.started_at + took,
                duration_ms=took,
            )
        ]

    def _look(self) -> None:
        if not self._done.done() and all(one.status == "over" for one in self.runs):
            self._done.set_result(None)

    # --- it gives way

    def give_way(self) -> list[Body]:
        """To a text of the user: what can be killed is, what has not begun does not begin, the rest runs on."""
        self._stopped = True
        bodies: list[Body] = []
        for one in self.runs:
            if one.status in ("waits", "queued") or (one.status == "runs" and self._is_killable(one)):
                call = one.call
                skipped = self.turn.made(
                    ev.ToolSkippedForSteering, name=call.name, call_id=call.call_id, reason=_STEERED
                )
                bodies += [skipped, *self._killed(one)]
        self.turn.say(*bodies)
        self._look()
        return bodies

    def _is_killable(self, one: CallRun) -> bool:
        return one.tool is not None and one.tool.killable and not self._is_immune(one)

    def _is_immune(self, one: CallRun) -> bool:
        return one.tool is not None and (one.tool.immune or one.call.name in self.turn.core.options.immune)

    def _killed(self, one: CallRun) -> list[Body]:
        """Its task is told to end; how long it ran."""
        ran = one.status == "runs"
        one.status = "over"
        if one.task is not None:
            one.task.cancel()
            self._dying.add(one.task)
        return self._metrics(one, ran)

    def interrupted(self, kill: KillTools, reason: str) -> list[Body]:
        """The turn is ended from outside. What goes on is work in the background from here on."""
        bodies: list[Body] = []
        for one in self.runs:
            call = one.call
            if one.status in ("held", "queued"):
                one.status = "over"
            elif one.status == "runs" and (kill == "none" or (kill == "killable" and self._is_immune(one))):
                if not one.detached:
                    one.detached = True
                    self.turn.core.detached(self, True)
                    bodies.append(self.turn.made(ev.BackgroundStarted, kind="shell", id=call.call_id, title=call.name))
            elif one.status == "runs":
                killed = self.turn.made(ev.ToolKilled, name=call.name, call_id=call.call_id, reason=reason)
                bodies += [killed, *self._killed(one), *self._reattached(one)]
        self._stopped = True
        return bodies

    def goes_on(self, call_id: str) -> bool:
        """Whether this call outlives its turn."""
        return any(one.detached and one.call.call_id == call_id for one in self.runs)

    def _reattached(self, one: CallRun) -> list[Body]:
        """It was work in the background, and is over now."""
        if not one.detached:
            return []
        one.detached = False
        if not any(other.detached for other in self.runs):
            self.turn.core.detached(self, False)
        return [self.turn.made(ev.BackgroundEnded, kind="shell", id=one.call.call_id, title=one.call.name)]
