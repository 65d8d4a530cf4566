"""What a person is asked: calls that are held for an approval, and questions of tools. Each waits for one decision."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from quarterdeck import events as ev
from quarterdeck.engine.errors import QuestionWithdrawn
from quarterdeck.engine.plugins.base import Emit, Hold
from quarterdeck.events import Body, GateRequest, GateStatus, Json

if TYPE_CHECKING:
    from quarterdeck.engine.batch import CallRun
    from quarterdeck.engine.turn import Turn


class Held:
    """A call that waits for a yes or no."""

    __slots__ = ("gate", "hold", "run", "timer", "turn")

    def __init__(self, turn: Turn, run: CallRun, hold: Hold, gate: GateRequest) -> None:
        self.turn = turn
        self.run = run
        self.hold = hold
        self.gate = gate
        self.timer: asyncio.TimerHandle | None = None

    @property
    def gate_id(self) -> str:
        return self.gate.gate_id

    def resolved(self, status: GateStatus, by: str = "", reason: str = "") -> Body:
        return self.turn.made(
            ev.ApprovalResolved,
            status=status,
            gate_id=self.gate.gate_id,
            ref=self.gate.ref,
            by=by,
            reason=reason,
            gate=self.gate,
        )

    def told(self, status: str, option: str) -> list[Body]:
        """What the plugin that held it has to say about the decision."""
        if self.hold.decided is None:
            return []
        try:
            answer = self.hold.decided(status, option)
        except Exception as error:
            return [
                ev.Notice(level="error", text=f"after a decision: {type(error).__name__}: {error}", source="plugin")
            ]
        emits = [answer] if isinstance(answer, Emit) else answer or ()
        return [one.event for one in emits]


class Asked:
    """A question of a tool."""

    __slots__ = ("answer", "gate_id", "ref", "turn")

    def __init__(self, turn: Turn, gate_id: str, ref: str) -> None:
        self.turn = turn
        self.gate_id = gate_id
        self.ref = ref
        self.answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()

    def withdrawn(self) -> Body:
        """Nobody is asked any more; a call that goes on without its turn learns it."""
        if not self.answer.done():
            self.answer.set_exception(QuestionWithdrawn())
            self.answer.exception()  # looked at: most calls that asked are gone by now
        return self.turn.made(ev.UserResponded, gate_id=self.gate_id, ref=self.ref, status="withdrawn")


Open: TypeAlias = Held | Asked


class OpenGates:
    """The gates of one agent that are open, by name; sub-agents' too."""

    __slots__ = ("_open", "count")

    def __init__(self) -> None:
        self._open: dict[str, Open] | None = None
        self.count = 0

    def next_name(self) -> str:
        self.count += 1
        return f"g{self.count}"

    def add(self, one: Open) -> None:
        if self._open is None:
            self._open = {}
        self._open[one.gate_id] = one

    def drop(self, one: Open) -> None:
        if self._open is not None:
            self._open.pop(one.gate_id, None)
        if isinstance(one, Held) and one.timer is not None:
            one.timer.cancel()

    def find(self, gate_id: str) -> Open | None:
        """By our name, or by the agent's own (a ref, the id of the call)."""
        for one in (self._open or {}).values():
            if gate_id in (one.gate_id, one.gate.ref if isinstance(one, Held) else one.ref):
                return one
            if isinstance(one, Held) and one.gate.call_id == gate_id:
                return one
        return None

    def held(self, path: tuple[str, ...] | None = None) -> list[Held]:
        """Calls that wait, of one agent or of all."""
        return self._of(lambda one: isinstance(one, Held) and (path is None or one.turn.path == path))  # type: ignore[return-value]

    def asked(self, path: tuple[str, ...] | None = None) -> list[Asked]:
        return self._of(lambda one: isinstance(one, Asked) and (path is None or one.turn.path == path))  # type: ignore[return-value]

    def _of(self, chosen: Callable[[Open], bool]) -> list[Open]:
        return [one for one in (self._open or {}).values() if chosen(one)]
