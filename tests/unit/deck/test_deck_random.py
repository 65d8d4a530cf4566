"""Run random commands against agents that act at random, and check that every view is legal (X-028).

A live deck with a few sessions and a small limit gets random commands. Each time something is written into a session's
log, its view must fit a row of tests/support/state_table.py. In the end, the views must match the log, and no process may
be left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from quarterdeck import Deck, Receipt, SessionHandle, Steered
from quarterdeck import events as ev
from quarterdeck.deck.delivery import next_text
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event
from quarterdeck.kernel.session_list import Filter
from quarterdeck.kernel.view import View, fold_all
from quarterdeck.log.base import START, Append
from quarterdeck.log.session_writer import SessionWriter
from tests.support import scripted_agents
from tests.support.decks import all_events, at_home, is_alive
from tests.support.state_table import legal, shown_by

SCRIPTS = (
    "say hello; tool ls",
    "think hard; say hello world",
    "ask git status; say done",
    "ask rm; ask mv",
    "question which?",
    "question which?; ask rm; say end",
    "hang",
    "sleep 0.1; say slept",
    "tool a; fail b; say c",
    "error it broke",
    "exit 0",
    "exit 3",
    "crash",
    "deaf",
    "flood 50",
    "child 60; say x",
)
SEEDS = int(os.environ.get("DECK_SEEDS", "4"))
AGENTS = ("test", "test", "test", "plain", "forgetful", "early", "twin", "able")


class Judge:
    """Checks every view of a live session and collects the illegal ones."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.seen: set[str] = set()

    def look(self, events: Sequence[Event], view: View) -> None:
        row = legal(view)
        if row is not None:
            self.seen.add(row)
        else:
            told = ", ".join(type(event.body).__name__ for event in events)
            self.broken.append(f"after {told}: {shown_by(view)}")


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Check the view at each append, because clients see only states that were appended as one unit."""
    judging, unit = Judge(), SessionWriter._build_append

    def judged(self: SessionWriter, events: tuple[Event, ...]) -> Append:
        judging.look(events, self.view)
        return unit(self, events)

    monkeypatch.setattr(SessionWriter, "_build_append", judged)
    scripted_agents.known(monkeypatch)
    return judging


Taken = dict[str, str]


async def _try(deck: Deck, folder: Path, dice: random.Random, taken: Taken) -> None:
    """Run a random command. Ignore refusals, let other errors fail the test, and note accepted messages."""
    with contextlib.suppress(QuarterdeckError):
        answer = await _do(deck, folder, dice)
        if isinstance(answer, Receipt) and answer.disposition != "answered":
            taken[answer.message_id] = answer.disposition
        elif isinstance(answer, Steered):
            taken[answer.ref] = answer.status


async def _do(deck: Deck, folder: Path, dice: random.Random) -> object:
    """Run one random command that a user may give now."""
    sessions = [deck.session(row.id) for row in deck.list(Filter(archived=True), limit=50).sessions]
    if not sessions or (len(sessions) < 6 and dice.random() < 0.2):
        prompt = dice.choice((None, *SCRIPTS))
        return await deck.create(dice.choice(AGENTS), prompt, cwd=str(folder))
    session = dice.choice(sessions)
    gates = session.view.state.gates.open
    gate = dice.choice(gates).id if gates else "g1"
    item = dice.choice(session.queue).id if session.queue else "x"
    ways = (
        (8, lambda: session.prompt(dice.choice(SCRIPTS), supersede=dice.random() < 0.2)),
        (1, lambda: session.prompt(dice.choice(SCRIPTS), new_task=True)),
        (2, lambda: session.steer("say aside")),
        (4, lambda: session.abort(clear_queue=dice.random() < 0.5)),
        (6 if gates else 0, lambda: session.approve(gate, always=dice.choice((None, None, "session")))),
        (4 if gates else 0, lambda: session.reject(gate, auto_resume=dice.random() < 0.5)),
        (4 if gates else 0, lambda: session.respond(gate, "red")),
        (2, session.retry),
        (2, session.resume),
        (1, lambda: session.edit_queued(item, "say edited")),
        (1, lambda: session.drop_queued(dice.choice((item, "")))),
        (1, lambda: session.resend(item)),
        (1, lambda: session.rename("other")),
        (1, lambda: session.switch_model("bigger")),
        (0.3, session.cancel),
        (0.3, session.archive),
        (0.1, session.delete),
        (0.5, deck.reap),
        (0.3, deck.resume_interrupted),
        (3, lambda: asyncio.sleep(dice.choice((0, 0.01, 0.1)))),
    )
    return await dice.choices([way for _, way in ways], [weight for weight, _ in ways])[0]()


async def _play(folder: Path, seed: int, steps: int) -> Taken:
    dice, taken = random.Random(seed), Taken()
    under_way: set[asyncio.Task[None]] = set()
    async with at_home(folder, running_limit=3, stop_grace=0.1, idle_timeout=0.05) as deck:
        for _ in range(steps):
            task = asyncio.create_task(_try(deck, folder, dice, taken))
            under_way.add(task)
            if len(under_way) > 3 or dice.random() < 0.5:
                done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                assert [one.exception() for one in done if one.exception()] == []
            await asyncio.sleep(0)
        await asyncio.gather(*under_way)
        await _come_to_rest(deck)
        pids = [one.connection.pid for one in deck.loaded_sessions() if one.connection is not None]
    assert not any(is_alive(pid) for pid in pids if pid is not None)
    return taken


async def _come_to_rest(deck: Deck) -> None:
    """Abort busy sessions until every message that may be delivered is delivered and no session waits for a slot."""
    for _ in range(1000):
        sessions = [deck.session(row.id) for row in deck.list(limit=50).sessions if row.lifecycle == "active"]
        moving = [one for one in sessions if not one.is_settled or one.view.state.gates.open or _has_next(one)]
        if not moving and not deck.waiting():
            return
        for session in moving:
            if session.view.state.turn.is_open:
                with contextlib.suppress(QuarterdeckError):
                    await session.abort()
        await asyncio.sleep(0.02)
    raise AssertionError([(one.summary.phase, one.summary.process, one.queue) for one in moving])


def _has_next(session: SessionHandle) -> bool:
    return next_text(session.view.state) is not None


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_is_done(tmp_path: Path, judge: Judge, seed: int) -> None:
    taken = asyncio.run(_play(tmp_path, seed, 150))
    assert not judge.broken, "\n".join(judge.broken[:20])
    assert len(judge.seen) >= 5, "hardly anything happened"
    asyncio.run(_agree(tmp_path, taken))


async def _agree(folder: Path, taken: Taken) -> None:
    """Check the next deck: views match the log, no process runs, and each accepted message was read at most once."""
    async with at_home(folder) as deck:
        deleted = [event.session_id async for event in _deletions(deck)]
        known: dict[str, list[str]] = {}
        for row in deck.list(Filter(archived=True), limit=50).sessions:
            session = deck.session(row.id)
            assert row.lifecycle in ("suspended", "archived")
            assert (row.process, row.run) == ("none", "idle")
            assert not row.flags.showSpinner
            assert not [item for item in session.queue if item.receipt == "sending"]
            events = await all_events(session)
            assert [event.index for event in events] == sorted({event.index for event in events})
            assert fold_all(events).state == session.view.state
            assert _turns_are_closed_once(events)
            for name, fate in _fates(events):
                known.setdefault(name, []).append(fate)
            for item in session.queue:
                known.setdefault(item.id, []).append("waits")
    for name in taken:
        fates = known.get(name, [])
        assert fates or deleted, f"{name} ({taken[name]}) is lost"
        read = fates.count("read") - fates.count("again")
        assert read <= 1, f"{name} ({taken[name]}) was read {read} times: {fates}"


def _turns_are_closed_once(events: list[Event]) -> bool:
    """Return whether each turn of the main agent ends once. A user's abort without a turn id may come in addition."""
    is_open = False
    for event in events:
        body = event.body
        if isinstance(body, ev.AgentStart) and not body.agent_path:
            if is_open:
                return False
            is_open = True
        elif isinstance(body, ev.AgentEnd | ev.AgentAbort) and not body.agent_path:
            if not is_open and (isinstance(body, ev.AgentEnd) or body.turn_id):
                return False
            is_open = False
    return not is_open


def _fates(events: list[Event]) -> Iterator[tuple[str, str]]:
    """Return the outcome of each message by its id."""
    for event in events:
        body = event.body
        if isinstance(body, ev.PromptReceived):
            yield body.message_id, "read"
        elif isinstance(body, ev.SteeringApplied):
            yield from ((ref, "read") for ref in body.refs)
        elif isinstance(body, ev.PromptDropped | ev.PromptRejected):
            yield body.message_id, "dropped"
        elif isinstance(body, ev.DeliveryChanged) and body.status == "queued":
            yield body.message_id, "again"


async def _deletions(deck: Deck) -> AsyncIterator[Event]:
    cursor = START
    while events := await deck.services.log.read_all(cursor, 1000):
        cursor = events[-1].cursor
        for event in events:
            if event.type == "session_deleted":
                yield event
