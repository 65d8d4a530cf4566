"""Define which event changes which part of the state: one handler per event type, named after it.

Only handlers change several owners at once. A handler passes to each owner what it needs (to a machine the event's
name and the guard that holds, to the gates their request, to the ledger its tokens) and returns one new state.

There are three tables of handlers:
  MOVES           events of the main agent in an active session
  SUB_MOVES       events with an agent_path: they change only gates (and so the phase), background work and usage
  INACTIVE_MOVES  events of the main agent in a suspended, archived or failed session, where no event may claim that
                  an agent is alive

How events become 000's inputs is in the handlers, as `phase.step(..., "input", guard)`. While a gate is open, a waiting
phase is shown instead of the base phase (phase.py).
"""

from __future__ import annotations

from quarterdeck.kernel.moves import context, gate, session, tool, turn
from quarterdeck.kernel.moves.base import INACTIVE_MOVES, MOVES, SUB_MOVES, Move

__all__ = ["INACTIVE_MOVES", "MOVES", "SUB_MOVES", "Move", "context", "gate", "session", "tool", "turn"]
