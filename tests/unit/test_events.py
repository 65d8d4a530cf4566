"""Check that every event of seed 001 and the design exists, with its name and fields."""

from __future__ import annotations

import re
from collections import Counter
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from quarterdeck import events as ev
from quarterdeck.events import (
    BY_NAME,
    DELTAS,
    GROUPS,
    NAMES,
    TYPES,
    Body,
    Event,
    Origin,
    TokenUsage,
    Unknown,
    Value,
    decode_body,
    decode_event,
    encode_body,
    encode_event,
    event_name,
    type_of,
)
from tests.support.event_bodies import body_of

ENVELOPE = ("session_id", "index", "cursor", "at", "origin", "type")

#: The events of seed 001, each with the fields of its tuple or map. Session ids are in the envelope.
SEED_001 = {
    "agent_start": "",
    "agent_end": "messages usage",
    "agent_abort": "reason",
    "agent_resumed": "trigger",
    "prompt_received": "text",
    "prompt_queued": "text",
    "prompt_dropped": "text",
    "prompt_rejected": "reason",
    "message_start": "",
    "message_delta": "delta",
    "response_complete": "blocks",
    "thinking_start": "",
    "thinking_delta": "delta",
    "status_update": "text",
    "title_generated": "title",
    "request_start": "model messages",
    "stream_error": "reason",
    "stream_stalled": "elapsed_s",
    "retry": "attempt delay_ms reason",
    "context_overflow": "reason",
    "tool_calls": "count",
    "tool_execution_start": "name call_id args",
    "tool_execution_end": "name call_id ok result",
    "tool_execution_metrics": "name call_id started_at_ms ended_at_ms duration_ms",
    "tool_blocked": "name call_id reason",
    "tool_killed": "name call_id reason",
    "tool_skipped_for_steering": "name call_id reason",
    "tool_attached": "name",
    "tool_detached": "name",
    "tools_updated": "attached detached",
    "tool_call_unknown": "name call_id",
    # Seed 001 calls the field `type`, which the envelope already uses.
    "loop_detected": "loop detail",
    "approval_required": "gate",
    "approval_resolved": "gate status",
    "tool_approved_always": "tool command_family",
    "ask_user": "question options ref",
    "user_responded": "ref response",
    "steering_received": "ref text queued_at status",
    "steering_applied": "refs count",
    "compact_start": "",
    "compact_end": "removed_count",
    "before_compact": "messages",
    "subagent_start": "child_sid description",
    "subagent_end": "child_sid result",
    "sub_agent_event": "call_id child_sid event",
    "model_switched": "from to provider_opts_changed",
    "todo_change": "todos",
    "plan_generated": "plan",
    "memory_flushed": "facts count",
    "large_result_offloaded": "tool call_id path bytes",
    "content_policy_violated": "summary triggered_policies",
    "plugin_event": "name payload",
    "intervention": "prompt",
}

#: The events that the design's table adds, with their fields.
DESIGN = {
    "session_opened": "agent cwd prompt",
    "session_resumed": "",
    "session_suspended": "",
    "session_archived": "end_reason",
    "session_failed": "",
    "session_renamed": "",
    "session_deleted": "",
    "owner_changed": "epoch",
    "process_starting": "",
    "process_error": "message",
    "process_exited": "code signal asked",
    "agent_ready": "native_session_id model",
    "agent_ended": "reason",
    "state_change": "state sub",
    "prompt_received": "source",
    "agent_end": "outcome usage",
    "turn_continued": "",
    "turn_retried": "",
    "turn_restored": "finished",
    "message_start": "message_id block",
    "message_delta": "message_id block",
    "thinking_start": "message_id block",
    "thinking_delta": "message_id block",
    "response_complete": "message_id blocks",
    "message_aborted": "message_id keep",
    "tool_call": "name call_id args",
    "tool_execution_output": "call_id",
    "approval_resolved": "status by rule",
    "dialog_required": "",
    "dialog_resolved": "",
    "turn_failed": "kind message resets_at",
    "command_failed": "command_id message",
    "bash_start": "",
    "bash_output": "",
    "bash_end": "exit_code",
    "notice": "level text",
    "background_started": "kind id title",
    "background_ended": "kind id title",
    "signal_changed": "",
    "context_usage": "",
    "setting_changed": "auto_approve mode thinking model",
    "usage": "",
    "checkpoint_saved": "",
    "command_receipt": "client_id",
    "view_refolded": "from to changed",
}

#: The values that the documents list for a field, in the same order.
CHOICES = {
    ("agent_end", "outcome"): "completed failed",
    ("agent_resumed", "trigger"): "tool_approved tool_rejected tool_approval_timeout user_respond steering",
    ("approval_resolved", "status"): "approved rejected timeout answered_elsewhere withdrawn stale superseded",
    ("loop_detected", "loop"): "repeat_pattern file_loop_warn file_loop_abort",
    ("notice", "level"): "info warning error",
    ("prompt_received", "source"): "user agent",
    ("signal_changed", "signal"): "live stale lost",
    ("state_change", "state"): "initialized idle active exited",
    ("steering_received", "status"): "queued prompted rejected_full rejected",
    ("turn_failed", "kind"): "api usage_limit rate_limit auth payment invalid_model network turn_limit internal",
}

by_type = pytest.mark.parametrize("kind", TYPES, ids=lambda kind: NAMES[kind])


def struct_of(kind: type[msgspec.Struct]) -> inspect.StructType:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return info


def json_names(kind: type[msgspec.Struct]) -> set[str]:
    return {one.encode_name for one in struct_of(kind).fields}


def choices(name: str, field: str) -> set[str]:
    of_field = next(one.type for one in struct_of(BY_NAME[name]).fields if one.encode_name == field)
    assert isinstance(of_field, inspect.LiteralType)
    return {str(value) for value in of_field.values}


class TestTheCatalogue:
    @pytest.mark.parametrize("name", SEED_001)
    def test_every_event_of_seed_001_is_there_with_its_fields(self, name: str) -> None:
        assert set(SEED_001[name].split()) <= json_names(BY_NAME[name])

    @pytest.mark.parametrize("name", DESIGN)
    def test_every_event_that_the_design_adds_is_there_with_its_fields(self, name: str) -> None:
        assert set(DESIGN[name].split()) <= json_names(BY_NAME[name])

    @pytest.mark.parametrize(("name", "field"), CHOICES)
    def test_a_field_takes_the_values_that_the_documents_list(self, name: str, field: str) -> None:
        assert choices(name, field) == set(CHOICES[name, field].split())

    def test_what_no_document_names_was_added_on_purpose(self) -> None:
        added = {
            "session_marked",
            "prompt_edited",
            "delivery_changed",
            "changes_updated",
            "plugin_state",
            "rule_removed",
        }
        assert BY_NAME.keys() - SEED_001.keys() - DESIGN.keys() == added

    def test_an_event_belongs_to_exactly_one_group(self) -> None:
        assert set(Counter(kind for group in GROUPS.values() for kind in group).values()) == {1}

    def test_every_body_that_is_defined_is_listed(self) -> None:
        assert set(Body.__subclasses__()) == {*TYPES, Unknown}

    def test_names_and_types_are_two_ways_of_saying_the_same(self) -> None:
        assert {name: NAMES[kind] for name, kind in BY_NAME.items()} == {name: name for name in BY_NAME}
        assert len(BY_NAME) == len(TYPES)

    def test_whoever_imports_the_vocabulary_finds_all_of_it(self) -> None:
        assert {kind.__name__ for kind in TYPES} <= set(ev.__all__)
        assert {kind.__name__ for kind in Value.__subclasses__()} <= set(ev.__all__)
        assert all(hasattr(ev, name) for name in ev.__all__)

    def test_what_may_be_dropped_is_what_something_else_restates(self) -> None:
        assert {NAMES[kind] for kind in DELTAS} == {
            "message_delta",
            "thinking_delta",
            "tool_execution_output",
            "bash_output",
        }


class TestOneType:
    @by_type
    def test_its_name_is_its_class_in_snake_case(self, kind: type[Body]) -> None:
        name = NAMES[kind]
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name)
        assert "".join(word.capitalize() for word in name.split("_")) == kind.__name__

    @by_type
    def test_it_has_the_fields_of_every_event_and_none_of_the_envelope(self, kind: type[Body]) -> None:
        assert {"turn_id", "agent_path"} <= json_names(kind)
        assert not json_names(kind) & set(ENVELOPE)

    @by_type
    def test_it_cannot_be_changed(self, kind: type[Body]) -> None:
        assert kind.__struct_config__.frozen
        assert kind.__struct_config__.forbid_unknown_fields

    @by_type
    def test_it_says_what_it_is(self, kind: type[Body]) -> None:
        assert kind.__doc__
        assert kind.__doc__.endswith(".")

    @by_type
    @settings(max_examples=12)
    @given(data=st.data())
    def test_it_comes_back_from_its_bytes_as_it_was(self, kind: type[Body], data: st.DataObject) -> None:
        body = data.draw(body_of(kind))
        stored = encode_body(body)
        assert decode_body(stored) == (body, None)
        assert type(decode_body(stored)[0]) is kind
        assert encode_body(decode_body(stored)[0]) == stored
        assert msgspec.json.decode(stored)["type"] == NAMES[kind] == type_of(body)

    @by_type
    @settings(max_examples=4)
    @given(data=st.data())
    def test_it_comes_back_from_an_event(self, kind: type[Body], data: st.DataObject) -> None:
        event = Event("s1", 7, 1_700_000_000_000, "stream", data.draw(body_of(kind)), "c9")
        assert decode_event(encode_event(event)) == event


class TestTheEnvelope:
    EVENT = Event("s1", 3, 1_700_000_000_000, "rpc", ev.ToolExecutionEnd(name="shell", call_id="c1", result=[1]), "9.3")

    def test_the_flat_form_is_the_envelope_first_and_then_the_bodys_own_fields(self) -> None:
        assert encode_event(self.EVENT) == (
            b'{"session_id":"s1","index":3,"cursor":"9.3","at":1700000000000,"origin":"rpc",'
            b'"type":"tool_execution_end","name":"shell","call_id":"c1","result":[1]}'
        )

    @by_type
    @settings(max_examples=2)
    @given(data=st.data())
    def test_every_type_has_that_form(self, kind: type[Body], data: st.DataObject) -> None:
        body = data.draw(body_of(kind))
        flat = msgspec.json.decode(encode_event(Event("s1", 3, 5, "file", body, "x")))
        assert tuple(flat)[:6] == ENVELOPE
        envelope = {"session_id": "s1", "index": 3, "cursor": "x", "at": 5, "origin": "file"}
        assert flat == envelope | msgspec.json.decode(encode_body(body))

    def test_an_event_knows_its_type(self) -> None:
        assert self.EVENT.type == "tool_execution_end"
        assert Event("s1", 1, 1, "user", Unknown(name="from_the_future")).type == "from_the_future"

    @pytest.mark.parametrize("origin", get_args(Origin))
    def test_every_origin_is_taken(self, origin: Origin) -> None:
        event = Event("s1", 1, 1, origin, ev.AgentStart())
        assert decode_event(encode_event(event)).origin == origin

    def test_the_origins_are_those_of_the_design(self) -> None:
        assert " ".join(get_args(Origin)) == "engine hook stream otlp rpc process file user supervisor"


class TestTheContractsExamples:
    """The contract contains these four events in full."""

    def test_tool_execution_start(self) -> None:
        body = ev.ToolExecutionStart(name="shell", call_id="c1", args={"command": "ls"})
        assert encode_body(body) == (
            b'{"type":"tool_execution_start","name":"shell","call_id":"c1","args":{"command":"ls"}}'
        )

    def test_tool_execution_end(self) -> None:
        body = ev.ToolExecutionEnd(name="shell", call_id="c1", ok=False, result="no")
        assert encode_body(body) == (
            b'{"type":"tool_execution_end","name":"shell","call_id":"c1","ok":false,"result":"no"}'
        )

    def test_retry(self) -> None:
        body = ev.Retry(attempt=2, delay_ms=500, reason="429")
        assert encode_body(body) == b'{"type":"retry","attempt":2,"delay_ms":500,"reason":"429"}'

    def test_compact_end(self) -> None:
        assert encode_body(ev.CompactEnd(removed_count=4)) == b'{"type":"compact_end","removed_count":4}'

    def test_a_field_that_is_a_word_of_python_has_its_plain_name_in_json(self) -> None:
        assert encode_body(ev.ModelSwitched(from_="a", to="b")) == b'{"type":"model_switched","to":"b","from":"a"}'
        assert encode_body(ev.ViewRefolded(from_=1, to=2)) == b'{"type":"view_refolded","to":2,"from":1}'

    def test_fields_that_say_nothing_are_left_out(self) -> None:
        assert encode_body(ev.AgentStart()) == b'{"type":"agent_start"}'


@pytest.mark.parametrize(
    ("class_name", "name"),
    [("ToolExecutionStart", "tool_execution_start"), ("Notice", "notice"), ("SubAgentEvent", "sub_agent_event")],
)
def test_a_class_name_becomes_the_name_in_the_log(class_name: str, name: str) -> None:
    assert event_name(class_name) == name


def test_the_four_buckets_of_tokens_add_up() -> None:
    assert TokenUsage(input=1, output=20, cache_read=300, cache_write=4000).total_tokens == 4321
