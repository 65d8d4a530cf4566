"""Test that sessions resume from their logs, even after kill -9, without running a call twice."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quarterdeck import NoSuchSession, StaleFence
from quarterdeck import events as ev
from quarterdeck.engine.conversation import INTERRUPTED
from quarterdeck.engine.factory import resume
from quarterdeck.engine.plugins.base import Hold, Plugin
from quarterdeck.events import GateRequest
from quarterdeck.log.memory import MemoryLog
from quarterdeck.log.sqlite.store import SqliteLog
from tests.conformance.marks import case
from tests.support.engine import PATIENCE_S, Gate, Heard, Script, calls, opened, text, tool
from tests.unit.engine.victim import Counts, tools_in

ROOT = Path(__file__).parents[3]


async def test_after_kill_9(tmp_path: Path) -> None:
    store = tmp_path / "log.db"
    command = [sys.executable, "-m", "tests.unit.engine.victim", str(store), str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        # Everything that the victim has acknowledged must survive.
        assert {victim.stdout.readline(), victim.stdout.readline()} == {"running\n", "queued\n"}
        victim.send_signal(signal.SIGKILL)
        victim.wait(PATIENCE_S)

    log = await SqliteLog.open(store)
    model, plugin = Script(text("queued one"), text("asked")), Counts()
    agent = await resume("victim", log=log, model=model, plugins=[plugin], tools=tools_in(tmp_path))
    heard = Heard(agent)
    status = agent.status()
    assert (status.state, status.phase, status.queued) == ("idle", "paused", 1)
    assert [todo.content for todo in status.todos] == ["survive"]
    assert plugin.state == 3
    assert model.requests == []
    await agent.prompt("go on")
    assert await agent.collect_reply() == "asked"
    told = model.requests[0].messages
    assert [one.role for one in told] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
        "tool",
        "user",
    ]
    assert told[3].text == "first reply"
    # c2 was interrupted by the kill. c3, which ran at the same time, had ended.
    assert [(part.call_id, part.text) for part in told[6].parts] == [("c2", INTERRUPTED), ("c3", "planned")]
    assert told[7].text == "queued"
    assert model.requests[1].messages[-1].text == "go on"
    assert (tmp_path / "ran").read_text() == "once\n"
    assert [body.text for body in heard.bodies("prompt_received")] == ["queued", "go on"]
    await agent.stop()
    again = await resume("victim", log=log, model=model, tools=())
    assert again.messages == agent.messages
    assert again.status().phase == "paused"
    await again.stop()
    await log.close()


async def test_a_stopped_agent_is_the_same_again() -> None:
    log = MemoryLog()
    async with opened(Script(text("hi")), log=log, session_id="s") as agent:
        await agent.prompt("hello")
        await agent.collect_reply()
    async with resume("s", log=log, model=Script(text("again")), tools=()) as back:
        assert back.messages == agent.messages
        assert (back.status().phase, back.status().activity) == ("paused", "idle")
        await back.prompt("more")
        assert await back.collect_reply() == "again"
        assert len(back.messages) == 4


async def test_an_unknown_session_cannot_be_resumed() -> None:
    with pytest.raises(NoSuchSession):
        await resume("nobody", log=MemoryLog(), model=Script())


async def test_a_session_that_is_there_cannot_be_created_again() -> None:
    log = MemoryLog()
    async with opened(Script(), log=log, session_id="s"):
        with pytest.raises(StaleFence):
            await opened(Script(), log=log, session_id="s")


async def test_the_old_owner_is_fenced_off() -> None:
    log = MemoryLog()
    first = await opened(Script(), log=log, session_id="s")
    second = await resume("s", log=log, model=Script(text("mine")), tools=())
    with pytest.raises(Exception, match="another owner"):
        await first.prompt("still here?")
    await second.prompt("hi")
    assert await second.collect_reply() == "mine"
    await second.stop()


def risky(log: MemoryLog) -> Any:
    """Create an agent whose only call needs an approval."""
    return opened(Script(calls(("c1", "risky"))), log=log, session_id="s", tools=[tool("risky")], plugins=[Asks()])


class Asks(Plugin):
    def before_tool(self, name: str, args: Any, call_id: str, context: Any) -> Hold:
        return Hold(GateRequest())


async def test_what_was_held_is_not_asked_any_more_and_the_names_of_gates_do_not_come_again() -> None:
    log = MemoryLog()
    agent = await opened(
        Script(calls(("c1", "risky"))), log=log, session_id="s", tools=[tool("risky")], plugins=[Asks()]
    )
    heard = Heard(agent)
    await agent.prompt("go")
    first = (await heard.until("approval_required")).gate.gate_id
    # Simulate a kill: the first agent writes nothing more.
    model = Script(calls(("c2", "risky")), text("ok"))
    back = await resume("s", log=log, model=model, tools=[tool("risky")], plugins=[Asks()])
    assert (back.status().approvals, back.status().phase) == ((), "paused")
    heard = Heard(back)
    await back.prompt("again")
    second = (await heard.until("approval_required")).gate.gate_id
    assert second != first
    assert model.requests[0].messages[2].parts[0].text == INTERRUPTED
    await back.stop()


@case("1-042")
async def test_an_approval_that_was_given_for_later_outlives_the_process() -> None:
    log = MemoryLog()
    agent = await opened(
        Script(calls(("c1", "risky"))), log=log, session_id="s", tools=[tool("risky")], plugins=[Asks()]
    )
    heard = Heard(agent)
    await agent.prompt("go")
    await heard.until("approval_required")
    await agent.approve(auto_resume=False)
    model = Script(calls(("c2", "risky")), text("done"))
    back = await resume("s", log=log, model=model, tools=[tool("risky")], plugins=[Asks()])
    await back.prompt("now")
    assert await back.collect_reply() == "done"
    await back.stop()


async def test_steering_that_was_not_merged_waits_for_the_next_turn() -> None:
    log, gate = MemoryLog(), Gate("firm", killable=False)
    agent = await opened(Script(calls(("c1", "firm"))), log=log, session_id="s", tools=[gate.tool])
    await agent.prompt("go")
    await gate.began.wait()
    await agent.steer("left")
    model = Script(text("ok"))
    back = await resume("s", log=log, model=model, tools=[gate.tool])
    assert back.status().steering == 1
    await back.prompt("on")
    await back.collect_reply()
    assert [part.text for part in model.requests[0].messages[-1].parts] == ["on", "left"]
    await back.stop()
    gate.go.set()


async def test_a_history_to_start_from_is_in_the_log() -> None:
    from tests.conformance.test_part_1_events import HISTORY

    log = MemoryLog()
    async with opened(Script(), log=log, session_id="s", messages=HISTORY) as agent:
        assert [one.text for one in agent.messages] == [one.text for one in HISTORY]
        assert agent.status().state == "idle"
    async with resume("s", log=log, model=Script(), tools=()) as back:
        assert back.messages == agent.messages


async def test_the_model_is_the_last_one_it_had() -> None:
    log, two = MemoryLog(), Script(text("two"), name="two")
    async with opened(Script(), log=log, session_id="s", resolve=lambda name, _: (two, "two")) as agent:
        await agent.switch_model("scripted:two")
    async with resume("s", log=log, tools=(), resolve=lambda name, _: (two, name)) as back:
        assert back.model == "scripted:two"


async def test_a_plugin_that_cannot_be_restored_is_told() -> None:
    class Fragile(Plugin):
        state = 0

        def before_prompt(self, said: str, context: Any) -> None:
            self.state += 1

        def restore(self, state: Any) -> None:
            raise ValueError("not mine")

    log = MemoryLog()
    async with opened(Script(text("hi")), log=log, session_id="s", plugins=[Fragile()]) as agent:
        await agent.prompt("x")
        await agent.collect_reply()
    async with resume("s", log=log, model=Script(), tools=(), plugins=[Fragile()]):
        pass
    notices = [event.body for event in await log.read("s") if isinstance(event.body, ev.Notice)]
    assert [(one.level, "restore failed: ValueError: not mine" in one.text) for one in notices] == [("error", True)]
