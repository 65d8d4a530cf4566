"""Test the Python client: the library's methods over HTTP, streams that reconnect, and typed errors."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

import quarterdeck
from quarterdeck import AsyncClient, Client
from quarterdeck.client.errors import Gap, Refused, TimedOut, Unreachable, decode_error
from quarterdeck.client.sse import BlockParser
from quarterdeck.deck.validation import InvalidInput, NoSuchFolder
from quarterdeck.errors import NotAllowed
from quarterdeck.events import Event, encode_event
from quarterdeck.log.base import NoSuchSession
from quarterdeck.log.deltas import is_delta
from tests.conformance.marks import case
from tests.support import scripted_agents
from tests.support.decks import busy
from tests.support.live_server import served
from tests.support.servers import PATIENCE_S, read_until


def lasting(events: list[Event]) -> list[bytes]:
    return [encode_event(event) for event in events if not is_delta(event.body)]


async def test_a_session_is_driven_over_http_as_in_process(tmp_path: Path):
    async with served(tmp_path) as port, AsyncClient(port.url, port.token) as deck:
        session = await deck.create("test", "say a b; ask rm", cwd=str(tmp_path), client_id="k")
        again = await deck.create("test", "say a b; ask rm", cwd=str(tmp_path), client_id="k")
        assert again.id == session.id
        async for event in session.subscribe():
            if event.type == "approval_required":
                decided = await session.approve(event.body.gate.gate_id)
                assert decided.gate_id == event.body.gate.gate_id
            if event.type == "agent_end":
                break
        assert "a b" in [entry.text.strip() for entry in await session.timeline()]
        assert (await session.prompt("say c")).disposition == "started"
        await session.rename("Mine")
        assert (await session.show()).name == "Mine"
        page = await deck.list(limit=5)
        assert [row.id for row in page.sessions] == [session.id]
        assert {agent.name for agent in await deck.agents()} >= {"claude", "codex"}
        assert isinstance(await deck.attention(), list)
        assert (await session.why())[0].owner
        while await session.queue():  # noqa: ASYNC110 - until the agent took the text
            await asyncio.sleep(0.01)


async def test_errors_come_back_as_what_they_were(tmp_path: Path):
    async with served(tmp_path) as port, AsyncClient(port.url, port.token) as deck:
        with pytest.raises(NoSuchSession):
            await deck.session("nobody").show()
        with pytest.raises(NoSuchSession):
            await anext(deck.session("nobody").subscribe())
        session = await deck.create("test", cwd=str(tmp_path))
        with pytest.raises(NotAllowed) as refused:
            await session.delete()
        assert refused.value.hint
        import_module("quarterdeck.cli.commands.db")  # It defines an error with the same code.
        with pytest.raises(NoSuchFolder):
            await deck.create("test", cwd="/no/such/folder")
        with pytest.raises(InvalidInput):
            await deck.create("test", cwd=__file__)
        wrong = AsyncClient(port.url, "wrong")
        with pytest.raises(quarterdeck.errors.QuarterdeckError) as closed:
            await wrong.list()
        assert closed.value.code == "no_token"
        await wrong.close()


def test_an_error_that_nobody_here_knows_keeps_its_words():
    told = decode_error(418, b'{"error": {"code": "from_the_future", "message": "m", "hint": "h"}}')
    assert isinstance(told, Refused)
    assert (told.code, str(told), told.hint, told.status) == ("from_the_future", "m", "h", 418)
    for nonsense in (b"<html>", b"[]", b"{}", b"\xff", b'{"error": 1}'):
        assert decode_error(502, nonsense).code == "bad_answer"


async def test_no_server_is_said_at_once():
    deck = AsyncClient("http://127.0.0.1:9", "t")
    with pytest.raises(Unreachable):
        await deck.list()
    with pytest.raises(Unreachable):
        await anext(deck.subscribe())
    await deck.close()
    with pytest.raises(Unreachable):
        await deck.list()


@case("U-110")
async def test_a_request_without_an_answer_is_given_up_and_a_closed_client_fails_all_that_are_open():
    async def never(_: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", never)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    quick = AsyncClient(url, "t", timeout_s=0.05)
    with pytest.raises(TimedOut) as told:
        await quick.list()
    assert told.value.hint == "Try again."
    await quick.close()
    patient = AsyncClient(url, "t")
    open_ones = [asyncio.create_task(patient.list()) for _ in range(3)]
    await asyncio.sleep(0.05)
    await patient.close()
    answers = await asyncio.gather(*open_ones, return_exceptions=True)
    assert all(isinstance(one, Unreachable) for one in answers)
    await runner.cleanup()


async def test_a_stream_ends_with_its_session_and_with_its_client(tmp_path: Path):
    async with served(tmp_path) as port:
        deck = AsyncClient(port.url, port.token)
        session = await deck.create("test", cwd=str(tmp_path))
        own, everybodys = session.subscribe(), deck.subscribe()
        for stream in (own, everybodys):  # Both must be subscribed before the first session ends.
            assert (await anext(stream)).type == "session_opened"
        reading, everything = asyncio.create_task(_all(own)), asyncio.create_task(_all(everybodys))
        await session.archive()
        await session.delete()
        assert [event.type for event in await reading][-1] == "session_deleted"
        await deck.close()
        await everything


async def _all(events: Any) -> list[Event]:
    return [event async for event in events]


async def test_a_reader_of_another_log_is_told_of_the_gap(tmp_path: Path):
    async with served(tmp_path) as port, AsyncClient(port.url, port.token) as deck:
        session = await deck.create("test", cwd=str(tmp_path))
        with pytest.raises(Gap) as told:
            await anext(session.subscribe(since=1000))
        assert told.value.to == (await session.show()).index


async def test_filters_reach_the_server(tmp_path: Path):
    async with served(tmp_path) as port, AsyncClient(port.url, port.token) as deck:
        session = await deck.create("test", "say one", cwd=str(tmp_path))
        assert (await anext(session.subscribe(types={"agent_end"}))).type == "agent_end"
        assert {event.type for event in await session.events(types={"agent_end"})} == {"agent_end"}


def test_blocks_are_found_however_the_bytes_are_cut():
    stream = b'retry: 1\n\n: \n\nid: 1\nevent: a\ndata: {"x":1}\n\nid: 2\nevent: b\ndata: {}\n\n'
    for size in range(1, len(stream)):
        splitter = BlockParser()
        found = [
            block for start in range(0, len(stream), size) for block in splitter.feed(stream[start : start + size])
        ]
        assert [(block.name, block.id, block.data) for block in found] == [("a", "1", b'{"x":1}'), ("b", "2", b"{}")]


class Killable:
    """Run the server in a process of its own."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.port = 0
        self.token = ""
        self._process: subprocess.Popen[str]

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.support.serve_deck", str(self._home), str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        address = json.loads(read_until(self._process, self._process.stdout, "\n"))
        self.port, self.token = address["port"], address["token"]

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=PATIENCE_S)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


async def test_a_killed_server_that_comes_back_is_read_on_where_it_was(tmp_path: Path):
    server = Killable(tmp_path / "home")
    await asyncio.to_thread(server.start)
    try:
        async with AsyncClient(server.url, server.token) as deck:
            session = await deck.create("test", "say zero", cwd=str(tmp_path))
            one, everything = session.subscribe(), deck.subscribe()
            mine: list[Event] = []
            everyone: list[Event] = []
            readers = [asyncio.create_task(_into(one, mine)), asyncio.create_task(_into(everything, everyone))]
            for number in range(3):
                # An agent that was never ready has no id to resume with.
                await _until(lambda: any(event.type == "agent_ready" for event in mine))
                wanted = len(mine) + 3
                await session.prompt(f"say a{number} b c d; flood 200", client_id=f"k{number}")
                await _until(lambda wanted=wanted: len(mine) > wanted)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            await session.rename("The last word")
            await _until(lambda: mine[-1].type == everyone[-1].type == "session_renamed")
            log = await _log(session)
            assert [event.type for event in log].count("session_suspended") == 3
            for found in (mine, everyone):
                assert lasting(found) == lasting(log)
                assert [event.index for event in found] == sorted({event.index for event in found})
            for reader in readers:
                reader.cancel()
    finally:
        await asyncio.to_thread(server.kill)


async def _log(session: Any) -> list[Event]:
    log: list[Event] = []
    while page := await session.events(log[-1].index if log else 0):
        log += page
    return log


async def _into(events: Any, found: list[Event]) -> None:
    async for event in events:
        found += [event]


async def _until(holds: Any) -> None:
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_programs_without_a_loop(tmp_path: Path):
    async with served(tmp_path) as port:
        await asyncio.to_thread(_without_a_loop, port.url, port.token, tmp_path)


def _without_a_loop(url: str, token: str, folder: Path) -> None:
    with Client(url, token) as deck:
        session = deck.create("test", "say one", cwd=str(folder))
        types = []
        for event in session.subscribe():
            types.append(event.type)
            if event.type == "agent_end":
                break
        assert types[0] == "session_opened"
        assert session.prompt("say two").disposition == "started"
        assert deck.session(session.id).show().id == session.id
        assert len(deck.list().sessions) == 1
        assert deck.agents()
        assert next(iter(deck.subscribe())).type == "session_opened"
        with pytest.raises(NoSuchSession):
            deck.session("nobody").show()
        assert {row.id for row in deck.attention()} <= {session.id}
    deck.close()


async def test_a_closed_client_lets_go_of_a_thread_that_waits_for_a_server_to_come_back(tmp_path: Path):
    """End the thread's stream, and raise an error that says why in later calls."""
    seen: list[str] = []
    async with served(tmp_path) as port:
        client = Client(port.url, port.token)
        session = await asyncio.to_thread(client.create, "test", cwd=str(tmp_path))

        def read() -> None:
            seen.extend(event.type for event in session.subscribe())
            seen.append("over")

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        await _until(lambda: port.server.streams.count)
    await asyncio.sleep(0.5)
    await asyncio.to_thread(client.close)
    await asyncio.to_thread(reader.join, 5)
    assert seen[-1:] == ["over"]
    with pytest.raises(Unreachable, match="is closed"):
        client.list()


async def test_whoever_is_interrupted_while_he_waits_for_events_is_told_nothing_else(tmp_path: Path):
    program = """
import os, signal, sys, threading
from quarterdeck import Client
url, token, folder = sys.argv[1:]
with Client(url, token) as client:
    session = client.create("test", cwd=folder)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        for event in session.subscribe():
            pass
    except KeyboardInterrupt:
        print("interrupted", session.show().id == session.id)
    left = session.subscribe()
    next(left)
"""
    async with served(tmp_path) as port:
        command = [sys.executable, "-c", program, port.url, port.token, str(tmp_path)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("interrupted True\n", "")


@asynccontextmanager
async def _answering(answer: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncGenerator[str]:
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(("kind", "body"), [("text/html", b"<html>"), ("application/json", b'{"x": 1}')])
async def test_what_is_no_quarterdeck_is_told_apart(kind: str, body: bytes):
    async def other(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind)

    async with _answering(other) as url, AsyncClient(url, "t\n") as client:
        session = client.session("a")
        asked = (client.create("test"), client.attention(), client.agents(), session.queue(), session.prompt("a"))
        for work in (*asked, anext(client.subscribe()), anext(session.subscribe())):
            with pytest.raises(Refused) as told:
                await asyncio.wait_for(work, 5)
            assert told.value.code == "bad_answer"


async def test_a_connection_that_is_lost_before_the_answer_does_not_look_like_nothing_was_done():
    async def gone(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with _answering(gone) as url, AsyncClient(url, "t") as client:
        with pytest.raises(Unreachable, match="lost before the answer to POST") as told:
            await client.session("a").prompt("x", client_id="k")
    assert "same client_id" in told.value.hint


async def test_texts_that_are_taken_back_are_given_back_though_the_first_answer_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Run the command once, although aiohttp repeats a request if a reused connection is lost."""
    scripted_agents.known(monkeypatch)
    cut: list[bytes] = []
    async with served(tmp_path) as port:

        async def between(request: web.Request) -> web.Response:
            data = await request.read()
            address = f"{port.url}{request.path_qs}"
            async with (
                ClientSession() as http,
                http.request(request.method, address, data=data, headers=port.headers) as said,
            ):
                answer = await said.read()
            if request.method == "DELETE" and not cut:
                cut.append(answer)
                assert request.transport is not None
                request.transport.abort()
            return web.Response(body=answer, status=said.status, content_type="application/json")

        async with _answering(between) as url, AsyncClient(url, port.token) as client:
            session = await client.create("plain", "hang", cwd=str(tmp_path))
            await busy(port.deck.session(session.id))
            await session.prompt("what I typed")
            assert (await session.drop_queued()).dropped == ("what I typed",)
    assert b"what I typed" in cut[0]
