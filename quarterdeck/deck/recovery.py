"""Start-up repair: after any kill at any point no session claims to live whose process does not.

What an earlier deck left running is ended first; then every session that its log still calls active is suspended. Texts
that were queued are queued still; one that was being sent has an outcome that nobody knows, and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quarterdeck import events as ev
from quarterdeck.deck.delivery import cut_off
from quarterdeck.deck.session import Session
from quarterdeck.events import Body

_AT_ONCE = 256
REASON = "restart"
UNKNOWN = "the server stopped before the agent said that it had read this"


def repair_of(session: Session) -> list[Body]:
    """What the log of a session must be told after a crash."""
    return [*cut_off(session.state.queue, UNKNOWN), ev.SessionSuspended(reason=REASON)]


async def repair(sessions: Sequence[Session]) -> None:
    """All of them, in a few commits."""
    for start in range(0, len(sessions), _AT_ONCE):
        chosen = sessions[start : start + _AT_ONCE]
        await asyncio.gather(*(one.writer.commit(repair_of(one), "supervisor") for one in chosen))
