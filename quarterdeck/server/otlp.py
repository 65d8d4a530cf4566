"""OTLP log records, flattened to what translators read: `{"attributes": {...}, "body": ..., "time": ...}`.

The protobuf reader knows the few fields of opentelemetry.proto.logs.v1 that matter here and skips all others; it reads
what is there and never more than there is.
"""

from __future__ import annotations

import re
import struct
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from quarterdeck.harness.base import Object, list_of, object_of, text_of
from quarterdeck.server.errors import BadRequest

_CONVERSATION = ("conversation.id", "thread.id")
_DEEPEST = 16
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_64_BITS = (1 << 64) - 1


def conversation(record: Object) -> str:
    """The agent's own name for the conversation that a record belongs to."""
    return text_of(object_of(record, "attributes"), *_CONVERSATION)


def between(record: Object) -> tuple[str, str]:
    """The two conversations that a message of one agent to another names."""
    found = object_of(record, "attributes")
    return text_of(found, "sender_thread_id"), text_of(found, "receiver_thread_id")


def from_json(found: Any) -> Iterator[Object]:
    """The records of an ExportLogsServiceRequest as JSON."""
    for resource in _objects(object_of(found), "resourceLogs"):
        for scope in _objects(resource, "scopeLogs"):
            for record in _objects(scope, "logRecords"):
                yield {
                    "attributes": _attributes(list_of(record, "attributes")),
                    "body": _value(record.get("body"), 0),
                    "time": _int(record.get("timeUnixNano")),
                }


def _objects(found: Object, name: str) -> list[Object]:
    return [object_of(one) for one in list_of(found, name)]


def _attributes(found: list[Any]) -> Object:
    return {text_of(object_of(one), "key"): _value(object_of(one).get("value"), 0) for one in found}


def _value(found: Any, depth: int) -> Any:
    """An AnyValue as the value that it is."""
    value = object_of(found)
    if depth > _DEEPEST or not value:
        return None
    kind, inner = next(iter(value.items()))
    if kind == "intValue":
        return _int(inner)
    if kind == "arrayValue":
        return [_value(one, depth + 1) for one in list_of(object_of(inner), "values")]
    if kind == "kvlistValue":
        pairs = [object_of(one) for one in list_of(object_of(inner), "values")]
        return {text_of(pair, "key"): _value(pair.get("value"), depth + 1) for pair in pairs}
    return inner


def _int(found: Any) -> int:
    """64 bits are a text in JSON; what is no number is 0, as in a message that leaves it out."""
    if isinstance(found, str) and _INTEGER.fullmatch(found):
        found = int(found)
    return found if isinstance(found, int) and -(1 << 63) <= found < 1 << 64 else 0


# --- protobuf


def from_protobuf(data: bytes) -> Iterator[Object]:
    """The same as protobuf."""
    for resource in _all(data, 1):
        for scope in _all(resource, 2):
            for record in _all(scope, 2):
                yield _record(record)


def _record(data: bytes) -> Object:
    attributes: Object = {}
    body: Any = None
    time = 0
    for number, value in _fields(data):
        if number == 6 and isinstance(value, bytes):
            key, told = _pair(value, 0)
            attributes[key] = told
        elif number == 5 and isinstance(value, bytes):
            body = _any_value(value, 0)
        elif number == 1 and isinstance(value, int):
            time = value
    return {"attributes": attributes, "body": body, "time": time}


def _pair(data: bytes, depth: int) -> tuple[str, Any]:
    key, value = "", None
    for number, found in _fields(data):
        if number == 1 and isinstance(found, bytes):
            key = found.decode(errors="replace")
        elif number == 2 and isinstance(found, bytes):
            value = _any_value(found, depth + 1)
    return key, value


def _any_value(data: bytes, depth: int) -> Any:
    if depth > _DEEPEST:
        return None
    for number, found in _fields(data):
        if number == 1 and isinstance(found, bytes):
            return found.decode(errors="replace")
        if number == 2:
            return bool(found)
        if number == 3 and isinstance(found, int):
            return found - (1 << 64) if found >> 63 else found
        if number == 4 and isinstance(found, int):
            return struct.unpack("<d", struct.pack("<Q", found))[0]
        if number == 5 and isinstance(found, bytes):
            return [_any_value(one, depth + 1) for one in _all(found, 1)]
        if number == 6 and isinstance(found, bytes):
            return dict(_pair(one, depth + 1) for one in _all(found, 1))
        if number == 7 and isinstance(found, bytes):
            return b64encode(found).decode()
    return None


def _all(data: bytes, wanted: int) -> list[bytes]:
    return [value for number, value in _fields(data) if number == wanted and isinstance(value, bytes)]


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of every field, as they lie on the wire."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield number, value
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            yield number, int.from_bytes(_taken(data, place, size), "little")
            place += size
        elif kind == 2:
            size, place = _varint(data, place)
            yield number, _taken(data, place, size)
            place += size
        else:
            raise _broken("a field of an unknown kind")


def _taken(data: bytes, place: int, size: int) -> bytes:
    if place + size > len(data):
        raise _broken("it ends in the middle")
    return data[place : place + size]


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise _broken("it ends in the middle")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _64_BITS, place
    raise _broken("a number that never ends")


def _broken(why: str) -> BadRequest:
    return BadRequest(f"the body is no OTLP protobuf: {why}", "Send an ExportLogsServiceRequest.")
