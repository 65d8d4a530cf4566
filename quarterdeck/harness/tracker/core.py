"""What is open in a session, the events not yet taken, and the activity that follows."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.events import Body
from quarterdeck.harness.tracker.streams import Streams
from quarterdeck.kernel.activity import COMPACTING, STATES, THINKING, TOOL_USE, WAITING, split

Path: TypeAlias = tuple[str, ...]
GateKind: TypeAlias = Literal["approval", "question", "dialog"]
BackgroundKind: TypeAlias = Literal["shell", "subagent"]


def _change(value: str) -> Body:
    state, sub = split(value)
    return ev.StateChange(state=state, sub=sub)  # pyright: ignore[reportArgumentType]


#: What says each activity; bodies are never changed, so one for all sessions is enough.
_CHANGES = {value: _change(value) for value in STATES}


class OpenGate(Struct):
    """What is asked now. `call_id` names the call that waits."""

    kind: GateKind
    path: Path
    call_id: str


class OpenCall(Struct):
    """A call that was announced; `running` once it runs. `target` is what it works on, in one line.

    A call that was refused counts as running too, until its end is told or the model answers (`refusal` is over then).
    """

    name: str
    path: Path
    running: bool = False
    refusal: Literal["", "open", "over"] = ""
    output: str = ""
    target: str = ""

    @property
    def title(self) -> str:
        return self.target or self.name


class Core:
    """Everything that is open in one session, and the events not yet taken."""

    def __init__(self) -> None:
        #: What was told and not yet taken.
        self.out: list[Body] = []
        self._turns = 0
        self.turn = ""
        self.ready_seen = False
        self.exited = False
        self.process_seen = False
        self.stop_asked = False
        self.compacting = False
        self.lingering = False
        self.compaction_turn = False
        self.calls: dict[str, OpenCall] = {}
        self.gates: dict[str, OpenGate] = {}
        self.background: dict[str, BackgroundKind] = {}
        self.texts = Streams()
        self.activity = "initialized"
        self.signal_now = "live"

    def take(self) -> list[Body]:
        """The events since the last time."""
        out = self.out
        if out:
            self.out = []
        return out

    def write(self, body: Body) -> None:
        """An event that the book has no word for."""
        self.out.append(body)

    def _settle(self) -> None:
        """Says the activity if it is another one now."""
        if self.exited:
            value = "exited"
        elif self.compacting:
            value = COMPACTING
        elif self.gates and self.is_held():
            value = WAITING
        elif self.turn:
            value = TOOL_USE if self.lingering or (self.calls and self.runs_calls()) else THINKING
        else:
            value = "idle" if self.ready_seen else "initialized"
        if value != self.activity:
            self.activity = value
            self.out.append(_CHANGES[value])

    def is_held(self) -> bool:
        """Whether the main agent waits for a person."""
        for gate in self.gates.values():
            if not gate.path:
                return True
        return False

    def runs_calls(self) -> bool:
        """Whether the main agent waits for a call that runs; one in the background is not waited for."""
        for name, call in self.calls.items():
            if call.running and not call.path and call.refusal != "over" and name not in self.background:
                return True
        return False

    def _moves_on(self) -> None:
        """The main agent does something else than compact (003 leaves it by a call, an ask or a reply). How the compaction
        ended was not seen, so it is not told."""
        self.compacting = self.compaction_turn = False

    def _answers(self) -> None:
        """The model answers: it does not compact, no tool lingers, and what was refused is over for it."""
        self.compacting = self.compaction_turn = self.lingering = False
        for call in self.calls.values() if self.calls else ():
            if call.refusal:
                call.refusal = "over"
        self._settle()

    def live(self) -> None:
        """Live evidence: an agent that was taken for gone, or never said that it is ready, is plainly there."""
        if self.exited or not self.ready_seen:
            self.ready()

    def _forget(self) -> None:
        """All but the texts: whoever forgets has cut them off."""
        self.turn = ""
        self.compacting = self.lingering = self.compaction_turn = False
        self.calls.clear()
        self.gates.clear()
        self.background.clear()

    def ready(
        self,
        native_session_id: str = "",
        model: str = "",
        version: str = "",
        capabilities: tuple[str, ...] = (),
        resumable: bool | None = None,
    ) -> None:
        """The agent answers. Said again when it has another session."""
        if self.exited or not self.ready_seen:
            self.exited, self.ready_seen = False, True
            # agent_ready itself makes an agent that is not at work idle
            self.activity = "idle" if self.activity in ("initialized", "exited") else self.activity
        self.out.append(
            ev.AgentReady(
                native_session_id=native_session_id,
                model=model,
                version=version,
                capabilities=capabilities,
                resumable=resumable,
            )
        )
        self._settle()

    def begin(self, turn_id: str = "") -> None:
        """A turn is open from here on; begun twice it is begun once."""
        if self.exited or not self.ready_seen:
            self.ready()
        if self.turn:
            return
        self._turns += 1
        self.turn = turn_id or f"turn-{self._turns}"
        self.out.append(ev.AgentStart(turn_id=self.turn))
        self._settle()

    def signal(self, value: Literal["live", "stale", "lost"], reason: str = "") -> None:
        """How good the evidence is."""
        if value != self.signal_now:
            self.signal_now = value
            self.out.append(ev.SignalChanged(signal=value, reason=reason))

    def notice(self, text: str, level: Literal["info", "warning", "error"] = "info", source: str = "") -> None:
        """A line for people."""
        if text:
            self.out.append(ev.Notice(text=text, level=level, source=source, turn_id=self.turn or None))
