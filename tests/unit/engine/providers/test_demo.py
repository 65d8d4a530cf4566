"""Test the demo: a first session that shows everything with real files, and continues wherever it stopped."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.engine.model import Call, Finished, Message, Request, Result, Text, TextPiece, ThinkingPiece, ToolSpec
from quarterdeck.engine.providers import InvalidProvider, create_model
from quarterdeck.engine.providers.demo import FOLDER, DemoModel, fit_to_schema, next_reply
from tests.support.models import chunks, finished, replied, text_of

TEXT: dict[str, Any] = {"type": "string"}
TODO = {"type": "object", "properties": {"id": TEXT, "content": TEXT, "status": TEXT}}
EDIT = {"type": "object", "properties": {"old": TEXT, "new": TEXT}}


def tool(name: str, **properties: Any) -> ToolSpec:
    return ToolSpec(name, name, {"type": "object", "properties": properties})


TOOLS = (
    tool("write_todos", todos={"type": "array", "items": TODO}),
    tool("write_file", path=TEXT, content=TEXT),
    tool("read_file", path=TEXT),
    tool("edit_file", path=TEXT, edits={"type": "array", "items": EDIT}),
    tool("shell", command=TEXT),
    tool("ask_user", question=TEXT, options={"type": "array", "items": TEXT}),
)
MODEL = DemoModel({"pause": 0})


class Session:
    """A small agent: it calls the model and runs its tool calls in a folder until there are none."""

    def __init__(
        self, folder: Path, answer: str = "Keep it", allow: bool = True, tools: tuple[ToolSpec, ...] = TOOLS
    ) -> None:
        self.folder, self.answer, self.allow, self.tools = folder, answer, allow, tools
        self.messages: list[Message] = []
        self.calls: list[Call] = []
        self.steering: dict[int, str] = {}
        self.todos: list[Any] = []

    async def prompt(self, text: str) -> str:
        self.messages.append(Message("user", (Text(text),)))
        said = ""
        while True:
            got = await chunks(MODEL, Request(model="tour", messages=self.messages, tools=self.tools))
            message = replied(got)
            self.messages.append(message)
            said += text_of(got)
            assert (finished(got).stop_reason == "tools") == bool(message.calls)
            if not message.calls:
                return said
            self.calls += message.calls
            self.messages.append(Message("tool", tuple(self.done(call) for call in message.calls)))
            if aside := self.steering.pop(len(self.calls), None):
                self.messages.append(Message("user", (Text(aside),)))

    def done(self, call: Call) -> Result:
        ok, text = getattr(self, call.name)(**call.args)
        return Result(call.call_id, call.name, text, ok)

    def write_todos(self, todos: list[Any]) -> tuple[bool, str]:
        self.todos = todos
        return True, "ok"

    def write_file(self, path: str, content: str) -> tuple[bool, str]:
        (self.folder / path).parent.mkdir(exist_ok=True)
        (self.folder / path).write_text(content)
        return True, "written"

    def read_file(self, path: str) -> tuple[bool, str]:
        return True, (self.folder / path).read_text()

    def edit_file(self, path: str, edits: list[dict[str, str]]) -> tuple[bool, str]:
        text = (self.folder / path).read_text()
        for edit in edits:
            assert text.count(edit["old"]) == 1
            text = text.replace(edit["old"], edit["new"])
        (self.folder / path).write_text(text)
        return True, "edited"

    def shell(self, command: str) -> tuple[bool, str]:
        if not self.allow:
            return False, "rejected by the user"
        done = subprocess.run(["bash", "-c", command], cwd=self.folder, check=False)
        return done.returncode == 0, ""

    def ask_user(self, question: str, options: list[str]) -> tuple[bool, str]:
        assert question
        assert self.answer in (*options, "")
        return (True, self.answer) if self.answer else (False, "nobody answered")


async def test_the_tour_uses_every_tool_and_really_does_it(tmp_path: Path) -> None:
    session = Session(tmp_path)
    said = await session.prompt("hello there")
    assert {call.name for call in session.calls} == {one.name for one in TOOLS}
    assert "<title>" in said
    assert "<status>" in said
    assert "“hello there”" in said
    assert said.endswith(
        "I left quarterdeck-demo/ with notes.md and a copy in kept/; delete it with `rm -r quarterdeck-demo`."
    )
    assert "read and edited" in (tmp_path / FOLDER / "kept" / "notes.md").read_text()
    assert [todo["status"] for todo in session.todos] == ["completed"] * 4
    assert len({call.call_id for call in session.calls}) == len(session.calls)


async def test_it_removes_its_folder_when_asked_to(tmp_path: Path) -> None:
    said = await Session(tmp_path, "Remove it").prompt("hi")
    assert said.endswith("I left no files behind.")
    assert not (tmp_path / FOLDER).exists()


async def test_what_is_rejected_is_not_done_and_it_says_so(tmp_path: Path) -> None:
    said = await Session(tmp_path, "Remove it", allow=False).prompt("hi")
    assert "I made no copy" in said
    assert said.endswith("I left quarterdeck-demo/ with notes.md; delete it with `rm -r quarterdeck-demo`.")
    assert not (tmp_path / FOLDER / "kept").exists()


async def test_a_question_that_nobody_answers(tmp_path: Path) -> None:
    assert "There was no answer" in await Session(tmp_path, "").prompt("hi")


@pytest.mark.parametrize("after", range(2, 8))
async def test_a_text_in_the_middle_is_taken_up_and_the_tour_goes_on(tmp_path: Path, after: int) -> None:
    plain, steered = Session(tmp_path), Session(tmp_path)
    steered.steering[after] = "be  quick,\nplease"
    await plain.prompt("hi")
    said = await steered.prompt("hi")
    assert [call.name for call in steered.calls] == [call.name for call in plain.calls]
    assert said.count("“be quick, please”") == (after not in steered.steering)


async def test_it_is_read_from_the_conversation_alone(tmp_path: Path) -> None:
    """After every reply, a new model continues in the same way."""
    session = Session(tmp_path)
    await session.prompt("hi")
    for at, message in enumerate(session.messages):
        if message.role == "assistant":
            got = await chunks(DemoModel({"pause": 0}), _request(session.messages[:at]))
            assert _shape(replied(got)) == _shape(message)


def _shape(message: Message) -> list[Any]:
    return [(part.name, part.args) if isinstance(part, Call) else part for part in message.parts]


def _request(messages: list[Message], tools: tuple[ToolSpec, ...] = TOOLS) -> Request:
    return Request(model="tour", messages=messages, tools=tools)


@pytest.mark.parametrize("missing", [one.name for one in TOOLS])
async def test_it_does_without_a_tool_that_is_not_there(tmp_path: Path, missing: str) -> None:
    session = Session(
        tmp_path, tools=tuple(one for one in TOOLS if one.name not in (missing, "read_file", "edit_file"))
    )
    said = await session.prompt("hi")
    names = [call.name for call in session.calls]
    assert missing not in names
    assert len(names) == len(session.calls)
    assert "That was the tour." in said


async def test_it_talks_also_without_any_tool() -> None:
    got = await chunks(MODEL, _request([Message("user", (Text("hi"),))], ()))
    assert finished(got).stop_reason == "end"
    assert "I'm a script" in text_of(got)
    assert await chunks(MODEL, _request([], ()))


async def test_other_prompts_have_a_sensible_answer(tmp_path: Path) -> None:
    session = Session(tmp_path)
    await session.prompt("hi")
    before = len(session.calls)
    assert "“mend my parser”" in await session.prompt("mend my parser")
    assert len(session.calls) == before
    assert "You approved the command, and it ran" in await session.prompt("approval")
    assert "You answered “Keep it”" in await session.prompt("a question, please")
    assert "Line 40" in await session.prompt("long")
    # The question takes two calls: it also updates the todo list.
    assert len(session.calls) == before + 3
    assert "That was the tour" in await session.prompt("tour")
    session.allow, session.answer = False, ""
    assert "nothing was done" in await session.prompt("approval")
    assert "There was no answer" in await session.prompt("question")
    long = "word " * 100
    assert "…”" in await session.prompt(long)


def test_a_show_can_be_named_in_the_middle_of_a_turn_that_was_stopped() -> None:
    call = Call("c", "shell", {})
    messages = [
        Message("user", (Text("hi"),)),
        Message("assistant", (call,)),
        Message("tool", (Result("c", "shell", "aborted", False),)),
        Message("user", (Text("long"),)),
    ]
    assert "Line 1" in next_reply(_request(messages)).text


async def test_it_streams_word_by_word_with_pauses() -> None:
    model, name = create_model("demo:", {"pause": 0.0001})
    assert name == "tour"
    assert model.provider == "demo"
    reads = [some async for some in model.stream(_request([Message("user", (Text("hi"),))]))]
    assert isinstance(reads[0][0], ThinkingPiece)
    assert sum(isinstance(some[0], TextPiece) for some in reads) > 20
    last = reads[-1][0]
    assert isinstance(last, Finished)
    assert last.usage is not None
    assert (last.usage.input, last.usage.cost_usd) == (1, 0.0)


@pytest.mark.parametrize("pause", ["x", -1, 61, True, float("nan"), None])
def test_a_pause_that_is_none(pause: Any) -> None:
    with pytest.raises(InvalidProvider):
        create_model("demo:tour", {"pause": pause})


FITTED: list[tuple[Any, Any, Any]] = [
    ({"a": 1, "b": 2}, {"type": "object", "properties": {"a": {}}}, {"a": 1}),
    ({"id": "x", "label": "y"}, {"type": "string"}, "y"),
    ([{"label": "y"}], {"type": "array", "items": {"$ref": "#/$defs/O"}}, [{"label": "y"}]),
    ({"a": [1]}, True, {"a": [1]}),
    ({"a": {"b": 1}}, {"properties": {"a": {"$ref": "#/no/where"}}}, {"a": {"b": 1}}),
]


@pytest.mark.parametrize(("value", "schema", "wanted"), FITTED)
def test_arguments_fit_the_tool(value: Any, schema: Any, wanted: Any) -> None:
    assert fit_to_schema(value, schema) == wanted


def test_a_reference_is_followed() -> None:
    schema = {
        "properties": {"options": {"type": "array", "items": {"$ref": "#/$defs/O"}}},
        "$defs": {"O": {"type": "object", "properties": {"label": {"type": "string"}}}},
    }
    assert fit_to_schema({"options": [{"id": 1, "label": "x"}]}, schema) == {"options": [{"label": "x"}]}
