"""Test the public methods of `Agent`, the tool context, and what the conformance cases leave out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quarterdeck import (
    AlreadyDecided,
    InvalidOption,
    NoSuchGate,
    NothingKept,
    PromptRefused,
    TurnNotFinished,
    create_agent,
)
from quarterdeck.engine.conversation import STILL_RUNNING
from quarterdeck.engine.model import Finished, Message, ModelError, Picture, Text, TextPiece
from quarterdeck.engine.options import RetryPolicy
from quarterdeck.engine.plugins.base import Hold, Plugin, Skip
from quarterdeck.events import GateRequest, Image, TokenUsage
from quarterdeck.log.memory import MemoryLog
from tests.support.engine import Gate, Heard, Script, calls, opened, text, tool
from tests.unit.engine.test_journal import Stubborn

PICTURE = Image(media_type="image/png", data="AA==")


# -------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": "nonsense"}, "isn't the name of a model"),
        ({"cwd": "/no/such/folder"}, "isn't a folder"),
        ({"max_turns": 0}, "max_turns can't be 0"),
        ({"max_steering_queue": -1}, "max_steering_queue"),
        ({"event_buffer_size": -1}, "event_buffer_size"),
        ({"keep_messages": 1}, "keep_messages"),
        ({"hook_timeout": 0}, "hook_timeout can't be 0"),
        ({"stall_s": 1}, "unknown option 'stall_s'"),
        ({"nonsense": 1}, "unknown option 'nonsense'"),
    ],
)
async def test_an_option_that_cannot_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=said) as error:
        await create_agent(**{"model": Script(), "tools": (), **settings})
    assert error.value.hint


async def test_what_a_command_refuses() -> None:
    async with opened(Script()) as agent:
        with pytest.raises(InvalidOption, match="kill_tools"):
            await agent.abort(kill_tools="some")  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match="unknown event: nonsense"):
            agent.subscribe(types={"nonsense"})
        with pytest.raises(InvalidOption, match="the text is empty"):
            await agent.prompt("  ")
        with pytest.raises(InvalidOption, match="the text is empty"):
            await agent.steer("")
        with pytest.raises(InvalidOption, match="unknown mode"):
            await agent.switch_mode("wild")
        with pytest.raises(NoSuchGate):
            await agent.approve("g7")
        with pytest.raises(NoSuchGate):
            await agent.respond("g7", "x")
        with pytest.raises(NothingKept):
            await agent.checkpoint()
        assert await agent.collect_reply() == ""
        await agent.attach_tool()
        await agent.switch_mode("ask")


async def test_a_gate_is_decided_once() -> None:
    class Asks(Plugin):
        def before_tool(self, *_: Any) -> Hold:
            return Hold(GateRequest())

    async with opened(Script(calls(("c", "t")), text("ok")), tools=[tool("t")], plugins=[Asks()]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        gate = (await heard.until("approval_required")).gate.gate_id
        await agent.approve(gate, by="anna")
        with pytest.raises(AlreadyDecided, match="approved by anna"):
            await agent.reject(gate)
        await agent.collect_reply()


async def test_a_reply_that_never_came() -> None:
    async with opened(Script([ModelError("auth", "no key")], [TextPiece("a"), asyncio.Event()])) as agent:
        await agent.prompt("go")
        with pytest.raises(TurnNotFinished, match="no key") as failed:
            await agent.collect_reply()
        assert failed.value.kind == "auth"
        await agent.prompt("again")
        with pytest.raises(TimeoutError):
            await agent.collect_reply(timeout=0.01)
        await agent.abort(reason="enough")
        with pytest.raises(TurnNotFinished, match="enough") as aborted:
            await agent.collect_reply()
        assert aborted.value.kind == "aborted"


async def test_a_prompt_that_is_aborted_while_plugins_think_about_it() -> None:
    class Slow(Plugin):
        async def before_prompt(self, said: str, context: Any) -> None:
            await asyncio.sleep(3600)

    async with opened(Script(), plugins=[Slow()]) as agent:
        heard = Heard(agent)
        prompting = asyncio.ensure_future(agent.prompt("go"))
        await asyncio.sleep(0)
        await agent.abort(reason="never mind")
        with pytest.raises(PromptRefused, match="never mind"):
            await prompting
        assert (await heard.until("prompt_dropped")).text == "go"
        assert "agent_start" not in heard.types


# ------------------------------------------------------------------------------------------------------------ tools


async def test_what_a_tool_is_lent(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}
    folder = tmp_path.resolve()

    async def look(args: Any, hands: Any) -> str:
        seen.update(
            ids=(hands.session_id, hands.call_id, bool(hands.turn_id), hands.agent_path),
            places=(hands.cwd, list(hands.allowed_paths), hands.store),
            environment=dict(hands.environment),
        )
        hands.output("one\n")
        hands.output("", "stderr")
        hands.output("two\n", "stderr")
        (hands.store / "big.txt").write_text("whole")
        (tmp_path / "secret").write_text("no")
        seen["stored"] = await hands.read_elsewhere("/big.txt")
        seen["missing"] = await hands.read_elsewhere("none")
        seen["outside"] = await hands.read_elsewhere("../secret")
        return "done"

    store = tmp_path / "store"
    store.mkdir()
    async with opened(
        Script(calls(("c1", "look")), text("ok")),
        tools=[tool("look", look)],
        cwd=tmp_path,
        store=store,
        allowed_paths=[tmp_path / "other"],
        environment={"A": "1"},
        session_id="s",
    ) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        await agent.collect_reply()
        told = [(body.delta, body.stream) for body in heard.bodies("tool_execution_output")]
        assert told == [("one\n", "stdout"), ("two\n", "stderr")]
    assert seen == {
        "ids": ("s", "c1", True, ()),
        "places": (folder, [folder / "other"], store),
        "environment": {"A": "1"},
        "stored": b"whole",
        "missing": None,
        "outside": None,
    }


async def test_the_environment_is_the_callers_unless_another_is_given() -> None:
    found: list[str] = []
    look = tool("look", lambda args, hands: found.append(hands.environment["PATH"]) or "")
    async with opened(Script(calls(("c1", "look")), text("ok")), tools=[look]) as agent:
        await agent.prompt("go")
        await agent.collect_reply()
    assert found[0]


async def test_calls_of_one_tool_wait_for_each_other_if_they_must() -> None:
    running: list[int] = [0]
    most: list[int] = [0]

    async def alone(args: Any, hands: Any) -> str:
        running[0] += 1
        most[0] = max(most[0], running[0])
        for _ in range(5):
            await asyncio.sleep(0)
        running[0] -= 1
        return "done"

    for parallel, wanted in ((False, 1), (True, 3)):
        most[0] = 0
        model = Script(calls(("a", "t"), ("b", "t"), ("c", "t")), text("ok"))
        async with opened(model, tools=[tool("t", alone, parallel=parallel)]) as agent:
            await agent.prompt("go")
            await agent.collect_reply()
            assert [part.call_id for part in agent.messages[2].parts] == ["a", "b", "c"]
        assert most[0] == wanted


async def test_a_tool_that_gives_up_by_itself_is_a_failed_one() -> None:
    async def quits(args: Any, hands: Any) -> str:
        raise asyncio.CancelledError

    async with opened(Script(calls(("c", "quits")), text("ok")), tools=[tool("quits", quits)]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        assert await agent.collect_reply() == "ok"
        assert not heard.one("tool_execution_end").ok


async def test_a_question_of_a_tool_that_is_killed_is_withdrawn() -> None:
    async def ask(args: Any, hands: Any) -> str:
        return await hands.ask("Which?", patience=None)

    async with opened(Script(calls(("c", "ask")), text("ok")), tools=[tool("ask", ask)]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        asked = await heard.until("ask_user")
        await agent.steer("never mind")
        assert await agent.collect_reply() == "ok"
        assert (heard.one("user_responded").status, agent.status().questions) == ("withdrawn", ())
        with pytest.raises(AlreadyDecided):
            await agent.respond(asked.gate_id, "late")


async def test_an_answer_that_is_being_written_down_when_the_time_is_up_counts() -> None:
    async def ask(args: Any, hands: Any) -> str:
        return await hands.ask("Which?", patience=0.05)

    log = Stubborn()
    async with opened(Script(calls(("c", "ask")), text("ok")), tools=[tool("ask", ask)], log=log) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        await heard.until("ask_user")
        log.gate.clear()
        answering = asyncio.ensure_future(agent.respond("", "that one"))
        await asyncio.sleep(0.1)
        log.gate.set()
        await answering
        await agent.collect_reply()
        assert heard.one("tool_execution_end").result == "that one"
        assert heard.one("user_responded").status == "answered"


async def test_a_call_that_goes_on_without_its_turn_can_ask_nobody() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def asks(args: Any, hands: Any) -> str:
        if args.get("late"):
            begun.set()
            await go.wait()
        return await hands.ask("Which?", patience=None)

    model = Script(calls(("a", "asks"), ("b", "asks", '{"late": true}')))
    async with opened(model, tools=[tool("asks", asks)]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        await heard.until("ask_user")
        await begun.wait()
        await agent.abort(kill_tools="none")
        go.set()
        await heard.until("background_ended", 2)
        assert heard.one("user_responded").status == "withdrawn"
        told = heard.bodies("tool_execution_end")
        assert [("QuestionWithdrawn" in body.result, body.ok) for body in told] == [(True, False)] * 2


async def test_names_of_immune_tools_may_be_given() -> None:
    gate = Gate("build")
    model = Script(calls(("c", "build")))
    async with opened(model, tools=[gate.tool], interrupt_immune_tools=["build"]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        await gate.began.wait()
        await agent.abort()
        assert not gate.ended.is_set()
        gate.go.set()
        await heard.until("background_ended")
        # No message followed, so the result still reaches the model.
        assert agent.messages[-1].parts[0].text == "let go"


# ------------------------------------------------------------------------------------------------------------- the rest


async def test_images_go_to_the_model_and_not_into_the_end_of_the_turn() -> None:
    model = Script(text("nice"))
    async with opened(model) as agent:
        heard = Heard(agent)
        await agent.prompt("look", images=[PICTURE])
        await agent.collect_reply()
        assert model.requests[0].messages[0].parts == (Text("look"), Picture(PICTURE))
        assert heard.one("agent_end").messages[0]["parts"][1]["text"] == "(an image)"


async def test_a_long_result_is_cut_short_in_the_end_of_the_turn() -> None:
    long = tool("long", lambda *_: "x" * 5000)
    async with opened(Script(calls(("c", "long")), text("ok")), tools=[long]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        await agent.collect_reply()
        assert len(heard.one("agent_end").messages[2]["parts"][0]["text"]) == 201
        assert len(agent.messages[2].parts[0].text) == 5000


async def test_a_context_that_fills_up_is_shortened_in_time() -> None:
    history = [Message("user" if n % 2 == 0 else "assistant", (Text(f"{n}"),)) for n in range(12)]
    full = TokenUsage(input=85, output=5)
    model = Script(calls(("c", "echo"), usage=full), text("summary"), text("ok", usage=TokenUsage(input=5)))
    async with opened(model, messages=history, tools=[tool("echo")], context_limit=100) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        assert await agent.collect_reply() == "ok"
        assert [body.percent for body in heard.bodies("context_usage")] == [90.0, 5.0]
        assert heard.one("compact_start").trigger == "auto"
        assert len(model.requests[2].messages) < len(history)
        assert heard.one("agent_end").usage.total_tokens == 90 + 15 + 5


async def test_a_tool_asks_for_compaction() -> None:
    history = [Message("user" if n % 2 == 0 else "assistant", (Text(f"{n}"),)) for n in range(12)]

    async def shorten(args: Any, hands: Any) -> str:
        return str(await hands.compact())

    model = Script(calls(("c", "shorten")), text("summary"), text("ok"))
    async with opened(model, messages=history, tools=[tool("shorten", shorten)]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        assert await agent.collect_reply() == "ok"
        assert heard.one("compact_start").trigger == "manual"
        assert heard.one("compact_end").removed_count == int(heard.one("tool_execution_end").result)


async def test_a_compaction_wanted_in_a_turn_without_calls_comes_at_its_end() -> None:
    history = [Message("user" if n % 2 == 0 else "assistant", (Text(f"{n}"),)) for n in range(12)]
    go = asyncio.Event()
    model = Script([TextPiece("ok"), go, Finished("end")], text("summary"))
    async with opened(model, messages=history) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        await heard.until("message_delta")
        assert not await agent.compact()
        go.set()
        assert await agent.collect_reply() == "ok"
        assert heard.one("compact_end").summary == "summary"
        assert len(agent.messages) < 12


@pytest.mark.parametrize("summary", [[ModelError("api", "down")], text(""), [TextPiece("cut")]])
async def test_a_compaction_that_fails_changes_nothing(summary: Any) -> None:
    history = [Message("user" if n % 2 == 0 else "assistant", (Text(f"{n}"),)) for n in range(12)]
    async with opened(Script(summary), messages=history) as agent:
        heard = Heard(agent)
        assert not await agent.compact()
        await heard.until("agent_end")
        assert not heard.one("compact_end").ok
        assert "compaction failed" in heard.one("notice").text
        assert len(agent.messages) == 12


async def test_a_compaction_whose_model_falls_silent_is_given_up() -> None:
    history = [Message("user" if n % 2 == 0 else "assistant", (Text(f"{n}"),)) for n in range(12)]
    silent = Script([TextPiece("the"), asyncio.Event()])
    async with opened(silent, messages=history, stall_after=0.1) as agent:
        heard = Heard(agent)
        assert not await agent.compact()
        await heard.until("agent_end")
        assert heard.one("notice").text == "compaction failed: the model sent nothing for 0.1 s"
        assert silent.closed == 1
        assert len(agent.messages) == 12


async def test_what_is_too_short_to_be_shortened_is_left_alone() -> None:
    async with opened(Script()) as agent:
        assert not await agent.compact()


async def test_an_abort_while_it_compacts() -> None:
    history = [Message("user" if n % 2 == 0 else "assistant", (Text(f"{n}"),)) for n in range(12)]
    async with opened(Script([asyncio.Event()]), messages=history) as agent:
        heard = Heard(agent)
        compacting = asyncio.ensure_future(agent.compact())
        await heard.until("compact_start")
        assert (agent.status().activity, agent.status().state) == ("active/compacting", "running")
        await agent.abort()
        assert not await compacting
        assert not heard.one("compact_end").ok
        assert agent.status().state == "idle"


def test_what_a_retry_waits_for() -> None:
    policy = RetryPolicy(attempts=9, first_s=1, longest_s=10)
    assert [policy.delay(attempt, None) for attempt in (1, 2, 3, 4, 5, 9)] == [1, 2, 4, 8, 10, 10]
    assert policy.delay(1, 33.0) == 33.0


@pytest.mark.parametrize("how", ["stop", "abort all"])
async def test_what_went_on_in_the_background_can_be_ended(how: str) -> None:
    gate = Gate("firm", immune=True)
    async with opened(Script(calls(("c", "firm")), text("ok")), tools=[gate.tool]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        await gate.began.wait()
        await agent.abort()
        await agent.prompt("on")
        assert await agent.collect_reply() == "ok"
        assert agent.messages[2].parts[0].text == STILL_RUNNING
        assert not gate.ended.is_set()
        await (agent.stop() if how == "stop" else agent.abort(kill_tools="all"))
        await gate.ended.wait()
        assert gate.cancelled
        await heard.until("background_ended")
        assert heard.one("tool_killed").call_id == "c"


async def test_a_sub_agent_goes_on_with_the_call_that_it_works_for() -> None:
    async def task(args: Any, hands: Any) -> Any:
        return await hands.delegate("x", "y")

    gate = asyncio.Event()
    model = Script(calls(("c", "task")), [TextPiece("a"), gate, *text("b")])
    async with opened(model, tools=[tool("task", task)]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        await heard.until("message_delta")
        await agent.abort(kill_tools="none")
        gate.set()
        assert (await heard.until("subagent_end")).result == "ab"
        await heard.until("background_ended")


@pytest.mark.parametrize("stop", ["length", "refused"])
async def test_a_reply_that_was_cut_short_is_told(stop: Any) -> None:
    async with opened(Script([TextPiece("half"), Finished(stop)])) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        assert await agent.collect_reply() == "half"
        assert heard.one("notice").level == "warning"


async def test_a_provider_that_wants_us_to_wait_for_hours_is_not_waited_for() -> None:
    patient = ModelError("rate_limit", "tomorrow", is_transient=True, retry_after=86_400)
    async with opened(Script([patient])) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        with pytest.raises(TurnNotFinished, match="tomorrow"):
            await agent.collect_reply()
        assert "retry" not in heard.types


async def test_a_stopped_agent_ends_its_tools_and_keeps_its_queue() -> None:
    log, gate = MemoryLog(), Gate("firm", immune=True)
    agent = await opened(Script(calls(("c", "firm"))), tools=[gate.tool], log=log, session_id="s")
    await agent.prompt("go")
    await agent.prompt("later")
    await gate.began.wait()
    await agent.stop()
    assert gate.cancelled
    told = [event.type for event in await log.read("s")]
    assert told[-4:] == ["tool_execution_metrics", "agent_abort", "state_change", "session_suspended"]
    assert "prompt_dropped" not in told


async def test_an_unknown_kind_of_sub_agent_is_told() -> None:
    async def task(args: Any, hands: Any) -> Any:
        return await hands.delegate("x", "y", "nobody")

    async with opened(Script(calls(("c", "task")), text("ok")), tools=[tool("task", task)]) as agent:
        heard = Heard(agent)
        await agent.prompt("go")
        await agent.collect_reply()
        assert "unknown kind of sub-agent: nobody" in heard.one("tool_execution_end").result


async def test_a_prompt_that_is_left_out_begins_no_turn() -> None:
    class Skips(Plugin):
        name = "skips"

        def before_prompt(self, said: str, context: Any) -> Skip:
            return Skip()

    async with opened(Script(), plugins=[Skips()]) as agent:
        with pytest.raises(PromptRefused, match="skipped by skips"):
            await agent.prompt("go")
