"""Show the cases of part U that the kernel decides: labels, exits, lists, counts, and the timeline of U.4."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarterdeck import events as ev
from quarterdeck.events import Block, Body, HistoryMessage, Image, Repo, TokenUsage
from quarterdeck.kernel.process import Exit
from quarterdeck.kernel.profile import label
from quarterdeck.kernel.session_list import Filter, page
from quarterdeck.kernel.summary import Summary, summary
from quarterdeck.kernel.timeline import args_preview, turns, window
from quarterdeck.kernel.view import fold_all
from tests.conformance.marks import case
from tests.support.store import AppState, Store
from tests.support.tape import Tape, tape

SHOT = Image(media_type="image/png", data="iVBORw0KGgo=")


class TestAgentManager:
    @case("U-026")
    @given(st.text())
    def test_a_label_has_40_characters_at_most(self, prompt: str) -> None:
        assert len(label(prompt)) <= 40

    @case("U-026")
    def test_a_long_prompt_is_cut_with_an_ellipsis(self) -> None:
        opened = Tape().opened("Please find out why the login page is slow")
        assert summary(opened.view).name == "Please find out why the login page is s…"
        assert len(summary(opened.view).name) == 40
        assert summary(Tape().opened("Short and\nmore").view).name == "Short and"

    @case("U-027")
    def test_a_resumed_session_shows_no_end_no_exit_code_and_no_error(self) -> None:
        played = (
            Tape()
            .opened("Go")
            .add(
                ev.ProcessStarting(),
                ev.AgentReady(resumable=True),
                ev.AgentStart(),
                ev.ProcessExited(code=3),
                ev.AgentEnd(outcome="failed"),
                ev.SessionSuspended(),
            )
        )
        ended = summary(played.view)
        assert ended.error is not None
        assert played.state.exit == Exit(3, None)
        played.add(ev.SessionResumed())
        resumed, profile = summary(played.view), played.state.profile
        assert (resumed.lifecycle, resumed.phase) == ("active", "streaming")
        assert resumed.error is None
        assert resumed.end_reason is None
        assert (played.state.exit, profile.end_reason) == (None, None)

    @case("U-031")
    @pytest.mark.parametrize(
        ("exited", "phase"),
        [
            (ev.ProcessExited(code=0), "completed"),
            (ev.ProcessExited(signal="SIGTERM"), "stopped"),
            (ev.ProcessExited(signal="SIGINT"), "stopped"),
            (ev.ProcessExited(signal="SIGKILL"), "stopped"),
            (ev.ProcessExited(signal="SIGHUP"), "stopped"),
            (ev.ProcessExited(code=1), "error"),
            (ev.ProcessExited(code=143), "error"),
            (ev.ProcessExited(signal="SIGSEGV"), "error"),
        ],
        ids=lambda value: value if isinstance(value, str) else str(value.signal or value.code),
    )
    def test_how_the_process_ended_decides_what_is_shown(self, exited: ev.ProcessExited, phase: str) -> None:
        played = tape(ev.AgentReady(), ev.AgentStart(), ev.RequestStart(), prompt="Go")
        assert played.phase == "streaming"
        assert played.add(exited).phase == phase

    @case("U-043")
    def test_the_list_of_a_repository_has_its_sessions_only(self) -> None:
        ours, theirs = Repo(root="/home/dev/ours", name="ours"), Repo(root="/home/dev/theirs", name="ours")
        rows = [row("a", ours), row("b", theirs), row("c", None), row("d", ours)]
        assert {one.id for one in page(rows, Filter(repo=ours.root)).sessions} == {"a", "d"}
        assert {one.id for one in page(rows, Filter()).sessions} == {"a", "b", "c", "d"}


def row(name: str, repo: Repo | None = None, created_at: int = 0) -> Summary:
    """Create one session of a list."""
    played = Tape(name).add(ev.SessionOpened(agent="demo", repo=repo))
    return msgspec.structs.replace(summary(played.view), created_at=created_at)


def one_turn(number: int) -> list[Body]:
    """Create ten events: a prompt, two tools, a price."""
    calls = [f"c{number}.{place}" for place in range(2)]
    return [
        ev.PromptReceived(text=f"Prompt {number}", message_id=f"m{number}"),
        ev.AgentStart(),
        ev.RequestStart(),
        *(ev.ToolExecutionStart(name="shell", call_id=call) for call in calls),
        *(ev.ToolExecutionEnd(name="shell", call_id=call) for call in calls),
        ev.ResponseComplete(message_id=f"a{number}", blocks=(Block(text="Done"),)),
        ev.Usage(message_id=f"a{number}", tokens=TokenUsage(input=7, output=3, cost_usd=0.25)),
        ev.AgentEnd(),
    ]


class TestMonitor:
    @case("U-088")
    def test_after_a_thousand_events_every_count_is_right_and_a_snapshot_is_as_it_was(self) -> None:
        played = Tape()
        for number in range(50):
            played.add(*one_turn(number))
        snapshot = played.view
        stored = msgspec.json.encode(snapshot.state)
        for number in range(50, 100):
            played.add(*one_turn(number))
        assert len(played.events) == 1_000
        for view, count in ((snapshot, 50), (played.view, 100)):
            entries = window(view.timeline)
            assert len(turns(entries)) == count
            assert sum(entry.kind == "user" for entry in entries) == count
            assert sum(entry.kind == "tool" for entry in entries) == 2 * count
            assert summary(view).usage.tokens == 10 * count
            assert summary(view).usage.cost_usd == 0.25 * count
        assert msgspec.json.encode(snapshot.state) == stored
        assert snapshot == fold_all(played.events[:500])

    @case("U-090")
    def test_what_exited_and_was_launched_again_is_initialized_and_drives_normally(self) -> None:
        played = tape(ev.ProcessStarting(), ev.AgentReady(), ev.StateChange(state="active", sub="tool_use"))
        played.add(ev.ProcessExited(code=0))
        assert played.state.activity.value == "exited"
        seen = [
            played.add(body).state.activity.value
            for body in (
                ev.ProcessStarting(),
                ev.AgentReady(),
                ev.StateChange(state="active", sub="thinking"),
                ev.StateChange(state="idle"),
                ev.ProcessExited(code=0, asked=True),
            )
        ]
        assert seen == ["initialized", "idle", "active/thinking", "idle", "exited"]


def kinds_and_texts(played: Tape) -> list[tuple[str, str]]:
    return [(entry.kind, entry.text) for entry in played.entries]


class TestTimeline:
    @case("U-101")
    def test_a_text_after_a_text_that_ended_is_another_entry(self) -> None:
        next_block = tape(
            ev.MessageDelta(message_id="a1", block=0, delta="One"),
            ev.MessageStart(message_id="a1", block=1),
            ev.MessageDelta(message_id="a1", block=1, delta="Two"),
        )
        next_message = tape(
            ev.MessageDelta(message_id="a1", delta="One"),
            ev.ResponseComplete(message_id="a1", blocks=(Block(text="One"),)),
            ev.MessageDelta(message_id="a2", delta="Two"),
        )
        for played in (next_block, next_message):
            assert kinds_and_texts(played) == [("assistant", "One"), ("assistant", "Two")]

    @case("U-102")
    def test_reasoning_that_ended_and_a_text_are_two_entries(self) -> None:
        played = tape(
            ev.ThinkingDelta(message_id="a1", block=0, delta="Hm"),
            ev.MessageStart(message_id="a1", block=1),
            ev.MessageDelta(message_id="a1", block=1, delta="Yes"),
        )
        assert kinds_and_texts(played) == [("thinking", "Hm"), ("assistant", "Yes")]

    @case("U-103")
    @given(
        st.one_of(st.text(), st.dictionaries(st.text(), st.text(min_size=150)), st.lists(st.integers(), max_size=200))
    )
    def test_arguments_are_previewed_in_200_characters(self, args: object) -> None:
        assert len(args_preview(args)) <= 200

    @case("U-103")
    def test_long_arguments_are_cut_and_short_ones_are_whole(self) -> None:
        played = tape(
            ev.ToolCall(name="write", call_id="c1", args={"content": "x" * 10_000}),
            ev.ToolCall(name="write", call_id="c2", args={"content": "x" * 10}),
        )
        long, short = (entry.tool_step.tool_args for entry in played.entries if entry.tool_step is not None)
        assert long == '{"content":"' + "x" * 187 + "…"
        assert len(long) == 200
        assert short == '{"content":"xxxxxxxxxx"}'

    @case("U-104")
    @pytest.mark.parametrize(
        ("result", "shown"),
        [
            ("plain text", "plain text"),
            ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "one\ntwo"),
            ({"content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}, "one\ntwo"),
            ({"files": 3, "ok": True}, '{"files":3,"ok":true}'),
            ([{"type": "image", "data": "…"}], '[{"type":"image","data":"…"}]'),
        ],
        ids=["text", "list", "content", "object", "images"],
    )
    def test_a_result_is_shown_by_what_it_is(self, result: object, shown: str) -> None:
        played = tape(ev.ToolExecutionEnd(name="read", call_id="c1", result=result))
        (step,) = (entry.tool_step for entry in played.entries)
        assert step is not None
        assert step.result == shown

    @case("U-105")
    def test_a_blank_part_of_a_history_is_no_entry(self) -> None:
        blocks = (Block(text=" \n\t"), Block(block=1, text=""), Block(block=2, text="Said"))
        played = tape(ev.TurnRestored(history=(HistoryMessage(message_id="a1", role="assistant", blocks=blocks),)))
        assert kinds_and_texts(played) == [("assistant", "Said")]

    @case("U-106")
    def test_the_list_is_newest_first_and_comes_with_its_session_in_one_step(self) -> None:
        store = Store()
        published: list[AppState] = []
        store.subscribe(published.append)
        store.set_sessions((row("old", created_at=1), row("new", created_at=3), row("mid", created_at=2)), "mid")
        assert len(published) == 2
        assert [one.id for one in published[-1].sessions] == ["new", "mid", "old"]
        assert published[-1].current_session_id == "mid"

    @case("U-109")
    def test_of_two_that_wait_with_the_same_text_the_first_one_moves(self) -> None:
        played = tape(
            ev.AgentStart(),
            ev.PromptQueued(text="Again", message_id="q1"),
            ev.PromptQueued(text="Again", message_id="q2"),
            ev.PromptReceived(text="Again"),
        )
        assert [item.id for item in played.state.queue] == ["q2"]
        assert [(entry.id, entry.text) for entry in played.entries] == [("q1", "Again")]

    @case("U-114")
    def test_calls_that_run_side_by_side_are_told_apart_by_their_ids(self) -> None:
        played = tape(
            ev.ToolCall(name="read", call_id="c1"),
            ev.ToolCall(name="shell", call_id="c2"),
            ev.ToolExecutionStart(name="read", call_id="c1"),
            ev.ToolExecutionStart(name="shell", call_id="c2"),
            ev.ToolExecutionEnd(name="read", call_id="c1", ok=False, result="one"),
        )
        assert steps(played) == [("read", "error", "one"), ("shell", "running", None)]
        played.add(ev.ToolExecutionEnd(name="shell", call_id="c2", result="two"))
        assert steps(played) == [("read", "error", "one"), ("shell", "done", "two")]

    @case("U-114")
    def test_without_an_id_the_call_that_was_announced_last_is_meant(self) -> None:
        played = tape(
            ev.ToolCall(name="read", call_id="c1"),
            ev.ToolCall(name="shell", call_id="c2"),
            ev.ToolExecutionStart(name="shell", call_id=""),
            ev.ToolExecutionEnd(name="shell", call_id="", result="two"),
        )
        assert steps(played) == [("read", "calling", None), ("shell", "done", "two")]

    @case("U-115")
    def test_a_steering_message_of_images_only_is_interweaved(self) -> None:
        played = tape(
            ev.AgentStart(),
            ev.SteeringReceived(ref="r1", images=(SHOT,)),
            ev.SteeringReceived(ref="r2", images=(SHOT,)),
            ev.SteeringApplied(refs=("r1",), count=1),
        )
        assert [item.id for item in played.state.queue] == ["r2"]
        assert [(entry.id, entry.text, entry.images) for entry in played.entries] == [("r1", "", (SHOT,))]

    @case("U-116")
    def test_a_prompt_of_another_client_is_added_and_the_senders_own_is_there_once(self) -> None:
        sender = Tape().opened("Mine")
        sender.add(ev.PromptReceived(text="Mine", message_id="m0"))
        sender.add(ev.PromptReceived(text="From elsewhere", message_id="m7"))
        assert [(entry.id, entry.text) for entry in sender.entries] == [("m0", "Mine"), ("m7", "From elsewhere")]
        assert fold_all(sender.events, sender.view) == sender.view


def steps(played: Tape) -> list[tuple[str, str, str | None]]:
    """Return name, phase and result of each call."""
    told = [entry.tool_step for entry in played.entries if entry.tool_step is not None]
    return [(step.tool_name, step.phase, step.result) for step in told]
