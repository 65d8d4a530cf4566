"""Test the codec: events of newer releases survive a round trip, and invalid data is refused with its position."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from quarterdeck import events as ev
from quarterdeck.errors import MalformedEvent
from quarterdeck.events import (
    NAMES,
    TYPES,
    Body,
    Event,
    Unknown,
    decode_body,
    decode_event,
    encode_body,
    encode_event,
    type_of,
)
from tests.support.event_bodies import any_body

Decode = Callable[[bytes | str], object]

DEEP = 100_000
#: A value for unknown fields: every kind of JSON value, nested.
ANYTHING = b'{"a":[1,-2.5e3,null,true,"\\u00e9\xc3\xa9",{"b":{}}],"a b":""}'


def sample(kind: inspect.Type) -> Any:
    """Create a JSON value of this type with every field set. Lists have one item, so every type occurs."""
    if isinstance(kind, inspect.StructType):
        fields = {one.encode_name: sample(one.type) for one in kind.fields}
        return ({"type": kind.tag} if kind.tag else {}) | fields
    if isinstance(kind, inspect.UnionType):
        return sample(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
    if isinstance(kind, inspect.VarTupleType):
        return [sample(kind.item_type)]
    if isinstance(kind, inspect.LiteralType):
        return kind.values[0]
    return {inspect.StrType: "x", inspect.IntType: 7, inspect.FloatType: 0.5, inspect.BoolType: True}.get(
        type(kind), {"any": ["thing"]}
    )


SAMPLES: dict[str, dict[str, Any]] = {name: sample(inspect.type_info(kind)) for kind, name in NAMES.items()}
by_name = pytest.mark.parametrize("name", SAMPLES)


def envelope(body: bytes) -> bytes:
    """Wrap a body in an event. The part before the body ends at byte 66."""
    return b'{"session_id":"s","index":1,"cursor":"c","at":5,"origin":"user",' + body.lstrip()[1:]


SHIFT = len(envelope(b"{")) - 1


def refusal(decode: Decode, data: bytes | str) -> MalformedEvent:
    with pytest.raises(MalformedEvent) as caught:
        decode(data)
    assert caught.value.where
    assert caught.value.what
    return caught.value


def objects_in(value: Any, kind: inspect.Type, path: str = "$") -> Iterator[tuple[str, dict[str, Any]]]:
    """Return every JSON object in a sample that is a struct of ours, with its path."""
    if isinstance(kind, inspect.UnionType):
        kind = next(one for one in kind.types if not isinstance(one, inspect.NoneType))
    if isinstance(kind, inspect.VarTupleType):
        for at, item in enumerate(value):
            yield from objects_in(item, kind.item_type, f"{path}[{at}]")
    if isinstance(kind, inspect.StructType):
        yield path, value
        for one in kind.fields:
            yield from objects_in(value[one.encode_name], one.type, f"{path}.{one.encode_name}")


class TestWhatANewerReleaseWrote:
    @given(name=st.text(), value=st.sampled_from([b"1", b'"x"', ANYTHING]))
    def test_an_unknown_type_keeps_its_bytes(self, name: str, value: bytes) -> None:
        data = b'{"type":' + msgspec.json.encode("next_" + name) + b', "field" :' + value + b"}"
        body, raw = decode_body(data)
        assert body == Unknown(name="next_" + name)
        assert type_of(body) == "next_" + name
        assert encode_body(body, raw) == data

    @by_name
    def test_an_unknown_field_keeps_the_bytes_and_the_rest_is_understood(self, name: str) -> None:
        known = msgspec.json.encode(SAMPLES[name])
        expected, nothing = decode_body(known)
        data = known[:-1] + b', "from_the_future" : ' + ANYTHING + b"}"
        body, raw = decode_body(data)
        assert nothing is None
        assert body == expected
        assert encode_body(body, raw) == data

    @by_name
    def test_an_unknown_field_is_kept_at_any_depth(self, name: str) -> None:
        expected, _ = decode_body(msgspec.json.encode(SAMPLES[name]))
        whole = copy.deepcopy(SAMPLES[name])
        for path, found in list(objects_in(whole, inspect.type_info(type(expected)))):
            found["from_the_future"] = {"path": path, "list": [[], {}]}
        data = msgspec.json.encode(whole)
        body, raw = decode_body(data)
        assert body == expected
        assert encode_body(body, raw) == data

    def test_structs_stand_in_lists_and_in_structs(self) -> None:
        """The test above is meaningful only if the event types nest structs."""
        depths = {
            path.count(".") + path.count("[")
            for path, _ in objects_in(SAMPLES["turn_restored"], inspect.type_info(ev.TurnRestored))
        }
        assert depths == {0, 2, 4, 6}

    def test_what_an_agent_says_in_a_free_field_is_not_looked_into(self) -> None:
        body = ev.ToolCall(name="x", call_id="c", args={"type": "agent_start", "session_id": [{"deep": 1}]})
        assert decode_body(encode_body(body)) == (body, None)

    @by_name
    def test_events_keep_what_bodies_keep(self, name: str) -> None:
        data = envelope(msgspec.json.encode(SAMPLES[name])[:-1] + b',"from_the_future":' + ANYTHING + b"}")
        event = decode_event(data)
        assert event.body == decode_body(msgspec.json.encode(SAMPLES[name]))[0]
        assert event.raw is not None
        assert encode_event(event) == data

    def test_an_event_of_an_unknown_type_keeps_its_bytes(self) -> None:
        data = envelope(b'{"type":"next","field":' + ANYTHING + b"}")
        event = decode_event(data)
        assert event.type == "next"
        assert event.body == Unknown(name="next")
        assert encode_event(event) == data

    def test_the_envelope_stands_first_in_what_is_written_however_it_came(self) -> None:
        mixed = b'{ "type":"next", "at":5, "new" : [1, 2],"index":1,"session_id":"s","origin":"user","cursor":"c" }'
        event = decode_event(mixed)
        assert encode_event(event) == envelope(b'{"type":"next","new":[1, 2]}')
        assert decode_event(encode_event(event)) == event

    def test_bytes_that_were_kept_may_begin_with_blanks(self) -> None:
        body, raw = decode_body(b' \n {"type":"next"}')
        event = Event("s", 1, 5, "user", body, "c", raw)
        assert encode_event(event) == envelope(b'{"type":"next"}')

    @pytest.mark.parametrize("field", ["session_id", "index", "cursor", "at", "origin"])
    @pytest.mark.parametrize("kind", ["next", "agent_start"])
    def test_a_body_cannot_bring_a_field_of_the_envelope(self, field: str, kind: str) -> None:
        """In the flat form the field would occur twice and change whose event this is."""
        error = refusal(decode_body, f'{{"type":"{kind}","{field}":1}}')
        assert error.where == f"$.{field}"

    def test_text_is_taken_like_bytes(self) -> None:
        text = '{"type":"notice","text":"é","new":"ü"}'
        assert decode_body(text) == (ev.Notice(text="é"), text.encode())
        assert decode_event(envelope(b'{"type":"agent_start"}').decode()).body == ev.AgentStart()

    @pytest.mark.parametrize("view", [bytearray, memoryview])
    def test_a_buffer_is_taken_like_bytes(self, view: Callable[[bytes], Any]) -> None:
        assert decode_body(view(b'{"type":"next"}')) == (Unknown(name="next"), b'{"type":"next"}')
        assert refusal(decode_body, view(b'{"type":"next')).where == "byte 13"
        assert refusal(decode_body, view(b'{"type":"\xff"}')).where == "byte 9"


#: Invalid bodies: name → (bytes, the position in the error).
NO_BODIES: dict[str, tuple[bytes | str, str]] = {
    "nothing": (b"", "byte 0"),
    "blanks": (b" \n\t", "byte 3"),
    "null": (b"null", "$"),
    "a number": (b"1", "$"),
    "a text": (b'"agent_start"', "$"),
    "a list": (b'[{"type":"agent_start"}]', "$"),
    "no type": (b"{}", "$"),
    "type null": (b'{"type":null}', "$.type"),
    "type is a number": (b'{"type":1}', "$.type"),
    "type is an object": (b'{"type":{"type":"agent_start"}}', "$.type"),
    "a byte order mark": (b'\xef\xbb\xbf{"type":"agent_start"}', "byte 0"),
    "a byte order mark in text": ('\ufeff{"type":"agent_start"}', "byte 0"),
    "NUL first": (b'\x00{"type":"agent_start"}', "byte 0"),
    "NUL last": (b'{"type":"agent_start"}\x00', "byte 23"),
    "NUL in a text": (b'{"type":"notice","text":"a\x00b"}', "byte 26"),
    "a line break in a text": (b'{"type":"notice","text":"a\nb"}', "byte 26"),
    "two objects": (b'{"type":"agent_start"}{"type":"agent_start"}', "byte 23"),
    "a comma too many": (b'{"type":"agent_start",}', "byte 22"),
    "a comma too few": (b'{"type":"notice" "text":"a"}', "byte 17"),
    "a name without quotes": (b'{type:"agent_start"}', "byte 1"),
    "single quotes": (b"{'type':'agent_start'}", "byte 1"),
    "a comment": (b'{"type":"agent_start"/**/}', "byte 21"),
    "NaN": (b'{"type":"stream_stalled","elapsed_s":NaN}', "byte 37"),
    "Infinity": (b'{"type":"stream_stalled","elapsed_s":-Infinity}', "byte 38"),
    "a number that begins with 0": (b'{"type":"retry","attempt":01}', "byte 27"),
    "a number that is too big": (b'{"type":"stream_stalled","elapsed_s":1e999}', "$.elapsed_s"),
    "a number that is too small": (b'{"type":"stream_stalled","elapsed_s":-1e999}', "$.elapsed_s"),
    "a number that is too long": (b'{"type":"retry","attempt":' + b"9" * 5000 + b"}", "$.attempt"),
    "a big number in an unknown field": (b'{"type":"agent_start","new":1e999}', "$[...]"),
    "a big number in an unknown type": (b'{"type":"next","new":1e999}', "$[...]"),
    "a float for an int": (b'{"type":"retry","attempt":1.5}', "$.attempt"),
    "a round float for an int": (b'{"type":"retry","attempt":1.0}', "$.attempt"),
    "a bool for an int": (b'{"type":"retry","attempt":true}', "$.attempt"),
    "a value that is not in the list": (b'{"type":"state_change","state":"tired"}', "$.state"),
    "such a value beside an unknown field": (b'{"type":"state_change","state":"tired","new":1}', "$.state"),
    "a required field is missing": (b'{"type":"notice","level":"info"}', "$"),
    "one is missing beside an unknown field": (b'{"type":"notice","new":1}', "$"),
    "one is missing in a part": (b'{"type":"todo_change","todos":[{"id":"1"}]}', "$.todos[0]"),
    "bad UTF-8 in a text": (b'{"type":"notice","text":"\xff"}', "byte 25"),
    "bad UTF-8 in a type": (b'{"type":"next\xff"}', "byte 13"),
    "bad UTF-8 in a name": (b'{"type":"notice","text":"a","\xff":1}', "byte 29"),
    "bad UTF-8 in an unknown field": (b'{"type":"notice","text":"a","new":["\xc3("]}', "byte 36"),
    "bad UTF-8 in an unknown type": (b'{"type":"next","new":{"a":"\xff"}}', "byte 27"),
    "bad UTF-8 in the name of an unknown type's field": (b'{"type":"next","\xff":1}', "byte 16"),
    "bad UTF-8 in a free field": (b'{"type":"plugin_event","name":"a","payload":["\xff"]}', "byte 46"),
    "a surrogate in UTF-8": (b'{"type":"notice","text":"\xed\xa0\x80"}', "byte 25"),
    "half a pair, escaped": (b'{"type":"notice","text":"\\ud800"}', "byte 25"),
    "half a pair, with text after it": (b'{"type":"notice","text":"\\ud800 and more text"}', "byte 31"),
    "the second half alone": (b'{"type":"notice","text":"\\udc00"}', "byte 31"),
    "half a pair in an unknown field": (b'{"type":"notice","text":"a","new":"\\uD8aB"}', "byte 35"),
    "half a pair in an unknown type": (b'{"type":"next","new":"\\ud800"}', "byte 22"),
    "half a pair in a name": (b'{"type":"next","\\ud800":1}', "byte 16"),
    "half a pair in text": ('{"type":"notice","text":"\ud800"}', "byte 25"),
    "half a pair in text, after others": ('{"type":"notice","text":"éé\ud800"}', "byte 29"),
    "half a pair in text, in an unknown type": ('{"type":"next","new":"\udfff"}', "byte 22"),
    "an escape that is none": (b'{"type":"notice","text":"\\x41"}', "byte 27"),
    "an escape that is cut": (b'{"type":"notice","text":"\\u12"}', "byte 30"),
    "cut after an escaped backslash": (b'{"type":"notice","text":"\\\\ud800', "byte 32"),
    "deep lists": (b"[" * DEEP, "$"),
    "deep objects": (b'{"type":' * DEEP, "$"),
    "deep in a free field": (
        b'{"type":"plugin_event","name":"a","payload":' + b"[" * DEEP + b"]" * DEEP + b"}",
        "$",
    ),
    "deep in an unknown field": (b'{"type":"agent_start","new":' + b"[" * DEEP + b"]" * DEEP + b"}", "$"),
    "deep in an unknown type": (b'{"type":"next","new":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}", "$"),
    "deep where a text should be": (b'{"type":"notice","text":' + b"[" * DEEP + b"]" * DEEP + b"}", "$"),
}


class TestWhatIsNoBody:
    @pytest.mark.parametrize("what", NO_BODIES)
    def test_it_is_refused_and_the_place_is_told(self, what: str) -> None:
        data, where = NO_BODIES[what]
        assert refusal(decode_body, data).where == where

    def test_the_error_is_one_that_a_client_can_show(self) -> None:
        error = refusal(decode_body, b'{"type":"retry","attempt":"1"}')
        assert error.code == "malformed_event"
        assert error.as_json()["error"]["message"] == "malformed event at $.attempt: Expected `int`, got `str`"
        assert error.hint

    @by_name
    def test_a_wrong_type_in_any_field_is_refused_by_its_name(self, name: str) -> None:
        kind = inspect.type_info(ev.BY_NAME[name])
        assert isinstance(kind, inspect.StructType)
        for field in kind.fields:
            for wrong in wrong_for(field.type):
                spoilt = SAMPLES[name] | {field.encode_name: wrong}
                error = refusal(decode_body, msgspec.json.encode(spoilt))
                assert error.where.startswith(f"$.{field.encode_name}")

    @by_name
    def test_a_wrong_type_beside_an_unknown_field_is_refused_all_the_same(self, name: str) -> None:
        spoilt = SAMPLES[name] | {"agent_path": [1], "from_the_future": 1}
        assert refusal(decode_body, msgspec.json.encode(spoilt)).where == "$.agent_path[0]"

    @by_name
    def test_a_wrong_type_is_found_at_any_depth(self, name: str) -> None:
        kind = inspect.type_info(ev.BY_NAME[name])
        for path, _ in objects_in(SAMPLES[name], kind):
            whole = copy.deepcopy(SAMPLES[name])
            spoilt = dict(objects_in(whole, kind))[path]
            field = next(field for field, value in spoilt.items() if isinstance(value, str | int))
            spoilt[field] = []
            assert refusal(decode_body, msgspec.json.encode(whole)).where == f"{path}.{field}"

    @by_name
    def test_bytes_that_end_too_early_are_refused_wherever_they_end(self, name: str) -> None:
        data = msgspec.json.encode(SAMPLES[name])
        for end in range(len(data)):
            assert refusal(decode_body, data[:end]).where == f"byte {end}"

    @by_name
    @pytest.mark.parametrize("rest", [b"x", b"\x00", b"}", b",", b"{}", b"\xff"])
    def test_bytes_that_go_on_are_refused(self, name: str, rest: bytes) -> None:
        data = msgspec.json.encode(SAMPLES[name])
        assert refusal(decode_body, data + rest).where.startswith("byte")

    @by_name
    def test_bad_text_is_refused_wherever_it_stands(self, name: str) -> None:
        data = msgspec.json.encode(SAMPLES[name])
        for place in range(1, len(data)):
            refusal(decode_body, data[:place] + b"\xff" + data[place + 1 :])


def wrong_for(kind: inspect.Type) -> list[Any]:
    """Return JSON values that this type doesn't accept."""
    taken = list(kind.types) if isinstance(kind, inspect.UnionType) else [kind]
    samples: dict[type[inspect.Type], Any] = {
        inspect.StrType: "x",
        inspect.IntType: 7,
        inspect.BoolType: True,
        inspect.NoneType: None,
        inspect.VarTupleType: [{}],
        inspect.StructType: {"no such": "object"},
    }
    if any(isinstance(one, inspect.AnyType) for one in taken):
        return []
    # A float field accepts an int. Literals don't accept "x", so it isn't excluded for them.
    same = {type(one) for one in taken} | ({inspect.IntType} if _takes(taken, inspect.FloatType) else set())
    return [value for one, value in samples.items() if one not in same]


def _takes(taken: list[inspect.Type], kind: type[inspect.Type]) -> bool:
    return any(isinstance(one, kind) for one in taken)


NO_EVENTS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "byte 0"),
    "null": (b"null", "$"),
    "a list": (b"[]", "$"),
    "a body alone": (b'{"type":"agent_start"}', "$"),
    "an envelope alone": (envelope(b'{"x":1}'), "$"),
    "index 0": (envelope(b'{"type":"agent_start"}').replace(b'"index":1', b'"index":0'), "$.index"),
    "a time before the epoch": (envelope(b'{"type":"agent_start"}').replace(b'"at":5', b'"at":-5'), "$.at"),
    "an unknown origin": (envelope(b'{"type":"agent_start"}').replace(b'"user"', b'"moon"'), "$.origin"),
    "a session that is a number": (envelope(b'{"type":"agent_start"}').replace(b'"s"', b"1"), "$.session_id"),
    "bad UTF-8 in the session": (envelope(b'{"type":"agent_start"}').replace(b'"s"', b'"\xff"'), "byte 15"),
    "a wrong type in the body": (envelope(b'{"type":"retry","attempt":"1"}'), "$.attempt"),
    "a number that is too big": (envelope(b'{"type":"stream_stalled","elapsed_s":1e999}'), "$.elapsed_s"),
    "bytes after it": (envelope(b'{"type":"agent_start"}') + b"x", f"byte {SHIFT + 23}"),
    "bad UTF-8 in the body": (envelope(b'{"type":"notice","text":"\xff"}'), f"byte {SHIFT + 25}"),
    "bad UTF-8 in an unknown field": (envelope(b'{"type":"next","new":"\xff"}'), f"byte {SHIFT + 22}"),
    "half a pair in the body": (envelope(b'{"type":"notice","text":"\\ud800"}'), f"byte {SHIFT + 25}"),
    "half a pair, with text after it": (
        envelope(b'{"type":"notice","text":"\\ud800 and more text"}'),
        f"byte {SHIFT + 31}",
    ),
    "an escape that is none": (envelope(b'{"type":"notice","text":"\\x41"}'), f"byte {SHIFT + 26}"),
    "deep": (envelope(b'{"type":"next","new":' + b"[" * DEEP + b"]" * DEEP + b"}"), "$"),
}


class TestWhatIsNoEvent:
    @pytest.mark.parametrize("what", NO_EVENTS)
    def test_it_is_refused_and_the_place_is_told_in_the_whole(self, what: str) -> None:
        data, where = NO_EVENTS[what]
        assert refusal(decode_event, data).where == where

    @pytest.mark.parametrize("field", ["session_id", "index", "cursor", "at", "origin"])
    def test_no_field_of_the_envelope_may_be_missing(self, field: str) -> None:
        flat = msgspec.json.decode(envelope(b'{"type":"agent_start"}'))
        del flat[field]
        assert f"`{field}`" in refusal(decode_event, msgspec.json.encode(flat)).what

    def test_bytes_that_end_too_early_are_refused_wherever_they_end(self) -> None:
        data = envelope(msgspec.json.encode(SAMPLES["turn_restored"]))
        for end in range(len(data)):
            assert refusal(decode_event, data[:end]).where == f"byte {end}"

    def test_bad_text_is_refused_wherever_it_stands(self) -> None:
        data = envelope(msgspec.json.encode(SAMPLES["approval_required"]))
        for place in range(1, len(data)):
            refusal(decode_event, data[:place] + b"\xff" + data[place + 1 :])


class TestAFieldThatComesTwice:
    """JSON doesn't define what a repeated field means. Here the last one counts, in every decoder."""

    def test_in_a_body(self) -> None:
        assert decode_body(b'{"type":"notice","text":"a","text":"b"}')[0] == ev.Notice(text="b")
        assert refusal(decode_body, b'{"type":"notice","text":"a","text":3}').where == "$.text"

    def test_beside_an_unknown_field(self) -> None:
        assert decode_body(b'{"type":"notice","text":"a","new":1,"text":"b"}')[0] == ev.Notice(text="b")

    def test_for_the_type(self) -> None:
        body, raw = decode_body(b'{"type":"agent_start","type":"agent_end"}')
        assert body == ev.AgentEnd()
        assert decode_body(encode_body(body, raw))[0] == body

    def test_in_the_envelope(self) -> None:
        event = decode_event(envelope(b'{"type":"notice","text":"a","index":9,"text":"b"}'))
        assert (event.index, event.body) == (9, ev.Notice(text="b"))
        assert decode_event(encode_event(event)) == event


class Stranger:
    """An object that JSON can't represent."""


def _endless() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


class TestWhatCannotBeWritten:
    @pytest.mark.parametrize(
        "value",
        [Stranger(), Stranger, print, 1j, {(1, 2): 3}, {None: 1}, "\ud800", ["\udfff"], {"\ud800": 1}, _endless()],
        ids=["object", "class", "function", "complex", "tuple key", "no key", "text", "in list", "key", "endless"],
    )
    def test_it_is_refused(self, value: object) -> None:
        body = ev.PluginEvent(name="x", payload=value)
        with pytest.raises(MalformedEvent):
            encode_body(body)
        with pytest.raises(MalformedEvent):
            encode_event(Event("s", 1, 1, "engine", body))

    @by_name
    def test_half_a_pair_is_refused_in_every_type(self, name: str) -> None:
        with pytest.raises(MalformedEvent, match="not valid UTF-8"):
            encode_body(msgspec.structs.replace(decode_body(msgspec.json.encode(SAMPLES[name]))[0], turn_id="\ud800"))

    @pytest.mark.parametrize(
        "event", [Event("\ud800", 1, 1, "user", ev.AgentStart()), Event("s", 1, 1, "user", ev.AgentStart(), "\udfff")]
    )
    def test_half_a_pair_in_the_envelope_is_refused(self, event: Event) -> None:
        with pytest.raises(MalformedEvent, match="not valid UTF-8"):
            encode_event(event)

    def test_an_envelope_of_wrong_types_is_refused(self) -> None:
        with pytest.raises(MalformedEvent):
            encode_event(Event("s", Stranger(), 1, "user", ev.AgentStart()))  # type: ignore[arg-type]


def mutated(data: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    """Remove some bytes and insert others."""
    for at, cut, piece in changes:
        place = at % (len(data) + 1)
        data = data[:place] + piece + data[place + cut :]
    return data


_pieces = st.one_of(
    st.binary(max_size=3),
    st.sampled_from([b'"', b"\\", b"\\ud800", b"{", b"}", b"[", b"]", b",", b":", b"null", b"1e999", b"-", b"\xff"]),
)
_changes = st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 4), _pieces), min_size=1, max_size=4)
_valid = st.one_of(st.sampled_from(list(SAMPLES.values())).map(msgspec.json.encode), any_body().map(encode_body))


def survives(decode: Decode, encode: Callable[[Any], bytes], data: bytes | str) -> None:
    """Check that data is either refused with MalformedEvent, or decoded so that encoding it gives an equal event."""
    try:
        found = decode(data)
    except MalformedEvent:
        return
    assert decode(encode(found)) == found


def body_survives(data: bytes | str) -> None:
    survives(decode_body, lambda found: encode_body(*found), data)


def event_survives(data: bytes | str) -> None:
    survives(decode_event, encode_event, data)


class TestAnyBytes:
    @settings(max_examples=300)
    @given(st.binary())
    @example(b"")
    def test_bytes(self, data: bytes) -> None:
        body_survives(data)
        event_survives(data)

    @settings(max_examples=200)
    @given(st.text(st.characters()))
    def test_text_with_halves_of_pairs(self, data: str) -> None:
        body_survives(data)
        body_survives(f'{{"type":"notice","text":"{data}"}}')
        event_survives(data)

    @settings(max_examples=250)
    @given(_valid, _changes)
    def test_a_spoilt_body(self, data: bytes, changes: list[tuple[int, int, bytes]]) -> None:
        body_survives(mutated(data, changes))

    @settings(max_examples=250)
    @given(_valid, _changes)
    def test_a_spoilt_event(self, data: bytes, changes: list[tuple[int, int, bytes]]) -> None:
        event_survives(mutated(envelope(data), changes))

    @settings(max_examples=200)
    @given(_valid)
    def test_what_is_not_spoilt_is_read(self, data: bytes) -> None:
        body, raw = decode_body(data)
        assert encode_body(body, raw) == data or raw is None
        assert decode_event(envelope(data)) == Event("s", 1, 5, "user", body, "c", raw)


def test_every_type_is_tried() -> None:
    assert {type(decode_body(msgspec.json.encode(one))[0]) for one in SAMPLES.values()} == set(TYPES)
    assert issubclass(Unknown, Body)
