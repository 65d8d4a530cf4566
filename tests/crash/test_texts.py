"""Test messages whose delivery a kill interrupted: they are shown as unknown, and only a user sends them again."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.crash.audit import Audit
from tests.crash.conftest import Live
from tests.crash.ledger import Ledger
from tests.crash.life import Life, Refused, left_behind, until


def audited(home: Path, life: Life) -> list[str]:
    return Audit(home, Ledger(home.parent / "evidence")).at_rest(life.ask("states"), [])


def ran(home: Path) -> list[str]:
    evidence = home.parent / "evidence"
    return evidence.read_text().split() if evidence.exists() else []


def with_a_text_on_its_way(home: Path, life: Life) -> str:
    """Create a session whose agent is stopped by SIGSTOP, so that the fate of its message can't be known."""
    assert life.wait_open()
    session = life.ask("create", prompt="say hello", cwd=str(home.parent / "work"))
    until("the first turn is over", lambda: life.state(session)["phase"] == "completed")
    os.kill(life.agents[session], signal.SIGSTOP)
    life.ask("command", session=session, method="prompt", text=f"write {home.parent / 'evidence'} once; say done")
    until("the text is on its way", lambda: [one for _, one in life.state(session)["queue"]] == ["sending"])
    return session


@pytest.mark.parametrize("point", ["", "closing_suspended"])
def test_a_text_on_its_way_is_of_unknown_outcome(home: Path, live: Live, point: str) -> None:
    life = live(point=point) if point else live()
    session = with_a_text_on_its_way(home, life)
    if point:
        life.send("close")
    else:
        life.kill("deck")
    life.wait_end()

    again = live()
    assert again.wait_open()
    assert audited(home, again) == []
    state = again.state(session)
    assert [one for _, one in state["queue"]] == ["unknown"]

    again.ask("command", session=session, method="resume")
    again.ask("command", session=session, method="prompt", text=f"write {home.parent / 'evidence'} next")
    until("the next text is read", lambda: "next" in ran(home))
    assert ran(home) == ["next"]

    until("the turn is over", lambda: again.state(session)["run"] == "idle")
    again.ask("command", session=session, method="resend", item_id=state["queue"][0][0])
    until("a person had it sent again", lambda: "once" in ran(home))
    assert ran(home) == ["next", "once"]


def test_texts_that_waited_are_read_after_a_resume(home: Path, live: Live) -> None:
    life = live()
    assert life.wait_open()
    session = life.ask("create", prompt="ask rm", cwd=str(home.parent / "work"))
    until("it asks", lambda: life.state(session)["open"])
    # The open gate holds the turn, so these messages are queued.
    for name in ("one", "two", "three"):
        text = f"write {home.parent / 'evidence'} {name}"
        life.ask("command", session=session, method="prompt", text=text, client_id=name)
    gate = life.state(session)["open"][0]
    life.kill("both")
    life.wait_end()

    again = live()
    assert again.wait_open()
    assert audited(home, again) == []
    state = again.state(session)
    assert [one for _, one in state["queue"]] == ["queued"] * 3
    assert (state["stale"], state["open"]) == ([gate], [])
    assert again.ask("resume_interrupted") == [session]
    until("all are read", lambda: len(ran(home)) == 3)
    assert ran(home) == ["one", "two", "three"]

    until("the turn is over", lambda: again.state(session)["run"] == "idle")
    again.ask("command", session=session, method="prompt", text="ask rm")
    asked = until("it asks again", lambda: again.state(session)["open"])
    assert asked != [gate]
    again.ask("command", session=session, method="approve", gate_id=asked[0])
    until("it goes on", lambda: again.state(session)["phase"] == "completed")


def test_nothing_wakes_a_session_while_the_deck_closes(home: Path, live: Live) -> None:
    """A message that waits for an agent's exit finds a suspended session afterwards, and must not resume it."""
    life = live()
    assert life.wait_open()
    session = life.ask("create", prompt="sleep 60", cwd=str(home.parent / "work"))
    until("it is at work", lambda: life.state(session)["run"] != "idle")
    slow = life.ask("create", prompt="sleep 60", cwd=str(home.parent / "work"))
    until("the other one too", lambda: life.state(slow)["run"] != "idle")
    # The other session prevents the deck from closing too soon.
    for name in (session, slow):
        os.kill(life.agents[name], signal.SIGSTOP)
    life.ask("command", session=session, method="abort")
    # The stopped agent ignores the abort, so its process is ended after the grace period. Ending a stopped process
    # takes all of a second grace period.
    said = until("the deck ends it", lambda: [one for one in life.published if one[2] == "notice"])
    text = life.send("command", session=session, method="prompt", text="say more")
    time.sleep(0.3)
    assert not text.done(), said
    life.send("close")
    life.wait_end()
    assert left_behind(home) == []
    assert Audit(home, Ledger(home.parent / "evidence")).at_rest(None, life.published) == []
    assert isinstance(text.exception(), Refused)
