"""Import sessions of the five-state model: write events for each that fold to the status it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from quarterdeck import events as ev
from quarterdeck.events import Body
from quarterdeck.log.base import Log
from quarterdeck.log.session_writer import SessionWriter
from quarterdeck.log.sqlite.five_states import OldSession


async def import_sessions(log: Log, sessions: Sequence[OldSession], report: Callable[[int, int], None]) -> int:
    """Import the sessions that the log doesn't have yet. `report` gets the number of sessions done and in all.

    Each session is one append, so it is imported completely or not at all.

    Returns:
        how many sessions were imported.

    Raises:
        LogUnavailable: the log can't be written.
    """
    existing = {stored.row.session_id for stored in await log.sessions()}
    missing = [session for session in sessions if session.id not in existing]
    for done, session in enumerate(missing, 1):
        await _import_session(log, session)
        report(done, len(missing))
    return len(missing)


async def _import_session(log: Log, session: OldSession) -> None:
    now = session.created_at
    writer = SessionWriter(log, session.id, clock=lambda: now)
    name = _resume_value(session, "name", "customName", "sessionName")
    writer.write([ev.SessionOpened(agent=session.agent, cwd=session.cwd, name=name)], "file")
    now = session.last_active_at
    writer.write(_bodies_since_opened(session), "file")
    await writer.flush()


def _bodies_since_opened(session: OldSession) -> list[Body]:
    """Return the events after the opening: a process that exited, and what led to the status. The old row is kept, too."""
    bodies: list[Body] = [
        ev.PluginEvent(name="imported", payload=session.columns),
        ev.ProcessStarting(),
        ev.AgentReady(
            native_session_id=_resume_value(session, "sessionId", "session_id", "nativeSessionId", "acpSessionId"),
            version=session.agent_version,
            resumable=session.supports_resume,
        ),
        ev.ProcessExited(asked=True),
    ]
    if session.status == "suspended":
        bodies.append(ev.SessionSuspended(reason="imported"))
    elif session.status == "archived":
        bodies.append(
            ev.SessionArchived(end_reason="cancelled" if session.former_status == "cancelled" else "archived")
        )
    elif session.status == "error":
        bodies.append(ev.SessionFailed(message="The session had failed before it was imported"))
    return bodies


def _resume_value(session: OldSession, *names: str) -> str:
    """Return the first text under one of these names in the resume data, whose format depends on the agent."""
    try:
        data = msgspec.json.decode(session.resume_data.encode(), type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeError):
        return ""
    return next((value for name in names if isinstance(value := data.get(name), str) and value), "")
