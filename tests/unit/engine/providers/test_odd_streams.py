"""Test unusual replies that real services send: other orders, missing indexes, unknown event types."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import uvloop
from aiohttp import web

from quarterdeck.engine.model import (
    CallBegun,
    CallPiece,
    Chunk,
    Finished,
    Message,
    ModelError,
    Text,
    TextPiece,
    ThinkingPiece,
    ThinkingSigned,
)
from quarterdeck.engine.providers import InvalidProvider, base, create_model
from quarterdeck.engine.providers.base import HttpModel
from quarterdeck.engine.providers.failure import Service
from quarterdeck.events import TokenUsage
from quarterdeck.testing.model import ScriptedModel
from quarterdeck.testing.script import Step, make_script
from tests.support.models import WIRES, asked, chunks, provider, text_of

SERVICE = Service("lab", "m", "hint")


def read(wire: str, *events: Any) -> list[Chunk]:
    """Return the chunks for these events, including the one for the end of the body."""
    model, _ = create_model(f"{wire}:m", {"api_key": "k"}, {})
    assert isinstance(model, HttpModel)
    reader, out = model.make_reader(SERVICE), list[Chunk]()
    for event in events:
        reader.read(event if isinstance(event, bytes) else json.dumps(event).encode(), out)
    reader.close()
    return [*out, *([reader.finished] if reader.finished else [])]


def call(name: str = "", arguments: str = "", **fields: Any) -> dict[str, Any]:
    function = {"name": name or None, "arguments": arguments}
    return {"choices": [{"delta": {"tool_calls": [{**fields, "function": function}]}}]}


def said(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"delta": delta, "finish_reason": finish}]}


STOP = said({}, "stop")
TWO = [CallBegun(0, "a", "x"), CallPiece(0, "{}"), CallBegun(1, "b", "y"), CallPiece(1, "[1"), CallPiece(1, "]")]
CALLS: dict[str, Sequence[Any]] = {
    "numbered": [call("x", "{}", index=0, id="a"), call("y", "[1", index=1, id="b"), call("", "]", index=1)],
    "without numbers": [call("x", "{}", id="a"), call("y", "[1", id="b"), call("", "]")],
    "with their id each time": [call("x", "{}", id="a"), call("y", "[1", id="b"), call("y", "]", id="b")],
    "all of number 0": [call("x", "{}", index=0, id="a"), call("y", "[1", index=0, id="b"), call("", "]", index=0)],
}


@pytest.mark.parametrize("events", CALLS.values(), ids=CALLS)
def test_calls_of_chat_completions_however_they_are_numbered(events: Sequence[Any]) -> None:
    assert read("chat", *events, STOP) == [*TWO, Finished("tools")]


def test_a_call_without_an_id_gets_one() -> None:
    begun, *_ = read("chat", call("x", "{}", index=0), STOP)
    assert isinstance(begun, CallBegun)
    assert begun.call_id
    again, *_ = read("chat", call("x", "{}", index=0), STOP)
    assert isinstance(again, CallBegun)
    # Services refuse a conversation that contains an id twice.
    assert again.call_id != begun.call_id


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_of_chat_completions_under_both_names(name: str) -> None:
    thought = [ThinkingPiece("a"), ThinkingPiece("b"), ThinkingSigned(f"chat:{name}")]
    events = [said({name: "a"}), said({name: "b", "content": ""})]
    assert read("chat", *events, said({"content": "x"}), STOP) == [*thought, TextPiece("x"), Finished("end")]
    assert read("chat", *events, call("x", id="a"), STOP) == [*thought, CallBegun(0, "a", "x"), Finished("tools")]
    both = read("chat", said({name: "a", "content": "x"}), STOP)
    assert both == [ThinkingPiece("a"), ThinkingSigned(f"chat:{name}"), TextPiece("x"), Finished("end")]


def test_how_chat_completions_end() -> None:
    assert read("chat", said({"content": "x"})) == [TextPiece("x")]  # The stream was cut.
    assert read("chat", said({"content": "x"}, "stop"))[-1] == Finished("end")  # `[DONE]` is missing.
    assert read("chat", said({"content": "x"}), b"[DONE]")[-1] == Finished("end")  # The finish reason is missing.
    assert read("chat", STOP, b"[DONE]", b"{}")[-1] == Finished("end")
    assert read("chat", said({"refusal": "no"}), STOP | {"choices": []}, b"[DONE]")[-1] == Finished("refused")


USAGES: list[tuple[dict[str, Any], TokenUsage]] = [
    ({"prompt_tokens": 9, "completion_tokens": 2}, TokenUsage(input=9, output=2)),
    (
        {"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 4},
        TokenUsage(input=5, output=2, cache_read=4),
    ),
    (
        {"prompt_tokens": 9, "completion_tokens": None, "prompt_tokens_details": {"cached_tokens": 90}},
        TokenUsage(cache_read=9),
    ),
    ({"prompt_tokens_details": None}, TokenUsage()),
]


@pytest.mark.parametrize(("told", "usage"), USAGES)
def test_usage_of_chat_completions_in_all_its_forms(told: dict[str, Any], usage: TokenUsage) -> None:
    assert read("chat", STOP, {"choices": [], "usage": told}, b"[DONE]") == [Finished("end", usage)]


@pytest.mark.parametrize("error", ["it broke", {"message": "it broke", "code": 502}])
def test_an_error_among_chat_completions(error: Any) -> None:
    with pytest.raises(ModelError, match="it broke") as raised:
        read("chat", {"error": error})
    assert raised.value.is_transient


# --- Anthropic


def test_anthropics_hidden_reasoning_and_a_text_that_begins_with_words() -> None:
    got = read(
        "anthropic",
        {"type": "content_block_start", "index": 0, "content_block": {"type": "redacted_thinking", "data": "blob"}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": "Hi"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "citations_delta", "citation": {}}},
        {"type": "content_block_delta", "index": 1},
        {"type": "message_stop"},
    )
    assert got == [ThinkingSigned("anthropic:hidden:blob"), TextPiece("Hi"), Finished("end", TokenUsage())]


def test_anthropic_counts_the_whole_each_time() -> None:
    got = read(
        "anthropic",
        {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}},
        {"type": "message_delta", "delta": {"stop_reason": "pause_turn"}, "usage": {"output_tokens": 7}},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "max_tokens"},
            "usage": {"output_tokens": 9, "cache_read_input_tokens": 3, "input_tokens": None},
        },
        {"type": "message_stop"},
    )
    assert got == [Finished("length", TokenUsage(input=5, output=9, cache_read=3))]


# --- Responses


def test_arguments_that_come_only_at_the_end_and_a_second_part_of_a_summary() -> None:
    item = {"type": "function_call", "id": "f", "call_id": "c", "name": "x", "arguments": ""}
    got = read(
        "openai",
        {"type": "response.reasoning_summary_part.added", "summary_index": 0},
        {"type": "response.reasoning_summary_text.delta", "delta": "a"},
        {"type": "response.reasoning_summary_part.added", "summary_index": 1},
        {"type": "response.reasoning_summary_text.delta", "delta": "b"},
        {"type": "response.output_item.done", "item": {"type": "reasoning", "id": "r", "encrypted_content": None}},
        {"type": "response.output_item.added", "output_index": 1, "item": item},
        {"type": "response.output_item.done", "output_index": 1, "item": {**item, "arguments": "{}"}},
        {"type": "response.output_item.done", "output_index": 2, "item": {"type": "tool_search_call", "arguments": {}}},
        {"type": "response.completed", "response": {"usage": None}},
    )
    thought = [ThinkingPiece("a"), ThinkingPiece("\n\n"), ThinkingPiece("b")]
    assert got == [*thought, CallBegun(0, "c", "x"), CallPiece(0, "{}"), Finished("tools")]


def test_a_refusal_of_openai_is_said_and_is_one() -> None:
    got = read("openai", {"type": "response.refusal.delta", "delta": "No."}, {"type": "response.completed"})
    assert got == [TextPiece("No."), Finished("refused")]


# --- Gemini


def answer(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": list(parts)}, **fields}]}


def test_geminis_calls_without_ids_get_one_that_is_ours() -> None:
    got = read(
        "gemini",
        answer({"functionCall": {"name": "x"}}, {"functionCall": {"name": "y", "args": {"a": 1}}}),
        answer(finishReason="STOP"),
    )
    begun = [chunk for chunk in got if isinstance(chunk, CallBegun)]
    assert [one.call_id.startswith("qd-") for one in begun] == [True, True]
    assert begun[0].call_id != begun[1].call_id
    assert [chunk.arguments for chunk in got if isinstance(chunk, CallPiece)] == ["{}", '{"a":1}']
    assert got[-1] == Finished("tools")


def test_geminis_other_ends() -> None:
    assert read("gemini", {"promptFeedback": {"blockReason": "SAFETY"}}) == [Finished("refused")]
    assert read("gemini", {"candidates": [{"finishReason": "RECITATION"}]}) == [Finished("refused")]
    assert read("gemini", answer({"text": "x"})) == [TextPiece("x")]  # The stream was cut.
    signed = read("gemini", answer({"text": "x", "thoughtSignature": "s"}, finishReason="STOP"))
    assert signed == [ThinkingSigned("gemini:s"), TextPiece("x"), Finished("end")]
    with pytest.raises(ModelError, match="MALFORMED_FUNCTION_CALL") as error:
        read("gemini", {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": "x("}]})
    assert error.value.is_transient


def test_gemini_counts_thoughts_as_output() -> None:
    usage = {
        "promptTokenCount": 10,
        "toolUsePromptTokenCount": 5,
        "cachedContentTokenCount": 4,
        "candidatesTokenCount": 3,
        "thoughtsTokenCount": 2,
    }
    got = read("gemini", answer(finishReason="STOP") | {"usageMetadata": usage})
    assert got == [Finished("end", TokenUsage(input=11, output=5, cache_read=4))]


# --- all of them


@pytest.mark.parametrize("wire", ["anthropic", "openai"])
def test_kinds_of_events_that_nobody_knows_are_left_alone(wire: str) -> None:
    assert read(wire, {"type": "new", "delta": 1, "item": 2, "message": [], "usage": "x"}, {"type": "newer"}) == []


@pytest.mark.parametrize(
    ("wire", "event"),
    [
        ("anthropic", {"type": "content_block_delta", "delta": "x"}),
        ("openai", {"type": "response.output_text.delta", "delta": {}}),
        ("chat", {"choices": "x"}),
        ("gemini", {"candidates": 1}),
    ],
)
def test_kinds_that_we_know_must_be_what_they_say(wire: str, event: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        read(wire, event)


async def test_a_request_may_be_large() -> None:
    text = "x" * 3_000_000
    async with ScriptedModel(make_script(Step(text="ok"))) as model:
        got = await chunks(provider("chat", model), asked("chat", Message("user", (Text(text),))))
        assert text_of(got) == "ok"
        assert model.requests[0].body["messages"][0]["content"] == text


async def test_an_error_may_come_in_pieces() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=402)
        await response.prepare(request)
        for piece in (b'{"error": {"mess', b'age": "in pieces"}}'):
            await response.write(piece)
            await asyncio.sleep(0.02)
        return response

    app = web.Application()
    app.router.add_post("/chat/completions", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    model, _ = create_model("chat:m", {"base_url": f"http://127.0.0.1:{runner.addresses[0][1]}"}, {})
    with pytest.raises(ModelError, match="in pieces"):
        await chunks(model, asked("chat"))
    await runner.cleanup()


@pytest.mark.parametrize("headers", [{"a": "b\nc"}, {"a\r": "b"}, {"a": "ü"}])
def test_headers_that_cannot_be_sent(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidProvider, match="header"):
        create_model("ollama:m", {"headers": headers}, {})


@pytest.mark.parametrize("wire", WIRES)
def test_it_is_the_same_on_uvloop_and_nothing_is_left(wire: str) -> None:
    async def main() -> str:
        async with ScriptedModel(make_script(Step(text="ok", chunk=1, delay=0.001))) as model:
            return text_of(await chunks(provider(wire, model), asked(wire)))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == "ok"
    assert not base._sessions


def test_a_proxy_is_used_unless_it_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from yarl import URL

    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy.test:3128")
    monkeypatch.setenv("no_proxy", "inside.test")
    base._find_proxy.cache_clear()
    assert base._find_proxy(URL("https://api.test")) == URL("http://proxy.test:3128")
    assert base._find_proxy(URL("https://inside.test")) is None
    assert base._find_proxy(URL("https://127.0.0.1:9")) is None
    assert base._find_proxy(URL("http://api.test")) is None
    base._find_proxy.cache_clear()
