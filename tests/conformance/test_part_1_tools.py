"""Show the cases of part 1 and U.1 about tools: the shipped tools in real agents, on real files and processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from quarterdeck import SubAgent
from quarterdeck.engine.model import Result
from quarterdeck.engine.tools import builtin_tools
from quarterdeck.engine.tools.interaction_tools import ANSWER_TIMEOUT_S
from quarterdeck.events import Option, Todo
from tests.conformance.marks import case
from tests.support.decks import Time
from tests.support.engine import Heard, Script, calls, opened, text


def wanted(name: str, call_id: str = "c1", **args: Any) -> list[Any]:
    return calls((call_id, name, msgspec.json.encode(args).decode()))


def agent_in(folder: Path, script: Script, **more: Any) -> Any:
    return opened(script, tools=builtin_tools(), cwd=folder, **more)


def told(script: Script) -> list[Result]:
    """Return the results in the last request to the model."""
    return [part for message in script.requests[-1].messages for part in message.parts if isinstance(part, Result)]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def until(holds: Callable[[], object]) -> None:
    # Poll, because the condition depends on another process.
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


@case("1-106")
async def test_the_write_todos_tool_tells_the_list(tmp_path: Path) -> None:
    todos = [{"content": "look", "status": "completed"}, {"content": "leap"}]
    script = Script(wanted("write_todos", todos=todos), text("ok"))
    async with agent_in(tmp_path, script, session_id="s7") as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        await agent.collect_reply()
        (event,) = heard.of("todo_change")
        assert event.session_id == "s7"
        assert event.body.todos == (
            Todo(id="1", content="look", status="completed"),
            Todo(id="2", content="leap", status="pending"),
        )
        assert heard.one("tool_execution_end").ok


@case("U-056")
async def test_the_ask_user_tool_gives_up_after_five_minutes(tmp_path: Path) -> None:
    assert ANSWER_TIMEOUT_S == 5 * 60

    time = Time()
    script = Script(wanted("ask_user", question="Which?"), text("then not"))
    async with agent_in(tmp_path, script) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        await heard.until("ask_user")
        await time.skip(ANSWER_TIMEOUT_S - 30)
        assert heard.of("user_responded") == []
        await time.skip(60)
        assert (await heard.until("user_responded")).status == "timeout"
        assert await agent.collect_reply() == "then not"
        (result,) = told(script)
        assert not result.ok
        assert "no answer within 5 minutes" in result.text


@case("1-094", "1-095")
async def test_the_ask_user_tool_asks_and_is_answered(tmp_path: Path) -> None:
    script = Script(wanted("ask_user", question="Which?", options=["red", "blue"]), text("blue then"))
    async with agent_in(tmp_path, script, session_id="s7") as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        asked = await heard.until("ask_user")
        assert heard.of("ask_user")[0].session_id == "s7"
        assert asked.question == "Which?"
        assert asked.options == (Option(id="1", label="red"), Option(id="2", label="blue"))
        assert asked.ref
        await agent.respond(asked.ref, "2")
        assert await agent.collect_reply() == "blue then"
        (answered,) = heard.of("user_responded")
        assert (answered.session_id, answered.body.ref, answered.body.response) == ("s7", asked.ref, "2")
        assert told(script)[0].text == "blue"


@case("1-080")
async def test_an_abort_ends_everything_that_the_shell_started(tmp_path: Path) -> None:
    command = "trap '' TERM; (setsid sleep 1000 & echo $! >> pids); echo $$ >> pids; while :; do sleep 0.05; done"
    script = Script(wanted("shell", command=command))
    async with agent_in(tmp_path, script) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        pids = await two_pids(tmp_path / "pids")
        assert all(map(alive, pids))
        await agent.abort(reason="enough")
        killed = await heard.until("tool_killed")
        assert (killed.name, killed.call_id, killed.reason) == ("shell", "c1", "enough")
        assert (await heard.until("agent_abort")).reason == "enough"
        await until(lambda: not any(map(alive, pids)))


async def two_pids(path: Path) -> list[int]:
    def lines() -> list[str]:
        return path.read_text().split() if path.exists() else []

    await until(lambda: len(lines()) == 2)
    return [int(line) for line in lines()]


async def test_steering_kills_a_command_at_once_and_the_model_goes_on(tmp_path: Path) -> None:
    script = Script(wanted("shell", command="echo $$ >> pids; echo $$ >> pids; sleep 1000"), text("as you like"))
    async with agent_in(tmp_path, script) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        pids = await two_pids(tmp_path / "pids")
        await agent.steer("no, stop that")
        assert await agent.collect_reply() == "as you like"
        assert heard.one("tool_skipped_for_steering").name == "shell"
        assert not any(map(alive, pids))


@case("1-075", "1-076", "1-077", "1-078")
async def test_the_tools_work_together(tmp_path: Path) -> None:
    """Write, edit, search, run and read, with one call that fails."""
    steps = [
        ("write_file", {"path": "src/a.py", "content": "print('helo')\n"}),
        ("edit_file", {"path": "src/a.py", "edits": [{"old": "helo", "new": "hello"}]}),
        ("glob", {"pattern": "*.py"}),
        ("grep", {"pattern": "hel+o"}),
        ("ls", {"path": "src"}),
        ("shell", {"command": "cat src/a.py >&2; echo done"}),
        ("read_file", {"path": "src/a.py"}),
        ("read_file", {"path": "../../etc/passwd"}),
        ("edit_file", {"path": "src/a.py"}),
    ]

    script = Script(*(wanted(name, f"c{at}", **args) for at, (name, args) in enumerate(steps)), text("ready"))
    async with agent_in(tmp_path, script, environment={"PATH": os.environ["PATH"]}) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        assert await agent.collect_reply() == "ready"
        began, ended = heard.bodies("tool_execution_start"), heard.bodies("tool_execution_end")
        assert [(one.name, one.call_id, one.args) for one in began] == [
            (name, f"c{at}", args) for at, (name, args) in enumerate(steps)
        ]
        assert [one.ok for one in ended] == [True] * 7 + [False] * 2
        assert [one.name for one in ended] == [name for name, _ in steps]
        metrics = heard.bodies("tool_execution_metrics")
        assert [one.call_id for one in metrics] == [f"c{at}" for at in range(len(steps))]
        assert all(one.ended_at_ms - one.started_at_ms >= 0 and one.duration_ms >= 0 for one in metrics)
        results = [one.text for one in told(script)]
        assert results[2:5] == ["src/a.py", "src/a.py:1:print('hello')", "a.py  15"]
        assert results[6] == "     1\tprint('hello')"
        assert results[7:] == [
            "../../etc/passwd is outside the working directory. Use a path inside it.",
            "edit_file: argument edits is missing",
        ]
        streams = {one.stream: one.delta for one in heard.bodies("tool_execution_output")}
        assert streams == {"stderr": "print('hello')\n", "stdout": "done\n"}


async def test_what_a_tool_stored_can_be_read_in_pages(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    script = Script(wanted("shell", command="seq 1 20000"), text("much"))
    async with agent_in(folder, script, store=tmp_path / "store") as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        await agent.collect_reply()
        path = heard.one("tool_execution_end").path
        assert f"read {path} with read_file" in told(script)[0].text
        assert len(told(script)[0].text) < 31_000
        script.replies = [wanted("read_file", "c2", path=path, offset=10_000, limit=2), text("seen")]
        await agent.prompt("and?")
        await agent.collect_reply()
        assert told(script)[-1].text.startswith(" 10000\t10000\n 10001\t10001\n")
        assert os.listdir(folder) == []


async def test_the_task_tool_names_the_kinds_of_sub_agents(tmp_path: Path) -> None:
    script = Script(wanted("task", description="count", prompt="count them", kind="reader"), text("three"), text("ok"))
    kinds = {"reader": SubAgent(description="reads and changes nothing"), "other": SubAgent()}
    async with agent_in(tmp_path, script, subagents=kinds) as agent:
        await agent.prompt("go")
        assert await agent.collect_reply() == "ok"
    (spec,) = [one for one in script.requests[0].tools if one.name == "task"]
    assert spec.description.endswith("Kinds of agent:\n- reader: reads and changes nothing\n- other")
    assert told(script)[0].text == "three"
