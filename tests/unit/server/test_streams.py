"""Test SSE. test_streams_cut.py tests lost connections."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import aiohttp

from quarterdeck import events as ev
from quarterdeck.server.reader import HIGH_WATER
from tests.support.decks import eventually
from tests.support.live_server import Block, Cut, Port, SseTap, served


async def quiet(port: Port, folder: Path) -> str:
    """Create a session without a process."""
    return (await port.deck.create("test", cwd=str(folder))).id


async def write(port: Port, name: str, *bodies: ev.Body) -> int:
    session = await port.deck.load_session(name)
    await session.writer.commit(bodies, "stream")
    return session.writer.durable_view.index


async def blocks(tap: SseTap, count: int) -> list[Block]:
    found: list[Block] = []
    while len(found) < count:
        found += await tap.blocks()
    return found


async def until_cut(tap: SseTap) -> list[Block]:
    found: list[Block] = []
    try:
        while True:
            found += await tap.blocks()
    except Cut:
        return found


async def test_a_stream_begins_after_the_index_and_goes_on(tmp_path: Path):
    async with served(tmp_path) as port:
        name = await quiet(port, tmp_path)
        await write(port, name, ev.Notice(text="a"), ev.Notice(text="b"))
        tap = await SseTap.open(port, f"/sessions/{name}/events", since=1)
        first = await blocks(tap, 2)
        assert [(one.name, one.id, one.data["text"]) for one in first] == [("notice", "2", "a"), ("notice", "3", "b")]
        await write(port, name, ev.Notice(text="c"))
        assert [one.id for one in await blocks(tap, 1)] == ["4"]
        tap.cut()


async def test_what_the_browser_remembers_wins_over_the_address(tmp_path: Path):
    async with served(tmp_path) as port:
        name = await quiet(port, tmp_path)
        await write(port, name, ev.Notice(text="a"), ev.Notice(text="b"))
        tap = await SseTap.open(port, f"/sessions/{name}/events", since=0, last="2")
        assert [one.id for one in await blocks(tap, 1)] == ["3"]
        tap.cut()
        strange = await SseTap.open(port, f"/sessions/{name}/events", since=1, last="nonsense")
        assert [one.id for one in await blocks(strange, 2)] == ["2", "3"]
        strange.cut()


async def test_a_filter_on_pieces_brings_what_restates_them(tmp_path: Path):
    async with served(tmp_path) as port:
        name = await quiet(port, tmp_path)
        tap = await SseTap.open(port, f"/sessions/{name}/events", types="message_delta")
        whole = ev.ResponseComplete(message_id="m", blocks=(ev.Block(text="ab"),))
        pieces = [ev.MessageDelta(message_id="m", delta="a"), ev.MessageDelta(message_id="m", delta="b")]
        await write(port, name, ev.MessageStart(message_id="m"), *pieces, whole, ev.Notice(text="n"))
        assert [one.name for one in await blocks(tap, 3)] == ["message_delta", "message_delta", "response_complete"]
        tap.cut()


async def test_a_reader_that_knows_more_than_the_log_is_told_of_the_gap(tmp_path: Path):
    async with served(tmp_path) as port:
        name = await quiet(port, tmp_path)
        head = await write(port, name, ev.Notice(text="a"))
        tap = await SseTap.open(port, f"/sessions/{name}/events", since=1000)
        gap, snapshot = await blocks(tap, 2)
        assert (gap.name, gap.data) == ("gap", {"session": name, "from": 1000, "to": head})
        assert (snapshot.name, snapshot.id, snapshot.data["index"]) == ("snapshot", str(head), head)
        assert snapshot.data["view"]["id"] == name
        assert snapshot.data["timeline"][-1]["text"] == "a"
        await write(port, name, ev.Notice(text="b"))
        assert [one.id for one in await blocks(tap, 1)] == [str(head + 1)]
        tap.cut()


async def test_a_cursor_beyond_all_sessions_is_a_gap_too(tmp_path: Path):
    async with served(tmp_path) as port:
        names = {await quiet(port, tmp_path) for _ in range(3)}
        head = port.deck.feed.all.head
        tap = await SseTap.open(port, "/events", since="9" * 20)
        gap, snapshot = await blocks(tap, 2)
        assert (gap.name, gap.data) == ("gap", {"session": "*", "from": "9" * 20, "to": head})
        assert {one["id"] for one in snapshot.data["sessions"]} == names
        assert snapshot.id == snapshot.data["cursor"] == head
        await write(port, names.pop(), ev.Notice(text="b"))
        assert [one.name for one in await blocks(tap, 1)] == ["notice"]
        tap.cut()


async def test_all_sessions_come_in_one_stream_and_a_deleted_one_leaves_a_last_word(tmp_path: Path):
    async with served(tmp_path) as port:
        one, other = await quiet(port, tmp_path), await quiet(port, tmp_path)
        await port.deck.session(one).archive()
        own = await SseTap.open(port, f"/sessions/{one}/events")
        await port.deck.session(one).delete()
        tap = await SseTap.open(port, "/events")
        found = await blocks(tap, 4)
        assert (found[-1].data["session_id"], found[-1].name) == (one, "session_deleted")
        assert other in [block.data["session_id"] for block in found]
        assert [block.id for block in found] == [block.data["cursor"] for block in found]
        later = await SseTap.open(port, "/events", since=found[-2].id)
        assert [block.name for block in await blocks(later, 1)] == ["session_deleted"]
        said = await until_cut(own)
        assert [block.name for block in said][-2:] == ["session_deleted", "end"]
        assert said[-1].data == {"reason": "deleted"}
        for one_tap in (own, tap, later):
            one_tap.cut()


async def test_a_server_that_ends_says_so(tmp_path: Path):
    port = Port(tmp_path / "home")
    await port.start()
    name = await quiet(port, tmp_path)
    taps = [await SseTap.open(port, path) for path in (f"/sessions/{name}/events", "/events")]
    for tap in taps:
        await blocks(tap, 1)
    await port.stop()
    for tap in taps:
        assert (await until_cut(tap))[-1].data == {"reason": "shutdown"}
        tap.cut()


async def test_the_heart_beats_and_moves_filtered_readers_on(tmp_path: Path):
    async with served(tmp_path) as port:
        port.server.streams.heartbeat_s = 0.05
        name = await quiet(port, tmp_path)
        tap = await SseTap.open(port, f"/sessions/{name}/events", types="agent_end")
        all_tap = await SseTap.open(port, "/events", types="agent_end")
        head = await write(port, name, ev.Notice(text="a"), ev.Notice(text="b"))
        for one, position in ((tap, str(head)), (all_tap, port.deck.feed.all.head)):
            beat = (await blocks(one, 1))[-1]
            while beat.id != position:
                beat = (await blocks(one, 1))[-1]
            assert beat.name == "cursor"
            assert one.comments
            one.cut()


async def test_pages_for_whoever_wants_an_answer_and_no_stream(tmp_path: Path):
    async with served(tmp_path) as port:
        name = await quiet(port, tmp_path)
        await write(port, name, *(ev.Notice(text=str(number)) for number in range(9)))
        headers = port.headers | {"Accept": "application/json"}
        async with aiohttp.ClientSession(port.url, headers=headers) as client:

            async def page(path: str) -> dict[str, object]:
                async with client.get(path) as answer:
                    assert answer.status == 200
                    return await answer.json()

            first = await page(f"/sessions/{name}/events?limit=4")
            assert [event["index"] for event in first["events"]] == [1, 2, 3, 4]
            assert first["next"] == 4
            rest = await page(f"/sessions/{name}/events?since=4")
            assert [event["index"] for event in rest["events"]] == [5, 6, 7, 8, 9, 10]
            assert await page(f"/sessions/{name}/events?since=10") == {"events": [], "next": 10}
            assert await page(f"/sessions/{name}/events?types=agent_end") == {"events": [], "next": 10}
            beyond = await page(f"/sessions/{name}/events?since=99")
            assert beyond == {"events": [], "next": 10, "gap": {"from": 99, "to": 10}}
            everything = await page("/events?limit=3")
            assert len(everything["events"]) == 3
            assert everything["next"] == everything["events"][-1]["cursor"]
            assert (await page(f"/events?since={'9' * 20}"))["gap"]
            for wrong in ("since=-1", "since=x", "limit=0", "limit=1001"):
                async with client.get(f"/sessions/{name}/events?{wrong}") as answer:
                    assert answer.status == 400
            async with client.head("/events") as answer:
                assert answer.status == 405


async def test_a_reader_that_does_not_read_costs_one_page(tmp_path: Path):
    async with served(tmp_path) as port:
        name = await quiet(port, tmp_path)
        tap = await SseTap.open(port, f"/sessions/{name}/events", small=True)
        (stream,) = port.server.streams._open
        for number in range(200):
            await write(port, name, *(ev.Notice(text=f"{number} " + "x" * 2000) for _ in range(20)))
            assert stream.line.unsent < 2 * HIGH_WATER + 256 * 2200
        assert not stream.reader.is_live
        gc.collect()
        found = await blocks(tap, 4001)
        assert [int(block.id) for block in found] == list(range(1, 4002))
        await eventually(lambda: stream.reader.is_live)
        tap.cut()
        await eventually(lambda: not port.server.streams.count)


async def test_a_session_that_nobody_reads_any_more_keeps_no_tail(tmp_path: Path):
    async with served(tmp_path) as port:
        name = await quiet(port, tmp_path)
        taps = [await SseTap.open(port, f"/sessions/{name}/events") for _ in range(3)]
        for tap in taps:
            await blocks(tap, 1)
        assert name in port.deck.feed._sessions
        for tap in taps:
            tap.cut()
        await eventually(lambda: name not in port.deck.feed._sessions)


async def test_streams_need_http_1_1(tmp_path: Path):
    async with served(tmp_path) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        writer.write(f"GET /events HTTP/1.0\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {port.token}\r\n\r\n".encode())
        assert b" 400 " in await reader.readline()
        writer.close()


async def test_nobody_has_no_stream(tmp_path: Path):
    async with served(tmp_path) as port:
        tap = await SseTap.open(port, "/sessions/nobody/events")
        assert tap.status == 404
        tap.cut()
