"""Test that server-sent events are split correctly wherever the network cuts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarterdeck.engine.providers import base
from quarterdeck.engine.providers.base import EventTooLong, ServerSentEvents

STREAM = (
    b": a comment\n\n"
    b"data: one\n\n"
    b"event: named\ndata: two\nid: 7\n\n"
    b"data:no space\n\n"
    b"data:  two spaces\n\n"
    b"data: a\ndata: b\n\n"
    b"data: a\nid: 7\ndata: b\n\n"
    b"data\n\n"
    b"event: only a name\n\n"
    b"data: \n\n"
    b"\n\n\n"
    b'data: {"\xc3\xa4": "\xf0\x9f\x99\x82"}\n\n'
    b"retry: 10\ndata: last\n\n"
)
WANTED = [b"one", b"two", b"no space", b" two spaces", b"a\nb", b"a\nb", b'{"\xc3\xa4": "\xf0\x9f\x99\x82"}', b"last"]
ENDINGS = {"\\n": b"\n", "\\r\\n": b"\r\n", "\\r": b"\r"}


def read(*pieces: bytes) -> list[bytes]:
    events = ServerSentEvents()
    return [data for piece in pieces for data in events.feed(piece)] + events.close()


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_it_is_the_same_wherever_it_is_cut(ending: bytes) -> None:
    stream = STREAM.replace(b"\n", ending)
    assert read(stream) == WANTED
    for at in range(len(stream) + 1):
        assert read(stream[:at], stream[at:]) == WANTED
        for more in range(at, min(at + 9, len(stream))):
            assert read(stream[:at], stream[at:more], stream[more:]) == WANTED


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_it_is_the_same_byte_by_byte(ending: bytes) -> None:
    stream = STREAM.replace(b"\n", ending)
    assert read(*(stream[at : at + 1] for at in range(len(stream)))) == WANTED


@given(
    st.lists(st.sampled_from([b"data: x", b"\n", b"\r", b"\r\n", b"\n\n", b"data:", b" ", b"event: e", b":"])),
    st.data(),
)
def test_any_stream_is_the_same_however_it_is_cut(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts)
    at = data.draw(st.integers(0, len(stream)))
    assert read(stream[:at], stream[at:]) == read(stream)


def test_events_come_as_soon_as_they_are_whole() -> None:
    events = ServerSentEvents()
    assert events.feed(b"data: a\n\ndata: b\n") == [b"a"]
    assert events.feed(b"\ndata: c") == [b"b"]
    assert events.close() == [b"c"]
    assert events.close() == []


def test_an_event_without_an_end_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "EVENT_LIMIT", 10)
    events = ServerSentEvents()
    assert events.feed(b"data: 1234") == []
    with pytest.raises(EventTooLong):
        events.feed(b"5")
