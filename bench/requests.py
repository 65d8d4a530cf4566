"""Measure requests against an empty handler of aiohttp, sent over one connection by another process.

CPU time is the server's, including the log's thread. Wall time of a hook is measured too, because an agent waits for it: an
observing hook is answered before its events are durable.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

from bench.catalogue import filled
from bench.crowd import NUMBER, Crowd
from bench.figure import Figure
from bench.hosting import Host
from bench.measure import SMOKE, Effort, Work, ratio
from quarterdeck import events as ev
from quarterdeck.deck.deck import Deck
from quarterdeck.home import Home
from quarterdeck.log.session_writer import SessionWriter
from quarterdeck.log.sqlite import SqliteLog
from quarterdeck.policy.rule import parse
from quarterdeck.server.auth import SECRET, secret_for

#: Requests in one task: enough that sending the task to the client process costs next to nothing.
TIMES = 20
#: The same for hooks, whose events become durable after the answer: enough that most do so during the task.
MANY = 200
SESSIONS = 10_000
_PROMPT = json.dumps({"text": "And the other one?"})


def figures(effort: Effort) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        yield from _commands(Path(folder), effort)
        yield from _lists(Path(folder), effort)


def _commands(folder: Path, effort: Effort) -> Iterator[Figure]:
    scene = Scene(folder)
    cpu = time.process_time_ns
    wall = time.perf_counter_ns
    prompt = scene.prompt()
    yield Figure(
        "requests",
        "a prompt, to an empty handler and a durable append",
        ratio(prompt, scene.appending(), effort, cpu),
        3,
    )
    found = ratio(scene.observing(), scene.empty(MANY), effort, wall)
    yield Figure("requests", "an observing hook, to an empty handler, wall time", found, 5)
    found = ratio(scene.observed(), scene.empty(MANY), effort, cpu)
    yield Figure("requests", "an observing hook, to an empty handler, CPU time until it is durable", found)
    found = ratio(scene.asking(), scene.appending(), effort, wall)
    yield Figure("requests", "a deciding hook, to an empty handler and a commit, wall time", found, 5)
    found = ratio(scene.asking(), scene.appending(), effort, cpu)
    yield Figure("requests", "a deciding hook, to an empty handler and a commit, CPU time", found)
    assert scene.decided(), "nothing was decided: what was measured is something else"
    scene.close()


def _lists(folder: Path, effort: Effort) -> Iterator[Figure]:
    many = SESSIONS if effort is not SMOKE else 20
    host = Host()
    works = [host.run(_list(host, folder / f"home{count}", count)) for count in (many, 10)]
    found = ratio(works[0][0], works[1][0], effort)
    yield Figure("requests", f"the first page of the list with {many:,} sessions, to that with 10", found, 1.2)
    for _, crowd in works:
        host.run(crowd.stop())
    host.close()


async def _list(host: Host, home: Path, count: int) -> tuple[Work, Crowd]:
    await asyncio.to_thread(home.mkdir)
    filled(Home(home).store, count, count)
    _, url, token = await host.deck(home)
    crowd = await Crowd.start("ask", url)
    return _asked(host, crowd, "GET", "/sessions?limit=10", {"Authorization": f"Bearer {token}"}), crowd


def _asked(
    host: Host,
    crowd: Crowd,
    method: str,
    path: str,
    headers: dict[str, str],
    body: str = "",
    status: int = 200,
    times: int = TIMES,
) -> Work:
    async def asked() -> None:
        await crowd.ask(method=method, path=path, headers=headers, body=body, times=times, status=status)

    return Work(lambda: host.run(asked()), times)


class Scene:
    """Run our server with a busy session and an agent that posts hooks, and a bare server with a log."""

    def __init__(self, folder: Path) -> None:
        self._host = Host()
        self._folder = folder
        self._deck: Deck
        self._record: SessionWriter
        self._host.run(self._open())

    async def _open(self) -> None:
        self._deck, url, self._token = await self._host.deck(self._folder / "home")
        self._deck.services.rules.add(parse("allow Read"))
        self._ours = await Crowd.start("ask", url)
        handle = await self._deck.create("test", "hang", cwd=str(self._folder))
        while not handle.view.state.turn.is_open:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        self._session = handle
        self._log = await SqliteLog.open(self._folder / "bare.db")
        self._record = SessionWriter(self._log, "s")
        await self._record.commit([ev.SessionOpened(agent="bench"), ev.AgentReady()], "process")
        app = web.Application()
        app.router.add_post("/empty", _empty)
        app.router.add_post("/append", self._append)
        self._bare = await Crowd.start("ask", await self._host.serve(app))

    def decided(self) -> int:
        """Return how many requests of the agent in the terminal were decided by a rule."""
        observed = [row.session_id for row in self._deck.rows() if row.agent == "claude"]
        return sum(len(self._deck.view(name).state.gates.decided) for name in observed)

    async def _append(self, request: web.Request) -> web.Response:
        await request.read()
        await self._record.commit([ev.Notice(text="And the other one?")], "user")
        return web.Response(body=b"{}", content_type="application/json")

    def empty(self, times: int = TIMES) -> Work:
        return _asked(self._host, self._bare, "POST", "/empty", {}, _PROMPT, times=times)

    def appending(self) -> Work:
        return _asked(self._host, self._bare, "POST", "/append", {}, _PROMPT)

    def prompt(self) -> Work:
        """Queue texts for a busy agent. Drop them all after each task."""
        headers = {"Authorization": f"Bearer {self._token}"}
        path = f"/sessions/{self._session.id}/prompt"
        asked = _asked(self._host, self._ours, "POST", path, headers, _PROMPT, 202)

        def run() -> None:
            asked.run()
            self._host.run(self._session.drop_queued())

        return Work(run, TIMES)

    def hook(self, event: str, times: int = TIMES) -> Work:
        """Post a hook of an agent in a terminal. A rule allows Read, so a permission request is decided at once."""
        payload: dict[str, Any] = {
            "session_id": "native-1",
            "cwd": str(self._folder),
            "hook_event_name": event,
            "tool_name": "Read",
            "tool_input": {"file_path": str(self._folder / "a.py")},
            "tool_use_id": f"toolu_{NUMBER.decode()}",
            "tool_response": {"ok": True},
        }
        headers = {SECRET: secret_for(self._token), "Content-Type": "application/json"}
        return _asked(self._host, self._ours, "POST", "/ingest/claude", headers, json.dumps(payload), times=times)

    def observing(self) -> Work:
        """Measure how long an agent waits when it reports one call after another."""
        hook = self.hook("PostToolUse", MANY)
        return Work(hook.run, MANY, lambda: self._host.run(self._settled()))

    def observed(self) -> Work:
        """Measure the same until all events are in the log."""
        hook = self.hook("PostToolUse", MANY)

        def run() -> None:
            hook.run()
            self._host.run(self._settled())

        return Work(run, MANY)

    def asking(self) -> Work:
        """Request permission for the calls of a turn. End the turn after each task, or unfinished calls would pile up."""
        ask, stop = self.hook("PermissionRequest"), self.hook("Stop", 1)

        def rest() -> None:
            stop.run()
            self._host.run(self._settled())

        return Work(ask.run, TIMES, rest)

    async def _settled(self) -> None:
        """Wait until all hooks are processed and their events are durable."""
        while any(  # noqa: ASYNC110
            one.has_users or not one.writer.is_durable for one in self._deck.loaded_sessions() if one.observed_agent
        ):
            await asyncio.sleep(0.001)

    def close(self) -> None:
        for crowd in (self._ours, self._bare):
            self._host.run(crowd.stop())
        self._host.run(self._log.close())
        self._host.close()


async def _empty(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(body=b"{}", content_type="application/json")
