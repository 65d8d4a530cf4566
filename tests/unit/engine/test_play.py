"""Give agents random commands at random times, and check that their state is always the fold of their events.

conftest.py also checks every batch against the product's rules. A resumed agent must equal the one before.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quarterdeck.engine.conversation import conversation_of
from quarterdeck.engine.factory import read_all_events, resume
from quarterdeck.engine.model import (
    Call,
    CallBegun,
    CallPiece,
    Finished,
    Message,
    ModelError,
    Request,
    Result,
    TextPiece,
    ThinkingPiece,
)
from quarterdeck.engine.options import RetryPolicy
from quarterdeck.engine.plugins.base import Abort, BlockTool, Hold, Intervene, Plugin
from quarterdeck.engine.tools.base import Outcome, Tool
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import GateRequest, TokenUsage
from quarterdeck.kernel.view import fold_all
from quarterdeck.log.memory import MemoryLog
from tests.support.engine import opened, tool

TOOLS = ("quick", "fails", "waits", "firm", "alone", "risky", "asks", "task", "gone")
replies = st.one_of(
    st.builds(
        lambda said: [*map(TextPiece, said), Finished("end", TokenUsage(input=5))], st.lists(st.text(max_size=3))
    ),
    st.builds(
        lambda names, said: [
            ThinkingPiece("hm"),
            *([TextPiece(said)] if said else []),
            *(CallBegun(n, f"c{n}", name) for n, name in enumerate(names)),
            *(CallPiece(n, "{}" if name != "fails" else '{"a": 1}') for n, name in enumerate(names)),
            Finished("tools"),
        ],
        st.lists(st.sampled_from(TOOLS), min_size=1, max_size=3),
        st.sampled_from(["", "let me see", "<status>busy</status>"]),
    ),
    st.sampled_from(
        [
            [TextPiece("half"), ModelError("network", "reset", is_transient=True)],
            [TextPiece("cut")],
            [ModelError("overflow", "too long")],
            [ModelError("auth", "no key")],
            [CallBegun(0, "x", "quick"), CallPiece(0, "[broken"), Finished("tools")],
        ]
    ),
)
actions = st.sampled_from(
    [
        *["prompt", "steer", "approve", "reject", "go", "wait"] * 2,
        *["abort", "abort all", "abort none", "abort clear", "approve later", "reject on", "respond", "supersede"],
        *["compact", "switch", "detach", "attach"],
    ]
)


class Wild:
    """A model that returns the drawn replies, one chunk per pass of the loop, and then `done`."""

    provider = "wild"

    def __init__(self, drawn: list[list[Any]], name: str = "one") -> None:
        self.drawn = drawn
        self.name = name

    async def stream(self, request: Request) -> Any:
        check(request.messages)
        for chunk in self.drawn.pop(0) if self.drawn else [TextPiece("done"), Finished("end")]:
            await asyncio.sleep(0)
            if isinstance(chunk, Exception):
                raise chunk
            yield [chunk]


def check(messages: Any) -> None:
    """Check what providers require: no two user messages in a row, and every call has a result in the next message."""
    before: Message | None = None
    for message in messages:
        assert message.parts
        if before is not None:
            assert (before.role, message.role) != ("user", "user")
            wanted = [part.call_id for part in before.parts if isinstance(part, Call)]
            given = [part.call_id for part in message.parts if isinstance(part, Result)]
            assert (message.role == "tool") == bool(wanted)
            assert given == wanted
        before = message
    assert before is None or not before.calls


class Meddles(Plugin):
    """A plugin that interferes with every hook now and then."""

    state = 0

    def before_tool(self, name: str, args: Any, call_id: str, context: Any) -> Any:
        self.state += 1
        if name == "risky":
            return Hold(GateRequest(), timeout=None)
        return BlockTool("the seventh") if self.state % 7 == 0 else None

    def after_tool(self, name: str, call_id: str, outcome: Any, context: Any) -> Any:
        return Intervene("mind the gap") if self.state % 5 == 0 else None

    def after_response(self, message: Any, context: Any) -> Any:
        self.state += 1
        return Abort("enough") if self.state % 11 == 0 else None


class Waits:
    """Tools that wait until the test releases them."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, args: Any, hands: Any) -> str:
        await self.go.wait()
        return "let go"


def tools_of(waits: Waits) -> list[Tool]:
    def fails(args: Any, hands: Any) -> str:
        raise ValueError("no")

    async def asks(args: Any, hands: Any) -> str:
        return await hands.ask("Which?", patience=None)

    async def task(args: Any, hands: Any) -> Outcome:
        return await hands.delegate("look", "find it")

    return [
        tool("quick"),
        tool("fails", fails),
        tool("waits", waits),
        tool("firm", waits, immune=True),
        tool("alone", waits, parallel=False, killable=False),
        tool("risky"),
        tool("asks", asks),
        tool("task", task),
    ]


async def act(agent: Any, action: str, waits: Waits, number: int) -> None:
    name, _, how = action.partition(" ")
    match name:
        case "prompt" | "supersede":
            await agent.prompt(f"text {number}", supersede=name == "supersede")
        case "steer":
            await agent.steer(f"steer {number}")
        case "abort":
            await agent.abort(
                reason="told to", kill_tools=how if how in ("all", "none") else "killable", clear_queue=how == "clear"
            )
        case "approve":
            await agent.approve(auto_resume=how != "later")
        case "reject":
            await agent.reject(auto_resume=how == "on")
        case "respond":
            await agent.respond("", "that one")
        case "go":
            waits.go.set()
            waits.go = asyncio.Event()
        case "switch":
            await agent.switch_model(f"wild:{number}")
        case "detach":
            await agent.detach_tool("quick")
        case "attach":
            await agent.attach_tool(tool("quick"))
        case "compact":
            compaction = asyncio.ensure_future(agent.compact())
            await asyncio.sleep(0)
            compaction.add_done_callback(lambda done: done.exception())
        case _:
            await asyncio.sleep(0)


async def play(drawn: list[list[Any]], steps: list[tuple[str, int]]) -> None:
    log, waits = MemoryLog(), Waits()
    model = Wild(drawn)
    common: Any = {"tools": tools_of(waits), "resolve": lambda name, _: (model, name), "retry": RetryPolicy(2, 0, 0)}
    agent = await opened(model, log=log, plugins=[Meddles()], **common)
    for number, (action, passes) in enumerate(steps):
        with suppress(QuarterdeckError):  # A refusal is a valid outcome.
            await act(agent, action, waits, number)
        for _ in range(passes):
            await asyncio.sleep(0)
    while agent._runtime.journal._writer._pending:
        await agent._runtime.journal.flush()
    check(agent.messages)
    core = agent._runtime
    events = await read_all_events(log, agent.session_id)
    assert core.journal.conversation == conversation_of(event.body for event in events)
    assert core.journal.state == fold_all(events).state
    await agent.stop()
    back = await resume(agent.session_id, log=log, model=model, plugins=[Meddles()], **common)
    assert back.messages == agent.messages
    assert back._runtime.queued_prompts() == core.queued_prompts()
    assert back._runtime.steering_refs() == core.steering_refs()
    assert back._runtime.hooks.plugins[0].state == core.hooks.plugins[0].state
    waits.go.set()
    await back.stop()


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.lists(replies, min_size=1, max_size=6),
    st.lists(st.tuples(actions, st.integers(0, 9)), min_size=1, max_size=12),
)
def test_what_an_agent_holds_is_the_fold_of_what_it_said(drawn: list[list[Any]], steps: list[tuple[str, int]]) -> None:
    asyncio.run(asyncio.wait_for(play([list(one) for one in drawn], [("prompt", 3), *steps]), 20))
