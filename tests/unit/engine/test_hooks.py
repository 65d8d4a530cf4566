"""Test how plugins run: their order, their failures and timeouts, and their state in the log."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from quarterdeck import PromptRefused, SessionRefused, SteeringRefused
from quarterdeck import events as ev
from quarterdeck.engine.model import Message, ModelError, Text
from quarterdeck.engine.plugins.base import Abort, BlockTool, Continue, Emit, Hold, Intervene, Plugin, Skip, SwitchModel
from quarterdeck.events import GateRequest, TokenUsage
from quarterdeck.log.memory import MemoryLog
from tests.support.engine import Heard, Script, calls, opened, run, text, tool


def heard_of(model: Script, *plugins: Plugin, **settings: Any) -> Heard:
    found: list[Heard] = []

    async def work() -> None:
        async with opened(model, plugins=plugins, **settings) as agent:
            heard = Heard(agent)
            await agent.prompt("go")
            await agent._runtime.wait_until_idle()
        await heard.end()
        found.append(heard)

    run(work)
    return found[0]


def test_a_plugin_that_raises_is_told_and_goes_unheard() -> None:
    class Broken(Plugin):
        name = "broken"

        def before_request(self, messages: Any, context: Any) -> None:
            raise KeyError("x")

        async def after_response(self, message: Any, context: Any) -> None:
            raise ValueError("y")

        def before_tool(self, *_: Any) -> Any:
            return "nonsense"

    heard = heard_of(Script(calls(("c1", "echo")), text("fine")), Broken(), tools=[tool("echo")])
    told = [(body.level, body.source) for body in heard.bodies("notice")]
    assert told.count(("error", "broken")) == 4
    assert told.count(("warning", "broken")) == 1
    assert heard.one("agent_end").outcome == "completed"


@pytest.mark.parametrize("hook", ["before_prompt", "before_request", "after_response", "before_tool", "after_tool"])
def test_a_plugin_that_waits_for_what_is_cancelled_does_not_take_the_turn_along(hook: str) -> None:
    async def waits(self: Any, *_: Any) -> None:
        waited = asyncio.ensure_future(asyncio.sleep(60))
        waited.cancel()
        await waited

    plugin = type("Waits", (Plugin,), {"name": "waits", hook: waits})()
    heard = heard_of(Script(calls(("c1", "echo")), text("fine")), plugin, tools=[tool("echo")])
    assert heard.bodies("notice")[0].text == f"plugin waits: {hook} failed: CancelledError: "
    assert heard.one("agent_end").outcome == "completed"


async def _never(self: Any, *_: Any) -> None:
    await asyncio.Event().wait()


def silent(hook: str) -> Plugin:
    return type("Silent", (Plugin,), {"name": "silent", hook: _never})()


_UNANSWERED = "plugin silent: {hook} didn't answer within 0.05 s"


@pytest.mark.parametrize("hook", ["after_response", "after_tool", "after_tool_batch", "before_finish", "after_turn"])
def test_a_hook_that_never_answers_is_given_up_and_told(hook: str) -> None:
    model = Script(calls(("c1", "echo")), text("fine"))
    heard = heard_of(model, silent(hook), tools=[tool("echo")], hook_timeout=0.05)
    assert {one.text for one in heard.bodies("notice")} == {_UNANSWERED.format(hook=hook)}
    assert heard.one("agent_end").outcome == "completed"


@pytest.mark.parametrize("hook", ["session_start", "session_end"])
async def test_a_session_begins_and_ends_although_a_plugin_never_answers(hook: str) -> None:
    log = MemoryLog()
    async with opened(Script(), plugins=[silent(hook)], hook_timeout=0.05, log=log, session_id="s1"):
        pass
    notices = [one.body.text for one in await log.read("s1", 0) if isinstance(one.body, ev.Notice)]
    assert notices == [_UNANSWERED.format(hook=hook)]


def test_a_call_does_not_run_when_a_plugin_gives_no_answer_about_it() -> None:
    ran: list[Any] = []
    echo = tool("echo", lambda args, hands: ran.append(args))
    model = Script(calls(("c1", "echo")), text("fine"))
    heard = heard_of(model, silent("before_tool"), tools=[echo], hook_timeout=0.05)
    assert ran == []
    assert heard.one("tool_blocked").reason == "before_tool of plugin silent didn't answer within 0.05 s"
    assert [one.text for one in heard.bodies("notice")] == [_UNANSWERED.format(hook="before_tool")]
    assert heard.one("agent_end").outcome == "completed"


def test_a_request_does_not_go_out_when_a_plugin_gives_no_answer_about_it() -> None:
    model = Script(text("fine"))
    heard = heard_of(model, silent("before_request"), hook_timeout=0.05)
    assert model.requests == []
    assert "didn't answer within 0.05 s" in heard.one("agent_abort").reason


async def test_a_text_is_refused_when_a_plugin_gives_no_answer_about_it() -> None:
    async with opened(Script(), plugins=[silent("before_prompt")], hook_timeout=0.05) as agent:
        with pytest.raises(PromptRefused, match="didn't answer within"):
            await agent.prompt("go")
    async with opened(Script(), plugins=[silent("before_steering")], hook_timeout=0.05) as agent:
        with pytest.raises(SteeringRefused, match="didn't answer within"):
            await agent.steer("go")


async def test_nothing_is_shortened_when_a_plugin_gives_no_answer_about_it() -> None:
    model = Script(*(text("fine") for _ in range(4)))
    async with opened(model, plugins=[silent("before_compact")], hook_timeout=0.05) as agent:
        heard = Heard(agent)
        for _ in range(3):
            await agent.prompt("go")
            await agent.collect_reply()
        await agent.compact()
        assert [one.text for one in heard.bodies("notice")] == [_UNANSWERED.format(hook="before_compact")]
        assert not heard.bodies("compact_start")
        assert len(model.requests) == 3


def test_a_plugin_has_its_own_time_and_its_own_timeouts() -> None:
    class Patient(Plugin):
        name = "patient"
        hook_timeout = math.inf

        async def before_tool(self, *_: Any) -> Any:
            await asyncio.sleep(0.1)
            return BlockTool("I thought about it")

        async def after_response(self, *_: Any) -> None:
            raise TimeoutError("my own")

    heard = heard_of(Script(calls(("c1", "echo")), text("fine")), Patient(), tools=[tool("echo")], hook_timeout=0.01)
    assert heard.one("tool_blocked").reason == "I thought about it"
    assert {one.text for one in heard.bodies("notice")} == {
        "plugin patient: after_response failed: TimeoutError: my own"
    }


async def test_a_person_has_all_the_time_that_a_hook_has_not() -> None:
    model = Script(calls(("c1", "echo")), text("fine"))
    async with opened(model, tools=[tool("echo")], plugins=[HoldsAll()], hook_timeout=0.01) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        gate = await heard.until("approval_required")
        await asyncio.sleep(0.05)
        await agent.approve(gate.gate.gate_id)
        assert await agent.collect_reply() == "fine"


def test_a_turn_whose_model_waits_for_what_is_cancelled_ends() -> None:
    def cancelled() -> None:
        raise asyncio.CancelledError

    heard = heard_of(Script([cancelled]))
    assert heard.one("turn_failed").kind == "internal"
    assert heard.one("agent_end").outcome == "failed"


def test_no_call_runs_before_the_plugins_have_judged_it() -> None:
    class Slow(Plugin):
        async def before_tool(self, name: str, args: Any, call_id: str, context: Any) -> Any:
            if call_id != "c1":
                await asyncio.sleep(0.05)  # The first call ends meanwhile.
            return BlockTool("no") if name == "one" and call_id != "c1" else None

    ran: list[Any] = []
    tools = [tool("one", lambda args, hands: ran.append(args), parallel=False), tool("two")]
    wanted = (("c1", "one", '{"n":1}'), ("c2", "two"), ("c3", "one", '{"n":3}'), ("c4", "one", '{"n":4}'))
    heard = heard_of(Script(calls(*wanted), text("fine")), Slow(), tools=tools)
    assert ran == [{"n": 1}]
    assert [body.call_id for body in heard.bodies("tool_blocked")] == ["c3", "c4"]


class Side:
    """A tool that allows one call at a time, and counts how many ran at once."""

    def __init__(self) -> None:
        self.now = self.most = self.ran = 0
        self.tool = tool("one", self._run, parallel=False, killable=False)

    async def _run(self, args: Any, hands: Any) -> str:
        self.now, self.ran = self.now + 1, self.ran + 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.05)
        self.now -= 1
        return "done"


class HoldsAll(Plugin):
    def before_tool(self, name: str, args: Any, call_id: str, context: Any) -> Any:
        return Hold(GateRequest(tool=name, args=args))


@pytest.mark.parametrize("steered", [False, True])
async def test_calls_of_a_tool_that_cannot_be_beside_itself_wait_also_when_a_person_allows_them(steered: bool) -> None:
    side = Side()
    model = Script(calls(("c1", "one"), ("c2", "one"), ("c3", "one")), text("fine"))
    async with opened(model, tools=[side.tool], plugins=[HoldsAll()]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        await heard.until("approval_required", 3)
        first, *others = [body.gate.gate_id for body in heard.bodies("approval_required")]
        await agent.approve(first)
        if steered:
            await agent.steer("and this")
        for gate in others:
            await agent.approve(gate)
        assert await agent.collect_reply() == "fine"
    assert (side.most, side.ran) == (1, 3)


def test_what_is_queued_does_not_begin_when_a_plugin_ends_the_turn() -> None:
    class Ends(Plugin):
        def after_tool(self, *_: Any) -> Any:
            return Abort("enough")

    heard = heard_of(Script(calls(("c1", "one"), ("c2", "one"))), Ends(), tools=[tool("one", parallel=False)])
    assert [body.call_id for body in heard.bodies("tool_execution_start")] == ["c1"]
    assert heard.one("agent_abort").reason == "enough"


async def test_what_is_queued_does_not_begin_after_the_turn() -> None:
    side = Side()
    model = Script(calls(("c1", "one"), ("c2", "one")))
    async with opened(model, tools=[side.tool]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        await heard.until("tool_execution_start")
        await agent.abort(kill_tools="none")
        await heard.until("background_ended")
        await asyncio.sleep(0.1)
    assert side.ran == 1


def test_what_a_plugin_leaves_out_stays_out_when_the_request_is_too_long() -> None:
    class Leaves(Plugin):
        def before_request(self, messages: Any, context: Any) -> Any:
            return [Message("user", (Text("only this"),))]

    history = [Message("user" if n % 2 == 0 else "assistant", (Text(f"{n}"),)) for n in range(12)]
    model = Script([ModelError("overflow", "too long")], text("summary"), text("fine"))
    heard = heard_of(model, Leaves(), messages=history)
    assert heard.one("agent_end").outcome == "completed"
    assert [one.text for one in model.requests[2].messages] == ["only this"]


def test_a_shortened_request_that_a_plugin_leaves_out_ends_the_turn() -> None:
    class Once(Plugin):
        asked = 0

        def before_request(self, messages: Any, context: Any) -> Any:
            self.asked += 1
            return Skip() if self.asked > 1 else None

    history = [Message("user" if n % 2 == 0 else "assistant", (Text(f"{n}"),)) for n in range(12)]
    model = Script([ModelError("overflow", "too long")], text("summary"))
    heard = heard_of(model, Once(), messages=history)
    assert heard.one("agent_end").outcome == "completed"


@pytest.mark.parametrize(("given", "summarised"), [(13, True), (12, False)])
def test_a_plugin_says_what_is_summarised_one_message_for_each(given: int, summarised: bool) -> None:
    class Hides(Plugin):
        def before_compact(self, messages: Any, context: Any) -> Any:
            return [Message("user", (Text("hidden"),))] * given

    history = [Message("user" if n % 2 == 0 else "assistant", (Text(f"secret {n}"),)) for n in range(12)]
    model = Script(calls(("c1", "echo"), usage=TokenUsage(input=90)), text("summary"), text("fine"))
    if not summarised:
        del model.replies[1]
    heard = heard_of(model, Hides(), messages=history[:10], tools=[tool("echo")], context_limit=100)
    assert heard.one("agent_end").outcome == "completed"
    asked = [one for one in model.requests if "Summarise it." in one.messages[-1].text]
    assert bool(asked) is summarised
    assert all("secret" not in one.messages[-1].text for one in asked)
    assert ("different number of messages" in str(heard.bodies("notice"))) is not summarised


def test_what_a_plugin_remembers_is_saved_when_it_changed() -> None:
    class Counts(Plugin):
        name = "counts"

        def __init__(self) -> None:
            self.state = {"n": 0}

        def before_request(self, messages: Any, context: Any) -> None:
            self.state = {"n": self.state["n"] + 1}

        def after_response(self, message: Any, context: Any) -> Continue:
            return Continue()

    heard = heard_of(Script(calls(("c1", "echo")), text("fine")), Counts(), tools=[tool("echo")])
    assert [(body.name, body.state) for body in heard.bodies("plugin_state")] == [
        ("counts", {"n": 1}),
        ("counts", {"n": 2}),
    ]


def test_a_state_that_cannot_be_saved_is_told() -> None:
    class Odd(Plugin):
        def before_request(self, messages: Any, context: Any) -> None:
            self.state = object()

    heard = heard_of(Script(text("fine")), Odd())
    assert "can't be encoded" in heard.bodies("notice")[0].text


def test_two_plugins_of_one_name_keep_apart() -> None:
    class Same(Plugin):
        name = "same"

        def __init__(self, step: int) -> None:
            self.state, self.step = 0, step

        def before_request(self, messages: Any, context: Any) -> None:
            self.state += self.step

    heard = heard_of(Script(text("fine")), Same(1), Same(10))
    assert [(body.name, body.state) for body in heard.bodies("plugin_state")] == [("same", 1), ("same#2", 10)]


def test_a_plugin_may_send_other_messages() -> None:
    class Hides(Plugin):
        def before_request(self, messages: list[Message], context: Any) -> list[Message]:
            return [Message("user", (Text("hidden"),))]

    model = Script(text("fine"))
    heard = heard_of(model, Hides())
    assert [one.text for one in model.requests[0].messages] == ["hidden"]
    assert heard.one("agent_end").messages[0]["parts"][0]["text"] == "go"


def test_a_request_that_a_plugin_leaves_out_ends_the_turn() -> None:
    class Never(Plugin):
        def before_request(self, messages: Any, context: Any) -> Skip:
            return Skip()

    model = Script()
    heard = heard_of(model, Never())
    assert model.requests == []
    assert heard.one("agent_end").outcome == "completed"


def test_calls_that_a_plugin_drops_do_not_run() -> None:
    class Drops(Plugin):
        def after_response(self, message: Message, context: Any) -> Skip:
            return Skip()

    heard = heard_of(Script(calls(("c1", "echo"))), Drops(), tools=[tool("echo")])
    assert "skipped" in heard.one("tool_blocked").reason
    assert "tool_execution_start" not in heard.types


def test_a_plugin_says_more_before_the_turn_finishes() -> None:
    class Once(Plugin):
        state = False

        def before_finish(self, context: Any) -> Intervene | None:
            if self.state:
                return None
            self.state = True
            return Intervene("are you sure?")

    model = Script(text("done"), text("yes"))
    heard_of(model, Once())
    assert model.requests[1].messages[-1].text == "are you sure?"


def test_what_is_said_after_a_tool_stands_behind_the_results() -> None:
    class After(Plugin):
        def after_tool(self, *_: Any) -> Intervene:
            return Intervene("mind that")

        def after_tool_batch(self, results: Any, context: Any) -> Intervene:
            return Intervene(f"{len(results)} results")

    model = Script(calls(("c1", "echo"), ("c2", "echo")), text("fine"))
    heard_of(model, After(), tools=[tool("echo")])
    *_, results, said = model.requests[1].messages
    assert [part.call_id for part in results.parts] == ["c1", "c2"]
    assert [part.text for part in said.parts] == ["mind that", "mind that", "2 results"]


def test_a_plugin_switches_the_model_from_the_next_request_on() -> None:
    class Switches(Plugin):
        def after_tool_batch(self, results: Any, context: Any) -> SwitchModel:
            return SwitchModel("scripted:two", {"x": 1})

    two = Script(text("two"), name="two")
    heard = heard_of(
        Script(calls(("c1", "echo"))), Switches(), tools=[tool("echo")], resolve=lambda name, _: (two, "two")
    )
    assert two.requests[0].options == {"x": 1}
    assert heard.one("model_switched").to == "scripted:two"


def test_a_switch_to_a_model_that_cannot_be_had_is_told() -> None:
    from quarterdeck.engine.errors import InvalidOption

    class Switches(Plugin):
        def before_request(self, messages: Any, context: Any) -> SwitchModel:
            return SwitchModel("scripted:none")

    def resolve(name: str, options: Any) -> Any:
        raise InvalidOption("no such model")

    heard = heard_of(Script(text("still one")), Switches(), resolve=resolve)
    assert "no such model" in heard.one("notice").text
    assert heard.one("agent_end").outcome == "completed"


def test_a_failed_tool_is_shown_to_the_plugins_and_may_be_left_out() -> None:
    seen: list[Any] = []

    class Watches(Plugin):
        def on_tool_error(self, name: str, call_id: str, error: str, attempt: int, context: Any) -> Skip:
            seen.append((name, call_id, error, attempt))
            return Skip()

    def fails(args: Any, hands: Any) -> str:
        raise ValueError("no")

    heard = heard_of(Script(calls(("c1", "fails")), text("ok")), Watches(), tools=[tool("fails", fails)])
    assert seen == [("fails", "c1", "ValueError: no", 1)]
    assert "skipped by Watches" in heard.one("tool_execution_end").result


async def test_a_plugin_refuses_the_session() -> None:
    class No(Plugin):
        def session_start(self, context: Any) -> Abort:
            return Abort("not today")

    with pytest.raises(SessionRefused, match="not today"):
        await opened(Script(), plugins=[No()])


def test_what_a_hold_is_told_and_says() -> None:
    told: list[Any] = []

    class Holds(Plugin):
        def before_tool(self, name: str, args: Any, call_id: str, context: Any) -> Hold:
            def decided(status: str, option: str) -> Emit:
                told.append((status, option))
                return Emit(ev.ToolApprovedAlways(tool=name, command_family="x"))

            return Hold(GateRequest(), decided=decided)

    async def work() -> None:
        async with opened(Script(calls(("c1", "echo")), text("ok")), plugins=[Holds()], tools=[tool("echo")]) as agent:
            heard = Heard(agent)
            await agent.prompt("go")
            await heard.until("approval_required")
            await agent.approve(option="approve_always")
            await agent.collect_reply()
            start = heard.types.index("approval_resolved")
            assert heard.types[start + 1] == "tool_approved_always"

    run(work)
    assert told == [("approved", "approve_always")]


def test_what_a_plugin_may_know_and_ask() -> None:
    seen: dict[str, Any] = {}

    class Looks(Plugin):
        async def before_request(self, messages: Any, context: Any) -> None:
            if "answer" not in seen:
                seen["answer"] = ""
                seen["answer"] = await context.ask_model("a word?", system="be brief")
                seen.update(
                    model=context.model,
                    mode=context.mode,
                    data=context.user_data,
                    messages=[one.text for one in context.messages],
                    needs=(context.tool_needs_approval("risky"), context.tool_needs_approval("echo")),
                    checkpoint=await context.checkpoint(),
                    turn=bool(context.turn_id),
                    path=context.agent_path,
                    store=context.store.is_dir(),
                )

    model = Script(text("word"), text("fine"))
    heard = heard_of(
        model,
        Looks(),
        tools=[tool("risky", needs_approval=True), tool("echo")],
        user_data=7,
        mode="ask",
        log=MemoryLog(),
    )
    assert seen.pop("checkpoint") == heard.one("checkpoint_saved").checkpoint_id
    assert seen == {
        "answer": "word",
        "model": "scripted:one",
        "mode": "ask",
        "data": 7,
        "messages": ["go"],
        "needs": (True, False),
        "turn": True,
        "path": (),
        "store": True,
    }
    assert model.requests[0].system == "be brief"
    assert len(heard.bodies("usage")) == 2
    assert heard.one("agent_end").usage.input == 20
