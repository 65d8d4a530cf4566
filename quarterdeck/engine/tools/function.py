"""`@quarterdeck.tool`: an annotated function becomes a tool.

The schema that a model is told comes from the annotations, its texts from the docstring or from `Annotated`. What the
model sends is held against the same annotations, and what does not fit is told to it by the argument's name.
"""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, NamedTuple, overload

import msgspec
from msgspec import Meta, Struct

from quarterdeck.engine.model import ToolSpec
from quarterdeck.engine.tools.base import Outcome, Tool, ToolContext
from quarterdeck.engine.tools.docstring import Docstring, parsed
from quarterdeck.engine.tools.threads import in_thread
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Image, Json

Function = Callable[..., Any]

#: What every provider takes as the name of a tool.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<place>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")


class InvalidTool(QuarterdeckError):
    """A function that cannot be a tool."""

    code = "invalid_tool"

    def __init__(self, name: str, what: str, hint: str = "Annotate every argument with a type of plain data.") -> None:
        super().__init__(f"{name} cannot be a tool: {what}", hint)


class FunctionTool(Tool, frozen=True, kw_only=True):
    """A tool made of a function; calling it calls the function, as if it had never been decorated."""

    function: Function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@overload
def tool(function: Function, /) -> FunctionTool: ...
@overload
def tool(
    *,
    name: str = "",
    description: str = "",
    killable: bool | None = None,
    immune: bool = False,
    needs_approval: bool = False,
    writes: bool = False,
    parallel: bool = True,
) -> Callable[[Function], FunctionTool]: ...
def tool(
    function: Function | None = None,
    /,
    *,
    name: str = "",
    description: str = "",
    killable: bool | None = None,
    immune: bool = False,
    needs_approval: bool = False,
    writes: bool = False,
    parallel: bool = True,
) -> FunctionTool | Callable[[Function], FunctionTool]:
    """Makes a tool of a function, plain (it runs in a thread) or async. InvalidTool.

    An argument that is annotated as `ToolContext` gets the context of the call and is not shown to the model. The
    function gives a text, an `Outcome`, an `Image`, or anything that msgspec can encode.

    A thread cannot be ended from outside, so a plain function is not `killable` unless that is said: then steering does
    not wait for it, and its result is dropped.
    """
    # where the function was written: annotations may name what is known only there
    names = sys._getframe(1).f_locals  # pyright: ignore[reportPrivateUsage]

    def made(function: Function) -> FunctionTool:
        is_async = inspect.iscoroutinefunction(function)
        plan = _planned(function, name or function.__name__, description, names)
        return FunctionTool(
            spec=plan.spec,
            run=_runner(function, plan, is_async),
            function=function,
            killable=is_async if killable is None else killable,
            immune=immune,
            needs_approval=needs_approval,
            writes=writes,
            parallel=parallel,
        )

    return made if function is None else made(function)


# --- what the function takes


class _Plan(NamedTuple):
    spec: ToolSpec
    arguments: type[Struct]
    fields: tuple[str, ...]
    context: tuple[str, ...]


def _planned(function: Function, name: str, description: str, names: Mapping[str, Any]) -> _Plan:
    if not _NAME.fullmatch(name):
        raise InvalidTool(name, "its name has other characters than letters, digits, _ and -", "Give it another name.")
    told = parsed(inspect.getdoc(function) or "")
    types = _types(function, name, names)
    context = tuple(key for key, kind in types.items() if kind is ToolContext)
    fields = [_field(one, types, told, name) for one in _parameters(function, name) if one.name not in context]
    arguments = _struct(name, fields)
    spec = ToolSpec(name, description or told.text, _schema(name, arguments))
    return _Plan(spec, arguments, tuple(field[0] for field in fields), context)


def _parameters(function: Function, name: str) -> list[inspect.Parameter]:
    found = list(inspect.signature(function).parameters.values())
    for one in found:
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            raise InvalidTool(
                name, f"a model cannot give {one}", "Name each argument, and let it be given by its name."
            )
    return found


def _types(function: Function, name: str, names: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, localns=dict(names), include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        raise InvalidTool(name, f"an annotation cannot be read: {error}") from error


def _field(one: inspect.Parameter, types: Mapping[str, Any], told: Docstring, name: str) -> tuple[str, Any, Any]:
    if one.name not in types:
        raise InvalidTool(name, f"argument {one.name} has no annotation")
    kind, text = _described(types[one.name])
    text = text or told.arguments.get(one.name, "")
    if text:
        kind = Annotated[kind, Meta(description=text)]
    return one.name, kind, _default(one.default)


def _described(kind: Any) -> tuple[Any, str]:
    """A plain string in `Annotated` is the argument's text; what else is there belongs to msgspec."""
    if typing.get_origin(kind) is not Annotated:
        return kind, ""
    inner, *notes = typing.get_args(kind)
    text = next((note for note in notes if isinstance(note, str)), "")
    metas = tuple(note for note in notes if isinstance(note, Meta))
    return (Annotated[(inner, *metas)] if metas else inner), text


def _default(value: Any) -> Any:
    if value is inspect.Parameter.empty:
        return msgspec.NODEFAULT
    if type(value) in (list, dict, set, bytearray) and value:
        return msgspec.field(default_factory=lambda: value.copy())
    return value


def _struct(name: str, fields: list[tuple[str, Any, Any]]) -> type[Struct]:
    try:
        return msgspec.defstruct(f"arguments of {name}", fields, forbid_unknown_fields=True, kw_only=True)
    except (TypeError, ValueError) as error:
        raise InvalidTool(name, str(error)) from error


def _schema(name: str, arguments: type[Struct]) -> dict[str, Json]:
    """An object at the top, as providers want it; what it refers to lies beside."""
    try:
        (top,), parts = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    except (TypeError, KeyError, msgspec.MsgspecError) as error:
        raise InvalidTool(name, f"no schema can be made of its annotations: {error}") from error
    schema = parts.pop(top["$ref"].removeprefix("#/$defs/"))
    del schema["title"]
    return {**schema, "$defs": parts} if parts else schema


# --- one call


def _runner(
    function: Function, plan: _Plan, is_async: bool
) -> Callable[[dict[str, Any], ToolContext], Awaitable[Outcome]]:
    async def run(args: dict[str, Any], context: ToolContext) -> Outcome:
        try:
            given = _arguments(args, plan)
        except msgspec.ValidationError as error:
            return Outcome(_complaint(str(error), plan), ok=False)
        for name in plan.context:
            given[name] = context
        try:
            value = await function(**given) if is_async else await in_thread(function, **given)
            return outcome_of(value)
        except QuarterdeckError as error:
            return failed(error)

    return run


def _arguments(args: Mapping[str, Any], plan: _Plan) -> dict[str, Any]:
    """As annotated. A 5 that was sent as "5" or as 5.0 can only mean one thing, and some models send that."""
    try:
        found = msgspec.convert(args, plan.arguments)
    except msgspec.ValidationError:
        try:
            found = msgspec.convert(args, plan.arguments, strict=False)
        except msgspec.ValidationError:
            found = None
        if found is None:
            raise
    return {name: getattr(found, name) for name in plan.fields}


def _complaint(error: str, plan: _Plan) -> str:
    found = _PLACE.match(error)
    what, place = (found["what"], (found["place"] or "").removeprefix(".")) if found else (error, "")
    inside = f"{place}." if place else ""
    if missing := _MISSING.match(what):
        return f"{plan.spec.name}: argument {inside}{missing[1]} is missing"
    if unknown := _UNKNOWN.match(what):
        takes = "" if place else f"; it takes {', '.join(plan.fields) or 'none'}"
        return f"{plan.spec.name}: there is no argument {inside}{unknown[1]}{takes}"
    return f"{plan.spec.name}: argument {place or '?'}: {what}"


def outcome_of(value: Any) -> Outcome:
    """What a function gave, as an outcome. TypeError when nobody could read it."""
    if isinstance(value, Outcome):
        return value
    if isinstance(value, str):
        return Outcome(value)
    if value is None:
        return Outcome("done")
    if isinstance(value, Image):
        return Outcome(value.media_type, images=(value,))
    return Outcome(msgspec.json.encode(value).decode(), value=msgspec.to_builtins(value))


def failed(error: QuarterdeckError) -> Outcome:
    """An error as the model is told of it."""
    return Outcome(f"{error.message}. {error.hint}" if error.hint else error.message, ok=False)
