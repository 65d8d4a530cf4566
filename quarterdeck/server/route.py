"""A route as data: what comes in, what goes out, what does it. The server and openapi.json are both made from it."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Meta, Struct

from quarterdeck.deck.deck import Deck
from quarterdeck.deck.handle import SessionHandle
from quarterdeck.deck.validation import KEY_LIMIT
from quarterdeck.server.errors import BadRequest
from quarterdeck.server.tokens import Visitor

Method: TypeAlias = Literal["GET", "POST", "PATCH", "DELETE"]


#: A place in a log, or a time: what fits a JSON number.
Index: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
#: Texts are checked by the deck, which says what is wrong with one; these only tell clients beforehand.
NO_NUL = r"^[^\u0000]*$"
Text: TypeAlias = Annotated[str, Meta(extra_json_schema={"pattern": NO_NUL})]
Variable: TypeAlias = Annotated[str, Meta(extra_json_schema={"pattern": r"^[^=\u0000]+$"})]
WORDS = r"^[^\u0000]*[^\s\u0000][^\u0000]*$"
Words: TypeAlias = Annotated[str, Meta(extra_json_schema={"pattern": WORDS})]


class Keyed(Struct, frozen=True, kw_only=True):
    """What every body may have: the caller's own key of the command."""

    client_id: Annotated[Text, Meta(max_length=KEY_LIMIT)] = ""


class Call(Struct, frozen=True):
    """One request, read. `path` has what the address names, `query` and `body` are of the route's types."""

    deck: Deck
    visitor: Visitor
    path: Mapping[str, str]
    query: Any
    body: Any
    client_id: str

    @property
    def session(self) -> SessionHandle:
        """The session of the address; NoSuchSession."""
        return self.deck.session(self.path["id"])

    def key(self, part: str) -> str:
        """The caller's key for one of several commands that a request stands for."""
        if not self.client_id:
            return ""
        key = f"{self.client_id}/{part}"
        return key if len(key) <= KEY_LIMIT else f"{hashlib.sha256(key.encode(errors='replace')).hexdigest()}/{part}"


Handle: TypeAlias = Callable[[Call], Awaitable[Any]]


class Route(Struct, frozen=True, kw_only=True):
    """`errors` are the codes that this route may answer with besides those that every route may."""

    method: Method
    path: str
    says: str
    handle: Handle
    answer: Any = None
    status: int = 200
    query: type[Struct] | None = None
    body: type[Struct] | None = None
    errors: tuple[int, ...] = ()
    example: Mapping[str, Any] | None = None
    #: What the answer is where it is no JSON of the type `answer`; the handler then gives the whole response.
    media: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For clients: `post_sessions_id_prompt`."""
        words = [word.strip("{}") for word in self.path.split("/") if word]
        return "_".join([self.method.lower(), *words])


class Table:
    """Routes by the order in which they are told."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def add(self, method: Method, path: str, says: str, **details: Any) -> Callable[[Handle], Handle]:
        """A decorator: this function handles that."""

        def register(handle: Handle) -> Handle:
            self.routes.append(Route(method=method, path=path, says=says, handle=handle, **details))
            return handle

        return register


def read_body(kind: type[Struct], data: bytes) -> Any:
    """The body of a request; BadRequest names the field that is wrong. No body is an empty object."""
    try:
        return _decoded(kind, data or b"{}")
    except msgspec.ValidationError as error:
        raise BadRequest(_said(str(error)), "See /openapi.json for the fields.") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON: {error}", "Send one JSON object in UTF-8.") from None


def _decoded(kind: type[Struct], data: bytes) -> Any:
    """JSON knows one kind of number, so 7.0 is as whole as 7; our decoder thinks otherwise, and is told only then."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
    return msgspec.convert(_whole(msgspec.json.decode(data)), kind)


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _whole(one) for name, one in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_whole(one) for one in cast("list[Any]", value)]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_query(kind: type[Struct], found: Mapping[str, str]) -> Any:
    """The parameters of an address, which are all texts."""
    try:
        return msgspec.convert(dict(found), kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(_said(str(error)), "See /openapi.json for the parameters.") from None


def _said(message: str) -> str:
    """msgspec's words with the field in front."""
    what, _, where = message.partition(" - at `$")
    field = where.rstrip("`").lstrip(".")
    return f"{field}: {what}" if field else what
