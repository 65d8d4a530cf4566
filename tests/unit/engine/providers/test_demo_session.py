"""Test the demo as a whole session with the real turn loop, the real tools and the default plugins."""

from __future__ import annotations

from pathlib import Path

import pytest

import quarterdeck
from quarterdeck import events as ev
from quarterdeck.engine.plugins.shipped import default_plugins
from quarterdeck.engine.providers.demo import FOLDER


async def toured(folder: Path, answer: str, steering: str = "") -> list[ev.Body]:
    """Run the demo and return its events: approve every call, answer the question, and steer once if given."""
    seen: list[ev.Body] = []
    opening = quarterdeck.create_agent(
        model="demo:tour", provider_opts={"pause": 0}, cwd=str(folder), plugins=default_plugins()
    )
    async with opening as agent:
        subscription = agent.subscribe(since=0)
        await agent.prompt("What is this?")
        async for event in subscription:
            seen.append(event.body)
            if isinstance(event.body, ev.ApprovalRequired):
                await agent.approve(event.body.gate.gate_id)
            elif isinstance(event.body, ev.AskUser):
                await agent.respond(event.body.gate_id, answer)
            elif isinstance(event.body, ev.ToolExecutionStart) and event.body.name == "edit_file" and steering:
                await agent.steer(steering)
            elif isinstance(event.body, ev.AgentEnd):
                break
    return seen


@pytest.mark.parametrize("answer", ["Keep it", "Remove it"])
async def test_a_newcomer_sees_everything_once(tmp_path: Path, answer: str) -> None:
    seen = await toured(tmp_path, answer)
    kinds = {type(body) for body in seen}
    assert kinds >= {
        ev.ThinkingStart,
        ev.TitleGenerated,
        ev.StatusUpdate,
        ev.TodoChange,
        ev.ApprovalRequired,
        ev.ApprovalResolved,
        ev.AskUser,
        ev.UserResponded,
    }
    ends = [body for body in seen if isinstance(body, ev.ToolExecutionEnd)]
    assert {body.name for body in ends} == {"write_todos", "write_file", "read_file", "edit_file", "shell", "ask_user"}
    assert all(body.ok for body in ends)
    assert (tmp_path / FOLDER / "kept" / "notes.md").exists() == (answer == "Keep it")
    (last,) = [body for body in seen if isinstance(body, ev.AgentEnd)]
    assert last.outcome == "completed"


async def test_what_is_said_in_between_is_taken_up(tmp_path: Path) -> None:
    seen = await toured(tmp_path, "Keep it", "Hurry up, please")
    texts = [block.text for body in seen if isinstance(body, ev.ResponseComplete) for block in body.blocks]
    assert sum("“Hurry up, please”" in text for text in texts) == 1
    assert any(isinstance(body, ev.SteeringApplied) for body in seen)
