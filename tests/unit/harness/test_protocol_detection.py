"""Test programs that speak more than one protocol: the first object shows which one."""

from __future__ import annotations

from typing import Any

import pytest

from quarterdeck import events as ev
from quarterdeck.harness.base import Signal
from quarterdeck.harness.protocol_detection import acp_or_sayask
from tests.support.acp_session import AcpTalk
from tests.support.claude_stream import StreamTalk

TASK = {"type": "task_started", "taskId": "7"}


@pytest.mark.parametrize(
    ("src", "data", "choice"),
    [
        ("stdout", {"jsonrpc": "2.0", "id": 1, "result": {}}, "acp"),
        ("stdin", {"jsonrpc": "2.0", "id": 1, "method": "initialize"}, "acp"),
        ("stdout", TASK, "sayask"),
        ("stdout.state", {"ts": 1, "type": "say", "say": "text", "text": "x"}, "sayask"),
        ("stdout", {"raw": "Welcome"}, None),
        ("stdout", "Welcome", None),
        ("stderr", {"jsonrpc": "2.0"}, None),
        ("proc", {"event": "start"}, None),
    ],
)
def test_choice(src: str, data: Any, choice: str | None) -> None:
    assert acp_or_sayask(Signal(src, data)) == choice


def test_what_came_before_the_choice_is_known_to_the_chosen_one() -> None:
    talk = StreamTalk("cline").proc("start").out({"raw": "Welcome"}, TASK)
    assert talk.state.profile.native_session_id == "7"
    assert [type(body) for body in talk.bodies[1:]] == [ev.ProcessStarting, ev.Notice, ev.AgentReady]
    talk.proc("exit", code=3)
    assert (talk.phase, talk.unknown) == ("error", 0)


def test_the_other_one_is_chosen_too() -> None:
    talk = StreamTalk("cline").proc("start").send({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}})
    talk.out({"jsonrpc": "2.0", "id": 1, "result": {"agentInfo": {"name": "cline"}}})
    assert len(talk.events_of(ev.ProcessStarting)) == 1
    assert talk.unknown == 0


def test_deadlines_end_and_restore_reach_the_chosen_one() -> None:
    talk = StreamTalk("cline").out(TASK, {"ts": 5, "type": "say", "say": "task", "text": "go"})
    assert talk.phase == "idle"
    talk.after(1)
    assert talk.phase == "streaming"
    talk.restarted().out({"ts": 9, "type": "say", "say": "completion_result", "text": "done"})
    assert talk.phase == "completed"
    talk.over()
    assert talk.state.signal.value == "lost"


def test_the_other_one_knows_what_was_restored() -> None:
    talk = AcpTalk("cline").prompted()
    talk.restarted().says("Hello")
    talk.answer(None, {"stopReason": "end_turn"})
    assert talk.words("assistant") == ["Hello"]
    assert len(talk.events_of(ev.AgentStart)) == 1
    assert (talk.phase, talk.unknown) == ("completed", 0)
