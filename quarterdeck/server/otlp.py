"""Decode OTLP log records to what translators read: `{"attributes": {...}, "body": ..., "time": ...}`.

The protobuf decoder knows only the fields of opentelemetry.proto.logs.v1 that are used here, and skips the others.
"""

from __future__ import annotations

import re
import struct
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from quarterdeck.harness.base import Object, list_of, object_of, text_of
from quarterdeck.server.errors import BadRequest

_CONVERSATION_KEYS = ("conversation.id", "thread.id")
#: How deep a nested value may be. Deeper ones are dropped.
_DEPTH_LIMIT = 16
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_64_BITS = (1 << 64) - 1


def conversation(record: Object) -> str:
    """Return the agent's own id of the conversation that a record belongs to, or ""."""
    return text_of(object_of(record, "attributes"), *_CONVERSATION_KEYS)


def between(record: Object) -> tuple[str, str]:
    """Return the ids of the two conversations that a message between agents names."""
    attributes = object_of(record, "attributes")
    return text_of(attributes, "sender_thread_id"), text_of(attributes, "receiver_thread_id")


# --- JSON


def from_json(request: Any) -> Iterator[Object]:
    """Yield the records of an ExportLogsServiceRequest in JSON."""
    for resource in _objects(object_of(request), "resourceLogs"):
        for scope in _objects(resource, "scopeLogs"):
            for record in _objects(scope, "logRecords"):
                yield {
                    "attributes": _attributes(list_of(record, "attributes")),
                    "body": _json_value(record.get("body"), 0),
                    "time": _json_int(record.get("timeUnixNano")),
                }


def _objects(parent: Object, name: str) -> list[Object]:
    return [object_of(item) for item in list_of(parent, name)]


def _attributes(pairs: list[Any]) -> Object:
    return {text_of(object_of(pair), "key"): _json_value(object_of(pair).get("value"), 0) for pair in pairs}


def _json_value(any_value: Any, depth: int) -> Any:
    """Return the value that an AnyValue wraps."""
    wrapper = object_of(any_value)
    if depth > _DEPTH_LIMIT or not wrapper:
        return None
    kind, value = next(iter(wrapper.items()))
    if kind == "intValue":
        return _json_int(value)
    if kind == "arrayValue":
        return [_json_value(item, depth + 1) for item in list_of(object_of(value), "values")]
    if kind == "kvlistValue":
        pairs = [object_of(item) for item in list_of(object_of(value), "values")]
        return {text_of(pair, "key"): _json_value(pair.get("value"), depth + 1) for pair in pairs}
    return value


def _json_int(value: Any) -> int:
    """Return a 64-bit integer, which JSON has as a text. Anything else is 0, protobuf's default."""
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    return value if isinstance(value, int) and -(1 << 63) <= value < 1 << 64 else 0


# --- Protobuf


def from_protobuf(data: bytes) -> Iterator[Object]:
    """Yield the records of an ExportLogsServiceRequest in protobuf.

    Raises:
        BadRequest: the data isn't valid protobuf.
    """
    for resource in _messages(data, 1):
        for scope in _messages(resource, 2):
            for record in _messages(scope, 2):
                yield _record(record)


def _record(data: bytes) -> Object:
    attributes: Object = {}
    body: Any = None
    time = 0
    for number, field in _fields(data):
        if number == 6 and isinstance(field, bytes):
            key, value = _pair(field, 0)
            attributes[key] = value
        elif number == 5 and isinstance(field, bytes):
            body = _any_value(field, 0)
        elif number == 1 and isinstance(field, int):
            time = field
    return {"attributes": attributes, "body": body, "time": time}


def _pair(data: bytes, depth: int) -> tuple[str, Any]:
    key, value = "", None
    for number, field in _fields(data):
        if number == 1 and isinstance(field, bytes):
            key = field.decode(errors="replace")
        elif number == 2 and isinstance(field, bytes):
            value = _any_value(field, depth + 1)
    return key, value


def _any_value(data: bytes, depth: int) -> Any:
    if depth > _DEPTH_LIMIT:
        return None
    for number, field in _fields(data):
        if number == 1 and isinstance(field, bytes):
            return field.decode(errors="replace")
        if number == 2:
            return bool(field)
        if number == 3 and isinstance(field, int):
            return field - (1 << 64) if field >> 63 else field
        if number == 4 and isinstance(field, int):
            return struct.unpack("<d", struct.pack("<Q", field))[0]
        if number == 5 and isinstance(field, bytes):
            return [_any_value(item, depth + 1) for item in _messages(field, 1)]
        if number == 6 and isinstance(field, bytes):
            return dict(_pair(item, depth + 1) for item in _messages(field, 1))
        if number == 7 and isinstance(field, bytes):
            return b64encode(field).decode()
    return None


def _messages(data: bytes, field_number: int) -> list[bytes]:
    return [field for number, field in _fields(data) if number == field_number and isinstance(field, bytes)]


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the raw value of each field of a message."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value, position = _varint(data, position)
            yield number, value
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
            yield number, int.from_bytes(_slice(data, position, size), "little")
            position += size
        elif wire_type == 2:
            size, position = _varint(data, position)
            yield number, _slice(data, position, size)
            position += size
        else:
            raise _invalid("it has an unknown wire type")


def _slice(data: bytes, position: int, size: int) -> bytes:
    if position + size > len(data):
        raise _invalid("it is cut off")
    return data[position : position + size]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a variable-length integer and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise _invalid("it is cut off")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _64_BITS, position
    raise _invalid("a number is too long")


def _invalid(problem: str) -> BadRequest:
    return BadRequest(f"the body isn't valid OTLP protobuf: {problem}", "Send an ExportLogsServiceRequest.")
