"""Show seed 001's states, prompts, steering, abort, approvals and models, with real agents and a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from quarterdeck import QueueFull
from quarterdeck.engine.agent import Agent
from quarterdeck.engine.model import Finished, TextPiece
from quarterdeck.engine.plugins.base import Abort, Hold, Plugin
from quarterdeck.events import GateRequest
from quarterdeck.kernel.run import STATES
from quarterdeck.kernel.view import View, fold
from tests.conformance.marks import case
from tests.support.engine import Gate, Heard, Script, calls, judged, opened, text, tool


@pytest.fixture(autouse=True)
def lawful() -> Iterator[None]:
    with judged() as broken:
        yield
    assert broken == []


class Asks(Plugin):
    """Hold every call of these tools."""

    def __init__(self, *tools: str, timeout: float | None = None) -> None:
        self.tools = tools
        self.timeout = timeout

    def before_tool(self, name: str, args: dict[str, Any], call_id: str, context: Any) -> Hold | None:
        return Hold(GateRequest(hint="dangerous"), self.timeout) if name in self.tools else None


class In:
    """An agent in one of the four states, which the test can let continue."""

    def __init__(self, state: str, *more: Any, **settings: Any) -> None:
        self.state = state
        self.before, self.rest = asyncio.Event(), asyncio.Event()
        self.gate = Gate(**settings.pop("gate", {}))
        first = {
            "idle": [],
            "running": [self.before, *text("one")],
            "streaming": [TextPiece("on"), self.rest, TextPiece("e"), Finished("end")],
            "executing_tools": calls(("c1", "wait")),
        }[state]
        replies = [first] if first else []
        if state == "executing_tools":
            replies.append(text("after tools"))
        self.model = Script(*replies, *more)
        settings.setdefault("tools", [])
        self.opening = opened(self.model, **{**settings, "tools": [self.gate.tool, *settings["tools"]]})

    async def __aenter__(self) -> In:
        self.agent: Agent = await self.opening
        self.heard = Heard(self.agent)
        if self.state != "idle":
            await self.agent.prompt("first")
            await self.heard.until(
                {"running": "request_start", "streaming": "message_delta", "executing_tools": "tool_execution_start"}[
                    self.state
                ]
            )
            if self.state == "executing_tools":
                await self.gate.began.wait()
        assert self.agent.status().state == self.state
        return self

    def let_go(self) -> None:
        self.before.set()
        self.rest.set()
        self.gate.go.set()

    async def __aexit__(self, *_: Any) -> None:
        self.let_go()
        await self.agent.stop()


BUSY = ("running", "streaming", "executing_tools")
busy = pytest.mark.parametrize("state", BUSY)


# ------------------------------------------------------------------------------------------- 1.A, 1.B: states and edges


@case("1-001", "1-004", "1-007", "1-009")
@pytest.mark.parametrize("state", STATES)
async def test_the_state_says_what_the_loop_does(state: str) -> None:
    async with In(state) as at:
        status = at.agent.status()
        assert status.state == state
        assert len(at.model.requests) == (state != "idle")
        assert ("message_start" in at.heard.types) == (state == "streaming")
        assert status.tools == (("wait",) if state == "executing_tools" else ())


@case("1-002", "1-012", "1-020", "1-049", "1-058")
async def test_a_prompt_in_idle_begins_a_turn_at_once() -> None:
    async with In("idle", text("hello")) as at:
        receipt = await at.agent.prompt("hi")
        assert receipt.disposition == "started"
        assert at.agent.status().state == "running"
        received = await at.heard.until("prompt_received")
        assert received.text == "hi"
        await at.heard.until("agent_start")


@case("1-005", "1-021", "1-059")
@busy
async def test_a_prompt_while_busy_is_queued_and_changes_no_state(state: str) -> None:
    async with In(state, text("two")) as at:
        receipt = await at.agent.prompt("second")
        assert receipt.disposition == "queued"
        assert (at.agent.status().state, at.agent.status().queued) == (state, 1)
        assert (await at.heard.until("prompt_queued")).text == "second"
        at.let_go()
        await at.agent.collect_reply()
        assert [body.text for body in at.heard.bodies("prompt_received")] == ["first", "second"]


@case("1-022")
async def test_queued_texts_are_taken_one_a_turn_in_order() -> None:
    async with In("running", text("a"), text("b"), text("c")) as at:
        for name in "abc":
            await at.agent.prompt(name)
        at.let_go()
        assert await at.agent.collect_reply() == "c"
        await at.heard.until("agent_end", 4)
        order = [event.type for event in at.heard.of("prompt_received", "agent_start", "agent_end")]
        assert order == ["prompt_received", "agent_start", "agent_end"] * 4
        assert [body.text for body in at.heard.bodies("prompt_received")] == ["first", "a", "b", "c"]
        assert at.agent.status().queued == 0


@case("1-006", "1-024", "1-025", "1-008", "1-096", "1-097")
@pytest.mark.parametrize("state", ["running", "streaming"])
async def test_steering_waits_for_the_gap_before_the_next_request(state: str) -> None:
    async with In(state, text("steered"), text("prompted")) as at:
        await at.agent.prompt("queued")
        steered = await at.agent.steer("left")
        assert (steered.status, at.agent.status().steering, at.agent.status().state) == ("queued", 1, state)
        received = await at.heard.until("steering_received")
        assert (received.ref, received.text, received.status) == (steered.ref, "left", "queued")
        assert received.queued_at > 0
        at.let_go()
        await at.heard.until("agent_end", 2)
        applied = at.heard.one("steering_applied")
        assert (applied.refs, applied.count) == ((steered.ref,), 1)
        assert at.model.requests[1].messages[-1].text == "left"
        assert at.model.requests[2].messages[-1].text == "queued"


@case("1-010", "1-026", "1-081", "1-098")
async def test_steering_kills_what_can_be_killed_and_waits_for_the_rest() -> None:
    immune = Gate("firm", immune=True)
    steady = Gate("steady", killable=False)
    soft = Gate("soft")
    model = Script(calls(("c1", "soft"), ("c2", "firm"), ("c3", "steady")), text("done"), text("next"))
    async with opened(model, tools=[soft.tool, immune.tool, steady.tool]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        for one in (soft, immune, steady):
            await one.began.wait()
        assert (await agent.prompt("later")).disposition == "queued"
        await agent.steer("stop that")
        skipped = await heard.until("tool_skipped_for_steering")
        assert (skipped.name, skipped.call_id) == ("soft", "c1")
        assert skipped.reason
        await soft.ended.wait()
        assert soft.cancelled
        assert not immune.ended.is_set()
        assert "steering_applied" not in heard.types
        assert agent.status().state == "executing_tools"
        immune.go.set()
        steady.go.set()
        await heard.until("agent_end", 2)
        assert [body.call_id for body in heard.bodies("tool_execution_end")] == ["c2", "c3"]
        assert len(heard.bodies("tool_skipped_for_steering")) == 1
        results = model.requests[1].messages[-2]
        assert [part.ok for part in results.parts] == [False, True, True]
        assert model.requests[1].messages[-1].text == "stop that"


async def test_calls_that_have_not_begun_are_skipped_for_a_text_that_waits() -> None:
    alone = Gate("alone", parallel=False, killable=False)
    model = Script(calls(("c1", "alone"), ("c2", "alone")), text("done"))
    async with opened(model, tools=[alone.tool]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        await alone.began.wait()
        await agent.steer("no")
        assert (await heard.until("tool_skipped_for_steering")).call_id == "c2"
        alone.go.set()
        await heard.until("agent_end")
        assert [body.call_id for body in heard.bodies("tool_execution_end")] == ["c1"]


@case("1-003", "1-023")
async def test_steering_in_idle_is_a_prompt() -> None:
    async with In("idle", text("hello")) as at:
        steered = await at.agent.steer("hi")
        assert steered.status == "prompted"
        assert at.agent.status().state == "running"
        assert await at.agent.collect_reply() == "hello"
        assert at.heard.one("steering_received").status == "prompted"
        assert at.heard.one("prompt_received").text == "hi"
        assert "steering_applied" not in at.heard.types


@case("1-027", "1-028")
@pytest.mark.parametrize("limit", [None, 1, 5])
async def test_the_steering_queue_is_full_at_its_limit(limit: int | None) -> None:
    settings = {} if limit is None else {"max_steering_queue": limit}
    async with In("streaming", text("done"), **settings) as at:
        room = limit or 3
        for number in range(room):
            await at.agent.steer(f"text {number}")
        with pytest.raises(QueueFull) as full:
            await at.agent.steer("one too many")
        assert full.value.code == "queue_full"
        assert at.agent.status().steering == room
        last = await at.heard.until("steering_received", room + 1)
        assert (last.status, last.text) == ("rejected_full", "one too many")


@case("1-029")
async def test_a_plugin_may_refuse_one_steering_text() -> None:
    class Picky(Plugin):
        def before_steering(self, said: str, context: Any) -> Abort | None:
            return Abort("not that") if said == "bad" else None

    async with In("streaming", text("done"), plugins=[Picky()]) as at:
        await at.agent.steer("good")
        with pytest.raises(Exception, match="not that"):
            await at.agent.steer("bad")
        await at.agent.steer("fine")
        assert at.agent.status().steering == 2
        at.let_go()
        await at.heard.until("agent_end")
        assert [part.text for part in at.model.requests[1].messages[-1].parts] == ["good", "fine"]
        assert [body.status for body in at.heard.bodies("steering_received")] == ["queued", "rejected", "queued"]


@case("1-030")
async def test_all_that_waits_is_merged_in_order_once() -> None:
    async with In("streaming", text("done")) as at:
        refs = tuple([(await at.agent.steer(name)).ref for name in ("a", "b", "c")])
        at.let_go()
        await at.heard.until("agent_end")
        applied = at.heard.one("steering_applied")
        assert (applied.refs, applied.count) == (refs, 3)
        assert [part.text for part in at.model.requests[1].messages[-1].parts] == ["a", "b", "c"]
        assert len(at.model.requests) == 2


@case("1-011")
async def test_every_state_that_is_ever_seen_is_one_of_the_four() -> None:
    """Check the states of a long turn at every event."""

    model = Script(*[calls((f"c{n}", "echo")) for n in range(5)], text("one"), text("two"))
    async with opened(model, tools=[tool("echo")], plugins=[Asks("echo", timeout=0)], event_buffer_size=1000) as agent:
        await agent.prompt("go")
        await agent.prompt("again")
        await agent.collect_reply()
        heard = Heard(agent, since=0)
    view, seen = View(), list[str]()
    for event in await heard.end():
        view = fold(view, event)
        seen.append(view.state.run.value)
    assert set(seen) == set(STATES)
    assert len(seen) > 50


@case("1-013", "1-016")
async def test_the_first_chunk_streams_and_the_end_is_idle() -> None:
    async with In("running") as at:
        at.before.set()
        await at.heard.until("message_start")
        await at.heard.until("agent_end")
        assert at.agent.status().state == "idle"


@case("1-014")
async def test_a_stream_without_a_chunk_is_finished_like_any_other() -> None:
    async with opened(Script([Finished("end")])) as agent:
        heard = Heard(agent)
        await agent.prompt("hi")
        assert await agent.collect_reply() == ""
        await heard.until("agent_end")
        assert "message_start" not in heard.types
        assert heard.one("response_complete").blocks == ()
        assert agent.status().state == "idle"


@case("1-015", "1-017", "1-018", "1-074")
async def test_calls_are_executed_and_the_next_request_follows() -> None:
    async with In("executing_tools") as at:
        assert at.heard.one("tool_calls").count == 1
        at.let_go()
        await at.heard.until("request_start", 2)
        await at.heard.until("agent_end")
        assert at.agent.status().state == "idle"
        order = [t for t in at.heard.types if t in ("response_complete", "tool_calls", "request_start", "agent_end")]
        assert order == [
            "request_start",
            "response_complete",
            "tool_calls",
            "request_start",
            "response_complete",
            "agent_end",
        ]


# ------------------------------------------------------------------------------------------------------- 1.E: abort


@case("1-031")
async def test_an_abort_in_idle_does_nothing_and_is_said() -> None:
    async with In("idle") as at:
        await at.agent.abort()
        aborted = await at.heard.until("agent_abort")
        assert aborted.reason is None
        assert at.agent.status().state == "idle"
        assert at.model.requests == []


@case("1-019", "1-032", "1-033", "1-051")
@pytest.mark.parametrize("state", ["running", "streaming"])
async def test_an_abort_cancels_the_stream(state: str) -> None:
    async with In(state) as at:
        await at.agent.abort(reason="enough")
        assert at.agent.status().state == "idle"
        assert (await at.heard.until("agent_abort")).reason == "enough"
        at.let_go()
        await at.agent._runtime.wait_until_unwound()
        assert at.model.closed == 1
        assert "agent_end" not in at.heard.types
        assert "response_complete" not in at.heard.types


@case("1-052")
async def test_an_abort_without_a_reason_says_none() -> None:
    async with In("streaming") as at:
        await at.agent.abort()
        assert (await at.heard.until("agent_abort")).reason is None


@case("1-034", "1-080")
@pytest.mark.parametrize("kill", ["killable", "all", "none"])
async def test_an_abort_kills_tools_by_its_option(kill: Any) -> None:
    firm, soft = Gate("firm", immune=True), Gate("soft", killable=False)
    model = Script(calls(("c1", "soft"), ("c2", "firm")))
    async with opened(model, tools=[soft.tool, firm.tool]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        await soft.began.wait()
        await firm.began.wait()
        await agent.abort(reason="stop", kill_tools=kill)
        assert agent.status().state == "idle"
        await heard.until("agent_abort")
        killed = {"killable": ["soft"], "all": ["soft", "firm"], "none": []}[kill]
        told = heard.bodies("tool_killed")
        assert [body.name for body in told] == killed
        assert all(body.reason == "stop" and body.call_id for body in told)
        going_on = [gate for gate in (soft, firm) if gate.tool.name not in killed]
        for gate in (soft, firm):
            if gate not in going_on:
                await gate.ended.wait()
                assert gate.cancelled
        assert [body.title for body in heard.bodies("background_started")] == [one.tool.name for one in going_on]
        for gate in going_on:
            assert not gate.ended.is_set()
            gate.go.set()
        if going_on:
            await heard.until("background_ended", len(going_on))
            assert len(heard.bodies("tool_execution_end")) == len(going_on)


@case("1-035")
@pytest.mark.parametrize("state", STATES)
async def test_the_abort_is_heard_before_anything_else_happens(state: str) -> None:
    """Tools that ignore cancellation and plugins that never return don't delay an abort (timed in bench/engine.py)."""

    class Slow(Plugin):
        async def after_turn(self, payload: Any, context: Any) -> None:
            await asyncio.sleep(3600)

    async def stubborn(args: Any, hands: Any) -> str:
        began.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await never.wait()
        return "late"

    began: asyncio.Event
    never: asyncio.Event

    began, never = asyncio.Event(), asyncio.Event()
    async with In(state, plugins=[Slow()]) as at:
        await at.agent.abort()
        await at.heard.until("agent_abort")
        assert at.agent.status().state == "idle"
    model = Script(calls(("c1", "stubborn")))
    async with opened(model, tools=[tool("stubborn", stubborn)]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        await began.wait()
        await agent.abort()
        await heard.until("agent_abort")
        never.set()


@case("1-036", "1-060")
async def test_an_abort_may_drop_the_queue() -> None:
    async with In("streaming") as at:
        for name in ("a", "b"):
            await at.agent.prompt(name)
        dropped = await at.agent.abort(clear_queue=True)
        assert dropped.dropped == ("a", "b")
        await at.heard.until("agent_abort")
        assert [body.text for body in at.heard.bodies("prompt_dropped")] == ["a", "b"]
        assert (at.agent.status().state, at.agent.status().queued) == ("idle", 0)


async def test_an_abort_keeps_the_queue_unless_it_is_told_otherwise() -> None:
    async with In("streaming", text("next")) as at:
        await at.agent.prompt("next")
        await at.agent.abort()
        assert await at.agent.collect_reply() == "next"


# --------------------------------------------------------------------------------------------- 1.F: approve and reject


class Waiting(In):
    """An agent that waits for an approval."""

    def __init__(self, *more: Any, timeout: float | None = None, **settings: Any) -> None:
        self.ran: list[dict[str, Any]] = []
        risky = tool("risky", lambda args, hands: self.ran.append(args) or "done it")
        settings["tools"] = [risky, *settings.get("tools", ())]
        settings["plugins"] = [Asks("risky", timeout=timeout), *settings.get("plugins", ())]
        super().__init__("idle", calls(("c1", "risky", '{"n": 1}')), *more, **settings)

    async def __aenter__(self) -> Waiting:
        await super().__aenter__()
        await self.agent.prompt("go")
        self.required = await self.heard.until("approval_required")
        return self


@case("1-037", "1-089")
async def test_a_dangerous_call_is_held_in_idle() -> None:
    async with Waiting() as at:
        status = at.agent.status()
        assert (status.state, status.activity, status.phase) == (
            "idle",
            "active/waiting_for_permission",
            "waiting_approval",
        )
        assert at.ran == []
        gate = at.required.gate
        assert (gate.tool, gate.args, gate.hint, gate.call_id) == ("risky", {"n": 1}, "dangerous", "c1")
        assert gate.gate_id in status.approvals
        assert gate.requested_at > 0
        assert "agent_end" not in at.heard.types


@case("1-038", "1-040", "1-053", "1-090")
async def test_an_approval_goes_on_with_the_held_call_in_one_batch() -> None:
    async with Waiting(text("fine")) as at:
        await at.agent.approve(at.required.gate.gate_id)
        assert at.agent.status().state == "executing_tools"
        assert await at.agent.collect_reply() == "fine"
        start = at.heard.types.index("approval_resolved")
        assert at.heard.types[start : start + 3] == ["approval_resolved", "agent_resumed", "tool_execution_start"]
        resolved = at.heard.one("approval_resolved")
        assert (resolved.status, resolved.gate) == ("approved", at.required.gate)
        assert at.heard.one("agent_resumed").trigger == "tool_approved"
        assert at.ran == [{"n": 1}]
        assert len(at.model.requests) == 2


@case("1-041", "1-054", "1-091", "X-034")
async def test_a_refusal_that_goes_on_tells_the_model() -> None:
    async with Waiting([asyncio.Event(), *text("fine")]) as at:
        await at.agent.reject(auto_resume=True, reason="too risky")
        assert (at.agent.status().state, at.agent.status().phase) == ("running", "streaming")
        assert (await at.heard.until("approval_resolved")).status == "rejected"
        assert (await at.heard.until("agent_resumed")).trigger == "tool_rejected"
        await at.heard.until("request_start", 2)
        result = at.model.requests[1].messages[-1].parts[0]
        assert not result.ok
        assert "too risky" in result.text
        assert at.ran == []


@case("1-042", "X-035")
async def test_an_approval_that_does_not_go_on_is_remembered() -> None:
    async with Waiting(calls(("c2", "risky", '{"n": 1}')), text("done")) as at:
        await at.agent.approve(auto_resume=False)
        aborted = await at.heard.until("agent_abort")
        assert aborted.reason
        assert (at.agent.status().state, at.agent.status().phase) == ("idle", "stopped")
        assert at.ran == []
        await at.agent.prompt("now")
        assert await at.agent.collect_reply() == "done"
        assert at.ran == [{"n": 1}]
        assert len(at.heard.bodies("approval_required")) == 1
        told = at.model.requests[1].messages
        assert "interrupted" in told[2].parts[0].text


@case("1-039", "1-043", "X-033")
async def test_a_refusal_closes_the_turn() -> None:
    async with Waiting() as at:
        await at.agent.reject()
        await at.heard.until("agent_abort")
        status = at.agent.status()
        assert (status.state, status.activity, status.phase) == ("idle", "idle", "stopped")
        assert (await at.heard.until("approval_resolved")).status == "rejected"
        assert "agent_resumed" not in at.heard.types
        assert at.ran == []


@case("1-055", "1-092", "X-036")
async def test_nobody_answers_in_time() -> None:
    async with Waiting([asyncio.Event()], timeout=0.01) as at:
        assert at.required.gate.deadline is not None
        assert (await at.heard.until("approval_resolved")).status == "timeout"
        assert (await at.heard.until("agent_resumed")).trigger == "tool_approval_timeout"
        await at.heard.until("request_start", 2)
        assert (at.agent.status().state, at.agent.status().phase) == ("running", "streaming")
        assert not at.model.requests[1].messages[-1].parts[0].ok
        assert at.ran == []


@case("X-032", "X-037")
async def test_texts_wait_while_a_call_is_held_unless_they_supersede_it() -> None:
    async with Waiting(text("other"), text("queued")) as at:
        assert (await at.agent.prompt("queued")).disposition == "queued"
        assert (await at.agent.steer("hm")).status == "queued"
        await asyncio.sleep(0)
        assert (at.agent.status().queued, at.agent.status().state) == (1, "idle")
        assert len(at.model.requests) == 1
        await at.agent.prompt("other", supersede=True)
        resolved = await at.heard.until("approval_resolved")
        assert (resolved.status, resolved.reason) == ("superseded", "superseded")
        await at.heard.until("agent_end", 2)
        order = [event.type for event in at.heard.of("approval_resolved", "agent_abort", "prompt_received")]
        assert order == [
            "prompt_received",
            "approval_resolved",
            "agent_abort",
            "prompt_received",
            "prompt_received",
        ]
        assert [body.text for body in at.heard.bodies("prompt_received")] == ["go", "other", "queued"]
        assert at.ran == []


async def test_an_abort_withdraws_what_is_asked() -> None:
    async with Waiting() as at:
        await at.agent.abort()
        assert (await at.heard.until("approval_resolved")).status == "withdrawn"
        assert at.agent.status().approvals == ()


async def test_an_approval_beside_a_running_call() -> None:
    gate = Gate("wait")
    model = Script(calls(("c1", "wait"), ("c2", "risky")), text("done"))
    async with opened(model, tools=[gate.tool, tool("risky")], plugins=[Asks("risky")]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        await heard.until("approval_required")
        await gate.began.wait()
        assert agent.status().state == "executing_tools"
        gate.go.set()
        await heard.until("tool_execution_end")
        assert agent.status().state == "idle"
        await agent.approve("c2")
        assert await agent.collect_reply() == "done"


# ---------------------------------------------------------------------------------------------------- 1.G: switch_model


class Models:
    """Models by name, for tests that switch models."""

    def __init__(self, **models: Script) -> None:
        self.models = models

    def __call__(self, name: str, options: Any) -> tuple[Script, str]:
        own = name.partition(":")[2]
        return self.models[own], own


@case("1-044", "1-105")
async def test_a_switch_in_idle_counts_from_the_next_prompt() -> None:
    one, two = Script(), Script(text("from two"), name="two")
    async with opened(one, resolve=Models(two=two)) as agent:
        heard = Heard(agent)
        assert await agent.switch_model("scripted:two")
        switched = await heard.until("model_switched")
        assert (switched.from_, switched.to, switched.provider_opts_changed) == (
            "scripted:one",
            "scripted:two",
            False,
        )
        await agent.prompt("hi")
        assert await agent.collect_reply() == "from two"
        assert one.requests == []
        assert two.requests[0].model == "two"


@case("1-045")
@busy
async def test_a_switch_while_busy_counts_from_the_next_turn(state: str) -> None:
    two = Script(text("from two"), name="two")
    async with In(state, resolve=Models(two=two)) as at:
        await at.agent.switch_model("scripted:two")
        assert at.agent.status().model == "scripted:two"
        await at.heard.until("model_switched")
        at.let_go()
        await at.agent.collect_reply()
        assert len(two.requests) == 0
        await at.agent.prompt("next")
        assert await at.agent.collect_reply() == "from two"


@case("1-046")
@pytest.mark.parametrize("state", STATES)
async def test_a_switch_to_the_same_model_is_nothing(state: str) -> None:
    async with In(state) as at:
        assert not await at.agent.switch_model("scripted:one")
        await at.agent.abort()
        await at.heard.until("agent_abort")
        assert "model_switched" not in at.heard.types


@case("1-047")
async def test_a_switch_keeps_everything_else() -> None:
    class Counts(Plugin):
        state = 0

        def before_request(self, messages: Any, context: Any) -> None:
            self.state += 1

    plugin, two = Counts(), Script(text("two"), name="two")
    async with opened(Script(text("one")), tools=[tool("echo")], plugins=[plugin], resolve=Models(two=two)) as agent:
        heard = Heard(agent)
        await agent.prompt("hi")
        await agent.collect_reply()
        before = agent.messages
        await agent.switch_model("scripted:two", {"temperature": 0})
        assert (await heard.until("model_switched")).provider_opts_changed
        assert (agent.messages, agent.tools, plugin.state) == (before, ("echo",), 1)
        await agent.prompt("again")
        await agent.collect_reply()
        assert two.requests[0].messages[:2] == before
        assert two.requests[0].options == {"temperature": 0}
        assert [spec.name for spec in two.requests[0].tools] == ["echo"]
        assert plugin.state == 2


# ------------------------------------------------------------------------------------------------ every call anywhere

CALLS = {
    "prompt": lambda agent: agent.prompt("x"),
    "steer": lambda agent: agent.steer("x"),
    "abort": lambda agent: agent.abort(),
    "approve": lambda agent: agent.approve(),
    "reject": lambda agent: agent.reject(),
    "switch_model": lambda agent: agent.switch_model("scripted:two"),
}
#: For each call: the event that it causes in a state (None is any other state), or None if there is none.
AFTER = {
    "prompt": {"idle": "prompt_received", None: "prompt_queued"},
    "steer": {"idle": "prompt_received", None: "steering_received"},
    "abort": {None: "agent_abort"},
    "approve": {None: None},
    "reject": {None: None},
    "switch_model": {None: "model_switched"},
}


@case("1-122")
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("state", STATES)
async def test_every_call_in_every_state(name: str, state: str) -> None:
    two = Script(text("two"), name="two")
    first = [asyncio.Event(), *text("more")] if state == "idle" else text("more")
    async with In(state, first, text("and more"), resolve=Models(two=two)) as at:
        before = len(at.heard.types)
        await CALLS[name](at.agent)
        said = AFTER[name].get(state, AFTER[name].get(None))
        if said is not None:
            await at.heard.until(said, sum(t == said for t in at.heard.types[:before]) + 1)
        after = {"abort": "idle"}.get(name, "running" if state == "idle" and name in ("prompt", "steer") else state)
        if name == "steer" and state == "executing_tools":
            # Steering killed the tool, so the next request may be on its way already.
            after = at.agent.status().state
            assert after in ("executing_tools", "running", "streaming")
        assert at.agent.status().state == after
