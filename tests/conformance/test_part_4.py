"""Show part 4 of the acceptance list: seed 004's store, entries, tool steps, events, history and steering.

004's events have canonical names here: `toolcall_end` is tool_call, `message_start (user)` is prompt_received or
steering_applied, `response` is command_failed or command_receipt, `extension_ui_request` and `extension_error` are
notices. Its pointers ("the active tool step") are ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, get_args

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from quarterdeck import events as ev
from quarterdeck.events import Block, Body, Event, HistoryMessage, Image
from quarterdeck.kernel.routing import route
from quarterdeck.kernel.timeline import KINDS, TOOL_PHASES, Entry, Kind, ToolPhase, ToolStep, turns
from quarterdeck.kernel.view import View
from tests.conformance.marks import case, cases_from
from tests.support.store import AppState, Store
from tests.support.tape import Tape, tape

SESSION = "s1"
SHOT = Image(media_type="image/png", data="iVBORw0KGgo=")
#: A run that produces every kind of entry.
RUN: tuple[Body, ...] = (
    ev.PromptReceived(text="Fix the bug", message_id="m1", images=(SHOT,)),
    ev.AgentStart(),
    ev.ThinkingStart(message_id="a1", block=0),
    ev.ThinkingDelta(message_id="a1", block=0, delta="Look first"),
    ev.MessageStart(message_id="a1", block=1),
    ev.MessageDelta(message_id="a1", block=1, delta="I will "),
    ev.MessageDelta(message_id="a1", block=1, delta="look"),
    ev.ToolCall(name="shell", call_id="c1", args={"command": "ls"}),
    ev.ToolExecutionStart(name="shell", call_id="c1"),
    ev.ToolExecutionEnd(name="shell", call_id="c1", result="a.py"),
    ev.Notice(text="Half of the context is used"),
    ev.BashStart(bash_id="b1", command="git status"),
    ev.BashEnd(bash_id="b1", exit_code=0, output="clean"),
    ev.Notice(text="An extension broke", level="error"),
    ev.AgentEnd(),
)


def a_store(*bodies: Body) -> Store:
    """Create a store with one open session that received these events."""
    store = Store()
    store.set_sessions((), SESSION)
    for event in Tape(SESSION).add(*bodies).events:
        store.handle_event(event)
    return store


def as_json(entry: Entry) -> dict[str, Any]:
    """Return an entry as a client decodes it."""
    return msgspec.json.decode(msgspec.json.encode(entry))


def only(entries: list[Entry], kind: Kind) -> Entry:
    """Return the only entry of this kind."""
    (found,) = [entry for entry in entries if entry.kind == kind]
    return found


def step_of(played: Tape, call_id: str = "c1") -> ToolStep:
    """Return the tool step of this call."""
    (step,) = [entry.tool_step for entry in played.entries if entry.id == call_id]
    assert step is not None
    return step


class TestStore:
    @case("4-001")
    def test_a_listener_gets_the_present_state_at_once_and_every_later_one(self) -> None:
        store, seen = a_store(*RUN[:2]), list[AppState]()
        store.subscribe(seen.append)
        assert seen == [store.state]
        store.update(connected=True)
        store.update(sidebar_open=True)
        assert [(state.connected, state.sidebar_open) for state in seen] == [
            (False, False),
            (True, False),
            (True, True),
        ]

    @case("4-002")
    @given(st.integers(0, len(RUN) - 1))
    def test_a_change_publishes_a_new_state_and_leaves_the_old_one_as_it_was(self, before: int) -> None:
        store = a_store(*RUN[:before])
        held = store.state
        messages, streaming = held.messages, held.streaming
        for event in Tape(SESSION).add(*RUN).events[before:]:
            store.handle_event(event)
        store.update(connected=True)
        store.clear_scheduled_messages()
        assert store.state is not held
        assert (held.messages, held.streaming, held.connected) == (messages, streaming, False)
        assert store.state.messages == a_store(*RUN).state.messages

    @case("4-003")
    def test_whoever_unsubscribed_is_not_called(self) -> None:
        store, left, stays = Store(), list[AppState](), list[AppState]()
        leave = store.subscribe(left.append)
        store.subscribe(stays.append)
        leave()
        store.update(connected=True)
        assert (len(left), len(stays)) == (1, 2)

    @case("4-004")
    @given(st.lists(st.sampled_from(RUN), max_size=20))
    def test_a_view_that_mirrors_snapshots_holds_the_last_one(self, bodies: list[Body]) -> None:
        store, mirror = Store(), list[AppState]()
        store.set_sessions((), SESSION)
        store.subscribe(mirror.append)
        for event in Tape(SESSION).add(*bodies).events:
            store.handle_event(event)
            assert mirror[-1] is store.state
        assert len(mirror) == 1 + len(bodies)


FIRST_VALUES: dict[str, tuple[str, object, tuple[type, ...]]] = {
    "4-005": ("connected", False, (bool,)),
    "4-006": ("streaming", False, (bool,)),
    "4-007": ("messages", [], (list,)),
    "4-008": ("scheduled_messages", [], (list,)),
    "4-009": ("sessions", (), (tuple,)),
    "4-010": ("current_session_id", None, (str, type(None))),
    "4-011": ("sidebar_open", False, (bool,)),
    "4-012": ("context_usage", None, (msgspec.Struct, type(None))),
    "4-013": ("thinking_level", None, (str, type(None))),
}


@cases_from(FIRST_VALUES, "field, first, types")
def test_a_new_store_has_the_field_with_its_first_value(field: str, first: object, types: tuple[type, ...]) -> None:
    fresh = getattr(Store().state, field)
    used = getattr(a_store(*RUN, ev.ContextUsage(tokens=5), ev.SettingChanged(thinking="high")).state, field)
    assert fresh == first
    assert isinstance(fresh, types)
    assert isinstance(used, types)


class TestEntries:
    @case("4-015")
    def test_id_kind_and_text_are_always_there_and_the_rest_when_it_applies(self) -> None:
        entries = {
            entry.id: as_json(entry) for entry in Tape().add(*RUN, ev.PromptReceived(text="", message_id="m2")).entries
        }
        assert all({"id", "kind", "text"} <= fields.keys() for fields in entries.values())
        applies = {name for name, fields in entries.items() if "toolStep" in fields}
        assert applies == {"c1"}
        assert {name for name, fields in entries.items() if "bashResult" in fields} == {"b1"}
        assert {name for name, fields in entries.items() if "images" in fields} == {"m1"}

    @case("4-016")
    @given(st.data())
    def test_no_two_entries_have_the_same_id(self, data: st.DataObject) -> None:
        ids = st.sampled_from(["a", "b", "a:0", ""])
        bodies = st.one_of(
            st.builds(ev.PromptReceived, text=st.just("x"), message_id=ids),
            st.builds(ev.MessageStart, message_id=ids, block=st.integers(0, 1)),
            st.builds(ev.MessageDelta, message_id=ids, delta=st.just("y")),
            st.builds(ev.ToolCall, name=st.just("t"), call_id=ids),
            st.builds(ev.ToolExecutionEnd, name=st.just("t"), call_id=ids),
            st.builds(ev.BashStart, bash_id=ids, command=st.just("ls")),
            st.builds(ev.BashEnd, bash_id=ids),
            st.builds(ev.AskUser, question=st.just("?"), gate_id=ids),
            st.builds(ev.StreamError),
            st.builds(ev.Notice, text=st.just("n")),
        )
        entries = Tape().add(*data.draw(st.lists(bodies, max_size=30))).entries
        assert len({entry.id for entry in entries}) == len(entries)

    @case("4-017")
    def test_the_kinds(self) -> None:
        assert KINDS == ("user", "assistant", "thinking", "tool", "error", "system", "bash")
        assert get_args(Kind) == KINDS
        assert {entry.kind for entry in Tape().add(*RUN).entries} == set(KINDS)

    @case("4-018")
    def test_a_prompt_is_a_user_entry(self) -> None:
        assert only(Tape().add(*RUN).entries, "user").text == "Fix the bug"

    @case("4-019")
    def test_an_answer_is_an_assistant_entry_with_the_final_text(self) -> None:
        played = tape(
            ev.MessageStart(message_id="a1"),
            ev.MessageDelta(message_id="a1", delta="Helo"),
            ev.ResponseComplete(message_id="a1", blocks=(Block(text="Hello."),)),
        )
        assert [(entry.kind, entry.text) for entry in played.entries] == [("assistant", "Hello.")]

    @case("4-020")
    def test_reasoning_is_a_thinking_entry_while_it_streams(self) -> None:
        played = tape(ev.ThinkingStart(message_id="a1"), ev.ThinkingDelta(message_id="a1", delta="Hm"))
        assert [(entry.kind, entry.text) for entry in played.entries] == [("thinking", "Hm")]

    @case("4-021")
    def test_a_tool_is_a_tool_entry_with_status_and_result_preview(self) -> None:
        step = only(Tape().add(*RUN).entries, "tool").tool_step
        assert step == ToolStep("shell", '{"command":"ls"}', "done", "a.py")

    @case("4-022")
    def test_a_command_of_the_user_is_a_bash_entry(self) -> None:
        played = tape(ev.BashStart(bash_id="b1", command="ls"), ev.BashOutput(bash_id="b1", delta="a\n"))
        (running,) = played.entries
        assert running.kind == "bash"
        assert as_json(running)["bashResult"] == {"command": "ls", "output": "a\n", "running": True}
        played.add(ev.BashEnd(bash_id="b1", output="a\nb\n", exit_code=2))
        (ended,) = played.entries
        assert as_json(ended)["bashResult"] == {"command": "ls", "output": "a\nb\n", "exitCode": 2}
        silent = tape(ev.BashEnd(bash_id="b2", command="sleep 9"))
        assert as_json(silent.entries[0])["bashResult"] == {"command": "sleep 9", "output": ""}

    @case("4-023")
    def test_a_failing_command_extension_or_backend_is_an_error_entry(self) -> None:
        played = tape(
            ev.CommandFailed(message="No such model"),
            ev.Notice(text="Extension broke", level="error"),
            ev.TurnFailed(kind="api", message="Overloaded"),
            ev.ProcessError(message="No such file"),
        )
        assert [(entry.kind, entry.text) for entry in played.entries] == [
            ("error", "No such model"),
            ("error", "Extension broke"),
            ("error", "Overloaded"),
            ("error", "No such file"),
        ]

    @case("4-024")
    def test_a_notice_of_the_system_or_an_extension_is_a_system_entry(self) -> None:
        played = tape(ev.Notice(text="Saved"), ev.Notice(text="Careful", level="warning", source="git"))
        assert [(entry.kind, entry.text) for entry in played.entries] == [("system", "Saved"), ("system", "Careful")]

    @case("4-025")
    def test_a_prompt_with_images_carries_them(self) -> None:
        waited = tape(
            ev.PromptQueued(text="See", message_id="q1", images=(SHOT,)),
            ev.PromptReceived(text="See", message_id="q1"),
        )
        sent = tape(ev.PromptReceived(text="See", message_id="q1", images=(SHOT,)))
        opened = Tape().add(ev.SessionOpened(agent="demo", prompt="See", message_id="q1", images=(SHOT,)))
        for played in (waited, sent, opened):
            assert [(entry.kind, entry.images) for entry in played.entries] == [("user", (SHOT,))]


ANNOUNCED = ev.ToolCall(name="shell", call_id="c1", args={"command": "ls"})
STARTED = ev.ToolExecutionStart(name="shell", call_id="c1", args={"command": "ls"})
ENDED = ev.ToolExecutionEnd(name="shell", call_id="c1", result="a.py")
FAILED = ev.ToolExecutionEnd(name="shell", call_id="c1", ok=False, result="No such file")


class TestToolSteps:
    @case("4-026")
    def test_a_step_has_name_arguments_and_phase_and_a_result_once_there_is_one(self) -> None:
        played = tape(ANNOUNCED)
        fields = {"toolName": "shell", "toolArgs": '{"command":"ls"}', "phase": "calling"}
        assert as_json(played.entries[0])["toolStep"] == fields
        played.add(STARTED, ENDED)
        assert as_json(played.entries[0])["toolStep"] == fields | {"phase": "done", "result": "a.py"}

    @case("4-027")
    def test_an_announced_call_is_calling(self) -> None:
        assert step_of(tape(ANNOUNCED)).phase == "calling"

    @case("4-028")
    def test_a_started_call_is_running(self) -> None:
        assert step_of(tape(ANNOUNCED, STARTED)).phase == "running"

    @case("4-029")
    def test_an_ended_call_is_done_and_has_its_result(self) -> None:
        step = step_of(tape(ANNOUNCED, STARTED, ENDED))
        assert (step.phase, step.result) == ("done", "a.py")

    @case("4-030")
    def test_a_call_that_ended_with_an_error_is_one_and_has_its_result(self) -> None:
        step = step_of(tape(ANNOUNCED, STARTED, FAILED))
        assert (step.phase, step.result) == ("error", "No such file")

    @case("4-031")
    def test_the_phases_in_their_order(self) -> None:
        assert TOOL_PHASES == get_args(ToolPhase) == ("calling", "running", "done", "error")
        for end, last in ((ENDED, "done"), (FAILED, "error")):
            assert phases((ANNOUNCED, STARTED, end)) == ["calling", "running", last]

    @case("4-031")
    @given(st.lists(st.sampled_from([ANNOUNCED, STARTED, ENDED, FAILED]), max_size=8))
    def test_whatever_an_agent_repeats_a_step_goes_forward_only_and_ends_once(self, bodies: list[Body]) -> None:
        """An end without a start skips `running`: the call never ran."""
        order = {"calling": 0, "running": 1, "done": 2, "error": 2}
        for before, after in pairwise(phases((ANNOUNCED, *bodies))):
            assert after == before or order[after] > order[before]


def phases(bodies: Sequence[Body]) -> list[str]:
    """Return the phase of the step after each of these events."""
    played = tape()
    return [step_of(played.add(body)).phase for body in bodies]


class TestEvents:
    @case("4-032")
    def test_agent_start(self) -> None:
        played = tape(ev.MessageStart(message_id="a1"), ev.MessageDelta(message_id="a1", delta="old"))
        assert not played.view.timeline.streaming
        played.add(ev.AgentStart())
        assert played.view.timeline.streaming
        assert played.view.timeline.open == ()
        played.add(ev.MessageDelta(message_id="a2", delta="new"))
        assert [entry.text for entry in played.entries] == ["old", "new"]

    @case("4-033")
    def test_agent_end(self) -> None:
        played = tape(ev.AgentStart(), ev.ThinkingDelta(message_id="a1", delta="Hm"))
        assert played.view.timeline.streaming
        played.add(ev.AgentEnd())
        assert not played.view.timeline.streaming
        assert played.view.timeline.open == ()
        played.add(ev.ThinkingDelta(message_id="a1", block=1, delta="So"))
        assert [entry.text for entry in played.entries] == ["Hm", "So"]

    @case("4-034")
    def test_message_start_of_a_user_moves_the_scheduled_entry(self) -> None:
        store = a_store(
            ev.AgentStart(),
            ev.SteeringReceived(ref="r1", text="Faster", images=(SHOT,)),
            ev.Notice(text="Between"),
        )
        assert [entry.id for entry in store.state.scheduled_messages] == ["r1"]
        scheduled = store.state.scheduled_messages[0]
        store.handle_event(Event(SESSION, 4, 9_000, "stream", ev.SteeringApplied(refs=("r1",), count=1)))
        assert store.state.scheduled_messages == []
        moved = store.state.messages[-1]
        assert (moved.id, moved.kind, moved.text, moved.images) == ("r1", "user", "Faster", (SHOT,))
        assert (scheduled.id, scheduled.text) == (moved.id, moved.text)

    @case("4-034")
    def test_message_start_of_a_user_with_no_match_adds_the_entry_once(self) -> None:
        told = ev.PromptReceived(text="From the phone", message_id="p1")
        entries = tape(told, told).entries
        assert [(entry.id, entry.kind, entry.text) for entry in entries] == [("p1", "user", "From the phone")]

    @case("4-035")
    def test_text_delta(self) -> None:
        played = tape(ev.MessageDelta(message_id="a1", delta="He"))
        assert [(entry.kind, entry.text) for entry in played.entries] == [("assistant", "He")]
        played.add(ev.MessageDelta(message_id="a1", delta="llo"))
        assert [(entry.kind, entry.text) for entry in played.entries] == [("assistant", "Hello")]

    @case("4-036")
    def test_thinking_delta(self) -> None:
        played = tape(ev.ThinkingDelta(message_id="a1", delta="H"))
        assert [(entry.kind, entry.text) for entry in played.entries] == [("thinking", "H")]
        played.add(ev.ThinkingDelta(message_id="a1", delta="m"))
        assert [(entry.kind, entry.text) for entry in played.entries] == [("thinking", "Hm")]

    @case("4-037")
    def test_toolcall_end(self) -> None:
        one, two = ev.ToolCall(name="read", call_id="c1"), ev.ToolCall(name="shell", call_id="c2")
        entries = tape(one, two).entries
        assert [(entry.id, entry.kind) for entry in entries] == [("c1", "tool"), ("c2", "tool")]

    @case("4-038")
    def test_tool_execution_start(self) -> None:
        named = tape(ANNOUNCED, STARTED)
        nameless = tape(ev.ToolCall(name="shell", call_id=""), ev.ToolExecutionStart(name="shell", call_id=""))
        for played in (named, nameless):
            assert [as_json(entry)["toolStep"]["phase"] for entry in played.entries] == ["running"]

    @case("4-039")
    def test_tool_execution_end(self) -> None:
        without_id: dict[str, Any] = {"name": "shell", "call_id": ""}
        begun = (ev.ToolCall(**without_id), ev.ToolExecutionStart(**without_id))
        done = tape(*begun, ev.ToolExecutionEnd(**without_id, result="a.py"))
        failed = tape(ANNOUNCED, STARTED, FAILED)
        steps = [as_json(entry)["toolStep"] for entry in (*done.entries, *failed.entries)]
        assert [(step["phase"], step["result"]) for step in steps] == [("done", "a.py"), ("error", "No such file")]

    @case("4-040")
    def test_a_response_without_success(self) -> None:
        entries = tape(ev.CommandFailed(command_id="req_1", message="Unknown command")).entries
        assert [(entry.kind, entry.text) for entry in entries] == [("error", "Unknown command")]

    @case("4-041")
    def test_a_response_with_success(self) -> None:
        played = tape(*RUN)
        before = played.view.timeline
        played.add(ev.CommandReceipt(client_id="k1", command="prompt", answer={"accepted": True}))
        assert played.view.timeline is before

    @case("4-042")
    def test_an_extension_that_notifies(self) -> None:
        entries = tape(ev.Notice(text="Deployed", source="extension")).entries
        assert [(entry.kind, entry.text) for entry in entries] == [("system", "Deployed")]

    @case("4-043")
    def test_a_request_that_needs_no_notice_or_that_nobody_knows(self) -> None:
        played = tape(*RUN)
        before = played.view.timeline
        played.add(ev.TitleGenerated(title="A title"), ev.Unknown(name="extension_ui_request"))
        assert played.view.timeline is before

    @case("4-044")
    def test_an_extension_that_failed(self) -> None:
        entries = tape(ev.Notice(text="TypeError in hook", level="error", source="extension")).entries
        assert [(entry.kind, entry.text) for entry in entries] == [("error", "TypeError in hook")]

    @case("4-045")
    @given(st.text(), st.integers(0, len(RUN)))
    def test_an_event_of_unknown_type(self, name: str, at: int) -> None:
        played = tape(*RUN[:at])
        before = played.view
        played.add(ev.Unknown(name=name))
        assert played.view == View(before.index + 1, played.view.at, before.state, before.timeline)


def restored(*history: HistoryMessage) -> list[Entry]:
    """Return `messages` after loading this history."""
    return a_store(ev.SessionOpened(agent="pi"), ev.TurnRestored(history=history)).state.messages


def call(call_id: str, block: int, **args: str) -> Block:
    return Block(block=block, kind="tool_call", call_id=call_id, name="shell", args=args)


def result(call_id: str, text: str, ok: bool = True) -> Block:
    return Block(kind="tool_result", call_id=call_id, text=text, ok=ok)


class TestHistory:
    @case("4-046")
    def test_a_history_becomes_messages(self) -> None:
        entries = restored(
            HistoryMessage(message_id="m1", role="user", blocks=(Block(text="Fix it", images=(SHOT,)),)),
            HistoryMessage(
                message_id="a1",
                role="assistant",
                blocks=(Block(kind="thinking", text="Hm"), Block(block=1, text="Done")),
            ),
            HistoryMessage(message_id="x1", role="system", blocks=(Block(text="Compacted"),)),
            HistoryMessage(
                message_id="b1", role="bash", blocks=(Block(kind="bash", name="ls", text="a.py", exit_code=0),)
            ),
        )
        assert [(entry.kind, entry.text) for entry in entries] == [
            ("user", "Fix it"),
            ("thinking", "Hm"),
            ("assistant", "Done"),
            ("system", "Compacted"),
            ("bash", "ls"),
        ]
        assert entries[0].images == (SHOT,)
        assert as_json(entries[-1])["bashResult"] == {"command": "ls", "output": "a.py", "exitCode": 0}

    @case("4-047")
    def test_a_result_is_matched_to_its_call(self) -> None:
        (entry,) = restored(
            HistoryMessage(message_id="a1", role="assistant", blocks=(call("c1", 0, command="ls"),)),
            HistoryMessage(message_id="t1", role="tool", blocks=(result("c1", "a.py"),)),
        )
        assert entry.tool_step == ToolStep("shell", '{"command":"ls"}', "done", "a.py")

    @case("4-048")
    def test_a_failed_result_shows_as_an_error(self) -> None:
        (entry,) = restored(
            HistoryMessage(message_id="a1", role="assistant", blocks=(call("c1", 0, command="ls"),)),
            HistoryMessage(message_id="t1", role="tool", blocks=(result("c1", "denied", ok=False),)),
        )
        assert entry.tool_step == ToolStep("shell", '{"command":"ls"}', "error", "denied")

    @case("4-049")
    def test_results_in_another_order_are_each_on_their_own_call(self) -> None:
        entries = restored(
            HistoryMessage(message_id="a1", role="assistant", blocks=(call("c1", 0), call("c2", 1))),
            HistoryMessage(message_id="t1", role="tool", blocks=(result("c2", "two"), result("c1", "one", ok=False))),
        )
        assert [(entry.id, entry.tool_step) for entry in entries] == [
            ("c1", ToolStep("shell", "{}", "error", "one")),
            ("c2", ToolStep("shell", "{}", "done", "two")),
        ]


class Said(msgspec.Struct, frozen=True):
    """One part of a reply, in a run that is shown both live and from the agent's history."""

    kind: str
    text: str
    ok: bool = True


Run = list[tuple[str, list[Said]]]

_parts = st.builds(Said, st.sampled_from(["text", "thinking", "tool"]), st.text(min_size=1), st.booleans())
_runs: st.SearchStrategy[Run] = st.lists(
    st.tuples(st.text(min_size=1).filter(str.strip), st.lists(_parts, max_size=4)), max_size=3
)


def block_of(turn: int, place: int, part: Said) -> Block:
    if part.kind == "tool":
        return call(f"c{turn}.{place}", place, command=part.text)
    return Block(block=place, kind="thinking" if part.kind == "thinking" else "text", text=part.text)


def live(run: Run) -> list[Entry]:
    """Return the timeline of a run that was received live, delta by delta."""
    played = Tape(SESSION)
    for turn, (prompt, parts) in enumerate(run):
        played.add(ev.PromptReceived(text=prompt, message_id=f"m{turn}"), ev.AgentStart())
        blocks = tuple(block_of(turn, place, part) for place, part in enumerate(parts))
        for block in blocks:
            played.add(*streamed(f"a{turn}", block))
        played.add(ev.ResponseComplete(message_id=f"a{turn}", blocks=blocks))
        for block, part in zip(blocks, parts):
            if part.kind == "tool":
                played.add(
                    ev.ToolExecutionStart(name="shell", call_id=block.call_id),
                    ev.ToolExecutionEnd(name="shell", call_id=block.call_id, ok=part.ok, result=part.text),
                )
        played.add(ev.AgentEnd())
    return played.entries


def streamed(message_id: str, block: Block) -> list[Body]:
    where: dict[str, Any] = {"message_id": message_id, "block": block.block}
    if block.kind == "tool_call":
        return [ev.ToolCall(name=block.name, call_id=block.call_id, args=block.args, **where)]
    start, delta = (
        (ev.ThinkingStart, ev.ThinkingDelta) if block.kind == "thinking" else (ev.MessageStart, ev.MessageDelta)
    )
    return [start(**where), *(delta(delta=letter, **where) for letter in block.text)]


def history_of(run: Run) -> list[HistoryMessage]:
    """Return the same run as the agent stores it, with tool results in messages of their own."""
    history: list[HistoryMessage] = []
    for turn, (prompt, parts) in enumerate(run):
        history.append(HistoryMessage(message_id=f"m{turn}", role="user", blocks=(Block(text=prompt),)))
        blocks = tuple(block_of(turn, place, part) for place, part in enumerate(parts))
        history.append(HistoryMessage(message_id=f"a{turn}", role="assistant", blocks=blocks))
        results = tuple(
            result(block.call_id, part.text, part.ok) for block, part in zip(blocks, parts) if part.kind == "tool"
        )
        history.append(HistoryMessage(message_id=f"t{turn}", role="tool", blocks=results))
    return history


@case("4-050")
@given(_runs)
def test_a_run_that_is_restored_looks_like_the_run_that_was_watched(run: Run) -> None:
    def shown(entries: list[Entry]) -> list[object]:
        return [(entry.id, entry.kind, entry.text, entry.tool_step, entry.bash_result) for entry in entries]

    assert shown(restored(*history_of(run))) == shown(live(run))


class TestTurns:
    @case("4-051")
    def test_messages_is_one_flat_list(self) -> None:
        messages = a_store(*RUN, *RUN[1:]).state.messages
        assert isinstance(messages, list)
        assert all(type(entry) is Entry for entry in messages)
        inside = [getattr(entry, field) for entry in messages for field in Entry.__struct_fields__]
        assert not any(isinstance(value, Entry | list) for value in inside)

    @case("4-052", "4-053")
    @given(st.lists(st.sampled_from(["user", "assistant", "tool", "system"]), max_size=12))
    def test_each_user_entry_begins_a_turn_and_what_follows_belongs_to_it(self, kinds: list[Kind]) -> None:
        entries = [Entry(str(place), kind, "") for place, kind in enumerate(kinds)]
        groups = turns(entries)
        assert [entry for group in groups for entry in group] == entries
        begun = [group for group in groups if group[0].kind == "user"]
        assert len(begun) == kinds.count("user")
        assert all(entry.kind != "user" for group in groups for entry in group[1:])
        # Only entries before the first user entry don't belong to a user's turn.
        assert len(groups) - len(begun) == (1 if kinds and kinds[0] != "user" else 0)


STEERABLE = ev.AgentReady(capabilities=("steer",))


class TestSteering:
    @case("4-054")
    def test_a_message_while_streaming_is_steering_and_is_scheduled(self) -> None:
        bodies = (ev.SessionOpened(agent="pi"), STEERABLE, ev.AgentStart())
        store = a_store(*bodies)
        assert store.state.streaming
        assert route(store.state.view.state).meaning == "steer"
        store.handle_event(Event(SESSION, 4, 9_000, "user", ev.SteeringReceived(ref="r1", text="Stop that")))
        assert [(entry.id, entry.kind, entry.text) for entry in store.state.scheduled_messages] == [
            ("r1", "user", "Stop that")
        ]
        assert store.state.messages == []

    @case("4-054")
    def test_a_message_while_a_question_is_open_is_the_answer(self) -> None:
        played = tape(STEERABLE, ev.AgentStart(), ev.AskUser(question="Which?", gate_id="g1"))
        assert played.view.timeline.streaming
        assert (route(played.state).meaning, route(played.state).gate_id) == ("answer", "g1")
        assert route(played.state, "steer").meaning == "steer"

    @case("4-055")
    def test_a_message_while_nothing_streams_is_a_prompt(self) -> None:
        store = a_store(ev.SessionOpened(agent="pi"), STEERABLE)
        assert not store.state.streaming
        assert route(store.state.view.state).meaning == "prompt"
        store.handle_event(Event(SESSION, 3, 9_000, "user", ev.PromptReceived(text="Go", message_id="m1")))
        assert [(entry.id, entry.kind, entry.text) for entry in store.state.messages] == [("m1", "user", "Go")]
        assert store.state.scheduled_messages == []

    SCHEDULED = (
        ev.AgentStart(),
        ev.SteeringReceived(ref="a", text="First"),
        ev.SteeringReceived(ref="b", text="Second"),
    )

    @case("4-056")
    def test_what_is_interweaved_moves_and_the_other_stays(self) -> None:
        store = a_store(*self.SCHEDULED)
        store.handle_event(Event(SESSION, 4, 9_000, "stream", ev.SteeringApplied(refs=("b",), count=1)))
        assert [entry.id for entry in store.state.messages] == ["b"]
        assert [entry.id for entry in store.state.scheduled_messages] == ["a"]

    @case("4-057")
    def test_clearing_removes_all_and_gives_them_back_in_order(self) -> None:
        store = a_store(*self.SCHEDULED)
        published: list[AppState] = []
        store.subscribe(published.append)
        taken = store.clear_scheduled_messages()
        assert [(entry.id, entry.text) for entry in taken] == [("a", "First"), ("b", "Second")]
        assert store.state.scheduled_messages == []
        assert store.state.messages == []
        assert published[-1] is store.state
        assert store.clear_scheduled_messages() == []
