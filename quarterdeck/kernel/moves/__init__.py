"""Which event moves which owner: one handler per event type, named after it, each a pure step of the state.

This is the only place where owners meet. A handler hands each owner what it needs (the table the event's name and the
guard that holds, the gates their request, the ledger its tokens) and puts the cells that changed into one new state.

Three tables come out of it:
  MOVES      the main agent of a session in use
  SUB_MOVES  events with an agent_path: they move only gates (and so the phase), background and usage
  AT_REST    a suspended, archived or failed session: nothing that claims life moves it any more

How the events become 000's inputs is written in the handlers, as `phase.step(..., "input", guard)`; design section 4 has
the same as a table. An open gate shows a waiting phase whatever lies beneath (phase.py).
"""

from __future__ import annotations

from quarterdeck.kernel.moves import context, gate, session, tool, turn
from quarterdeck.kernel.moves.base import AT_REST, MOVES, SUB_MOVES, Move

__all__ = ["AT_REST", "MOVES", "SUB_MOVES", "Move", "context", "gate", "session", "tool", "turn"]
