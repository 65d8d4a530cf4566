"""The built-in agent as a process of its own: one for a session, JSON lines on its standard input and output.

The first line opens it: `{"op": "open", "session", "model", "mode"}` for a new conversation, `{"op": "restore", …,
"events"}` for one that goes on. Then, in any order:

    {"op": "prompt", "id", "text", "images"}        {"op": "steer", "id", "text"}
    {"op": "interrupt", "kill_tools"}               {"op": "answer", "ref", "status", "answer", "reason", "auto_resume"}
    {"op": "model", "model"}    {"op": "mode", "mode"}    {"op": "compact"}    {"op": "bash", "id", "command"}
    {"op": "kept", "n"}         {"op": "bye"}

What it answers are events, one a line, or several that belong together: `{"events": […]}`. Words for people go to
standard error. It ends with everything that it started when its input ends. A key is in no line: providers are set up from
the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from quarterdeck import events as ev
from quarterdeck.engine.deck_pipe import DeckPipe, read_lines, take_stdio
from quarterdeck.engine.errors import InvalidOption, PromptRefused, SteeringRefused
from quarterdeck.errors import AlreadyDecided, NoSuchGate, QuarterdeckError, QueueFull
from quarterdeck.events import Event, Image

if TYPE_CHECKING:
    from quarterdeck.engine.agent import Agent
    from quarterdeck.engine.bash import Bash
    from quarterdeck.engine.factory import Settings
    from quarterdeck.engine.setup import Setup
    from quarterdeck.engine.tools.mcp.servers import McpServers
    from quarterdeck.engine.tools.mcp.settings import McpServer

Line = dict[str, Any]
#: Refusals that events tell already, or that come too late to matter.
_TOLD = (PromptRefused, SteeringRefused, QueueFull, AlreadyDecided, NoSuchGate)


def main() -> None:
    """Until the input ends. What keeps it from starting is said on standard error."""
    reader, writer = take_stdio()
    try:
        asyncio.run(_served(reader, writer))
    except QuarterdeckError as error:
        sys.stderr.write(f"{error.message}. {error.hint}\n")
        sys.exit(1)


async def _served(reader: Any, writer: Any) -> None:
    lines, pipe = await read_lines(reader), await DeckPipe.connect(writer)
    first = await _next(lines)
    if first is None:
        return
    process = Process(pipe)
    loop = asyncio.get_running_loop()
    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(one, lines.feed_eof)
    opening = asyncio.ensure_future(process.open(first))
    opening.add_done_callback(lambda done: lines.feed_eof() if done.exception() else None)
    while (line := await _next(lines)) is not None and line.get("op") != "bye":
        process.obey(line)
    pipe.stop_waiting()
    await opening
    await process.end()
    await pipe.close()


async def _next(lines: asyncio.StreamReader) -> Line | None:
    """The next line that is an object; None at the end. Anything else is not for us."""
    while data := await lines.readline():
        with contextlib.suppress(msgspec.MsgspecError, UnicodeError):
            found = msgspec.json.decode(data)
            if isinstance(found, dict):
                return cast(Line, found)
    return None


# --- opening


async def _opened(line: Line, setup: Setup, pipe: DeckPipe) -> Agent:
    """A new conversation, or one as its events tell it."""
    from quarterdeck.engine.factory import create, restored

    session, given = _text(line, "session"), cast("Settings", setup.settings)
    if line.get("op") == "open":
        return await create(session, setup.model, pipe, None, (), given)
    if line.get("op") != "restore":
        raise InvalidOption(f"the first line is {line.get('op')!r}", "It is open or restore.")
    return await restored(history_of(session, line.get("events") or []), pipe, None, "", setup.model, given)


def history_of(session: str, found: Sequence[Any]) -> list[Event]:
    """What the session did so far. An event of another release that cannot be read is left out."""
    events = [Event(session, 1, 0, "engine", ev.SessionOpened(agent="builtin"))]
    for data in found:
        with contextlib.suppress(QuarterdeckError, TypeError):
            body, _ = ev.decode_body(msgspec.json.encode(data))
            events.append(Event(session, len(events) + 1, 0, "engine", body))
    return events


# --- the orders


class Process:
    """One agent, and what it is told. Orders begin in the order in which they come; none waits for the one before."""

    def __init__(self, pipe: DeckPipe) -> None:
        self._pipe = pipe
        self._opened: asyncio.Future[Agent] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._bash: set[Bash] = set()
        self._servers: McpServers | None = None
        self._mounting: asyncio.Task[None] | None = None

    def mount(self) -> None:
        """Starts the MCP servers that are configured, beside everything else; prompts wait for their tools."""
        from quarterdeck.engine.tools.config import tool_settings

        servers = tool_settings(os.environ).servers
        if servers:
            self._mounting = asyncio.ensure_future(self._mounted(servers))

    async def _mounted(self, servers: Mapping[str, McpServer]) -> None:
        from quarterdeck.engine.tools.mcp.servers import McpServers

        self._servers = McpServers(servers)
        try:
            tools = await self._servers.start()
        except QuarterdeckError as error:
            self._complain(f"{error.message}. {error.hint}")
            return
        for problem in self._servers.problems.values():
            self._complain(f"{problem.message}. {problem.hint}")
        if tools:
            await self._agent.attach_tool(*tools)

    @property
    def _agent(self) -> Agent:
        return self._opened.result()

    async def open(self, line: Line) -> None:
        from quarterdeck.engine.setup import prepared

        # named here, so that its files lie where another process of the session finds them
        line = {**line, "session": _text(line, "session") or secrets.token_hex(8)}
        mode, session, model = (_text(line, name) for name in ("mode", "session", "model"))
        setup = prepared(Path.cwd(), mode, session, model, os.environ)
        self._opened.set_result(await _opened(line, setup, self._pipe))
        self.mount()

    def obey(self, line: Line) -> None:
        if line.get("op") == "kept":
            self._pipe.confirm(line.get("n"))
            return
        order = _ORDERS.get(_text(line, "op"))
        if order is None:
            self._complain(f"it was told {_text(line, 'op')!r}, which it does not know")
            return
        task = asyncio.ensure_future(self._done(order, line))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _done(self, order: Callable[[Process, Line], Awaitable[object]], line: Line) -> None:
        try:
            if not self._opened.done():
                await asyncio.shield(self._opened)  # it has said that it is ready, and waits for that to be kept
            await order(self, line)
        except _TOLD:
            pass
        except QuarterdeckError as error:
            self._complain(f"{error.message}. {error.hint}")
        except (msgspec.ValidationError, TypeError) as error:
            self._complain(f"{_text(line, 'op')} cannot be read: {error}")

    def _complain(self, text: str) -> None:
        self._pipe.send(ev.Notice(text=text, level="error", source="builtin"))

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        for bash in self._bash:
            bash.kill()
        if self._opened.done():
            await self._agent.stop()
        if self._mounting is not None:
            self._mounting.cancel()
            await asyncio.wait([self._mounting])
        if self._servers is not None:
            await self._servers.close()

    # --- each of them

    async def prompt(self, line: Line) -> None:
        if self._mounting is not None:
            await asyncio.wait([self._mounting])
        images = msgspec.convert(line.get("images") or (), tuple[Image, ...])
        await self._agent.prompt(_text(line, "text"), images=images, message_id=_text(line, "id"))

    async def steer(self, line: Line) -> None:
        await self._agent.steer(_text(line, "text"), ref=_text(line, "id"))

    async def interrupt(self, line: Line) -> None:
        """With nothing to end there is nothing to say: the deck knows that."""
        kill: Any = _text(line, "kill_tools") or "killable"
        if self._agent.is_busy:
            await self._agent.abort(_text(line, "reason") or None, kill_tools=kill)

    async def answer(self, line: Line) -> None:
        """A gate that is cancelled is followed by what ends the turn, or all of it."""
        ref, status, goes_on = _text(line, "ref"), _text(line, "status"), line.get("auto_resume") is not False
        if status == "approved":
            await self._agent.approve(ref, auto_resume=goes_on)
        elif status == "rejected":
            await self._agent.reject(ref, auto_resume=goes_on, reason=_text(line, "reason"))
        elif status == "answered":
            await self._agent.respond(line.get("answer"), ref)

    async def model(self, line: Line) -> None:
        await self._agent.switch_model(_text(line, "model"))

    async def mode(self, line: Line) -> None:
        await self._agent.switch_mode(_text(line, "mode"))

    async def compact(self, _: Line) -> None:
        await self._agent.compact()

    async def bash(self, line: Line) -> None:
        from quarterdeck.engine.bash import Bash

        bash = Bash(_text(line, "id"), _text(line, "command"), self._pipe.send)
        self._bash.add(bash)
        try:
            await bash.run()
        finally:
            self._bash.discard(bash)


_ORDERS: dict[str, Callable[[Process, Line], Awaitable[object]]] = {
    "prompt": Process.prompt,
    "steer": Process.steer,
    "interrupt": Process.interrupt,
    "answer": Process.answer,
    "model": Process.model,
    "mode": Process.mode,
    "compact": Process.compact,
    "bash": Process.bash,
}


def _text(line: Line, name: str) -> str:
    value = line.get(name)
    return value if isinstance(value, str) else ""
