"""Failures, notices, and everything that is one line and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from quarterdeck import events as ev
from quarterdeck.events import Body, Event
from quarterdeck.kernel import timeline as tl
from quarterdeck.kernel.narrate.base import TELLERS, line_of, said, tells
from quarterdeck.kernel.process import last_words
from quarterdeck.kernel.state import State
from quarterdeck.kernel.timeline import Timeline

_B = TypeVar("_B", bound=Body)


@tells(ev.ProcessExited)
def process_exited(timeline: Timeline, event: Event, body: ev.ProcessExited, _: State) -> Timeline:
    if body.asked or body.code == 0 or (body.code is None and body.signal is None):
        return tl.cut_off(timeline)
    return tl.cut_off(timeline, line_of(event, last_words(body.code, body.signal), "error"))


@tells(ev.ProcessError)
def process_error(timeline: Timeline, event: Event, body: ev.ProcessError, _: State) -> Timeline:
    return tl.cut_off(timeline, line_of(event, body.message or "The agent process failed", "error"))


@tells(ev.SessionFailed)
def session_failed(timeline: Timeline, event: Event, body: ev.SessionFailed, _: State) -> Timeline:
    return tl.cut_off(timeline, line_of(event, body.message or "The session failed", "error"))


@tells(ev.Notice)
def notice(timeline: Timeline, event: Event, body: ev.Notice, _: State) -> Timeline:
    return said(timeline, event, body.text, "error" if body.level == "error" else "system")


@tells(ev.LoopDetected)
def loop_detected(timeline: Timeline, event: Event, body: ev.LoopDetected, _: State) -> Timeline:
    kind = "error" if body.loop == "file_loop_abort" else "system"
    return said(timeline, event, f"Loop detected: {body.loop.replace('_', ' ')}", kind)


def _line(kind: type[_B], words: Callable[[_B], str], entry_kind: tl.Kind = "system", passing: bool = False) -> None:
    def tell(timeline: Timeline, event: Event, body: Any, _: State) -> Timeline:
        return said(timeline, event, words(body), entry_kind, passing)

    TELLERS[kind] = tell


def _compacted(body: ev.CompactEnd) -> str:
    if not body.ok:
        return "Compaction was given up"
    removed = f": {body.removed_count} messages removed" if body.removed_count else ""
    return f"Conversation compacted{removed}"


def _retried(body: ev.Retry) -> str:
    return f"Retry {body.attempt}: {body.reason}" if body.reason else f"Retry {body.attempt}"


_line(ev.TurnFailed, lambda body: body.message or f"The turn failed: {body.kind}", "error")
_line(ev.CommandFailed, lambda body: body.message, "error")
_line(ev.StreamError, lambda body: f"Stream broke: {body.reason}", passing=True)
_line(ev.StreamStalled, lambda body: f"No answer for {body.elapsed_s:g} s", passing=True)
_line(ev.Retry, _retried, passing=True)
_line(ev.ContextOverflow, lambda body: f"Context is full: {body.reason}", passing=True)
_line(ev.CompactStart, lambda _: "Compacting the conversation", passing=True)
_line(ev.CompactEnd, _compacted)
_line(ev.StatusUpdate, lambda body: body.text)
_line(ev.PluginEvent, lambda body: f"{body.name}: {tl.args_preview(body.payload)}")
_line(ev.Intervention, lambda body: body.prompt)
_line(ev.ModelSwitched, lambda body: f"Model is now {body.to}")
_line(ev.SubagentStart, lambda body: f"Sub-agent started: {body.description}")
_line(ev.SubagentEnd, lambda body: f"Sub-agent {'done' if body.ok else 'failed'}")
_line(ev.TodoChange, lambda body: f"Todo list: {len(body.todos)} items")
_line(ev.PlanGenerated, lambda body: f"Plan: {len(body.plan.steps)} steps")
_line(ev.MemoryFlushed, lambda body: f"Memory: {body.count} facts written")
_line(ev.LargeResultOffloaded, lambda body: f"Result of {body.tool} stored in {body.path} ({body.bytes} bytes)")
_line(ev.ContentPolicyViolated, lambda body: f"Content policy: {body.summary}")
_line(ev.ToolAttached, lambda body: f"Tool added: {body.name}")
_line(ev.ToolDetached, lambda body: f"Tool removed: {body.name}")
_line(ev.ToolsUpdated, lambda body: f"Tools changed: {', '.join((*body.attached, *body.detached))}")
_line(ev.ToolApprovedAlways, lambda body: f"Always allowed: {body.rule or body.command_family or body.tool}")
_line(ev.RuleRemoved, lambda body: f"No rule any more: {body.rule}")
