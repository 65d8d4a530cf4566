"""Test that the engine's events are checked and passed on, except those that only a deck can report."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from quarterdeck import events as ev
from quarterdeck.events import Body
from quarterdeck.harness.base import Signal
from quarterdeck.harness.builtin.capabilities import CAPABILITIES
from quarterdeck.harness.builtin.translate import RESERVED_EVENTS, BuiltinTranslator

READY = ev.AgentReady(native_session_id="n1", model="m", version="1")
START = ev.AgentStart(turn_id="t1")
TURN = (ev.PromptReceived(text="go", message_id="p1", turn_id="t1"), START)


def said(*bodies: Body, translator: BuiltinTranslator | None = None) -> list[Body]:
    """Feed each event as a line of its own and return the translated events."""
    one = translator or BuiltinTranslator()
    found = [body for told in bodies for body in one.feed(Signal("stdout", to_builtins(told)), 0.0)]
    assert one.unknown == 0
    return found


def test_events_pass_as_they_are() -> None:
    words = (ev.MessageStart(message_id="m"), ev.MessageDelta(message_id="m", delta="hi"), ev.AgentEnd(turn_id="t1"))
    assert said(*TURN, *words) == [*TURN, *words]


def test_a_batch_is_one_line_and_one_answer() -> None:
    translator = BuiltinTranslator()
    line = {"events": [to_builtins(one) for one in TURN]}
    assert translator.feed(Signal("stdout", line), 0.0) == list(TURN)
    assert translator.unknown == 0


def test_ready_says_what_it_can_do() -> None:
    (ready,) = said(READY)
    assert isinstance(ready, ev.AgentReady)
    assert (ready.native_session_id, ready.capabilities, ready.resumable) == ("n1", CAPABILITIES.names, True)


@pytest.mark.parametrize("kind", RESERVED_EVENTS, ids=lambda kind: kind.__name__)
def test_what_only_a_deck_can_know_is_not_taken_from_it(kind: type[Body]) -> None:
    translator = BuiltinTranslator()
    name = str(kind.__struct_config__.tag)
    needed: dict[str, Any] = {"agent": "x", "text": "x", "message_id": "m", "status": "failed", "signal": "lost"}
    needed |= {"epoch": 1, "client_id": "c", "to": 1, "call_id": "c", "child_sid": "s", "event": {}}
    fields = {field: needed[field] for field in kind.__struct_fields__ if field in needed}
    assert translator.feed(Signal("stdout", {"type": name, **fields}), 0.0) == []
    assert translator.unknown == 1


@pytest.mark.parametrize(
    "line", [{}, {"type": "of_a_newer_release"}, {"type": "agent_end", "more": 1}, {"events": []}, [], 7]
)
def test_what_nobody_knows_is_counted(line: Any) -> None:
    translator = BuiltinTranslator()
    assert translator.feed(Signal("stdout", line), 0.0) == []
    assert translator.unknown == 1


def test_of_a_batch_the_good_part_counts() -> None:
    translator = BuiltinTranslator()
    assert translator.feed(Signal("stdout", {"events": [to_builtins(START), {"type": "what"}]}), 0.0) == [START]
    assert translator.unknown == 1


@pytest.mark.parametrize(
    "signal", [Signal("stdout", "prose"), Signal("stdout", {"keep": 3}), Signal("stderr", "words")]
)
def test_what_means_nothing_is_known_for_it(signal: Signal) -> None:
    translator = BuiltinTranslator()
    assert translator.feed(signal, 0.0) == []
    assert translator.unknown == 0


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "events", "gate", "keep"]), inner)
    ),
    max_leaves=12,
)


@given(st.lists(_json, max_size=6))
def test_nothing_makes_it_raise(lines: list[Any]) -> None:
    translator = BuiltinTranslator()
    for line in lines:
        translator.feed(Signal("stdout", line), 0.0)
    translator.end(1.0)


# --- gates, and events that the deck writes itself


def test_a_gate_has_the_engines_ref_and_no_name() -> None:
    gate = ev.GateRequest(gate_id="g1", ref="a1", tool="shell")
    required, resolved, question = said(
        ev.ApprovalRequired(gate=gate),
        ev.ApprovalResolved(status="approved", gate_id="g1", ref="a1", gate=gate),
        ev.AskUser(question="which", gate_id="g2", ref="q1"),
    )
    assert isinstance(required, ev.ApprovalRequired)
    assert (required.gate.gate_id, required.gate.ref) == ("", "a1")
    assert isinstance(resolved, ev.ApprovalResolved)
    assert (resolved.gate_id, resolved.ref, resolved.gate) == ("", "a1", None)
    assert isinstance(question, ev.AskUser)
    assert (question.gate_id, question.ref) == ("", "q1")


def test_steering_is_news_only_if_it_is_refused() -> None:
    def received(status: Any) -> Body:
        return ev.SteeringReceived(ref="s1", text="and", status=status)

    assert said(received("queued")) == []
    assert said(received("prompted")) == []
    for status in ("rejected", "rejected_full"):
        (told,) = said(received(status))
        assert isinstance(told, ev.DeliveryChanged)
        assert (told.message_id, told.status) == ("s1", "failed")


# --- turns


def test_a_turn_in_a_turn_and_an_end_without_one_are_not_passed_on() -> None:
    again = ev.AgentStart(turn_id="t2")
    assert said(START, again, ev.AgentAbort(turn_id="t1"), ev.AgentAbort(), ev.AgentEnd()) == [
        START,
        ev.AgentAbort(turn_id="t1"),
    ]


def test_the_end_of_the_process_closes_what_is_open() -> None:
    translator = BuiltinTranslator()
    said(
        READY,
        *TURN,
        ev.MessageStart(message_id="m"),
        ev.MessageDelta(message_id="m", delta="as far"),
        translator=translator,
    )
    cut, exited, closed = translator.feed(Signal("proc", {"event": "exit", "code": -9}), 1.0)
    assert isinstance(cut, ev.MessageAborted)
    assert (cut.keep, cut.blocks[0].text) == (True, "as far")
    assert isinstance(exited, ev.ProcessExited)
    assert isinstance(closed, ev.AgentAbort)
    assert closed.turn_id == "t1"


def test_an_end_that_was_asked_for_is_none_of_its_doing() -> None:
    translator = BuiltinTranslator()
    said(READY, translator=translator)
    (exited,) = translator.feed(Signal("proc", {"event": "exit", "code": 0}), 1.0)
    assert isinstance(exited, ev.ProcessExited)
    assert exited.asked
