"""Check the events of the engine's process and pass them on.

The engine writes canonical events, so there is nothing to translate. They are checked: each must be an event of the
vocabulary, one that an agent may report, and one that fits what came before (no turn inside a turn, no end of a turn that
isn't open). Gates get their ids from the deck, so the engine's own ids are removed and only its `ref` stays. What the deck
recorded itself isn't recorded twice.

The tracker is kept in step with these events for the one thing that the engine can't report: the end of its process.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import Body, Json, Origin
from quarterdeck.events.catalogue import UNION
from quarterdeck.harness.base import BaseTranslator, ignore, list_of, object_of
from quarterdeck.harness.builtin.capabilities import CAPABILITIES
from quarterdeck.harness.tracker import GateKind, OpenCall, OpenGate
from quarterdeck.kernel import activity

#: Events that only the deck or the process itself can report.
RESERVED_EVENTS = (
    ev.SessionOpened,
    ev.SessionResumed,
    ev.SessionSuspended,
    ev.SessionArchived,
    ev.SessionFailed,
    ev.SessionMarked,
    ev.SessionDeleted,
    ev.OwnerChanged,
    ev.ProcessStarting,
    ev.ProcessError,
    ev.ProcessExited,
    ev.SignalChanged,
    ev.PromptQueued,
    ev.PromptEdited,
    ev.DeliveryChanged,
    ev.TurnContinued,
    ev.TurnRetried,
    ev.TurnRestored,
    ev.SettingChanged,
    ev.ChangesUpdated,
    ev.SubAgentEvent,
    ev.CommandReceipt,
    ev.ViewRefolded,
)
_TURN_ENDS = (ev.AgentEnd, ev.AgentAbort)
_GATE_OPENED = (ev.ApprovalRequired, ev.AskUser, ev.DialogRequired)
_GATE_CLOSED = (ev.ApprovalResolved, ev.UserResponded, ev.DialogResolved)
_CALL_ENDED = (
    ev.ToolExecutionEnd,
    ev.ToolBlocked,
    ev.ToolKilled,
    ev.ToolSkippedForSteering,
    ev.ToolCallUnknown,
)
_GATE_KINDS: dict[type[Body], GateKind] = {
    ev.ApprovalRequired: "approval",
    ev.AskUser: "question",
    ev.DialogRequired: "dialog",
}


class BuiltinTranslator(BaseTranslator):
    """Reads the lines of `quarterdeck/engine/process.py`."""

    origins: Mapping[str, Origin] = {"stdout": "engine"}

    def __init__(self) -> None:
        super().__init__()
        self.readers |= {"stdout": self.read_stdout, "stdin": ignore}

    def read_stdout(self, data: Json) -> bool:
        """Read one event or a batch of them. Events that can't be read make the line unknown; the others count."""
        if not isinstance(data, dict):
            return isinstance(data, str)  # A line of text, printed by a library.
        line = object_of(data)
        if "keep" in line:
            return True  # A request to store events, which the driver answers.
        batch = [line] if "type" in line else list_of(line, "events")
        known = [self._read_event(item) for item in batch]
        return bool(known) and all(known)

    def _read_event(self, data: Json) -> bool:
        try:
            body = msgspec.convert(data, UNION)
        except (msgspec.ValidationError, RecursionError):
            return False
        if isinstance(body, RESERVED_EVENTS):
            return False
        if isinstance(body, ev.AgentReady):
            session_id, model, version = body.native_session_id, body.model, body.version
            self.tracker.report_ready(session_id, model, version, CAPABILITIES.names, resumable=True)
        elif isinstance(body, ev.SteeringReceived):
            self._record_rejected_text(body)
        elif self._fits(body):
            self._update_tracker(body)
            self.tracker.emit(_without_gate_ids(body))
        return True

    def is_server(self) -> bool:
        return True

    def _record_rejected_text(self, body: ev.SteeringReceived) -> None:
        """Record that the engine rejected a text. The deck has recorded the text, and that it waits, itself."""
        if body.status in ("rejected", "rejected_full"):
            reason = "the agent's queue is full" if body.status == "rejected_full" else "a plugin rejected it"
            self.tracker.emit(ev.DeliveryChanged(message_id=body.ref, status="failed", reason=reason))

    def _fits(self, body: Body) -> bool:
        """Return whether an event can follow what came before. Events of sub-agents move no turn."""
        if body.agent_path:
            return True
        if isinstance(body, ev.AgentStart):
            return not self.tracker.turn_id
        return bool(self.tracker.turn_id) if isinstance(body, _TURN_ENDS) else True

    def _update_tracker(self, body: Body) -> None:
        tracker, path = self.tracker, body.agent_path
        if isinstance(body, ev.MessageDelta | ev.ThinkingDelta):
            kind = "text" if isinstance(body, ev.MessageDelta) else "thinking"
            tracker.messages.append(body.message_id, body.block, kind, body.delta, path)
        elif isinstance(body, ev.ResponseComplete | ev.MessageAborted):
            tracker.messages.discard(body.message_id)
        elif isinstance(body, ev.AgentStart) and not path:
            tracker.turn_id = body.turn_id or "turn"
        elif isinstance(body, _TURN_ENDS) and not path:
            self._end_turn()
        elif isinstance(body, ev.StateChange) and not path:
            tracker.activity = activity.joined(body.state, body.sub)
        elif isinstance(body, ev.ToolExecutionStart):
            tracker.calls[body.call_id] = OpenCall(body.name, path, running=True)
        elif isinstance(body, _CALL_ENDED):
            tracker.calls.pop(body.call_id, None)
        elif isinstance(body, _GATE_OPENED):
            tracker.gates[gate_ref(body)] = OpenGate(_GATE_KINDS[type(body)], path, "")
        elif isinstance(body, _GATE_CLOSED):
            tracker.gates.pop(body.ref, None)
        elif isinstance(body, ev.BackgroundStarted):
            tracker.background[body.id] = body.kind
        elif isinstance(body, ev.BackgroundEnded):
            tracker.background.pop(body.id, None)

    def _end_turn(self) -> None:
        """Close the turn. The engine ends its calls with events of their own, or moves them to the background."""
        tracker = self.tracker
        tracker.turn_id = ""
        for ref in [ref for ref, gate in tracker.gates.items() if not gate.path and gate.kind != "dialog"]:
            del tracker.gates[ref]


def gate_ref(body: Body) -> str:
    """Return the engine's own reference of a gate that an event opens."""
    if isinstance(body, ev.ApprovalRequired):
        return body.gate.ref or body.gate.gate_id
    assert isinstance(body, ev.AskUser | ev.DialogRequired)
    return body.ref or body.gate_id


def _without_gate_ids(body: Body) -> Body:
    """Remove the engine's gate ids, because the deck assigns them. The reference stays."""
    if isinstance(body, ev.ApprovalRequired):
        return replace(body, gate=replace(body.gate, gate_id="", ref=gate_ref(body)))
    if isinstance(body, ev.AskUser | ev.DialogRequired):
        return replace(body, gate_id="", ref=gate_ref(body))
    if isinstance(body, ev.ApprovalResolved):
        return replace(body, gate_id="", ref=body.ref or body.gate_id, gate=None)
    if isinstance(body, ev.UserResponded | ev.DialogResolved):
        return replace(body, gate_id="", ref=body.ref or body.gate_id)
    return body


def builtin() -> BuiltinTranslator:
    """Return a new translator for one engine process."""
    return BuiltinTranslator()
