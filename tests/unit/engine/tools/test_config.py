"""config.toml of a home, and what the deck's built-in agent makes of it: its real process, asked by lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.engine.tools.config import InvalidToolSettings, ToolSettings, tool_settings
from quarterdeck.engine.tools.mcp.settings import InvalidMcpServer, McpServer
from quarterdeck.testing.script import Script, ScriptedCall, Step
from tests.scripted import serving, variables

ROOT = Path(__file__).parents[4]


def settings(folder: Path, text: str) -> ToolSettings:
    (folder / "config.toml").write_text(text)
    return tool_settings({"QUARTERDECK_HOME": str(folder)})


class TestTheFile:
    def test_nothing_is_said(self, tmp_path: Path) -> None:
        assert tool_settings({"QUARTERDECK_HOME": str(tmp_path)}) == ToolSettings("", (), {})
        assert settings(tmp_path, "port = 1") == ToolSettings("", (), {})

    def test_everything_is_said(self, tmp_path: Path) -> None:
        text = """
            [tools]
            sandbox = "bwrap"
            allowed_paths = ["/srv", "~/notes"]
            [mcp.files]
            command = "x"
            args = ["-y"]
        """
        server = McpServer(command="x", args=("-y",))
        folders = (Path("/srv"), Path("~/notes").expanduser())
        assert settings(tmp_path, text) == ToolSettings("bwrap", folders, {"files": server})

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("[tools]\nsandbox = 'bwarp'", "Invalid enum value 'bwarp' - at `$.tools.sandbox`"),
            ("[tools]\nsandbocks = 'bwrap'", "unknown field `sandbocks`"),
            ("[tools]\nallowed_paths = ['here']", "allowed_paths"),
            ("tools = 1", "$.tools"),
            ("mcp = 1", "$.mcp"),
            ("port =", "Invalid value"),
        ],
    )
    def test_what_cannot_be_used_is_never_taken_for_nothing(self, tmp_path: Path, text: str, said: str) -> None:
        with pytest.raises(InvalidToolSettings) as raised:
            settings(tmp_path, text)
        assert said in raised.value.message
        assert raised.value.hint

    def test_a_server_that_is_described_wrongly(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidMcpServer, match=r"mcp\.files"):
            settings(tmp_path, "[mcp.files]\nport = 5")


class Agent:
    """The process of the built-in agent, and its events."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "quarterdeck.engine"],
            cwd=folder,
            env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def say(self, **line: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()

    def until(self, name: str) -> list[dict[str, Any]]:
        """All events up to the first of this type."""
        events: list[dict[str, Any]] = []
        assert self.process.stdout is not None
        while not any(event["type"] == name for event in events):
            told = json.loads(self.process.stdout.readline())
            events += told.get("events", [told])
        return events

    def end(self) -> str:
        return self.process.communicate(timeout=60)[1]


class TestTheProcess:
    def test_mcp_servers_and_allowed_folders(self, tmp_path: Path) -> None:
        work, other, home = tmp_path / "work", tmp_path / "other", tmp_path / "quarterdeck"
        for folder in (work, other, home):
            folder.mkdir()
        (other / "a.txt").write_text("from elsewhere\n")
        server = f"command = {sys.executable!r}\nargs = ['-m', 'tests.mcp_server', 'stdio']\ncwd = {str(ROOT)!r}\n"
        (home / "config.toml").write_text(
            f"[tools]\nallowed_paths = [{str(other)!r}]\n[mcp.calc]\n{server}[mcp.gone]\ncommand = 'no-such-program'\n"
        )
        steps = (
            Step(calls=(ScriptedCall(name="calc__add", args={"a": 20, "b": 22}),)),
            Step(calls=(ScriptedCall(name="read_file", args={"path": str(other / "a.txt")}),)),
            Step(text="done"),
        )
        with serving(Script(scenario={"both": steps})) as model:
            agent = Agent(variables(model, str(tmp_path)), work)
            agent.say(op="open", session="s1", model="anthropic:scripted", mode="bypass")
            agent.say(op="prompt", id="m1", text="script:both")
            events = agent.until("agent_end")
            agent.say(op="bye")
            said = agent.end()
        assert agent.process.returncode == 0, said
        results = {event["name"]: event["result"] for event in events if event["type"] == "tool_execution_end"}
        assert results == {"calc__add": "42", "read_file": "     1\tfrom elsewhere"}
        (notice,) = [event["text"] for event in events if event["type"] == "notice"]
        assert "the MCP server gone cannot be started" in notice

    def test_a_sandbox_that_nobody_knows_keeps_it_from_starting(self, tmp_path: Path) -> None:
        home = tmp_path / "quarterdeck"
        home.mkdir()
        (home / "config.toml").write_text("[tools]\nsandbox = 'bwarp'\n")
        agent = Agent({"HOME": str(tmp_path), "QUARTERDECK_HOME": str(home), "ANTHROPIC_API_KEY": "x"}, tmp_path)
        agent.say(op="open", session="s1", model="anthropic:x", mode="")
        assert "bwarp" in agent.end()
        assert agent.process.returncode == 1
