"""Show each event in the timeline: 004's `handleServerEvent` as one small function per event type.

A narrator receives the timeline, the event, its body, and the session's state before the event. It needs the state where
the event only refers to something: a steering message is in the queue, a decided gate names its call. A narrator decides
nothing; moves/ decides what an event means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import Block, Body, Event, HistoryMessage, Image, Json
from quarterdeck.kernel import timeline as tl
from quarterdeck.kernel.gate import Gates, id_of, title_of
from quarterdeck.kernel.process import exit_message
from quarterdeck.kernel.queue import matching
from quarterdeck.kernel.state import State
from quarterdeck.kernel.timeline import BashResult, Card, Entry, Kind, Timeline, ToolPhase, ToolStep

#: The third argument is the event's body, of the type that the narrator is registered for.
Narrator: TypeAlias = Callable[[Timeline, Event, Any, State], Timeline]
_B = TypeVar("_B", bound=Body)
_Handler: TypeAlias = Callable[[Timeline, Event, _B, State], Timeline]

#: Event type to narrator. Events that aren't here don't appear in the timeline.
NARRATORS: dict[type[Body], Narrator] = {}


def narrates(*kinds: type[_B]) -> Callable[[_Handler[_B]], _Handler[_B]]:
    """Register a narrator for these event types."""

    def register(narrator: _Handler[_B]) -> _Handler[_B]:
        for kind in kinds:
            NARRATORS[kind] = narrator
        return narrator

    return register


def _entry(
    event: Event,
    kind: Kind,
    text: str = "",
    agent_id: str = "",
    step: ToolStep | None = None,
    bash: BashResult | None = None,
    images: tuple[Image, ...] = (),
    card: Card | None = None,
) -> Entry:
    """Create an entry for this event. Without an id from the agent it gets one from the event's index."""
    identifier = tl.own_id(agent_id) if agent_id else tl.line_id(event.index)
    body = event.body
    return Entry(identifier, kind, text, step, bash, images, card, body.turn_id, body.agent_path, event.at)


def _entry_with_id(event: Event, kind: Kind, text: str, identifier: str, step: ToolStep | None = None) -> Entry:
    """Create an entry whose id we chose ourselves, so it can't clash with an agent's."""
    return Entry(identifier, kind, text, step, turn_id=event.body.turn_id, path=event.body.agent_path, at=event.at)


def _line(event: Event, text: str, kind: Kind = "system", passing: bool = False) -> Entry:
    """Create a plain line."""
    return replace(_entry_with_id(event, kind, text, tl.line_id(event.index)), passing=passing)


# ---------------------------------------------------------------------------------------- model messages


def _begun(timeline: Timeline, event: Event, kind: Kind, message_id: str, block: int) -> Timeline:
    entry = _entry_with_id(event, kind, "", tl.entry_id(message_id, block))
    return tl.begun(timeline, entry, message_id, block)


@narrates(ev.MessageStart)
def message_start(timeline: Timeline, event: Event, body: ev.MessageStart, _: State) -> Timeline:
    return _begun(timeline, event, "assistant", body.message_id, body.block)


@narrates(ev.ThinkingStart)
def thinking_start(timeline: Timeline, event: Event, body: ev.ThinkingStart, _: State) -> Timeline:
    return _begun(timeline, event, "thinking", body.message_id, body.block)


@narrates(ev.MessageDelta)
def message_delta(timeline: Timeline, event: Event, body: ev.MessageDelta, _: State) -> Timeline:
    return _with_delta(timeline, event, "assistant", body)


@narrates(ev.ThinkingDelta)
def thinking_delta(timeline: Timeline, event: Event, body: ev.ThinkingDelta, _: State) -> Timeline:
    return _with_delta(timeline, event, "thinking", body)


def _with_delta(timeline: Timeline, event: Event, kind: Kind, body: ev.MessageDelta | ev.ThinkingDelta) -> Timeline:
    longer = tl.with_piece(timeline, body.message_id, body.block, body.delta)
    if longer is not None:
        return longer
    if tl.entry_id(body.message_id, body.block) in timeline.positions:
        return timeline  # The block is complete already: a late delta is ignored.
    timeline = _begun(timeline, event, kind, body.message_id, body.block)
    return tl.with_piece(timeline, body.message_id, body.block, body.delta) or timeline


@narrates(ev.ResponseComplete)
def response_complete(timeline: Timeline, event: Event, body: ev.ResponseComplete, _: State) -> Timeline:
    return _restated(timeline, event, body.message_id, body.blocks)


@narrates(ev.MessageAborted)
def message_aborted(timeline: Timeline, event: Event, body: ev.MessageAborted, _: State) -> Timeline:
    if body.keep:
        return _restated(timeline, event, body.message_id, body.blocks)
    return tl.withdrawn(tl.with_whole(timeline, body.message_id, timeline.entries, {}), body.message_id)


def _restated(timeline: Timeline, event: Event, message_id: str, blocks: tuple[Block, ...]) -> Timeline:
    """Complete a message with its restated blocks: update the entries that exist and add the others."""
    entries, positions, first = timeline.entries, timeline.positions, ""
    new: dict[str, Entry] = {}
    for block in blocks:
        is_call = block.kind == "tool_call"
        identifier = (block.call_id or f"e{event.index}") if is_call else tl.entry_id(message_id, block.block)
        if identifier in positions:
            # A call that has ended keeps the entry that its end created.
            if not is_call or identifier in timeline.unfinished:
                entry = entries[positions[identifier]]
                restated = _restated_entry(entry, block)
                entries = entries if restated is entry else entries.set(positions[identifier], restated)
        elif identifier in new:
            new[identifier] = _restated_entry(new[identifier], block)
        elif is_call:
            new[identifier] = _call_entry(event, identifier, block.name, block.args)
        elif block.text and not block.text.isspace():
            kind = "thinking" if block.kind == "thinking" else "assistant"
            new[identifier] = _entry_with_id(event, kind, block.text, identifier)
            if block.block and not first and tl.entry_id(message_id, 0) not in new:
                first = identifier
    return tl.with_whole(timeline, message_id, entries, new, first)


def _restated_entry(entry: Entry, block: Block) -> Entry:
    """Return the entry with the block's final content, or the same object if nothing is new."""
    if block.kind != "tool_call":
        return replace(entry, text=block.text, gone=not block.text or block.text.isspace())
    # A call without an id can't be identified with an earlier one.
    return _repeated_call(entry, block.name, block.args) if block.call_id else entry


# -------------------------------------------------------------------------- tool calls, shell commands

#: The block number under which a call's output grows. Messages number their blocks from 0.
_OUTPUT = -1
_PreventedCall: TypeAlias = ev.ToolBlocked | ev.ToolKilled | ev.ToolSkippedForSteering | ev.ToolCallUnknown


def _call_entry(event: Event, call_id: str, name: str, args: Json, phase: ToolPhase = "calling") -> Entry:
    """Create the entry of a call that has none yet."""
    step = ToolStep(name, tl.args_preview(args), phase)
    return _entry_with_id(event, "tool", name, call_id or f"e{event.index}", step)


def _repeated_call(entry: Entry, name: str, args: Json) -> Entry:
    """Update the entry of a call that is announced again, perhaps with a better name or with its arguments.

    Return the same object if nothing is new.
    """
    step = entry.tool_step
    if step is None or args is None or step.phase in ("done", "error"):
        return entry
    updated = ToolStep(name or step.tool_name, tl.args_preview(args), step.phase, step.result)
    return entry if updated == step else replace(entry, text=updated.tool_name, tool_step=updated)


@narrates(ev.ToolCall)
def tool_call(timeline: Timeline, event: Event, body: ev.ToolCall, _: State) -> Timeline:
    entry = tl.find(timeline, body.call_id)
    if entry is None:
        return tl.with_unfinished(timeline, _call_entry(event, body.call_id, body.name, body.args))
    updated = _repeated_call(entry, body.name, body.args)
    return timeline if updated is entry else tl.changed(timeline, updated)


@narrates(ev.ToolExecutionStart)
def tool_execution_start(timeline: Timeline, event: Event, body: ev.ToolExecutionStart, _: State) -> Timeline:
    entry = tl.find(timeline, body.call_id or _last_announced_id(timeline))
    if entry is None:
        return tl.with_unfinished(timeline, _call_entry(event, body.call_id, body.name, body.args, "running"))
    step = entry.tool_step
    if step is None or not (step.phase == "calling" or (step.phase == "error" and step.result == tl.INTERRUPTED)):
        return timeline
    args = step.tool_args if body.args is None else tl.args_preview(body.args)
    running = replace(entry, tool_step=ToolStep(step.tool_name, args, "running"))
    timeline = tl.changed(timeline, running)
    # A resumed session runs the call again in which it was interrupted, so it is unfinished again.
    return timeline if step.phase == "calling" else tl.with_unfinished(timeline, running)


@narrates(ev.ToolExecutionOutput)
def tool_execution_output(timeline: Timeline, _event: Event, body: ev.ToolExecutionOutput, _: State) -> Timeline:
    return _with_output(timeline, body.call_id, body.delta)


def _with_output(timeline: Timeline, identifier: str, piece: str) -> Timeline:
    """Append output. Output of something that never started, or has ended, is ignored."""
    longer = tl.with_piece(timeline, identifier, _OUTPUT, piece)
    if longer is not None:
        return longer
    entry = tl.find(timeline, identifier)
    if entry is None or not _is_running(entry):
        return timeline
    timeline = tl.begun(timeline, entry, identifier, _OUTPUT)
    return tl.with_piece(timeline, identifier, _OUTPUT, _output_so_far(entry) + piece) or timeline


def _is_running(entry: Entry) -> bool:
    if entry.tool_step is not None:
        return entry.tool_step.phase in ("calling", "running")
    return entry.bash_result is not None and entry.bash_result.running


def _output_so_far(entry: Entry) -> str:
    """Return the output from before the turn ended, for a call that continues in the background."""
    if entry.tool_step is not None:
        return entry.tool_step.result or ""
    return "" if entry.bash_result is None else entry.bash_result.output


@narrates(ev.ToolExecutionEnd)
def tool_execution_end(timeline: Timeline, event: Event, body: ev.ToolExecutionEnd, _: State) -> Timeline:
    call_id = body.call_id or _last_announced_id(timeline)
    return _with_call_ended(timeline, event, call_id, body.name, body.ok, body.result)


@narrates(ev.ToolBlocked, ev.ToolKilled, ev.ToolSkippedForSteering, ev.ToolCallUnknown)
def tool_prevented(timeline: Timeline, event: Event, body: _PreventedCall, _: State) -> Timeline:
    reason = "no such tool" if isinstance(body, ev.ToolCallUnknown) else body.reason
    return _with_call_ended(timeline, event, body.call_id, body.name, False, reason or event.type.replace("_", " "))


def _with_call_ended(timeline: Timeline, event: Event, call_id: str, name: str, ok: bool, result: Json) -> Timeline:
    """End a call. A second end is ignored; the end of a call that was never announced creates its entry."""
    phase: ToolPhase = "done" if ok else "error"
    entry = tl.find(timeline, call_id)
    if entry is None:
        step = ToolStep(name, "", phase, tl.result_preview(result))
        return tl.finished(timeline, _entry(event, "tool", name, call_id, step))
    step = entry.tool_step
    if step is None or step.phase in ("done", "error"):
        return timeline
    ended = ToolStep(step.tool_name, step.tool_args, phase, tl.result_preview(result))
    return tl.finished(timeline, replace(entry, tool_step=ended))


def _last_announced_id(timeline: Timeline) -> str:
    """Return the call that an agent means if it gives no call id: the one it announced last."""
    shells = tl.shells(timeline)
    return next((identifier for identifier in reversed(timeline.unfinished) if identifier not in shells), "")


@narrates(ev.BashStart)
def bash_start(timeline: Timeline, event: Event, body: ev.BashStart, _: State) -> Timeline:
    if body.bash_id in timeline.positions:
        return timeline
    result = BashResult(body.command, "", running=True)
    return tl.with_unfinished(timeline, _entry(event, "bash", body.command, body.bash_id, bash=result))


@narrates(ev.BashOutput)
def bash_output(timeline: Timeline, _event: Event, body: ev.BashOutput, _: State) -> Timeline:
    return _with_output(timeline, body.bash_id, body.delta)


@narrates(ev.BashEnd)
def bash_end(timeline: Timeline, event: Event, body: ev.BashEnd, _: State) -> Timeline:
    started = tl.find(timeline, body.bash_id)
    command = body.command if started is None else started.text
    entry = _entry(event, "bash", command, body.bash_id) if started is None else started
    return tl.finished(timeline, replace(entry, bash_result=BashResult(command, body.output, body.exit_code)))


# ------------------------------------------------------------------------------------------------- gates


@narrates(ev.ApprovalRequired)
def approval_required(timeline: Timeline, event: Event, body: ev.ApprovalRequired, _: State) -> Timeline:
    """Put the card on the entry of the call, if there is one."""
    request = body.gate
    card = Card(id_of(event, request.gate_id, request.ref), "approval")
    identifier = _card_entry_id(card)
    if identifier not in timeline.positions and request.call_id in timeline.positions:
        identifier = request.call_id
    return _with_open_card(timeline, event, identifier, title_of(request), card)


@narrates(ev.AskUser)
def ask_user(timeline: Timeline, event: Event, body: ev.AskUser, _: State) -> Timeline:
    card = Card(id_of(event, body.gate_id, body.ref), "question")
    return _with_open_card(timeline, event, _card_entry_id(card), body.question, card)


@narrates(ev.DialogRequired)
def dialog_required(timeline: Timeline, event: Event, body: ev.DialogRequired, _: State) -> Timeline:
    card = Card(id_of(event, body.gate_id, body.ref), "dialog")
    return _with_open_card(timeline, event, _card_entry_id(card), body.title, card)


def _card_entry_id(card: Card) -> str:
    return f"gate:{card.gate_id}"


def _with_open_card(timeline: Timeline, event: Event, identifier: str, title: str, card: Card) -> Timeline:
    """Show an open gate. If the gate is asked again, its card is open again."""
    if identifier in timeline.positions:
        timeline = tl.with_card(timeline, identifier, card)
    else:
        timeline = tl.appended(timeline, _entry(event, "system", title, identifier, card=card))
    return tl.undecided(timeline, card.gate_id)


@narrates(ev.UserResponded)
def user_responded(timeline: Timeline, event: Event, body: ev.UserResponded, _: State) -> Timeline:
    if body.status != "answered" or body.response is None:
        return timeline
    text = body.response if isinstance(body.response, str) else tl.json_text(body.response)
    return tl.appended(timeline, _entry(event, "user", text, body.message_id))


def with_decided_cards(timeline: Timeline, before: Gates, after: Gates) -> Timeline:
    """Show on each card how its gate was closed. The fold calls this after every event that opens or closes a gate."""
    still_open = {gate.id for gate in after.open}
    closed_ids = [gate.id for gate in before.open if gate.id not in still_open]
    if not closed_ids:
        return timeline
    # The state retains only the most recent decisions. If one event closes more gates than that, it closes all of them
    # in the same way, so the last decision is also that of the gates whose decisions aren't retained.
    last = after.decided[-1]
    decisions = {decision.gate_id: decision for decision in after.decided}
    decided = timeline.decided.update({gate_id: decisions.get(gate_id, last) for gate_id in closed_ids})
    return replace(timeline, decided=decided)


# ------------------------------------------------------------------------------------ prompts and turns


@narrates(ev.SessionOpened)
def session_opened(timeline: Timeline, event: Event, body: ev.SessionOpened, _: State) -> Timeline:
    """Show the first prompt while the session is still starting. The later prompt_received doesn't add it again."""
    if body.prompt is None or not body.message_id:
        return timeline
    return tl.appended(timeline, _entry(event, "user", body.prompt, body.message_id, images=body.images))


@narrates(ev.PromptReceived)
def prompt_received(timeline: Timeline, event: Event, body: ev.PromptReceived, before: State) -> Timeline:
    """Show a prompt. A queued message keeps its id and its images, which some agents don't repeat."""
    kind = "user" if body.source == "user" else "system"
    queued = matching(before.queue, body.message_id, body.text) if kind == "user" else None
    message_id, images = body.message_id, body.images
    if queued is not None:
        message_id, images = queued.id, images or queued.images
    return tl.appended(timeline, _entry(event, kind, body.text, message_id, images=images))


@narrates(ev.SteeringReceived)
def steering_received(timeline: Timeline, event: Event, body: ev.SteeringReceived, _: State) -> Timeline:
    """Show a refused steering message with its text, so that the text isn't lost."""
    if body.status == "rejected_full":
        return tl.with_line(timeline, _line(event, f"Steering queue is full, not sent: {body.text}", "error"))
    if body.status == "rejected":
        return tl.with_line(timeline, _line(event, f"Steering refused: {body.text}", "error"))
    return timeline


@narrates(ev.SteeringApplied)
def steering_applied(timeline: Timeline, event: Event, body: ev.SteeringApplied, before: State) -> Timeline:
    queued = {item.id: item for item in before.queue}
    for ref in body.refs:
        item = queued.get(ref)
        if item is not None:
            timeline = tl.appended(timeline, _entry(event, "user", item.text, ref, images=item.images))
    return timeline


@narrates(ev.AgentStart)
def agent_start(timeline: Timeline, _event: Event, _body: ev.AgentStart, _: State) -> Timeline:
    return tl.with_blocks_completed(timeline, True)


@narrates(ev.AgentEnd)
def agent_end(timeline: Timeline, _event: Event, _body: ev.AgentEnd, _: State) -> Timeline:
    """Complete the texts. Calls that are still unfinished continue in the background and stay unfinished."""
    return tl.with_blocks_completed(timeline, False)


@narrates(ev.AgentAbort)
def agent_abort(timeline: Timeline, _event: Event, _body: ev.AgentAbort, before: State) -> Timeline:
    return tl.interrupted(timeline, [task.id for task in before.background])


@narrates(ev.SessionSuspended, ev.SessionArchived)
def session_inactive(timeline: Timeline, _event: Event, _body: Body, _: State) -> Timeline:
    return tl.cut_off(timeline)


@narrates(ev.ProcessExited)
def process_exited(timeline: Timeline, event: Event, body: ev.ProcessExited, _: State) -> Timeline:
    if body.asked or body.code == 0 or (body.code is None and body.signal is None):
        return tl.cut_off(timeline)
    return tl.cut_off(timeline, _line(event, exit_message(body.code, body.signal), "error"))


@narrates(ev.ProcessError)
def process_error(timeline: Timeline, event: Event, body: ev.ProcessError, _: State) -> Timeline:
    return tl.cut_off(timeline, _line(event, body.message or "The agent process failed", "error"))


@narrates(ev.SessionFailed)
def session_failed(timeline: Timeline, event: Event, body: ev.SessionFailed, _: State) -> Timeline:
    return tl.cut_off(timeline, _line(event, body.message or "The session failed", "error"))


# ------------------------------------------------------------------------------------------- single lines


@narrates(ev.Notice)
def notice(timeline: Timeline, event: Event, body: ev.Notice, _: State) -> Timeline:
    return tl.with_line(timeline, _line(event, body.text, "error" if body.level == "error" else "system"))


@narrates(ev.LoopDetected)
def loop_detected(timeline: Timeline, event: Event, body: ev.LoopDetected, _: State) -> Timeline:
    kind = "error" if body.loop == "file_loop_abort" else "system"
    return tl.with_line(timeline, _line(event, f"Loop detected: {body.loop.replace('_', ' ')}", kind))


def _narrate_as_line(
    kind: type[_B], text: Callable[[_B], str], entry_kind: Kind = "system", passing: bool = False
) -> None:
    def narrate(timeline: Timeline, event: Event, body: Any, _: State) -> Timeline:
        return tl.with_line(timeline, _line(event, text(body), entry_kind, passing))

    NARRATORS[kind] = narrate


def _compacted(body: ev.CompactEnd) -> str:
    if not body.ok:
        return "Compaction was given up"
    removed = f": {body.removed_count} messages removed" if body.removed_count else ""
    return f"Conversation compacted{removed}"


def _retried(body: ev.Retry) -> str:
    return f"Retry {body.attempt}: {body.reason}" if body.reason else f"Retry {body.attempt}"


_narrate_as_line(ev.PromptRejected, lambda body: f"Prompt refused: {body.reason}", "error")
_narrate_as_line(ev.TurnFailed, lambda body: body.message or f"The turn failed: {body.kind}", "error")
_narrate_as_line(ev.CommandFailed, lambda body: body.message, "error")
_narrate_as_line(ev.StreamError, lambda body: f"Stream broke: {body.reason}", passing=True)
_narrate_as_line(ev.StreamStalled, lambda body: f"No answer for {body.elapsed_s:g} s", passing=True)
_narrate_as_line(ev.Retry, _retried, passing=True)
_narrate_as_line(ev.ContextOverflow, lambda body: f"Context is full: {body.reason}", passing=True)
_narrate_as_line(ev.CompactStart, lambda _: "Compacting the conversation", passing=True)
_narrate_as_line(ev.CompactEnd, _compacted)
_narrate_as_line(ev.StatusUpdate, lambda body: body.text)
_narrate_as_line(ev.PluginEvent, lambda body: f"{body.name}: {tl.args_preview(body.payload)}")
_narrate_as_line(ev.Intervention, lambda body: body.prompt)
_narrate_as_line(ev.ModelSwitched, lambda body: f"Model is now {body.to}")
_narrate_as_line(ev.SubagentStart, lambda body: f"Sub-agent started: {body.description}")
_narrate_as_line(ev.SubagentEnd, lambda body: f"Sub-agent {'done' if body.ok else 'failed'}")
_narrate_as_line(ev.TodoChange, lambda body: f"Todo list: {len(body.todos)} items")
_narrate_as_line(ev.PlanGenerated, lambda body: f"Plan: {len(body.plan.steps)} steps")
_narrate_as_line(ev.MemoryFlushed, lambda body: f"Memory: {body.count} facts written")
_narrate_as_line(
    ev.LargeResultOffloaded, lambda body: f"Result of {body.tool} stored in {body.path} ({body.bytes} bytes)"
)
_narrate_as_line(ev.ContentPolicyViolated, lambda body: f"Content policy: {body.summary}")
_narrate_as_line(ev.ToolAttached, lambda body: f"Tool added: {body.name}")
_narrate_as_line(ev.ToolDetached, lambda body: f"Tool removed: {body.name}")
_narrate_as_line(ev.ToolsUpdated, lambda body: f"Tools changed: {', '.join((*body.attached, *body.detached))}")
_narrate_as_line(ev.ToolApprovedAlways, lambda body: f"Always allowed: {body.rule or body.command_family or body.tool}")
_narrate_as_line(ev.RuleRemoved, lambda body: f"Rule removed: {body.rule}")


# --------------------------------------------------------------------- history of an earlier conversation

_HISTORY_KINDS: dict[str, Kind] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "tool": "system",
    "bash": "system",
}


@narrates(ev.TurnRestored)
def turn_restored(timeline: Timeline, event: Event, body: ev.TurnRestored, _: State) -> Timeline:
    """Fill an empty timeline with the agent's history. If our own log has entries, they show the same conversation."""
    if len(timeline.entries):
        return timeline
    for entry in entries_of_history(body.history):
        is_unfinished = entry.tool_step is not None and entry.tool_step.phase == "calling"
        add = tl.with_unfinished if is_unfinished else tl.appended
        timeline = add(timeline, replace(entry, at=event.at))
    return timeline


def entries_of_history(history: Iterable[HistoryMessage]) -> list[Entry]:
    """Convert an agent's history to entries as if its events had been seen live (004's `loadMessagesFromHistory`).

    Results are matched to their calls by call id, in any order. Blank blocks are skipped.
    """
    entries: dict[str, Entry] = {}
    for message in history:
        for block in message.blocks:
            entry = _history_entry(message, block, entries)
            if entry is not None:
                entries[entry.id] = entry
    return list(entries.values())


def _history_entry(message: HistoryMessage, block: Block, entries: Mapping[str, Entry]) -> Entry | None:
    block_id = tl.entry_id(message.message_id, block.block)
    call_id = tl.own_id(block.call_id) if block.call_id else block_id
    if block.kind == "tool_call":
        return _history_call(call_id, block, entries.get(call_id))
    if block.kind == "tool_result":
        return _history_result(call_id, block, entries.get(call_id))
    if block.kind == "bash":
        return Entry(block_id, "bash", block.name, bash_result=BashResult(block.name, block.text, block.exit_code))
    if not block.text.strip() and not block.images:
        return None
    kind: Kind = "thinking" if block.kind == "thinking" else _HISTORY_KINDS[message.role]
    return _history_prompt(message) if kind == "user" else Entry(block_id, kind, block.text, images=block.images)


def _history_call(call_id: str, block: Block, existing: Entry | None) -> Entry:
    """Create the entry of a call. If its result came first, the result stays."""
    step = None if existing is None else existing.tool_step
    if step is None:
        step = ToolStep(block.name, "", "calling")
    return Entry(
        call_id, "tool", block.name, ToolStep(block.name, tl.args_preview(block.args), step.phase, step.result)
    )


def _history_result(call_id: str, block: Block, call: Entry | None) -> Entry:
    """Add a result to its call. A result without a call in the history gets an entry of its own."""
    entry = call or Entry(call_id, "tool", block.name)
    step = entry.tool_step or ToolStep(block.name, "", "calling")
    phase: ToolPhase = "done" if block.ok else "error"
    return replace(entry, tool_step=ToolStep(step.tool_name, step.tool_args, phase, tl.result_preview(block.text)))


def _history_prompt(message: HistoryMessage) -> Entry:
    """Create one entry for a user's message, under the message's own id, however many blocks the agent stored."""
    blocks = [block for block in message.blocks if block.kind == "text"]
    text = "\n".join(block.text for block in blocks if block.text.strip())
    images = tuple(image for block in blocks for image in block.images)
    return Entry(tl.own_id(message.message_id), "user", text, images=images)
