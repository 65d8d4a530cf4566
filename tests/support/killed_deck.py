"""Run a deck that kills itself in the middle of a story: `python -m tests.support.killed_deck FOLDER STORY`.

It prints the highest gate number first. It sends SIGKILL to itself, so that nothing can happen in between.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from quarterdeck import Deck
from quarterdeck import events as ev
from quarterdeck.deck.agents.observed_sessions import ObservedSessions
from quarterdeck.deck.session import Session
from quarterdeck.harness import registry
from quarterdeck.harness.driver import Decision
from quarterdeck.kernel.gate import Gate
from quarterdeck.log.session_writer import Durability
from tests.support.decks import at_home, eventually


async def opened(deck: Deck, native: str) -> Session:
    """Observe a session of an agent that the deck didn't start, in the middle of a turn."""
    session = await ObservedSessions(deck).session("claude", native, "")
    seen = session.observe(registry.translator("claude"))
    bodies = [ev.AgentReady(native_session_id=native), ev.AgentStart(turn_id="t1")]
    session.record_signal(seen, bodies, "hook", Durability.EAGER)
    await session.writer.flush()
    return session


def asked_in(session: Session, count: int) -> Sequence[Gate]:
    """Open this many gates and return them."""
    before = len(session.state.gates.open)
    for number in range(count):
        request = ev.GateRequest(tool="Edit", args={"file_path": "/x"}, ref=f"{session.id}.{before + number}")
        assert session.observed_agent is not None
        session.record_signal(session.observed_agent, [ev.ApprovalRequired(gate=request)], "hook", Durability.EAGER)
    return session.state.gates.open[before:]


async def decided_in(session: Session, gates: Sequence[Gate]) -> None:
    """Allow these gates as a user, one by one."""
    for gate in gates:
        await session.writer.commit(session.closing_events((gate,), Decision(status="approved"), "user"), "user")


async def several_open(deck: Deck) -> None:
    for native in ("one", "two"):
        asked_in(await opened(deck, native), 3)


async def all_decided(deck: Deck) -> None:
    session = await opened(deck, "one")
    await decided_in(session, asked_in(session, 40))


async def last_decided_first(deck: Deck) -> None:
    """Decide the newest gate first, so that the state no longer contains its decision."""
    session = await opened(deck, "one")
    await decided_in(session, asked_in(session, 60)[::-1])


async def turn_ended(deck: Deck) -> None:
    await last_decided_first(deck)
    for session in deck.loaded_sessions():
        assert session.observed_agent is not None
        session.record_signal(session.observed_agent, [ev.AgentEnd(turn_id="t1")], "hook", Durability.EAGER)


async def put_to_rest_and_woken(deck: Deck) -> None:
    await turn_ended(deck)
    await _settled(deck)
    (session,) = deck.loaded_sessions()
    session.stop_observing()
    await eventually(lambda: session.is_evictable)
    deck.services.supervisor.evict_sessions()
    assert session.id not in deck.services.supervisor.sessions
    await deck.session(session.id).rename("again")


async def suspended(deck: Deck) -> None:
    await last_decided_first(deck)
    for session in deck.loaded_sessions():
        session.record(ev.SessionSuspended(reason="shutdown"))


async def archived(deck: Deck) -> None:
    session = await opened(deck, "one")
    asked_in(session, 2)
    await deck.session(session.id).cancel()


STORIES: dict[str, Callable[[Deck], Awaitable[None]]] = {
    told.__name__: told
    for told in (several_open, all_decided, last_decided_first, turn_ended, put_to_rest_and_woken, suspended, archived)
}


async def _settled(deck: Deck) -> None:
    for session in deck.loaded_sessions():
        await session.writer.flush()


async def main(folder: Path, story: str) -> None:
    async with at_home(folder) as deck:
        await STORIES[story](deck)
        await _settled(deck)
        sys.stdout.write(f"{deck.services.gate_numbers.last}\n")
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
