"""List which values of the owners may occur together (X-028).

Each row is a situation that a user could describe. A view is legal if it matches one of them. The rows of the source
document come first, in its order; below them are the rows that it lacks, each with its reason.

The column `phase` is the base phase, which ignores open gates. `in a turn` means streaming, and only there the timeline is
streaming too. `activity` omits `active/`, and `waiting` is waiting_for_permission. `asks` lists the gates of the main
agent that must be open in this situation and, with a question mark, those that may be open as well. A sub-agent's gate
only affects the phase that is shown, so it may be open in every situation with a running process.

This is the only definition: the search of the product model (tests/model), every recording with every choice of its
sources (tests/conformance/test_x_028.py) and all fuzz tests (tests/fuzz) check against it. The source document also
allows a streaming reply during compaction; no source of ours shows that, so there is no row for it.
"""

from __future__ import annotations

from typing import NamedTuple

from quarterdeck.kernel.view import View

TABLE = """
situation                | lifecycle | process  | run             | activity    | phase         | asks
there is no session      | none      | none     | idle            | initialized | idle          |
its process starts       | active    | starting | idle            | initialized | any, not done |
it is ready, or done     | active    | up       | idle            | idle        | any           |
a request is out         | active    | up       | running         | thinking    | in a turn     |
a reply comes            | active    | up       | streaming       | thinking    | in a turn     |
it compacts              | active    | up       | running         | compacting  | in a turn     | dialog?
tools run                | active    | up       | executing_tools | tool_use    | in a turn     |
a question is open       | active    | up       | executing_tools | waiting     | in a turn     | question approval? dialog?
a call is held           | active    | up       | idle            | waiting     | in a turn     | approval dialog?
its process is gone      | active    | none     | idle            | exited      | no turn       |
it is suspended          | suspended | none     | idle            | exited      | no turn       |
it is archived           | archived  | none     | idle            | exited      | no turn       |
it failed for good       | error     | none     | idle            | exited      | no turn       |

# X-028 as amended: approvals beside running tools.
an approval beside calls | active    | up       | executing_tools | waiting     | in a turn     | approval question? dialog?

# Dialogs are gates too. They belong to an extension and not to the turn, so they may be open in any state of the run, and
# also without a turn. 003 has one activity for every kind of gate.
a dialog over a request  | active    | up       | running         | waiting     | in a turn     | dialog
a dialog over a reply    | active    | up       | streaming       | waiting     | in a turn     | dialog
a dialog over tools      | active    | up       | executing_tools | waiting     | in a turn     | dialog
a dialog, and no turn    | active    | up       | idle            | waiting     | any           | dialog

# In 003 the last result (PostToolUse) leads to thinking; in 001 the next request leaves executing_tools (1-017). If these
# are two signals, both hold between them.
all calls are answered   | active    | up       | executing_tools | thinking    | in a turn     |

# 003 moves from waiting to tool_use for a rejection as for an approval, and the failed end of the call follows. 001 resumes
# at once.
a refused call goes on   | active    | up       | running         | tool_use    | in a turn     |

# Over the limit of running processes a start is queued, and this is shown. Before the first start the activity is
# initialized (X-002).
its first start waits    | active    | none     | idle            | initialized | any, not done |
another start waits      | active    | none     | idle            | exited      | to come       |

# A user starts an observed agent again and hasn't sent a prompt yet. In 000 only a message leaves completed.
it is started once more  | active    | starting | idle            | initialized | completed     |

# agent_ended changes only the activity. The process may continue with another session (/clear), or be about to fail: Claude
# Code sends SessionEnd before any SessionStart if it can't find the session to resume.
the agent is gone        | active    | up       | idle            | exited      | any           |
the agent never came     | active    | starting | idle            | exited      | any           |
"""

_NO_TURN = frozenset({"idle", "completed", "paused", "stopped", "error"})
_TO_COME = frozenset({"creating", "streaming"})
PHASES = {
    "idle": frozenset({"idle"}),
    "completed": frozenset({"completed"}),
    "in a turn": frozenset({"streaming"}),
    "to come": _TO_COME,
    "no turn": _NO_TURN,
    "any": _NO_TURN | _TO_COME,
    "any, not done": (_NO_TURN | _TO_COME) - {"completed"},
}
WAITING = frozenset({"waiting_approval", "waiting_input"})


class Row(NamedTuple):
    """One situation."""

    name: str
    owners: tuple[str, str, str, str]
    phases: frozenset[str]
    in_turn: bool
    must: frozenset[str]
    may: frozenset[str]


class Shown(NamedTuple):
    """The columns of the table for one view."""

    lifecycle: str
    process: str
    run: str
    activity: str
    base_phase: str
    phase: str
    streaming: bool
    asks: frozenset[str]
    of_sub_agents: bool


def _read(line: str) -> Row:
    name, lifecycle, process, run, activity, phases, asks = (part.strip() for part in line.split("|"))
    must = frozenset(kind for kind in asks.split() if not kind.endswith("?"))
    may = frozenset(kind.rstrip("?") for kind in asks.split())
    return Row(name, (lifecycle, process, run, activity), PHASES[phases], phases == "in a turn", must, may)


ROWS = tuple(_read(line) for line in TABLE.strip().splitlines()[1:] if line and not line.startswith("#"))


def legal(view: View) -> str | None:
    """Return the name of the situation that this view matches, or None."""
    shown = shown_by(view)
    return next((row.name for row in ROWS if fits(shown, row)), None)


def fits(shown: Shown, row: Row) -> bool:
    """Return whether every column matches, and whether a waiting phase is shown exactly while a gate is open."""
    asked = bool(shown.asks) or shown.of_sub_agents
    return (
        (shown.lifecycle, shown.process, shown.run, shown.activity) == row.owners
        and shown.base_phase in row.phases
        and shown.streaming == row.in_turn
        and row.must <= shown.asks <= row.may
        and (not shown.of_sub_agents or shown.process == "up")
        and (shown.phase in WAITING if asked else shown.phase == shown.base_phase)
    )


def shown_by(view: View) -> Shown:
    """Return the columns of the table for this view."""
    state = view.state
    return Shown(
        state.lifecycle.value,
        state.process.value,
        state.run.value,
        state.activity.value.removeprefix("active/").removesuffix("_for_permission"),
        state.base_phase.value,
        state.phase.value,
        view.timeline.streaming,
        frozenset([gate.kind for gate in state.gates.open if not gate.path]),
        any(gate.path for gate in state.gates.open),
    )
