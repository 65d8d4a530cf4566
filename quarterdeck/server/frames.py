"""Bytes on the wire, made once for all who read the same: SSE blocks and WebSocket frames.

A hundred readers at one position share one slice of events, so what they are sent is encoded and joined once. The
caches hold what was sent last and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import msgspec

from quarterdeck.events import Event, encode_event

Encode: TypeAlias = Callable[[Event], bytes]

_json = msgspec.json.Encoder().encode
_KEPT = 2048


def text_frame(payload: bytes) -> bytes:
    """A whole, uncompressed text message from a server."""
    size = len(payload)
    if size < 126:
        return bytes((0x81, size)) + payload
    if size < 1 << 16:
        return struct.pack("!BBH", 0x81, 126, size) + payload
    return struct.pack("!BBQ", 0x81, 127, size) + payload


def message_frame(message: Any) -> bytes:
    """A message of the WebSocket's own."""
    return text_frame(_json(message))


def event_frame(event: Event) -> bytes:
    """An event as a WebSocket carries it."""
    return text_frame(b'{"op":"event","event":' + encode_event(event) + b"}")


def session_block(event: Event) -> bytes:
    """An event as the stream of its session carries it."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.index, event.type.encode(), encode_event(event))


def cursor_block(event: Event) -> bytes:
    """An event as the stream of all sessions carries it."""
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (event.cursor.encode(), event.type.encode(), encode_event(event))


def chunk(data: bytes) -> bytes:
    """A piece of a body whose length nobody knows beforehand. An empty one would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def block(name: str, data: Any, identifier: str = "") -> bytes:
    """Something else on an SSE stream: gap, snapshot, cursor, end."""
    head = f"id: {identifier}\n" if identifier else ""
    return f"{head}event: {name}\ndata: ".encode() + _json(data) + b"\n\n"


class Joined:
    """Slices of events as bytes. The slice that was joined last is kept whole, single events by identity."""

    def __init__(self, encode: Encode, wrap: Callable[[bytes], bytes] = bytes) -> None:
        self._encode = encode
        self._wrap = wrap
        self._single: dict[int, tuple[Event, bytes]] = {}
        self._slices: dict[tuple[int, Any], tuple[Sequence[Event], bytes]] = {}

    def bytes_of(self, events: Sequence[Event], types: frozenset[str] | None = None) -> bytes:
        """All of these events, or those of these types."""
        key = (id(events), types)
        kept = self._slices.get(key)
        if kept is not None and kept[0] is events:
            return kept[1]
        joined = self._wrap(b"".join([self._one(event) for event in events if types is None or event.type in types]))
        if len(self._slices) > 8:
            self._slices.clear()
        self._slices[key] = (events, joined)
        return joined

    def _one(self, event: Event) -> bytes:
        kept = self._single.get(id(event))
        if kept is not None and kept[0] is event:
            return kept[1]
        if len(self._single) > _KEPT:
            self._single.clear()
        encoded = self._encode(event)
        self._single[id(event)] = (event, encoded)
        return encoded


def with_restating(types: Collection[str]) -> frozenset[str]:
    """A filter on deltas implies the events that restate their whole: the deltas may have been dropped."""
    wanted = set(types)
    if wanted & {"message_delta", "thinking_delta"}:
        wanted |= {"response_complete", "message_aborted"}
    if "tool_execution_output" in wanted:
        wanted |= {"tool_execution_end", "tool_blocked", "tool_killed", "tool_skipped_for_steering"}
    if "bash_output" in wanted:
        wanted |= {"bash_end"}
    return frozenset(wanted)
