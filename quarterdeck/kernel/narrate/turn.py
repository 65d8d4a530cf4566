"""Prompts, steering, the turn's beginning and end, and history that was read back."""

from __future__ import annotations

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import Body, Event
from quarterdeck.kernel import timeline as tl
from quarterdeck.kernel.history import entries_of
from quarterdeck.kernel.narrate.base import entry_of, said, tells
from quarterdeck.kernel.queue import meant
from quarterdeck.kernel.state import State
from quarterdeck.kernel.timeline import Timeline


@tells(ev.SessionOpened)
def session_opened(timeline: Timeline, event: Event, body: ev.SessionOpened, _: State) -> Timeline:
    """The first prompt shows while the session is still starting; its own event later finds it there."""
    if body.prompt is None or not body.message_id:
        return timeline
    return tl.appended(timeline, entry_of(event, "user", body.prompt, body.message_id, images=body.images))


@tells(ev.PromptReceived)
def prompt_received(timeline: Timeline, event: Event, body: ev.PromptReceived, before: State) -> Timeline:
    """A text that waited keeps its name and its images, also where the agent does not repeat them."""
    kind = "user" if body.source == "user" else "system"
    waited = meant(before.queue, body.message_id, body.text) if before.queue and kind == "user" else None
    name, images = body.message_id, body.images
    if waited is not None:
        name, images = waited.id, images or waited.images
    return tl.appended(timeline, entry_of(event, kind, body.text, name, None, None, images))


@tells(ev.PromptRejected)
def prompt_rejected(timeline: Timeline, event: Event, body: ev.PromptRejected, _: State) -> Timeline:
    return said(timeline, event, f"Prompt refused: {body.reason}", "error")


@tells(ev.SteeringReceived)
def steering_received(timeline: Timeline, event: Event, body: ev.SteeringReceived, _: State) -> Timeline:
    """The text of a refused steering stands in its error line, so that it is not lost."""
    if body.status == "rejected_full":
        return said(timeline, event, f"Steering queue is full, not sent: {body.text}", "error")
    if body.status == "rejected":
        return said(timeline, event, f"Steering refused: {body.text}", "error")
    return timeline


@tells(ev.SteeringApplied)
def steering_applied(timeline: Timeline, event: Event, body: ev.SteeringApplied, before: State) -> Timeline:
    waiting = {item.id: item for item in before.queue}
    for ref in body.refs:
        item = waiting.get(ref)
        if item is not None:
            timeline = tl.appended(timeline, entry_of(event, "user", item.text, ref, images=item.images))
    return timeline


@tells(ev.AgentStart)
def agent_start(timeline: Timeline, _event: Event, _body: ev.AgentStart, _: State) -> Timeline:
    return tl.settled_all(timeline, True)


@tells(ev.AgentEnd)
def agent_end(timeline: Timeline, _event: Event, _body: ev.AgentEnd, _: State) -> Timeline:
    """Calls that are still open go on in the background, so they are not marked here."""
    return tl.settled_all(timeline, False)


@tells(ev.AgentAbort)
def agent_abort(timeline: Timeline, _event: Event, _body: ev.AgentAbort, before: State) -> Timeline:
    """The user's own commands outlive the turn, and so do calls that went to the background."""
    background = [task.id for task in before.background] if before.background else ()
    return tl.interrupted(timeline, background)


@tells(ev.SessionSuspended, ev.SessionArchived)
def session_at_rest(timeline: Timeline, _event: Event, _body: Body, _: State) -> Timeline:
    return tl.cut_off(timeline)


@tells(ev.TurnRestored)
def turn_restored(timeline: Timeline, event: Event, body: ev.TurnRestored, _: State) -> Timeline:
    """History fills an empty timeline only: what our own log holds is not told twice."""
    if len(timeline.entries):
        return timeline
    for entry in entries_of(body.history):
        has_no_end = entry.tool_step is not None and entry.tool_step.phase == "calling"
        add = tl.with_unfinished if has_no_end else tl.appended
        timeline = add(timeline, replace(entry, at=event.at))
    return timeline
