"""Track what is open in one session and write the canonical events of a translator.

A translator reports what it understood: a turn started, a call runs, an approval is requested. The tracker

- remembers what is open (turn, calls, gates, background work, unfinished messages),
- writes events with their ids,
- adds what agents leave out: the start of an unannounced turn, the first `message_start` of a text, the closing of gates
  that the agent has moved past,
- writes a `state_change` whenever the activity changes.

Therefore the owners of a session's state (run, gate, activity, phase) never contradict each other, whatever an agent sends.

The activity is the first of these that holds (seed 003):

    exited                   the agent's process or session ended
    initialized              the agent isn't ready yet
    compacting               the conversation is being compacted
    waiting_for_permission   the main agent waits for a person
    tool_use                 a call of the main agent runs, or `tools_linger` is set
    thinking                 a turn is open
    idle                     none of the above
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeAlias, cast

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.events import Block, Body, FailureKind, HistoryMessage, Image, Json, Option, Question, TokenUsage
from quarterdeck.harness.streamed_messages import BlockKind, StreamedMessages
from quarterdeck.kernel.activity import COMPACTING, THINKING, TOOL_USE, WAITING, split
from quarterdeck.kernel.process import was_stopped
from quarterdeck.kernel.turn import target_of
from quarterdeck.kernel.view import View
from quarterdeck.policy.titles import approval_title, network_title

#: The ids of the sub-agents that lead to one agent, outermost first. Empty for the main agent.
AgentPath: TypeAlias = tuple[str, ...]
GateKind: TypeAlias = Literal["approval", "question", "dialog"]
BackgroundKind: TypeAlias = Literal["shell", "subagent"]


class OpenGate(Struct):
    """A request to a person that hasn't been decided yet."""

    kind: GateKind
    path: AgentPath
    #: The call that waits for the decision, if any.
    call_id: str


class OpenCall(Struct):
    """A tool call that was announced and hasn't ended."""

    name: str
    path: AgentPath
    #: True while the call runs. Also set for a rejected call until its end is reported or the model replies: seed 003
    #: leaves waiting_for_permission for tool_use on every decision.
    running: bool = False
    #: "open" after a rejection, "over" once the model has replied to it.
    rejection: Literal["", "open", "over"] = ""
    #: The whole output so far, for agents that repeat it in every update.
    output: str = ""
    #: The command, path or address that the call works on, in one line.
    target: str = ""

    @property
    def title(self) -> str:
        return self.target or self.name


class EventTracker:
    """The open parts of one session, and the events that were written since the last `take_events`."""

    def __init__(self) -> None:
        self._events: list[Body] = []
        self._turn_count = 0
        #: The open turn; "" outside a turn.
        self.turn_id = ""
        self.is_ready = False
        self.has_exited = False
        #: True once the agent was asked to stop, so that its exit isn't shown as a failure.
        self.stop_requested = False
        self.is_compacting = False
        #: True if the open turn was started only to hold a compaction that happened outside a turn.
        self._turn_is_compaction = False
        #: Codex: tools count as in use after their end, until the model is seen to reply.
        self.tools_linger = False
        self.calls: dict[str, OpenCall] = {}
        #: Open gates by the agent's own reference.
        self.gates: dict[str, OpenGate] = {}
        #: Work that outlives the turn, by its id. A call that moved to the background is also in `calls`.
        self.background: dict[str, BackgroundKind] = {}
        self.messages = StreamedMessages()
        self.activity = "initialized"
        self.signal = "live"

    def emit(self, body: Body) -> None:
        """Write an event that has no method of its own."""
        self._events.append(body)

    def take_events(self) -> list[Body]:
        """Return the events written since the last call."""
        events, self._events = self._events, []
        return events

    def restore(self, view: View) -> None:
        """Take over what a view says is open, so that reading can continue in the middle of a session."""
        state = view.state
        self._clear()
        self.messages.clear()
        self.turn_id = state.turn.id
        # Every turn has at least one event, so counting from the view's index never repeats a turn id.
        self._turn_count = view.index
        self.is_ready = state.process.value == "up"
        self.has_exited = state.activity.value == "exited"
        self.activity = state.activity.value
        self.is_compacting = state.activity.value == COMPACTING
        self.signal = state.signal.value
        for call in state.turn.calls:
            self.calls[call.id] = OpenCall(call.name, (), running=True)
        for gate in state.gates.open:
            self.gates[gate.ref or gate.id] = OpenGate(gate.kind, gate.path, gate.call_id)
            if gate.call_id and gate.call_id not in self.calls:
                # A call that waits for an approval is open but doesn't run, so the turn doesn't list it.
                tool = cast("dict[str, str]", gate.payload).get("tool", "")
                self.calls[gate.call_id] = OpenCall(tool, gate.path)
        for task in state.background:
            self.background[task.id] = "subagent" if task.kind == "subagent" else "shell"

    # ------------------------------------------------------------------------------------------------------------------
    # Activity
    # ------------------------------------------------------------------------------------------------------------------

    def is_waiting_for_person(self) -> bool:
        """Return whether a gate of the main agent is open."""
        return any(not gate.path for gate in self.gates.values())

    def has_running_calls(self) -> bool:
        """Return whether the main agent waits for a running call. It doesn't wait for calls in the background."""
        return any(
            call.running and not call.path and call.rejection != "over" and call_id not in self.background
            for call_id, call in self.calls.items()
        )

    def _current_activity(self) -> str:
        if self.has_exited:
            return "exited"
        if self.is_compacting:
            return COMPACTING
        if self.is_waiting_for_person():
            return WAITING
        if self.turn_id:
            return TOOL_USE if self.tools_linger or self.has_running_calls() else THINKING
        return "idle" if self.is_ready else "initialized"

    def _update_activity(self) -> None:
        """Write a `state_change` if the activity is no longer the reported one."""
        value = self._current_activity()
        if value != self.activity:
            self.activity = value
            state, sub = split(value)
            self.emit(ev.StateChange(state=state, sub=sub))  # pyright: ignore[reportArgumentType]

    def set_signal(self, value: Literal["live", "stale", "lost"], reason: str = "") -> None:
        """Report how reliable the evidence about this agent is."""
        if value != self.signal:
            self.signal = value
            self.emit(ev.SignalChanged(signal=value, reason=reason))

    def add_notice(self, text: str, level: Literal["info", "warning", "error"] = "info", source: str = "") -> None:
        """Write a line for people to read. An empty text writes nothing."""
        if text:
            self.emit(ev.Notice(text=text, level=level, source=source, turn_id=self.turn_id or None))

    # ------------------------------------------------------------------------------------------------------------------
    # Process and agent session
    # ------------------------------------------------------------------------------------------------------------------

    def record_process_start(self) -> None:
        """Record a new process and close everything that an earlier process left open."""
        self._close_everything("process restarted")
        self.has_exited = self.stop_requested = self.is_ready = False
        self.activity = "initialized"
        self.emit(ev.ProcessStarting())

    def record_process_exit(self, code: int | None, signal: str | None = None, asked: bool | None = None) -> None:
        """Record that the process exited. `asked` defaults to `stop_requested`.

        The event that ends the open turn comes after the exit, because the phase that people see follows from the exit.
        """
        asked = self.stop_requested if asked is None else asked
        self._abort_messages(None)
        turn_id = self.turn_id
        self.has_exited = True
        self.activity = "exited"
        self.emit(ev.ProcessExited(code=code, signal=signal, asked=asked))
        if turn_id and (asked or was_stopped(code, signal)):
            self.emit(ev.AgentAbort(reason="process exited", turn_id=turn_id))
        elif turn_id:
            self.emit(ev.AgentEnd(outcome="completed" if code == 0 else "failed", turn_id=turn_id))
        self._clear()

    def record_process_error(self, message: str) -> None:
        """Record that the process couldn't be started or reported its own failure."""
        self._abort_messages(None)
        turn_id = self.turn_id
        self.has_exited = True
        self.activity = "exited"
        self.emit(ev.ProcessError(message=message))
        if turn_id:
            self.emit(ev.AgentEnd(outcome="failed", turn_id=turn_id))
        self._clear()

    def report_ready(
        self,
        native_session_id: str = "",
        model: str = "",
        version: str = "",
        capabilities: tuple[str, ...] = (),
        resumable: bool | None = None,
    ) -> None:
        """Record that the agent is ready. Call it again when the agent has another session."""
        if self.has_exited or not self.is_ready:
            self.has_exited, self.is_ready = False, True
            # The kernel makes an agent that isn't working idle on agent_ready, so no state_change is due.
            if self.activity in ("initialized", "exited"):
                self.activity = "idle"
        self.emit(
            ev.AgentReady(
                native_session_id=native_session_id,
                model=model,
                version=version,
                capabilities=capabilities,
                resumable=resumable,
            )
        )
        self._update_activity()

    def ensure_ready(self) -> None:
        """Record `agent_ready` after a sign of life from an agent that counts as exited or never reported itself ready."""
        if self.has_exited or not self.is_ready:
            self.report_ready()

    def end_session(self, reason: str = "") -> None:
        """Record that the agent's session ended. Its process may live on and open another session."""
        self._close_everything(reason or "session ended")
        self.has_exited = True
        self.activity = "exited"
        self.emit(ev.AgentEnded(reason=reason))

    def _close_everything(self, reason: str) -> None:
        """Write the end of everything that is open: the agent that worked or waited is gone."""
        self.abort_turn(reason)
        for ref in list(self.gates):
            self.close_gate(ref, "withdrawn")
        for task_id in list(self.background):
            self.end_background(task_id)
        self._abort_messages(None)
        self._clear()

    def _clear(self) -> None:
        """Forget what is open without writing events. Unfinished messages must be aborted by the caller first."""
        self.turn_id = ""
        self.is_compacting = self.tools_linger = self._turn_is_compaction = False
        self.calls.clear()
        self.gates.clear()
        self.background.clear()

    # ------------------------------------------------------------------------------------------------------------------
    # Turns
    # ------------------------------------------------------------------------------------------------------------------

    def record_prompt(
        self,
        text: str,
        message_id: str = "",
        source: Literal["user", "agent"] = "user",
        images: tuple[Image, ...] = (),
        new_task: bool = False,
        turn_id: str = "",
    ) -> None:
        """Record that the agent took a prompt, and start a turn if none is open.

        Without the turn, a prompt to which the agent never reacts would be shown as in progress for ever.
        """
        self.ensure_ready()
        self.emit(
            ev.PromptReceived(
                text=text,
                message_id=message_id,
                source=source,
                images=images,
                new_task=new_task,
                turn_id=self.turn_id or None,
            )
        )
        self.start_turn(turn_id)

    def start_turn(self, turn_id: str = "") -> None:
        """Start a turn unless one is open."""
        self.ensure_ready()
        if self.turn_id:
            return
        self._turn_count += 1
        self.turn_id = turn_id or f"turn-{self._turn_count}"
        self.emit(ev.AgentStart(turn_id=self.turn_id))
        self._update_activity()

    def start_request(self, model: str = "", messages: int | None = None) -> None:
        """Record a request to the model. The main agent therefore waits neither for a person nor for a tool."""
        self.start_turn()
        self.is_compacting = self._turn_is_compaction = self.tools_linger = False
        self.close_gates("answered_elsewhere", "approval", "question")
        self.emit(ev.RequestStart(model=model, messages=messages, turn_id=self.turn_id))
        self._update_activity()

    def end_turn(self, outcome: Literal["completed", "failed"] = "completed", usage: TokenUsage | None = None) -> None:
        """End the open turn. Calls that still run continue in the background."""
        if not self.turn_id:
            return
        self._close_turn_gates("answered_elsewhere")
        for call_id, call in list(self.calls.items()):
            if call.running and not call.path:
                self.start_background("shell", call_id, call.title)
            elif not call.path:
                del self.calls[call_id]
        self._abort_messages(())
        turn_id = self._take_turn()
        self.emit(ev.AgentEnd(outcome=outcome, usage=usage, turn_id=turn_id))
        self._update_activity()

    def fail_turn(self, kind: FailureKind, message: str = "", resets_at: int | None = None) -> None:
        """Record why the turn failed and end it."""
        self.start_turn()
        self.emit(ev.TurnFailed(kind=kind, message=message, resets_at=resets_at, turn_id=self.turn_id))
        self.end_turn("failed")

    def abort_turn(self, reason: str | None = None, kill_calls: bool = True, keep: Collection[str] = ()) -> None:
        """End the open turn because it was interrupted.

        Its calls are killed with it. Calls that are known to continue move to the background: those in `keep`, or all of
        them with `kill_calls=False`.
        """
        if not self.turn_id:
            return
        self._cut_off_turn(kill_calls, keep)
        turn_id = self._take_turn()
        self.emit(ev.AgentAbort(reason=reason, turn_id=turn_id))
        self._update_activity()

    def leave_turn_unfinished(self) -> None:
        """End the open turn as one that the agent can continue: neither completed nor stopped by a person."""
        if not self.turn_id:
            return
        self._cut_off_turn(kill_calls=True)
        turn_id = self._take_turn()
        self.emit(ev.TurnRestored(finished=False, turn_id=turn_id))
        self.emit(ev.AgentEnd(outcome="failed", turn_id=turn_id))
        self._update_activity()

    def record_history(self, finished: bool, history: tuple[HistoryMessage, ...] = ()) -> None:
        """Record a conversation that the agent loaded from an earlier session. Ignored in the middle of a turn."""
        if not self.turn_id:
            self.emit(ev.TurnRestored(finished=finished, history=history))

    def _cut_off_turn(self, kill_calls: bool, keep: Collection[str] = ()) -> None:
        """Close the main agent's gates, calls and messages before they were complete."""
        self.close_gates("withdrawn", "dialog")
        self._close_turn_gates("withdrawn")
        for call_id, call in list(self.calls.items()):
            if call.path:
                continue
            if call.running and (not kill_calls or call_id in keep):
                self.start_background("shell", call_id, call.title)
                continue
            del self.calls[call_id]
            self.emit(ev.ToolKilled(name=call.name, call_id=call_id, reason="interrupted", turn_id=self.turn_id))
        self._abort_messages(())

    def _close_turn_gates(self, status: Literal["answered_elsewhere", "withdrawn"]) -> None:
        """Close the turn's approvals and questions.

        While a sub-agent works in the background its gates stay open: it may still wait. Dialogs belong to extensions, not
        to the turn.
        """
        subagent_continues = "subagent" in self.background.values()
        for ref, gate in list(self.gates.items()):
            if gate.kind != "dialog" and not (gate.path and subagent_continues):
                self.close_gate(ref, status)

    def _take_turn(self) -> str:
        """Reset the turn's state and return its id, so that the caller can write its end."""
        turn_id, self.turn_id = self.turn_id, ""
        self.tools_linger = self.is_compacting = self._turn_is_compaction = False
        return turn_id

    # ------------------------------------------------------------------------------------------------------------------
    # Compaction
    # ------------------------------------------------------------------------------------------------------------------

    def start_compaction(self, trigger: Literal["manual", "auto"] | None = None) -> None:
        """Record that the conversation is being compacted. Outside a turn this starts one that lasts as long."""
        if self.is_compacting:
            return
        if not self.turn_id:
            self.start_turn()
            self._turn_is_compaction = True
        self.is_compacting = True
        # Compacting is a request to the model, and like for any other the main agent no longer waits for a person.
        self.close_gates("answered_elsewhere", "approval", "question")
        self.emit(ev.CompactStart(trigger=trigger, turn_id=self.turn_id))
        self._update_activity()

    def end_compaction(self, removed: int = 0, ok: bool = True, summary: str = "") -> None:
        """Record that compacting ended or was given up."""
        if not self.is_compacting:
            return
        self.is_compacting = False
        self.emit(ev.CompactEnd(removed_count=removed, ok=ok, summary=summary, turn_id=self.turn_id or None))
        if self._turn_is_compaction:
            self.end_turn("completed")
        else:
            self._update_activity()

    def _leave_compaction(self) -> None:
        """Stop counting the main agent as compacting because it does something else (seed 003: a call, a gate, a reply).

        No `compact_end` is written: the result of the compaction wasn't seen.
        """
        self.is_compacting = self._turn_is_compaction = False

    # ------------------------------------------------------------------------------------------------------------------
    # Text and reasoning
    # ------------------------------------------------------------------------------------------------------------------

    def add_text(self, message_id: str, block: int, delta: str, path: AgentPath = ()) -> None:
        """Append text to a block of a reply."""
        self._add_delta("text", message_id, block, delta, path)

    def add_thinking(self, message_id: str, block: int, delta: str, path: AgentPath = ()) -> None:
        """Append reasoning to a block of a reply."""
        self._add_delta("thinking", message_id, block, delta, path)

    def update_text(self, message_id: str, block: int, full_text: str, path: AgentPath = ()) -> None:
        """Append what is new in `full_text`, for agents that repeat the whole text in every update."""
        self.add_text(message_id, block, self.messages.delta_to(message_id, block, full_text), path)

    def update_thinking(self, message_id: str, block: int, full_text: str, path: AgentPath = ()) -> None:
        """Append what is new in `full_text`, for agents that repeat the whole reasoning in every update."""
        self.add_thinking(message_id, block, self.messages.delta_to(message_id, block, full_text), path)

    def add_text_outside_turn(self, message_id: str, block: int, delta: str) -> None:
        """Append text without starting a turn, for words that arrive after their turn ended."""
        if self.messages.append(message_id, block, "text", delta):
            self.emit(ev.MessageStart(message_id=message_id, block=block))
            if self.turn_id:
                # The kernel moves the run to streaming on any message, so the agent can't count as compacting.
                self._note_reply()
        if delta:
            self.emit(ev.MessageDelta(message_id=message_id, block=block, delta=delta))

    def _add_delta(self, kind: BlockKind, message_id: str, block: int, delta: str, path: AgentPath) -> None:
        self._ensure_working(path)
        turn_id = self.turn_id or None
        if self.messages.append(message_id, block, kind, delta, path):
            start = ev.MessageStart if kind == "text" else ev.ThinkingStart
            self.emit(start(message_id=message_id, block=block, turn_id=turn_id, agent_path=path))
            if not path:
                self._note_reply()
        if delta:
            more = ev.MessageDelta if kind == "text" else ev.ThinkingDelta
            self.emit(more(message_id=message_id, block=block, delta=delta, turn_id=turn_id, agent_path=path))

    def _note_reply(self) -> None:
        """Note that the main agent's model replies: compaction is over, and so are rejected calls."""
        self._leave_compaction()
        self.tools_linger = False
        for call in self.calls.values():
            if call.rejection:
                call.rejection = "over"
        self._update_activity()

    def _ensure_working(self, path: AgentPath) -> None:
        """Open what a sign of work implies: a turn for the main agent, a ready agent for a sub-agent."""
        if path:
            self.ensure_ready()
        else:
            self.start_turn()

    def finish_message(
        self,
        message_id: str,
        blocks: tuple[Block, ...] | None = None,
        stop_reason: str = "",
        path: AgentPath = (),
    ) -> None:
        """Record a complete reply. Without `blocks` it consists of what was streamed. Calls must be opened separately."""
        if blocks is None:
            blocks = self.messages.pop(message_id)
        else:
            self.messages.discard(message_id)
        if blocks:
            self.emit(
                ev.ResponseComplete(
                    message_id=message_id,
                    blocks=blocks,
                    stop_reason=stop_reason,
                    turn_id=self.turn_id or None,
                    agent_path=path,
                )
            )

    def abort_message(self, message_id: str, keep: bool = False, path: AgentPath = ()) -> None:
        """Record that a reply was cut off. With `keep` its text stays, otherwise it is removed and will be repeated."""
        blocks = self.messages.pop(message_id)
        if blocks:
            self.emit(
                ev.MessageAborted(
                    message_id=message_id,
                    keep=keep,
                    blocks=blocks if keep else (),
                    turn_id=self.turn_id or None,
                    agent_path=path,
                )
            )

    def _abort_messages(self, path: AgentPath | None) -> None:
        """Write the unfinished messages of one agent, or of all (None), so that the log can drop their deltas."""
        for message_id, owner in self.messages.unfinished(path):
            self.abort_message(message_id, keep=True, path=owner)

    # ------------------------------------------------------------------------------------------------------------------
    # Tool calls
    # ------------------------------------------------------------------------------------------------------------------

    def open_call(
        self,
        call_id: str,
        name: str,
        args: Json = None,
        message_id: str = "",
        block: int = 0,
        partial: bool = False,
        path: AgentPath = (),
    ) -> None:
        """Record that the model wants a call. `partial` means that its arguments are still being streamed."""
        if not path:
            self._leave_compaction()
        self._ensure_working(path)
        if call_id not in self.calls:
            self.calls[call_id] = OpenCall(name, path, target=target_of(args))
        elif name:
            self.calls[call_id].name = name
        self.emit(
            ev.ToolCall(
                name=name,
                call_id=call_id,
                args=args,
                partial=partial,
                message_id=message_id,
                block=block,
                turn_id=self.turn_id or None,
                agent_path=path,
            )
        )
        self._update_activity()

    def start_call(self, call_id: str, name: str = "", args: Json = None, path: AgentPath = ()) -> None:
        """Record that a call runs, unless it runs already. Its open approval was answered elsewhere."""
        call = self.calls.get(call_id)
        if call is not None and call.running:
            return
        if call is None:
            call = OpenCall(name, path, target=target_of(args))
        if not call.path:
            self._leave_compaction()
        self.close_call_approvals(call_id)
        self._ensure_working(path)
        self.calls[call_id] = call
        call.running = True
        self.emit(
            ev.ToolExecutionStart(
                name=call.name or name, call_id=call_id, args=args, turn_id=self.turn_id or None, agent_path=call.path
            )
        )
        self._update_activity()

    def add_output(self, call_id: str, delta: str) -> None:
        """Append output to a running call."""
        call = self.calls.get(call_id)
        if call is None or not delta:
            return
        self.emit(
            ev.ToolExecutionOutput(call_id=call_id, delta=delta, turn_id=self.turn_id or None, agent_path=call.path)
        )

    def update_output(self, call_id: str, full_output: str) -> None:
        """Append what is new in `full_output`, for agents that repeat the whole output in every update."""
        call = self.calls.get(call_id)
        if call is not None and full_output.startswith(call.output):
            delta, call.output = full_output[len(call.output) :], full_output
            self.add_output(call_id, delta)

    def end_call(
        self, call_id: str, ok: bool = True, result: Json = None, name: str = "", path: AgentPath = ()
    ) -> None:
        """Record the end of a call. A start that the agent left out is added; an open approval was answered elsewhere."""
        self.close_call_approvals(call_id)
        call = self.calls.pop(call_id, None)
        if call is None:
            call = OpenCall(name, path)
        if not call.running:
            if not call.path:
                # The kernel moves the run to its tools on the start, so the agent can't count as compacting any more.
                self._leave_compaction()
            self.emit(
                ev.ToolExecutionStart(
                    name=call.name or name, call_id=call_id, turn_id=self.turn_id or None, agent_path=call.path
                )
            )
        self.emit(
            ev.ToolExecutionEnd(
                name=call.name or name,
                call_id=call_id,
                ok=ok,
                result=result,
                turn_id=self.turn_id or None,
                agent_path=call.path,
            )
        )
        if self.background.pop(call_id, None) is not None:
            self.emit(ev.BackgroundEnded(kind="shell", id=call_id, ok=ok))
        self._update_activity()

    def block_call(self, call_id: str, reason: str = "", name: str = "") -> None:
        """Record that a call was prevented from running."""
        self.close_call_approvals(call_id)
        call = self.calls.pop(call_id, None) or OpenCall(name, ())
        self.emit(
            ev.ToolBlocked(
                name=call.name or name,
                call_id=call_id,
                reason=reason,
                turn_id=self.turn_id or None,
                agent_path=call.path,
            )
        )
        self._update_activity()

    def approve_call(self, ref: str, by: str = "", rule: str = "") -> None:
        """Resolve an approval as approved and start its call (seed 003: from waiting straight to tool_use)."""
        gate = self.gates.pop(ref, None)
        if gate is None:
            return
        self._emit_resolved(ref, gate, "approved", by, rule)
        if gate.call_id in self.calls:
            self.start_call(gate.call_id, path=gate.path)
        self._update_activity()

    def reject_call(self, ref: str, by: str = "", rule: str = "", reason: str = "") -> None:
        """Resolve an approval as rejected. The call counts as running until its end is reported (`OpenCall.running`).

        A translator whose agent never reports that end calls `block_call` next.
        """
        gate = self.gates.pop(ref, None)
        if gate is None:
            return
        self._emit_resolved(ref, gate, "rejected", by, rule, reason)
        call = self.calls.get(gate.call_id)
        # An agent may use one id for a call of its own and for one of a sub-agent: only the gate's own call is rejected.
        if call is not None and call.path == gate.path:
            call.running, call.rejection = True, "open"
        self._update_activity()

    def move_call_to_background(self, call_id: str) -> None:
        """Record that the turn no longer waits for a running call."""
        call = self.calls.get(call_id)
        if call is not None and call.running and not call.path:
            self.start_background("shell", call_id, call.title)
            self._update_activity()

    def close_call_approvals(self, call_id: str) -> None:
        """Close the open approvals of a call that runs or has ended."""
        for ref, gate in list(self.gates.items()):
            if gate.kind == "approval" and gate.call_id == call_id and call_id:
                self.resolve_approval(ref, "answered_elsewhere")

    # ------------------------------------------------------------------------------------------------------------------
    # Gates: approvals, questions, dialogs. Each opens once and closes once; repetitions are ignored.
    # ------------------------------------------------------------------------------------------------------------------

    def _open_gate(self, ref: str, kind: GateKind, path: AgentPath = (), call_id: str = "") -> bool:
        """Register a gate and return True, or return False if it is open already.

        An approval or question of the main agent belongs to a turn, so one is started if none is open. A dialog belongs
        to an extension, and a sub-agent may work outside a turn.
        """
        if ref in self.gates:
            return False
        if path or kind == "dialog":
            self.ensure_ready()
        else:
            self._leave_compaction()
            self.start_turn()
        self.gates[ref] = OpenGate(kind, path, call_id)
        return True

    def open_approval(
        self,
        ref: str,
        tool: str,
        args: Json = None,
        call_id: str = "",
        ask: Literal["tool", "command", "browser", "mcp"] = "tool",
        title: str = "",
        hint: str = "",
        options: tuple[Option, ...] = (),
        deadline: int | None = None,
        path: AgentPath = (),
        network_host: str = "",
    ) -> None:
        """Record that a person is asked to allow a call, or to let a running call access `network_host`.

        The title is written from the tool and its arguments; pass one only if they don't say what is asked.
        """
        if not self._open_gate(ref, "approval", path, call_id):
            return
        request = ev.GateRequest(
            ref=ref,
            tool=tool,
            args=args,
            call_id=call_id,
            ask=ask,
            title=title or (network_title(network_host) if network_host else approval_title(tool, args)),
            hint=hint,
            options=options,
            deadline=deadline,
            purpose="network" if network_host else "call",
            host=network_host,
        )
        self.emit(ev.ApprovalRequired(gate=request, turn_id=self.turn_id or None, agent_path=path))
        self._update_activity()

    def resolve_approval(self, ref: str, status: ev.GateStatus, by: str = "", rule: str = "", reason: str = "") -> None:
        """Record the decision on an approval."""
        gate = self.gates.pop(ref, None)
        if gate is not None:
            self._emit_resolved(ref, gate, status, by, rule, reason)
            self._update_activity()

    def _emit_resolved(
        self, ref: str, gate: OpenGate, status: ev.GateStatus, by: str = "", rule: str = "", reason: str = ""
    ) -> None:
        self.emit(
            ev.ApprovalResolved(
                status=status,
                ref=ref,
                by=by,
                rule=rule,
                reason=reason,
                turn_id=self.turn_id or None,
                agent_path=gate.path,
            )
        )

    def open_question(
        self,
        ref: str,
        question: str,
        options: tuple[Option, ...] = (),
        questions: tuple[Question, ...] = (),
        call_id: str = "",
        deadline: int | None = None,
        path: AgentPath = (),
    ) -> None:
        """Record that the agent asks a person a question."""
        if not self._open_gate(ref, "question", path, call_id):
            return
        self.emit(
            ev.AskUser(
                question=question,
                ref=ref,
                options=options,
                questions=questions,
                call_id=call_id,
                deadline=deadline,
                turn_id=self.turn_id or None,
                agent_path=path,
            )
        )
        self._update_activity()

    def answer_question(
        self,
        ref: str,
        response: Json = None,
        status: Literal["answered", "timeout", "answered_elsewhere", "withdrawn", "stale", "superseded"] = "answered",
        by: str = "",
        message_id: str = "",
    ) -> None:
        """Record the answer to a question, or that it was closed without one."""
        gate = self.gates.pop(ref, None)
        if gate is None:
            return
        self.emit(
            ev.UserResponded(
                response=response,
                ref=ref,
                status=status,
                by=by,
                message_id=message_id,
                turn_id=self.turn_id or None,
                agent_path=gate.path,
            )
        )
        self._update_activity()

    def open_dialog(
        self,
        ref: str,
        method: Literal["select", "confirm", "input", "editor"],
        title: str = "",
        message: str = "",
        options: tuple[Option, ...] = (),
        deadline: int | None = None,
        prefill: str = "",
    ) -> None:
        """Record that an extension asks a person for input."""
        if not self._open_gate(ref, "dialog"):
            return
        self.emit(
            ev.DialogRequired(
                method=method,
                title=title,
                ref=ref,
                message=message,
                options=options,
                deadline=deadline,
                prefill=prefill,
                turn_id=self.turn_id or None,
            )
        )
        self._update_activity()

    def close_dialog(
        self,
        ref: str,
        value: Json = None,
        status: Literal["answered", "cancelled", "timeout", "answered_elsewhere", "withdrawn"] = "answered",
        by: str = "",
    ) -> None:
        """Record the answer to a dialog, or that it was closed without one."""
        if self.gates.pop(ref, None) is not None:
            self.emit(ev.DialogResolved(value=value, ref=ref, status=status, by=by, turn_id=self.turn_id or None))
            self._update_activity()

    def close_gate(self, ref: str, status: Literal["answered_elsewhere", "withdrawn"]) -> None:
        """Close a gate of any kind that wasn't answered through Quarterdeck."""
        gate = self.gates.get(ref)
        if gate is None:
            return
        if gate.kind == "approval":
            self.resolve_approval(ref, status)
        elif gate.kind == "question":
            self.answer_question(ref, status=status)
        else:
            self.close_dialog(ref, status=status)

    def close_gates(
        self, status: Literal["answered_elsewhere", "withdrawn"], *kinds: GateKind, path: AgentPath = ()
    ) -> None:
        """Close all gates of these kinds that one agent has open, because that agent has moved on."""
        for ref, gate in list(self.gates.items()):
            if gate.kind in kinds and gate.path == path:
                self.close_gate(ref, status)

    # ------------------------------------------------------------------------------------------------------------------
    # Sub-agents, background work, usage
    # ------------------------------------------------------------------------------------------------------------------

    def close_subagent(self, path: AgentPath) -> None:
        """Close the gates, calls and messages of a sub-agent that ended."""
        self.close_gates("withdrawn", "approval", "question", "dialog", path=path)
        for call_id, call in list(self.calls.items()):
            if call.path == path:
                del self.calls[call_id]
                self.emit(
                    ev.ToolKilled(
                        name=call.name,
                        call_id=call_id,
                        reason="its agent ended",
                        turn_id=self.turn_id or None,
                        agent_path=path,
                    )
                )
        self._abort_messages(path)
        self._update_activity()

    def start_background(self, kind: BackgroundKind, task_id: str, title: str = "") -> None:
        """Record work that outlives the turn, unless it is known already."""
        if task_id not in self.background:
            self.background[task_id] = kind
            self.emit(ev.BackgroundStarted(kind=kind, id=task_id, title=title, turn_id=self.turn_id or None))

    def end_background(self, task_id: str, ok: bool | None = None, title: str = "") -> None:
        """Record that background work ended."""
        kind = self.background.pop(task_id, None)
        if kind is not None:
            self.emit(ev.BackgroundEnded(kind=kind, id=task_id, title=title, ok=ok, turn_id=self.turn_id or None))

    def record_usage(
        self,
        tokens: TokenUsage,
        message_id: str = "",
        model: str = "",
        billing: Literal["metered", "plan", "unknown"] = "unknown",
        path: AgentPath = (),
    ) -> None:
        """Record the tokens of one message. A second record for the same message replaces the first."""
        self.emit(
            ev.Usage(
                tokens=tokens,
                message_id=message_id,
                model=model,
                billing=billing,
                turn_id=self.turn_id or None,
                agent_path=path,
            )
        )
