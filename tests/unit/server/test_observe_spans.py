"""Test the spans of a list of events: names, parents, times, usage and errors."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from quarterdeck import events as ev
from quarterdeck.events import Block, Body, Event, TokenUsage
from quarterdeck.server.spans import Span, SpanAgent, SpanFold, attributes, provider

CLAUDE = SpanAgent("claude", "2.1", "claude-opus-4")


class Tape:
    """Folds events with rising indexes and times, and collects the finished spans."""

    def __init__(self, contents: bool = False, agent: SpanAgent = CLAUDE) -> None:
        self.spans = SpanFold(lambda _: agent, contents)
        self.index = 0
        self.whole: list[Span] = []

    def tell(self, *bodies: Body, session: str = "s1") -> list[Span]:
        done: list[Span] = []
        for body in bodies:
            self.index += 1
            done += self.spans.fold(Event(session, self.index, 1000 + self.index, "stream", body))
        self.whole += done
        return done

    def named(self, name: str) -> Span:
        return next(span for span in self.whole if span.name == name)


def start(call: str, name: str = "bash", **more: Any) -> ev.ToolExecutionStart:
    return ev.ToolExecutionStart(name=name, call_id=call, args={"command": "ls"}, **more)


def end(call: str, ok: bool = True, **more: Any) -> ev.ToolExecutionEnd:
    return ev.ToolExecutionEnd(name="bash", call_id=call, ok=ok, result="secret.txt", **more)


def test_a_turn_holds_its_requests_and_these_hold_their_tools() -> None:
    tape = Tape()
    assert tape.tell(ev.AgentStart(turn_id="t1"), ev.RequestStart(model="claude-opus-4")) == []
    assert tape.tell(ev.ResponseComplete(message_id="m1", stop_reason="tool_use")) == []
    (tool,) = tape.tell(start("c1"), end("c1"))
    (first,) = tape.tell(ev.RequestStart(model="claude-opus-4"))
    second, turn = tape.tell(ev.ResponseComplete(message_id="m2", stop_reason="end_turn"), ev.AgentEnd())
    assert [one.name for one in tape.whole] == [
        "execute_tool bash",
        "chat claude-opus-4",
        "chat claude-opus-4",
        "invoke_agent claude",
    ]
    assert (turn.parent, first.parent, second.parent, tool.parent) == ("", turn.id, turn.id, first.id)
    assert {one.trace for one in tape.whole} == {turn.trace}
    assert len({one.id for one in tape.whole}) == 4
    assert (len(turn.trace), len(turn.id)) == (32, 16)
    assert [(one.began, one.ended) for one in (turn, first, tool, second)] == [
        (1001, 1008),
        (1002, 1003),
        (1004, 1005),
        (1006, 1007),
    ]
    assert tape.spans.open == {}


def test_attributes_are_those_of_the_conventions() -> None:
    tape = Tape()
    tape.tell(ev.AgentStart(), ev.RequestStart(), ev.ResponseComplete(message_id="m1", stop_reason="tool_use"))
    used = TokenUsage(input=10, output=20, cache_read=300, cache_write=4, cost_usd=0.5)
    tape.tell(ev.Usage(tokens=TokenUsage(input=1), message_id="m1"))
    tape.tell(ev.Usage(tokens=used, message_id="m1", model="claude-opus-4-1"), start("c1"), end("c1"), ev.AgentEnd())
    common = {
        "gen_ai.provider.name": "anthropic",
        "gen_ai.conversation.id": "s1",
        "gen_ai.agent.name": "claude",
        "gen_ai.agent.version": "2.1",
    }
    spent = {
        "gen_ai.usage.input_tokens": 314,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 300,
        "gen_ai.usage.cache_creation.input_tokens": 4,
        "quarterdeck.cost_usd": 0.5,
    }
    tool, chat, turn = tape.whole
    assert attributes(tool) == common | {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "bash",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.type": "function",
    }
    assert attributes(chat) == common | spent | {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "claude-opus-4",
        "gen_ai.response.model": "claude-opus-4-1",
        "gen_ai.response.id": "m1",
        "gen_ai.response.finish_reasons": ["tool_use"],
    }
    assert attributes(turn) == common | spent | {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.request.model": "claude-opus-4",
        "quarterdeck.outcome": "completed",
    }


def test_the_usage_of_a_turn_is_the_sum_of_its_messages_unless_the_agent_says_it() -> None:
    tape = Tape()
    tape.tell(ev.AgentStart(), ev.Usage(tokens=TokenUsage(input=1), message_id="a"))
    tape.tell(ev.Usage(tokens=TokenUsage(input=2), message_id="b"), ev.Usage(tokens=TokenUsage(input=4)))
    (turn,) = tape.tell(ev.AgentEnd())
    assert attributes(turn)["gen_ai.usage.input_tokens"] == 7
    tape.tell(ev.AgentStart(), ev.Usage(tokens=TokenUsage(input=1), message_id="a"))
    (turn,) = tape.tell(ev.AgentEnd(usage=TokenUsage(input=9)))
    assert attributes(turn)["gen_ai.usage.input_tokens"] == 9


def test_usage_of_another_message_is_not_the_requests() -> None:
    tape = Tape()
    tape.tell(ev.AgentStart(), ev.RequestStart(), ev.ResponseComplete(message_id="m1"))
    tape.tell(ev.Usage(tokens=TokenUsage(input=5), message_id="m0"), ev.AgentEnd())
    assert tape.whole[0].usage == {}


class TestErrors:
    def test_a_turn_that_fails_says_how(self) -> None:
        tape = Tape()
        tape.tell(ev.AgentStart(), ev.RequestStart(), ev.TurnFailed(kind="rate_limit", message="secret"))
        chat, turn = tape.tell(ev.AgentEnd(outcome="failed"))
        assert (turn.error, chat.error) == ("rate_limit", "rate_limit")
        assert attributes(turn)["error.type"] == "rate_limit"
        assert attributes(turn)["quarterdeck.outcome"] == "failed"
        assert "secret" not in str(attributes(turn))

    def test_a_failure_without_a_kind_and_one_that_was_overcome(self) -> None:
        tape = Tape()
        (turn,) = tape.tell(ev.AgentStart(), ev.AgentEnd(outcome="failed"))
        assert turn.error == "failed"
        (turn,) = tape.tell(ev.AgentStart(), ev.TurnFailed(), ev.AgentEnd())
        assert turn.error == ""

    def test_what_a_person_ends_is_no_error_of_the_turn(self) -> None:
        tape = Tape()
        tape.tell(ev.AgentStart(), ev.RequestStart())
        chat, turn = tape.tell(ev.AgentAbort(reason="because of secret"))
        assert (turn.error, turn.extra["quarterdeck.outcome"], chat.error) == ("", "aborted", "aborted")
        assert "secret" not in str(attributes(turn))
        assert tape.tell(ev.AgentAbort(), ev.AgentEnd()) == []

    def test_a_broken_stream_is_an_error_unless_the_reply_comes_after_all(self) -> None:
        tape = Tape()
        tape.tell(ev.AgentStart(), ev.RequestStart(), ev.StreamError(reason="secret"))
        (chat,) = tape.tell(ev.RequestStart())
        assert chat.error == "stream_error"
        tape.tell(ev.StreamError(), ev.ResponseComplete(message_id="m"))
        (chat, _) = tape.tell(ev.AgentEnd())
        assert chat.error == ""

    @pytest.mark.parametrize(
        ("body", "error"), [(ev.ContextOverflow(), "context_overflow"), (ev.MessageAborted(message_id="m"), "aborted")]
    )
    def test_other_ends_of_a_request(self, body: Body, error: str) -> None:
        tape = Tape()
        tape.tell(ev.AgentStart(), ev.RequestStart(), body, ev.AgentEnd())
        assert tape.whole[0].error == error

    @pytest.mark.parametrize(
        ("body", "error"),
        [
            (end("c1", ok=False), "tool_error"),
            (ev.ToolKilled(name="bash", call_id="c1"), "killed"),
            (ev.ToolBlocked(name="bash", call_id="c1"), "blocked"),
            (ev.ToolSkippedForSteering(name="bash", call_id="c1"), "skipped"),
        ],
    )
    def test_how_a_tool_ends(self, body: Body, error: str) -> None:
        tape = Tape()
        (tool,) = tape.tell(ev.AgentStart(), start("c1"), body)
        assert tool.error == error

    @pytest.mark.parametrize(
        "body", [ev.ProcessExited(), ev.SessionSuspended(), ev.SessionArchived(), ev.SessionDeleted()]
    )
    def test_nothing_outlives_the_process(self, body: Body) -> None:
        tape = Tape()
        tape.tell(ev.AgentStart(), ev.RequestStart(), start("c1"))
        done = tape.tell(body)
        assert [(one.operation, one.error) for one in done] == [
            ("invoke_agent", "process_exited"),
            ("chat", "process_exited"),
            ("execute_tool", "process_exited"),
        ]
        assert tape.spans.open == {}


class TestSubAgents:
    def test_a_sub_agent_stands_below_the_call_that_started_it(self) -> None:
        tape = Tape()
        tape.tell(ev.AgentStart(), ev.RequestStart(), start("c1", "Task"))
        tape.tell(ev.SubagentStart(child_sid="kid", call_id="c1", description="secret plan"))
        inner, kid = tape.tell(
            start("c2", agent_path=("kid",)), end("c2", agent_path=("kid",)), ev.SubagentEnd(child_sid="kid")
        )
        tape.tell(end("c1"), ev.AgentEnd())
        task = tape.named("execute_tool Task")
        assert (inner.parent, kid.parent) == (kid.id, task.id)
        assert inner.trace == kid.trace == task.trace
        assert attributes(kid)["gen_ai.agent.id"] == "kid"
        assert attributes(inner)["quarterdeck.agent_path"] == ["kid"]
        assert "secret" not in str(attributes(kid))

    def test_deeper_ones_stand_below_their_own(self) -> None:
        tape = Tape()
        tape.tell(ev.AgentStart(), ev.SubagentStart(child_sid="a"), ev.SubagentStart(child_sid="b", agent_path=("a",)))
        tape.tell(start("c1", agent_path=("a", "b")), start("c2", agent_path=("a", "unknown")))
        done = tape.tell(ev.SubagentEnd(child_sid="a", ok=False))
        by_path = {one.path: one for one in done if one.operation == "invoke_agent"}
        assert by_path["a", "b"].parent == by_path["a",].id
        assert by_path["a",].error == "failed"
        assert [one.error for one in done if one.operation == "execute_tool"] == ["unfinished", "unfinished"]
        (turn,) = tape.tell(ev.AgentEnd())
        assert by_path["a",].parent == turn.id

    def test_one_in_the_background_outlives_the_turn(self) -> None:
        tape = Tape()
        tape.tell(ev.AgentStart(), ev.SubagentStart(child_sid="kid"))
        (turn,) = tape.tell(ev.AgentEnd())
        tape.tell(ev.AgentStart(), start("c1", agent_path=("kid",)), end("c1", agent_path=("kid",)))
        assert tape.tell(ev.BackgroundEnded(kind="shell", id="kid")) == []
        (kid,) = tape.tell(ev.BackgroundEnded(kind="subagent", id="kid"))
        assert (kid.parent, kid.trace, kid.ended) == (turn.id, turn.trace, 1000 + tape.index)
        assert tape.tell(ev.BackgroundEnded(kind="subagent", id="kid")) == []

    def test_a_turn_of_its_own_is_no_second_span(self) -> None:
        tape = Tape()
        path = ("kid",)
        tape.tell(ev.AgentStart(), ev.SubagentStart(child_sid="kid"), ev.AgentStart(agent_path=path))
        (kid,) = tape.tell(ev.AgentEnd(agent_path=path))
        assert tape.tell(ev.SubagentEnd(child_sid="kid")) == []
        assert kid.path == path

    def test_one_that_nobody_announced_stands_below_the_turn(self) -> None:
        tape = Tape()
        kid, turn = tape.tell(
            ev.AgentStart(), ev.AgentStart(agent_path=("kid",)), ev.AgentEnd(agent_path=("kid",)), ev.AgentEnd()
        )
        assert kid.parent == turn.id


def test_what_belongs_to_no_turn_is_no_span() -> None:
    tape = Tape()
    tape.tell(ev.RequestStart(), ev.ResponseComplete(message_id="m"), start("c1"), end("c1"), ev.AgentEnd())
    tape.tell(ev.Usage(tokens=TokenUsage()), ev.TurnFailed(), ev.ProcessExited(), ev.Notice(text="x"))
    assert tape.whole == []


def test_a_second_start_ends_the_turn_before() -> None:
    tape = Tape()
    tape.tell(ev.AgentStart(), ev.RequestStart(), start("c1"), start("c1"))
    done = tape.tell(ev.AgentStart())
    assert [(one.operation, one.error) for one in done] == [("invoke_agent", "unfinished"), ("chat", "unfinished")]
    (tool,) = tape.tell(end("c1"))
    assert tool.error == ""


def test_sessions_do_not_meet() -> None:
    tape = Tape()
    tape.tell(ev.AgentStart(), session="a")
    assert tape.tell(ev.AgentEnd(), session="b") == []
    (turn,) = tape.tell(ev.AgentEnd(), session="a")
    assert turn.session == "a"


class TestContents:
    TOLD = (
        ev.PromptReceived(text="say it"),
        ev.AgentStart(),
        ev.RequestStart(),
        ev.ResponseComplete(message_id="m", blocks=(Block(text="I will"),), stop_reason="tool_use"),
        start("c1"),
        end("c1"),
        ev.SubagentStart(child_sid="kid", description="look around"),
        ev.SubagentEnd(child_sid="kid"),
        ev.AgentEnd(),
    )

    def test_nothing_that_was_said_unless_asked(self) -> None:
        tape = Tape()
        tape.tell(*self.TOLD)
        text = str([attributes(one) for one in tape.whole])
        assert all(word not in text for word in ("say it", "I will", "ls", "secret.txt", "look around"))
        assert tape.spans.prompts == {}

    def test_everything_if_asked(self) -> None:
        tape = Tape(contents=True)
        tape.tell(*self.TOLD)
        turn, chat = attributes(tape.whole[-1]), attributes(tape.named("chat claude-opus-4"))
        tool = attributes(tape.named("execute_tool bash"))
        assert json.loads(turn["gen_ai.input.messages"]) == [
            {"role": "user", "parts": [{"type": "text", "content": "say it"}]}
        ]
        assert json.loads(chat["gen_ai.output.messages"]) == [
            {"role": "assistant", "parts": [{"type": "text", "content": "I will"}], "finish_reason": "tool_use"}
        ]
        assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"command": "ls"}
        assert tool["gen_ai.tool.call.result"] == "secret.txt"
        assert attributes(tape.whole[1])["gen_ai.agent.description"] == "look around"


def test_what_is_open_can_be_kept_and_taken_up_again_at_every_event() -> None:
    """Check that the spans are the same, wherever the fold was stored and restored."""
    told = TestContents.TOLD
    whole = Tape(contents=True)
    whole.tell(*told)
    for cut in range(len(told)):
        first = Tape(contents=True)
        first.tell(*told[:cut])
        kept = msgspec.json.encode((first.spans.open, first.spans.prompts))
        second = Tape(contents=True)
        opened, prompts = msgspec.json.decode(kept, type=tuple[dict[str, list[Span]], dict[str, str]])
        second.spans = SpanFold(lambda _: CLAUDE, True, opened, prompts)
        second.index = cut
        second.tell(*told[cut:])
        assert first.whole + second.whole == whole.whole


@pytest.mark.parametrize(
    ("model", "agent", "expected"),
    [
        ("claude-opus-4", "pi", "anthropic"),
        ("anthropic/claude-opus-4", "opencode", "anthropic"),
        ("gpt-5.2-codex", "codex", "openai"),
        ("", "codex", "openai"),
        ("gemini-3-pro", "gemini", "gcp.gemini"),
        ("", "gemini", "gcp.gemini"),
        ("something-new", "pi", "_OTHER"),
        ("", "", "_OTHER"),
    ],
)
def test_a_provider_is_named_only_if_it_is_known(model: str, agent: str, expected: str) -> None:
    assert provider(model, agent) == expected
