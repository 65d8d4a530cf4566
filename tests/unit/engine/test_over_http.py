"""Test whole agents against a scripted model over HTTP, and what users read about failures."""

from __future__ import annotations

from typing import Any

import pytest

from quarterdeck.engine.factory import resume
from quarterdeck.engine.options import RetryPolicy
from quarterdeck.events import encode_event
from quarterdeck.log.memory import MemoryLog
from quarterdeck.testing.model import ScriptedModel
from quarterdeck.testing.script import Fault, Script, ScriptedCall, Step, make_script
from tests.conformance.test_part_1_events import HISTORY
from tests.support.engine import Heard, opened, run, tool
from tests.support.models import KEY, WIRES

QUICK = RetryPolicy(attempts=2, first_s=0, longest_s=0)
WORDS = Step(text="A text that is long enough.", chunk=3)


def over_http(model: ScriptedModel, wire: str, **settings: Any) -> Any:
    base = model.openai_url if wire in ("openai", "chat") else model.url
    settings.setdefault("retry", QUICK)
    return opened(f"{wire}:m", provider_opts={"base_url": base, "api_key": KEY}, **settings)


def turn(wire: str, script: Script, **settings: Any) -> Heard:
    """Run one turn and return its events, after checking that none contains the API key."""
    found: list[Heard] = []

    async def work() -> None:
        async with ScriptedModel(script) as model:
            async with over_http(model, wire, event_buffer_size=1000, **settings) as agent:
                heard = Heard(agent, since=0)
                await agent.prompt("go")
                await agent._runtime.wait_until_idle()
            await heard.end()
            assert KEY.encode() not in b"".join(encode_event(event) for event in heard.events)
            found.append(heard)

    run(work)
    return found[0]


@pytest.mark.parametrize("wire", WIRES)
def test_a_turn_with_calls(wire: str) -> None:
    call = ScriptedCall(name="echo", args={"n": 1})
    script = make_script(Step(think="hm", text="I look.", calls=(call, call)), Step(text="Done."))
    heard = turn(wire, script, tools=[tool("echo")])
    ended = heard.one("agent_end")
    assert ended.outcome == "completed"
    assert ended.messages[-1]["parts"][0]["text"] == "Done."
    assert len(heard.bodies("tool_execution_end")) == 2
    assert ended.usage.total_tokens == 240


FATAL = {401: "auth", 402: "payment", 403: "auth", 404: "invalid_model", 400: "api"}


@pytest.mark.parametrize("status", FATAL)
@pytest.mark.parametrize("wire", WIRES)
def test_what_does_not_pass_fails_the_turn_at_once(wire: str, status: int) -> None:
    heard = turn(wire, make_script(Step(text="x", faults=(Fault(kind="http", status=status, times=0),))))
    failed = heard.one("turn_failed")
    assert failed.kind == FATAL[status]
    assert failed.message
    assert "retry" not in heard.types
    assert heard.one("agent_end").outcome == "failed"


PASSING = {
    "429": Fault(kind="http", status=429, retry_after=0),
    "529": Fault(kind="http", status=529),
    "dropped": Fault(kind="drop", at=200),
    "cut": Fault(kind="cut", at=200),
    "error in the stream": Fault(kind="error", at=3),
    "garbage": Fault(kind="garbage", at=3),
}


@pytest.mark.parametrize("name", PASSING)
@pytest.mark.parametrize("wire", WIRES)
def test_what_passes_is_tried_again(wire: str, name: str) -> None:
    step = Step(text=WORDS.text, chunk=3, faults=(PASSING[name],))
    heard = turn(wire, make_script(step))
    assert heard.one("retry").attempt == 1
    assert heard.one("stream_error").reason
    assert heard.one("agent_end").outcome == "completed"
    assert heard.one("response_complete").blocks[0].text == WORDS.text
    assert len(heard.bodies("message_aborted")) <= 1


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_in_single_bytes_is_the_same(wire: str) -> None:
    heard = turn(wire, make_script(Step(text="<title>é</title>Ünï", chunk=2, faults=(Fault(kind="drip", size=1),))))
    assert heard.one("response_complete").blocks[0].text == "Ünï"
    assert heard.one("title_generated").title == "é"


def test_silence_is_given_up() -> None:
    step = Step(text=WORDS.text, chunk=3, faults=(Fault(kind="stall", at=3, seconds=60),))
    heard = turn("chat", make_script(step), stall_after=0.05)
    assert heard.one("stream_stalled").elapsed_s == 0.05
    assert heard.one("agent_end").outcome == "completed"


@pytest.mark.parametrize("wire", WIRES)
async def test_a_context_that_is_too_long_is_shortened_and_asked_again(wire: str) -> None:
    too_long = Step(text="Short now.", faults=(Fault(kind="http", status=400, code="overflow"),))
    script = Script(scenario={"long": (too_long,)}, aux=Step(text="They talked."))

    async with (
        ScriptedModel(script) as model,
        over_http(model, wire, messages=HISTORY, tools=[tool("echo")]) as agent,
    ):
        heard = Heard(agent)
        await agent.prompt("script:long")
        assert await agent.collect_reply() == "Short now."
        assert heard.one("compact_end").summary == "They talked."
        assert len(heard.bodies("context_overflow")) == 1
        assert KEY not in str([one.body for one in model.requests])


@pytest.mark.parametrize("wire", WIRES)
def test_a_resumed_conversation_is_taken_by_every_service(wire: str) -> None:
    """The scripted model rejects calls without a result, as real services do."""

    async def work() -> None:
        log = MemoryLog()
        script = make_script(Step(calls=(ScriptedCall(name="ask"),)), Step(text="Again."))
        async with ScriptedModel(script) as model:
            agent = await over_http(model, wire, log=log, session_id="s", tools=[tool("ask", asks)])
            heard = Heard(agent)
            await agent.prompt("go")
            await heard.until("ask_user")
            options = {"base_url": model.openai_url if wire in ("openai", "chat") else model.url, "api_key": KEY}
            async with resume("s", log=log, provider_opts=options, tools=[tool("ask", asks)]) as back:
                await back.prompt("go on")
                assert await back.collect_reply() == "Again."

    async def asks(args: Any, hands: Any) -> str:
        return await hands.ask("Well?", patience=None)

    run(work)
