"""What SSE streams and WebSockets share: writing to a connection, and encoding events.

Many clients usually follow the same session and are at the same position. The feed gives them the same list of events, so
what they get is encoded once (`SharedEncoding`).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from quarterdeck.events import Event, encode_event

_encode_json = msgspec.json.Encoder().encode


class TransportLine:
    """Writes to a connection below aiohttp's own interfaces, and knows how much is unsent.

    aiohttp's `write` is async and waits while the connection is full. A reader of the feed must not wait: it switches to
    reading the log instead (reader.py).
    """

    def __init__(self, request: web.Request) -> None:
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client has disconnected")
        self._transport: asyncio.Transport = transport
        self._protocol: RequestHandler = request.protocol

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    @property
    def unsent(self) -> int:
        return 0 if self._transport.is_closing() else self._transport.get_write_buffer_size()

    @property
    def is_closed(self) -> bool:
        return self._transport.is_closing()

    async def drain(self) -> None:
        """Wait until the connection takes more data.

        Raises:
            ConnectionResetError: the client has disconnected.
        """
        if self._transport.is_closing():
            raise ConnectionResetError("the client has disconnected")
        await self._protocol._drain_helper()  # pyright: ignore[reportPrivateUsage]


class SharedEncoding:
    """Encodes lists of events, and remembers the last list for the next client that gets the same one.

    One list is enough: the feed delivers a list to all readers of a session before it delivers the next.
    """

    def __init__(self, encode: Callable[[Event], bytes], wrap: Callable[[bytes], bytes] = bytes) -> None:
        self._encode = encode
        self._wrap = wrap
        self._events: Sequence[Event] = ()
        #: Filter → the events that pass it, encoded.
        self._encoded: dict[frozenset[str] | None, bytes] = {}

    def encode(self, events: Sequence[Event], types: frozenset[str] | None = None) -> bytes:
        """Return these events, or those of these types."""
        if events is not self._events:
            self._events, self._encoded = events, {}
        encoded = self._encoded.get(types)
        if encoded is None:
            parts = [self._encode(event) for event in events if types is None or event.type in types]
            encoded = self._encoded[types] = self._wrap(b"".join(parts))
        return encoded


def include_final_events(types: Collection[str]) -> frozenset[str]:
    """Add to a filter on deltas the events that repeat the whole text. Deltas are dropped once a message is finished."""
    included = set(types)
    if included & {"message_delta", "thinking_delta"}:
        included |= {"response_complete", "message_aborted"}
    if "tool_execution_output" in included:
        included |= {"tool_execution_end", "tool_blocked", "tool_killed", "tool_skipped_for_steering"}
    if "bash_output" in included:
        included |= {"bash_end"}
    return frozenset(included)


# --- Server-Sent Events


def session_block(event: Event) -> bytes:
    """Encode an event for the stream of its session."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.index, event.type.encode(), encode_event(event))


def cursor_block(event: Event) -> bytes:
    """Encode an event for the stream of all sessions."""
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (event.cursor.encode(), event.type.encode(), encode_event(event))


def named_block(name: str, data: Any, block_id: str = "") -> bytes:
    """Encode something that isn't an event: gap, snapshot, cursor, end."""
    head = f"id: {block_id}\n" if block_id else ""
    return f"{head}event: {name}\ndata: ".encode() + _encode_json(data) + b"\n\n"


def chunk(data: bytes) -> bytes:
    """Encode a piece of a chunked body. An empty chunk would end the body, so empty data gives nothing."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


# --- WebSocket frames


def event_frame(event: Event) -> bytes:
    return _text_frame(b'{"op":"event","event":' + encode_event(event) + b"}")


def message_frame(message: Any) -> bytes:
    return _text_frame(_encode_json(message))


def _text_frame(payload: bytes) -> bytes:
    """Encode an unmasked, uncompressed text frame (RFC 6455, section 5.2)."""
    size = len(payload)
    if size < 126:
        return bytes((0x81, size)) + payload
    if size < 1 << 16:
        return struct.pack("!BBH", 0x81, 126, size) + payload
    return struct.pack("!BBQ", 0x81, 127, size) + payload
