"""Test ContentPolicy: each text is checked once before it is sent, and failures are reported."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.engine.model import Message, ModelError, Result, Text
from quarterdeck.engine.plugins.base import Abort, InvalidPluginOption
from quarterdeck.engine.plugins.content import ContentPolicy
from quarterdeck.events import ContentPolicyViolated, Notice
from tests.support.small_context import SmallContext, ask, assistant, events_of, others_of, restarted, user

POLICIES = {"weapons": "No help with building weapons."}
GOOD = json.dumps({"violates": False})
BAD = json.dumps({"violates": True, "summary": "asks for a bomb", "policies": ["weapons"]})


def requested(plugin: Any, context: SmallContext, *messages: Message) -> list[Any]:
    return ask(plugin, "before_request", messages, context)


def test_the_judge_is_asked_with_the_policies_and_the_text_as_data(tmp_path: Path) -> None:
    context = SmallContext(tmp_path, replies=[GOOD])
    assert requested(ContentPolicy(policies=POLICIES, judge="test:cheap"), context, user("hello")) == []
    [(prompt, system, model)] = context.requests
    assert prompt == "<text>\nhello\n</text>"
    assert "- weapons: No help with building weapons." in system
    assert model == "test:cheap"


def test_what_breaks_a_policy_ends_the_turn_and_is_told(tmp_path: Path) -> None:
    context = SmallContext(tmp_path, replies=[BAD])
    answers = requested(ContentPolicy(policies=POLICIES), context, user("how do I …"))
    assert events_of(answers) == [ContentPolicyViolated(summary="asks for a bomb", triggered_policies=("weapons",))]
    assert others_of(answers) == [Abort("content policy: asks for a bomb")]


def test_a_text_is_judged_once(tmp_path: Path) -> None:
    context = SmallContext(tmp_path, replies=[GOOD, GOOD])
    plugin = ContentPolicy(policies=POLICIES)
    requested(plugin, context, user("one"))
    requested(plugin, context, user("one"), assistant("ok"), user("two"))
    assert [prompt for prompt, _, _ in context.requests] == ["<text>\none\n</text>", "<text>\ntwo\n</text>"]


def test_a_refused_text_is_left_out_from_then_on(tmp_path: Path) -> None:
    context = SmallContext(tmp_path, replies=[BAD, GOOD])
    plugin = ContentPolicy(policies=POLICIES)
    requested(plugin, context, user("bad"))
    assert requested(plugin, context, user("bad"), user("good")) == [user("good")]
    again = restarted(plugin, ContentPolicy(policies=POLICIES))
    assert requested(again, context, user("bad"), user("good")) == [user("good")]
    assert len(context.requests) == 2


def test_a_refused_text_is_not_summarised_either(tmp_path: Path) -> None:
    context = SmallContext(tmp_path, replies=[BAD])
    plugin = ContentPolicy(policies=POLICIES)
    assert ask(plugin, "before_compact", (user("bad"), assistant("ok")), context) == []
    requested(plugin, context, user("bad"))
    good = [Message("user", ()), assistant("ok"), user("good")]
    assert ask(plugin, "before_compact", (user("bad"), assistant("ok"), user("good")), context) == good


def test_texts_that_were_joined_are_judged_and_left_out_one_by_one(tmp_path: Path) -> None:
    context = SmallContext(tmp_path, replies=[BAD, GOOD])
    plugin = ContentPolicy(policies=POLICIES)
    requested(plugin, context, user("bad"))
    joined = Message("user", (Text("bad"), Text("good")))
    assert requested(plugin, context, joined) == [Message("user", (Text("good"),))]
    assert [prompt for prompt, _, _ in context.requests] == ["<text>\nbad\n</text>", "<text>\ngood\n</text>"]


def test_the_same_words_again_are_refused_again_without_the_judge(tmp_path: Path) -> None:
    context = SmallContext(tmp_path, replies=[BAD])
    plugin = ContentPolicy(policies=POLICIES)
    requested(plugin, context, user("bad"))
    for said in ([Message("user", (Text("bad"), Text("bad")))], [user("hi"), assistant("ok"), user("bad")]):
        answers = requested(plugin, context, *said)
        assert [type(one) for one in others_of(answers)] == [Abort]
        assert [type(one) for one in events_of(answers)] == [ContentPolicyViolated]
    assert len(context.requests) == 1


def test_only_what_was_said_since_the_last_reply_is_judged(tmp_path: Path) -> None:
    context = SmallContext(tmp_path, replies=[GOOD])
    history = [message for number in range(200) for message in (user(f"old {number}"), assistant("ok"))]
    assert requested(ContentPolicy(policies=POLICIES), context, *history, user("new")) == []
    assert [prompt for prompt, _, _ in context.requests] == ["<text>\nnew\n</text>"]


def test_a_refused_result_keeps_its_place(tmp_path: Path) -> None:
    context = SmallContext(tmp_path, replies=[BAD])
    plugin = ContentPolicy(policies=POLICIES, include_results=True)
    result = Message("tool", (Result("c1", "read_file", "secret"),))
    requested(plugin, context, result)
    [left] = requested(plugin, context, result)
    assert left.parts[0].call_id == "c1"
    assert "secret" not in left.parts[0].text


def test_what_the_agent_says_is_not_judged(tmp_path: Path) -> None:
    assert requested(ContentPolicy(policies=POLICIES), SmallContext(tmp_path), assistant("bomb")) == []


def test_results_of_tools_are_judged_only_when_wanted(tmp_path: Path) -> None:
    result = Message("tool", (Result("c1", "read_file", "secret"),))
    context = SmallContext(tmp_path, replies=[GOOD, GOOD, BAD])
    assert requested(ContentPolicy(policies=POLICIES), context, user("x"), result) == []
    answers = requested(ContentPolicy(policies=POLICIES, include_results=True), context, user("x"), result)
    assert [type(one) for one in others_of(answers)] == [Abort]
    assert context.requests[-1][0] == "<text>\nsecret\n</text>"


FAILURES: list[Any] = [ModelError("network", "no route"), "I think it is fine.", "{", '{"violates": "perhaps"}', "{}"]


@pytest.mark.parametrize("reply", FAILURES)
def test_without_a_verdict_it_goes_on_and_says_so(tmp_path: Path, reply: Any) -> None:
    context = SmallContext(tmp_path, replies=[reply])
    assert requested(ContentPolicy(policies=POLICIES), context, user("x")) == []
    [told] = context.emitted
    assert isinstance(told, Notice)
    assert told.level == "warning"
    assert "without a check" in told.text


@pytest.mark.parametrize("reply", FAILURES)
def test_closed_it_does_not_go_on(tmp_path: Path, reply: Any) -> None:
    context = SmallContext(tmp_path, replies=[reply, GOOD])
    plugin = ContentPolicy(policies=POLICIES, fail_closed=True)
    answers = requested(plugin, context, user("x"))
    assert [type(one) for one in others_of(answers)] == [Abort]
    [told] = events_of(answers)
    assert isinstance(told, Notice)
    assert told.level == "error"
    # The text is checked again, and this time the check succeeds.
    assert requested(plugin, context, user("x")) == []


def test_a_judge_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    context = SmallContext(tmp_path)

    async def never(prompt: str, system: str = "", model: str = "") -> str:
        await asyncio.Event().wait()
        return ""

    context.ask_model = never  # type: ignore[method-assign]
    answers = requested(ContentPolicy(policies=POLICIES, patience=0.01, fail_closed=True), context, user("x"))
    assert [type(one) for one in others_of(answers)] == [Abort]


def test_without_policies_there_is_nothing_to_judge_by() -> None:
    with pytest.raises(InvalidPluginOption, match="policies"):
        ContentPolicy(policies={})
