"""Test how the built-in agent's process uses a home's `config.toml`, with a real deck and a real process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import quarterdeck
from quarterdeck.testing.model import ScriptedModel
from quarterdeck.testing.script import Script, ScriptedCall, Step
from tests.support.scripted_model import serving, variables

ROOT = Path(__file__).parents[4]


def home_with(config: str, environment: dict[str, str]) -> Path:
    home = Path(environment["QUARTERDECK_HOME"])
    home.mkdir()
    (home / "config.toml").write_text(config)
    return home


@contextlib.asynccontextmanager
async def deck_with(config: str, model: ScriptedModel, folder: Path) -> AsyncGenerator[quarterdeck.Deck]:
    """Open a real deck whose agents find this config.toml in their home."""
    environment = {"PATH": os.environ["PATH"], **variables(model, str(folder))}
    home = home_with(config, environment)
    async with quarterdeck.open(home, environment=environment) as deck:
        yield deck


def called(name: str, **args: object) -> Step:
    return Step(calls=(ScriptedCall(name=name, args=dict(args)),))


class TestTheProcess:
    def test_mcp_servers_and_allowed_folders(self, tmp_path: Path) -> None:
        work, other = tmp_path / "work", tmp_path / "other"
        work.mkdir()
        other.mkdir()
        (other / "a.txt").write_text("from elsewhere\n")
        server = (
            f"command = {sys.executable!r}\nargs = ['-m', 'tests.support.mcp_server', 'stdio']\ncwd = {str(ROOT)!r}\n"
        )
        config = (
            f"[tools]\nallowed_paths = [{str(other)!r}]\n[mcp.calc]\n{server}[mcp.gone]\ncommand = 'no-such-program'\n"
        )
        steps = (called("calc__add", a=20, b=22), called("read_file", path=str(other / "a.txt")), Step(text="done"))

        async def work_it(model: ScriptedModel) -> list[quarterdeck.Event]:
            async with deck_with(config, model, tmp_path) as deck:
                session = await deck.create(
                    "builtin", "script:both", cwd=str(work), model="anthropic:scripted", mode="bypass"
                )
                await session.until(lambda view: view.state.phase.value == "completed")
                return await session.events(0, 1_000)

        with serving(Script(scenario={"both": steps})) as model:
            events = asyncio.run(asyncio.wait_for(work_it(model), 60))
        ended: list[Any] = [event.body for event in events if event.type == "tool_execution_end"]
        assert {one.name: one.result for one in ended} == {"calc__add": "42", "read_file": "     1\tfrom elsewhere"}
        notices: list[Any] = [event.body for event in events if event.type == "notice"]
        assert any("the MCP server gone can't be started" in one.text for one in notices)

    def test_a_sandbox_that_nobody_knows_keeps_it_from_starting(self, tmp_path: Path) -> None:
        async def work_it(model: ScriptedModel) -> str:
            async with deck_with("[tools]\nsandbox = 'bwarp'\n", model, tmp_path) as deck:
                session = await deck.create("builtin", "script:x", cwd=str(tmp_path), model="anthropic:scripted")
                await session.until(lambda view: view.state.phase.value == "error")
                return " ".join([entry.text for entry in await session.timeline()])

        with serving(Script(scenario={"x": (Step(text="done"),)})) as model:
            assert "bwarp" in asyncio.run(asyncio.wait_for(work_it(model), 60))
