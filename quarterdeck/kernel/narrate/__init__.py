"""How each event is told in the timeline: 004's `handleServerEvent` as a table of one small function per event type.

A teller takes the timeline, the event, its body, and the session's state before it (a steering text stands in the queue,
a decided gate names its call). It never decides anything: what an event means is settled by the moves; here it is shown.
"""

from __future__ import annotations

from quarterdeck.kernel.narrate import message, notice, tool, turn
from quarterdeck.kernel.narrate.base import TELLERS, Teller
from quarterdeck.kernel.narrate.gate import settle_cards

__all__ = ["TELLERS", "Teller", "message", "notice", "settle_cards", "tool", "turn"]
