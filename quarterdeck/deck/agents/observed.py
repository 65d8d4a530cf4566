"""An agent that somebody else started, and that tells us what it does: by hooks, by telemetry.

There is no process of ours and nothing is written to it. What it asks by a hook can be decided here: the request is held
until somebody decides, here or there; an answer to a request that nobody waits for any more goes nowhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quarterdeck.deck.agents.signal_reader import SignalReader, Tell
from quarterdeck.deck.interruption import CANCELLED
from quarterdeck.harness.base import Signal, Translator
from quarterdeck.harness.driver import Decision
from quarterdeck.kernel.gate import Gate, Gates, decision_on
from quarterdeck.log.session_writer import Durability


class ObservedAgent(SignalReader):
    """Of one session."""

    def __init__(self, translator: Translator, tell: Tell, now: Callable[[], float]) -> None:
        super().__init__(translator, tell, now)
        self._held: dict[str, asyncio.Future[Decision | None]] = {}
        self._asked: tuple[Gate, ...] = ()

    @property
    def is_held(self) -> bool:
        """Whether somebody waits for a decision."""
        return bool(self._held)

    async def decision_on(self, gate_id: str) -> Decision | None:
        """Waits until the gate is decided here; None when it was closed in another way."""
        held = self._held[gate_id] = asyncio.get_running_loop().create_future()
        try:
            return await held
        finally:
            self._held.pop(gate_id, None)

    def decide(self, gate_id: str, decision: Decision) -> None:
        """Whoever holds the agent's request answers it."""
        held = self._held.get(gate_id)
        if held is not None and not held.done():
            held.set_result(decision)

    def asks(self, gates: tuple[Gate, ...]) -> None:
        """These were opened by what is being heard."""
        self._asked += gates

    def hear_asking(self, signal: Signal) -> tuple[Gate, ...]:
        """Hears it, and gives what it asked, also if a rule has decided that already."""
        self._asked = ()
        self.hear(signal)
        return self._asked

    def hear_patiently(self, signal: Signal) -> None:
        """Hears what is no news to anybody, so that it can wait for what comes next."""
        self.durability = Durability.LAZY
        try:
            self.hear(signal)
        finally:
            self.durability = Durability.EAGER

    def is_held_for(self, gate_id: str) -> bool:
        """Whether somebody waits for the decision on this gate."""
        return gate_id in self._held

    def settle(self, gates: Gates) -> None:
        """Requests about gates that are closed for good are let go. What we decided ourselves is told by `decide`, which
        comes right after, with the reason."""
        if not self._held:
            return
        still = [gate.id for gate in gates.open]
        for gate_id, held in self._held.items():
            if gate_id in still or held.done():
                continue
            how = decision_on(gates, gate_id)
            if how is None:
                continue  # it is not even durable yet
            if how.by not in ("user", "rule"):
                held.set_result(None)
            elif how.status not in ("approved", "rejected", "answered"):
                held.set_result(CANCELLED)

    def release(self) -> None:
        """Nobody will decide here any more."""
        for held in self._held.values():
            if not held.done():
                held.set_result(None)
