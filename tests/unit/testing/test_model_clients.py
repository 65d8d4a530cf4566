"""Test the scripted model with the services' own clients."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from quarterdeck.testing.model import ScriptedModel
from quarterdeck.testing.script import Fault, Script, ScriptedCall, ScriptedUsage, Step, make_script

with warnings.catch_warnings():
    # These packages warn about their own imports, which we can't change.
    warnings.simplefilter("ignore")
    import anthropic
    import openai
    from google import genai
    from google.genai import errors as genai_errors
    from google.genai import types

#: Google's client inherits from aiohttp's ClientSession, which aiohttp warns about.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class .* from ClientSession:DeprecationWarning")

THINK = "First I look, then I speak. Ä 漢字 🙂."
TEXT = "Here it is, with ü, 漢字 and 🙂, cut anywhere at all."
CALLS = (
    ScriptedCall(name="read_file", args={"path": "a/b.py", "lines": [1, 2]}),
    ScriptedCall(name="shell", args={"command": "echo 'ü 🙂' | wc -c"}),
)
STEP = Step(
    think=THINK,
    text=TEXT,
    calls=CALLS,
    chunk=5,
    usage=ScriptedUsage(input=70, output=30, cache_read=20, cache_write=10),
    signature="c2lnbmVk",
)
SCRIPT = make_script(STEP, Step(text="Done."))
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}}
WANTED = [(call.name, call.args) for call in CALLS]


def of_anthropic(model: ScriptedModel) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=model.url, api_key="k", max_retries=0)


def of_openai(model: ScriptedModel) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=model.openai_url, api_key="k", max_retries=0)


def of_gemini(model: ScriptedModel) -> genai.Client:
    return genai.Client(api_key="k", http_options=types.HttpOptions(base_url=model.url))


ANTHROPIC: dict[str, Any] = {
    "model": "claude-x",
    "max_tokens": 2000,
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "tools": [{"name": "read_file", "input_schema": SCHEMA}, {"name": "shell", "input_schema": SCHEMA}],
}
ASKED = {"role": "user", "content": "go"}


async def test_anthropic_streams_and_takes_results() -> None:
    async with ScriptedModel(SCRIPT) as model, of_anthropic(model) as client:
        async with client.messages.stream(messages=[ASKED], **ANTHROPIC) as stream:
            said = "".join([text async for text in stream.text_stream])
            message = await stream.get_final_message()
        assert said == TEXT
        thinking, text, *uses = message.content
        assert (thinking.thinking, thinking.signature, text.text) == (THINK, "c2lnbmVk", TEXT)
        assert [(use.name, use.input) for use in uses] == WANTED
        assert message.stop_reason == "tool_use"
        usage = message.usage
        assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (70, 20, 10)
        assert usage.output_tokens == 30
        results = [{"type": "tool_result", "tool_use_id": use.id, "content": "ok"} for use in uses]
        history = [ASKED, {"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
        after = await client.messages.create(messages=history, **ANTHROPIC)
        assert (after.content[0].text, after.stop_reason) == ("Done.", "end_turn")


async def test_anthropic_in_one_piece_is_the_same() -> None:
    async with ScriptedModel(SCRIPT) as model, of_anthropic(model) as client:
        message = await client.messages.create(messages=[ASKED], **ANTHROPIC)
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert [(use.name, use.input) for use in message.content[2:]] == WANTED


def functions() -> list[dict[str, Any]]:
    names = ("read_file", "shell")
    return [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in names]


async def test_chat_completions_stream_and_take_results() -> None:
    async with ScriptedModel(SCRIPT) as model, of_openai(model) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[ASKED], tools=functions(), stream=True, stream_options={"include_usage": True}
        )
        thought, said, calls, finish, usage = "", "", dict[int, list[str]](), None, None
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                thought += getattr(choice.delta, "reasoning_content", None) or ""
                said += choice.delta.content or ""
                finish = choice.finish_reason or finish
                for call in choice.delta.tool_calls or ():
                    if call.id:
                        calls[call.index] = [call.id, call.function.name, ""]
                    calls[call.index][2] += call.function.arguments or ""
        assert (thought, said, finish) == (THINK, TEXT, "tool_calls")
        assert [name for _, name, _ in calls.values()] == ["read_file", "shell"]
        assert [arguments for *_, arguments in calls.values()] == [call.arguments for call in CALLS]
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (100, 30)
        assert usage.prompt_tokens_details.cached_tokens == 20

        used = [
            {"id": name, "type": "function", "function": {"name": tool, "arguments": arguments}}
            for name, tool, arguments in calls.values()
        ]
        results = [{"role": "tool", "tool_call_id": one["id"], "content": "ok"} for one in used]
        history = [ASKED, {"role": "assistant", "content": said, "tool_calls": used}, *results]
        after = await client.chat.completions.create(model="m", messages=history, tools=functions())
        assert after.choices[0].message.content == "Done."


async def test_chat_completions_in_one_piece_are_the_same() -> None:
    async with ScriptedModel(SCRIPT) as model, of_openai(model) as client:
        whole = await client.chat.completions.create(model="m", messages=[ASKED], tools=functions())
        message = whole.choices[0].message
        assert message.content == TEXT
        assert [call.function.arguments for call in message.tool_calls] == [call.arguments for call in CALLS]


async def test_responses_stream_and_take_results() -> None:
    tools: Any = [{"type": "function", "name": name, "parameters": SCHEMA} for name in ("read_file", "shell")]
    async with ScriptedModel(SCRIPT) as model, of_openai(model) as client:
        thought = said = ""
        async with client.responses.stream(model="m", input="go", tools=tools) as stream:
            async for event in stream:
                said += event.delta if event.type == "response.output_text.delta" else ""
                thought += event.delta if event.type == "response.reasoning_summary_text.delta" else ""
            response = await stream.get_final_response()
        assert (thought, said, response.output_text) == (THINK, TEXT, TEXT)
        reasoning, _, *calls = response.output
        assert (reasoning.encrypted_content, reasoning.summary[0].text) == ("c2lnbmVk", THINK)
        assert [(call.name, call.arguments) for call in calls] == [(call.name, call.arguments) for call in CALLS]
        assert (response.usage.input_tokens, response.usage.input_tokens_details.cached_tokens) == (100, 20)
        results = [{"type": "function_call_output", "call_id": call.call_id, "output": "ok"} for call in calls]
        history: Any = [ASKED, *[item.model_dump(exclude_none=True) for item in response.output], *results]
        after = await client.responses.create(model="m", input=history, tools=tools)
        assert after.output_text == "Done."


def declared() -> types.GenerateContentConfig:
    names = ("read_file", "shell")
    tools = [types.FunctionDeclaration(name=name, parameters_json_schema=SCHEMA) for name in names]
    return types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=tools)],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )


async def test_gemini_streams_and_takes_results() -> None:
    async with ScriptedModel(SCRIPT) as model:
        client = of_gemini(model).aio
        asked = types.Content(role="user", parts=[types.Part(text="go")])
        parts: list[types.Part] = []
        usage = finish = None
        async for chunk in await client.models.generate_content_stream(model="m", contents=[asked], config=declared()):
            parts += chunk.candidates[0].content.parts
            usage, finish = chunk.usage_metadata, chunk.candidates[0].finish_reason
        assert "".join(part.text or "" for part in parts if part.thought) == THINK
        assert "".join(part.text or "" for part in parts if not part.thought) == TEXT
        calls = [part for part in parts if part.function_call]
        assert [(part.function_call.name, part.function_call.args) for part in calls] == WANTED
        assert calls[0].thought_signature == b"signed"
        assert (usage.prompt_token_count, usage.cached_content_token_count, usage.candidates_token_count) == (
            100,
            20,
            30,
        )
        assert finish == types.FinishReason.STOP
        results = [
            types.Part(
                function_response=types.FunctionResponse(
                    id=part.function_call.id, name=part.function_call.name, response={"output": "ok"}
                )
            )
            for part in calls
        ]
        history: Any = [asked, types.Content(role="model", parts=parts), types.Content(role="user", parts=results)]
        after = await client.models.generate_content(model="m", contents=history, config=declared())
        assert after.text == "Done."
        await client.aclose()


async def test_gemini_in_one_piece_is_the_same() -> None:
    async with ScriptedModel(SCRIPT) as model:
        client = of_gemini(model).aio
        whole = await client.models.generate_content(model="m", contents="go", config=declared())
        assert [(call.name, call.args) for call in whole.function_calls] == WANTED
        await client.aclose()


def failing(status: int, code: str = "") -> Script:
    return make_script(Step(text="x", faults=(Fault(kind="http", status=status, code=code, retry_after=7, times=0),)))


ERRORS = [
    (400, "overflow", "BadRequestError"),
    (401, "", "AuthenticationError"),
    (403, "", "PermissionDeniedError"),
    (404, "", "NotFoundError"),
    (429, "", "RateLimitError"),
    (500, "", "InternalServerError"),
]


@pytest.mark.parametrize(("status", "code", "name"), ERRORS)
async def test_errors_are_what_the_clients_know_them_as(status: int, code: str, name: str) -> None:
    async with ScriptedModel(failing(status, code)) as model:
        async with of_anthropic(model) as client:
            with pytest.raises(getattr(anthropic, name)) as refused:
                await client.messages.create(messages=[ASKED], **ANTHROPIC)
            assert refused.value.response.headers["retry-after"] == "7"
            assert refused.value.body["error"]["message"]
        async with of_openai(model) as client:
            for ask in (
                client.chat.completions.create(model="m", messages=[ASKED]),
                client.responses.create(model="m", input="go"),
            ):
                with pytest.raises(getattr(openai, name)) as refused:
                    await ask
                assert refused.value.body["message"]
        gemini = of_gemini(model).aio
        with pytest.raises(genai_errors.APIError) as told:
            await gemini.models.generate_content(model="m", contents="go")
        assert told.value.code == status
        await gemini.aclose()


async def test_an_error_in_the_middle_of_a_stream_is_one_for_the_clients() -> None:
    step = Step(text=TEXT, chunk=3, faults=(Fault(kind="error", message="Overloaded just now", times=0),))
    async with ScriptedModel(make_script(step)) as model:
        async with of_anthropic(model) as client:
            with pytest.raises(anthropic.APIStatusError, match="Overloaded just now"):
                async with client.messages.stream(messages=[ASKED], **ANTHROPIC) as stream:
                    await stream.get_final_message()
        async with of_openai(model) as client:
            with pytest.raises(openai.APIError, match="Overloaded just now"):
                async for _ in await client.chat.completions.create(model="m", messages=[ASKED], stream=True):
                    pass
            failed = [
                event.response.error.message
                async for event in await client.responses.create(model="m", input="go", stream=True)
                if event.type == "response.failed"
            ]
            assert failed == ["Overloaded just now"]
        gemini = of_gemini(model).aio
        with pytest.raises(genai_errors.APIError, match="Overloaded just now"):
            async for _ in await gemini.models.generate_content_stream(model="m", contents="go"):
                pass
        await gemini.aclose()
