"""openapi.json, from the route table and the types themselves: nothing is written twice."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

import quarterdeck
from quarterdeck.server.route import Route

_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"{(\w+)}")
_WHAT = {
    400: "Something in the request is wrong; the message names the field",
    401: "No token, or a wrong one",
    403: "A foreign Host or Origin, or a token that may only look",
    404: "There is no such thing",
    409: "Not allowed in this state; the message names the state and the hint what is allowed",
    413: "Too large",
    429: "Too many wrong tokens",
    503: "The log cannot be used now, or the server is closing",
}


class Problem(Struct, frozen=True):
    """What went wrong and what to do next."""

    code: str
    message: str
    hint: str


class ErrorBody(Struct, frozen=True):
    """Every error looks like this."""

    error: Problem


def openapi(routes: list[Route]) -> dict[str, Any]:
    """The whole document."""
    kinds = _kinds(routes)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    by_kind = dict(zip(map(_key, kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_kind, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Quarterdeck",
            "version": quarterdeck.__version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _key(kind: Any) -> str:
    return repr(kind)


def _kinds(routes: list[Route]) -> list[Any]:
    found: dict[str, Any] = {_key(ErrorBody): ErrorBody}
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
    parameters = [*_path_parameters(route), *_query_parameters(route, components)]
    if route.method != "GET":
        key = {"type": "string", "maxLength": 200}
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


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    schema = {"type": "string", "minLength": 1}
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in _PARAMETER.findall(route.path)]


def _query_parameters(route: Route, components: dict[str, Any]) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    described = components[route.query.__name__]
    required = described.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": schema}
        for name, schema in described["properties"].items()
    ]


def _responses(route: Route, by_kind: dict[str, Any]) -> dict[str, Any]:
    done: dict[str, Any] = {"description": "Done"}
    if route.answer is not None and route.status != 204:
        done["content"] = {"application/json": {"schema": by_kind[_key(route.answer)]}}
    refused = {"application/json": {"schema": by_kind[_key(ErrorBody)]}}
    statuses = sorted({400, 401, 403, 429, 503, *route.errors})
    return {str(route.status): done} | {
        str(status): {"description": _WHAT[status], "content": refused} for status in statuses
    }
