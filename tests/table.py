"""Which values of the owners may stand side by side (X-028): facts/seeds.md 7.3 as the amendments and the design extend it.

Each row is a situation that a person could describe, and a view is legal if it fits one of them. The rows of 7.3 come
first, in its order and with its values; below them stand those that it lacks, each with the reason why it must be there.

`phase` is the one that lies beneath open gates, which show a waiting one instead; `in a turn` is streaming, and only there
the timeline streams too. `activity` goes without `active/`, and `waiting` is waiting_for_permission. `asks` is what the main
agent waits for: what it must ask to be in this situation and, with a question mark, what it may ask besides. A sub-agent's
gate shows in the phase and nowhere else, so it may be open in every situation in which a process is up.

It is the one rule: the search of the product model (tests/model), every recording by every choice of its sources
(tests/conformance/test_x_028.py) and everything that is fuzzed (tests/fuzz) are held to it. 7.3 also lets a reply stream
while it compacts; nothing of ours shows that, so it stands in no row.
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
its process is gone      | active    | none     | idle            | exited      | settled       |
it is suspended          | suspended | none     | idle            | exited      | settled       |
it is archived           | archived  | none     | idle            | exited      | settled       |
it failed for good       | error     | none     | idle            | exited      | settled       |

# X-028 as amended: approvals beside running tools.
an approval beside calls | active    | up       | executing_tools | waiting     | in a turn     | approval question? dialog?

# Design section 5: dialogs are gates too. They belong to an extension, not to the turn, so they may be open whatever the
# run does, and when no turn is open. 003 has one word for everything that a person is asked.
a dialog over a request  | active    | up       | running         | waiting     | in a turn     | dialog
a dialog over a reply    | active    | up       | streaming       | waiting     | in a turn     | dialog
a dialog over tools      | active    | up       | executing_tools | waiting     | in a turn     | dialog
a dialog, and no turn    | active    | up       | idle            | waiting     | any           | dialog

# 003 says thinking with the last result (PostToolUse); 001 leaves the tools with the next request (1-017). When these
# are two signals, both hold in between.
all calls are answered   | active    | up       | executing_tools | thinking    | in a turn     |

# Design section 9: 003 goes from waiting to tool_use for a no as for a yes, and the failed end follows; 001 resumes at once.
a refused call goes on   | active    | up       | running         | tool_use    | in a turn     |

# Design section 7: over the limit of running processes a start waits, visibly. X-002: before the first one, initialized.
its first start waits    | active    | none     | idle            | initialized | any, not done |
another start waits      | active    | none     | idle            | exited      | to come       |

# Somebody starts an agent that we only watch again, and asks it nothing yet; 000 leaves completed by a message alone.
it is started once more  | active    | starting | idle            | initialized | completed     |

# Design section 4: agent_ended moves the activity only; the process may live on and bind another session (/clear), or be
# about to fail: Claude Code says SessionEnd before any SessionStart when it cannot find the session to resume.
the agent is gone        | active    | up       | idle            | exited      | any           |
the agent never came     | active    | starting | idle            | exited      | any           |
"""

_SETTLED = frozenset({"idle", "completed", "paused", "stopped", "error"})
_TO_COME = frozenset({"creating", "streaming"})
PHASES = {
    "idle": frozenset({"idle"}),
    "completed": frozenset({"completed"}),
    "in a turn": frozenset({"streaming"}),
    "to come": _TO_COME,
    "settled": _SETTLED,
    "any": _SETTLED | _TO_COME,
    "any, not done": (_SETTLED | _TO_COME) - {"completed"},
}
WAITING = frozenset({"waiting_approval", "waiting_input"})


class Row(NamedTuple):
    """A situation."""

    name: str
    owners: tuple[str, str, str, str]
    phases: frozenset[str]
    in_turn: bool
    must: frozenset[str]
    may: frozenset[str]


class Shown(NamedTuple):
    """A view as the table sees it. `beneath` is the phase without the gates that lie over it."""

    lifecycle: str
    process: str
    run: str
    activity: str
    beneath: str
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
    """The name of a situation that this view shows; None when there is none."""
    shown = shown_by(view)
    return next((row.name for row in ROWS if fits(shown, row)), None)


def fits(shown: Shown, row: Row) -> bool:
    """Whether this is that situation: every column, and a waiting phase exactly while a gate is open."""
    asked = bool(shown.asks) or shown.of_sub_agents
    return (
        (shown.lifecycle, shown.process, shown.run, shown.activity) == row.owners
        and shown.beneath in row.phases
        and shown.streaming == row.in_turn
        and row.must <= shown.asks <= row.may
        and (not shown.of_sub_agents or shown.process == "up")
        and (shown.phase in WAITING if asked else shown.phase == shown.beneath)
    )


def shown_by(view: View) -> Shown:
    """The columns of the table."""
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
