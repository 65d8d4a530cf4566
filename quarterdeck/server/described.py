"""What is at the server besides the route table, described for openapi.json: the page, the login, what the server says of
itself, and the doors of agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from quarterdeck.deck.login import Source
from quarterdeck.harness import hooks
from quarterdeck.server.refusals import WITH_A_BODY, refusals

_ID: dict[str, Any] = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
_OBJECT = {"type": "object"}
#: Where the environment of agents comes from: `server` is not what is usual.
_SOURCE = {"enum": list(get_args(Source))}
#: What opens the doors of agents, and nothing else.
_SECRET = [{"secret": list[str]()}]
_OPEN: list[Any] = []


def described() -> dict[str, Any]:
    """By path."""
    return {
        "/": {"get": _page()},
        "/healthz": {"get": _health()},
        "/openapi.json": {"get": _get("/openapi.json", "What can be asked", _answer("This document", _OBJECT))},
        "/metrics": {"get": _get("/metrics", "What the server counts", _text("For Prometheus", "text/plain"))},
        "/login": {"get": _login()},
        "/login/code": {"post": _code()},
        **_hooks(),
        "/ingest/otlp/v1/logs": {"post": _logs()},
    }


def _get(path: str, says: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    name = "_".join(["get", *(word for word in path.split("/") if word)])
    return {"operationId": name, "summary": says, "responses": {"200": answer} | refusals()}


def _answer(says: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": says, "content": {"application/json": {"schema": schema}}}


def _text(says: str, kind: str) -> dict[str, Any]:
    return {"description": says, "content": {kind: {"schema": {"type": "string"}}}}


def _constant(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}


def _page() -> dict[str, Any]:
    return _get("/page", "The page", _text("It needs no token; what it shows does", "text/html")) | {"security": _OPEN}


def _health() -> dict[str, Any]:
    answer = _answer("The log can be read and written", _constant(status={"const": "ok"}, environment=_SOURCE))
    return _get("/healthz", "Whether the server works", answer) | {"security": _OPEN}


# --- login


def _login() -> dict[str, Any]:
    told = {"token": "A token of a person", "code": "A code of `POST /login/code`"}
    parameters = [
        {"name": name, "in": "query", "required": False, "description": says, "schema": {"type": "string"}}
        for name, says in told.items()
    ]
    headers = {name: {"schema": {"type": "string"}} for name in ("Location", "Set-Cookie")}
    moved = {"description": "The token is in a cookie now, and the page is at /", "headers": headers}
    return {
        "operationId": "get_login",
        "summary": "Moves a token from the address into a cookie",
        "security": _OPEN,
        "parameters": parameters,
        "responses": {"303": moved} | refusals(),
    }


def _code() -> dict[str, Any]:
    made = _answer("It opens `GET /login` once, within a minute", _constant(code={"type": "string"}))
    return {
        "operationId": "post_login_code",
        "summary": "A code to log a browser in with",
        "responses": {"201": made} | refusals(),
    }


# --- the doors of agents

_NAMED = {"type": "string", "pattern": "^[ -~]{1,200}$", "description": "The agent's own name for the conversation"}
#: Nothing else of it is checked: what an agent says is recorded as it is.
_HOOK = {"type": "object", "description": "The hook's payload as the agent gave it"}
_EXAMPLE = {"session_id": "0b2c", "hook_event_name": "UserPromptSubmit", "cwd": "/project", "prompt": "Hello"}


def _hooks() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for agent in hooks.AGENTS:
        theirs = _HOOK | {"properties": {"session_id": _NAMED}, "required": ["session_id"]}
        found[f"/ingest/{agent}"] = {"post": _hook(agent, f"post_ingest_{agent}", theirs)}
        ours = _hook(agent, f"post_ingest_{agent}_id", _HOOK, 404, 409) | {"parameters": [_ID]}
        found[f"/ingest/{agent}/{{id}}"] = {"post": ours}
    return found


def _hook(agent: str, name: str, schema: Mapping[str, Any], *errors: int) -> dict[str, Any]:
    heard = _answer("Heard: an empty object, or the decision on what the hook asks", _OBJECT)
    body = {"application/json": {"schema": schema, "example": _EXAMPLE}}
    return {
        "operationId": name,
        "summary": f"A hook of {agent}, in a terminal or of a session",
        "security": _SECRET,
        "requestBody": {"required": True, "content": body},
        "responses": {"200": heard} | refusals(*errors, *WITH_A_BODY),
    }


def _logs() -> dict[str, Any]:
    bodies: dict[str, Any] = {
        "application/json": {"schema": _OBJECT, "example": {"resourceLogs": []}},
        "application/x-protobuf": {"schema": {"type": "string", "format": "binary"}},
    }
    taken = {"application/json": {"schema": _OBJECT}, "application/x-protobuf": {"schema": {"type": "string"}}}
    return {
        "operationId": "post_ingest_otlp_v1_logs",
        "summary": "Log records of Codex by OTLP, plain or gzip",
        "security": _SECRET,
        "requestBody": {"required": True, "content": bodies},
        "responses": {"200": {"description": "Taken", "content": taken}} | refusals(*WITH_A_BODY),
    }
