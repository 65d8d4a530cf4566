"""The envelope, and the way between an event and its JSON.

An event is stored as envelope columns plus the body's bytes, and is shown as one flat object; msgspec cannot flatten,
so the two are spliced as bytes. Bodies of a newer release come through unharmed: what the fast decoder refuses is
looked at again, and an unknown type, or a known one with unknown fields, keeps its bytes as they came (`raw`).
Everything else that is wrong raises MalformedEvent, which says where.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, Raw, Struct, inspect

from quarterdeck.errors import MalformedEvent
from quarterdeck.events.base import Body, Origin
from quarterdeck.events.catalogue import BY_NAME, NAMES, UNION


class Unknown(Body):
    """A body of a type that this release does not know. It moves nothing and is kept as it came."""

    name: str = ""


class Event(Struct, frozen=True, gc=False):
    """One line of a session's log. `raw` is set when the body's bytes say more than `body` does."""

    session_id: str
    index: int
    at: int
    origin: Origin
    body: Body
    cursor: str = ""
    raw: bytes | None = None

    @property
    def type(self) -> str:
        name = NAMES.get(type(self.body))
        return type_of(self.body) if name is None else name


class _Envelope(Struct, frozen=True):
    session_id: str
    index: Annotated[int, Meta(ge=1)]
    cursor: str
    at: Annotated[int, Meta(ge=0)]
    origin: Origin


_ENVELOPE_FIELDS = frozenset(_Envelope.__struct_fields__)
_bodies = msgspec.json.Decoder(UNION)
_envelopes = msgspec.json.Decoder(_Envelope)
_objects: msgspec.json.Decoder[dict[str, Raw]] = msgspec.json.Decoder(dict[str, Raw])
_anything = msgspec.json.Decoder(cast("type[Any]", Any))
_encode = msgspec.json.Encoder().encode

_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>.+)`| \((?P<byte>byte \d+)\))$", re.DOTALL)
#: An escaped first half of a pair, alone; near the end of the input msgspec calls it truncated, which helps nobody.
_LONE_SURROGATE = re.compile(rb"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})(?!\\u[dD][c-fC-F])")
#: What msgspec and Python's own text codecs raise for bytes that are no JSON of ours. Deep nesting ends in recursion.
_REFUSALS = (msgspec.MsgspecError, UnicodeError, RecursionError)


def type_of(body: Body) -> str:
    """The body's name in the log."""
    name = NAMES.get(type(body))
    return cast("Unknown", body).name if name is None else name


def decode_body(data: bytes | str) -> tuple[Body, bytes | None]:
    """The body, and its bytes where they hold more than this release understands."""
    try:
        return _bodies.decode(data), None
    except msgspec.ValidationError as error:
        return _decode_newer(data, error)
    except _REFUSALS as error:
        raise _malformed(error, data) from error


def encode_body(body: Body, raw: bytes | None = None) -> bytes:
    """One JSON object. Bytes that were kept are given back as they came."""
    if raw is not None:
        return raw
    try:
        return _encode(body)
    except (*_REFUSALS, TypeError) as error:
        raise _malformed(error) from error


def decode_event(data: bytes | str) -> Event:
    """An event from its flat form."""
    try:
        envelope = _envelopes.decode(data)
        fields = _objects.decode(data)
    except _REFUSALS as error:
        raise _malformed(error, data) from error
    inner = [_encode(name) + b":" + bytes(value) for name, value in fields.items() if name not in _ENVELOPE_FIELDS]
    try:
        body, raw = decode_body(b"{" + b",".join(inner) + b"}")
    except MalformedEvent as error:
        # places in the body's bytes are no places in the event's
        raise _the_better_placed(error, _fault_of_text(data) or error) from error
    return Event(envelope.session_id, envelope.index, envelope.at, envelope.origin, body, envelope.cursor, raw)


def encode_event(event: Event) -> bytes:
    """The flat form: the envelope's fields first, then the body's own."""
    envelope = _Envelope(event.session_id, event.index, event.cursor, event.at, event.origin)
    body = encode_body(event.body, event.raw)
    try:
        return _encode(envelope)[:-1] + b"," + body.lstrip()[1:]
    except (*_REFUSALS, TypeError) as error:
        raise _malformed(error) from error


def _decode_newer(data: bytes | str, error: msgspec.ValidationError) -> tuple[Body, bytes]:
    """The slow path: a body that a newer release may have written, else the fast path's own complaint."""
    try:
        found = _anything.decode(data)
        name = cast("dict[str, Any]", found).get("type") if isinstance(found, dict) else None
        if not isinstance(name, str):
            raise _malformed(error) from error
        raw = data.encode() if isinstance(data, str) else bytes(data)
        return _understood(name, cast("dict[str, Any]", found)), raw
    except _REFUSALS as refusal:
        raise _the_better_placed(_malformed(error), _malformed(refusal, data)) from refusal


def _the_better_placed(first: MalformedEvent, second: MalformedEvent) -> MalformedEvent:
    """The second look sees the whole text, but it knows no types: it may find the same fault and not name the field."""
    return first if first.what == second.what and second.where.endswith("[...]") else second


def _fault_of_text(data: bytes | str) -> MalformedEvent | None:
    """What is wrong with the text as JSON, whatever it should mean."""
    try:
        _anything.decode(data)
    except _REFUSALS as error:
        return _malformed(error, data)
    return None


def _understood(name: str, found: dict[str, Any]) -> Body:
    taken = sorted(_ENVELOPE_FIELDS & found.keys())
    if taken:
        # in the flat form it would stand there twice, and the event could not be read back
        raise MalformedEvent("a field of the envelope in the body", f"$.{taken[0]}")
    kind = BY_NAME.get(name)
    if kind is None:
        return Unknown(name=name)
    return msgspec.convert(_known_part(found, inspect.type_info(kind)), kind)


def _known_part(found: Any, kind: inspect.Type) -> Any:
    """`found` without the fields that this release does not know, at any depth."""
    if isinstance(kind, inspect.UnionType):
        return _known_part(found, next((one for one in kind.types if _holds_structs(one)), kind.types[0]))
    if isinstance(kind, inspect.VarTupleType) and isinstance(found, list):
        return [_known_part(item, kind.item_type) for item in cast("list[Any]", found)]
    if isinstance(kind, inspect.StructType) and isinstance(found, dict):
        known = {one.encode_name: one.type for one in kind.fields}
        items = cast("dict[str, Any]", found).items()
        return {name: _known_part(value, known[name]) for name, value in items if name in known} | (
            {"type": kind.tag} if kind.tag is not None else {}
        )
    return found


def _holds_structs(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.StructType | inspect.VarTupleType)


def _malformed(error: Exception, data: bytes | str = b"") -> MalformedEvent:
    if isinstance(error, RecursionError):
        return MalformedEvent("nested too deep")
    if isinstance(error, UnicodeError):
        return MalformedEvent("not valid UTF-8", _place_of_bad_text(data))
    what = str(error)
    lone = _LONE_SURROGATE.search(data.encode() if isinstance(data, str) else data)
    if lone and "truncated" in what:
        return MalformedEvent("half of a surrogate pair", f"byte {lone.start(1)}")
    placed = _PLACE.match(what)
    if placed is None:
        return MalformedEvent(what, f"byte {len(data)}" if "truncated" in what else "$")
    return MalformedEvent(placed["what"], placed["path"] or placed["byte"])


def _place_of_bad_text(data: bytes | str) -> str:
    """msgspec counts from the start of the one text that is bad; a reader wants the place in the whole."""
    try:
        data.encode() if isinstance(data, str) else bytes(data).decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start}"
    except UnicodeEncodeError as error:
        return f"byte {len(error.object[: error.start].encode())}"
    return "$"
