"""Sessions of the five-state model become sessions of ours: events that fold to the status that each of them has."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from quarterdeck import events as ev
from quarterdeck.events import Body
from quarterdeck.log.base import Log
from quarterdeck.log.session_writer import SessionWriter
from quarterdeck.log.sqlite.five_states import OldSession


async def imported(log: Log, sessions: Sequence[OldSession], told: Callable[[int, int], None]) -> int:
    """Adds those that the log does not hold yet; returns how many. Each is one append: whole, or not there."""
    held = {stored.row.session_id for stored in await log.sessions()}
    missing = [one for one in sessions if one.id not in held]
    for place, one in enumerate(missing, 1):
        await _written(log, one)
        told(place, len(missing))
    return len(missing)


async def _written(log: Log, one: OldSession) -> None:
    times = iter((one.created_at, one.last_active_at))
    record = SessionWriter(log, one.id, clock=lambda: next(times))
    record.write([_opened(one)], "file")
    record.write(_since(one), "file")
    await record.flush()


def _opened(one: OldSession) -> Body:
    return ev.SessionOpened(agent=one.agent, cwd=one.cwd, name=_found(one, "name", "customName", "sessionName"))


def _since(one: OldSession) -> list[Body]:
    """It had a process, which is gone; then whatever brought its status. Its old row is kept with it."""
    bodies: list[Body] = [
        ev.PluginEvent(name="imported", payload=one.columns),
        ev.ProcessStarting(),
        ev.AgentReady(
            native_session_id=_found(one, "sessionId", "session_id", "nativeSessionId", "acpSessionId"),
            version=one.agent_version,
            resumable=one.supports_resume,
        ),
        ev.ProcessExited(asked=True),
    ]
    if one.status == "suspended":
        bodies.append(ev.SessionSuspended(reason="imported"))
    elif one.status == "archived":
        bodies.append(ev.SessionArchived(end_reason="cancelled" if one.was == "cancelled" else "archived"))
    elif one.status == "error":
        bodies.append(ev.SessionFailed(message="It had failed before it was imported"))
    return bodies


def _found(one: OldSession, *names: str) -> str:
    """What the resume data says under one of these names; it holds whatever its agent liked."""
    try:
        data = msgspec.json.decode(one.resume_data.encode(), type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeError):
        return ""
    return next((value for name in names if isinstance(value := data.get(name), str) and value), "")
