"""What no translator may ever bring about, whatever its agent sends (X-028 and X-040 as far as a view shows them)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quarterdeck import events as ev
from quarterdeck.events import Body
from quarterdeck.kernel.phase import FLAGS, WAITING
from quarterdeck.kernel.run import MACHINE as RUN
from quarterdeck.kernel.view import View, reconstructed


def violations(view: View) -> list[str]:
    """Every rule that this view breaks, in words."""
    return list(_violations(view))


def _violations(view: View) -> Iterator[str]:
    state = view.state
    phase, run, activity = state.phase.value, state.run.value, state.activity.value
    open_turn = state.turn.is_open
    if (phase in WAITING) != bool(state.gates.open):
        yield f"phase {phase} with {len(state.gates.open)} open gates"
    if run in RUN.flags["busy"] and phase not in ("streaming", *WAITING):
        yield f"run {run} under phase {phase}"
    if run in RUN.flags["busy"] and not open_turn:
        yield f"run {run} outside a turn"
    if phase in FLAGS["showSpinner"] and not open_turn and state.process.value != "starting":
        yield f"a spinner ({phase}) while nothing runs"
    if view.timeline.streaming != open_turn:
        yield f"timeline streaming {view.timeline.streaming}, turn open {open_turn}"
    if activity == "idle" and (open_turn or any(not gate.path for gate in state.gates.open)):
        yield "activity idle in an open turn or before an open gate"
    if activity.startswith("active") and not open_turn and not state.gates.open:
        yield f"activity {activity} with no turn and no gate"
    if state.process.value == "none" and activity not in ("exited", "initialized"):
        yield f"activity {activity} without a process"
    if reconstructed(view) != phase:
        yield f"phase {phase}, by the three sources {reconstructed(view)}"


def unclosed(bodies: Sequence[Body]) -> list[str]:
    """Turns of the main agent that were begun twice without an end between (X-024)."""
    open_turn, found = False, []
    for body in bodies:
        if body.agent_path:
            continue
        if isinstance(body, ev.AgentStart):
            if open_turn:
                found.append(f"{body.turn_id} begins while a turn is open")
            open_turn = True
        elif isinstance(body, ev.AgentEnd | ev.AgentAbort):
            open_turn = False
    return found
