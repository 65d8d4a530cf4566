"""Convert events to JSON and back.

An event is stored as envelope columns plus the bytes of its body, and published as one flat JSON object. msgspec can't
flatten one struct into another, so the two are joined as bytes.

Bodies written by a newer release survive a round trip. If the fast decoder rejects a body, the slow path looks again: a
body of an unknown type, or of a known type with unknown fields, is accepted and its bytes are preserved in `raw`.
Anything else raises MalformedEvent with the position of the fault.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, Raw, Struct, inspect

from quarterdeck.errors import MalformedEvent
from quarterdeck.events.base import Body, Origin
from quarterdeck.events.catalogue import BY_NAME, NAMES, UNION

# ------------------------------------------------------------------------------------------ the envelope


class Unknown(Body):
    """A body of a type that this release doesn't know. It changes no state and its bytes are preserved."""

    name: str = ""


class Event(Struct, frozen=True, gc=False):
    """One line of a session's log. `raw` is set if the body's bytes contain more than `body` does."""

    session_id: str
    index: int
    at: int
    origin: Origin
    body: Body
    cursor: str = ""
    raw: bytes | None = None

    @property
    def type(self) -> str:
        return type_of(self.body)


class _Envelope(Struct, frozen=True):
    session_id: str
    index: Annotated[int, Meta(ge=1)]
    cursor: str
    at: Annotated[int, Meta(ge=0)]
    origin: Origin


_ENVELOPE_FIELDS = frozenset(_Envelope.__struct_fields__)

_body_decoder = msgspec.json.Decoder(UNION)
_envelope_decoder = msgspec.json.Decoder(_Envelope)
_object_decoder: msgspec.json.Decoder[dict[str, Raw]] = msgspec.json.Decoder(dict[str, Raw])
_json_decoder = msgspec.json.Decoder(cast("type[Any]", Any))
_encode = msgspec.json.Encoder().encode

#: What msgspec and Python's text codecs raise for bytes that aren't valid JSON of the expected shape. Deeply nested
#: JSON ends in a RecursionError.
_DECODE_ERRORS = (msgspec.MsgspecError, UnicodeError, RecursionError)


def type_of(body: Body) -> str:
    """Return the event name of a body."""
    name = NAMES.get(type(body))
    return cast("Unknown", body).name if name is None else name


# ---------------------------------------------------------------------------------- encoding and decoding


def decode_body(data: bytes | str) -> tuple[Body, bytes | None]:
    """Decode a body. The second value is the original bytes if they contain more than this release understands.

    Raises:
        MalformedEvent: the data isn't a body of any release.
    """
    try:
        return _body_decoder.decode(data), None
    except msgspec.ValidationError as error:
        return _decode_newer(data, error)
    except _DECODE_ERRORS as error:
        raise _malformed(error, data) from error


def encode_body(body: Body, raw: bytes | None = None) -> bytes:
    """Encode a body as one JSON object. If its original bytes were preserved, return those.

    Raises:
        MalformedEvent: the body contains a value that JSON can't represent.
    """
    if raw is not None:
        return raw
    try:
        return _encode(body)
    except (*_DECODE_ERRORS, TypeError) as error:
        raise _malformed(error) from error


def decode_event(data: bytes | str) -> Event:
    """Decode an event from its flat form.

    Raises:
        MalformedEvent: the data isn't an event.
    """
    try:
        envelope = _envelope_decoder.decode(data)
        fields = _object_decoder.decode(data)
    except _DECODE_ERRORS as error:
        raise _malformed(error, data) from error
    members = [_encode(name) + b":" + bytes(value) for name, value in fields.items() if name not in _ENVELOPE_FIELDS]
    try:
        body, raw = decode_body(b"{" + b",".join(members) + b"}")
    except MalformedEvent as error:
        # Byte positions in the body's bytes aren't positions in the event, so look for the fault in the event itself.
        raise _better_located(error, _json_fault(data) or error) from error
    return Event(envelope.session_id, envelope.index, envelope.at, envelope.origin, body, envelope.cursor, raw)


def encode_event(event: Event) -> bytes:
    """Encode an event in its flat form: the envelope's fields first, then the body's.

    Raises:
        MalformedEvent: the event contains a value that JSON can't represent.
    """
    envelope = _Envelope(event.session_id, event.index, event.cursor, event.at, event.origin)
    body = encode_body(event.body, event.raw)
    try:
        return _encode(envelope)[:-1] + b"," + body.lstrip()[1:]
    except (*_DECODE_ERRORS, TypeError) as error:
        raise _malformed(error) from error


# ------------------------------------------------------------------------------- bodies of newer releases


def _decode_newer(data: bytes | str, error: msgspec.ValidationError) -> tuple[Body, bytes]:
    """Decode a body that a newer release may have written, or raise the fast decoder's error."""
    try:
        value = _json_decoder.decode(data)
        name = cast("dict[str, Any]", value).get("type") if isinstance(value, dict) else None
        if not isinstance(name, str):
            raise _malformed(error) from error
        raw = data.encode() if isinstance(data, str) else bytes(data)
        return _convert_known_part(name, cast("dict[str, Any]", value)), raw
    except _DECODE_ERRORS as second_error:
        raise _better_located(_malformed(error), _malformed(second_error, data)) from second_error


def _convert_known_part(name: str, value: dict[str, Any]) -> Body:
    clashing = sorted(_ENVELOPE_FIELDS & value.keys())
    if clashing:
        # The flat form would contain this field twice, and the event couldn't be decoded again.
        raise MalformedEvent("a field of the envelope in the body", f"$.{clashing[0]}")
    kind = BY_NAME.get(name)
    if kind is None:
        return Unknown(name=name)
    return msgspec.convert(_without_unknown_fields(value, inspect.type_info(kind)), kind)


def _without_unknown_fields(value: Any, kind: inspect.Type) -> Any:
    """Remove the fields that this release doesn't know, at any depth."""
    if isinstance(kind, inspect.UnionType):
        member = next((member for member in kind.types if _contains_structs(member)), kind.types[0])
        return _without_unknown_fields(value, member)
    if isinstance(kind, inspect.VarTupleType) and isinstance(value, list):
        return [_without_unknown_fields(item, kind.item_type) for item in cast("list[Any]", value)]
    if isinstance(kind, inspect.StructType) and isinstance(value, dict):
        types = {field.encode_name: field.type for field in kind.fields}
        members = cast("dict[str, Any]", value).items()
        return {name: _without_unknown_fields(item, types[name]) for name, item in members if name in types} | (
            {"type": kind.tag} if kind.tag is not None else {}
        )
    return value


def _contains_structs(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.StructType | inspect.VarTupleType)


# -------------------------------------------------------------------------------------- locating a fault

_LOCATED_MESSAGE = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>.+)`| \((?P<byte>byte \d+)\))$", re.DOTALL)
#: An escaped high surrogate without its low half. Near the end of the input msgspec reports it as truncated data, which
#: is misleading.
_LONE_SURROGATE = re.compile(rb"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})(?!\\u[dD][c-fC-F])")


def _malformed(error: Exception, data: bytes | str = b"") -> MalformedEvent:
    if isinstance(error, RecursionError):
        return MalformedEvent("nested too deep")
    if isinstance(error, UnicodeError):
        return MalformedEvent("not valid UTF-8", _bad_text_position(data))
    what = str(error)
    lone = _LONE_SURROGATE.search(data.encode() if isinstance(data, str) else data)
    if lone and "truncated" in what:
        return MalformedEvent("half of a surrogate pair", f"byte {lone.start(1)}")
    located = _LOCATED_MESSAGE.match(what)
    if located is None:
        return MalformedEvent(what, f"byte {len(data)}" if "truncated" in what else "$")
    return MalformedEvent(located["what"], located["path"] or located["byte"])


def _better_located(first: MalformedEvent, second: MalformedEvent) -> MalformedEvent:
    """Choose the error with the more useful position.

    The second attempt reads the whole text but knows no types, so it may report the same fault without naming the field.
    """
    return first if first.what == second.what and second.where.endswith("[...]") else second


def _json_fault(data: bytes | str) -> MalformedEvent | None:
    """Return what is wrong with the data as plain JSON, regardless of types."""
    try:
        _json_decoder.decode(data)
    except _DECODE_ERRORS as error:
        return _malformed(error, data)
    return None


def _bad_text_position(data: bytes | str) -> str:
    """Locate invalid text in the whole data. msgspec counts from the start of the one string that is invalid."""
    try:
        data.encode() if isinstance(data, str) else bytes(data).decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start}"
    except UnicodeEncodeError as error:
        return f"byte {len(error.object[: error.start].encode())}"
    return "$"
