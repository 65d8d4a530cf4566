"""Test tools of real MCP servers, written with the official SDK, as processes and over HTTP."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.config import InvalidMcpServer, McpServer, parse_mcp_servers
from quarterdeck.engine.tools.base import Outcome, Tool
from quarterdeck.engine.tools.files import read_file
from quarterdeck.engine.tools.mcp import connection
from quarterdeck.engine.tools.mcp.connection import Connection, McpNotInstalled, tool_name
from quarterdeck.engine.tools.mcp.servers import McpServers, expand_variables
from tests.support.mcp_server import PNG
from tests.support.tool_context import TestHands, called

ROOT = Path(__file__).parents[4]


def stdio(kind: str = "stdio", **more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-m", "tests.support.mcp_server", kind], "cwd": str(ROOT), **more}


def by_name(servers: McpServers) -> dict[str, Tool]:
    return {tool.name.partition("__")[2]: tool for tool in servers.tools}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children() -> list[str]:
    return Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()


async def until(holds: Callable[[], object]) -> None:
    while not holds():  # noqa: ASYNC110  # It depends on another process.
        await asyncio.sleep(0.01)


@pytest.fixture
def hands(tmp_path: Path) -> TestHands:
    folder = tmp_path / "work"
    folder.mkdir()
    return TestHands(folder)


class TestAProcess:
    async def test_its_tools_are_tools(self, hands: TestHands) -> None:
        os.environ["QUARTERDECK_NONCE"] = "h.1"
        async with McpServers({"t": stdio(env={"SOME_TOKEN": "${WHICH}"})}, {"WHICH": "tok-123"}) as servers:
            assert servers.problems == {}
            tools = by_name(servers)
            add = tools["add"]
            assert add.name == "t__add"
            assert add.spec.description == "Adds two numbers."
            assert add.spec.parameters["required"] == ["a", "b"]
            assert (add.writes, tools["fail"].writes, add.needs_approval, add.killable) == (False, True, False, True)
            assert await called(add, hands, a=1, b=2) == Outcome("3")
            failed = await called(tools["fail"], hands, why="it rained")
            assert not failed.ok
            wrong = await called(add, hands, a="x", b=2)
            assert not wrong.ok
            assert "integer" in wrong.text
            assert (await called(tools["environment"], hands, name="SOME_TOKEN")).text == "tok-123"
            assert (await called(tools["environment"], hands, name="VIRTUAL_ENV")).text == ""
            assert (await called(tools["environment"], hands, name="QUARTERDECK_NONCE")).text == "h.1"
            del os.environ["QUARTERDECK_NONCE"]
            await self.images_and_long_results(tools, hands)
            odd = next(tool for tool in servers.tools if "odd" in tool.name)
            assert len(odd.name) <= 64
            assert (await called(odd, hands)).text == "odd"
            pid = int((await called(tools["pid"], hands)).text)
            left = int((await called(tools["daemon"], hands)).text)
            assert alive(pid)
            assert alive(left)
        await until(lambda: not alive(pid) and not alive(left))

    async def images_and_long_results(self, tools: dict[str, Tool], hands: TestHands) -> None:
        seen = await called(tools["picture"], hands)
        assert [(image.media_type, base64.b64decode(image.data)) for image in seen.images] == [("image/png", PNG)]
        long = await called(tools["much"], hands, count=20_000)
        assert len(long.text) < 61_000
        assert f"read {long.path} with read_file to see all of it" in long.text
        assert long.text.startswith("line 0\nline 1\n")
        assert long.text.endswith("line 19999\n")
        whole = (hands.store / long.path).read_text()
        assert whole == "".join(f"line {number}\n" for number in range(20_000))
        assert (await called(read_file, hands, path=long.path, offset=10_000, limit=1)).text.startswith(
            " 10000\tline 9999"
        )

    async def test_it_dies_and_is_started_again(self, hands: TestHands) -> None:
        async with McpServers({"t": stdio()}) as servers:
            tools = by_name(servers)
            first = int((await called(tools["pid"], hands)).text)
            died = await called(tools["die"], hands)
            assert not died.ok
            assert "the MCP server t died during the call, which may or may not have taken effect" in died.text
            second = int((await called(tools["pid"], hands)).text)
            assert second != first
            os.kill(second, signal.SIGKILL)  # No call is running.
            await until(lambda: not alive(second))
            again = await called(tools["add"], hands, a=2, b=2)
            assert again.text == "4" or "died during the call" in again.text
            assert (await called(tools["add"], hands, a=2, b=2)).text == "4"

    async def test_cancelling_and_time_limits_reach_the_server(self, hands: TestHands) -> None:
        async with McpServers({"t": stdio(timeout=2), "u": stdio()}) as servers:
            tools = {tool.name: tool for tool in servers.tools}
            mark = hands.cwd / "mark"
            late = await called(tools["t__wait"], hands, path=str(mark))
            assert "the MCP server t didn't answer within 2 seconds" in late.text
            await until(lambda: mark.read_text() == "cancelled")
            assert (await called(tools["t__add"], hands, a=1, b=1)).text == "2"
            task = asyncio.ensure_future(called(tools["u__wait"], hands, path=str(mark)))
            await until(lambda: mark.read_text() == "waiting")
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            await until(lambda: mark.read_text() == "cancelled")
            both = await asyncio.gather(*(called(tools["u__add"], hands, a=n, b=n) for n in range(20)))
            assert [one.text for one in both] == [str(2 * n) for n in range(20)]

    async def test_what_cannot_be_started_takes_nothing_from_the_others(self, hands: TestHands) -> None:
        told = {
            "gone": {"command": "no-such-program-anywhere"},
            "broken": stdio("broken", env={"SECRET": "hunter22"}),
            "silent": stdio("silent", start_timeout=0.5),
            "noise": stdio("noise", tools=["add"]),
        }
        async with McpServers(told) as servers:
            assert [tool.name for tool in servers.tools] == ["noise__add"]
            assert servers.problems.keys() == {"gone", "broken", "silent"}
            texts = {name: problem.message for name, problem in servers.problems.items()}
            assert "no-such-program-anywhere" in texts["gone"]
            assert "its last message: cannot start with ***" in texts["broken"]
            assert "didn't start within 0.5 seconds" in texts["silent"]
            assert all(problem.code == "mcp_server_failed" and problem.hint for problem in servers.problems.values())
            assert (await called(servers.tools[0], hands, a=1, b=2)).text == "3"
            assert len(children()) == 1


@contextlib.contextmanager
def http_server(port: int) -> Generator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.mcp_server", "http", str(port)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 60
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert time.monotonic() < until
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class TestOverHttp:
    async def test_calls_headers_death_and_return(self, hands: TestHands) -> None:
        port = free_port()

        async def first(servers: McpServers) -> None:
            tools = by_name(servers)
            assert await called(tools["add"], hands, a=1, b=2) == Outcome("3")
            assert (await called(tools["header"], hands, name="authorization")).text == "Bearer hunter22"
            assert len((await called(tools["picture"], hands)).images) == 1

        told = {
            "url": f"http://127.0.0.1:{port}/mcp",
            "headers": {"Authorization": "Bearer ${TOKEN}"},
            "timeout": 20,
        }
        servers = McpServers({"web": told}, {"TOKEN": "hunter22"})
        with http_server(port):
            await servers.start()
            assert servers.problems == {}
            await first(servers)
        dead = await called(by_name(servers)["add"], hands, a=1, b=2)
        assert not dead.ok
        assert "hunter22" not in dead.text
        with http_server(port):
            await first(servers)
        await servers.close()

    async def test_nobody_there(self) -> None:
        told = {"url": f"http://127.0.0.1:{free_port()}/mcp", "headers": {"X-Key": "hunter22"}}
        async with McpServers({"web": told}) as servers:
            assert servers.tools == []
            assert "hunter22" not in servers.problems["web"].message


class TestSettings:
    def test_what_config_says(self) -> None:
        told = {"a": {"command": "x", "args": ["1"], "timeout": 5}, "b": {"url": "https://h/x", "headers": {"K": "v"}}}
        assert parse_mcp_servers(told) == {
            "a": McpServer(command="x", args=("1",), timeout=5),
            "b": McpServer(url="https://h/x", headers={"K": "v"}),
        }

    @pytest.mark.parametrize(
        ("told", "said"),
        [
            ({}, "a command or a url"),
            ({"command": "x", "url": "http://h"}, "not both"),
            ({"command": "x", "headers": {"a": "b"}}, "headers belong to a url"),
            ({"url": "http://h", "args": ["x"]}, "args, env and cwd to a command"),
            ({"url": "ftp://h"}, "http://"),
            ({"command": "x", "tiemout": 1}, "unknown field `tiemout`"),
            ({"command": "x", "timeout": 0}, "timeout"),
            ({"command": 1}, "Expected `str`, got `int`, at `command`"),
            ("x", "Expected `object`"),
        ],
    )
    def test_what_cannot_be_used(self, told: Any, said: str) -> None:
        with pytest.raises(InvalidMcpServer) as raised:
            parse_mcp_servers({"one": told})
        assert raised.value.message.startswith("mcp.one: ")
        assert said in raised.value.message
        assert raised.value.hint

    def test_a_variable_that_is_not_set_is_a_problem_of_that_server_alone(self) -> None:
        servers = McpServers({"one": {"command": "x", "env": {"A": "${NOT_SET}"}}}, {})
        assert servers.problems["one"].message == "mcp.one: A uses the variable NOT_SET, which isn't set"
        assert asyncio.run(servers.start()) == []
        assert servers.problems.keys() == {"one"}

    def test_a_secret_may_have_characters_that_mean_something_elsewhere(self) -> None:
        server = McpServer(url="http://h", headers={"K": "Bearer ${A}${B}"})
        assert expand_variables("one", server, {"A": "\\1${B}", "B": "$"}).headers == {"K": "Bearer \\1${B}$"}

    def test_names_of_servers_and_tools(self) -> None:
        with pytest.raises(InvalidMcpServer):
            parse_mcp_servers({"a b": {"command": "x"}})
        assert tool_name("s", "t") == "s__t"
        names = {tool_name("s", name) for name in ("a.b", "a_b", "a/b", "x" * 80, "x" * 81)}
        assert len(names) == 5
        assert all(len(name) <= 64 and name.replace("-", "").replace("_", "").isalnum() for name in names)


class TestTheSdk:
    async def test_an_error_of_the_request_is_none_of_the_connection(self) -> None:
        from mcp import MCPError

        one = Connection("t", McpServer(command="x", env={"A": "hunter22"}))
        refused = await one._handle_call_error(MCPError(code=-32602, message="no hunter22 here"))
        assert refused.message == "the MCP server t refused the call: no *** here"
        other = await one._handle_call_error(MCPError(code=-32001, message="gone"))
        assert other.message == "the MCP server t failed: MCPError: gone"

    def test_is_not_imported_without_a_server(self) -> None:
        code = (
            "import asyncio, sys; from quarterdeck.engine.tools.mcp.servers import McpServers; "
            "asyncio.run(McpServers({}).start()); print('mcp' in sys.modules, 'pydantic' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["False", "False"]

    def test_is_asked_for_when_it_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(name: str) -> None:
            raise ModuleNotFoundError(name)

        monkeypatch.setattr(connection.importlib, "import_module", missing)
        with pytest.raises(McpNotInstalled) as raised:
            asyncio.run(McpServers({"a": {"command": "x"}}).start())
        assert "quarterdeck[mcp]" in raised.value.hint
