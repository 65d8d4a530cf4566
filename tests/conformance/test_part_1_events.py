"""Show seed 001's events, and which of them subscribers get."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quarterdeck import AgentDown, AgentGone, StaleFence
from quarterdeck import events as ev
from quarterdeck.engine.model import Call, Finished, Message, ModelError, Text, TextPiece, ThinkingPiece, ThinkingSigned
from quarterdeck.engine.options import ResolvedOptions, RetryPolicy, SubAgent
from quarterdeck.engine.plugins.base import (
    HOOKS,
    Abort,
    BlockTool,
    Emit,
    Hold,
    Intervene,
    Plugin,
    ReplaceToolArgs,
    ReplaceToolResult,
    Skip,
)
from quarterdeck.engine.tools.base import Outcome
from quarterdeck.events import BY_NAME, GROUPS, GateRequest, Option, Todo, TokenUsage, decode_event, encode_event
from quarterdeck.log.base import Append
from quarterdeck.log.memory import MemoryLog
from tests.conformance.marks import case
from tests.support.engine import Gate, Heard, Script, calls, judged, opened, passing, run, text, tool

QUICK = RetryPolicy(attempts=2, first_s=0, longest_s=0)


@pytest.fixture(autouse=True)
def lawful() -> Iterator[None]:
    with judged() as broken:
        yield
    assert broken == []


def turn(*replies: Any, prompt: str = "go", **settings: Any) -> Heard:
    """Run one turn and return its events."""
    found: list[Heard] = []

    async def work() -> None:
        async with opened(Script(*replies), **settings) as agent:
            heard = Heard(agent)
            await agent.prompt(prompt)
            await agent._runtime.wait_until_idle()
        await heard.end()
        found.append(heard)

    run(work)
    return found[0]


# ------------------------------------------------------------------------------------------------------ 1.H: lifecycle


@case("1-048")
def test_the_outer_form_is_the_session_and_the_event() -> None:
    heard = turn(text("hi"), session_id="s-1")
    for event in heard.events:
        assert event.session_id == "s-1"
        flat = encode_event(event)
        assert decode_event(flat) == event
        assert flat.startswith(b'{"session_id":"s-1","index":')


@case("1-050")
def test_a_turn_ends_with_its_messages_and_its_tokens() -> None:
    heard = turn(calls(("c1", "echo"), say="look"), text("done"), tools=[tool("echo")])
    ended = heard.one("agent_end")
    assert ended.outcome == "completed"
    assert [one["role"] for one in ended.messages] == ["user", "assistant", "tool", "assistant"]
    assert ended.messages[-1]["parts"][0]["text"] == "done"
    assert ended.usage == TokenUsage(input=20, output=10, cost_usd=0.002)
    assert ended.usage.total_tokens == 30


def test_a_cost_that_is_not_known_stays_unknown() -> None:
    unknown = TokenUsage(input=1, output=1)
    heard = turn(calls(("c1", "echo")), text("done", usage=unknown), tools=[tool("echo")])
    assert heard.one("agent_end").usage == TokenUsage(input=11, output=6)


@case("1-056", "1-094", "1-095")
async def test_a_question_waits_for_its_answer() -> None:
    async def ask(args: Any, hands: Any) -> str:
        return await hands.ask("Which?", [Option(id="a", label="A"), Option(id="b", label="B")])

    async with opened(Script(calls(("c1", "ask")), text("thanks")), tools=[tool("ask", ask)]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        asked = await heard.until("ask_user")
        assert (asked.question, [one.id for one in asked.options], asked.call_id) == ("Which?", ["a", "b"], "c1")
        status = agent.status()
        assert (status.state, status.activity, status.phase) == (
            "executing_tools",
            "active/waiting_for_permission",
            "waiting_input",
        )
        await agent.respond(asked.ref, "b")
        assert await agent.collect_reply() == "thanks"
        answered = heard.one("user_responded")
        assert (answered.ref, answered.response, answered.status) == (asked.ref, "b", "answered")
        assert heard.one("agent_resumed").trigger == "user_respond"
        assert heard.one("tool_execution_end").result == "b"


@case("U-056")
def test_a_question_that_nobody_answers_is_an_error_to_the_model() -> None:
    async def ask(args: Any, hands: Any) -> str:
        return await hands.ask("Which?", patience=0.01)

    heard = turn(calls(("c1", "ask")), text("ok"), tools=[tool("ask", ask)])
    assert heard.one("user_responded").status == "timeout"
    ended = heard.one("tool_execution_end")
    assert not ended.ok
    assert "TimeoutError" in ended.result
    assert heard.one("ask_user").deadline is not None


@case("1-057")
async def test_steering_wakes_an_agent_that_was_done() -> None:
    gate = asyncio.Event()
    async with opened(Script([TextPiece("done"), gate, Finished("end")], text("more"))) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        await heard.until("message_delta")
        await agent.steer("and this")
        gate.set()
        await heard.until("agent_end")
        assert heard.one("agent_resumed").trigger == "steering"
        order = [event.type for event in heard.of("response_complete", "agent_resumed", "steering_applied")]
        assert order == ["response_complete", "agent_resumed", "steering_applied", "response_complete"]
        assert len(heard.bodies("agent_start")) == 1


@case("1-061")
async def test_a_plugin_refuses_a_prompt() -> None:
    class Picky(Plugin):
        async def before_prompt(self, said: str, context: Any) -> Abort | None:
            return Abort("too short") if len(said) < 3 else None

    model = Script(text("fine"))
    async with opened(model, plugins=[Picky()]) as agent:
        heard = Heard(agent)
        with pytest.raises(Exception, match="too short"):
            await agent.prompt("hi")
        rejected = await heard.until("prompt_rejected")
        assert (rejected.reason, rejected.text) == ("too short", "hi")
        assert "agent_start" not in heard.types
        assert model.requests == []
        assert agent.status().state == "idle"
        await agent.prompt("hello")
        assert await agent.collect_reply() == "fine"


# ------------------------------------------------------------------------------------------------------ 1.I: streaming


@case("1-062", "1-063", "1-064")
def test_a_text_is_started_once_and_grows_chunk_by_chunk() -> None:
    heard = turn(text("one ", "two ", "<status>x</status>", "three"))
    assert heard.types.count("message_start") == 1
    assert heard.types.index("message_start") < heard.types.index("message_delta")
    assert [body.delta for body in heard.bodies("message_delta")] == ["one ", "two ", "three"]
    (block,) = heard.one("response_complete").blocks
    assert block.text == "one two three"


@case("1-065", "1-066")
def test_reasoning_is_told_as_it_comes() -> None:
    heard = turn([ThinkingPiece("hm"), ThinkingPiece(" so"), ThinkingSigned("sig"), *text("answer")])
    assert heard.types.count("thinking_start") == 1
    assert heard.types.index("thinking_start") < heard.types.index("thinking_delta")
    assert [body.delta for body in heard.bodies("thinking_delta")] == ["hm", " so"]
    thought, said = heard.one("response_complete").blocks
    assert (thought.kind, thought.text, thought.signature, said.text) == ("thinking", "hm so", "sig", "answer")


@case("1-067", "1-068")
def test_inline_tags_become_events_and_leave_the_text() -> None:
    heard = turn(text("a<sta", "tus>reading</st", "atus>b<title>", "t" * 70, "</title>", "c"))
    assert heard.one("status_update").text == "reading"
    assert heard.one("title_generated").title == "t" * 60
    assert heard.one("response_complete").blocks[0].text == "abc"
    assert "".join(body.delta for body in heard.bodies("message_delta")) == "abc"


# -------------------------------------------------------------------------------------------------- 1.J: the provider


@case("1-069")
def test_a_request_says_its_model_and_how_many_messages_it_has() -> None:
    heard = turn(calls(("c1", "echo")), text("done"), tools=[tool("echo")])
    assert [(body.model, body.messages) for body in heard.bodies("request_start")] == [
        ("scripted:one", 1),
        ("scripted:one", 3),
    ]


@case("1-070", "1-072")
def test_a_stream_that_breaks_is_tried_again() -> None:
    broken = [TextPiece("half"), passing("connection reset")]
    heard = turn(broken, [passing("still down")], text("whole"), retry=QUICK)
    assert [body.reason for body in heard.bodies("stream_error")] == ["connection reset", "still down"]
    tries = [(body.attempt, body.delay_ms, body.reason) for body in heard.bodies("retry")]
    assert tries == [(1, 0, "connection reset"), (2, 0, "still down")]
    assert not heard.one("message_aborted").keep
    assert heard.one("agent_end").messages[-1]["parts"][0]["text"] == "whole"


def test_a_stream_that_ends_without_its_last_chunk_was_cut() -> None:
    heard = turn([TextPiece("half")], text("whole"), retry=QUICK)
    assert "ended before" in heard.one("stream_error").reason
    assert heard.one("agent_end").outcome == "completed"


def test_after_the_last_attempt_the_turn_fails() -> None:
    heard = turn([passing("down")], [passing("down")], [passing("down")], retry=QUICK)
    failed = heard.one("turn_failed")
    assert (failed.kind, failed.message) == ("rate_limit", "down")
    assert len(heard.bodies("retry")) == 2
    assert heard.one("agent_end").outcome == "failed"


@pytest.mark.parametrize("kind", ["auth", "payment", "invalid_model", "usage_limit"])
def test_a_failure_that_does_not_pass_is_told_as_it_is(kind: Any) -> None:
    heard = turn([ModelError(kind, "no", resets_at=7)], retry=QUICK)
    failed = heard.one("turn_failed")
    assert (failed.kind, failed.message, failed.resets_at) == (kind, "no", 7)
    assert "retry" not in heard.types
    assert heard.types[-4:] == ["turn_failed", "agent_end", "state_change", "session_suspended"]


def test_a_model_that_has_a_defect_fails_the_turn_and_no_more() -> None:
    heard = turn([ValueError("defect")])
    assert (heard.one("turn_failed").kind, heard.one("agent_end").outcome) == ("internal", "failed")


@case("1-071")
async def test_silence_is_a_stall() -> None:
    model = Script([TextPiece("a"), asyncio.Event()], text("whole"))
    async with opened(model, stall_after=0.02, retry=QUICK) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        assert await agent.collect_reply() == "whole"
        assert heard.one("stream_stalled").elapsed_s == 0.02
        assert heard.one("retry").attempt == 1
        assert model.closed == 2


HISTORY = [Message("user" if n % 2 == 0 else "assistant", (Text(f"message {n}"),)) for n in range(12)]


@case("1-073", "1-099", "1-100", "1-101")
async def test_a_context_that_is_too_long_is_shortened_once() -> None:
    seen: list[int] = []

    class Looks(Plugin):
        def before_compact(self, messages: Any, context: Any) -> None:
            seen.append(len(messages))

    model = Script([ModelError("overflow", "too long")], text("they talked"), text("short"))
    async with opened(model, messages=HISTORY, plugins=[Looks()]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        assert await agent.collect_reply() == "short"
        assert heard.one("context_overflow").reason == "too long"
        order = heard.of("context_overflow", "before_compact", "compact_start", "compact_end")
        assert [event.type for event in order] == [
            "context_overflow",
            "before_compact",
            "compact_start",
            "compact_end",
        ]
        assert heard.one("before_compact").messages == 13 == seen[0]
        ended = heard.one("compact_end")
        assert (ended.removed_count, ended.ok, ended.summary) == (7, True, "they talked")
        assert {event.session_id for event in heard.events} == {agent.session_id}
        told = model.requests[2].messages
        assert "they talked" in told[0].text
        assert [one.text for one in told[1:]] == [
            "message 7",
            "message 8",
            "message 9",
            "message 10",
            "message 11",
            "go",
        ]
        assert agent.messages[:-1] == told


def test_a_context_that_stays_too_long_fails_the_turn() -> None:
    overflow = ModelError("overflow", "too long")
    heard = turn([overflow], text("summary"), [overflow], messages=HISTORY)
    assert (heard.one("turn_failed").kind, heard.one("turn_failed").message) == ("api", "too long")


@case("U-051")
def test_a_plugin_may_leave_compaction_out() -> None:
    class Never(Plugin):
        def before_compact(self, messages: Any, context: Any) -> Skip:
            return Skip()

    heard = turn([ModelError("overflow", "too long")], messages=HISTORY, plugins=[Never()])
    assert "compact_start" not in heard.types
    assert heard.one("turn_failed").message == "too long"


# ---------------------------------------------------------------------------------------------------------- 1.K: tools


@case("1-075", "1-076", "1-078")
def test_a_tool_that_ends_well() -> None:
    heard = turn(calls(("c1", "echo", '{"a": 1}')), text("done"), tools=[tool("echo", lambda args, hands: "fine")])
    started, ended, took = (heard.one(f"tool_execution_{name}") for name in ("start", "end", "metrics"))
    assert (started.name, started.call_id, started.args) == ("echo", "c1", {"a": 1})
    assert (ended.name, ended.call_id, ended.ok, ended.result) == ("echo", "c1", True, "fine")
    assert (took.name, took.call_id) == ("echo", "c1")
    assert took.ended_at_ms - took.started_at_ms == took.duration_ms >= 0


@case("1-077", "1-078")
def test_a_tool_that_ends_badly() -> None:
    def fails(args: Any, hands: Any) -> str:
        raise ValueError("no such thing")

    heard = turn(calls(("c1", "fails")), text("done"), tools=[tool("fails", fails)])
    ended = heard.one("tool_execution_end")
    assert (ended.ok, ended.result) == (False, "ValueError: no such thing")
    assert heard.one("tool_execution_metrics").call_id == "c1"
    assert heard.one("agent_end").outcome == "completed"


@case("1-079")
def test_a_plugin_blocks_a_tool() -> None:
    ran: list[Any] = []

    class Guard(Plugin):
        def before_tool(self, name: str, args: Any, call_id: str, context: Any) -> BlockTool:
            return BlockTool("not here")

    heard = turn(calls(("c1", "echo")), text("ok"), tools=[tool("echo", lambda *_: ran.append(1))], plugins=[Guard()])
    blocked = heard.one("tool_blocked")
    assert (blocked.name, blocked.call_id, blocked.reason) == ("echo", "c1", "not here")
    assert ran == []
    assert "tool_execution_start" not in heard.types


@case("1-082", "1-083", "1-084", "1-085")
async def test_tools_come_and_go() -> None:
    model = Script(calls(("c1", "old")), text("hm"))
    async with opened(model, tools=[tool("old")]) as agent:
        heard = Heard(agent)
        await agent.attach_tool(tool("new"))
        assert (await heard.until("tool_attached")).name == "new"
        await agent.detach_tool("old")
        assert (await heard.until("tool_detached")).name == "old"
        await agent.attach_tool(tool("a"), tool("b"), detach=["new"])
        updated = await heard.until("tools_updated")
        assert (updated.attached, updated.detached) == (("a", "b"), ("new",))
        assert len(heard.bodies("tool_attached", "tool_detached")) == 2
        assert agent.tools == ("a", "b")
        await agent.prompt("go")
        assert await agent.collect_reply() == "hm"
        assert [spec.name for spec in model.requests[0].tools] == ["a", "b"]
        unknown = heard.one("tool_call_unknown")
        assert (unknown.name, unknown.call_id) == ("old", "c1")
        assert not model.requests[1].messages[-1].parts[0].ok


async def test_a_change_of_tools_is_whole_or_not_at_all() -> None:
    async with opened(Script(), tools=[tool("a")]) as agent:
        with pytest.raises(Exception, match="no such tool: b"):
            await agent.attach_tool(tool("new"), detach=["b"])
        assert agent.tools == ("a",)


def test_arguments_that_are_no_object_are_told_to_the_model() -> None:
    heard = turn(calls(("c1", "echo", "[1")), text("ok"), tools=[tool("echo")])
    assert "[1" in heard.one("tool_blocked").reason
    block = heard.bodies("response_complete")[0].blocks[0]
    assert (block.args, block.text) == ({}, "[1")


# ------------------------------------------------------------------------------------------- 1.O: sub-agents; U-057


def task(description: str = "look", kind: str = "") -> Any:
    async def start(args: Any, hands: Any) -> Outcome:
        return await hands.delegate(description, "find it", kind)

    return tool("task", start)


@case("1-102", "1-103", "1-104", "U-057")
async def test_a_sub_agent_works_in_its_parents_log() -> None:
    given: list[Any] = []

    def look(args: Any, hands: Any) -> str:
        given.append((hands.cwd, hands.sandbox, hands.user_data, hands.agent_path))
        return "seen"

    model = Script(calls(("c1", "task")), calls(("s1", "look"), say="first"), text("it is there"), text("thanks"))
    async with opened(
        model, tools=[task(), tool("look", look)], user_data={"t": 1}, sandbox="bwrap", system_prompt="be good"
    ) as agent:
        heard = Heard(agent)
        wrapped = agent.subscribe(types={"sub_agent_event", "agent_end"})
        await agent.prompt("go")
        assert await agent.collect_reply() == "thanks"
        begun, ended = heard.one("subagent_start"), heard.one("subagent_end")
        assert (begun.description, begun.call_id) == ("look", "c1")
        assert (ended.child_sid, ended.result, ended.ok) == (begun.child_sid, "it is there", True)
        assert heard.bodies("tool_execution_end")[-1].result == "it is there"
        of_child = [event for event in heard.events if event.body.agent_path]
        assert {event.body.agent_path for event in of_child} == {(begun.child_sid,)}
        shown = [event async for event in _until_end(wrapped)]
        assert [event.body.event["type"] for event in shown[:-1]] == [event.type for event in of_child]
        assert {(event.body.call_id, event.body.child_sid) for event in shown[:-1]} == {("c1", begun.child_sid)}
        # The child inherits the system prompt and the model of its parent, but not the conversation.
        child = model.requests[1]
        assert [one.text for one in child.messages] == ["find it"]
        assert (child.system, child.model) == ("be good", "one")
        assert [spec.name for spec in child.tools] == ["look"]
        assert given[0][1:] == ("bwrap", {"t": 1}, (begun.child_sid,))
        assert len(agent.messages) == 4


async def _until_end(stream: Any) -> Any:
    async for event in stream:
        yield event
        if event.type == "agent_end":
            return


@case("U-057")
def test_a_kind_of_sub_agent_has_its_own() -> None:
    other = Script(text("mine"), name="other")
    kinds = {"scout": SubAgent(system_prompt="scout", model="scripted:other", tools=[tool("peek")])}
    model = Script(calls(("c1", "task")), text("ok"))
    turn_of = turn_with(model, tools=[task(kind="scout")], subagents=kinds, resolve=lambda name, _: (other, "other"))
    assert turn_of.one("subagent_end").result == "mine"
    request = other.requests[0]
    assert (request.system, [spec.name for spec in request.tools]) == ("scout", ["peek"])


def turn_with(model: Script, **settings: Any) -> Heard:
    found: list[Heard] = []

    async def work() -> None:
        async with opened(model, **settings) as agent:
            heard = Heard(agent)
            await agent.prompt("go")
            await agent._runtime.wait_until_idle()
        await heard.end()
        found.append(heard)

    run(work)
    return found[0]


@case("U-057")
def test_a_sub_agent_cannot_start_another() -> None:
    async def nested(args: Any, hands: Any) -> Outcome:
        return await hands.delegate("again", "deeper")

    heard = turn(
        calls(("c1", "task")), calls(("s1", "more")), text("no"), text("ok"), tools=[task(), tool("more", nested)]
    )
    assert len(heard.bodies("subagent_start")) == 1
    refused = next(body for body in heard.bodies("tool_execution_end") if body.call_id == "s1")
    assert "can't start" in refused.result


@case("U-057")
def test_a_sub_agent_that_crashes_does_not_stop_its_parent() -> None:
    heard = turn(calls(("c1", "task")), [ValueError("crash")], text("on"), tools=[task()])
    assert not heard.one("subagent_end").ok
    assert "crash" in heard.one("tool_execution_end").result
    assert heard.bodies("agent_end")[-1].outcome == "completed"


@case("U-057")
def test_a_sub_agent_has_its_time() -> None:
    async def work() -> None:
        model = Script(calls(("c1", "task")), [TextPiece("hm"), asyncio.Event()], text("on"))
        async with opened(model, tools=[task()], subagent_timeout=0.02) as agent:
            heard = Heard(agent)
            await agent.prompt("go")
            assert await agent.collect_reply() == "on"
            assert not heard.one("subagent_end").ok
            assert "longer than" in heard.one("tool_execution_end").result

    run(work)
    assert ResolvedOptions(cwd=Path()).subagent_timeout == 120


class Asks(Plugin):
    def before_tool(self, name: str, args: Any, call_id: str, context: Any) -> Hold | None:
        return Hold(GateRequest(hint="?")) if name == "risky" else None


@case("U-057")
@pytest.mark.parametrize("answer", ["approve", "reject", "reject and go on", "abort"])
async def test_a_sub_agents_approval_reaches_the_gate_with_its_path(answer: str) -> None:
    child_says = text("done it") if answer in ("approve", "reject and go on") else text("on")
    model = Script(calls(("c1", "task")), calls(("s1", "risky")), child_says, text("on"))
    async with opened(model, tools=[task(), tool("risky")], plugins=[Asks()]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        required = await heard.until("approval_required")
        assert required.agent_path == (heard.one("subagent_start").child_sid,)
        assert (agent.status().state, agent.status().phase) == ("executing_tools", "waiting_approval")
        if answer == "approve":
            await agent.approve(required.gate.gate_id)
        elif answer == "abort":
            await agent.abort(reason="enough")
        else:
            await agent.reject(required.gate.gate_id, auto_resume=answer != "reject")
        if answer == "abort":
            await heard.until("agent_abort", 2)
            assert not (await heard.until("subagent_end")).ok
        else:
            assert await agent.collect_reply() == "on"
            assert heard.one("subagent_end").ok == (answer != "reject")
        assert agent.status().approvals == ()


# ------------------------------------------------------------------------------------------- 1.P: notices and the rest


@case("1-106")
async def test_todos_are_told_whole() -> None:
    todos = (Todo(id="1", content="look"),)

    def write(args: Any, hands: Any) -> str:
        hands.set_todos(todos)
        return "noted"

    async with opened(Script(calls(("c1", "write")), text("ok")), tools=[tool("write", write)]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        await agent.collect_reply()
        assert heard.one("todo_change").todos == todos == agent.status().todos
        assert heard.of("todo_change")[0].session_id == agent.session_id


@case("1-111")
def test_a_plugins_own_event_carries_the_users_data() -> None:
    class Talks(Plugin):
        def before_request(self, messages: Any, context: Any) -> list[Emit]:
            context.emit(ev.PluginEvent(name="plain", payload=3))
            return [Emit(ev.PluginEvent(name="mine", payload={"a": 1}))]

    heard = turn(text("hi"), plugins=[Talks()], user_data={"tenant": 7})
    told = [(body.name, body.payload) for body in heard.bodies("plugin_event")]
    assert told == [("plain", 3), ("mine", {"a": 1, "user_data": {"tenant": 7}})]


@case("1-112", "U-047")
async def test_what_plugins_say_is_joined_in_their_order() -> None:
    class Says(Plugin):
        def __init__(self, text: str, priority: int) -> None:
            self.text, self.priority, self.name = text, priority, text

        def before_prompt(self, said: str, context: Any) -> Intervene:
            return Intervene(self.text)

    model = Script(text("hi"))
    async with opened(model, plugins=[Says("second", 50), Says("first", 10)]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        await agent.collect_reply()
        assert heard.one("intervention").prompt == "first\n\nsecond"
        assert [part.text for part in model.requests[0].messages[0].parts] == ["go", "first\n\nsecond"]


# ------------------------------------------------------------------------------------------- 1.Q, 1.R: subscribers


@case("1-113")
async def test_an_observer_gets_what_it_needs_in_order() -> None:
    seen: list[Any] = []
    async with opened(Script(calls(("c1", "echo"), say="hi"), text("do", "ne")), tools=[tool("echo")]) as agent:
        stream = agent.subscribe()
        await agent.prompt("go")
        async for event in stream:
            match event.body:
                case ev.MessageDelta(delta=delta):
                    seen.append(delta)
                case ev.ToolExecutionStart(name=name):
                    seen.append(("tool", name))
                case ev.AgentEnd(usage=usage) if usage is not None:
                    seen.append((usage.total_tokens, usage.cost_usd))
                    break
                case _:
                    pass
    assert seen == ["hi", ("tool", "echo"), "do", "ne", (30, 0.002)]


@case("1-114")
async def test_an_observer_hears_once_that_the_agent_died() -> None:
    """The agent dies because another owner takes over the log."""

    log = MemoryLog()
    agent = await opened(Script(text("hi"), [asyncio.Event()]), log=log)
    stream = agent.subscribe()
    await agent.prompt("go")
    await agent.collect_reply()
    stored = await log.session(agent.session_id)
    (last,) = (await log.read(agent.session_id))[-1:]
    stolen = ev.Event(agent.session_id, last.index + 1, last.at, "user", ev.OwnerChanged(epoch=2))
    await log.append(Append(session_id=agent.session_id, events=(stolen,), fence=stored.fence))
    with pytest.raises(StaleFence):
        await agent.prompt("again")
    heard = list[Any]()

    async def listen() -> None:
        async for event in stream:
            heard.append(event.type)

    with pytest.raises(AgentDown) as down:
        await listen()
    assert isinstance(down.value.reason, StaleFence)
    assert agent.session_id in down.value.message
    assert heard[-2:] == ["agent_end", "state_change"]
    assert [event async for event in stream] == []
    with pytest.raises(AgentGone):
        await agent.prompt("more")


@case("U-063")
async def test_an_agent_that_is_not_alive_says_so_at_once() -> None:
    async with opened(Script()) as agent:
        stream = agent.subscribe()
    assert [event.type async for event in stream] == ["session_suspended"]
    for call in (
        lambda: agent.prompt("x"),
        lambda: agent.steer("x"),
        agent.abort,
        agent.approve,
        agent.reject,
        lambda: agent.respond("", "x"),
        lambda: agent.switch_model("scripted:two"),
        lambda: agent.attach_tool(tool("x")),
        lambda: agent.detach_tool("x"),
        agent.collect_reply,
        agent.checkpoint,
    ):
        with pytest.raises(AgentGone) as gone:
            await call()
        assert (gone.value.code, agent.session_id in gone.value.message) == ("agent_gone", True)
    for look in (agent.status, agent.subscribe):
        with pytest.raises(AgentGone):
            look()
    await agent.stop()


async def many(agent: Any, count: int) -> int:
    """Write at least this many events and return the last index."""
    before = agent._runtime.journal.index
    while agent._runtime.journal.index - before < count:
        await agent.abort()
    return agent._runtime.journal.index


@case("1-115", "1-119")
async def test_nothing_is_kept_unless_it_is_asked_for() -> None:
    async with opened(Script()) as agent:
        await many(agent, 5)
        stream = agent.subscribe(since=0)
        last = await many(agent, 1)
        assert (await anext(stream)).index == last
        # The first subscriber doesn't make the agent store events for later ones.
        late = agent.subscribe(since=0)
        newest = await many(agent, 1)
        assert (await anext(late)).index == newest


@case("1-116", "U-062")
async def test_the_newest_are_replayed_and_live_ones_follow() -> None:
    async with opened(Script(), event_buffer_size=200) as agent:
        last = await many(agent, 250)
        stream = agent.subscribe(since=0)
        live = await many(agent, 3)
        seen = [(await anext(stream)).index for _ in range(203)]
        assert seen == list(range(last - 199, live + 1))


@case("1-117", "1-118")
async def test_since_and_types() -> None:
    async with opened(Script(text("a", "b")), event_buffer_size=200) as agent:
        await agent.prompt("go")
        await agent.collect_reply()
        start = agent.subscribe(since=0, types={"agent_start"})
        index = (await anext(start)).index
        after = agent.subscribe(since=index)
        assert (await anext(after)).index == index + 1
        some = agent.subscribe(since=0, types={"message_delta", "agent_end"})
        assert [(await anext(some)).type for _ in range(3)] == ["message_delta", "message_delta", "agent_end"]


async def test_with_a_log_everything_is_replayed() -> None:
    log = MemoryLog(keep_deltas=True)
    async with opened(Script(text(*"abcdef")), log=log) as agent:
        live = Heard(agent)
        await agent.prompt("go")
        await agent.collect_reply()
        again = Heard(agent, since=0)
    assert [event.index for event in await again.end()] == list(range(1, agent._runtime.journal.index + 1))
    assert [event.index for event in await live.end()] == list(range(3, agent._runtime.journal.index + 1))


# ------------------------------------------------------------------------------------------------ 1.S; U: the hooks


@case("1-120")
def test_there_are_thirteen_hooks_and_each_is_asked() -> None:
    asked: list[str] = []

    class All(Plugin):
        state = 0

        def __getattr__(self, name: str) -> Any:
            if name not in HOOKS:
                raise AttributeError(name)
            return lambda *_: asked.append(name)

    def fails(args: Any, hands: Any) -> str:
        raise ValueError

    async def work() -> None:
        gate = asyncio.Event()
        model = Script(calls(("c1", "fails")), [gate, *text("one")], text("two"), text("summary"))
        async with opened(model, tools=[tool("fails", fails)], plugins=[All()], messages=HISTORY) as agent:
            heard = Heard(agent)
            await agent.prompt("go")
            await heard.until("request_start", 2)
            await agent.steer("x")
            gate.set()
            await agent.collect_reply()
            await agent.compact()

    run(work)
    assert set(asked) == set(HOOKS)
    assert len(HOOKS) == 13


@case("U-046")
def test_the_lower_number_is_asked_first() -> None:
    order: list[int] = []

    class Ranked(Plugin):
        def __init__(self, priority: int) -> None:
            self.priority = priority

        def before_tool(self, name: str, args: Any, call_id: str, context: Any) -> None:
            order.append(self.priority)

    turn(calls(("c1", "echo")), text("ok"), tools=[tool("echo")], plugins=[Ranked(100), Ranked(10)])
    assert order == [10, 100]


@case("U-048")
def test_an_answer_that_is_not_allowed_counts_as_continue() -> None:
    class Wrong(Plugin):
        name = "wrong"

        def before_prompt(self, said: str, context: Any) -> Any:
            return BlockTool("no")

    heard = turn(text("hi"), plugins=[Wrong()])
    notice = heard.one("notice")
    assert (notice.level, notice.source) == ("warning", "wrong")
    assert "before_prompt can't return BlockTool" in notice.text
    assert heard.one("agent_end").outcome == "completed"


@case("U-049")
def test_a_plugin_replaces_arguments() -> None:
    ran: list[Any] = []

    class Safer(Plugin):
        def before_tool(self, name: str, args: Any, call_id: str, context: Any) -> ReplaceToolArgs:
            return ReplaceToolArgs({"path": "safe"})

    tools = [tool("echo", lambda args, hands: ran.append(args) or "")]
    heard = turn(calls(("c1", "echo", '{"path": "bad"}')), text("ok"), tools=tools, plugins=[Safer()])
    assert ran == [{"path": "safe"}]
    assert heard.one("tool_execution_start").args == {"path": "safe"}


@case("U-050")
async def test_a_plugin_replaces_a_result() -> None:
    class Hides(Plugin):
        def after_tool(self, name: str, call_id: str, outcome: Outcome, context: Any) -> ReplaceToolResult:
            return ReplaceToolResult(Outcome(outcome.text.replace("secret", "…")))

    model = Script(calls(("c1", "echo")), text("ok"))
    async with opened(model, tools=[tool("echo", lambda *_: "a secret")], plugins=[Hides()]) as agent:
        await agent.prompt("go")
        await agent.collect_reply()
        assert model.requests[1].messages[-1].parts[0].text == "a …"
        assert agent.messages[-2].parts[0].text == "a …"


@case("U-052")
def test_after_turn_is_asked_before_idle_on_both_paths() -> None:
    seen: list[Any] = []

    class Last(Plugin):
        def after_turn(self, payload: Any, context: Any) -> Emit:
            seen.append((payload["outcome"], agent.status().state))
            return Emit(ev.PluginEvent(name="last"))

    agent: Any = None

    async def work() -> None:
        nonlocal agent
        async with opened(Script(text("hi"), [asyncio.Event()]), plugins=[Last()]) as agent:
            heard = Heard(agent)
            await agent.prompt("go")
            await agent.collect_reply()
            await agent.prompt("again")
            await heard.until("request_start", 2)
            await agent.abort()
            await heard.until("agent_abort")
            order = [event.type for event in heard.of("plugin_event", "agent_end", "agent_abort")]
            assert order == ["plugin_event", "agent_end", "plugin_event", "agent_abort"]

    run(work)
    assert [outcome for outcome, _ in seen] == ["completed", "aborted"]
    assert all(state != "idle" for _, state in seen)


@case("1-121")
async def test_streaming_approvals_and_checkpoints_in_one_session() -> None:
    log = MemoryLog()
    model = Script(calls(("c1", "risky"), say="I will"), text("did it"))
    async with opened(model, tools=[tool("risky")], plugins=[Asks()], log=log) as agent:
        deltas = agent.subscribe(types={"message_delta"})
        heard = Heard(agent)
        await agent.prompt("go")
        required = await heard.until("approval_required")
        saved = await agent.checkpoint()
        await agent.approve(required.gate.gate_id)
        assert await agent.collect_reply() == "I will\n\ndid it"
        assert [(await anext(deltas)).body.delta for _ in range(2)] == ["I will", "did it"]
        assert heard.one("checkpoint_saved").checkpoint_id == saved


@case("1-123")
def test_every_event_of_the_seed_belongs_to_exactly_one_class() -> None:
    where = {name: [group for group, kinds in GROUPS.items() if kind in kinds] for name, kind in BY_NAME.items()}
    assert all(len(groups) == 1 for groups in where.values())


# ------------------------------------------------------------------------------------------------------------ X.3


@case("X-030")
async def test_a_session_without_a_prompt_shows_no_spinner() -> None:
    async with opened(Script([asyncio.Event()])) as agent:
        state = agent._runtime.journal.state
        assert (state.lifecycle.value, agent.status().state, agent.status().phase) == ("active", "idle", "idle")
        await agent.prompt("go")
        assert agent.status().phase == "streaming"


def test_max_turns() -> None:
    endless = [calls((f"c{n}", "echo")) for n in range(5)]
    heard = turn(*endless, tools=[tool("echo")], max_turns=3)
    assert len(heard.bodies("request_start")) == 3
    assert heard.one("turn_failed").kind == "turn_limit"
    assert heard.one("agent_end").outcome == "failed"


async def test_the_call_of_an_abort_that_a_plugin_answers_ends_the_turn() -> None:
    class Ends(Plugin):
        def after_tool(self, name: str, call_id: str, outcome: Any, context: Any) -> Abort:
            return Abort("seen enough")

    gate = None

    gate = Gate("wait")
    model = Script(calls(("c1", "echo"), ("c2", "wait")))
    async with opened(model, tools=[tool("echo"), gate.tool], plugins=[Ends()]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        assert (await heard.until("agent_abort")).reason == "seen enough"
        await gate.ended.wait()
        assert heard.one("tool_killed").call_id == "c2"
        assert heard.one("tool_execution_end").call_id == "c1"
        assert isinstance(agent.messages[1].parts[0], Call)
        assert [part.ok for part in agent.messages[2].parts] == [True, False]
