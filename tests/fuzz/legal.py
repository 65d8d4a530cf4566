"""Check views against the rules that no translator may break, whatever its agent sends.

These are the table of X-028 (tests/support/state_table.py), and the parts of X-040 that the table doesn't cover: a
spinner before a turn, and the turn behind a streaming timeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quarterdeck import events as ev
from quarterdeck.events import Body
from quarterdeck.kernel.phase import FLAGS
from quarterdeck.kernel.view import View, reconstructed
from tests.support.state_table import legal, shown_by


def violations(view: View) -> list[str]:
    """Describe every rule that this view breaks."""
    return list(_violations(view))


def _violations(view: View) -> Iterator[str]:
    state = view.state
    phase, open_turn = state.phase.value, state.turn.is_open
    if legal(view) is None:
        yield f"no row of the table fits {shown_by(view)}"
    if phase in FLAGS["showSpinner"] and not open_turn and state.process.value != "starting":
        yield f"a spinner ({phase}) while nothing runs"
    if view.timeline.streaming != open_turn:
        yield f"timeline streaming {view.timeline.streaming}, turn open {open_turn}"
    if reconstructed(view) != phase:
        yield f"phase {phase}, by the three sources {reconstructed(view)}"


def unclosed(bodies: Sequence[Body]) -> list[str]:
    """Return the turns of the main agent that were started while another was open (X-024)."""
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
