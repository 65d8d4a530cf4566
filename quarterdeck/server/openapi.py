"""Generate `openapi.json` from the route table and the types of bodies and answers.

Routes outside the table (streams, the page, the login, hooks) are described at the end of this file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

import msgspec
from msgspec import Struct

import quarterdeck
from quarterdeck.deck.login import Source
from quarterdeck.harness import hooks
from quarterdeck.kernel.commands import KEY_LIMIT, NO_NUL
from quarterdeck.server.auth import SECRET
from quarterdeck.server.route import Route
from quarterdeck.server.shapes import EventPage
from quarterdeck.server.socket import Command, Subscribe, Unsubscribe
from quarterdeck.server.sse import AllEventsQuery, EventsQuery
from quarterdeck.server.tokens import COOKIE

_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"{(\w+)}")


def openapi(routes: list[Route]) -> dict[str, Any]:
    """Return the whole document."""
    types = _types(routes)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    by_type = dict(zip(map(repr, types), schemas, strict=True))
    components["Event"] = _EVENT
    components["EventPage"]["properties"]["events"] = {"type": "array", "items": {"$ref": _REF.format(name="Event")}}
    for image in components["Image"]["properties"].values():
        image["pattern"] = NO_NUL
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type, components)
    paths |= _stream_paths(by_type, components) | _server_paths() | _ingest_paths()
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


def _types(routes: list[Route]) -> list[Any]:
    """Return every type that the document describes, once. Some aren't hashable, so they are told apart by `repr`."""
    others = (ErrorBody, EventPage, EventsQuery, AllEventsQuery, Subscribe, Unsubscribe, Command)
    types: dict[str, Any] = {repr(kind): kind for kind in others}
    for route in routes:
        for kind in (route.answer, route.body, route.query):
            if kind is not None:
                types.setdefault(repr(kind), kind)
    return list(types.values())


# --- Errors


class Problem(Struct, frozen=True):
    """What happened, and what to do next."""

    code: str
    message: str
    hint: str


class ErrorBody(Struct, frozen=True):
    """The body of every error."""

    error: Problem


_STATUS_HELP = {
    400: "The request is invalid; the message names the field",
    401: "The token is missing or wrong",
    403: "A foreign Host or Origin, or a token with the role view",
    404: "Not found",
    408: "The body didn't arrive in time",
    409: "Not allowed in this state; the message names the state, the hint what is allowed",
    413: "Too large",
    429: "Too many wrong tokens",
    503: "The log or git can't be used now, or the server is shutting down",
}
#: Statuses of every route.
_COMMON_STATUSES = (400, 401, 403, 429, 503)
#: Statuses of every route with a body.
_BODY_STATUSES = (408, 413)


def _errors(*statuses: int) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": _REF.format(name="ErrorBody")}}}
    return {
        str(status): {"description": _STATUS_HELP[status], "content": content}
        for status in sorted({*_COMMON_STATUSES, *statuses})
    }


# --- Routes of the table


def _operation(route: Route, by_type: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "responses": _responses(route, by_type),
    }
    parameters = [*_path_parameters(route.path), *_query_parameters(route.query, components)]
    if route.method != "GET":
        key = {"type": "string", "maxLength": KEY_LIMIT}
        parameters.append({"name": "Idempotency-Key", "in": "header", "required": False, "schema": key})
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        content: dict[str, Any] = {"schema": by_type[repr(route.body)]}
        if route.example is not None:
            content["example"] = route.example
        is_required = any(field.required for field in msgspec.structs.fields(route.body))
        operation["requestBody"] = {"required": is_required, "content": {"application/json": content}}
    return operation


def _path_parameters(path: str) -> list[dict[str, Any]]:
    schema = {"type": "string", "minLength": 1}
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in _PARAMETER.findall(path)]


def _query_parameters(query: type[Struct] | None, components: dict[str, Any]) -> list[dict[str, Any]]:
    if query is None:
        return []
    component = components[query.__name__]
    required = component.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": schema}
        for name, schema in component["properties"].items()
    ]


def _responses(route: Route, by_type: dict[str, Any]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "Done"}
    if route.media:
        success["content"] = {kind: {"schema": {} if "json" in kind else {"type": "string"}} for kind in route.media}
    elif route.answer is not None and route.status != 204:
        success["content"] = {"application/json": {"schema": by_type[repr(route.answer)]}}
    body_statuses = () if route.body is None else _BODY_STATUSES
    return {str(route.status): success} | _errors(*route.errors, *body_statuses)


# --- Streams

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
_LAST_EVENT_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "Id of the last block that the client has. Overrides `since`. An invalid id is ignored",
    "schema": {"type": "string"},
}
_STREAM_HELP = (
    "Server-Sent Events without end. `id` is the event's index (in the stream of all sessions, its cursor), `event` its "
    "type, `data` the event. Other blocks: `gap` and `snapshot` if `since` is beyond the log, `cursor` to advance without "
    "an event, `end` with a reason (deleted, shutdown). With Accept: application/json, one page at once."
)
_STREAM_EXAMPLE = 'id: 7\nevent: agent_end\ndata: {"session_id":"s1","index":7,"type":"agent_end"}\n\n'


def _stream_paths(by_type: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    session_path = "/sessions/{id}/events"
    return {
        "/events": {"get": _stream("/events", AllEventsQuery, by_type, components)},
        session_path: {"get": _stream(session_path, EventsQuery, by_type, components, 404)},
        "/ws": {"get": _socket(by_type)},
    }


def _stream(
    path: str, query: type[Struct], by_type: dict[str, Any], components: dict[str, Any], *errors: int
) -> dict[str, Any]:
    blocks = {"schema": {"type": "string"}, "example": _STREAM_EXAMPLE}
    page = {"schema": by_type[repr(EventPage)]}
    success = {"description": _STREAM_HELP, "content": {"text/event-stream": blocks, "application/json": page}}
    name = "_".join(["get", *(word.strip("{}") for word in path.split("/") if word)])
    return {
        "operationId": name,
        "summary": "Stream all events after a position",
        "parameters": [*_path_parameters(path), *_query_parameters(query, components), _LAST_EVENT_ID],
        "responses": {"200": success} | _errors(*errors),
    }


def _socket(by_type: dict[str, Any]) -> dict[str, Any]:
    """Describe the WebSocket. OpenAPI can't express its messages, so an extension lists those of the client."""
    return {
        "operationId": "get_ws",
        "summary": "Open a WebSocket for subscriptions and commands",
        "description": (
            "The client sends op subscribe, unsubscribe or command. The server sends event, view, patch, snapshot, gap, "
            "receipt or error. To continue after a reconnect, send the last index that you have as `since`."
        ),
        "x-messages": {"client": [by_type[repr(kind)] for kind in (Subscribe, Unsubscribe, Command)]},
        "responses": {"101": {"description": "The WebSocket is open"}} | _errors(),
    }


# --- The page, the login, health and metrics

_OBJECT = {"type": "object"}
_NO_TOKEN: list[Any] = []


def _server_paths() -> dict[str, Any]:
    environment = {"enum": list(get_args(Source))}
    healthy = _json_content("The log can be read and written", _object(status={"const": "ok"}, environment=environment))
    page = _text_content("The page. It needs no token; the data it shows does", "text/html")
    return {
        "/": {"get": _get("get_page", "Get the page", page) | {"security": _NO_TOKEN}},
        "/healthz": {"get": _get("get_healthz", "Check whether the server works", healthy) | {"security": _NO_TOKEN}},
        "/openapi.json": {
            "get": _get("get_openapi.json", "Get this document", _json_content("This document", _OBJECT))
        },
        "/metrics": {
            "get": _get("get_metrics", "Get the server's metrics", _text_content("For Prometheus", "text/plain"))
        },
        "/login": {"get": _login()},
        "/login/code": {"post": _login_code()},
    }


def _get(operation_id: str, summary: str, success: Mapping[str, Any]) -> dict[str, Any]:
    return {"operationId": operation_id, "summary": summary, "responses": {"200": success} | _errors()}


def _json_content(description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _text_content(description: str, media_type: str) -> dict[str, Any]:
    return {"description": description, "content": {media_type: {"schema": {"type": "string"}}}}


def _object(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}


def _login() -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "query", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in {"token": "A token", "code": "A code from `POST /login/code`"}.items()
    ]
    headers = {name: {"schema": {"type": "string"}} for name in ("Location", "Set-Cookie")}
    success = {"description": "The token is in a cookie; the page is at /", "headers": headers}
    return {
        "operationId": "get_login",
        "summary": "Move a token from the address into a cookie",
        "security": _NO_TOKEN,
        "parameters": parameters,
        "responses": {"303": success} | _errors(),
    }


def _login_code() -> dict[str, Any]:
    created = _json_content("Works for `GET /login`, once and for a minute", _object(code={"type": "string"}))
    return {
        "operationId": "post_login_code",
        "summary": "Create a code to log a browser in",
        "responses": {"201": created} | _errors(),
    }


# --- Agents

#: Agents send a secret instead of a token.
_SECRET = [{"secret": list[str]()}]
_SESSION_ID: dict[str, Any] = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
}
_NATIVE_ID = {"type": "string", "pattern": "^[ -~]{1,200}$", "description": "The agent's own id of the conversation"}
#: Other fields aren't checked: what an agent sends is recorded as it is.
_HOOK = {"type": "object", "description": "The hook's payload as the agent gave it"}
_HOOK_EXAMPLE = {"session_id": "0b2c", "hook_event_name": "UserPromptSubmit", "cwd": "/project", "prompt": "Hello"}


def _ingest_paths() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for agent in hooks.AGENTS:
        observed = _HOOK | {"properties": {"session_id": _NATIVE_ID}, "required": ["session_id"]}
        paths[f"/ingest/{agent}"] = {"post": _hook(agent, f"post_ingest_{agent}", observed)}
        launched = _hook(agent, f"post_ingest_{agent}_id", _HOOK, 404, 409) | {"parameters": [_SESSION_ID]}
        paths[f"/ingest/{agent}/{{id}}"] = {"post": launched}
    paths["/ingest/otlp/v1/logs"] = {"post": _otlp_logs()}
    return paths


def _hook(agent: str, operation_id: str, schema: Mapping[str, Any], *errors: int) -> dict[str, Any]:
    success = _json_content("An empty object, or the decision that the hook asks for", _OBJECT)
    content = {"application/json": {"schema": schema, "example": _HOOK_EXAMPLE}}
    return {
        "operationId": operation_id,
        "summary": f"Receive a hook of {agent}",
        "security": _SECRET,
        "requestBody": {"required": True, "content": content},
        "responses": {"200": success} | _errors(*errors, *_BODY_STATUSES),
    }


def _otlp_logs() -> dict[str, Any]:
    request: dict[str, Any] = {
        "application/json": {"schema": _OBJECT, "example": {"resourceLogs": []}},
        "application/x-protobuf": {"schema": {"type": "string", "format": "binary"}},
    }
    response = {"application/json": {"schema": _OBJECT}, "application/x-protobuf": {"schema": {"type": "string"}}}
    return {
        "operationId": "post_ingest_otlp_v1_logs",
        "summary": "Receive OTLP log records of Codex, plain or gzip",
        "security": _SECRET,
        "requestBody": {"required": True, "content": request},
        "responses": {"200": {"description": "Accepted", "content": response}} | _errors(*_BODY_STATUSES),
    }
