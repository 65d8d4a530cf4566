"""The state of one session: every owner's cell side by side. Small, shareable, and enough to go on folding from.

A cell knows what moved it: the index, type and origin of the event that is its cause. The timeline stands beside the
state, not in it: an idle session drops its timeline and keeps these few hundred bytes.
"""

from __future__ import annotations

from msgspec import Struct

from quarterdeck.events import Plan, Todo
from quarterdeck.kernel.background import Background
from quarterdeck.kernel.gate import Gates
from quarterdeck.kernel.phase import Phase
from quarterdeck.kernel.process import Exit
from quarterdeck.kernel.profile import Failure, Profile
from quarterdeck.kernel.queue import Queue
from quarterdeck.kernel.turn import NO_TURN, Turn
from quarterdeck.kernel.usage import Ledger

#: Raised by a release that folds the same events to something else; see docs/library.md on refolding.
FOLD_VERSION = 2

#: The lifecycle of a session that does not exist yet.
NOT_OPENED = "none"

OWNERS = ("lifecycle", "process", "run", "activity", "phase", "signal")


class Cell(Struct, frozen=True, gc=False):
    """A value, since when it holds, and the event that brought it."""

    value: str
    since: int = 0
    index: int = 0
    type: str = ""
    origin: str = ""


class State(Struct, frozen=True, gc=False):
    """All owners but the timeline."""

    lifecycle: Cell = Cell(NOT_OPENED)
    process: Cell = Cell("none")
    run: Cell = Cell("idle")
    activity: Cell = Cell("initialized")
    phase: Cell = Cell("idle")
    signal: Cell = Cell("live")
    beneath: Phase = Phase()
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
    settled_index: int = 0
    todos: tuple[Todo, ...] = ()
    plan: Plan | None = None
    fold_version: int = FOLD_VERSION


EMPTY = State()
