"""Test each provider against the scripted model over real HTTP: read a reply and send it back unchanged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quarterdeck.engine.model import CallBegun, Finished, Message, Text, Thinking, ThinkingPiece, ThinkingSigned
from quarterdeck.engine.providers import base
from quarterdeck.events import TokenUsage
from quarterdeck.testing.model import ScriptedModel
from quarterdeck.testing.script import Fault, ScriptedCall, ScriptedUsage, Step, make_script
from tests.support.models import (
    WIRES,
    asked,
    chunks,
    finished,
    provider,
    reads,
    replied,
    results,
    text_of,
    until_it_fails,
)

THINK, TEXT = "Ä thought, 漢字 🙂.", "Here ü are 漢字 and 🙂, cut anywhere."
CALLS = (
    ScriptedCall(name="read_file", args={"path": "a.py", "n": [1, {"x": None}]}),
    ScriptedCall(name="read_file", args={}),
)
USAGE = ScriptedUsage(input=70, output=30, cache_read=20, cache_write=10)
STEP = Step(think=THINK, text=TEXT, calls=CALLS, usage=USAGE, chunk=3, signature="cHJvb2Y=")


@pytest.mark.parametrize("wire", WIRES)
async def test_a_reply_with_everything_in_it(wire: str) -> None:
    async with ScriptedModel(make_script(STEP)) as model:
        said = await chunks(provider(wire, model), asked(wire, thinking="low"))
        assert text_of(said) == TEXT
        assert "".join(chunk.text for chunk in said if isinstance(chunk, ThinkingPiece)) == THINK
        message = replied(said)
        assert [(call.name, call.args) for call in message.calls] == [(call.name, call.args) for call in CALLS]
        assert len({call.call_id for call in message.calls}) == 2
        assert [chunk.index for chunk in said if isinstance(chunk, CallBegun)] == [0, 1]
        # Only Anthropic reports the tokens written to its cache. The other services count them as input.
        written = 10 if wire == "anthropic" else 0
        usage = TokenUsage(input=80 - written, output=30, cache_read=20, cache_write=written)
        assert finished(said) == Finished("tools", usage)
        assert usage.total_tokens == 130


@pytest.mark.parametrize("wire", WIRES)
async def test_reasoning_goes_back_with_its_proof(wire: str) -> None:
    async with ScriptedModel(make_script(STEP, Step(text="Done."))) as model:
        one = provider(wire, model)
        first = asked(wire, thinking="high")
        reply = replied(await chunks(one, first))
        said = await chunks(one, asked(wire, *first.messages, reply, results(reply), thinking="high"))
        assert text_of(said) == "Done."
        sent = model.requests[-1].body
        assert _proofs(wire, sent) == [(THINK if wire != "gemini" else "", "cHJvb2Y=" if wire != "chat" else "")]


def _proofs(wire: str, body: dict[str, Any]) -> list[tuple[str, str]]:
    """Return each reasoning text in a request with its signature."""
    if wire == "anthropic":
        blocks = [block for message in body["messages"] for block in message["content"]]
        return [(one["thinking"], one["signature"]) for one in blocks if one["type"] == "thinking"]
    if wire == "openai":
        items = [item for item in body["input"] if item["type"] == "reasoning"]
        return [(item["summary"][0]["text"], item["encrypted_content"]) for item in items]
    if wire == "chat":
        return [(one["reasoning_content"], "") for one in body["messages"] if "reasoning_content" in one]
    parts = [part for content in body["contents"] for part in content["parts"]]
    assert all("functionCall" in part for part in parts if "thoughtSignature" in part)
    return [("", part["thoughtSignature"]) for part in parts if "thoughtSignature" in part]


@pytest.mark.parametrize("wire", WIRES)
async def test_another_services_proof_does_not_go_out(wire: str) -> None:
    foreign = Message("assistant", (Thinking("hm", "elsewhere:xyz"), Text("So it is.")))
    async with ScriptedModel(make_script(STEP, STEP)) as model:
        await chunks(
            provider(wire, model), asked(wire, Message("user", (Text("a"),)), foreign, Message("user", (Text("b"),)))
        )
        body = str(model.requests[0].body)
        assert "xyz" not in body
        assert "So it is." in body


@pytest.mark.parametrize("wire", WIRES)
async def test_a_stream_is_read_the_same_byte_by_byte(wire: str) -> None:
    dripped = Step(**{**_fields(STEP), "faults": (Fault(kind="drip", size=1),)})
    async with ScriptedModel(make_script(dripped)) as model:
        one = provider(wire, model)
        slow, quick = await chunks(one, asked(wire)), await chunks(one, asked(wire))
        assert [_shape(chunk) for chunk in slow] == [_shape(chunk) for chunk in quick]


@pytest.mark.parametrize("wire", WIRES)
async def test_a_stream_that_ends_anywhere_was_cut_and_says_so(wire: str) -> None:
    """Cut at every fifth byte. A cut after the last event is a normal end."""
    step = Step(text="Short, ü.", calls=(ScriptedCall(name="read_file", args={"a": 1}),), chunk=4)
    async with ScriptedModel(make_script(step)) as model:
        one = provider(wire, model)
        whole = [_shape(chunk) for chunk in await chunks(one, asked(wire))]
        for at in range(0, 1500, 5):
            model.script = make_script(Step(**{**_fields(step), "faults": (Fault(kind="cut", at=at, times=0),)}))
            said, error = await until_it_fails(one, asked(wire))
            assert [_shape(chunk) for chunk in said] == (whole if error is None else whole[: len(said)])
            if error is not None:
                assert (error.kind, error.is_transient) == ("network", True)
                assert not any(isinstance(chunk, Finished) for chunk in said)


def _fields(step: Step) -> dict[str, Any]:
    return {name: getattr(step, name) for name in step.__struct_fields__}


def _shape(chunk: Any) -> Any:
    """Remove ids, which differ in every reply."""
    if isinstance(chunk, CallBegun):
        return (chunk.index, chunk.name)
    if isinstance(chunk, ThinkingSigned):
        return chunk.signature.rpartition(":")[2]
    return chunk


@pytest.mark.parametrize("wire", WIRES)
async def test_what_comes_at_once_is_one_sequence_and_what_comes_later_another(wire: str) -> None:
    async with ScriptedModel(make_script(Step(text=TEXT, chunk=4))) as model:
        assert len(await reads(provider(wire, model), asked(wire))) <= 3
        model.script = make_script(Step(text=TEXT, chunk=4, delay=0.002))
        assert len(await reads(provider(wire, model), asked(wire))) > 3


STOPS = [("end", "end"), ("length", "length"), ("refused", "refused")]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("stop", "wanted"), STOPS)
async def test_stop_reasons(wire: str, stop: str, wanted: str) -> None:
    async with ScriptedModel(make_script(Step(text="x", stop=stop))) as model:
        assert finished(await chunks(provider(wire, model), asked(wire))).stop_reason == wanted


@pytest.mark.parametrize("wire", WIRES)
async def test_an_empty_reply_is_one_too(wire: str) -> None:
    async with ScriptedModel(make_script(Step())) as model:
        assert finished(await chunks(provider(wire, model), asked(wire))).stop_reason == "end"


@pytest.mark.parametrize("wire", ["anthropic", "openai", "chat"])
async def test_arguments_that_are_no_json_come_as_they_are(wire: str) -> None:
    step = Step(calls=(ScriptedCall(name="read_file", raw='{"path": "a'),), chunk=2)
    async with ScriptedModel(make_script(step)) as model:
        said = await chunks(provider(wire, model), asked(wire))
        assert "".join(getattr(chunk, "arguments", "") for chunk in said) == '{"path": "a'


@pytest.mark.parametrize("wire", WIRES)
async def test_a_stream_that_is_closed_ends_its_request_at_once(wire: str) -> None:
    step = Step(text=TEXT, chunk=4, faults=(Fault(kind="stall", seconds=3600, times=0),))
    async with ScriptedModel(make_script(step)) as model:
        stream = provider(wire, model).stream(asked(wire))
        await anext(stream)
        await stream.aclose()
        while not model.requests[0].end:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.005)
        assert model.requests[0].end == "left"


async def test_one_session_serves_all_and_connections_are_used_again() -> None:
    async with ScriptedModel(make_script(Step(text="x"))) as model:
        for wire in WIRES:
            for _ in range(3):
                await chunks(provider(wire, model), asked(wire))
        assert len(base._sessions) == 1
        (kept,) = base._sessions.values()
        assert sum(len(some) for some in kept.session.connector._conns.values()) == 1


def test_nothing_of_a_loop_is_left_when_it_ends() -> None:
    async def main() -> None:
        async with ScriptedModel(make_script(Step(text="x"))) as model:
            await chunks(provider("chat", model), asked("chat"))
            assert base._sessions

    asyncio.run(main())
    assert not base._sessions
    loop = asyncio.new_event_loop()
    base._sessions[loop] = None
    loop.close()
    # The entry of a loop that was closed without cleanup is evicted.
    asyncio.run(main())
    assert not base._sessions
