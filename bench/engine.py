"""Measure the built-in agent, against a bare client of aiohttp and msgspec that calls the same scripted model.

The model is another process. A turn of the agent is a prompt to a new agent, every event read by `async for`, and the reply,
with a log in memory. Creating and stopping the agent isn't counted unless the figure's name says so. The bare client posts,
reads the stream and joins the text; with tools it also stores the conversation and answers the calls.

An abort is measured twice: in CPU time of this process between the command and its event at the listener, while all other
streams continue, and in wall time, which on a busy machine is mostly waiting for a core.

    python -m bench.engine idle COUNT    bytes of COUNT idle agents, for the figure of that name
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import uvloop
from msgspec import Struct

from bench.figure import Figure
from bench.measure import SMOKE, Effort, Ratio, Work, ratio
from quarterdeck.engine.agent import Agent
from quarterdeck.engine.factory import create_agent
from quarterdeck.engine.model import Chunk, Finished, Request, TextPiece, ToolSpec
from quarterdeck.engine.tools.base import Outcome, Tool, ToolContext
from quarterdeck.log.base import Log
from quarterdeck.log.memory import MemoryLog

PIECES = 200
CALLS = 10
AT_ONCE = 200
IDLE = 1000
IDLE_MB = 30
ABORT_MS = 100
_PIECE = "the lexer, "
TEXT = _PIECE * PIECES

Turn = Callable[[str], Awaitable[str]]


def figures(effort: Effort) -> Iterator[Figure]:
    loop = uvloop.new_event_loop()
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        session = loop.run_until_complete(_opened())
        try:
            yield from _turns(url, session, loop, effort)
            yield from _aborts(url, loop, effort)
        finally:
            loop.run_until_complete(session.close())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
            server.terminate()
    yield from _idle(effort)


def _turns(
    url: str, session: aiohttp.ClientSession, loop: asyncio.AbstractEventLoop, effort: Effort
) -> Iterator[Figure]:
    bare = bare_turn(url, session)

    def work(turn: Turn, scenario: str) -> Work:
        said = loop.run_until_complete(turn(scenario))
        assert said.endswith(TEXT if scenario == "burst" else "done"), said
        return Work(lambda: loop.run_until_complete(turn(scenario)), 1)

    def measured(scenario: str, log: Callable[[], Log | None], listens: bool, whole: bool = False) -> Ratio:
        crew = _Crew(url, log, loop, whole)
        try:
            return ratio(work(_ours(crew, listens), scenario), work(bare, scenario), effort, crew.clock)
        finally:
            crew.dismiss()

    text = f"a text turn of {PIECES} chunks"
    yield Figure("engine", f"{text}, one listener, to a bare client", measured("burst", MemoryLog, True))
    yield Figure("engine", f"{text}, nobody listens", measured("burst", MemoryLog, False))
    yield Figure("engine", f"{text}, one listener, no log", measured("burst", lambda: None, True))
    yield Figure(
        "engine", f"{text}, one listener, agent made and stopped too", measured("burst", MemoryLog, True, True)
    )
    tools = measured("tools", MemoryLog, True)
    yield Figure("engine", f"a loop of {CALLS} tool calls, one listener, to a bare client", tools)


# ------------------------------------------------------------------------------------------------------- the subject


async def _echo(args: dict[str, Any], _: ToolContext) -> Outcome:
    return Outcome(str(args))


TOOL = Tool(spec=ToolSpec("echo", "Says it again.", {"type": "object", "properties": {}}), run=_echo)


def agent_of(url: str, log: Log | None, tool: Tool = TOOL) -> Any:
    opts = {"base_url": f"{url}/v1", "api_key": "k"}
    return create_agent(model="chat:m", tools=[tool], provider_opts=opts, log=log, cwd="/")


class _Crew:
    """Create a new agent for each turn, on a clock that excludes the time to create and stop agents."""

    def __init__(self, url: str, log: Callable[[], Log | None], loop: asyncio.AbstractEventLoop, whole: bool) -> None:
        self._url = url
        self._log = log
        self._loop = loop
        self._whole = whole
        self._fresh: list[Agent] = []
        self._used: list[Agent] = []
        self._excluded = 0

    def clock(self) -> int:
        return time.process_time_ns() - self._excluded

    async def next(self) -> Agent:
        if self._whole:
            if self._used:
                await self._used.pop().stop()
            self._used.append(await agent_of(self._url, self._log()))
        elif not self._fresh:
            began = time.process_time_ns()
            for agent in self._used:
                await agent.stop()
            self._used = []
            self._fresh = [await agent_of(self._url, self._log()) for _ in range(32)]
            self._excluded += time.process_time_ns() - began
        if not self._whole:
            self._used.append(self._fresh.pop())
        return self._used[-1]

    def dismiss(self) -> None:
        for agent in (*self._fresh, *self._used):
            self._loop.run_until_complete(agent.stop())


def _ours(crew: _Crew, listens: bool) -> Turn:
    async def turn(scenario: str) -> str:
        agent = await crew.next()
        events = agent.subscribe() if listens else None
        await agent.prompt(f"script:{scenario}")
        if events is not None:
            async for event in events:
                if event.type == "agent_end":
                    break
        return await agent.collect_reply()

    return turn


# --------------------------------------------------------------------------------------------------------- the floor


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: str = ""


class _Call(Struct, gc=False):
    function: _Function
    id: str | None = None


class _Delta(Struct, gc=False):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(Struct, gc=False):
    delta: _Delta


class _Chunk(Struct, gc=False):
    choices: list[_Choice]


def bare_turn(url: str, session: aiohttp.ClientSession) -> Turn:
    decode = msgspec.json.Decoder(_Chunk).decode
    headers = {"content-type": "application/json", "authorization": "Bearer k"}
    tools = [{"type": "function", "function": msgspec.to_builtins(TOOL.spec)}]

    async def reply(messages: list[Any]) -> tuple[str, list[_Call]]:
        said: list[str] = []
        calls: list[_Call] = []
        rest = b""
        body = msgspec.json.encode({"model": "m", "messages": messages, "stream": True, "tools": tools})
        async with session.post(f"{url}/v1/chat/completions", data=body, headers=headers) as response:
            content = response.content
            while piece := await content.readany():
                *events, rest = (rest + piece).split(b"\n\n")
                for event in events:
                    data = event[event.index(b"data: ") + 6 :]
                    if data == b"[DONE]":
                        continue
                    choices = decode(data).choices
                    if not choices:
                        continue
                    delta = choices[0].delta
                    if delta.content:
                        said.append(delta.content)
                    for call in delta.tool_calls or ():
                        if call.id is not None:
                            calls.append(call)
                        else:
                            calls[-1].function.arguments += call.function.arguments
        return "".join(said), calls

    async def turn(scenario: str) -> str:
        messages: list[Any] = [{"role": "user", "content": f"script:{scenario}"}]
        while True:
            said, calls = await reply(messages)
            if not calls:
                return said
            messages.append({"role": "assistant", "content": said or None, "tool_calls": _told(calls)})
            for call in calls:
                args = msgspec.json.decode(call.function.arguments or "{}")
                messages.append({"role": "tool", "tool_call_id": call.id, "content": str(args)})

    return turn


def _told(calls: list[_Call]) -> list[Any]:
    return [
        {"id": one.id, "type": "function", "function": {"name": one.function.name, "arguments": one.function.arguments}}
        for one in calls
    ]


# ----------------------------------------------------------------------------------------------------------- aborts


def _aborts(url: str, loop: asyncio.AbstractEventLoop, effort: Effort) -> Iterator[Figure]:
    count = 20 if effort is SMOKE else AT_ONCE
    found = loop.run_until_complete(_aborted(url, count))
    limit = ABORT_MS * 1e6
    for clock, times in (("CPU", sorted(cpu for cpu, _ in found)), ("wall", sorted(wall for _, wall in found))):
        worst, middle = times[min(int(count * 0.99), count - 1)], times[count // 2]
        name = f"{count} agents stream at once: abort until agent_abort is heard, p99 of {clock}, to {ABORT_MS} ms"
        yield Figure("engine", name, Ratio(worst / limit, middle / limit, times[-1] / limit, worst, limit), 1)


def _clocks() -> tuple[int, int]:
    return time.process_time_ns(), time.perf_counter_ns()


async def _aborted(url: str, count: int) -> list[tuple[int, int]]:
    """Abort one agent after another while all of them stream. Return CPU and wall time until its listener gets the event,
    in ns. Assert that no turn fails."""
    agents: list[Agent] = [await agent_of(url, MemoryLog()) for _ in range(count)]
    begun = [asyncio.Event() for _ in agents]
    told: list[asyncio.Future[tuple[int, int]]] = [asyncio.get_running_loop().create_future() for _ in agents]
    failed: list[str] = []

    async def listen(number: int) -> None:
        async for event in agents[number].subscribe():
            if event.type == "message_start":
                begun[number].set()
            elif event.type == "agent_abort" and not told[number].done():
                told[number].set_result(_clocks())
            elif event.type == "turn_failed":
                failed.append(str(event.body))

    listeners = [asyncio.create_task(listen(number)) for number in range(count)]
    await asyncio.sleep(0)
    await asyncio.gather(*[agent.prompt("script:drip") for agent in agents])
    await asyncio.gather(*[one.wait() for one in begun])

    async def end(number: int) -> tuple[int, int]:
        started = _clocks()
        await agents[number].abort()
        heard = await told[number]
        return heard[0] - started[0], heard[1] - started[1]

    times: list[tuple[int, int]] = []
    for number in range(count):
        times.append(await end(number))
        await asyncio.sleep(0.002)
    await asyncio.gather(*[agent.stop() for agent in agents])
    await asyncio.gather(*listeners)
    assert not failed, failed
    return times


# ------------------------------------------------------------------------------------------------------------- idle


def _idle(effort: Effort) -> Iterator[Figure]:
    count = 50 if effort is SMOKE else IDLE
    for what, prompted in (("new", 0), ("after a turn", 1)):
        done = subprocess.run(
            [sys.executable, "-m", "bench.engine", "idle", str(count), str(prompted)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        grown, limit = float(done.stdout), IDLE_MB * 1_000_000 * count / IDLE
        share = Ratio(grown / limit, grown / limit, grown / limit, grown, limit)
        yield Figure("engine", f"{count} idle agents, {what}, to {IDLE_MB} MB a thousand", share, 1, unit="bytes")


class _Word:
    """A model in this process that replies with one word."""

    provider = "word"
    name = "one"

    async def stream(self, _: Request) -> AsyncGenerator[Sequence[Chunk]]:
        yield (TextPiece("hi"), Finished("end"))


async def _grown(count: int, prompted: bool) -> float:
    """Return by how many bytes this process grows when it creates so many agents."""

    async def made() -> Agent:
        agent: Agent = await create_agent(model=_Word(), tools=[TOOL], cwd="/")
        if prompted:
            await agent.prompt("hello")
            await agent.collect_reply()
        return agent

    first = await made()
    gc.collect()
    before = _resident()
    agents = [await made() for _ in range(count)]
    gc.collect()
    grown = _resident() - before
    assert first.status().state == agents[-1].status().state == "idle"
    return grown


def _resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise OSError("this system does not say how much memory a process has")


# ------------------------------------------------------------------------------------------------------------ the model


def served(folder: Path) -> subprocess.Popen[str]:
    step = {"text": TEXT, "chunk": len(_PIECE)}
    call = {"calls": [{"name": "echo", "args": {"text": "again"}}]}
    script = {
        "scenario": {
            "burst": [step],
            "drip": [{"text": TEXT * 50, "chunk": len(_PIECE), "delay": 0.02}],
            "trickle": [{**step, "delay": 0.001}],
            "tools": [*[call for _ in range(CALLS)], {"text": "done"}],
        }
    }
    path = folder / "script.json"
    path.write_text(json.dumps(script))
    command = [sys.executable, "-m", "quarterdeck.cli", "testing", "model", "--script", str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def _opened() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


if __name__ == "__main__":
    print(asyncio.run(_grown(int(sys.argv[2]), sys.argv[3] == "1")))
