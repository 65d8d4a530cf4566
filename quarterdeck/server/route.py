"""The route table: for each route its method, path, body, query, answer and handler.

The server and `openapi.json` are both built from it. To add a route, write a function in `routes/` and decorate it with
`TABLE.add`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Meta, Struct

from quarterdeck.deck.deck import Deck
from quarterdeck.deck.session_api import SessionHandle
from quarterdeck.kernel.commands import KEY_LIMIT, Text
from quarterdeck.server.errors import BadRequest
from quarterdeck.server.tokens import Visitor

Method: TypeAlias = Literal["GET", "POST", "PATCH", "DELETE"]

#: An index of a log, or a time in milliseconds. JSON numbers are exact up to here.
Index: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
Variable: TypeAlias = Annotated[str, Meta(extra_json_schema={"pattern": r"^[^=\u0000]+$"})]


class Keyed(Struct, frozen=True, kw_only=True):
    """`client_id` is the caller's own key of the command: a command with the same key runs once."""

    client_id: Annotated[Text, Meta(max_length=KEY_LIMIT)] = ""


class Call(Struct, frozen=True):
    """A decoded request."""

    deck: Deck
    visitor: Visitor
    #: Parameters of the path.
    path: Mapping[str, str]
    #: Query and body have the route's types.
    query: Any
    body: Any
    client_id: str

    @property
    def session(self) -> SessionHandle:
        """The session that the path names.

        Raises:
            NoSuchSession: there is no such session.
        """
        return self.deck.session(self.path["id"])

    def key(self, part: str) -> str:
        """Return the caller's key for one of several commands that a request consists of."""
        if not self.client_id:
            return ""
        key = f"{self.client_id}/{part}"
        return key if len(key) <= KEY_LIMIT else f"{hashlib.sha256(key.encode(errors='replace')).hexdigest()}/{part}"


Handle: TypeAlias = Callable[[Call], Awaitable[Any]]


class Route(Struct, frozen=True, kw_only=True):
    """One route."""

    method: Method
    path: str
    summary: str
    handle: Handle
    answer: Any = None
    status: int = 200
    query: type[Struct] | None = None
    body: type[Struct] | None = None
    #: Statuses of errors besides those that every route may answer with.
    errors: tuple[int, ...] = ()
    example: Mapping[str, Any] | None = None
    #: Media types of an answer that isn't JSON of the type `answer`. The handler then returns the whole response.
    media: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The operation id for clients, such as `post_sessions_id_prompt`."""
        words = [word.strip("{}") for word in self.path.split("/") if word]
        return "_".join([self.method.lower(), *words])


class Table:
    """The routes of one file."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def add(self, method: Method, path: str, summary: str, **details: Any) -> Callable[[Handle], Handle]:
        """Register the decorated function as the handler of a route. `details` are fields of `Route`."""

        def register(handle: Handle) -> Handle:
            self.routes.append(Route(method=method, path=path, summary=summary, handle=handle, **details))
            return handle

        return register


# --- Bodies and queries


def read_body(kind: type[Struct], data: bytes) -> Any:
    """Decode the body of a request. No body is the same as an empty object.

    Raises:
        BadRequest: the body is invalid. The message names the field.
    """
    try:
        return _decode_body(kind, data or b"{}")
    except msgspec.ValidationError as error:
        raise BadRequest(_with_field_first(str(error)), "Look up the fields in /openapi.json.") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadRequest(f"the body isn't valid JSON: {error}", "Send one JSON object in UTF-8.") from None


def _decode_body(kind: type[Struct], data: bytes) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
    # msgspec refuses 7.0 as an integer, but JSON has one kind of number.
    return msgspec.convert(_whole_numbers_as_int(msgspec.json.decode(data)), kind)


def _whole_numbers_as_int(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _whole_numbers_as_int(item) for name, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_whole_numbers_as_int(item) for item in cast("list[Any]", value)]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_query(kind: type[Struct], parameters: Mapping[str, str]) -> Any:
    """Convert the parameters of an address, which are all texts.

    Raises:
        BadRequest: a parameter is invalid. The message names it.
    """
    try:
        return msgspec.convert(dict(parameters), kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(_with_field_first(str(error)), "Look up the parameters in /openapi.json.") from None


def _with_field_first(message: str) -> str:
    """Turn msgspec's "PROBLEM - at `$.FIELD`" into "FIELD: PROBLEM"."""
    problem, _, path = message.partition(" - at `$")
    field = path.rstrip("`").lstrip(".")
    return f"{field}: {problem}" if field else problem
