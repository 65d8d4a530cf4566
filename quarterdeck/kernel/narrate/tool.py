"""Tool steps, in 004's phases: calling, running, then done or error; and the user's own shell commands."""

from __future__ import annotations

from typing import TypeAlias

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import Event, Json
from quarterdeck.kernel import timeline as tl
from quarterdeck.kernel.narrate.base import entry_of, tells
from quarterdeck.kernel.state import State
from quarterdeck.kernel.timeline import BashResult, Entry, Timeline, ToolPhase, ToolStep

#: A call's output grows under its call id; messages number their blocks from 0.
_OUTPUT = -1
_KeptFromRunning: TypeAlias = ev.ToolBlocked | ev.ToolKilled | ev.ToolSkippedForSteering | ev.ToolCallUnknown


def step_of(event: Event, call_id: str, name: str, args: Json, phase: ToolPhase = "calling") -> Entry:
    """The entry of a call that was not told before."""
    body, step = event.body, ToolStep(name, tl.args_preview(args), phase)
    return Entry(
        call_id or f"e{event.index}", "tool", name, step, turn_id=body.turn_id, path=body.agent_path, at=event.at
    )


def called_again(known: Entry, name: str, args: Json) -> Entry:
    """A call that is told again: its name may be a better one, and arguments may have come meanwhile.

    The same entry when nothing is new.
    """
    step = known.tool_step
    if step is None or args is None or step.phase in ("done", "error"):
        return known
    told = ToolStep(name or step.tool_name, tl.args_preview(args), step.phase, step.result)
    return known if told == step else replace(known, text=told.tool_name, tool_step=told)


@tells(ev.ToolCall)
def tool_call(timeline: Timeline, event: Event, body: ev.ToolCall, _: State) -> Timeline:
    known = tl.find(timeline, body.call_id)
    if known is None:
        return tl.with_unfinished(timeline, step_of(event, body.call_id, body.name, body.args))
    told = called_again(known, body.name, body.args)
    return timeline if told is known else tl.changed(timeline, told)


@tells(ev.ToolExecutionStart)
def tool_execution_start(timeline: Timeline, event: Event, body: ev.ToolExecutionStart, _: State) -> Timeline:
    known = tl.find(timeline, body.call_id or _announced_last(timeline))
    if known is None:
        return tl.with_unfinished(timeline, step_of(event, body.call_id, body.name, body.args, "running"))
    step = known.tool_step
    if step is None or not (step.phase == "calling" or (step.phase == "error" and step.result == tl.INTERRUPTED)):
        return timeline
    args = step.tool_args if body.args is None else tl.args_preview(body.args)
    runs = replace(known, tool_step=ToolStep(step.tool_name, args, "running"))
    timeline = tl.changed(timeline, runs)
    # a resumed session runs the call again that it was cut off in
    return timeline if step.phase == "calling" else tl.with_unfinished(timeline, runs)


@tells(ev.ToolExecutionOutput)
def tool_execution_output(timeline: Timeline, _event: Event, body: ev.ToolExecutionOutput, _: State) -> Timeline:
    return _with_output(timeline, body.call_id, body.delta)


def _with_output(timeline: Timeline, identifier: str, piece: str) -> Timeline:
    """Output of something that never began, or is over, is not told."""
    more = tl.with_piece(timeline, identifier, _OUTPUT, piece)
    if more is not None:
        return more
    known = tl.find(timeline, identifier)
    if known is None or not _is_running(known):
        return timeline
    timeline = tl.begun(timeline, known, identifier, _OUTPUT)
    return tl.with_piece(timeline, identifier, _OUTPUT, _output_so_far(known) + piece) or timeline


def _is_running(entry: Entry) -> bool:
    if entry.tool_step is not None:
        return entry.tool_step.phase in ("calling", "running")
    return entry.bash_result is not None and entry.bash_result.running


def _output_so_far(entry: Entry) -> str:
    """What came before the turn ended; the call goes on in the background."""
    if entry.tool_step is not None:
        return entry.tool_step.result or ""
    return "" if entry.bash_result is None else entry.bash_result.output


@tells(ev.ToolExecutionEnd)
def tool_execution_end(timeline: Timeline, event: Event, body: ev.ToolExecutionEnd, _: State) -> Timeline:
    call_id = body.call_id or _announced_last(timeline)
    return _step_ended(timeline, event, call_id, body.name, body.ok, body.result)


@tells(ev.ToolBlocked, ev.ToolKilled, ev.ToolSkippedForSteering, ev.ToolCallUnknown)
def tool_kept_from_running(timeline: Timeline, event: Event, body: _KeptFromRunning, _: State) -> Timeline:
    reason = "no such tool" if isinstance(body, ev.ToolCallUnknown) else body.reason
    return _step_ended(timeline, event, body.call_id, body.name, False, reason or event.type.replace("_", " "))


def _step_ended(timeline: Timeline, event: Event, call_id: str, name: str, ok: bool, result: Json) -> Timeline:
    """A step ends once; a second end is not told. The end of a call that was never announced is all that is told of it."""
    phase: ToolPhase = "done" if ok else "error"
    known = tl.find(timeline, call_id)
    if known is None:
        ended = ToolStep(name, "", phase, tl.result_preview(result))
        return tl.finished(timeline, entry_of(event, "tool", name, call_id, ended))
    step = known.tool_step
    if step is None or step.phase in ("done", "error"):
        return timeline
    ended = ToolStep(step.tool_name, step.tool_args, phase, tl.result_preview(result))
    return tl.finished(timeline, replace(known, tool_step=ended))


def _announced_last(timeline: Timeline) -> str:
    """An agent that gives no call id means the call that was announced last."""
    shells = tl.shells(timeline)
    return next((name for name in reversed(timeline.unfinished) if name not in shells), "")


@tells(ev.BashStart)
def bash_start(timeline: Timeline, event: Event, body: ev.BashStart, _: State) -> Timeline:
    if body.bash_id in timeline.places:
        return timeline
    result = BashResult(body.command, "", running=True)
    return tl.with_unfinished(timeline, entry_of(event, "bash", body.command, body.bash_id, bash=result))


@tells(ev.BashOutput)
def bash_output(timeline: Timeline, _event: Event, body: ev.BashOutput, _: State) -> Timeline:
    return _with_output(timeline, body.bash_id, body.delta)


@tells(ev.BashEnd)
def bash_end(timeline: Timeline, event: Event, body: ev.BashEnd, _: State) -> Timeline:
    known = tl.find(timeline, body.bash_id)
    command = body.command if known is None else known.text
    entry = entry_of(event, "bash", command, body.bash_id) if known is None else known
    return tl.finished(timeline, replace(entry, bash_result=BashResult(command, body.output, body.exit_code)))
