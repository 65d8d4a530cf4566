"""Test the journal: events are durable before subscribers get them, whatever the store does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quarterdeck import events as ev
from quarterdeck.engine.journal import Journal, activity_of
from quarterdeck.kernel.state import EMPTY
from quarterdeck.log import session_writer
from quarterdeck.log.base import Append, LogUnavailable, Receipt
from quarterdeck.log.memory import MemoryLog
from tests.support.engine import Gate, Heard, Script, calls, opened, text, tool


class Stubborn(MemoryLog):
    """A log whose appends fail while `refusing` is set and wait while `gate` is cleared."""

    def __init__(self) -> None:
        super().__init__(keep_deltas=True)
        self.refusing = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.sizes: list[int] = []

    async def append(self, append: Append) -> Receipt:
        await self.gate.wait()
        if self.refusing:
            raise LogUnavailable("the disk is full")
        self.sizes.append(len(append.events))
        return await super().append(append)


def opened_journal(log: Any) -> Journal:
    journal = Journal("s", log, log)
    journal.write((ev.SessionOpened(agent="builtin"),), "user")
    return journal


async def test_nothing_is_heard_before_it_is_durable() -> None:
    log = Stubborn()
    journal = opened_journal(log)
    await journal.flush()
    stream = journal.subscribe(None, None)
    log.gate.clear()
    journal.write((ev.AgentReady(),))
    assert journal.state.process.value == "up"
    waiting = asyncio.ensure_future(anext(stream))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    log.gate.set()
    assert (await waiting).type == "agent_ready"


async def test_what_comes_during_an_append_shares_the_next_and_nobody_waits_for_what_came_later() -> None:
    log = Stubborn()
    journal = opened_journal(log)
    await journal.flush()
    log.gate.clear()
    journal.write((ev.AgentReady(),))
    first = asyncio.ensure_future(journal.flush())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for _ in range(50):
        journal.write((ev.Notice(text="x"),))
    log.gate.set()
    await first
    await journal.flush()
    assert log.sizes == [1, 1, 50]


async def test_a_store_that_refuses_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_writer, "RETRY_S", 0.001)

    log = Stubborn()
    async with opened(Script(text("hi")), log=log) as agent:
        heard = Heard(agent)
        log.refusing = True
        with pytest.raises(LogUnavailable):
            await agent.prompt("go")
        log.refusing = False
        await heard.until("prompt_received")
        assert await settled_reply(agent)
        assert [event.index for event in heard.events] == list(range(3, 3 + len(heard.events)))


async def settled_reply(agent: Any) -> bool:
    """Wait for the turn to end and return whether the agent is idle. Without acknowledged text the turn may fail."""
    await agent._runtime.wait_until_idle()
    return agent.status().state == "idle"


async def test_no_tool_runs_before_its_call_is_durable() -> None:
    log, gate = Stubborn(), Gate("wait")
    async with opened(Script([*calls(("c1", "wait"))], text("ok")), log=log, tools=[gate.tool]) as agent:
        await agent.prompt("go")
        log.gate.clear()
        for _ in range(30):
            await asyncio.sleep(0)
        assert not gate.began.is_set()
        log.gate.set()
        await gate.began.wait()
        gate.go.set()
        await agent.collect_reply()


async def test_a_listener_that_lags_reads_from_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarterdeck.engine.journal.TAIL", 3)

    log = MemoryLog(keep_deltas=True)
    async with opened(Script(*[text(*"abcdef") for _ in range(9)]), log=log) as agent:
        slow = agent.subscribe()
        for _ in range(9):
            await agent.prompt("go")
            await agent.collect_reply()
        journal = agent._runtime.journal
        assert journal._tail.floor > slow._follower.position
        last = journal.published
        seen = [(await anext(slow)).index for _ in range(last - 2)]
        assert seen == list(range(3, last + 1))
        waiting = asyncio.ensure_future(anext(slow))
        await asyncio.sleep(0)
        await agent.abort()
        assert (await waiting).type == "agent_abort"


async def test_without_a_log_a_listener_that_lags_misses_nothing() -> None:
    async with opened(Script(*[text(*"abcdef") for _ in range(9)])) as agent:
        slow = agent.subscribe()
        for _ in range(9):
            await agent.prompt("go")
            await agent.collect_reply()
        last = agent._runtime.journal.published
        seen = [(await anext(slow)).index for _ in range(last - 2)]
        assert seen == list(range(3, last + 1))


async def test_a_listener_that_leaves_is_forgotten() -> None:
    async with opened(Script(text("a"))) as agent:
        left, lost = agent.subscribe(), agent.subscribe()
        await left.aclose()
        assert [event async for event in left] == []
        del lost
        await agent.prompt("go")
        await agent.collect_reply()
        tail = agent._runtime.journal._tail
        assert (list(tail._retaining), tail._events) == ([], [])


async def test_an_idle_agent_holds_no_task() -> None:
    before = asyncio.all_tasks()
    async with opened(Script(calls(("c1", "echo")), text("hi")), tools=[tool("echo")]) as agent:
        assert asyncio.all_tasks() == before
        await agent.prompt("go")
        await agent.collect_reply()
        for _ in range(5):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == before


def test_an_activity_is_told_for_no_session_that_is_not_up() -> None:
    journal = Journal("s")
    journal.write((ev.SessionOpened(agent="builtin"), ev.AgentStart()))
    assert journal.index == 2
    assert activity_of(EMPTY, False) == "idle"
