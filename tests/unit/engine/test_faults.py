"""Test every fault between an agent and its model: real turns and providers, and a scripted model over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec import ValidationError, convert
from msgspec.structs import replace

from quarterdeck.engine.model import Message, Text
from quarterdeck.engine.options import RetryPolicy
from quarterdeck.testing.model import ScriptedModel
from quarterdeck.testing.script import Fault, Script, ScriptedCall, ScriptedUsage, Step, Trouble
from tests.conformance.marks import case
from tests.support.engine import Heard, judged, opened, tool
from tests.support.models import KEY, NAMES, WIRES

QUICK = RetryPolicy(attempts=3, first_s=0, longest_s=0)
TEXT = "It was said in the middle of the night, and nobody heard it."
LONG = [Message("user" if n % 2 == 0 else "assistant", (Text(f"message {n}"),)) for n in range(12)]
REQUEST_TOOL = tool("look")


@pytest.fixture(autouse=True)
def lawful() -> Iterator[None]:
    with judged() as broken:
        yield
    assert broken == []


async def played(wire: str, script: Script, model: list[ScriptedModel] | None = None, **settings: Any) -> Heard:
    """Run one turn against a script and return its events."""
    async with ScriptedModel(script) as scripted_model:
        if model is not None:
            model.append(scripted_model)
        url = scripted_model.openai_url if wire in ("openai", "chat") else scripted_model.url
        options = {"api_key": KEY, "base_url": url}
        name = f"{wire}:{NAMES[wire]}"
        given = {"retry": QUICK, "tools": [REQUEST_TOOL], **settings}
        async with opened(name, provider_opts=options, **given) as agent:
            heard = Heard(agent)
            await agent.prompt("script:it")
            await heard.until("agent_end")
        await heard.end()
    assert not [event for event in heard.events if KEY in str(event)]
    return heard


def faulty(*faults: Fault, steps: Sequence[Step] = (), **fields: Any) -> Script:
    first = Step(**{"text": TEXT, "chunk": 4, "faults": faults, **fields})
    return Script(scenario={"it": (first, *steps)})


def text_of(heard: Heard) -> str:
    return "".join(block.text for block in heard.bodies("response_complete")[-1].blocks if block.kind == "text")


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="http", status=500, times=2),
        Fault(kind="http", status=529, times=2),
        Fault(kind="http", status=429, retry_after=0.01, times=2),
        Fault(kind="drop", times=2),
        Fault(kind="cut", times=2),
        Fault(kind="garbage", times=2),
        Fault(kind="error", times=2),
    ],
    ids=lambda fault: f"{fault.kind} {fault.status}",
)
async def test_what_passes_is_tried_again_and_the_reply_is_whole(wire: str, fault: Fault) -> None:
    heard = await played(wire, faulty(fault))
    assert heard.one("agent_end").outcome == "completed"
    assert text_of(heard) == TEXT
    assert [body.attempt for body in heard.bodies("retry")] == [1, 2]
    assert len(heard.bodies("stream_error")) == 2
    assert "turn_failed" not in heard.types
    if fault.retry_after:
        assert [body.delay_ms for body in heard.bodies("retry")] == [10, 10]
    began = {body.message_id for body in heard.bodies("message_start")}
    ended = {body.message_id for body in heard.bodies("response_complete", "message_aborted")}
    # Text from before the failure was retracted.
    assert began == ended


@case("U-076")
@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="http", status=429, retry_after=0.01),
        Fault(kind="http", status=500),
        Fault(kind="drop", at=0),
    ],
    ids=["429", "500", "network"],
)
async def test_trouble_is_met_at_the_rate_that_is_asked_for(fault: Fault) -> None:
    plain = Script(scenario={"it": (Step(text=TEXT),)})
    outcomes: dict[float, list[str]] = {}
    for rate in (0, 50, 100):
        script = replace(plain, trouble=Trouble(success_rate=rate, fault=fault, seed=2))
        outcomes[rate] = (await played("anthropic", script)).types
    assert outcomes[0].count("stream_error") == QUICK.attempts + 1
    assert "turn_failed" in outcomes[0]
    assert 0 < outcomes[50].count("stream_error") <= QUICK.attempts
    assert "turn_failed" not in outcomes[50]
    # A success rate of 100 leaves no trace of the simulated trouble.
    assert outcomes[100] == (await played("anthropic", plain)).types
    assert not {"stream_error", "retry", "turn_failed"} & set(outcomes[100])


@case("U-076")
async def test_trouble_makes_every_request_wait() -> None:
    script = Script(scenario={"it": (Step(text=TEXT),)}, trouble=Trouble(delay=10))
    heard = await played("anthropic", script, retry=replace(QUICK, attempts=0), stall_after=0.1)
    assert heard.one("agent_end").outcome == "failed"
    assert "stream_stalled" in heard.types
    for too_much in ({"delay": 10.5}, {"delay": -1}, {"success_rate": 101}, {"success_rate": -1}):
        with pytest.raises(ValidationError):
            convert(too_much, Trouble)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("kind", ["hang", "stall"])
async def test_silence_is_a_stall_and_is_tried_again(wire: str, kind: Any) -> None:
    # On a slow machine the next attempts may stall as well.
    patient = RetryPolicy(attempts=20, first_s=0, longest_s=0)
    heard = await played(wire, faulty(Fault(kind=kind, seconds=3600)), stall_after=0.2, retry=patient)
    assert heard.bodies("stream_stalled")[0].elapsed_s == 0.2
    assert text_of(heard) == TEXT


@pytest.mark.parametrize("wire", WIRES)
async def test_a_slow_reply_is_no_stall(wire: str) -> None:
    heard = await played(wire, faulty(Fault(kind="drip", size=200, seconds=0.001)), stall_after=2)
    assert "stream_stalled" not in heard.types
    assert text_of(heard) == TEXT


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "", "api"),
        (401, "", "auth"),
        (402, "", "payment"),
        (403, "", "auth"),
        (404, "", "invalid_model"),
    ],
)
async def test_what_does_not_pass_fails_the_turn_at_once(wire: str, status: int, code: str, kind: str) -> None:
    heard = await played(wire, faulty(Fault(kind="http", status=status, code=code, times=0)))
    failed = heard.one("turn_failed")
    assert failed.kind == kind
    assert failed.message
    assert "retry" not in heard.types
    assert heard.one("agent_end").outcome == "failed"


@pytest.mark.parametrize("wire", WIRES)
async def test_what_does_not_end_fails_the_turn_after_some_tries(wire: str) -> None:
    heard = await played(wire, faulty(Fault(kind="http", status=529, times=0)))
    assert len(heard.bodies("retry")) == QUICK.attempts
    assert heard.one("turn_failed").kind == "api"


@pytest.mark.parametrize("wire", WIRES)
async def test_a_context_that_is_too_long_is_shortened_and_asked_again(wire: str) -> None:
    script = Script(
        scenario={"it": (Step(text=TEXT, faults=(Fault(kind="http", status=400, code="overflow"),)),)},
        aux=Step(text="They talked about numbers."),
    )
    heard = await played(wire, script, messages=LONG)
    order = [name for name in heard.types if name in ("context_overflow", "compact_start", "compact_end", "agent_end")]
    assert order == ["context_overflow", "compact_start", "compact_end", "agent_end"]
    assert heard.one("agent_end").outcome == "completed"


@pytest.mark.parametrize("wire", WIRES)
async def test_a_turn_with_reasoning_and_calls_goes_through(wire: str) -> None:
    """The scripted model rejects conversations that a real service would reject, so this also checks their form."""
    calls = (ScriptedCall(name="look", args={"at": "a"}), ScriptedCall(name="look", args={"at": "b"}))
    usage = ScriptedUsage(input=10, output=5, cache_read=3)
    steps = (Step(think="I look once more.", calls=calls[:1], usage=usage), Step(text="Seen.", usage=usage))
    script = faulty(text="I look.", think="What is there?", calls=calls, usage=usage, steps=steps)
    models: list[ScriptedModel] = []
    heard = await played(wire, script, models, thinking="low")
    assert heard.one("agent_end").outcome == "completed"
    assert [body.ok for body in heard.bodies("tool_execution_end")] == [True, True, True]
    assert [seen.step for seen in models[0].requests] == [0, 1, 2]
    assert text_of(heard) == "Seen."
    total = heard.one("agent_end").usage
    assert (total.input, total.output, total.cache_read) == (30, 15, 9)
