"""Test the WebSocket. test_streams_cut.py tests lost connections."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quarterdeck import events as ev
from quarterdeck.log.deltas import is_delta
from quarterdeck.server.reader import HIGH_WATER
from tests.conformance.marks import case
from tests.support.decks import busy, eventually
from tests.support.live_server import Cut, Message, Port, WsTap, served
from tests.support.mirror import apply_changes


async def quiet(port: Port, folder: Path) -> str:
    """Create a session without a process."""
    return (await port.deck.create("test", cwd=str(folder))).id


async def write(port: Port, name: str, *bodies: ev.Body) -> int:
    session = await port.deck.load_session(name)
    await session.writer.commit(bodies, "stream")
    return session.writer.durable_view.index


async def heard(tap: WsTap, op: str) -> Message:
    while (message := await tap.hear())["op"] != op:
        pass
    return message


async def test_a_subscription_begins_with_a_snapshot_and_goes_on_after_the_index(tmp_path: Path):
    async with served(tmp_path) as port:
        name = await quiet(port, tmp_path)
        await write(port, name, ev.Notice(text="a"), ev.Notice(text="b"))
        tap = await WsTap.open(port)
        tap.say(op="subscribe", session=name, since=1, timeline={"limit": 1})
        first = await tap.hear()
        assert (first["op"], first["index"], [one["text"] for one in first["timeline"]]) == ("snapshot", 3, ["b"])
        assert first["view"]["id"] == name
        assert [(await tap.hear())["event"]["index"] for _ in range(2)] == [2, 3]
        await write(port, name, ev.Notice(text="c"))
        assert (await tap.hear())["event"]["index"] == 4
        patch = await heard(tap, "patch")
        assert patch["index"] == 4
        assert [one["text"] for one in apply_changes(first["timeline"], patch["changes"])] == ["c"]
        tap.cut()


@case("U-113")
async def test_whoever_comes_back_in_the_middle_of_a_run_sees_it_running(tmp_path: Path):
    async with served(tmp_path) as port:
        session = await port.deck.create("test", "say one two; hang", cwd=str(tmp_path))
        await busy(session)
        tap = await WsTap.open(port)
        tap.say(op="subscribe", session=session.id, since=2, timeline={"limit": 50})
        snapshot = await tap.hear()
        assert snapshot["view"]["phase"] == "streaming"
        assert snapshot["view"]["flags"]["showCancelButton"]
        missed = [(await heard(tap, "event"))["event"]]
        while missed[-1]["index"] < snapshot["index"]:
            missed.append((await heard(tap, "event"))["event"])
        log = [
            event for event in await session.events(2) if event.index <= snapshot["index"] and not is_delta(event.body)
        ]
        # Deltas of a finished message may have been dropped.
        lasting = [event["index"] for event in missed if event["type"] != "message_delta"]
        assert lasting == [event.index for event in log]
        tap.cut()


async def test_without_since_only_what_comes(tmp_path: Path):
    async with served(tmp_path) as port:
        name = await quiet(port, tmp_path)
        tap = await WsTap.open(port)
        tap.say(op="subscribe", session=name)
        assert (await tap.hear())["timeline"] is None
        await write(port, name, ev.SessionRenamed(name="New"))
        assert (await tap.hear())["event"]["type"] == "session_renamed"
        view = await tap.hear()
        assert view["op"] == "view"
        assert {one["field"]: one["value"] for one in view["changes"]}["name"] == "New"
        tap.cut()


async def test_types_choose_events_and_none_are_none(tmp_path: Path):
    async with served(tmp_path) as port:
        name = await quiet(port, tmp_path)
        tap, mute = await WsTap.open(port), await WsTap.open(port)
        tap.say(op="subscribe", session=name, since=0, types=["notice"])
        mute.say(op="subscribe", session=name, since=0, types=[])
        for one in (tap, mute):
            await heard(one, "snapshot")
        await write(port, name, ev.SessionRenamed(name="New"), ev.Notice(text="n"))
        assert (await heard(tap, "event"))["event"]["type"] == "notice"
        assert (await mute.hear())["op"] == "view"
        tap.cut()
        mute.cut()


async def test_a_reader_that_knows_more_than_the_log_is_told_of_the_gap(tmp_path: Path):
    async with served(tmp_path) as port:
        name = await quiet(port, tmp_path)
        tap = await WsTap.open(port)
        tap.say(op="subscribe", session=name, since=1000)
        assert await tap.hear() == {"op": "gap", "session": name, "from": 1000, "to": 1}
        assert (await tap.hear())["op"] == "snapshot"
        await write(port, name, ev.Notice(text="n"))
        assert (await tap.hear())["event"]["index"] == 2
        tap.say(op="subscribe", session="*", since="9" * 20)
        assert (await heard(tap, "gap"))["session"] == "*"
        tap.cut()


async def test_all_sessions_are_told_by_their_summaries(tmp_path: Path):
    async with served(tmp_path) as port:
        one, other = await quiet(port, tmp_path), await quiet(port, tmp_path)
        tap = await WsTap.open(port)
        tap.say(op="subscribe", session="*")
        first = [await tap.hear() for _ in range(2)]
        assert {message["session"] for message in first} == {one, other}
        assert all(message["of"] == "*" and message["changes"][0]["op"] == "add" for message in first)
        await port.deck.session(one).rename("New")
        rows: dict[str, Any] = {}
        _apply(rows, await tap.hear())
        await port.deck.session(one).rename("Newer")
        changed = await tap.hear()
        assert {change["op"] for change in changed["changes"]} == {"set"}
        _apply(rows, changed)
        assert rows[one]["name"] == "Newer"
        await port.deck.session(one).archive()
        await port.deck.session(one).delete()
        while one in rows:
            _apply(rows, await tap.hear())
        assert one not in port.server.sockets._rows, "nobody asks for it again"
        third = await quiet(port, tmp_path)
        _apply(rows, await tap.hear())
        assert rows[third]["id"] == third
        tap.say(op="unsubscribe", session="*")
        await asyncio.sleep(0.05)
        await port.deck.session(other).rename("Unheard")
        tap.say(op="nonsense")
        assert (await tap.hear())["op"] == "error"
        tap.cut()


def _apply(rows: dict[str, Any], message: Message) -> None:
    for change in message["changes"]:
        if change["op"] == "add":
            rows[change["id"]] = change["value"]
        elif change["op"] == "remove":
            rows.pop(change["id"], None)
        else:
            rows[change["id"]][change["field"]] = change["value"]


async def test_all_events_with_cursors(tmp_path: Path):
    async with served(tmp_path) as port:
        one = await quiet(port, tmp_path)
        start = port.deck.feed.all.head
        await write(port, one, ev.Notice(text="a"))
        tap = await WsTap.open(port)
        tap.say(op="subscribe", session="*", since=start, types=["notice"])
        event = (await heard(tap, "event"))["event"]
        assert (event["text"], event["cursor"]) == ("a", port.deck.feed.all.head)
        tap.cut()


async def test_a_deleted_session_is_removed_and_its_subscription_is_over(tmp_path: Path):
    async with served(tmp_path) as port:
        name = await quiet(port, tmp_path)
        await port.deck.session(name).archive()
        tap = await WsTap.open(port)
        tap.say(op="subscribe", session=name)
        await heard(tap, "snapshot")
        await port.deck.session(name).delete()
        assert (await heard(tap, "event"))["event"]["type"] == "session_deleted"
        assert (await heard(tap, "view"))["changes"] == [{"op": "remove", "id": name}]
        await eventually(lambda: name not in port.deck.feed._sessions)
        tap.say(op="subscribe", session=name)
        assert (await tap.hear())["error"]["code"] == "no_such_session"
        tap.cut()


async def test_a_command_is_done_once_and_answered_each_time(tmp_path: Path):
    async with served(tmp_path) as port:
        name = await quiet(port, tmp_path)
        tap = await WsTap.open(port)
        receipts = []
        for _ in range(2):
            tap.say(op="command", id="k1", session=name, name="prompt", args={"text": "say hello"})
            receipts.append(await heard(tap, "receipt"))
        assert receipts[0] == receipts[1]
        assert receipts[0]["status"] == "done"
        assert receipts[0]["answer"]["accepted"]
        tap.say(op="command", id="k2", session=name, name="prompt", args={"text": 5})
        refused = await heard(tap, "receipt")
        assert (refused["id"], refused["status"], refused["error"]["code"]) == ("k2", "refused", "bad_request")
        tap.say(op="command", id="k3", session=name, name="dance", args={})
        assert "prompt" in (await heard(tap, "receipt"))["error"]["hint"]
        tap.say(op="command", id="k4", session="nobody", name="abort", args={})
        assert (await heard(tap, "receipt"))["error"]["code"] == "no_such_session"
        tap.cut()


async def test_whoever_may_only_look_gives_no_commands(tmp_path: Path):
    async with served(tmp_path) as port:
        name = await quiet(port, tmp_path)
        port.token = _view_token(port)
        tap = await WsTap.open(port)
        tap.say(op="subscribe", session=name)
        assert (await tap.hear())["op"] == "snapshot"
        tap.say(op="command", id="k", session=name, name="prompt", args={"text": "x"})
        assert (await heard(tap, "receipt"))["error"]["code"] == "view_only"
        tap.cut()


def _view_token(port: Port) -> str:
    return port.server.auth.tokens.create("phone", "view", 0)


@pytest.mark.parametrize(
    "message",
    [
        {"op": "subscribe"},
        {"op": "subscribe", "session": 5},
        {"op": "subscribe", "session": "nobody"},
        {"op": "subscribe", "session": "*", "since": 5},
        {"op": "subscribe", "session": "*", "since": "x"},
        {"op": "subscribe", "session": "*", "timeline": {"limit": 0}},
        {"op": "unheard"},
        {},
    ],
    ids=str,
)
async def test_what_is_wrong_is_answered_and_the_connection_lives_on(message: dict[str, Any], tmp_path: Path):
    async with served(tmp_path) as port:
        name = await quiet(port, tmp_path)
        tap = await WsTap.open(port)
        tap.say(**message)
        answer = await tap.hear()
        assert answer["op"] == "error"
        assert answer["error"].keys() == {"code", "message", "hint"}
        tap.say(op="subscribe", session=name, since="wrong")
        assert (await tap.hear())["op"] == "error"
        tap.say(op="subscribe", session=name)
        assert (await tap.hear())["op"] == "snapshot"
        tap.cut()
        session = await port.deck.load_session(name)
        await eventually(lambda: not session.has_users)


async def test_a_binary_message_is_answered_and_the_connection_lives_on(tmp_path: Path):
    async with served(tmp_path) as port:
        tap = await WsTap.open(port)
        for _ in range(2):
            tap._frame(0x2, b"{}")
            told = await tap.hear()
            assert (told["op"], told["error"]["code"]) == ("error", "bad_request")
        tap.cut()


async def test_a_client_that_does_not_read_costs_one_page_and_misses_nothing(tmp_path: Path):
    async with served(tmp_path) as port:
        name = await quiet(port, tmp_path)
        tap = await WsTap.open(port, small=True)
        tap.say(op="subscribe", session=name, since=0, timeline={"limit": 3})
        await heard(tap, "snapshot")
        (socket,) = port.server.sockets.open
        transport = socket._req.transport
        for number in range(200):
            await write(port, name, *(ev.Notice(text=f"{number} " + "x" * 2000) for _ in range(20)))
            assert transport.get_write_buffer_size() < 2 * HIGH_WATER + 256 * 2300
        indexes: list[int] = []
        while len(indexes) < 4001:
            message = await tap.hear()
            if message["op"] == "event":
                indexes.append(message["event"]["index"])
        assert indexes == list(range(1, 4002))
        tap.cut()
        await eventually(lambda: not port.server.sockets.open)


async def test_the_heart_beats_and_a_server_that_ends_says_so(tmp_path: Path):
    port = Port(tmp_path / "home")
    await port.start()
    port.server.sockets.heartbeat_s = 0.1
    name = await quiet(port, tmp_path)
    living, deaf = await WsTap.open(port), await WsTap.open(port)
    living.say(op="subscribe", session=name)
    await heard(living, "snapshot")
    listening = asyncio.create_task(living.hear())  # This one answers pings, the other one doesn't.
    await eventually(lambda: len(port.server.sockets.open) == 1)
    assert not listening.done()
    await port.stop()
    with pytest.raises(Cut) as cut:
        await listening
    assert cut.value.args[0][:2] == (1001).to_bytes(2, "big")
    living.cut()
    deaf.cut()
