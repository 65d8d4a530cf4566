"""What a session's log tells the engine when the session goes on: enough for the conversation, the list, the plugins.

Pure. Only the conversation that is to go on counts: before the first agent_ready of its name another one may stand, which
a new task ended. Texts that wait are the deck's; a steering text counts when the agent had taken it.
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


def told(events: Iterable[Event], native_session_id: str) -> list[Json]:
    """The bodies to hand over, in order."""
    bodies = [event.body for event in events if isinstance(event.body, KINDS) and not event.body.agent_path]
    begins = next((place for place, body in enumerate(bodies) if _is(body, native_session_id)), len(bodies))
    bodies = bodies[begins + 1 :]
    taken = {ref for body in bodies if isinstance(body, ev.SteeringApplied) for ref in body.refs}
    return [to_builtins(_small(body)) for body in bodies if _counts(body, taken)]


def _is(body: Body, native_session_id: str) -> bool:
    return isinstance(body, ev.AgentReady) and body.native_session_id == native_session_id


def _counts(body: Body, taken: set[str]) -> bool:
    if isinstance(body, ev.SteeringReceived):
        return body.ref in taken and body.status == "queued"
    return not isinstance(body, ev.AgentReady)


def _small(body: Body) -> Body:
    """The messages of a turn stand in their own events."""
    return replace(body, messages=()) if isinstance(body, ev.AgentEnd) else body
