"""Test bad input: it raises a typed error with code, message and hint, and changes no event, file or process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from quarterdeck import Deck, SessionHandle
from quarterdeck.deck.deck import home_id
from quarterdeck.deck.validation import InvalidInput
from quarterdeck.errors import NotAllowed, QuarterdeckError
from quarterdeck.events import Image
from quarterdeck.harness.driver import CannotDo
from quarterdeck.kernel.session_list import Filter
from quarterdeck.log.base import Append, NoSuchSession, StaleFence
from quarterdeck.process.identity import find_by_nonce
from tests.support import scripted_agents
from tests.support.decks import all_events, at_home, gate_of


@pytest.fixture(autouse=True)
def _agents(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted_agents.known(monkeypatch)


NUL, HALF, LONG = "a\0b", "a\ud800b", "x" * 101
BIG = (Image(media_type="image/png", data="A" * (28 * 1024 * 1024)),)
SMALL = (Image(media_type="image/png", data="AAAA"),)

#: Arguments of create, the error's code, and a part of its message.
CREATE: list[tuple[dict[str, object], str, str]] = [
    ({"agent": "nobody"}, "unknown_agent", "nobody"),
    ({"agent": ""}, "unknown_agent", "''"),
    ({"agent": "claude"}, "agent_cannot", "claude"),
    ({"agent": "missing"}, "agent_not_installed", "missing-cli"),
    ({"cwd": "/no/such/folder"}, "no_such_folder", "/no/such/folder"),
    ({"cwd": ""}, "invalid_input", "cwd: is empty"),
    ({"cwd": __file__}, "invalid_input", "isn't a folder"),
    ({"cwd": NUL}, "invalid_input", "cwd"),
    ({"prompt": NUL}, "invalid_input", "prompt: contains a NUL character at 1"),
    ({"prompt": HALF}, "invalid_input", "prompt: contains half a character at 1"),
    ({"prompt": "  "}, "invalid_input", "prompt: is empty"),
    ({"prompt": "x" * (4 * 1024 * 1024 + 1)}, "too_large", "prompt"),
    ({"name": LONG}, "invalid_input", "name: has 101 characters"),
    ({"name": NUL}, "invalid_input", "name"),
    ({"model": HALF}, "invalid_input", "model"),
    ({"mode": "yolo"}, "agent_cannot", "yolo"),
    ({"mode": "plan"}, "agent_cannot", "plan"),
    ({"agent": "able", "prompt": "x", "images": BIG}, "too_large", "images"),
    ({"agent": "plain", "prompt": "x", "images": SMALL}, "agent_cannot", "read images"),
    ({"env": {"A=B": "x"}}, "invalid_input", "env"),
    ({"env": {"A": "secret\0"}}, "invalid_input", "env"),
    ({"env": {"": "x"}}, "invalid_input", "env"),
    ({"env": {"A": "\ud800"}}, "invalid_input", "env"),
    ({"client_id": "x" * 201}, "invalid_input", "client_id"),
    ({"continues": "no-such-session"}, "no_such_session", "no-such-session"),
    ({"agent": None}, "invalid_input", "agent: Expected `str`"),
    ({"model": None}, "invalid_input", "model: Expected `str`"),
    ({"name": None}, "invalid_input", "name: Expected `str`"),
    ({"mode": None}, "invalid_input", "mode: Expected `str`"),
    ({"prompt": "x", "images": [7]}, "invalid_input", "images: isn't a list of images"),
    ({"prompt": "x", "images": "AAAA"}, "invalid_input", "images: isn't a list of images"),
    ({"prompt": "x", "images": None}, "invalid_input", "images: isn't a list of images"),
    ({"agent": "able", "images": SMALL}, "invalid_input", "images: have no prompt"),
    ({"arguments": "--flag"}, "invalid_input", "arguments: is a str"),
    ({"arguments": None}, "invalid_input", "arguments: is a NoneType"),
    ({"arguments": [7]}, "invalid_input", "arguments"),
    ({"env": ["A=B"]}, "invalid_input", "env: is a list"),
    ({"mode": "yolo", "env": {"A": "b"}, "record": True}, "agent_cannot", "yolo"),
]


def _files(folder: Path) -> set[str]:
    """Return every file except those that SQLite has only while a store is open."""
    return {str(path) for path in folder.rglob("*") if not path.name.endswith(("-wal", "-shm"))}


def _told(error: QuarterdeckError, code: str, part: str) -> None:
    assert error.code == code
    assert part in error.message
    assert error.hint
    assert error.as_json()["error"]["hint"] == error.hint
    assert "secret" not in error.message + error.hint


@pytest.mark.parametrize(("given", "code", "part"), CREATE)
async def test_no_session_is_made(tmp_path: Path, given: dict[str, object], code: str, part: str) -> None:
    async with at_home(tmp_path) as deck:
        before = _files(tmp_path)
        wanted = {"agent": "test", "cwd": str(tmp_path), **given}
        with pytest.raises(QuarterdeckError) as refused:
            await deck.create(**wanted)
        _told(refused.value, code, part)
        assert deck.list().sessions == ()
        assert await deck.services.log.read_all() == []
        assert _files(tmp_path) == before
        assert list(deck.loaded_sessions()) == []
        assert len(deck.environments) == 0
        assert len(deck.services.recordings) == 0
        assert find_by_nonce([home_id(deck.home)]) == []


Do = Callable[[SessionHandle], Awaitable[object]]

#: Commands for a session with an open approval, the error's code, and a part of its message.
COMMANDS: dict[str, tuple[Do, str, str]] = {
    "prompt NUL": (lambda s: s.prompt(NUL), "invalid_input", "text: contains a NUL character at 1"),
    "prompt half": (lambda s: s.prompt(HALF), "invalid_input", "text: contains half a character at 1"),
    "prompt empty": (lambda s: s.prompt(" "), "invalid_command", "empty"),
    "prompt endless": (lambda s: s.prompt("x" * (4 * 1024 * 1024 + 1)), "too_large", "text"),
    "prompt no text": (lambda s: s.prompt(7), "invalid_input", "is a int"),
    "prompt images": (lambda s: s.prompt("x", images=BIG), "too_large", "images"),
    "prompt no image": (lambda s: s.prompt("x", images=[7]), "invalid_input", "images"),
    "prompt image": (lambda s: s.prompt("x", images=SMALL), "agent_cannot", "read images"),
    "steer NUL": (lambda s: s.steer(NUL), "invalid_input", "text"),
    "steer empty": (lambda s: s.steer(""), "invalid_command", "empty"),
    "steer ref": (lambda s: s.steer("x", ref=HALF), "invalid_input", "ref"),
    "rename long": (lambda s: s.rename(LONG), "invalid_command", "101 characters"),
    "rename empty": (lambda s: s.rename("  "), "invalid_command", "characters"),
    "rename NUL": (lambda s: s.rename(NUL), "invalid_input", "name"),
    "abort reason": (lambda s: s.abort(reason=HALF), "invalid_input", "reason"),
    "abort tools": (lambda s: s.abort(kill_tools="some"), "invalid_input", "kill_tools"),
    "approve unknown": (lambda s: s.approve("g99"), "no_such_gate", "g99"),
    "approve always": (lambda s: s.approve("g1", always="world"), "invalid_input", "always"),
    "reject reason": (lambda s: s.reject("g1", reason=NUL), "invalid_input", "reason"),
    "respond kind": (lambda s: s.respond("g1", "x"), "not_allowed", "g1 is a"),
    "respond NUL": (lambda s: s.respond("g1", NUL), "invalid_input", "answer"),
    "respond deep NUL": (lambda s: s.respond("g1", {"a": [HALF]}), "invalid_input", "answer"),
    "respond object": (lambda s: s.respond("g1", object()), "invalid_input", "answer"),
    "retry": (lambda s: s.retry(), "not_allowed", "nothing failed"),
    "resume": (lambda s: s.resume(), "not_allowed", "waiting_approval"),
    "delete": (lambda s: s.delete(), "not_allowed", "waiting_approval"),
    "model NUL": (lambda s: s.switch_model(NUL), "invalid_input", "model"),
    "model empty": (lambda s: s.switch_model(""), "invalid_input", "model: is empty"),
    "mode": (lambda s: s.switch_mode("yolo"), "invalid_command", "yolo"),
    "mode of others": (lambda s: s.switch_mode("plan"), "agent_cannot", "plan"),
    "bash": (lambda s: s.bash("ls"), "agent_cannot", "shell"),
    "bash NUL": (lambda s: s.bash(NUL), "invalid_input", "command"),
    "compact": (lambda s: s.compact(), "agent_cannot", "compact"),
    "edit": (lambda s: s.edit_queued("x", "y"), "no_such_text", "x"),
    "drop": (lambda s: s.drop_queued("x"), "no_such_text", "x"),
    "resend": (lambda s: s.resend("x"), "no_such_text", "x"),
    "edit kind": (lambda s: s.edit_queued(5, "y"), "invalid_input", "item_id"),
    "drop none": (lambda s: s.drop_queued(None), "invalid_input", "item_id"),
    "drop object": (lambda s: s.drop_queued(object(), client_id="k"), "invalid_input", "object"),
    "resend kind": (lambda s: s.resend(None), "invalid_input", "item_id"),
    "remove rule": (lambda s: s.remove_rule([]), "invalid_input", "rule_id"),
    "mark range": (lambda s: s.mark(snoozed_until=-1), "invalid_input", "snoozed_until"),
    "mark past": (lambda s: s.mark(read_index=1 << 60), "invalid_input", "read_index"),
    "mark kind": (lambda s: s.mark(read_index="3"), "invalid_input", "read_index"),
}


async def test_nothing_changes(tmp_path: Path) -> None:
    """Run all commands in one session, so that a change by any of them is found."""
    async with at_home(tmp_path) as deck:
        session = await deck.create("plain", "ask rm", cwd=str(tmp_path))
        gate = await gate_of(session)
        assert gate.id == "g1"
        before, events, files = session.view, await all_events(session), _files(tmp_path)
        wrong = []
        for name, (do, code, part) in COMMANDS.items():
            try:
                await do(session)
            except QuarterdeckError as error:
                try:
                    _told(error, code, part)
                except AssertionError:
                    wrong.append(f"{name}: {error.code}: {error.message} / {error.hint}")
            except Exception as error:
                wrong.append(f"{name}: {type(error).__name__} {error}")
            else:
                wrong.append(f"{name}: done")
        assert not wrong, "\n".join(wrong)
        assert session.view is before
        assert await all_events(session) == events
        assert _files(tmp_path) == files


@pytest.mark.parametrize(("agent", "offered"), [("plain", set[str]()), ("able", {"bash", "compact"})])
async def test_what_is_allowed_now_is_what_the_agent_can(tmp_path: Path, agent: str, offered: set[str]) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create(agent, "say one", cwd=str(tmp_path))
        await session.settled()
        with pytest.raises(NotAllowed) as refused:
            await session.retry()
        assert {"bash", "compact"} & set(refused.value.allowed) == offered
        assert "prompt" in refused.value.allowed
        with pytest.raises(NotAllowed) as missing:
            await session.approve("g9")
        assert {"bash", "compact"} & set(missing.value.allowed) == offered


async def test_an_agent_that_cannot_says_so_also_while_it_does_not_run(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("plain", cwd=str(tmp_path))
        for do in (session.compact, lambda: session.bash("ls")):
            with pytest.raises(CannotDo):
                await do()
        session = await deck.create("able", cwd=str(tmp_path))
        with pytest.raises(NotAllowed, match="isn't running"):
            await session.compact()


READS: dict[str, tuple[Do, str]] = {
    "view_at text": (lambda s: s.view_at("x"), "index"),
    "view_at large": (lambda s: s.view_at(2**70), "index"),
    "events since": (lambda s: s.events(since="x"), "since"),
    "events since large": (lambda s: s.events(since=2**70), "since"),
    "events limit": (lambda s: s.events(limit=2**70), "limit"),
    "events one type": (lambda s: s.events(types="agent_start"), "types"),
    "events types": (lambda s: s.events(types=5), "types"),
    "events type": (lambda s: s.events(types=[5]), "types"),
    "timeline before": (lambda s: s.timeline(before="x"), "before"),
    "subscribe since": (lambda s: anext(s.subscribe(since="x")), "since"),
    "subscribe none": (lambda s: anext(s.subscribe(since=None)), "since"),
    "subscribe types": (lambda s: anext(s.subscribe(types=5)), "types"),
}


@pytest.mark.parametrize("name", READS)
async def test_a_reader_that_asks_for_nothing_that_there_is(tmp_path: Path, name: str) -> None:
    read, field = READS[name]
    async with at_home(tmp_path) as deck:
        session = await deck.create("plain", cwd=str(tmp_path))
        with pytest.raises(InvalidInput) as refused:
            await read(session)
        assert refused.value.field == field


async def test_the_last_fifty_of_fewer(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("plain", cwd=str(tmp_path))
        assert [event.type for event in await session.events(session.view.index - 50)] == ["session_opened"]


async def test_a_list_of_what_there_cannot_be(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        for asked in (
            lambda: deck.list("active"),  # type: ignore[arg-type]
            lambda: deck.list(Filter(q=5)),  # type: ignore[arg-type]
            lambda: deck.list(Filter(status="active")),  # type: ignore[arg-type]
            lambda: deck.list(cursor=5),  # type: ignore[arg-type]
            lambda: deck.subscribe(types="agent_start"),
        ):
            with pytest.raises(InvalidInput):
                asked()


async def test_a_session_that_is_not_there(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        for name in ("nobody", "", "a\0b", "\ud800"):
            with pytest.raises(NoSuchSession) as missing:
                deck.session(name)
            assert missing.value.code == "no_such_session"
            assert missing.value.hint
            with pytest.raises(NoSuchSession):
                await deck.delete(name)
        handle = SessionHandle(deck, "nobody")
        for work in (handle.prompt("x"), handle.timeline(), handle.rename("x"), handle.mark(pinned=True)):
            with pytest.raises(NoSuchSession):
                await work
        with pytest.raises(NoSuchSession):
            await anext(handle.subscribe())
        with pytest.raises(NoSuchSession):
            await handle.events()
        with pytest.raises(NoSuchSession):
            await handle.view_at(3)


async def test_a_page_of_nothing(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", cwd=str(tmp_path))
        for limit in (0, -1, "20", None):
            with pytest.raises(InvalidInput, match="limit"):
                deck.list(limit=limit)
            with pytest.raises(InvalidInput, match="limit"):
                await session.events(limit=limit)
            with pytest.raises(InvalidInput, match="limit"):
                await session.timeline(limit=limit)
        assert deck.list(cursor="nonsense").sessions == deck.list().sessions


async def test_a_stale_fence(tmp_path: Path) -> None:
    """Refuse an append with an old fence: another write came first, and nothing of the append is in the log."""
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", cwd=str(tmp_path))
        stale = deck.services.supervisor.sessions[session.id].writer.fence
        await session.rename("mine")
        events = await all_events(session)
        unit = Append(session_id=session.id, events=(events[-1],), fence=stale)
        with pytest.raises(StaleFence) as refused:
            await deck.services.log.append(unit)
        assert refused.value.code == "stale_fence"
        assert refused.value.hint
        assert await all_events(session) == events


async def test_what_is_unusual_but_good(tmp_path: Path) -> None:
    folder = tmp_path / "ünïcödé with blanks"
    folder.mkdir()
    async with at_home(tmp_path) as deck:
        text = "say \U0001f642 \u200f\u0639\u0631\u0628\u200e \u200d \u2028 \x1b[31m tab\there"
        session = await deck.create("test", text, cwd=str(folder), name="n" * 100)
        await session.settled()
        assert (await session.timeline())[0].text == text
        assert session.summary.cwd == str(folder)
        assert len(session.summary.name) == 100


async def test_a_new_deck_over_the_same_log_finds_no_trace_of_what_was_refused(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        with pytest.raises(QuarterdeckError):
            await deck.create("missing", "x", cwd=str(tmp_path), client_id="c1")
        session = await deck.create("test", cwd=str(tmp_path))
        with pytest.raises(QuarterdeckError):
            await session.prompt(NUL, client_id="k1")
        count = len(await all_events(session))
    async with at_home(tmp_path) as deck:
        assert len(deck.list().sessions) == 1
        found = await all_events(deck.session(session.id))
        assert [event.type for event in found[count:]] == ["session_suspended"]
        assert isinstance(deck, Deck)


async def test_a_key_that_means_another_session_gives_that_one_nothing(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        await deck.create("test", cwd=str(tmp_path), client_id="key")
        with pytest.raises(QuarterdeckError, match="already used"):
            await deck.create("test", cwd=str(tmp_path), client_id="key", name="other", env={"A": "b"}, record=True)
        assert (len(deck.environments), len(deck.services.recordings)) == (0, 0)


async def test_a_deck_that_cannot_be_opened_leaves_nothing_open(tmp_path: Path) -> None:
    environment = {"AGENT_SESSION_IDLE_TIMEOUT": "soon"}
    await (await Deck.open(tmp_path, environment={})).close()
    before = _handles()
    for _ in range(3):
        with pytest.raises(QuarterdeckError, match="soon"):
            await Deck.open(tmp_path, environment=environment)
    assert await _falls_to(before)
    assert not list(tmp_path.glob("*-wal"))


def _handles() -> int:
    return len(os.listdir("/proc/self/fd"))


async def _falls_to(count: int) -> bool:
    """Wait until at most this many files are open: a stopped thread closes its pipes a moment later."""
    for _ in range(200):
        if _handles() <= count:
            return True
        await asyncio.sleep(0.01)
    return False


@pytest.mark.parametrize("since", ["zzz", 5, None, "-1", "٣"])
async def test_a_reader_of_all_that_begins_nowhere_does_not_wait_for_ever(tmp_path: Path, since: str) -> None:
    async with at_home(tmp_path) as deck:
        with pytest.raises(InvalidInput, match="isn't a cursor"):
            deck.subscribe(since)
