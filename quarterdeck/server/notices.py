"""Which events are worth a line in the server's log: what begins, ends or fails, with its ids and never its words."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from quarterdeck import events as ev
from quarterdeck.events import Body, Event

log = logging.getLogger("quarterdeck.events")

#: Event → level and the fields that are told of it. None of them can hold what a person or an agent wrote.
_TOLD: dict[type[Body], tuple[int, tuple[str, ...]]] = {
    ev.SessionOpened: (logging.INFO, ("agent",)),
    ev.SessionResumed: (logging.INFO, ()),
    ev.SessionSuspended: (logging.INFO, ()),
    ev.SessionArchived: (logging.INFO, ("end_reason",)),
    ev.SessionFailed: (logging.ERROR, ("kind",)),
    ev.SessionDeleted: (logging.INFO, ()),
    ev.OwnerChanged: (logging.INFO, ("epoch",)),
    ev.ProcessStarting: (logging.INFO, ("pid",)),
    ev.ProcessError: (logging.WARNING, ()),
    ev.ProcessExited: (logging.INFO, ("code", "signal", "asked")),
    ev.AgentReady: (logging.INFO, ("version",)),
    ev.TurnFailed: (logging.WARNING, ("kind",)),
    ev.CommandFailed: (logging.WARNING, ("command_id",)),
    ev.StreamError: (logging.WARNING, ()),
    ev.ApprovalRequired: (logging.INFO, ()),
    ev.ApprovalResolved: (logging.INFO, ("gate_id", "status", "by")),
    ev.ViewRefolded: (logging.INFO, ("to",)),
}


def tell(events: Sequence[Event]) -> None:
    """Called with everything that becomes durable, so it looks at no more than the type of most."""
    for event in events:
        if type(event.body) in _TOLD:
            level, fields = _TOLD[type(event.body)]
            if log.isEnabledFor(level):
                log.log(level, "event", extra=_line(event, fields))


def _line(event: Event, fields: tuple[str, ...]) -> dict[str, Any]:
    line = {"session": event.session_id, "event": event.type, "index": event.index, "origin": event.origin}
    if isinstance(event.body, ev.ApprovalRequired):
        line["gate_id"] = event.body.gate.gate_id
    return line | {name: getattr(event.body, name) for name in fields}
