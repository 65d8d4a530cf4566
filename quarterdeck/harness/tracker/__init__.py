"""The book: what a translator writes in. It turns "what happened" into canonical events, whole and in step.

A translator says what it understood (a turn began, a call started, an approval is asked). The book keeps what is open
(turn, calls, gates, texts), writes the events with their ids, puts in what agents leave out (a turn that nobody
announced, a text's beginning, the closing of gates that the agent moved past), and after every word says the activity
that follows: so the owners of a session never contradict each other, whatever an agent sends.

The activity, strongest first (seed 003):
    exited · initialized (not ready yet) · compacting · waiting_for_permission (the main agent asks a person) ·
    tool_use (a call runs, or `lingering`) · thinking (a turn is open) · idle
`lingering` is Codex's rule that tools stay in use until the model is seen to answer again.
"""

from __future__ import annotations

from typing import cast

from quarterdeck.harness.tracker.core import GateKind, OpenCall, OpenGate, Path
from quarterdeck.harness.tracker.turns import Turns
from quarterdeck.kernel import activity
from quarterdeck.kernel.view import View

__all__ = ["Book", "GateKind", "OpenCall", "OpenGate", "Path"]


class Book(Turns):
    """The whole book: core → gates → calls, texts, context → turns, one file each."""

    def restore(self, view: View) -> None:
        """What the view says is open is open."""
        state = view.state
        self._forget()
        self.texts.clear()
        self.turn = state.turn.id
        # a turn is at least one event, so no number that was given out already comes again
        self._turns = view.index
        self.ready_seen = state.process.value == "up"
        self.exited = state.activity.value == "exited"
        self.activity = state.activity.value
        self.compacting = state.activity.value == activity.COMPACTING
        self.signal_now = state.signal.value
        for call in state.turn.calls:
            self.calls[call.id] = OpenCall(call.name, (), running=True)
        for gate in state.gates.open:
            self.gates[gate.ref or gate.id] = OpenGate(gate.kind, gate.path, gate.call_id)
            if gate.call_id and gate.call_id not in self.calls:
                # the call that waits for its answer does not run, but it is open
                tool = cast("dict[str, str]", gate.payload).get("tool", "")
                self.calls[gate.call_id] = OpenCall(tool, gate.path)
        for task in state.background:
            self.background[task.id] = "subagent" if task.kind == "subagent" else "shell"
