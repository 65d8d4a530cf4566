"""An agent that somebody else started, and that tells us what it does: by hooks, by telemetry.

There is no process of ours and nothing is written to it. What it asks by a hook can be decided here: the request is held
until somebody decides, here or there; an answer to a request that nobody waits for any more goes nowhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quarterdeck.deck.ear import Ear, Tell
from quarterdeck.harness.base import Translator
from quarterdeck.harness.drive import Decision
from quarterdeck.kernel.gate import Gates


class Observation(Ear):
    """Of one session."""

    def __init__(self, translator: Translator, tell: Tell, now: Callable[[], float]) -> None:
        super().__init__(translator, tell, now)
        self._held: dict[str, asyncio.Future[Decision | None]] = {}

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

    def settle(self, gates: Gates) -> None:
        """Requests about gates that are not open any more are let go."""
        still = {gate.id for gate in gates.open}
        for gate_id, held in self._held.items():
            if gate_id not in still and not held.done():
                held.set_result(None)
