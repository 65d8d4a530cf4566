"""What the engine's process says are events already. They are checked, and passed on.

Checked means: an event of the vocabulary, one that an agent may say, and none that would make two owners contradict each
other (a turn in a turn, the end of one that is not open). Gates get their names from the deck, so the engine's own are
left out and its `ref` stays. What the deck said first, in its own log, is not said twice.

The tracker knows what is open, for the one thing that the engine cannot tell: the end of its process.
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

#: Only the deck, or a process itself, can know these.
NOT_ITS_OWN = (
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
_ENDS = (ev.AgentEnd, ev.AgentAbort)
_OPENING = (ev.ApprovalRequired, ev.AskUser, ev.DialogRequired)
_RESOLVED = (ev.ApprovalResolved, ev.UserResponded, ev.DialogResolved)
_CALLS_OVER = (
    ev.ToolExecutionEnd,
    ev.ToolBlocked,
    ev.ToolKilled,
    ev.ToolSkippedForSteering,
    ev.ToolCallUnknown,
)


class BuiltinTranslator(BaseTranslator):
    """Reads the lines of quarterdeck/engine/process.py."""

    origins: Mapping[str, Origin] = {"stdout": "engine"}

    def __init__(self) -> None:
        super().__init__()
        self.readers |= {"stdout": self.read_event, "stdin": ignore}

    def read_event(self, data: Json) -> bool:
        """One event, or those of one batch. What of it cannot be read makes the line an unknown one; the rest counts."""
        if not isinstance(data, dict):
            return isinstance(data, str)  # a line of prose is known for what it is
        found = object_of(data)
        if "keep" in found:
            return True  # the driver answers it
        several = list_of(found, "events") if "type" not in found else [found]
        known = [self._read(one) for one in several]
        return bool(known) and all(known)

    def _read(self, data: Json) -> bool:
        try:
            body = msgspec.convert(data, UNION)
        except (msgspec.ValidationError, RecursionError):
            return False
        if isinstance(body, NOT_ITS_OWN):
            return False
        self._told(body)
        return True

    def is_server(self) -> bool:
        return True

    def _told(self, body: Body) -> None:
        if isinstance(body, ev.AgentReady):
            self.tracker.report_ready(
                body.native_session_id, body.model, body.version, CAPABILITIES.names, resumable=True
            )
        elif isinstance(body, ev.SteeringReceived):
            self._steering(body)
        elif self._fits(body):
            self._note(body)
            self.tracker.emit(_named_by_the_deck(body))

    def _steering(self, body: ev.SteeringReceived) -> None:
        """The deck has the text, and keeps it until it is read: prompt_received tells that of one that begins a turn. Only
        a refusal is news."""
        if body.status in ("rejected", "rejected_full"):
            why = "the agent has no room for it" if body.status == "rejected_full" else "a plugin refused it"
            self.tracker.emit(ev.DeliveryChanged(message_id=body.ref, status="failed", reason=why))

    def _fits(self, body: Body) -> bool:
        """Whether it can follow what came before. Of sub-agents nothing moves a turn."""
        if body.agent_path:
            return True
        if isinstance(body, ev.AgentStart):
            return not self.tracker.turn_id
        return bool(self.tracker.turn_id) if isinstance(body, _ENDS) else True

    def _note(self, body: Body) -> None:
        """Keeps the tracker in step."""
        tracker, path = self.tracker, body.agent_path
        if isinstance(body, ev.MessageDelta | ev.ThinkingDelta):
            kind = "text" if isinstance(body, ev.MessageDelta) else "thinking"
            tracker.messages.append(body.message_id, body.block, kind, body.delta, path)
        elif isinstance(body, ev.ResponseComplete | ev.MessageAborted):
            tracker.messages.discard(body.message_id)
        elif isinstance(body, ev.AgentStart) and not path:
            tracker.turn_id = body.turn_id or "turn"
        elif isinstance(body, _ENDS) and not path:
            self._turn_over()
        elif isinstance(body, ev.StateChange) and not path:
            tracker.activity = activity.joined(body.state, body.sub)
        else:
            self._note_work(body)

    def _note_work(self, body: Body) -> None:
        tracker, path = self.tracker, body.agent_path
        if isinstance(body, ev.ToolExecutionStart):
            tracker.calls[body.call_id] = OpenCall(body.name, path, running=True)
        elif isinstance(body, _CALLS_OVER):
            tracker.calls.pop(body.call_id, None)
        elif isinstance(body, _OPENING):
            tracker.gates[ref_of(body)] = OpenGate(_KINDS[type(body)], path, "")
        elif isinstance(body, _RESOLVED):
            tracker.gates.pop(body.ref, None)
        elif isinstance(body, ev.BackgroundStarted):
            tracker.background[body.id] = body.kind
        elif isinstance(body, ev.BackgroundEnded):
            tracker.background.pop(body.id, None)

    def _turn_over(self) -> None:
        """What the main agent had open is closed by the engine in so many words, or goes on in the background."""
        tracker = self.tracker
        tracker.turn_id = ""
        for ref in [ref for ref, gate in tracker.gates.items() if not gate.path and gate.kind != "dialog"]:
            del tracker.gates[ref]


_KINDS: dict[type[Body], GateKind] = {
    ev.ApprovalRequired: "approval",
    ev.AskUser: "question",
    ev.DialogRequired: "dialog",
}


def ref_of(body: Body) -> str:
    """The engine's own name of what is asked."""
    if isinstance(body, ev.ApprovalRequired):
        return body.gate.ref or body.gate.gate_id
    assert isinstance(body, ev.AskUser | ev.DialogRequired)
    return body.ref or body.gate_id


def _named_by_the_deck(body: Body) -> Body:
    if isinstance(body, ev.ApprovalRequired):
        return replace(body, gate=replace(body.gate, gate_id="", ref=ref_of(body)))
    if isinstance(body, ev.AskUser | ev.DialogRequired):
        return replace(body, gate_id="", ref=ref_of(body))
    if isinstance(body, ev.ApprovalResolved):
        return replace(body, gate_id="", ref=body.ref or body.gate_id, gate=None)
    if isinstance(body, ev.UserResponded | ev.DialogResolved):
        return replace(body, gate_id="", ref=body.ref or body.gate_id)
    return body


def builtin() -> BuiltinTranslator:
    return BuiltinTranslator()
