"""Test the fold of events into a conversation, with examples and with random events."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from quarterdeck import events as ev
from quarterdeck.engine.conversation import (
    EMPTY,
    INTERRUPTED,
    SUMMARY,
    Conversation,
    call_key,
    conversation_of,
    fold_conversation,
    history_of,
    json_text,
    messages_of,
)
from quarterdeck.engine.model import Call, Message, Picture, Result, Text, Thinking
from quarterdeck.events import Block, Body, Image
from tests.support.event_bodies import any_body
from tests.unit.engine.test_play import check

PICTURE = Image(media_type="image/png", data="AA==")


def after(*bodies: Body) -> Conversation:
    return conversation_of(bodies)


def reply(*blocks: Block, message_id: str = "m") -> ev.ResponseComplete:
    return ev.ResponseComplete(message_id=message_id, blocks=blocks)


def called(*ids: str) -> ev.ResponseComplete:
    return reply(*(Block(block=n, kind="tool_call", call_id=name, name="t", args={}) for n, name in enumerate(ids)))


def ended(call_id: str, result: Any = "done", **more: Any) -> ev.ToolExecutionEnd:
    return ev.ToolExecutionEnd(name="t", call_id=call_id, result=result, **more)


@given(st.lists(any_body(), max_size=12))
def test_no_event_ever_breaks_the_fold(bodies: list[Body]) -> None:
    messages_of(conversation_of(bodies))


ids = st.sampled_from(["a", "b", "c"])
plausible = st.one_of(
    st.builds(lambda text: ev.PromptReceived(text=text), st.sampled_from(["hi", "more", ""])),
    st.builds(lambda names: called(*names), st.lists(ids, unique=True, max_size=3)),
    st.just(reply(Block(text="words"))),
    st.just(ev.MessageAborted(message_id="m", keep=True, blocks=(Block(text="half"),))),
    st.builds(ended, ids),
    st.builds(lambda name: ev.ToolKilled(name="t", call_id=name), ids),
    st.builds(lambda name: ev.SteeringReceived(ref=name, text=name), ids),
    st.builds(lambda names: ev.SteeringApplied(refs=tuple(names)), st.lists(ids, unique=True)),
    st.just(ev.Intervention(prompt="mind")),
    st.builds(lambda n: ev.CompactEnd(removed_count=n, summary="short"), st.integers(0, 3)),
)


@given(st.lists(plausible, max_size=20))
def test_calls_are_always_answered_by_the_next_message_and_texts_take_turns(bodies: list[Body]) -> None:
    conversation = EMPTY
    for body in bodies:
        cut = isinstance(body, ev.CompactEnd)
        if cut and body.removed_count < len(conversation.messages):
            # The engine never cuts between calls and their results.
            kept = messages_of(conversation)[body.removed_count :]
            if kept and kept[0].role == "tool":
                continue
        conversation = fold_conversation(conversation, body)
        check(messages_of(conversation))


def test_results_stand_in_the_order_of_the_calls() -> None:
    told = messages_of(after(ev.PromptReceived(text="go"), called("a", "b"), ended("b", "2"), ended("a", "1")))
    assert [part.text for part in told[-1].parts] == ["1", "2"]
    assert (told[-1].role, len(told)) == ("tool", 3)


def test_what_is_said_beside_open_calls_waits_behind_them() -> None:
    open_batch = after(called("a"), ev.Intervention(prompt="mind"))
    assert open_batch.messages[-1].role == "assistant"
    assert [one.role for one in messages_of(open_batch)] == ["assistant", "tool", "user"]
    closed = fold_conversation(open_batch, ended("a"))
    assert closed.messages[-1].text == "mind"


def test_a_call_without_a_result_was_interrupted_and_a_late_result_is_too_late() -> None:
    conversation = after(called("a", "b"), ended("a"), ev.PromptReceived(text="next", message_id="p"))
    assert [(part.text, part.ok) for part in conversation.messages[1].parts] == [("done", True), (INTERRUPTED, False)]
    assert fold_conversation(conversation, ended("b")) == conversation


def test_every_way_in_which_a_call_can_end() -> None:
    bodies = {
        "blocked": ev.ToolBlocked(name="t", call_id="a", reason="no"),
        "killed": ev.ToolKilled(name="t", call_id="a", reason="stop"),
        "skipped": ev.ToolSkippedForSteering(name="t", call_id="a", reason="you came"),
        "unknown": ev.ToolCallUnknown(name="t", call_id="a"),
    }
    said = {name: messages_of(after(called("a"), body))[-1].parts[0] for name, body in bodies.items()}
    assert not any(part.ok for part in said.values())
    assert [part.text for part in said.values()] == [
        "not run: no",
        "stopped before it finished: stop",
        "skipped: you came",
        "there is no tool named t",
    ]


def test_what_the_model_was_told_may_differ_from_the_result() -> None:
    def text_of(body: Body) -> str:
        return messages_of(after(called("a"), body))[-1].parts[0].text

    assert text_of(ended("a", {"code": 1}, told="it failed")) == "it failed"
    assert text_of(ended("a", {"code": 1})) == '{"code":1}'
    assert text_of(ended("a", None)) == ""
    assert json_text(object()).startswith("<object")


def test_replies_keep_reasoning_and_broken_arguments() -> None:
    blocks = (
        Block(kind="thinking", text="hm", signature="s"),
        Block(block=1, text=""),
        Block(block=2, kind="tool_call", call_id="a", name="t", args=None, text="[1"),
        Block(block=3, kind="tool_result", call_id="a"),
    )
    (message,) = after(reply(*blocks)).messages
    assert message.parts == (Thinking("hm", "s"), Call("a", "t", {}, "[1"))
    assert after(reply()).messages == ()


def test_a_reply_that_was_cut_off_stays_only_as_far_as_it_was_said() -> None:
    kept = ev.MessageAborted(message_id="m", keep=True, blocks=(Block(kind="thinking", text="x"), Block(text="half")))
    assert after(kept).messages == (Message("assistant", (Text("half"),), "m"),)
    assert after(ev.MessageAborted(message_id="m", blocks=(Block(text="half"),))).messages == ()
    assert after(ev.MessageAborted(message_id="m", keep=True, blocks=(Block(text=" "),))).messages == ()


def test_steering_that_is_dropped_is_never_merged() -> None:
    conversation = after(
        ev.SteeringReceived(ref="a", text="one", images=(PICTURE,)),
        ev.SteeringReceived(ref="b", text="two"),
        ev.SteeringReceived(ref="c", text="full", status="rejected_full"),
        ev.PromptDropped(text="two", message_id="b"),
        ev.PromptDropped(text="x", message_id="x"),
        ev.SteeringApplied(refs=("c", "b", "a")),
    )
    assert conversation.messages[0].parts == (Text("one"), Picture(PICTURE))
    assert conversation.steering == ()


def test_a_summary_takes_the_place_of_what_it_sums_up() -> None:
    said = [ev.PromptReceived(text="one"), reply(Block(text="two")), ev.PromptReceived(text="three")]
    cut = after(*said, ev.CompactEnd(removed_count=2, summary="short"))
    assert [one.text for one in cut.messages] == [f"{SUMMARY}shortthree"]
    cut = after(*said, ev.CompactEnd(removed_count=1, summary="short"))
    assert [one.text for one in cut.messages] == [f"{SUMMARY}short", "two", "three"]
    cut = after(*said, ev.CompactEnd(removed_count=9, summary="short"))
    assert [one.text for one in cut.messages] == [f"{SUMMARY}short"]
    assert after(*said, ev.CompactEnd(ok=False, removed_count=2)) == after(*said)


def test_a_call_that_was_allowed_and_did_not_run_may_pass_once() -> None:
    gate = ev.GateRequest(tool="t", args={"b": 1, "a": 2})
    allowed = after(ev.ApprovalResolved(status="approved", gate=gate))
    assert allowed.approved_calls == (call_key("t", {"a": 2, "b": 1}),)
    other = fold_conversation(allowed, ev.ToolExecutionStart(name="t", call_id="x", args={}))
    assert other.approved_calls == allowed.approved_calls
    assert (
        fold_conversation(other, ev.ToolExecutionStart(name="t", call_id="x", args={"a": 2, "b": 1})).approved_calls
        == ()
    )
    assert after(ev.ApprovalResolved(status="rejected", gate=gate)).approved_calls == ()
    assert call_key("t", object()).startswith("t <object")


def test_a_history_comes_back_as_it_was() -> None:
    messages = (
        Message("user", (Text("look"), Picture(PICTURE)), "u"),
        Message("assistant", (Thinking("hm", "s"), Call("a", "t", {"x": 1})), "v"),
        Message("tool", (Result("a", "t", "no", False, (PICTURE,)),), "w"),
    )
    restored = after(ev.TurnRestored(finished=True, history=history_of(messages)))
    assert restored.messages == messages
    assert fold_conversation(restored, ev.TurnRestored(history=history_of(messages))) == restored
    strange = ev.HistoryMessage(message_id="x", role="bash", blocks=(Block(text="ls"),))
    empty = ev.HistoryMessage(message_id="y", role="user")
    assert after(ev.TurnRestored(history=(strange, empty))).messages == ()


def test_only_the_events_of_its_own_agent_count() -> None:
    child = ev.PromptReceived(text="child", agent_path=("c",))
    assert conversation_of([child]).messages == ()
    assert conversation_of([child], ("c",)).messages[0].text == "child"
