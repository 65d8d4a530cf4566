"""Test the caller's idempotency key: a command with a key runs once, and repeating it returns the same answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

from quarterdeck import Deck, SessionHandle
from quarterdeck.deck.commands.lifecycle import fingerprint_create
from quarterdeck.deck.receipts import IdempotencyMismatch, Receipts, fingerprint
from quarterdeck.deck.validation import InvalidInput
from quarterdeck.errors import NotAllowed, QuarterdeckError
from quarterdeck.events import Event, Image
from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel.command_results import Done
from quarterdeck.log.base import Log
from tests.support import scripted_agents
from tests.support.decks import all_events, at_home, busy, gate_of, texts_of, types_of, until


@pytest.fixture(autouse=True)
def _agents(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted_agents.known(monkeypatch)


Make = Callable[[Deck, Path], Awaitable[SessionHandle]]
Do = Callable[[SessionHandle, str], Awaitable[object]]


async def _done(deck: Deck, folder: Path) -> SessionHandle:
    session = await deck.create("able", "say one", cwd=str(folder))
    await session.settled()
    return session


async def _working(deck: Deck, folder: Path) -> SessionHandle:
    session = await deck.create("plain", "hang", cwd=str(folder))
    await busy(session)
    await session.prompt("say waiting")
    return session


async def _asked(deck: Deck, folder: Path) -> SessionHandle:
    session = await deck.create("test", "ask git status; sleep 30", cwd=str(folder))
    await gate_of(session)
    return session


async def _ruled(deck: Deck, folder: Path) -> SessionHandle:
    session = await deck.create("test", "ask git status", cwd=str(folder))
    await session.approve((await gate_of(session)).id, always="session")
    await session.settled()
    _NAMES[session.id] = (await session.rules())[0].id
    return session


async def _questioned(deck: Deck, folder: Path) -> SessionHandle:
    session = await deck.create("test", "question which?", cwd=str(folder))
    await gate_of(session)
    return session


async def _failed(deck: Deck, folder: Path) -> SessionHandle:
    session = await deck.create("test", "error it broke", cwd=str(folder))
    await session.settled()
    return session


async def _unsent(deck: Deck, folder: Path) -> SessionHandle:
    session = await deck.create("early", "say one", cwd=str(folder))
    await until(session, lambda view: any(item.receipt == "failed" for item in view.state.queue))
    return session


#: For each command: a session in which it is allowed, the command, and the same key with another body.
COMMANDS: dict[str, tuple[Make, Do, Do]] = {
    "prompt": (_done, lambda s, k: s.prompt("say a", client_id=k), lambda s, k: s.prompt("say b", client_id=k)),
    "steer": (_working, lambda s, k: s.steer("a", client_id=k), lambda s, k: s.steer("b", client_id=k)),
    "edit": (
        _working,
        lambda s, k: s.edit_queued(_name(s), "say a", client_id=k),
        lambda s, k: s.edit_queued("x", "say b", client_id=k),
    ),
    "drop": (_working, lambda s, k: s.drop_queued(client_id=k), lambda s, k: s.drop_queued("x", client_id=k)),
    "resend": (
        _unsent,
        lambda s, k: s.resend(_name(s), client_id=k),
        lambda s, k: s.resend("x", client_id=k),
    ),
    "abort": (
        _working,
        lambda s, k: s.abort(clear_queue=True, client_id=k),
        lambda s, k: s.abort(reason="b", client_id=k),
    ),
    "approve": (
        _asked,
        lambda s, k: s.approve(_gate(s), always="user", client_id=k),
        lambda s, k: s.approve(_gate(s), client_id=k),
    ),
    "reject": (
        _asked,
        lambda s, k: s.reject(_gate(s), client_id=k),
        lambda s, k: s.reject(_gate(s), reason="b", client_id=k),
    ),
    "respond": (
        _questioned,
        lambda s, k: s.respond(_gate(s), "a", client_id=k),
        lambda s, k: s.respond(_gate(s), "b", client_id=k),
    ),
    "retry": (_failed, lambda s, k: s.retry(client_id=k), lambda s, k: s.rename("b", client_id=k)),
    "resume": (_done, lambda s, k: s.resume(client_id=k), lambda s, k: s.rename("b", client_id=k)),
    "cancel": (_done, lambda s, k: s.cancel(client_id=k), lambda s, k: s.archive(client_id=k)),
    "archive": (_done, lambda s, k: s.archive(client_id=k), lambda s, k: s.cancel(client_id=k)),
    "rename": (_done, lambda s, k: s.rename("a", client_id=k), lambda s, k: s.rename("b", client_id=k)),
    "mark": (_done, lambda s, k: s.mark(pinned=True, client_id=k), lambda s, k: s.mark(pinned=False, client_id=k)),
    "switch_model": (
        _done,
        lambda s, k: s.switch_model("a", client_id=k),
        lambda s, k: s.switch_model("b", client_id=k),
    ),
    "switch_mode": (
        _done,
        lambda s, k: s.switch_mode("plan", client_id=k),
        lambda s, k: s.switch_mode("auto", client_id=k),
    ),
    "remove_rule": (
        _ruled,
        lambda s, k: s.remove_rule(_name(s), client_id=k),
        lambda s, k: s.remove_rule("x", client_id=k),
    ),
    "bash": (_done, lambda s, k: s.bash("ls", client_id=k), lambda s, k: s.bash("pwd", client_id=k)),
    "compact": (_done, lambda s, k: s.compact(client_id=k), lambda s, k: s.rename("b", client_id=k)),
}
_GATES: dict[str, str] = {}
_NAMES: dict[str, str] = {}


def _gate(session: SessionHandle) -> str:
    gates = session.view.state.gates
    return _GATES.setdefault(session.id, gates.open[0].id if gates.open else "")


def _name(session: SessionHandle) -> str:
    return _NAMES.setdefault(session.id, session.queue[0].id if session.queue else "")


async def _receipts(session: SessionHandle, key: str) -> int:
    found = [event.body for event in await all_events(session) if event.type == "command_receipt"]
    return sum(body.client_id == key for body in found)


@pytest.mark.parametrize("name", COMMANDS)
async def test_done_once_and_answered_the_same(tmp_path: Path, name: str) -> None:
    """Repeat each command at the same time, later, with another body, and after a restart."""
    make, do, other = COMMANDS[name]
    async with at_home(tmp_path) as deck:
        session = await make(deck, tmp_path)
        first, at_once = await asyncio.gather(do(session, "k1"), do(session, "k1"))
        assert at_once == first
        assert await do(session, "k1") == first
        assert await _receipts(session, "k1") == 1
        index = session.view.index
        with pytest.raises(IdempotencyMismatch) as refused:
            await other(session, "k1")
        assert refused.value.code == "idempotency_mismatch"
        assert refused.value.hint
        assert await _receipts(session, "k1") == 1
        assert "k1" not in [getattr(event.body, "client_id", "") for event in await all_events(session, index)]
    async with at_home(tmp_path) as deck:
        session = deck.session(session.id)
        before = session.view.index
        assert await do(session, "k1") == first
        with pytest.raises(IdempotencyMismatch):
            await other(session, "k1")
        assert session.view.index == before


async def test_every_command_of_a_session_is_in_the_table(tmp_path: Path) -> None:
    import inspect

    takes_key = {
        name
        for name, method in inspect.getmembers(SessionHandle, inspect.iscoroutinefunction)
        if "client_id" in inspect.signature(method).parameters and not name.startswith("_")
    }
    assert {name.removesuffix("_queued") for name in takes_key} == set(COMMANDS)


class TestCreate:
    async def test_twice_is_one_session(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            made = await asyncio.gather(
                *(deck.create("test", "say one", cwd=str(tmp_path), client_id="c1") for _ in range(3))
            )
            assert len({session.id for session in made}) == 1
            await made[0].settled()
            assert await texts_of(made[0], "assistant") == ["one"]
            again = await deck.create("test", "say one", cwd=str(tmp_path), client_id="c1")
            assert again.id == made[0].id
            assert len(deck.list().sessions) == 1
        async with at_home(tmp_path) as deck:
            again = await deck.create("test", "say one", cwd=str(tmp_path), client_id="c1")
            assert again.id == made[0].id
            assert again.summary.lifecycle == "suspended"
            assert len(deck.list().sessions) == 1

    async def test_with_another_body_is_refused(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", cwd=str(tmp_path), client_id="c1")
            before = session.view
            for change in ({"prompt": "say two"}, {"name": "other"}, {"model": "m"}):
                with pytest.raises(IdempotencyMismatch):
                    await deck.create("test", cwd=str(tmp_path), client_id="c1", **change)
            assert session.view is before
            assert len(deck.list().sessions) == 1

    async def test_with_another_environment_is_refused_and_no_environment_is_kept(self, tmp_path: Path) -> None:
        mine, home = {"PATH": "/bin", "SECRET": "a-word-of-mine \udcff"}, tmp_path / "home"
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", cwd=str(tmp_path), client_id="c1", env=mine)
            again = await deck.create("test", cwd=str(tmp_path), client_id="c1", env=dict(reversed(mine.items())))
            assert again.id == session.id
            home = deck.home
        async with at_home(tmp_path) as deck:
            for other in ({"env": {**mine, "SECRET": "x"}}, {"env": {}}, {}, {"env": mine, "record": True}):
                with pytest.raises(IdempotencyMismatch):
                    await deck.create("test", cwd=str(tmp_path), client_id="c1", **other)
            assert len(deck.environments) == 0
            again = await deck.create("test", cwd=str(tmp_path), client_id="c1", env=mine)
            assert again.id == session.id
        files = [file for file in home.rglob("*") if file.is_file()]
        assert not [file for file in files if b"a-word-of-mine" in file.read_bytes()]
        assert (home / "seal.key").stat().st_mode & 0o077 == 0

    @pytest.mark.parametrize("broken", [b"", b"short", None])
    async def test_without_the_key_of_the_hashes_it_is_refused_rather_than_taken(
        self, tmp_path: Path, broken: bytes | None
    ) -> None:
        async with at_home(tmp_path) as deck:
            await deck.create("test", cwd=str(tmp_path), client_id="c1", env={"A": "b"})
            key = deck.home / "seal.key"
        key.unlink() if broken is None else key.write_bytes(broken)
        async with at_home(tmp_path) as deck:
            with pytest.raises(IdempotencyMismatch):
                await deck.create("test", cwd=str(tmp_path), client_id="c1", env={"A": "b"})

    async def test_without_a_key_each_is_a_new_one(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            for _ in range(3):
                await deck.create("test", cwd=str(tmp_path))
            assert len(deck.list().sessions) == 3

    async def test_the_key_of_a_deleted_session_makes_a_new_one(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", cwd=str(tmp_path), client_id="c1")
            await session.archive()
            await session.delete()
            again = await deck.create("test", "say one", cwd=str(tmp_path), client_id="c1")
            await again.settled()
            assert await texts_of(again, "assistant") == ["one"]
        async with at_home(tmp_path) as deck:
            assert [row.lifecycle for row in deck.list().sessions] == ["suspended"]

    async def test_one_that_was_refused_can_be_tried_again(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            with pytest.raises(QuarterdeckError):
                await deck.create("test", "x\0", cwd=str(tmp_path), client_id="c1")
            session = await deck.create("test", "say one", cwd=str(tmp_path), client_id="c1")
            await session.settled()
            assert await texts_of(session, "assistant") == ["one"]


async def test_a_refused_command_leaves_its_key_free(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", cwd=str(tmp_path))
        with pytest.raises(NotAllowed):
            await session.retry(client_id="k1")
        await session.rename("other", client_id="k1")
        assert session.summary.name == "other"
        assert await _receipts(session, "k1") == 1


async def test_keys_belong_to_their_session(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        first, second = [await deck.create("test", cwd=str(tmp_path)) for _ in range(2)]
        await first.rename("one", client_id="k1")
        await second.rename("two", client_id="k1")
        assert (first.summary.name, second.summary.name) == ("one", "two")


async def test_a_caller_that_gives_up_does_not_spoil_it_for_the_next(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", cwd=str(tmp_path))
        impatient = asyncio.create_task(session.prompt("say one", client_id="k1"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        await session.prompt("say one", client_id="k1")
        await session.settled()
        await until(session, lambda view: not view.state.queue)
        assert await texts_of(session, "assistant") == ["one"]
        assert await _receipts(session, "k1") == 1


async def test_the_other_caller_is_not_cancelled_with_the_first(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", cwd=str(tmp_path))
        impatient = asyncio.create_task(session.rename("a", client_id="k1"))
        await asyncio.sleep(0)
        patient = asyncio.create_task(session.rename("a", client_id="k1"))
        await asyncio.sleep(0)
        impatient.cancel()
        await patient
        assert session.summary.name == "a"
        assert (await types_of(session)).count("session_renamed") == 1


async def test_a_key_that_cannot_be_one(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", cwd=str(tmp_path))
        before = session.view
        for key in ("x" * 201, "a\0b", "\ud800"):
            with pytest.raises(InvalidInput, match="client_id"):
                await session.rename("a", client_id=key)
            with pytest.raises(InvalidInput, match="client_id"):
                await session.mark(pinned=True, client_id=key)
            with pytest.raises(InvalidInput, match="client_id"):
                await deck.create("test", cwd=str(tmp_path), client_id=key)
        assert session.view is before
        assert len(deck.list().sessions) == 1


class _SlowLog:
    """A log whose reads return only when the test sets their results."""

    def __init__(self) -> None:
        self.readings: list[asyncio.Future[list[Event]]] = []

    async def read(self, _: str, since: int, *__: object) -> list[Event]:
        self.readings.append(asyncio.get_running_loop().create_future())
        return await self.readings[-1]


async def test_who_reads_the_keys_at_the_same_time_forgets_none() -> None:
    """Start the second read before the first command is durable, and finish it afterwards."""
    log, done = _SlowLog(), list[str]()
    receipts = Receipts(cast(Log, log), "s1", is_new=False)

    command, other_command = cmd.Mark(client_id="a"), cmd.Mark(client_id="b")

    async def work() -> Done:
        receipt = receipts.create(command, Done())
        done.append(receipt.fingerprint)
        receipts.add(receipt)
        return Done()

    async def other() -> Done:
        return Done()

    first = asyncio.ensure_future(receipts.run_once(command, "f", work))
    second = asyncio.ensure_future(receipts.run_once(other_command, "f", other))
    await asyncio.sleep(0)
    one, two = log.readings
    one.set_result([])
    await first
    two.set_result([])
    await second
    await receipts.run_once(command, "f", work)
    assert len(done) == 1


#: Fingerprints that earlier releases stored in receipts. Never change one: a client that repeats a command after an update
#: would be refused.
FINGERPRINTS: tuple[tuple[cmd.Command, str], ...] = (
    (
        cmd.Prompt(text="a", images=(Image(media_type="image/png", data="iVBORw0KGgo="),), new_task=True),
        "899b378b0efac41757d06a75e65049c2",
    ),
    (cmd.Steer(text="a", ref="r"), "6a145f4ffe791d0b13c3ab1cfe99f644"),
    (cmd.Abort(clear_queue=True, reason="r"), "229eea8cb70a0fd628203a12676ad6b6"),
    (cmd.Approve(gate_id="g1", always="session"), "87822327edcb6861b930db87c05aaf87"),
    (cmd.Reject(gate_id="g1", reason="r"), "d4f3d3120cb6f1e0e74363eb98d5e55e"),
    (cmd.Respond(gate_id="g1", answer=["a"]), "3325921f616f2eb7693a4fe24a37658e"),
    (cmd.Retry(), "366e75f0c21caf89cf7b4a3d3f363164"),
    (cmd.Resume(), "eb1ec810081239139a6ab01ba7433af2"),
    (cmd.Cancel(), "13e65fb39fa7cb2134170f051866c4e0"),
    (cmd.Archive(), "29ee03b1f095dfdc52c343610d8efdad"),
    (cmd.Rename(name="a"), "1f812bdd137117cd0e33839e786db349"),
    (cmd.SwitchModel(model="m"), "22fe6b67b790fa1fe1595846bf272149"),
    (cmd.SwitchMode(mode="plan"), "b56d71a506c72d6b3e91b19e91e9dfe8"),
    (cmd.Bash(command="ls"), "2bd45fb9e19cf188b7e7cca497389f29"),
    (cmd.Compact(), "945f8eea6c2db2652d62801902cd0aac"),
    (cmd.EditQueued(item_id="q1", text="a"), "6dff29330deb452646938b7b079baae8"),
    (cmd.DropQueued(item_id="q1"), "8d57b6d6113977e94bdcb6eb85569695"),
    (cmd.Resend(item_id="q1"), "5f8e841a8f9baa277e026ee05899b58f"),
    (cmd.Mark(pinned=True), "ddabc023dd3fa63eb8aec1423e932826"),
    (cmd.RemoveRule(rule_id="r1"), "fc4b3ff5382e06e85ac3962410aeabce"),
)


@pytest.mark.parametrize(("command", "stored"), FINGERPRINTS, ids=lambda value: getattr(value, "command_name", ""))
def test_receipts_of_earlier_releases_still_match(command: cmd.Command, stored: str) -> None:
    assert fingerprint(replace(command, client_id="k")) == stored


def test_receipts_of_earlier_releases_still_match_a_new_session() -> None:
    plain = cmd.Create(agent="test", prompt="a", cwd="/w", name="n", arguments=("-x",), client_id="k")
    assert fingerprint_create(plain, "") == "5aad59601cac5183496879767b36925a"
    recorded = replace(plain, env={"A": "1"}, record=True)
    assert fingerprint_create(recorded, "seal") == "7ee5b3f935f78f3cc51ee097e92d9cb3"
