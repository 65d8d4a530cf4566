"""Read an agent that the user started elsewhere and that reports to the deck, by hooks or telemetry.

The deck has no process for it and writes nothing to it. But a hook can ask for a decision: its HTTP request stays open until
a person or a rule decides here, or the user decides in the agent's terminal. A decision for a request that is no longer open
has no effect.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quarterdeck.deck.agents.signal_reader import SignalReader
from quarterdeck.deck.approvals import CANCELLED
from quarterdeck.harness.base import Translator
from quarterdeck.harness.driver import Decision
from quarterdeck.kernel.gate import Gates, decision_on

if TYPE_CHECKING:
    from quarterdeck.deck.session import Session


class ObservedAgent(SignalReader):
    """An agent that the user started, in one session."""

    def __init__(self, session: Session, translator: Translator) -> None:
        super().__init__(session, translator)
        #: Open hook requests that wait for a decision, by gate id.
        self._pending: dict[str, asyncio.Future[Decision | None]] = {}

    @property
    def has_pending_hooks(self) -> bool:
        """Whether any hook request waits for a decision."""
        return bool(self._pending)

    def is_pending(self, gate_id: str) -> bool:
        """Return whether a hook request waits for the decision on this gate."""
        return gate_id in self._pending

    async def wait_for_decision(self, gate_id: str) -> Decision | None:
        """Wait until the gate is decided here. Return None if it was closed in another way, or `release_all` was called."""
        pending = self._pending[gate_id] = asyncio.get_running_loop().create_future()
        try:
            return await pending
        finally:
            self._pending.pop(gate_id, None)

    def decide(self, gate_id: str, decision: Decision) -> None:
        """Answer the hook request for this gate, if one is pending."""
        pending = self._pending.get(gate_id)
        if pending is not None and not pending.done():
            pending.set_result(decision)

    def on_gates_changed(self, gates: Gates) -> None:
        """Answer hook requests whose gates were closed without a decision from here, such as in the agent's terminal."""
        if not self._pending:
            return
        open_ids = [gate.id for gate in gates.open]
        for gate_id, pending in self._pending.items():
            if gate_id in open_ids or pending.done():
                continue
            closed = decision_on(gates, gate_id)
            if closed is None:
                continue  # The event that opens the gate isn't durable yet.
            if closed.by not in ("user", "rule"):
                pending.set_result(None)
            elif closed.status not in ("approved", "rejected", "answered"):
                pending.set_result(CANCELLED)
            # For a real decision, `decide` is called right after this, with the reason.

    def release_all(self) -> None:
        """Resolve every pending hook with no decision, so each agent falls back to its own prompt."""
        for pending in self._pending.values():
            if not pending.done():
                pending.set_result(None)
