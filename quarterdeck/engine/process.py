"""Run the built-in agent as a process of its own: one process per session, with JSON lines on standard input and output.

The first line opens the session: `{"op": "open", "session", "model", "mode"}` for a new conversation, or `{"op": "restore",
…, "events"}` for an existing one. Then follow, in any order:

    {"op": "prompt", "id", "text", "images"}        {"op": "steer", "id", "text"}
    {"op": "interrupt", "kill_tools"}               {"op": "answer", "ref", "status", "answer", "reason", "auto_resume"}
    {"op": "model", "model"}    {"op": "mode", "mode"}    {"op": "compact"}    {"op": "bash", "id", "command"}
    {"op": "kept", "n"}         {"op": "bye"}

The process writes events, one per line, or several that belong together: `{"events": […]}`. Messages for people go to
standard error. When its input ends, the process ends too, with everything that it started. API keys are never part of a
line: providers read them from the environment.
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
from quarterdeck.config import config_file
from quarterdeck.engine.deck_pipe import DeckPipe, read_lines, take_stdio
from quarterdeck.engine.errors import InvalidOption, PromptRefused, SteeringRefused
from quarterdeck.errors import AlreadyDecided, NoSuchGate, QuarterdeckError, QueueFull
from quarterdeck.events import Event, Image
from quarterdeck.log.base import NEW

# The agent and its tools are imported after the first line was read, so that the process answers early.
if TYPE_CHECKING:
    from quarterdeck.config import McpServer
    from quarterdeck.engine.agent import Agent
    from quarterdeck.engine.bash import UserCommand
    from quarterdeck.engine.options import AgentOptions
    from quarterdeck.engine.setup import Setup
    from quarterdeck.engine.tools.mcp.servers import McpServers

Line = dict[str, Any]
#: Errors that need no notice: the agent has written an event about them, or the command came too late to matter.
_REPORTED_ELSEWHERE = (PromptRefused, SteeringRefused, QueueFull, AlreadyDecided, NoSuchGate)


def main() -> None:
    """Serve one session until standard input ends. Exits with 1 if the agent can't be started."""
    reader, writer = take_stdio()
    try:
        asyncio.run(_serve(reader, writer))
    except QuarterdeckError as error:
        sys.stderr.write(f"{error.message}. {error.hint}\n")
        sys.exit(1)


async def _serve(reader: Any, writer: Any) -> None:
    lines, pipe = await read_lines(reader), await DeckPipe.connect(writer)
    first = await _read_line(lines)
    if first is None:
        return
    process = AgentProcess(pipe)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # A signal ends the input, so that there is one way to shut down.
        loop.add_signal_handler(number, lines.feed_eof)
    opening = asyncio.create_task(process.open(first))
    opening.add_done_callback(lambda done: lines.feed_eof() if done.exception() else None)
    while (line := await _read_line(lines)) is not None and line.get("op") != "bye":
        process.handle(line)
    # The deck doesn't confirm events any more, so nothing may wait for that from here on.
    pipe.stop_waiting()
    await opening
    await process.close()
    await pipe.close()


async def _read_line(lines: asyncio.StreamReader) -> Line | None:
    """Read the next line that is a JSON object, skipping all others. Return None at the end of the input."""
    while data := await lines.readline():
        with contextlib.suppress(msgspec.MsgspecError, UnicodeError):
            value = msgspec.json.decode(data)
            if isinstance(value, dict):
                return cast(Line, value)
    return None


# ------------------------------------------------------------------------------------------------------------ opening


async def _open_agent(line: Line, setup: Setup, pipe: DeckPipe) -> Agent:
    """Create an agent, or restore one from the events in the line.

    Raises:
        InvalidOption: the line is neither `open` nor `restore`, or the configuration is invalid.
    """
    from quarterdeck.engine.factory import create_new_agent, restore_agent

    session_id, options = _text(line, "session"), cast("AgentOptions", setup.settings)
    if line.get("op") == "open":
        return await create_new_agent(session_id, setup.model, options, appender=pipe)
    if line.get("op") != "restore":
        raise InvalidOption(f"the first line has op {line.get('op')!r}", "Send open or restore first.")
    events = decode_history(session_id, line.get("events") or [])
    return await restore_agent(events, NEW, setup.model, options, appender=pipe)


def decode_history(session_id: str, entries: Sequence[Any]) -> list[Event]:
    """Decode the events of a session. Events of another release that can't be decoded are left out."""
    events = [Event(session_id, 1, 0, "engine", ev.SessionOpened(agent="builtin"))]
    for entry in entries:
        with contextlib.suppress(QuarterdeckError, TypeError):
            body, _ = ev.decode_body(msgspec.json.encode(entry))
            events.append(Event(session_id, len(events) + 1, 0, "engine", body))
    return events


# ----------------------------------------------------------------------------------------------------------- commands


class AgentProcess:
    """One agent and the commands for it. Commands start in the order of their lines, and none waits for another."""

    def __init__(self, pipe: DeckPipe) -> None:
        self._pipe = pipe
        self._opened: asyncio.Future[Agent] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._shell_commands: set[UserCommand] = set()
        self._mcp_servers: McpServers | None = None
        self._mcp_start: asyncio.Task[None] | None = None

    @property
    def _agent(self) -> Agent:
        return self._opened.result()

    async def open(self, line: Line) -> None:
        from quarterdeck.engine.setup import prepare_agent

        # Choose the id here, not in create_agent: the session's files are stored under it, and a later process of the
        # same session must find them.
        session_id = _text(line, "session") or secrets.token_hex(8)
        setup = prepare_agent(Path.cwd(), _text(line, "mode"), session_id, _text(line, "model"), os.environ)
        self._opened.set_result(await _open_agent({**line, "session": session_id}, setup, self._pipe))
        self._start_mcp_servers()

    def _start_mcp_servers(self) -> None:
        """Start the configured MCP servers in the background. Prompts wait for their tools."""
        servers = config_file(os.environ).mcp_servers()
        if servers:
            self._mcp_start = asyncio.create_task(self._attach_mcp_tools(servers))

    async def _attach_mcp_tools(self, servers: Mapping[str, McpServer]) -> None:
        from quarterdeck.engine.tools.mcp.servers import McpServers

        self._mcp_servers = McpServers(servers)
        try:
            tools = await self._mcp_servers.start()
        except QuarterdeckError as error:
            self._report(f"{error.message}. {error.hint}")
            return
        for problem in self._mcp_servers.problems.values():
            self._report(f"{problem.message}. {problem.hint}")
        if tools:
            await self._agent.attach_tool(*tools)

    def handle(self, line: Line) -> None:
        """Start the command of a line."""
        op = _text(line, "op")
        if op == "kept":
            self._pipe.confirm(line.get("n"))
            return
        command = _COMMANDS.get(op)
        if command is None:
            self._report(f"unknown command {op!r}")
            return
        task = asyncio.create_task(self._run(command, line))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, command: Callable[[AgentProcess, Line], Awaitable[object]], line: Line) -> None:
        try:
            if not self._opened.done():
                # The deck may send commands as soon as it has read `agent_ready`, which is before it is durable here.
                await asyncio.shield(self._opened)
            await command(self, line)
        except _REPORTED_ELSEWHERE:
            pass
        except QuarterdeckError as error:
            self._report(f"{error.message}. {error.hint}")
        except (msgspec.ValidationError, TypeError) as error:
            self._report(f"invalid {_text(line, 'op')} command: {error}")

    def _report(self, text: str) -> None:
        self._pipe.send(ev.Notice(text=text, level="error", source="builtin"))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for bash in self._shell_commands:
            bash.kill()
        if self._opened.done():
            await self._agent.stop()
        if self._mcp_start is not None:
            self._mcp_start.cancel()
            await asyncio.wait([self._mcp_start])
        if self._mcp_servers is not None:
            await self._mcp_servers.close()

    # --- one method per command

    async def prompt(self, line: Line) -> None:
        if self._mcp_start is not None:
            await asyncio.wait([self._mcp_start])
        images = msgspec.convert(line.get("images") or (), tuple[Image, ...])
        await self._agent.prompt(_text(line, "text"), images=images, message_id=_text(line, "id"))

    async def steer(self, line: Line) -> None:
        await self._agent.steer(_text(line, "text"), ref=_text(line, "id"))

    async def interrupt(self, line: Line) -> None:
        """Abort the open turn. Without one, write nothing: the deck knows that there is none."""
        kill_tools: Any = _text(line, "kill_tools") or "killable"
        if self._agent.is_busy:
            await self._agent.abort(reason=_text(line, "reason") or None, kill_tools=kill_tools)

    async def answer(self, line: Line) -> None:
        """Decide a gate. A cancelled gate needs nothing here: the deck ends the turn or the session next."""
        gate_id, status = _text(line, "ref"), _text(line, "status")
        auto_resume = line.get("auto_resume") is not False
        if status == "approved":
            await self._agent.approve(gate_id, auto_resume=auto_resume)
        elif status == "rejected":
            await self._agent.reject(gate_id, auto_resume=auto_resume, reason=_text(line, "reason"))
        elif status == "answered":
            await self._agent.respond(gate_id, line.get("answer"))

    async def model(self, line: Line) -> None:
        await self._agent.switch_model(_text(line, "model"))

    async def mode(self, line: Line) -> None:
        await self._agent.switch_mode(_text(line, "mode"))

    async def compact(self, _: Line) -> None:
        await self._agent.compact()

    async def bash(self, line: Line) -> None:
        from quarterdeck.engine.bash import UserCommand

        bash = UserCommand(_text(line, "id"), _text(line, "command"), self._pipe.send)
        self._shell_commands.add(bash)
        try:
            await bash.run()
        finally:
            self._shell_commands.discard(bash)


_COMMANDS: dict[str, Callable[[AgentProcess, Line], Awaitable[object]]] = {
    "prompt": AgentProcess.prompt,
    "steer": AgentProcess.steer,
    "interrupt": AgentProcess.interrupt,
    "answer": AgentProcess.answer,
    "model": AgentProcess.model,
    "mode": AgentProcess.mode,
    "compact": AgentProcess.compact,
    "bash": AgentProcess.bash,
}


def _text(line: Line, name: str) -> str:
    value = line.get(name)
    return value if isinstance(value, str) else ""
