"""Define the state of one session: the values of all owners side by side.

The state is small and sufficient to continue folding. The timeline isn't part of it, so a session that isn't in use can
drop its timeline and keep only a few hundred bytes.
"""

from __future__ import annotations

from msgspec import Struct

from quarterdeck.events import Plan, Todo
from quarterdeck.kernel.gate import Gates
from quarterdeck.kernel.phase import Phase
from quarterdeck.kernel.process import Exit
from quarterdeck.kernel.profile import Failure, Profile
from quarterdeck.kernel.queue import Queue
from quarterdeck.kernel.turn import NO_TURN, Background, Turn
from quarterdeck.kernel.usage import Ledger

#: Increase this if the same events fold to a different state. Stored snapshots of another version are discarded and the
#: events are folded again (docs/library.md, refolding).
FOLD_VERSION = 2

#: The lifecycle of a session that doesn't exist yet.
NOT_OPENED = "none"

#: The fields of State that are cells.
OWNERS = ("lifecycle", "process", "run", "activity", "phase", "signal")


class Cell(Struct, frozen=True, gc=False):
    """A value, the time since when it holds, and the event that caused it."""

    value: str
    since: int = 0
    index: int = 0
    type: str = ""
    origin: str = ""


# The stored names of renamed fields stay, so that snapshots written before the rename can be read.
class State(Struct, frozen=True, gc=False, rename={"base_phase": "beneath", "outcome_index": "settled_index"}):
    """Everything that is known about a session except its timeline."""

    lifecycle: Cell = Cell(NOT_OPENED)
    process: Cell = Cell("none")
    run: Cell = Cell("idle")
    activity: Cell = Cell("initialized")
    #: The phase that a user sees: a waiting phase while a gate is open, else the base phase.
    phase: Cell = Cell("idle")
    signal: Cell = Cell("live")
    #: The state of the phase machine without regard to open gates.
    base_phase: Phase = Phase()
    turn: Turn = NO_TURN
    gates: Gates = Gates()
    queue: Queue = ()
    background: Background = ()
    usage: Ledger = Ledger()
    profile: Profile = Profile()
    last_active_at: int = 0
    last_text: str = ""
    error: Failure | None = None
    exit: Exit | None = None
    #: Index of the last event that finished or failed a turn. A session is unread until a user has read up to it.
    outcome_index: int = 0
    todos: tuple[Todo, ...] = ()
    plan: Plan | None = None
    fold_version: int = FOLD_VERSION


EMPTY = State()
