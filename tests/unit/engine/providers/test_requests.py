"""Test requests in each service's format: the conversation, the tools and the options."""

from __future__ import annotations

from typing import Any

import pytest

from quarterdeck.engine.model import Call, Message, Picture, Request, Result, Text, Thinking
from quarterdeck.engine.providers import create_model
from quarterdeck.engine.providers.base import HttpModel, HttpRequest, is_strict_schema, safe_call_id
from quarterdeck.events import Image
from quarterdeck.testing.model import ScriptedModel
from quarterdeck.testing.script import Step, make_script
from tests.support.models import TOOL, WIRES, asked, chunks, provider

IMAGE = Image(media_type="image/png", data="aGk=")
ASKED = Message("user", (Text("go"),))
CALLED = Message("assistant", (Text("I look."), Call("c1", "read_file", {"path": "a"}), Call("c2", "read_file", {})))
DONE = Message("tool", (Result("c1", "read_file", "one"), Result("c2", "read_file", "no", ok=False, images=(IMAGE,))))
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}


def sent(wire: str, *messages: Message, model: str = "", **fields: Any) -> HttpRequest:
    one, _ = create_model(f"{wire}:x", {"api_key": "k"}, {})
    assert isinstance(one, HttpModel)
    request = asked(wire, *messages, **fields)
    named = Request(
        **{name: getattr(request, name) for name in request.__struct_fields__} | {"model": model or request.model}
    )
    return one.build_request(named)


def body(wire: str, *messages: Message, **fields: Any) -> dict[str, Any]:
    return sent(wire, *messages, **fields).body


# --- a conversation in each service's format


def test_anthropics_form() -> None:
    told = body("anthropic", ASKED, CALLED, DONE, Message("user", (Text("and?"), Picture(IMAGE))), system="Be brief.")
    cached = {"type": "ephemeral"}
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    assert told["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "go", "cache_control": cached}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "read_file", "input": {"path": "a"}},
                {"type": "tool_use", "id": "c2", "name": "read_file", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "one"}]},
                {
                    "type": "tool_result",
                    "tool_use_id": "c2",
                    "content": [{"type": "text", "text": "no"}, picture],
                    "is_error": True,
                },
                {"type": "text", "text": "and?"},
                {**picture, "cache_control": cached},
            ],
        },
    ]
    assert told["system"] == [{"type": "text", "text": "Be brief.", "cache_control": cached}]
    assert told["tools"][-1]["cache_control"] == cached
    # Anthropic refuses more than four.
    assert str(told).count("cache_control") == 4


def test_the_cached_part_stays_the_same_as_a_conversation_grows() -> None:
    """The first cache marks of a request are at the positions of the last marks in the previous one."""
    grown = [ASKED, CALLED, DONE, CALLED, DONE]
    first, second = body("anthropic", *grown[:3]), body("anthropic", *grown)
    marks = [
        [at for at, one in enumerate(told["messages"]) if "cache_control" in one["content"][-1]]
        for told in (first, second)
    ]
    assert marks == [[0, 2], [2, 4]]
    plain = str(second["messages"][:2])
    assert plain == str(first["messages"][:2]).replace(", 'cache_control': {'type': 'ephemeral'}", "")


def test_hidden_reasoning_goes_back_to_anthropic() -> None:
    thought = Message("assistant", (Thinking("", "anthropic:hidden:blob"), Thinking("", "anthropic:sig"), Text("x")))
    content = body("anthropic", ASKED, thought, ASKED)["messages"][1]["content"]
    assert content[:2] == [
        {"type": "redacted_thinking", "data": "blob"},
        {"type": "thinking", "thinking": "", "signature": "sig"},
    ]


def test_openais_form() -> None:
    told = body("openai", ASKED, CALLED, DONE, Message("user", (Text("and?"), Picture(IMAGE))), system="Be brief.")
    assert told["instructions"] == "Be brief."
    assert told["store"] is False
    assert told["include"] == ["reasoning.encrypted_content"]
    url = "data:image/png;base64,aGk="
    image = {"type": "input_image", "image_url": url}
    assert told["input"] == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "read_file", "arguments": '{"path":"a"}'},
        {"type": "function_call", "call_id": "c2", "name": "read_file", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "no"}, image]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "and?"}, image]},
    ]
    assert told["tools"][0]["strict"] is False


def test_reasoning_of_which_nothing_followed_does_not_go_to_openai() -> None:
    alone = Message("assistant", (Thinking("hm", "openai:rs_1:blob"),))
    followed = Message("assistant", (Thinking("hm", "openai:rs_1:blob"), Text("x")))
    assert [item["type"] for item in body("openai", ASKED, alone, ASKED)["input"]] == ["message", "message"]
    reasoning = body("openai", ASKED, followed, ASKED)["input"][1]
    assert reasoning == {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "encrypted_content": "blob",
    }


def test_the_form_of_chat_completions() -> None:
    told = body("chat", ASKED, CALLED, DONE, Message("user", (Text("and?"), Picture(IMAGE))), system="Be brief.")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    functions = [{"name": "read_file", "arguments": '{"path":"a"}'}, {"name": "read_file", "arguments": "{}"}]
    assert told["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": name, "type": "function", "function": function}
                for name, function in zip(("c1", "c2"), functions, strict=True)
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "no"},
        {"role": "user", "content": [image]},
        {"role": "user", "content": [{"type": "text", "text": "and?"}, image]},
    ]
    assert told["stream_options"] == {"include_usage": True}


def test_reasoning_goes_back_while_its_turn_lasts_and_no_longer() -> None:
    thought = Message("assistant", (Thinking("hm", "chat:reasoning_content"), Call("c1", "read_file", {})))
    done = Message("tool", (Result("c1", "read_file", "x"),))
    assert "reasoning_content" in body("chat", ASKED, thought, done)["messages"][1]
    assert "reasoning_content" not in body("chat", ASKED, thought, done, ASKED)["messages"][1]
    other = Message("assistant", (Thinking("hm", "chat:reasoning"), Text("x")))
    assert "hm" not in str(body("chat", ASKED, other))


def test_geminis_form() -> None:
    told = body("gemini", ASKED, CALLED, DONE, Message("user", (Text("and?"), Picture(IMAGE))), system="Be brief.")
    image = {"inlineData": {"mimeType": "image/png", "data": "aGk="}}
    assert told["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    assert told["contents"] == [
        {"role": "user", "parts": [{"text": "go"}]},
        {
            "role": "model",
            "parts": [
                {"text": "I look."},
                {
                    "functionCall": {"id": "c1", "name": "read_file", "args": {"path": "a"}},
                    "thoughtSignature": "skip_thought_signature_validator",
                },
                {"functionCall": {"id": "c2", "name": "read_file", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "c1", "name": "read_file", "response": {"output": "one"}}},
                {"functionResponse": {"id": "c2", "name": "read_file", "response": {"error": "no"}}},
                image,
                {"text": "and?"},
                image,
            ],
        },
    ]
    assert told["tools"] == [
        {
            "functionDeclarations": [
                {"name": "read_file", "description": "Reads", "parametersJsonSchema": TOOL.parameters}
            ]
        }
    ]


def test_geminis_signatures_go_back_to_their_places() -> None:
    proof = Thinking("", "gemini:p")
    replied = Message(
        "assistant", (Thinking("hm", "gemini:q"), Text("x"), proof, Call("qd-1", "a", {}), Call("2", "b", {}))
    )
    parts = body("gemini", ASKED, replied, ASKED)["contents"][1]["parts"]
    assert parts == [
        {"text": "x", "thoughtSignature": "q"},
        {"functionCall": {"name": "a", "args": {}}, "thoughtSignature": "p"},
        {"functionCall": {"id": "2", "name": "b", "args": {}}},
    ]
    trailing = Message("assistant", (Text("x"), proof))
    assert body("gemini", ASKED, trailing, ASKED)["contents"][1]["parts"][-1] == {"text": "", "thoughtSignature": "p"}
    older = body("gemini", ASKED, CALLED, DONE, model="gemini-2.5-flash")
    assert "thoughtSignature" not in str(older)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_long_conversation_is_taken(wire: str) -> None:
    empty = Message("assistant", (Text(" \n"), Thinking("only thought")))
    lost = Picture(Image(media_type="image/png", path="img/1.png"))
    history = (ASKED, CALLED, DONE, ASKED, empty, Message("user", (Text("  "), Text("more"), lost)))
    async with ScriptedModel(make_script(*[Step(text="ok")] * 9)) as model:
        await chunks(provider(wire, model), asked(wire, *history))
        told = str(model.requests[0].body)
        assert "only thought" not in told
        assert "no longer available: img/1.png" in told


# --- settings


def test_the_limit() -> None:
    assert body("anthropic", model="claude-opus-4-6")["max_tokens"] == 32_000
    assert body("anthropic", model="claude-3-7-sonnet-latest")["max_tokens"] == 32_000
    assert body("anthropic", model="claude-3-5-haiku-latest")["max_tokens"] == 8_192
    assert body("anthropic", model="claude-3-haiku-20240307")["max_tokens"] == 4_096
    assert body("anthropic", max_tokens=99)["max_tokens"] == 99
    assert body("openai", max_tokens=99)["max_output_tokens"] == 99
    assert body("chat", max_tokens=99)["max_completion_tokens"] == 99
    assert body("ollama", max_tokens=99)["max_tokens"] == 99
    assert body("gemini", max_tokens=99)["generationConfig"]["maxOutputTokens"] == 99
    assert not {"max_output_tokens", "max_completion_tokens"} & {*body("openai"), *body("chat")}


ADAPTIVE = ["claude-opus-4-6", "claude-sonnet-4-6-20260101", "claude-opus-4-7", "claude-sonnet-5", "claude-fable-5"]
BUDGETED = ["claude-opus-4-5-20251101", "claude-sonnet-4-20250514", "claude-haiku-4-5", "claude-3-7-sonnet-latest"]


@pytest.mark.parametrize("model", ADAPTIVE)
def test_newer_models_of_anthropic_think_by_effort(model: str) -> None:
    told = body("anthropic", model=model, thinking="medium")
    assert told["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert told["output_config"] == {"effort": "medium"}


@pytest.mark.parametrize("model", BUDGETED)
def test_older_models_of_anthropic_have_a_budget(model: str) -> None:
    whole = sent("anthropic", model=model, thinking="high")
    assert whole.body["thinking"] == {"type": "enabled", "budget_tokens": min(24_576, 16_000)}
    assert "interleaved" in whole.headers["anthropic-beta"]
    assert whole.headers["anthropic-version"]
    assert "thinking" not in body("anthropic", model=model, thinking="low", max_tokens=1000)
    assert body("anthropic", model=model, thinking="low", max_tokens=3000)["thinking"]["budget_tokens"] == 1500
    assert "thinking" not in body("anthropic", ASKED, CALLED, DONE, model=model, thinking="low")
    signed = Message("assistant", (Thinking("x", "anthropic:s"), *CALLED.parts))
    assert "thinking" in body("anthropic", ASKED, signed, DONE, model=model, thinking="low")


def test_thinking_off_and_not_said() -> None:
    assert body("anthropic", thinking="off")["thinking"] == {"type": "disabled"}
    assert "thinking" not in body("anthropic")
    least = {"gpt-5.2": "none", "gpt-5": "minimal", "gpt-5-codex": "low", "o3": "low"}
    assert {name: body("openai", model=name, thinking="off")["reasoning"]["effort"] for name in least} == least
    assert "reasoning" not in body("openai")
    assert "include" in body("openai", model="gpt-5.2")
    assert "include" not in body("openai", model="gpt-4.1")
    assert "include" not in body("openai", model="gpt-5-chat-latest")
    assert body("openai", model="o3", thinking="high")["reasoning"] == {"summary": "auto", "effort": "high"}
    assert "reasoning_effort" not in body("chat")
    assert body("chat", thinking="off")["reasoning_effort"] == "none"
    assert body("chat", thinking="low")["reasoning_effort"] == "low"


GEMINI = [
    ("gemini-3-pro", "", {"includeThoughts": True}),
    ("gemini-3-pro", "high", {"includeThoughts": True, "thinkingLevel": "high"}),
    ("gemini-4-argon", "low", {"includeThoughts": True, "thinkingLevel": "low"}),
    ("gemini-3-flash", "off", {"includeThoughts": False, "thinkingLevel": "low"}),
    ("gemini-3-pro", "off", {"includeThoughts": False, "thinkingLevel": "low"}),
    ("gemini-3-pro", "medium", {"includeThoughts": True, "thinkingLevel": "high"}),
    ("gemini-3.1-pro", "medium", {"includeThoughts": True, "thinkingLevel": "medium"}),
    ("gemini-2.5-flash", "off", {"includeThoughts": False, "thinkingBudget": 0}),
    ("gemini-2.5-pro", "off", {"includeThoughts": False, "thinkingBudget": 128}),
    ("gemini-2.5-pro", "medium", {"includeThoughts": True, "thinkingBudget": 8192}),
    ("gemini-2.5-flash", "", {"includeThoughts": True}),
    ("gemini-2.0-flash", "", None),
    ("gemma-3", "", None),
]


@pytest.mark.parametrize(("model", "level", "wanted"), GEMINI)
def test_how_much_gemini_thinks(model: str, level: str, wanted: Any) -> None:
    assert body("gemini", model=model, thinking=level).get("generationConfig", {}).get("thinkingConfig") == wanted


def test_a_schema_for_the_reply() -> None:
    loose = {"type": "object", "properties": {"a": {"type": "string"}}}
    form = body("anthropic", response_format=SCHEMA, thinking="low")["output_config"]
    assert form == {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}}
    form = body("openai", response_format=SCHEMA)["text"]["format"]
    assert form == {"type": "json_schema", "name": "reply", "schema": SCHEMA, "strict": True}
    assert body("openai", response_format=loose)["text"]["format"]["strict"] is False
    assert body("chat", response_format=loose)["response_format"]["json_schema"]["schema"] == loose
    config = body("gemini", response_format=SCHEMA)["generationConfig"]
    assert (config["responseMimeType"], config["responseJsonSchema"]) == ("application/json", SCHEMA)


def test_which_schemas_are_strict() -> None:
    assert is_strict_schema(SCHEMA)
    assert is_strict_schema({"type": "array", "items": SCHEMA})
    assert not is_strict_schema({"anyOf": [{"type": "null"}, {"type": "object", "properties": {"a": {}}}]})


@pytest.mark.parametrize("wire", WIRES)
def test_options_go_into_the_request_and_what_sets_up_does_not(wire: str) -> None:
    model, _ = create_model(f"{wire}:x", {"api_key": "secret", "top_p": 0.5, "generationConfig": {"seed": 1}}, {})
    assert isinstance(model, HttpModel)
    options = {"top_p": 0.7, "generationConfig": {"topK": 3}, "api_key": "secret", "base_url": "http://x.test"}
    told = model.build_request(asked(wire, max_tokens=50, options=options)).body
    assert told["top_p"] == 0.7
    assert (told["generationConfig"]["seed"], told["generationConfig"]["topK"]) == (1, 3)
    assert "secret" not in str(told)
    assert "base_url" not in told


def test_addresses() -> None:
    assert str(sent("anthropic").url) == "https://api.anthropic.com/v1/messages"
    assert str(sent("openai").url) == "https://api.openai.com/v1/responses"
    assert str(sent("chat").url) == "https://api.openai.com/v1/chat/completions"
    url = sent("gemini", model="models/gemini-3 pro/x").url
    assert str(url).endswith("/v1beta/models/gemini-3%20pro%2Fx:streamGenerateContent?alt=sse")


@pytest.mark.parametrize("name", ["functions.read:0", "x" * 65, "", "ü"])
def test_ids_of_other_services_are_made_plain_and_stay_apart(name: str) -> None:
    assert safe_call_id("call_1-a") == "call_1-a"
    assert safe_call_id(name).isascii()
    assert len(safe_call_id(name)) <= 64
    assert safe_call_id(name) == safe_call_id(name) != safe_call_id(name + "'")
