"""Check that a mirror which is patched from view to view equals a fresh snapshot, at every index and over any distance."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.harness.registry import translator
from quarterdeck.harness.replay import Replay
from quarterdeck.kernel import patch
from quarterdeck.kernel.state import State
from quarterdeck.kernel.summary import DETAILS_FIELDS, SUMMARY_FIELDS, VIEW_FIELDS, Details, Field, Summary, view_values
from quarterdeck.kernel.timeline import Timeline, window
from quarterdeck.kernel.view import View
from tests.conformance.test_traces import recording_of
from tests.support.mirror import DEFAULTS, apply_changes
from tests.support.sessions import works
from tests.support.tape import Tape

TRACES = Path(__file__).parent.parent / "conformance" / "traces"
EXPECTATIONS = sorted(TRACES.rglob("*.expect.json"))
#: Each recording once: some have several expectations.
RECORDINGS = list({recording_of(one): one for one in EXPECTATIONS}.values())
LIMITS = (1, 5, 200)


def plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def entries(timeline: Timeline, limit: int = 200) -> list[dict[str, Any]]:
    return plain(window(timeline, limit))


def views(expectation: Path) -> list[View]:
    agent = json.loads(expectation.read_bytes())["agent"]
    with recording_of(expectation).open("rb") as lines:
        return [View(), *(row.view for row in Replay(translator(agent), agent).rows(lines))]


def told(before: View, after: View, limit: int = 200) -> list[dict[str, Any]]:
    return plain(patch.timeline_changes(before.timeline, after.timeline, limit))


def ops(changes: Sequence[dict[str, Any]]) -> list[str]:
    return [f"{change['op']} {change.get('field', '')}".strip() for change in changes]


def mirrored(before: View, after: View, limit: int = 200) -> None:
    mirror = apply_changes(entries(before.timeline, limit), told(before, after, limit))
    assert mirror == entries(after.timeline, limit)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_a_patched_mirror_equals_a_snapshot_over_a_recording(path: Path):
    found = views(path)
    dice = random.Random(path.name)
    for limit in LIMITS:
        shown = [entries(view.timeline, limit) for view in found]
        mirror = shown[0]
        for place in range(1, len(found)):
            mirror = apply_changes(mirror, told(found[place - 1], found[place], limit))
            assert mirror == shown[place]
        for _ in range(30):
            first, last = sorted(dice.choices(range(len(found)), k=2))
            assert apply_changes(shown[first], told(found[first], found[last], limit)) == shown[last]


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_a_patched_view_equals_the_view_over_a_recording(path: Path):
    found = views(path)
    mirror = plain(view_values(found[0]))
    for before, after in pairwise(found):
        for change in plain(patch.view_changes(before, after)):
            assert change["op"] == "set"
            mirror[change["field"]] = change["value"]
        mirror["index"] = after.index
        assert mirror == plain(view_values(after))


def test_recordings_are_there():
    assert len(RECORDINGS) > 10


def message(tape: Tape, *pieces: str) -> Tape:
    return tape.add(ev.MessageStart(message_id="m"), *(ev.MessageDelta(message_id="m", delta=one) for one in pieces))


def grown(tape: Tape, *bodies: ev.Body) -> tuple[View, View]:
    before = tape.view
    return before, tape.add(*bodies).view


def test_nothing_changed_is_nothing_told():
    view = works().view
    assert told(view, view) == []
    assert patch.view_changes(view, view) == patch.summary_changes(view, view) == []


def test_a_text_that_grows_is_told_by_its_pieces():
    before, after = grown(message(works(), "one "), ev.MessageDelta(message_id="m", delta="two"))
    assert [(change["op"], change["field"], change["value"]) for change in told(before, after)] == [
        ("append", "text", "two")
    ]
    mirrored(before, after)


def test_many_pieces_at_once_are_one():
    pieces = [ev.MessageDelta(message_id="m", delta=f"{number} ") for number in range(200)]
    before, after = grown(message(works(), "one "), *pieces)
    assert ops(told(before, after)) == ["append text"]
    mirrored(before, after)


def test_the_first_piece_is_told_as_the_entry_it_changes():
    before, after = grown(message(works()), ev.MessageDelta(message_id="m", delta="one"))
    mirrored(before, after)


def test_the_output_of_a_shell_command_grows_too():
    tape = works().add(ev.BashStart(bash_id="b", command="ls"), ev.BashOutput(bash_id="b", delta="a\n"))
    before, after = grown(tape, ev.BashOutput(bash_id="b", delta="b\n"))
    assert ops(told(before, after)) == ["append bashResult.output"]
    mirrored(before, after)


def test_the_output_of_a_call_is_told_as_its_step():
    tape = works().add(
        ev.ToolExecutionStart(name="Bash", call_id="c"), ev.ToolExecutionOutput(call_id="c", delta="a\n")
    )
    before, after = grown(tape, ev.ToolExecutionOutput(call_id="c", delta="b\n"))
    mirrored(before, after)


def test_two_texts_that_grow_side_by_side():
    tape = message(works(), "one ").add(ev.BashStart(bash_id="b", command="ls"), ev.BashOutput(bash_id="b", delta="a"))
    before, after = grown(tape, ev.BashOutput(bash_id="b", delta="b"), ev.MessageDelta(message_id="m", delta="two"))
    assert sorted(ops(told(before, after))) == ["append bashResult.output", "append text"]
    mirrored(before, after)
    only_one = grown(tape, ev.MessageDelta(message_id="m", delta="three"))
    assert ops(told(*only_one)) == ["append text"]
    mirrored(*only_one)


def test_another_text_in_the_same_place_is_no_growth():
    tape = message(works(), "one ")
    first = tape.view
    aborted = tape.add(ev.MessageAborted(message_id="m", keep=False)).view
    again = tape.add(ev.MessageStart(message_id="n"), ev.MessageDelta(message_id="n", delta="other")).view
    for before, after in ((first, aborted), (aborted, again), (first, again), (again, first)):
        mirrored(before, after)


def test_a_text_in_the_place_of_another_session_is_no_growth():
    """Two unrelated views with the same number of open texts, in the same entries."""
    before = message(works(), "one ").view.timeline
    (open_text,) = before.open
    other = replace(before, open=(replace(open_text, message_id="other"),))
    assert plain(patch.timeline_changes(before, other)) == []
    mirrored(View(timeline=before), View(timeline=replace(before, open=())))


def test_a_text_that_was_rewritten_is_set():
    tape = message(works(), "one ")
    before, after = grown(tape, ev.ResponseComplete(message_id="m", blocks=(ev.Block(text="Something else"),)))
    assert "set text" in ops(told(before, after))
    mirrored(before, after)


def test_a_text_that_its_whole_restates_longer_is_appended_to():
    tape = message(works(), "one ")
    before, after = grown(tape, ev.ResponseComplete(message_id="m", blocks=(ev.Block(text="one two"),)))
    assert "append text" in ops(told(before, after))
    mirrored(before, after)


def test_going_back_is_told_as_well():
    tape = message(works(), "one ")
    before, after = grown(tape, ev.MessageDelta(message_id="m", delta="two"))
    mirrored(after, before)


def test_a_window_slides_over_its_entries():
    tape = Tape().opened("Go")
    found = [tape.view] + [tape.add(ev.Notice(text=f"note {number}")).view for number in range(10)]
    for limit in LIMITS:
        for before in found:
            for after in found:
                mirrored(before, after, limit)


def test_a_text_that_grows_outside_the_window_is_not_told():
    tape = message(works(), "one ").add(ev.Notice(text="later"))
    before, after = grown(tape, ev.MessageDelta(message_id="m", delta="two"))
    assert told(before, after, 1) == []
    mirrored(before, after, 2)


def test_a_summary_is_told_by_its_fields():
    before, after = grown(works(), ev.SessionRenamed(name="Other"))
    assert [(one.field, one.value) for one in patch.summary_changes(before, after)] == [("name", "Other")]


def test_a_value_that_json_leaves_out_is_taken_out_of_the_mirror():
    mirror = [{"id": "a", "kind": "text", "at": 1, "isError": True}]
    name, default = next((name, value) for name, value in DEFAULTS.items() if value is not msgspec.UNSET)
    changed = apply_changes([{**mirror[0], name: "other"}], [{"op": "set", "id": "a", "field": name, "value": default}])
    assert name not in changed[0]


class _ReadParts:
    """A state that records which of its fields are read."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.names: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        return getattr(self.state, name)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_a_field_is_derived_only_from_the_parts_that_it_declares(path: Path):
    for view in views(path):
        for fields in (SUMMARY_FIELDS, VIEW_FIELDS):
            for name, field in fields.items():
                state = _ReadParts(view.state)
                field.value(state)  # type: ignore[arg-type]
                assert state.names <= field.parts, name


def test_the_fields_are_those_of_the_summary_and_the_details():
    assert [*SUMMARY_FIELDS, "index"] == list(Summary.__struct_fields__)
    assert list(DETAILS_FIELDS) == list(Details.__struct_fields__)


def test_only_fields_whose_parts_changed_are_computed():
    before, after = grown(works(), ev.StateChange(state="active", sub="tool_use"))
    computed: list[str] = []

    def counted(name: str, field: Field) -> Field:
        def value(state: State) -> Any:
            computed.append(name)
            return field.value(state)

        return Field(field.parts, value)

    fields = {name: counted(name, field) for name, field in VIEW_FIELDS.items()}
    changes = patch.field_changes(fields, before.state, after.state)
    assert changes == patch.view_changes(before, after)
    assert set(computed) == {"activity", "now"}
