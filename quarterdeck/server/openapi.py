"""openapi.json, from the route table and the types themselves: nothing is written twice."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

import quarterdeck
from quarterdeck.deck.validation import KEY_LIMIT
from quarterdeck.server.described import described
from quarterdeck.server.ingest import SECRET
from quarterdeck.server.refusals import WITH_A_BODY, ErrorBody, refusals
from quarterdeck.server.route import NO_NUL, Route
from quarterdeck.server.shapes import EventPage
from quarterdeck.server.socket import Command, Subscribe, Unsubscribe
from quarterdeck.server.sse import AllEventsQuery, EventsQuery
from quarterdeck.server.tokens import COOKIE

_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"{(\w+)}")


def openapi(routes: list[Route]) -> dict[str, Any]:
    """The whole document."""
    kinds = _kinds(routes)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    by_kind = dict(zip(map(_key, kinds), schemas, strict=True))
    components["Event"] = _EVENT
    components["EventPage"]["properties"]["events"] = {"type": "array", "items": {"$ref": _REF.format(name="Event")}}
    for image in components["Image"]["properties"].values():
        image["pattern"] = NO_NUL
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_kind, components)
    paths |= _streams(by_kind, components) | described()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Quarterdeck",
            "version": quarterdeck.__version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}, {"cookie": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": COOKIE},
                "secret": {"type": "apiKey", "in": "header", "name": SECRET},
            },
        },
    }


def _key(kind: Any) -> str:
    return repr(kind)


def _kinds(routes: list[Route]) -> list[Any]:
    others = (ErrorBody, EventPage, EventsQuery, AllEventsQuery, Subscribe, Unsubscribe, Command)
    found: dict[str, Any] = {_key(kind): kind for kind in others}
    for route in routes:
        for kind in (route.answer, route.body, route.query):
            if kind is not None:
                found.setdefault(_key(kind), kind)
    return list(found.values())


def _operation(route: Route, by_kind: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.says,
        "responses": _responses(route, by_kind),
    }
    parameters = [*_path_parameters(route.path), *_query_parameters(route.query, components)]
    if route.method != "GET":
        key = {"type": "string", "maxLength": KEY_LIMIT}
        parameters.append({"name": "Idempotency-Key", "in": "header", "required": False, "schema": key})
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        content: dict[str, Any] = {"schema": by_kind[_key(route.body)]}
        if route.example is not None:
            content["example"] = route.example
        operation["requestBody"] = {
            "required": bool(_required(route.body)),
            "content": {"application/json": content},
        }
    return operation


def _required(kind: type[Struct]) -> list[str]:
    return [one.name for one in msgspec.structs.fields(kind) if one.required]


def _path_parameters(path: str) -> list[dict[str, Any]]:
    schema = {"type": "string", "minLength": 1}
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in _PARAMETER.findall(path)]


def _query_parameters(query: type[Struct] | None, components: dict[str, Any]) -> list[dict[str, Any]]:
    if query is None:
        return []
    described = components[query.__name__]
    required = described.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": schema}
        for name, schema in described["properties"].items()
    ]


def _responses(route: Route, by_kind: dict[str, Any]) -> dict[str, Any]:
    done: dict[str, Any] = {"description": "Done"}
    if route.media:
        done["content"] = {kind: {"schema": {} if "json" in kind else {"type": "string"}} for kind in route.media}
    elif route.answer is not None and route.status != 204:
        done["content"] = {"application/json": {"schema": by_kind[_key(route.answer)]}}
    sent = () if route.body is None else WITH_A_BODY
    return {str(route.status): done} | refusals(*route.errors, *sent)


# --- streams

_EVENT = {
    "description": "Contract section 3: the envelope, and the fields of the type",
    "type": "object",
    "properties": {
        "session_id": {"type": "string"},
        "index": {"type": "integer"},
        "cursor": {"type": "string"},
        "at": {"type": "integer"},
        "origin": {"type": "string"},
        "type": {"type": "string"},
    },
    "required": ["session_id", "index", "at", "origin", "type"],
}
_LAST = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "The id of the last block that the reader has; it wins over `since`. What is no id of ours is ignored",
    "schema": {"type": "string"},
}
_BLOCKS = (
    "Server-Sent Events, for ever. `id` is the event's index (its cursor, where all sessions are read), `event` its type, "
    "`data` the event. Besides: `gap` and `snapshot` when `since` is beyond the log, `cursor` to move on without an "
    "event, `end` with a reason (deleted, shutdown). With Accept: application/json one page at once."
)
_EXAMPLE = 'id: 7\nevent: agent_end\ndata: {"session_id":"s1","index":7,"type":"agent_end"}\n\n'


def _streams(by_kind: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    return {
        "/events": {"get": _stream("/events", AllEventsQuery, by_kind, components, ())},
        "/sessions/{id}/events": {"get": _stream("/sessions/{id}/events", EventsQuery, by_kind, components, (404,))},
        "/ws": {"get": _socket(by_kind)},
    }


def _stream(
    path: str, query: type[Struct], by_kind: dict[str, Any], components: dict[str, Any], errors: tuple[int, ...]
) -> dict[str, Any]:
    blocks = {"schema": {"type": "string"}, "example": _EXAMPLE}
    page = {"schema": by_kind[_key(EventPage)]}
    answer = {"description": _BLOCKS, "content": {"text/event-stream": blocks, "application/json": page}}
    name = "_".join(["get", *(word.strip("{}") for word in path.split("/") if word)])
    return {
        "operationId": name,
        "summary": "Every event after a place, then whatever comes",
        "parameters": [*_path_parameters(path), *_query_parameters(query, components), _LAST],
        "responses": {"200": answer} | refusals(*errors),
    }


def _socket(by_kind: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI has no words for what is said over a WebSocket: the messages of a client are named here."""
    return {
        "operationId": "get_ws",
        "summary": "Many subscriptions and commands over one connection",
        "description": (
            "A WebSocket. The client says op subscribe, unsubscribe or command; the server says event, view, patch, "
            "snapshot, gap, receipt or error. A reader that comes back says the last index that it has as `since`."
        ),
        "x-messages": {"client": [by_kind[_key(kind)] for kind in (Subscribe, Unsubscribe, Command)]},
        "responses": {"101": {"description": "The WebSocket is open"}} | refusals(),
    }
