"""Test `@quarterdeck.tool`: the schema that a model sees, and the arguments that a function gets."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import msgspec
import pytest

import quarterdeck
from quarterdeck import Image, InvalidTool, Outcome, QuarterdeckError, Tool, ToolContext, tool
from tests.support.tool_context import TestHands, call, called


class Place(msgspec.Struct):
    """Where."""

    row: int
    column: int = 0


@tool
def described(
    path: str,
    places: list[Place],
    mode: Literal["a", "b"] = "a",
    note: Optional[str] = None,  # noqa: UP045  # Users write it this way.
    size: Annotated[int, "how large", msgspec.Meta(ge=1)] = 10,
    tags: list[str] = ["x"],  # noqa: B006
) -> str:
    """Does a thing.

    It takes long.

    Args:
        path: which file,
            in the working directory
        places (list[Place]): where in it
        mode: how
    Returns:
        nothing of interest
    """
    return repr((path, places, mode, note, size, tags))


@pytest.fixture
def hands(tmp_path: Path) -> TestHands:
    return TestHands(tmp_path)


class TestTheSchema:
    def test_name_and_description(self) -> None:
        assert isinstance(described, Tool)
        assert described.name == "described"
        assert described.spec.description == "Does a thing.\n\nIt takes long."

    def test_an_object_with_every_argument(self) -> None:
        schema = described.spec.parameters
        assert schema["type"] == "object"
        assert schema["required"] == ["path", "places"]
        assert schema["additionalProperties"] is False
        assert list(schema["properties"]) == ["path", "places", "mode", "note", "size", "tags"]
        assert "title" not in schema

    def test_types_texts_and_defaults(self) -> None:
        fields = described.spec.parameters["properties"]
        assert fields["path"] == {"type": "string", "description": "which file, in the working directory"}
        assert fields["mode"] == {"enum": ["a", "b"], "default": "a", "description": "how"}
        assert fields["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
        assert fields["size"] == {"type": "integer", "minimum": 1, "default": 10, "description": "how large"}

    def test_nested_structs_lie_beside(self) -> None:
        schema = described.spec.parameters
        assert schema["properties"]["places"]["items"] == {"$ref": "#/$defs/Place"}
        assert schema["$defs"]["Place"]["required"] == ["row"]
        assert schema["$defs"]["Place"]["description"] == "Where."

    def test_sphinx_fields_are_read_too(self) -> None:
        @tool
        def one(a: int, b: int) -> None:
            """Adds.

            :param a: the first
            :param int b: the second,
                of two
            :returns: nothing
            """

        assert one.spec.description == "Adds."
        texts = {name: field["description"] for name, field in one.spec.parameters["properties"].items()}
        assert texts == {"a": "the first", "b": "the second, of two"}

    def test_text_after_the_arguments_belongs_to_the_description(self) -> None:
        @tool
        def one(a: int) -> None:
            """Adds.

            Args:
                a: the first

            Never subtracts.
            """

        assert one.spec.description == "Adds.\n\nNever subtracts."

    def test_the_hands_are_not_shown(self) -> None:
        @tool
        def one(text: str, mine: ToolContext) -> str:
            return text + mine.session_id

        assert list(one.spec.parameters["properties"]) == ["text"]

    def test_a_type_that_only_the_function_around_knows(self, hands: TestHands) -> None:
        class Local(msgspec.Struct):
            x: int

        @tool()
        def one(local: Local) -> int:
            return local.x

        assert call(one, hands, local={"x": 3}).text == "3"

    def test_no_arguments(self, hands: TestHands) -> None:
        @tool
        def now() -> str:
            return "noon"

        assert now.spec.parameters == {
            "type": "object",
            "properties": {},
            "required": [],
            "additionalProperties": False,
        }
        assert call(now, hands).text == "noon"

    def test_the_schema_is_plain_json(self) -> None:
        assert msgspec.json.decode(msgspec.json.encode(described.spec.parameters)) == described.spec.parameters


class TestTheOptions:
    def test_as_given(self) -> None:
        @tool(
            name="other",
            description="another",
            killable=True,
            immune=True,
            needs_approval=True,
            writes=True,
            parallel=False,
        )
        def one() -> None: ...

        assert (one.name, one.spec.description) == ("other", "another")
        assert (one.killable, one.immune, one.needs_approval, one.writes, one.parallel) == (
            True,
            True,
            True,
            True,
            False,
        )

    def test_a_plain_function_is_not_killable_unless_that_is_said(self) -> None:
        @tool
        def plain() -> None: ...

        @tool
        async def awaited() -> None: ...

        assert not plain.killable
        assert awaited.killable
        assert (awaited.immune, awaited.needs_approval, awaited.writes, awaited.parallel) == (False, False, False, True)

    def test_it_can_still_be_called(self) -> None:
        @tool
        def add(a: int, b: int) -> int:
            return a + b

        assert add(1, b=2) == 3
        assert quarterdeck.tool is tool


class TestWhatCannotBeATool:
    def test_an_argument_without_annotation(self) -> None:
        with pytest.raises(InvalidTool, match="argument b has no annotation") as raised:

            @tool
            def one(a: int, b) -> None: ...

        assert raised.value.code == "invalid_tool"
        assert raised.value.hint

    def test_arguments_without_names(self) -> None:
        with pytest.raises(InvalidTool, match=r"\*rest"):

            @tool
            def one(*rest: int) -> None: ...

        with pytest.raises(InvalidTool, match="can't pass a"):

            @tool
            def two(a: int, /) -> None: ...

    def test_a_type_that_no_schema_can_say(self) -> None:
        with pytest.raises(InvalidTool, match="can't be a tool"):

            @tool
            def one(lock: threading.Lock) -> None: ...

    def test_a_name_that_is_not_there(self) -> None:
        with pytest.raises(InvalidTool, match="Nowhere"):

            @tool
            def one(a: Nowhere) -> None: ...  # noqa: F821

    def test_a_name_that_no_provider_takes(self) -> None:
        with pytest.raises(InvalidTool, match="characters"):
            tool(name="a b")(lambda: None)


class TestTheArguments:
    def test_as_annotated(self, hands: TestHands) -> None:
        text = call(described, hands, path="p", places=[{"row": 1}], note="n").text
        assert text == repr(("p", [Place(1)], "a", "n", 10, ["x"]))

    def test_a_default_that_is_a_list_is_never_shared(self, hands: TestHands) -> None:
        @tool
        def grown(things: list[str] = ["a"]) -> int:  # noqa: B006
            things.append("b")
            return len(things)

        assert [call(grown, hands).text for _ in range(3)] == ["2", "2", "2"]

    @pytest.mark.parametrize(
        ("args", "said"),
        [
            ({"places": []}, "described: argument path is missing"),
            ({"path": 1, "places": []}, "argument path: Expected `str`, got `int`"),
            ({"path": "p", "places": [{"row": "one"}]}, "argument places[0].row: Expected `int`, got `str`"),
            ({"path": "p", "places": [{}]}, "argument places[0].row is missing"),
            ({"path": "p", "places": [], "mode": "z"}, "argument mode: Invalid enum value 'z'"),
            ({"path": "p", "places": [], "size": 0}, "argument size: Expected `int` >= 1"),
            (
                {"path": "p", "places": [], "pth": 1},
                "there is no argument pth; the arguments are path, places, mode, note, size, tags",
            ),
        ],
    )
    def test_what_does_not_fit_is_told_by_its_name(self, hands: TestHands, args: dict[str, Any], said: str) -> None:
        outcome = call(described, hands, **args)
        assert not outcome.ok
        assert said in outcome.text

    def test_a_number_may_come_as_text_or_with_a_point(self, hands: TestHands) -> None:
        @tool
        def one(count: int, text: str, either: int | str) -> str:
            return repr((count, text, either))

        assert call(one, hands, count="5", text="5", either="5").text == "(5, '5', '5')"
        assert call(one, hands, count=5.0, text="5", either=5).text == "(5, '5', 5)"
        assert not call(one, hands, count=5.5, text="5", either=5).ok


class TestWhatItGives:
    @pytest.mark.parametrize(
        ("value", "text", "held"),
        [
            ("said", "said", None),
            (None, "done", None),
            (3, "3", 3),
            ({"a": [1]}, '{"a":[1]}', {"a": [1]}),
            (Place(1, 2), '{"row":1,"column":2}', {"row": 1, "column": 2}),
            ([Place(1)], '[{"row":1,"column":0}]', [{"row": 1, "column": 0}]),
        ],
    )
    def test_becomes_an_outcome(self, hands: TestHands, value: Any, text: str, held: Any) -> None:
        @tool
        async def one() -> Any:
            return value

        assert call(one, hands) == Outcome(text, value=held)

    def test_an_outcome_and_an_image_are_taken_as_they_are(self, hands: TestHands) -> None:
        given = Outcome("no", ok=False)
        image = Image(media_type="image/png", data="AA==")

        @tool
        def one(which: int) -> Outcome | Image:
            return image if which else given

        assert call(one, hands, which=0) is given
        assert call(one, hands, which=1) == Outcome("image/png", images=(image,))

    def test_an_error_of_ours_is_told_with_its_hint(self, hands: TestHands) -> None:
        @tool
        def one() -> None:
            raise QuarterdeckError("it broke", "Mend it.")

        assert call(one, hands) == Outcome("it broke. Mend it.", ok=False)

    def test_any_other_error_is_the_engines(self, hands: TestHands) -> None:
        @tool
        def one() -> None:
            raise KeyError("x")

        with pytest.raises(KeyError):
            call(one, hands)

    def test_what_nobody_can_encode_is_an_error(self, hands: TestHands) -> None:
        @tool
        def one() -> object:
            return object()

        with pytest.raises(TypeError):
            call(one, hands)

    @pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, StopIteration])
    def test_a_function_cannot_end_the_loop(self, hands: TestHands, kind: type[BaseException]) -> None:
        @tool
        def one() -> None:
            raise kind("over")

        with pytest.raises(RuntimeError, match=f"{kind.__name__}: over"):
            call(one, hands)


class TestWhereItRuns:
    def test_plain_functions_run_beside_each_other_however_many(self, hands: TestHands) -> None:
        """Run more functions at once than a default thread pool has threads. Each waits for all the others."""
        everybody = threading.Barrier(60)

        @tool
        def meet(mine: ToolContext) -> str:
            everybody.wait(30)
            return mine.call_id

        async def all_at_once() -> list[Outcome]:
            return await asyncio.gather(*(called(meet, hands) for _ in range(60)))

        assert {one.text for one in asyncio.run(all_at_once())} == {"c1"}

    def test_an_async_one_runs_on_the_loop_and_can_be_cancelled(self, hands: TestHands) -> None:
        ended: list[str] = []

        @tool
        async def wait() -> None:
            assert threading.current_thread() is threading.main_thread()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("yes")

        async def cancelled() -> None:
            task = asyncio.ensure_future(called(wait, hands))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancelled())
        assert ended == ["yes"]

    def test_context_variables_reach_the_thread(self, hands: TestHands) -> None:
        who = contextvars.ContextVar("who", default="nobody")

        @tool
        def one() -> str:
            return who.get()

        async def inside() -> Outcome:
            who.set("me")
            return await called(one, hands)

        assert asyncio.run(inside()).text == "me"

    def test_a_wrapped_function_keeps_its_annotations(self, hands: TestHands) -> None:
        def loud(function: Any) -> Any:
            @functools.wraps(function)
            def wrapped(**given: Any) -> str:
                return function(**given).upper()

            return wrapped

        @tool
        @loud
        def say(word: str) -> str:
            """Says it."""
            return word

        assert call(say, hands, word="ho").text == "HO"
        assert say.spec.description == "Says it."
