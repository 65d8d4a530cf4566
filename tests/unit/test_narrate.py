"""Test how each event appears in the timeline, and which events don't."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import (
    BY_NAME,
    NAMES,
    TYPES,
    Block,
    Body,
    GateRequest,
    HistoryMessage,
    Image,
    Plan,
    PlanStep,
    Todo,
)
from quarterdeck.kernel.narrate import NARRATORS
from quarterdeck.kernel.timeline import BashResult, Card, Entry, ToolStep, line_id, window
from quarterdeck.kernel.view import View, fold
from tests.support.event_bodies import body_of
from tests.support.tape import START, STEP, Tape, approval, tape

SHOT = Image(media_type="image/png", data="iVBORw0KGgo=")

#: Events without an entry: they change states, lists or settings, or another event restates them.
_SILENT = """
    session_resumed session_renamed session_marked session_deleted owner_changed process_starting agent_ready agent_ended
    state_change signal_changed agent_resumed prompt_queued prompt_edited prompt_dropped delivery_changed turn_continued
    turn_retried title_generated request_start tool_calls tool_execution_metrics approval_resolved dialog_resolved
    before_compact sub_agent_event background_started background_ended context_usage setting_changed usage
    changes_updated checkpoint_saved command_receipt view_refolded plugin_state
"""
SILENT = _SILENT.split()

#: Events that appear as exactly one line.
LINES: list[tuple[Body, str, str]] = [
    (ev.Notice(text="Saved"), "system", "Saved"),
    (ev.Notice(text="Careful", level="warning"), "system", "Careful"),
    (ev.Notice(text="Broken", level="error"), "error", "Broken"),
    (ev.TurnFailed(kind="usage_limit", message="Limit reached"), "error", "Limit reached"),
    (ev.TurnFailed(kind="auth"), "error", "The turn failed: auth"),
    (ev.CommandFailed(message="No such model"), "error", "No such model"),
    (ev.PromptRejected(reason="policy"), "error", "Prompt refused: policy"),
    (ev.ProcessError(message="No such file"), "error", "No such file"),
    (ev.ProcessError(), "error", "The agent process failed"),
    (ev.SessionFailed(message="Disk is full"), "error", "Disk is full"),
    (ev.SessionFailed(), "error", "The session failed"),
    (ev.ProcessExited(code=3), "error", "The agent process ended with code 3"),
    (ev.ProcessExited(signal="SIGSEGV"), "error", "The agent process ended with SIGSEGV"),
    (ev.LoopDetected(loop="repeat_pattern"), "system", "Loop detected: repeat pattern"),
    (ev.LoopDetected(loop="file_loop_warn"), "system", "Loop detected: file loop warn"),
    (ev.LoopDetected(loop="file_loop_abort"), "error", "Loop detected: file loop abort"),
    (ev.StreamError(reason="reset"), "system", "Stream broke: reset"),
    (ev.StreamStalled(elapsed_s=30), "system", "No answer for 30 s"),
    (ev.Retry(attempt=2, reason="429"), "system", "Retry 2: 429"),
    (ev.Retry(attempt=2), "system", "Retry 2"),
    (ev.ContextOverflow(reason="200k"), "system", "Context is full: 200k"),
    (ev.CompactStart(), "system", "Compacting the conversation"),
    (ev.CompactEnd(removed_count=4), "system", "Conversation compacted: 4 messages removed"),
    (ev.CompactEnd(), "system", "Conversation compacted"),
    (ev.CompactEnd(ok=False), "system", "Compaction was given up"),
    (ev.StatusUpdate(text="Reading"), "system", "Reading"),
    (ev.PluginEvent(name="lint", payload={"errors": 2}), "system", 'lint: {"errors":2}'),
    (ev.Intervention(prompt="Use tabs"), "system", "Use tabs"),
    (ev.ModelSwitched(from_="a", to="b"), "system", "Model is now b"),
    (ev.SubagentStart(child_sid="k1", description="Search"), "system", "Sub-agent started: Search"),
    (ev.SubagentEnd(child_sid="k1"), "system", "Sub-agent done"),
    (ev.SubagentEnd(child_sid="k1", ok=False), "system", "Sub-agent failed"),
    (ev.TodoChange(todos=(Todo(id="1", content="x"),)), "system", "Todo list: 1 items"),
    (ev.PlanGenerated(plan=Plan(steps=(PlanStep(description="x"),))), "system", "Plan: 1 steps"),
    (ev.MemoryFlushed(facts=("a", "b"), count=2), "system", "Memory: 2 facts written"),
    (
        ev.LargeResultOffloaded(tool="read", call_id="c1", path="/tmp/r", bytes=9),
        "system",
        "Result of read stored in /tmp/r (9 bytes)",
    ),
    (ev.ContentPolicyViolated(summary="weapons"), "system", "Content policy: weapons"),
    (ev.ToolAttached(name="grep"), "system", "Tool added: grep"),
    (ev.ToolDetached(name="grep"), "system", "Tool removed: grep"),
    (ev.ToolsUpdated(attached=("a",), detached=("b",)), "system", "Tools changed: a, b"),
    (ev.ToolApprovedAlways(tool="shell", rule="git *"), "system", "Always allowed: git *"),
    (ev.ToolApprovedAlways(tool="shell", command_family="git"), "system", "Always allowed: git"),
    (ev.ToolApprovedAlways(tool="shell"), "system", "Always allowed: shell"),
    (ev.RuleRemoved(rule="allow shell git"), "system", "Rule removed: allow shell git"),
    (ev.SteeringReceived(ref="r", text="Go", status="rejected_full"), "error", "Steering queue is full, not sent: Go"),
    (ev.SteeringReceived(ref="r", text="Go", status="rejected"), "error", "Steering refused: Go"),
]

#: Events whose entry is replaced by the next one.
PASSING = (ev.StreamError(), ev.StreamStalled(), ev.Retry(attempt=1), ev.ContextOverflow(), ev.CompactStart())


def told(played: Tape) -> list[tuple[str, str, str]]:
    return [(entry.id, entry.kind, entry.text) for entry in played.entries]


def step(played: Tape, call_id: str = "c1") -> ToolStep | None:
    return next(entry.tool_step for entry in played.entries if entry.id == call_id)


def cards(played: Tape) -> dict[str, Card]:
    return {entry.id: entry.card for entry in played.entries if entry.card is not None}


class TestWhoIsTold:
    def test_every_event_is_told_or_is_silent_on_purpose(self) -> None:
        assert {NAMES[kind] for kind in TYPES if kind not in NARRATORS} == set(SILENT)

    @pytest.mark.parametrize("name", SILENT)
    @settings(max_examples=5)
    @given(data=st.data())
    def test_a_silent_event_leaves_the_timeline_alone(self, name: str, data: st.DataObject) -> None:
        played = tape(ev.AgentStart(), ev.MessageDelta(message_id="a1", delta="x"), ev.ToolCall(name="t", call_id="c1"))
        before = played.view.timeline
        assert played.add(data.draw(body_of(BY_NAME[name]))).view.timeline is before

    def test_an_unknown_event_leaves_the_timeline_alone(self) -> None:
        played = tape(ev.Notice(text="x"))
        before = played.view.timeline
        assert played.add(ev.Unknown(name="next")).view.timeline is before

    @pytest.mark.parametrize(("body", "kind", "text"), LINES, ids=lambda value: str(value)[:60])
    def test_an_event_that_is_one_line(self, body: Body, kind: str, text: str) -> None:
        played = tape(body)
        (entry,) = played.entries
        assert (entry.id, entry.kind, entry.text) == ("entry-2", kind, text)
        assert entry.at == START + STEP

    def test_every_teller_is_tried_here(self) -> None:
        tried = {type(body) for body, _, _ in LINES} | {BY_NAME[name] for name in _TRIED_BELOW.split()}
        assert tried == set(NARRATORS)

    def test_a_line_says_which_turn_and_which_sub_agent_it_belongs_to(self) -> None:
        (entry,) = tape(ev.Notice(text="x", turn_id="t1", agent_path=("a", "b"))).entries
        assert (entry.turn_id, entry.path) == ("t1", ("a", "b"))


_TRIED_BELOW = """
    session_opened session_suspended session_archived process_exited agent_start agent_end agent_abort prompt_received
    turn_restored message_start message_delta response_complete message_aborted thinking_start thinking_delta tool_call
    tool_execution_start tool_execution_output tool_execution_end tool_blocked tool_killed tool_skipped_for_steering
    tool_call_unknown bash_start bash_output bash_end approval_required ask_user user_responded dialog_required
    steering_received steering_applied
"""


class TestPassingLines:
    @pytest.mark.parametrize("body", PASSING, ids=lambda body: NAMES[type(body)])
    def test_what_follows_takes_its_place(self, body: Body) -> None:
        played = tape(ev.AgentStart(), body)
        assert len(played.entries) == 1
        played.add(ev.MessageDelta(message_id="a1", delta="Hello"))
        assert told(played) == [("a1:0", "assistant", "Hello")]

    def test_a_failure_takes_the_place_of_the_retries(self) -> None:
        played = tape(ev.Retry(attempt=1), ev.Retry(attempt=2), ev.TurnFailed(message="Overloaded"))
        assert told(played) == [("entry-4", "error", "Overloaded")]

    def test_the_end_of_a_compaction_takes_the_place_of_its_beginning(self) -> None:
        assert told(tape(ev.CompactStart(), ev.CompactEnd())) == [("entry-3", "system", "Conversation compacted")]


class TestPrompts:
    def test_the_prompt_that_opened_the_session_shows_at_once_and_once(self) -> None:
        opened = ev.SessionOpened(agent="demo", prompt="Go", message_id="m0", images=(SHOT,))
        played = Tape().add(opened)
        assert told(played) == [("m0", "user", "Go")]
        assert played.entries[0].images == (SHOT,)
        played.add(ev.PromptReceived(text="Go", message_id="m0"))
        assert told(played) == [("m0", "user", "Go")]

    @pytest.mark.parametrize(
        "opened", [ev.SessionOpened(agent="demo"), ev.SessionOpened(agent="demo", prompt="Go")], ids=["none", "no id"]
    )
    def test_a_prompt_that_has_no_id_yet_waits_for_its_own_event(self, opened: Body) -> None:
        assert told(Tape().add(opened)) == []

    def test_a_prompt_of_the_agent_itself_is_a_system_line(self) -> None:
        played = tape(ev.PromptReceived(text="Task 3 is done", source="agent"))
        assert told(played) == [("entry-2", "system", "Task 3 is done")]

    def test_a_text_that_waited_keeps_its_name_and_its_images(self) -> None:
        played = tape(
            ev.PromptQueued(text="One", message_id="q1", images=(SHOT,)),
            ev.PromptQueued(text="Two", message_id="q2", images=(SHOT,)),
            ev.PromptReceived(text="Two"),
            ev.PromptReceived(text="One, edited", message_id="q1"),
        )
        assert told(played) == [("q2", "user", "Two"), ("q1", "user", "One, edited")]
        assert [entry.images for entry in played.entries] == [(SHOT,), (SHOT,)]

    @pytest.mark.parametrize("status", ["queued", "prompted"])
    def test_steering_that_is_accepted_is_not_told_before_it_is_applied(self, status: str) -> None:
        assert told(tape(ev.SteeringReceived(ref="r1", text="Go", status=status))) == []  # type: ignore[arg-type]

    def test_steering_is_told_in_the_order_in_which_it_is_applied(self) -> None:
        played = tape(
            ev.AgentStart(),
            ev.SteeringReceived(ref="r1", text="One"),
            ev.SteeringReceived(ref="r2", text="Two", images=(SHOT,)),
            ev.SteeringApplied(refs=("r2", "lost", "r1"), count=3),
        )
        assert told(played) == [("r2", "user", "Two"), ("r1", "user", "One")]
        assert played.entries[0].images == (SHOT,)

    @pytest.mark.parametrize(
        "body",
        [
            ev.PromptReceived(text="x", message_id="p"),
            ev.AgentStart(),
            ev.AgentEnd(),
            ev.AgentAbort(),
            ev.SteeringApplied(refs=("r1",)),
            ev.TurnRestored(),
        ],
        ids=lambda body: NAMES[type(body)],
    )
    def test_the_turn_of_a_sub_agent_is_not_the_sessions(self, body: Body) -> None:
        played = tape(
            ev.AgentStart(), ev.SteeringReceived(ref="r1", text="One"), ev.MessageDelta(message_id="a1", delta="x")
        )
        before = played.view.timeline
        assert played.add(replace(body, agent_path=("k",))).view.timeline is before

    def test_the_turn_of_a_session_at_rest_is_not_told(self) -> None:
        played = tape(ev.SessionArchived(), ev.PromptReceived(text="x", message_id="p"), ev.AgentStart())
        assert told(played) == []
        assert not played.view.timeline.streaming


class TestReplies:
    def test_blocks_begin_grow_and_are_restated(self) -> None:
        played = tape(
            ev.ThinkingStart(message_id="a1", block=0),
            ev.ThinkingDelta(message_id="a1", block=0, delta="Hm"),
            ev.MessageStart(message_id="a1", block=1),
            ev.MessageDelta(message_id="a1", block=1, delta="<status>x</status>Yes"),
        )
        assert told(played) == [("a1:0", "thinking", "Hm"), ("a1:1", "assistant", "<status>x</status>Yes")]
        blocks = (
            Block(block=0, kind="thinking", text="Hm."),
            Block(block=1, text="Yes"),
            Block(block=2, text="Never streamed"),
            Block(block=3, kind="thinking", text="Nor this"),
            Block(block=4, text="  "),
            Block(block=5, kind="tool_call", call_id="c1", name="shell", args={"command": "ls"}),
        )
        played.add(ev.ResponseComplete(message_id="a1", blocks=blocks))
        assert told(played) == [
            ("a1:0", "thinking", "Hm."),
            ("a1:1", "assistant", "Yes"),
            ("a1:2", "assistant", "Never streamed"),
            ("a1:3", "thinking", "Nor this"),
            ("c1", "tool", "shell"),
        ]
        assert played.view.timeline.open == ()

    def test_a_block_that_turns_out_blank_is_gone(self) -> None:
        played = tape(ev.MessageDelta(message_id="a1", delta="<title>T</title>"))
        assert told(played.add(ev.ResponseComplete(message_id="a1", blocks=(Block(text="\n"),)))) == []

    def test_a_block_that_was_thought_empty_comes_back_with_its_text(self) -> None:
        played = tape(ev.AgentStart(), ev.MessageStart(message_id="a1"), ev.AgentEnd())
        assert told(played) == []
        played.add(ev.ResponseComplete(message_id="a1", blocks=(Block(text="Late"),)))
        assert told(played) == [("a1:0", "assistant", "Late")]

    def test_a_piece_of_a_block_that_is_whole_is_dropped(self) -> None:
        played = tape(ev.ResponseComplete(message_id="a1", blocks=(Block(text="Yes"),)))
        before = played.view.timeline
        late = (ev.MessageDelta(message_id="a1", delta="!"), ev.ThinkingDelta(message_id="a1", delta="?"))
        assert played.add(*late).view.timeline is before

    def test_a_reply_that_is_cut_off_is_withdrawn(self) -> None:
        played = tape(ev.MessageDelta(message_id="a1", delta="Ye"), ev.MessageDelta(message_id="a2", delta="No"))
        assert told(played.add(ev.MessageAborted(message_id="a1"))) == [("a2:0", "assistant", "No")]

    def test_a_reply_that_is_cut_off_and_kept_stays(self) -> None:
        kept = tape(ev.MessageDelta(message_id="a1", delta="Ye"), ev.MessageAborted(message_id="a1", keep=True))
        assert told(kept) == [("a1:0", "assistant", "Ye")]
        restated = tape(
            ev.MessageDelta(message_id="a1", delta="Ye"),
            ev.MessageAborted(message_id="a1", keep=True, blocks=(Block(text="Yes, and"),)),
        )
        assert told(restated) == [("a1:0", "assistant", "Yes, and")]


class TestCalls:
    def test_arguments_that_come_later_are_taken_in(self) -> None:
        played = tape(ev.ToolCall(name="shell", call_id="c1", partial=True))
        assert step(played) == ToolStep("shell", "", "calling")
        played.add(ev.ToolCall(name="shell", call_id="c1", args={"command": "ls"}))
        assert step(played) == ToolStep("shell", '{"command":"ls"}', "calling")
        played.add(ev.ToolExecutionStart(name="shell", call_id="c1", args={"command": "ls -l"}))
        assert step(played) == ToolStep("shell", '{"command":"ls -l"}', "running")
        played.add(ev.ToolExecutionEnd(name="shell", call_id="c1", result=None))
        assert step(played) == ToolStep("shell", '{"command":"ls -l"}', "done")

    def test_a_call_is_not_announced_again_once_it_is_over(self) -> None:
        played = tape(ev.ToolExecutionEnd(name="shell", call_id="c1", result="x"))
        before = played.view.timeline
        again = (ev.ToolCall(name="shell", call_id="c1", args={"a": 1}), ev.ToolExecutionStart(name="x", call_id="c1"))
        assert played.add(*again).view.timeline is before

    def test_a_call_that_is_over_stays_as_it_ended_when_its_message_is_told_whole(self) -> None:
        played = tape(ev.ToolExecutionEnd(name="shell", call_id="c1", result="x"))
        block = Block(kind="tool_call", call_id="c1", name="shell", args={"a": 1})
        played.add(ev.ResponseComplete(message_id="a1", blocks=(block,)))
        assert step(played) == ToolStep("shell", "", "done", "x")

    def test_a_call_that_was_never_announced_is_told_when_it_runs(self) -> None:
        played = tape(ev.ToolExecutionStart(name="shell", call_id="c1", args={"command": "ls"}))
        assert step(played) == ToolStep("shell", '{"command":"ls"}', "running")

    def test_a_call_that_began_unseen_is_told_when_it_ends(self) -> None:
        named = tape(ev.ToolExecutionEnd(name="shell", call_id="c1", result="x"))
        nameless = tape(ev.ToolExecutionEnd(name="shell", call_id="", result="x"))
        assert step(named) == step(nameless, "entry-2") == ToolStep("shell", "", "done", "x")

    def test_a_command_of_the_user_is_not_taken_for_the_call_without_an_id(self) -> None:
        played = tape(
            ev.ToolCall(name="read", call_id="c1"),
            ev.BashStart(bash_id="b1", command="ls"),
            ev.ToolExecutionEnd(name="read", call_id="", result="x"),
        )
        assert step(played) == ToolStep("read", "", "done", "x")

    def test_output_shows_while_the_call_runs_and_the_end_restates_it(self) -> None:
        played = tape(ev.ToolExecutionStart(name="shell", call_id="c1"))
        played.add(ev.ToolExecutionOutput(call_id="c1", delta="a"), ev.ToolExecutionOutput(call_id="c1", delta="b"))
        assert step(played) == ToolStep("shell", "", "running", "ab")
        played.add(ev.ToolExecutionEnd(name="shell", call_id="c1", result="abc"))
        assert step(played) == ToolStep("shell", "", "done", "abc")
        assert played.view.timeline.open == ()

    def test_output_goes_on_in_the_background_after_the_turn(self) -> None:
        played = tape(ev.AgentStart(), ev.ToolExecutionStart(name="shell", call_id="c1"))
        played.add(ev.ToolExecutionOutput(call_id="c1", delta="one "), ev.AgentEnd())
        assert step(played) == ToolStep("shell", "", "running", "one ")
        played.add(ev.ToolExecutionOutput(call_id="c1", delta="two"))
        assert step(played) == ToolStep("shell", "", "running", "one two")

    def test_output_of_nothing_that_runs_is_not_told(self) -> None:
        played = tape(
            ev.ToolExecutionEnd(name="shell", call_id="c1", result="x"), ev.PromptReceived(text="Hi", message_id="p")
        )
        before = played.view.timeline
        for name in ("c1", "lost", "p"):
            played.add(ev.ToolExecutionOutput(call_id=name, delta="late"), ev.BashOutput(bash_id=name, delta="late"))
        assert played.view.timeline is before

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (ev.ToolBlocked(name="shell", call_id="c1", reason="not here"), "not here"),
            (ev.ToolBlocked(name="shell", call_id="c1"), "tool blocked"),
            (ev.ToolKilled(name="shell", call_id="c1", reason="abort"), "abort"),
            (ev.ToolSkippedForSteering(name="shell", call_id="c1"), "tool skipped for steering"),
            (ev.ToolCallUnknown(name="shell", call_id="c1"), "no such tool"),
        ],
    )
    @pytest.mark.parametrize("announced", [True, False], ids=["announced", "unseen"])
    def test_a_call_that_was_kept_from_running_ended_with_an_error(
        self, body: Body, reason: str, announced: bool
    ) -> None:
        played = tape(*([ev.ToolCall(name="shell", call_id="c1", args="ls")] if announced else []), body)
        assert step(played) == ToolStep("shell", "ls" if announced else "", "error", reason)

    def test_an_id_that_belongs_to_another_entry_is_not_taken_over(self) -> None:
        played = tape(ev.PromptReceived(text="Hi", message_id="c1"))
        before = played.view.timeline
        played.add(
            ev.ToolCall(name="shell", call_id="c1", args="ls"),
            ev.ToolExecutionStart(name="shell", call_id="c1"),
            ev.ToolExecutionEnd(name="shell", call_id="c1"),
            ev.ToolKilled(name="shell", call_id="c1"),
            ev.BashStart(bash_id="c1", command="ls"),
        )
        assert played.view.timeline is before


class TestCommandsOfTheUser:
    def test_a_command_runs_and_ends(self) -> None:
        played = tape(ev.BashStart(bash_id="b1", command="ls"), ev.BashOutput(bash_id="b1", delta="a"))
        assert played.entries[0].bash_result == BashResult("ls", "a", running=True)
        played.add(ev.BashEnd(bash_id="b1", exit_code=0, output="a b"))
        assert played.entries[0].bash_result == BashResult("ls", "a b", 0)
        assert played.view.timeline.unfinished == ()

    def test_a_command_whose_start_was_not_seen_is_told_when_it_ends(self) -> None:
        played = tape(ev.BashEnd(bash_id="b1", command="ls", output="a"))
        assert told(played) == [("b1", "bash", "ls")]
        assert played.entries[0].bash_result == BashResult("ls", "a")

    def test_a_command_that_is_told_twice_is_one(self) -> None:
        started = ev.BashStart(bash_id="b1", command="ls")
        played = tape(started, started, ev.BashEnd(bash_id="b1", exit_code=0))
        assert told(played) == [("b1", "bash", "ls")]
        assert played.view.timeline.unfinished == ()

    def test_output_goes_on_after_a_turn_that_ended_meanwhile(self) -> None:
        played = tape(ev.AgentStart(), ev.BashStart(bash_id="b1", command="ls"), ev.BashOutput(bash_id="b1", delta="a"))
        played.add(ev.AgentAbort(), ev.BashOutput(bash_id="b1", delta="b"))
        assert played.entries[0].bash_result == BashResult("ls", "ab", running=True)


def interrupted(played: Tape) -> bool:
    return step(played) == ToolStep("shell", "", "error", "interrupted")


RUNNING = (
    ev.AgentStart(),
    ev.MessageDelta(message_id="a1", delta="Hal"),
    ev.ToolExecutionStart(name="shell", call_id="c1"),
)


class TestWhatEndsATurn:
    def test_the_end_leaves_open_calls_to_the_background(self) -> None:
        played = tape(*RUNNING, ev.AgentEnd())
        assert step(played) == ToolStep("shell", "", "running")
        assert not played.view.timeline.streaming

    @pytest.mark.parametrize(
        "body",
        [
            ev.AgentAbort(),
            ev.SessionSuspended(),
            ev.SessionArchived(),
            ev.SessionFailed(),
            ev.ProcessError(),
            ev.ProcessExited(code=0),
            ev.ProcessExited(code=1),
        ],
        ids=lambda body: NAMES[type(body)],
    )
    def test_whatever_cuts_a_turn_off_interrupts_its_calls(self, body: Body) -> None:
        played = tape(*RUNNING, body)
        assert interrupted(played)
        assert (played.view.timeline.streaming, played.view.timeline.open) == (False, ())
        assert told(played)[0] == ("a1:0", "assistant", "Hal")

    def test_an_abort_spares_what_outlives_the_turn(self) -> None:
        played = tape(
            *RUNNING,
            ev.ToolExecutionStart(name="shell", call_id="c2"),
            ev.BashStart(bash_id="b1", command="make"),
            ev.BackgroundStarted(kind="shell", id="c2"),
            ev.AgentAbort(),
        )
        assert interrupted(played)
        assert step(played, "c2") == ToolStep("shell", "", "running")
        assert played.entries[-1].bash_result == BashResult("make", "", running=True)
        played.add(ev.ToolExecutionEnd(name="shell", call_id="c2", result="done after all"))
        assert step(played, "c2") == ToolStep("shell", "", "done", "done after all")

    def test_nothing_outlives_the_session(self) -> None:
        played = tape(*RUNNING, ev.BashStart(bash_id="b1", command="make"), ev.SessionSuspended())
        assert played.entries[-1].bash_result == BashResult("make", "")

    @pytest.mark.parametrize(
        "body",
        [ev.ProcessExited(code=0), ev.ProcessExited(), ev.ProcessExited(code=1, asked=True)],
        ids=["success", "nobody knows", "asked for"],
    )
    def test_an_exit_that_is_no_failure_has_no_line(self, body: Body) -> None:
        assert told(tape(body)) == []


class TestHistory:
    HISTORY = (
        HistoryMessage(message_id="m1", role="user", blocks=(Block(text="Go"),)),
        HistoryMessage(
            message_id="a1", role="assistant", blocks=(Block(kind="tool_call", call_id="c1", name="shell"),)
        ),
    )

    def test_history_fills_an_empty_timeline(self) -> None:
        played = tape(ev.TurnRestored(history=self.HISTORY))
        assert told(played) == [("m1", "user", "Go"), ("c1", "tool", "shell")]
        assert {entry.at for entry in played.entries} == {START + STEP}

    def test_what_our_own_log_holds_is_not_told_twice(self) -> None:
        played = tape(ev.Notice(text="Here"), ev.TurnRestored(history=self.HISTORY))
        assert told(played) == [("entry-2", "system", "Here")]

    def test_a_call_without_an_end_can_still_end_or_be_cut_off(self) -> None:
        restored = ev.TurnRestored(history=self.HISTORY)
        assert interrupted(tape(restored, ev.SessionSuspended()))
        ended = tape(restored, ev.ToolExecutionEnd(name="shell", call_id="c1", result="x"))
        assert step(ended) == ToolStep("shell", "", "done", "x")


class TestCards:
    def test_an_approval_stands_on_the_call_that_it_is_about(self) -> None:
        played = tape(ev.AgentStart(), ev.ToolCall(name="shell", call_id="c1"), approval("g1", "c1"))
        assert cards(played) == {"c1": Card("g1", "approval")}
        played.add(ev.ApprovalResolved(status="approved", gate_id="g1", by="ann", rule="git *"))
        assert cards(played) == {"c1": Card("g1", "approval", "approved", "ann", "git *")}

    def test_an_approval_of_a_call_that_was_not_told_has_a_line_of_its_own(self) -> None:
        request = GateRequest(gate_id="g1", title="Run ls?", call_id="c1")
        played = tape(ev.AgentStart(), ev.ApprovalRequired(gate=request))
        assert told(played) == [("gate:g1", "system", "Run ls?")]

    def test_a_card_stays_where_it_was_put_when_the_call_is_told_after_it(self) -> None:
        played = tape(ev.AgentStart(), approval("g1", "c1"), ev.ToolCall(name="shell", call_id="c1"))
        played.add(ev.ApprovalResolved(status="rejected", gate_id="g1"))
        assert cards(played) == {"gate:g1": Card("g1", "approval", "rejected")}

    def test_questions_and_dialogs_have_lines_of_their_own(self) -> None:
        played = tape(
            ev.AskUser(question="Which?", gate_id="g1", call_id="c1"),
            ev.DialogRequired(method="confirm", title="Sure?", gate_id="g2"),
        )
        assert told(played) == [("gate:g1", "system", "Which?"), ("gate:g2", "system", "Sure?")]
        assert cards(played) == {"gate:g1": Card("g1", "question"), "gate:g2": Card("g2", "dialog")}
        played.add(ev.DialogResolved(gate_id="g2", value=True, by="bob"))
        assert cards(played)["gate:g2"] == Card("g2", "dialog", "answered", "bob")

    def test_an_answer_is_a_user_entry(self) -> None:
        played = tape(ev.AgentStart(), ev.AskUser(question="Which?", gate_id="g1"))
        played.add(ev.UserResponded(gate_id="g1", response="The first", message_id="m9", by="ann"))
        assert told(played)[-1] == ("m9", "user", "The first")
        assert cards(played) == {"gate:g1": Card("g1", "question", "answered", "ann")}

    @pytest.mark.parametrize(
        ("response", "text"), [(["a", "b"], '["a","b"]'), ({"q": "a"}, '{"q":"a"}')], ids=["list", "object"]
    )
    def test_an_answer_to_several_questions_is_told_as_it_is(self, response: object, text: str) -> None:
        played = tape(ev.AskUser(question="?", gate_id="g1"), ev.UserResponded(gate_id="g1", response=response))
        assert told(played)[-1] == ("entry-3", "user", text)

    @pytest.mark.parametrize(
        "closed", [ev.UserResponded(status="timeout", response="x"), ev.UserResponded()], ids=["timeout", "empty"]
    )
    def test_no_answer_is_no_entry(self, closed: Body) -> None:
        played = tape(ev.AskUser(question="?", gate_id="g1"), closed)
        assert [entry.kind for entry in played.entries] == ["system"]

    def test_whatever_closes_a_gate_its_card_shows_how(self) -> None:
        played = tape(ev.AgentStart(), approval("g1"), ev.AskUser(question="?", gate_id="g2"), ev.AgentAbort())
        assert {name: card.status for name, card in cards(played).items()} == {
            "gate:g1": "withdrawn",
            "gate:g2": "withdrawn",
        }

    def test_a_gate_that_is_asked_again_is_open_again(self) -> None:
        played = tape(ev.AgentStart(), approval("g1"), ev.SessionSuspended(), ev.SessionResumed())
        assert cards(played)["gate:g1"].status == "stale"
        played.add(approval("g1"), approval("g1"))
        assert cards(played) == {"gate:g1": Card("g1", "approval")}
        assert [gate.id for gate in played.state.gates.open] == ["g1"]

    def test_a_gate_that_opens_beside_another_leaves_its_card_alone(self) -> None:
        played = tape(
            approval("g1"), ev.ApprovalResolved(status="approved", gate_id="g1"), approval("g2"), approval("g3")
        )
        assert {name: card.status for name, card in cards(played).items()} == {
            "gate:g1": "approved",
            "gate:g2": "open",
            "gate:g3": "open",
        }

    def test_all_cards_are_settled_also_where_only_the_last_decisions_are_kept(self) -> None:
        played = tape(ev.AgentStart(), *(approval(f"g{number}") for number in range(50)), ev.AgentAbort())
        assert {card.status for card in cards(played).values()} == {"withdrawn"}
        assert len(cards(played)) == 50

    def test_a_gate_of_a_sub_agent_is_told_with_its_path(self) -> None:
        played = tape(approval("g1", path=("k",)))
        assert [(entry.id, entry.path) for entry in played.entries] == [("gate:g1", ("k",))]


def test_a_plain_entry_has_nothing_that_does_not_apply() -> None:
    assert tape(ev.Notice(text="x")).entries == [Entry("entry-2", "system", "x", at=START + STEP)]


#: Every event with an id that the agent chooses.
_NAMED: list[Callable[[str], Body]] = [
    lambda name: ev.PromptReceived(text="p", message_id=name),
    lambda name: ev.SteeringReceived(ref=name, text="s", status="queued"),
    lambda name: ev.SteeringApplied(refs=(name,), count=1),
    lambda name: ev.ToolCall(name="t", call_id=name),
    lambda name: ev.ToolExecutionStart(name="t", call_id=name),
    lambda name: ev.ToolExecutionOutput(call_id=name, delta="o"),
    lambda name: ev.ToolExecutionEnd(name="t", call_id=name, result="r"),
    lambda name: ev.ToolKilled(name="t", call_id=name),
    lambda name: ev.BashStart(command="b", bash_id=name),
    lambda name: ev.BashEnd(command="b", bash_id=name, output="o", exit_code=0),
    lambda name: ev.MessageStart(message_id=name, block=1),
    lambda name: ev.MessageDelta(message_id=name, block=1, delta="d"),
    lambda name: ev.ResponseComplete(message_id=name, blocks=(Block(text="w"), Block(kind="tool_call", call_id=name))),
    lambda name: ev.MessageAborted(message_id=name),
    lambda name: approval(name, call_id=name),
    lambda name: ev.UserResponded(response="u", ref=name, message_id=name),
    lambda name: ev.AgentAbort(),
]
_HOSTILE = st.builds(lambda make, index: make(line_id(index)), st.sampled_from(_NAMED), st.integers(0, 14))
_NAMELESS = st.sampled_from([make("") for make in _NAMED])
_HISTORY = ev.TurnRestored(
    finished=True,
    history=(
        HistoryMessage(message_id=line_id(3), role="user", blocks=(Block(text="h"),)),
        HistoryMessage(message_id="m", role="assistant", blocks=(Block(kind="tool_call", call_id=line_id(4)),)),
    ),
)


@given(st.booleans(), st.lists(_HOSTILE | _NAMELESS | st.just(ev.Notice(text="line")), max_size=14))
def test_whatever_an_agent_calls_its_things_every_line_is_shown_once(restored: bool, bodies: list[Body]) -> None:
    played = tape(*([_HISTORY] if restored else []), *bodies)
    names = [entry.id for entry in played.entries]
    assert len(names) == len(set(names))
    assert [entry.text for entry in played.entries].count("line") == bodies.count(ev.Notice(text="line"))


def test_a_block_that_is_told_twice_in_one_message_is_one_entry() -> None:
    view = View()
    twice = (Block(block=0, text="first"), Block(block=0, text="second"))
    bodies = (ev.SessionOpened(agent="x"), ev.AgentStart(), ev.ResponseComplete(message_id="m", blocks=twice))
    for index, body in enumerate(bodies, 1):
        view = fold(view, ev.Event("s", index, index, "stream", body))
    assert [(entry.id, entry.text) for entry in window(view.timeline)] == [("m:0", "second")]
