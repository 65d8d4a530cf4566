"""Test ACP forms (elicitation). No recorded agent uses them, so the cases come from the protocol's text."""

from __future__ import annotations

from quarterdeck import events as ev
from tests.support.acp_session import AcpTalk


def test_a_form_is_a_question() -> None:
    talk = AcpTalk().prompted()
    for key, reply in enumerate([{"action": "accept", "content": {"a": "b"}}, {"action": "decline"}]):
        talk.wants("elicitation/create", {"sessionId": "s1", "message": "Which?"}, key)
        assert talk.phase == "waiting_input"
        talk.reply(key, reply)
        assert talk.phase == "streaming"
    assert [body.status for body in talk.events_of(ev.UserResponded)] == ["answered", "withdrawn"]


def test_a_form_shows_its_fields_with_what_may_be_chosen() -> None:
    talk = AcpTalk().prompted()
    colours = [{"const": "r", "title": "Red"}, {"const": "b"}]
    fields = {
        "colour": {"type": "string", "description": "Which colour?", "oneOf": colours},
        "sizes": {"type": "array", "items": {"enum": ["S", "M"]}},
        "sure": {"type": "boolean", "title": "Sure?"},
        "name": {"type": "string"},
    }
    params = {"sessionId": "s1", "mode": "form", "message": "Order", "requestedSchema": {"properties": fields}}
    talk.wants("elicitation/create", params, 0)
    (asked,) = talk.events_of(ev.AskUser)
    shown = [(item.text, [option.label for option in item.options], item.multiple) for item in asked.questions]
    assert shown == [
        ("Which colour?", ["Red", "b"], False),
        ("sizes", ["S", "M"], True),
        ("Sure?", ["true", "false"], False),
        ("name", [], False),
    ]
    assert (asked.question, asked.options, asked.questions[0].header) == ("Order", (), "colour")


def test_a_form_of_one_field_is_one_question_and_a_page_shows_where_it_is() -> None:
    talk = AcpTalk().prompted()
    schema = {"properties": {"colour": {"type": "string", "enum": ["red", "blue"]}}}
    talk.wants("elicitation/create", {"sessionId": "s1", "message": "Which?", "requestedSchema": schema}, 0)
    talk.reply(0, {"action": "accept", "content": {"colour": "red"}})
    page = {"sessionId": "s1", "mode": "url", "message": "Log in", "url": "https://x.example/", "elicitationId": "e"}
    talk.wants("elicitation/create", page, 1)
    first, second = talk.events_of(ev.AskUser)
    assert ([option.id for option in first.options], first.questions) == (["red", "blue"], ())
    assert (second.question, second.options) == ("Log in\nhttps://x.example/", ())


def test_a_form_outside_of_every_session_is_asked_and_its_answer_ends_it() -> None:
    talk = AcpTalk().opened()
    talk.wants("elicitation/create", {"requestId": 7, "message": "Who are you?"}, 0)
    assert (talk.phase, talk.activity) == ("waiting_input", "active/waiting_for_permission")
    talk.reply(0, {"action": "cancel"})
    assert (talk.phase, talk.activity, talk.events_of(ev.UserResponded)[0].status) == ("completed", "idle", "withdrawn")


def test_a_form_of_a_call_is_over_with_the_call() -> None:
    talk = AcpTalk().prompted()
    talk.calls("c1", "in_progress")
    talk.wants("elicitation/create", {"sessionId": "s1", "message": "Which?", "toolCallId": "c1"}, 0)
    assert (talk.phase, talk.state.run.value) == ("waiting_input", "executing_tools")
    talk.call_is("completed", "c1")
    assert (talk.phase, len(talk.state.gates.open), talk.events_of(ev.ApprovalResolved)) == ("streaming", 0, [])
    assert [event.status for event in talk.events_of(ev.UserResponded)] == ["answered_elsewhere"]


def test_a_cancelled_call_takes_its_form_with_it() -> None:
    talk = AcpTalk().prompted()
    talk.calls("c1", "in_progress")
    talk.wants("elicitation/create", {"sessionId": "s1", "message": "Which?", "toolCallId": "c1"}, 0)
    talk.cancel()
    talk.call_is("failed", "c1")
    assert ([event.status for event in talk.events_of(ev.UserResponded)], talk.events_of(ev.ApprovalResolved)) == (
        ["withdrawn"],
        [],
    )
    talk.ends("cancelled")
    assert talk.phase == "stopped"


def test_what_the_agent_asked_it_may_withdraw() -> None:
    talk = AcpTalk().prompted()
    talk.wants("elicitation/create", {"sessionId": "s1", "message": "Which?"}, 0)
    talk.wants("$/cancel_request", {"requestId": 0}, None)
    assert (talk.phase, talk.events_of(ev.UserResponded)[0].status) == ("streaming", "withdrawn")
    talk.calls()
    talk.asks(1)
    talk.wants("$/cancel_request", {"requestId": 1}, None)
    talk.wants("$/cancel_request", {"requestId": 1}, None)
    assert (talk.phase, talk.events_of(ev.ApprovalResolved)[0].status) == ("streaming", "withdrawn")
    talk.choose(1, "yes")
    assert talk.tools() == [("bash", "calling")]


def test_a_cancelled_turn_takes_its_form_with_it() -> None:
    talk = AcpTalk().prompted()
    talk.wants("elicitation/create", {"sessionId": "s1", "message": "Which?"}, 0)
    talk.cancel()
    assert talk.phase == "waiting_input"
    talk.ends("cancelled")
    assert (talk.phase, talk.state.gates.open, talk.events_of(ev.UserResponded)[0].status) == (
        "stopped",
        (),
        "withdrawn",
    )


def test_a_page_that_a_person_filled_in_elsewhere_closes_it() -> None:
    talk = AcpTalk().prompted()
    talk.wants("elicitation/create", {"sessionId": "s1", "message": "Log in", "elicitationId": "e1"}, 0)
    talk.wants("elicitation/complete", {"elicitationId": "e1"}, None)
    assert (talk.phase, talk.events_of(ev.UserResponded)[0].status) == ("streaming", "answered_elsewhere")
