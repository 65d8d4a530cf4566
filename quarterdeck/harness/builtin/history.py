"""Select the events of a log from which the engine restores a session: conversation, todo list, plugin state.

Only the conversation that continues counts. The events before the first agent_ready with its id belong to another one,
which a new task ended. Texts that still wait are delivered by the deck, so a steering text counts only if the agent had
taken it.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import to_builtins
from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import NAMES, Body, Event, Json

KINDS: tuple[type[Body], ...] = (
    ev.AgentReady,
    ev.AgentStart,
    ev.AgentEnd,
    ev.AgentAbort,
    ev.PromptReceived,
    ev.SteeringReceived,
    ev.SteeringApplied,
    ev.ResponseComplete,
    ev.MessageAborted,
    ev.Intervention,
    ev.ToolExecutionStart,
    ev.ToolExecutionEnd,
    ev.ToolBlocked,
    ev.ToolKilled,
    ev.ToolSkippedForSteering,
    ev.ToolCallUnknown,
    ev.CompactEnd,
    ev.TodoChange,
    ev.PlanGenerated,
    ev.ModelSwitched,
    ev.PluginState,
)
TYPES = frozenset(NAMES[kind] for kind in KINDS)


def bodies_to_restore(events: Iterable[Event], native_session_id: str) -> list[Json]:
    """Return the events to send to the engine, in order."""
    bodies = [event.body for event in events if isinstance(event.body, KINDS) and not event.body.agent_path]
    start = next((index for index, body in enumerate(bodies) if _opens(body, native_session_id)), len(bodies))
    bodies = bodies[start + 1 :]
    applied = {ref for body in bodies if isinstance(body, ev.SteeringApplied) for ref in body.refs}
    return [to_builtins(_without_messages(body)) for body in bodies if _is_needed(body, applied)]


def _opens(body: Body, native_session_id: str) -> bool:
    return isinstance(body, ev.AgentReady) and body.native_session_id == native_session_id


def _is_needed(body: Body, applied_refs: set[str]) -> bool:
    if isinstance(body, ev.SteeringReceived):
        return body.ref in applied_refs and body.status == "queued"
    return not isinstance(body, ev.AgentReady)


def _without_messages(body: Body) -> Body:
    """Drop the messages of an agent_end: each has an event of its own."""
    return replace(body, messages=()) if isinstance(body, ev.AgentEnd) else body
