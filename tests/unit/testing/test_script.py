"""Test how the step of a script is found for a request, and how scripts are loaded."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from quarterdeck.testing.script import (
    BadScript,
    Fault,
    Script,
    ScriptedCall,
    Step,
    Turn,
    count_replies,
    fault_at,
    find_step,
    find_unanswered_calls,
    load_script,
    make_script,
)

ONE, TWO, THREE = Step(text="1"), Step(text="2"), Step(text="3")
ASKED, SAID, DONE = Turn("user", "go"), Turn("model", "1"), Turn("result", results=("a",))
MARKED = Turn("user", "now script:fix please")
SCRIPT = Script(default=(ONE, TWO), scenario={"fix": (TWO, THREE)})


@pytest.mark.parametrize(
    ("turns", "scenario", "number", "text"),
    [
        ([ASKED], "default", 0, "1"),
        ([ASKED, SAID, ASKED], "default", 1, "2"),
        ([ASKED, SAID, DONE], "default", 1, "2"),
        ([ASKED, SAID, ASKED, SAID, ASKED], "default", 2, "The script is over."),
        ([MARKED], "fix", 0, "2"),
        ([MARKED, SAID, DONE], "fix", 1, "3"),
        ([ASKED, SAID, MARKED], "fix", 0, "2"),
        ([MARKED, SAID, Turn("user", "no mark"), SAID, ASKED], "fix", 2, "The script is over."),
        ([MARKED, SAID, Turn("user", "script:none")], "none", 0, "The script is over."),
        ([Turn("user", "script:none script:fix")], "fix", 0, "2"),
        ([Turn("model", "script:fix"), ASKED], "default", 1, "2"),
        ([], "default", 0, "1"),
    ],
)
def test_the_step_is_the_place_in_the_conversation(turns: list[Turn], scenario: str, number: int, text: str) -> None:
    found = find_step(SCRIPT, turns, has_tools=True)
    assert (found.scenario, found.number, found.step.text) == (scenario, number, text)


def test_items_that_follow_each_other_are_one_reply() -> None:
    assert count_replies([ASKED, SAID, SAID, SAID, DONE, SAID, ASKED]) == 2


def test_a_request_without_tools_is_an_auxiliary_one_if_the_script_says_so() -> None:
    script = Script(default=(ONE,), aux=THREE)
    assert find_step(script, [ASKED], has_tools=False).step == THREE
    assert find_step(script, [ASKED], has_tools=True).step == ONE
    assert find_step(make_script(ONE), [ASKED], has_tools=False).step == ONE
    assert find_step(script, [], has_tools=False).opening == ""


def test_a_call_must_be_answered_before_the_model_is_asked_again() -> None:
    called = Turn("model", calls=("a", "b"))
    assert find_unanswered_calls([ASKED, called, DONE]) == ("b",)
    assert find_unanswered_calls([ASKED, called, DONE, Turn("result", results=("b",)), ASKED]) == ()
    assert find_unanswered_calls([ASKED, called, ASKED, Turn("result", results=("a", "b"))]) == ("a", "b")


def test_faults_are_played_one_after_the_other_and_then_the_step() -> None:
    first, second = Fault(kind="drop", times=2), Fault(kind="hang")
    step = Step(faults=(first, second))
    assert [fault_at(step, attempt) for attempt in range(5)] == [first, first, second, None, None]
    assert fault_at(Step(faults=(Fault(kind="cut", times=0),)), 1000) is not None


def test_the_stop_reason_follows_from_the_calls() -> None:
    assert Step().stop_reason == "end"
    assert Step(calls=(ScriptedCall(name="x"),)).stop_reason == "tools"
    assert Step(stop="length").stop_reason == "length"


TOML = """
key = "k"
[[default]]
text = "Hello."
[[scenario.fix]]
think = "hm"
calls = [{ name = "read_file", args = { path = "x" } }]
faults = [{ kind = "http", status = 529, times = 2 }]
[aux]
text = "A title"
"""


def test_a_script_is_toml_or_json(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(TOML)
    script = load_script(tmp_path / "a.toml")
    assert script.scenario["fix"][0].calls[0].arguments == '{"path":"x"}'
    assert script.scenario["fix"][0].faults[0].status == 529
    assert script.aux == Step(text="A title")
    (tmp_path / "a.json").write_bytes(msgspec.json.encode(script))
    assert load_script(tmp_path / "a.json") == script


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.toml", "[[default]]\ntxt = 'x'", "unknown field `txt`"),
        ("a.toml", "[[default]]\nfaults = [{ kind = 'fire' }]", "fire"),
        ("a.toml", "[[default", "end of document"),
        ("a.toml", b"\xff\xfe", "utf-8"),
        ("a.json", "{", "truncated"),
        ("none.toml", None, "No such file"),
    ],
)
def test_what_cannot_be_played_is_an_error_that_says_why(
    tmp_path: Path, name: str, text: str | bytes, says: str
) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(BadScript, match=says) as error:
        load_script(tmp_path / name)
    assert error.value.hint
