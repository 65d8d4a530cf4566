"""Ask people and apply their decisions: approvals of held tool calls, and questions of tools.

Both are gates. A gate is open until exactly one decision closes it: a person's answer, a timeout, a prompt that
supersedes it, or the end of its turn. Each decision is written as one batch of events, so that no reader sees half of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.engine.errors import QuestionWithdrawn
from quarterdeck.engine.journal import now_ms
from quarterdeck.engine.plugins.base import Emit, Hold
from quarterdeck.events import Body, GateRequest, GateStatus, Json, Option
from quarterdeck.kernel.command_results import Decided
from quarterdeck.kernel.gate import to_decide

if TYPE_CHECKING:
    from quarterdeck.engine.batch import CallRun
    from quarterdeck.engine.runtime import AgentRuntime
    from quarterdeck.engine.turn import Turn

#: Trigger of `agent_resumed` for each decision.
_TRIGGERS = {"approved": "tool_approved", "rejected": "tool_rejected", "timeout": "tool_approval_timeout"}

# --------------------------------------------------------------------------------------------------------- open gates


class PendingApproval:
    """A tool call that is held until a person approves or rejects it."""

    def __init__(self, turn: Turn, call: CallRun, hold: Hold, gate: GateRequest) -> None:
        self.turn = turn
        self.call = call
        self.hold = hold
        self.gate = gate
        self.timer: asyncio.TimerHandle | None = None

    @property
    def gate_id(self) -> str:
        return self.gate.gate_id

    def has_id(self, gate_id: str) -> bool:
        """Return whether this is the gate's id, its ref, or the id of the call that it holds."""
        return gate_id in (self.gate.gate_id, self.gate.ref, self.gate.call_id)

    def resolved(self, status: GateStatus, by: str = "", reason: str = "") -> Body:
        return self.turn.body(
            ev.ApprovalResolved,
            status=status,
            gate_id=self.gate.gate_id,
            ref=self.gate.ref,
            by=by,
            reason=reason,
            gate=self.gate,
        )

    def notify_plugin(self, status: str, option: str) -> list[Body]:
        """Report the decision to the plugin that held the call, and return the events that it answers with."""
        if self.hold.decided is None:
            return []
        try:
            answer = self.hold.decided(status, option)
        except Exception as error:
            text = f"a plugin failed to process a decision: {type(error).__name__}: {error}"
            return [ev.Notice(level="error", text=text, source="plugin")]
        emits = [answer] if isinstance(answer, Emit) else answer or ()
        return [emit.event for emit in emits]


class PendingQuestion:
    """A question of a tool that waits for an answer."""

    def __init__(self, turn: Turn, gate_id: str, ref: str) -> None:
        self.turn = turn
        self.gate_id = gate_id
        self.ref = ref
        self.answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()

    def has_id(self, gate_id: str) -> bool:
        return gate_id in (self.gate_id, self.ref)

    def withdraw(self) -> Body:
        """Fail the tool's wait for an answer. A call that outlives its turn learns from this that no answer will come."""
        if not self.answer.done():
            self.answer.set_exception(QuestionWithdrawn())
            # Retrieve the exception so asyncio doesn't log it: most calls that asked have been cancelled by now.
            self.answer.exception()
        return self.turn.body(ev.UserResponded, gate_id=self.gate_id, ref=self.ref, status="withdrawn")


PendingGate: TypeAlias = PendingApproval | PendingQuestion


# ---------------------------------------------------------------------------------------------------------- decisions


class Approvals:
    """The open gates of one agent and its sub-agents."""

    def __init__(self, runtime: AgentRuntime) -> None:
        self._runtime = runtime
        self._gates: dict[str, PendingGate] = {}
        #: Number of the last gate. Numbers are never reused, so a resumed session continues after the last one in its log.
        self.last_gate_number = 0

    def pending_approvals(self, path: tuple[str, ...] | None = None) -> list[PendingApproval]:
        """Return the held calls, oldest first: of the agent at `path`, or of all agents."""
        return [gate for gate in self._at(path) if isinstance(gate, PendingApproval)]

    def pending_questions(self, path: tuple[str, ...] | None = None) -> list[PendingQuestion]:
        return [gate for gate in self._at(path) if isinstance(gate, PendingQuestion)]

    def _at(self, path: tuple[str, ...] | None) -> list[PendingGate]:
        return [gate for gate in self._gates.values() if path is None or gate.turn.path == path]

    def _find(self, gate_id: str) -> PendingGate | None:
        return next((gate for gate in self._gates.values() if gate.has_id(gate_id)), None)

    def _next_gate_id(self) -> str:
        self.last_gate_number += 1
        return f"g{self.last_gate_number}"

    def _close(self, gate: PendingGate) -> None:
        self._gates.pop(gate.gate_id, None)
        if isinstance(gate, PendingApproval) and gate.timer is not None:
            gate.timer.cancel()

    # --- approvals

    def hold(self, turn: Turn, call: CallRun, hold: Hold) -> None:
        """Open an approval for a call that a plugin holds."""
        now = now_ms()
        gate = replace(
            hold.gate,
            gate_id=self._next_gate_id(),
            ref=hold.gate.ref or self._runtime.next_id("a"),
            tool=hold.gate.tool or call.name,
            args=call.args if hold.gate.args is None else hold.gate.args,
            call_id=call.call_id,
            requested_at=now,
            deadline=None if hold.timeout is None else now + round(hold.timeout * 1000),
        )
        approval = PendingApproval(turn, call, hold, gate)
        self._gates[approval.gate_id] = approval
        turn.record(ev.ApprovalRequired, gate=gate)
        if hold.timeout is not None:
            loop = asyncio.get_running_loop()
            approval.timer = loop.call_later(hold.timeout, self._decide, approval, "timeout", "")

    async def decide(
        self,
        gate_id: str,
        status: Literal["approved", "rejected"],
        *,
        by: str = "user",
        reason: str = "",
        auto_resume: bool = True,
        option: str = "",
    ) -> Decided:
        """Approve or reject a held call. An empty `gate_id` means the oldest one; without any, nothing is done.

        Raises:
            NoSuchGate: there is no such approval.
            AlreadyDecided: the approval was decided before.
        """
        approval = self._find_approval(gate_id)
        if approval is None:
            return Decided("")
        closing = self._decide(approval, status, by, reason, auto_resume, option)
        if closing is not None:
            await self._runtime.cancel_turn(approval.turn, closing)
        await self._runtime.journal.flush()
        return Decided(approval.gate_id)

    def _find_approval(self, gate_id: str) -> PendingApproval | None:
        if not gate_id:
            return next(iter(self.pending_approvals()), None)
        gate = self._find(gate_id)
        if isinstance(gate, PendingApproval):
            return gate
        # Raises NoSuchGate or AlreadyDecided, whichever is true of this id.
        to_decide(self._runtime.journal.state.gates, gate_id)
        return None

    def _decide(
        self,
        approval: PendingApproval,
        status: GateStatus,
        by: str,
        reason: str = "",
        auto_resume: bool = True,
        option: str = "",
    ) -> ev.AgentAbort | None:
        """Close an approval and start or block its call.

        The decision, the resumption of the turn and the start or refusal of the call are one batch of events. Returns the
        event to end the turn with, if the turn isn't to go on.
        """
        self._close(approval)
        turn, call, batch = approval.turn, approval.call, approval.turn.batch
        bodies: list[Body] = [
            approval.resolved(status, by, reason),
            *approval.notify_plugin(status, option),
            *self._runtime.hooks.changed_states(),
        ]
        if not auto_resume or batch is None:
            call.mark_done()
            return self._end_turn(turn, bodies, f"{approval.gate.tool} was {status} without resuming the turn")
        # With several gates open, a rejection leaves the turn waiting for the others.
        resumes = status == "approved" or not self.pending_approvals(turn.path)
        if resumes and (self._runtime.journal.state.run.value == "idle" or turn.path):
            bodies.append(turn.body(ev.AgentResumed, trigger=_TRIGGERS[status]))
        if status == "approved":
            bodies += batch.start_approved(call)
        else:
            refusal = "no decision in time" if status == "timeout" else f"rejected by {by or 'the user'}"
            bodies += batch.refuse(call, f"{refusal}: {reason}" if reason else refusal)
        self._runtime.journal.write(bodies, "user" if by else "engine")
        batch.finish_if_done()
        return None

    def _end_turn(self, turn: Turn, bodies: Sequence[Body], reason: str) -> ev.AgentAbort | None:
        """End a turn that isn't to go on.

        The end of a sub-agent is the result of its parent's call, so its task is cancelled here. The main agent's turn is
        ended by the caller with the event that this returns.
        """
        self._runtime.journal.write(bodies, "user")
        if not turn.path:
            return ev.AgentAbort(reason=reason, turn_id=turn.turn_id)
        if turn.task is not None:
            turn.task.cancel(reason)
        return None

    def approve_by_prompt(self, text: str) -> bool:
        """Approve the held call whose confirmation is exactly this prompt. Return whether there is one."""
        text = text.strip()
        for approval in self.pending_approvals():
            if text and approval.hold.confirmation.strip() == text:
                self._decide(approval, "approved", "user", "confirmed by a prompt")
                return True
        return False

    # --- questions

    async def ask(
        self, turn: Turn, call_id: str, question: str, options: tuple[Option, ...], timeout_s: float | None
    ) -> str:
        """Ask a person a tool's question and wait for the answer.

        Raises:
            TimeoutError: there was no answer in time.
            QuestionWithdrawn: the turn has ended.
        """
        if self._runtime.turn is not turn and not turn.path:
            raise QuestionWithdrawn
        asked = PendingQuestion(turn, self._next_gate_id(), self._runtime.next_id("q"))
        self._gates[asked.gate_id] = asked
        turn.record(
            ev.AskUser,
            question=question,
            ref=asked.ref,
            gate_id=asked.gate_id,
            options=options,
            call_id=call_id,
            deadline=None if timeout_s is None else now_ms() + round(timeout_s * 1000),
        )
        try:
            async with asyncio.timeout(timeout_s):
                answer = await asyncio.shield(asked.answer)
        except TimeoutError:
            if self._find(asked.gate_id) is not asked:
                # The answer came in time and is being made durable; `respond` sets it after that.
                return _answer_text(await asked.answer)
            turn.record(ev.UserResponded, gate_id=asked.gate_id, ref=asked.ref, status="timeout")
            raise
        except asyncio.CancelledError:
            if self._find(asked.gate_id) is asked:
                # The call was cancelled by itself, to give way to steering, so the turn doesn't withdraw its question.
                turn.write(asked.withdraw())
            raise
        finally:
            self._close(asked)
        return _answer_text(answer)

    async def respond(self, gate_id: str, answer: Json, *, by: str = "user") -> Decided:
        """Answer a question. An empty `gate_id` means the oldest one.

        Raises:
            NoSuchGate: there is no such question.
            AlreadyDecided: the question was answered before.
        """
        asked = self._find(gate_id) if gate_id else next(iter(self.pending_questions()), None)
        if not isinstance(asked, PendingQuestion) or asked.answer.done():
            # Raises NoSuchGate or AlreadyDecided, whichever is true of this id.
            to_decide(self._runtime.journal.state.gates, gate_id)
            return Decided(gate_id)
        responded = asked.turn.body(ev.UserResponded, response=answer, ref=asked.ref, gate_id=asked.gate_id, by=by)
        resumed = asked.turn.body(ev.AgentResumed, trigger="user_respond")
        self._close(asked)
        self._runtime.journal.write((responded, resumed), "user")
        try:
            # The tool goes on only after the answer is durable: it may act on it.
            await self._runtime.journal.flush()
        finally:
            if not asked.answer.done():
                asked.answer.set_result(answer)
        return Decided(asked.gate_id)

    # --- the turn ends

    def withdraw_all(self, path: tuple[str, ...], reason: str) -> list[Body]:
        """Close every gate of an agent whose turn ends, and return the events for that."""
        bodies: list[Body] = []
        for approval in self.pending_approvals(path):
            self._close(approval)
            bodies.append(approval.resolved("withdrawn", reason=reason))
        for asked in self.pending_questions(path):
            self._close(asked)
            bodies.append(asked.withdraw())
        return bodies

    def supersede_all(self) -> list[Body]:
        """Close the main agent's approvals because a new prompt replaces them, and return the events for that."""
        bodies: list[Body] = []
        for approval in self.pending_approvals(()):
            self._close(approval)
            bodies.append(approval.resolved("superseded", "user", "superseded"))
        return bodies


def _answer_text(answer: Json) -> str:
    return answer if isinstance(answer, str) else str(answer)
