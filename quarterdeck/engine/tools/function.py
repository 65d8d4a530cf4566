"""Turn an annotated function into a tool: `@quarterdeck.tool`.

The annotations give the JSON schema, and the docstring or `Annotated` gives the descriptions. Arguments from the model are
validated against the same annotations. Errors name the argument, so the model can correct it.
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
from quarterdeck.engine.tools.threads import run_in_thread
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Image, Json

Function = Callable[..., Any]

#: Tool names that every provider accepts.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")

# Messages of msgspec's validation errors.
_LOCATION = re.compile(r"^(?P<problem>.*?)(?: - at `\$(?P<location>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")


class InvalidTool(QuarterdeckError):
    """A function that can't be used as a tool."""

    code = "invalid_tool"

    def __init__(self, name: str, reason: str, hint: str = "Annotate every argument with a plain data type.") -> None:
        super().__init__(f"{name} can't be a tool: {reason}", hint)


class FunctionTool(Tool, frozen=True, kw_only=True):
    """A tool made from a function. Calling it calls the function, as if it weren't decorated."""

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
    """Make a tool from a function. An async function runs on the event loop, any other in a thread.

    An argument annotated as `ToolContext` gets the context of the call and isn't shown to the model. The function returns
    a text, an `Outcome`, an `Image`, or anything that msgspec can encode.

    A thread can't be stopped from outside, so a plain function isn't killable by default. With `killable=True` a steering
    message doesn't wait for it, and its result is dropped.

    Raises:
        InvalidTool: an argument isn't annotated, or its type has no JSON schema.
    """
    # Local names of the place where the function is defined, because annotations may refer to them.
    local_names = sys._getframe(1).f_locals  # pyright: ignore[reportPrivateUsage]

    def decorate(function: Function) -> FunctionTool:
        is_async = inspect.iscoroutinefunction(function)
        signature = _inspect_signature(function, name or function.__name__, description, local_names)
        return FunctionTool(
            spec=signature.spec,
            run=_make_run(function, signature, is_async),
            function=function,
            killable=is_async if killable is None else killable,
            immune=immune,
            needs_approval=needs_approval,
            writes=writes,
            parallel=parallel,
        )

    return decorate if function is None else decorate(function)


# ------------------------------------------------------------------------------------------- from function to schema


class _Signature(NamedTuple):
    spec: ToolSpec
    #: A struct with one field for each argument that the model sends.
    arguments: type[Struct]
    fields: tuple[str, ...]
    #: Names of the arguments that get the ToolContext.
    context_arguments: tuple[str, ...]


def _inspect_signature(function: Function, name: str, description: str, local_names: Mapping[str, Any]) -> _Signature:
    if not _NAME.fullmatch(name):
        raise InvalidTool(name, "its name has characters other than letters, digits, _ and -", "Choose another name.")
    docstring = parse_docstring(inspect.getdoc(function) or "")
    types = _resolve_types(function, name, local_names)
    context_arguments = tuple(key for key, annotation in types.items() if annotation is ToolContext)
    fields = [
        _make_field(parameter, types, docstring, name)
        for parameter in _parameters(function, name)
        if parameter.name not in context_arguments
    ]
    arguments = _make_struct(name, fields)
    spec = ToolSpec(name, description or docstring.text, _make_schema(name, arguments))
    return _Signature(spec, arguments, tuple(field[0] for field in fields), context_arguments)


def _parameters(function: Function, name: str) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidTool(
                name, f"a model can't pass {parameter}", "Make every argument one that can be passed by name."
            )
    return parameters


def _resolve_types(function: Function, name: str, local_names: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, localns=dict(local_names), include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        raise InvalidTool(name, f"an annotation can't be evaluated: {error}") from error


def _make_field(
    parameter: inspect.Parameter, types: Mapping[str, Any], docstring: Docstring, name: str
) -> tuple[str, Any, Any]:
    if parameter.name not in types:
        raise InvalidTool(name, f"argument {parameter.name} has no annotation")
    annotation, text = _split_annotation(types[parameter.name])
    text = text or docstring.arguments.get(parameter.name, "")
    if text:
        annotation = Annotated[annotation, Meta(description=text)]
    return parameter.name, annotation, _make_default(parameter.default)


def _split_annotation(annotation: Any) -> tuple[Any, str]:
    """Separate the description, a plain string in `Annotated`, from the type and msgspec's own metadata."""
    if typing.get_origin(annotation) is not Annotated:
        return annotation, ""
    inner, *metadata = typing.get_args(annotation)
    text = next((item for item in metadata if isinstance(item, str)), "")
    metas = tuple(item for item in metadata if isinstance(item, Meta))
    return (Annotated[(inner, *metas)] if metas else inner), text


def _make_default(value: Any) -> Any:
    if value is inspect.Parameter.empty:
        return msgspec.NODEFAULT
    if type(value) in (list, dict, set, bytearray) and value:
        return msgspec.field(default_factory=lambda: value.copy())
    return value


def _make_struct(name: str, fields: list[tuple[str, Any, Any]]) -> type[Struct]:
    try:
        return msgspec.defstruct(f"arguments of {name}", fields, forbid_unknown_fields=True, kw_only=True)
    except (TypeError, ValueError) as error:
        raise InvalidTool(name, str(error)) from error


def _make_schema(name: str, arguments: type[Struct]) -> dict[str, Json]:
    """Return a schema with an object at the top, as providers require, and referenced types under $defs."""
    try:
        (top,), definitions = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    except (TypeError, KeyError, msgspec.MsgspecError) as error:
        raise InvalidTool(name, f"its annotations have no JSON schema: {error}") from error
    schema = definitions.pop(top["$ref"].removeprefix("#/$defs/"))
    del schema["title"]
    return {**schema, "$defs": definitions} if definitions else schema


# -------------------------------------------------------------------------------------------------------- docstrings

_ARGUMENTS_HEADING = re.compile(r"^(Args|Arguments|Parameters):\s*$")
_OTHER_HEADING = re.compile(r"^(Returns?|Raises|Yields?|Examples?|Notes?):\s*$")
_ARGUMENT = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_PARAM_FIELD = re.compile(r"^:param\s+(?:[^:]*\s)?(\w+):\s*(.*)$")


class Docstring(NamedTuple):
    #: The description of the function.
    text: str
    #: The description of each argument.
    arguments: dict[str, str]


def parse_docstring(docstring: str) -> Docstring:
    """Read a docstring that was cleaned by `inspect.getdoc`. Understands `Args:` sections and `:param name:` fields."""
    text: list[str] = []
    arguments: dict[str, list[str]] = {}
    section, current, depth = "text", None, 0
    for line in docstring.splitlines():
        bare, indent = line.strip(), len(line) - len(line.lstrip())
        if _ARGUMENTS_HEADING.match(line):
            section, current, depth = "arguments", None, 0
        elif _OTHER_HEADING.match(line) or bare.startswith((":return", ":raise", ":rtype")):
            section = "other"
        elif field := _PARAM_FIELD.match(bare):
            section, current = "field", arguments.setdefault(field[1], [field[2]])
        elif section == "arguments" and bare and indent == 0:
            section = "text"
            text.append(line)
        elif section == "arguments" and bare and (argument := _ARGUMENT.match(bare)) and indent <= (depth or indent):
            depth = indent
            current = arguments.setdefault(argument[1], [argument[2]])
        elif section in ("arguments", "field") and current is not None and bare:
            current.append(bare)
        elif section == "text":
            text.append(line)
    return Docstring("\n".join(text).strip(), {name: " ".join(words).strip() for name, words in arguments.items()})


# -------------------------------------------------------------------------------------------------------- one call


def _make_run(
    function: Function, signature: _Signature, is_async: bool
) -> Callable[[dict[str, Any], ToolContext], Awaitable[Outcome]]:
    async def run(args: dict[str, Any], context: ToolContext) -> Outcome:
        try:
            arguments = _validate_arguments(args, signature)
        except msgspec.ValidationError as error:
            return Outcome(_explain_invalid(str(error), signature), ok=False)
        for name in signature.context_arguments:
            arguments[name] = context
        try:
            value = await function(**arguments) if is_async else await run_in_thread(function, **arguments)
            return outcome_of(value)
        except QuarterdeckError as error:
            return failed_outcome(error)

    return run


def _validate_arguments(args: Mapping[str, Any], signature: _Signature) -> dict[str, Any]:
    try:
        values = msgspec.convert(args, signature.arguments)
    except msgspec.ValidationError as strict_error:
        # Some models send 5 as "5" or 5.0. Accept that, but report the strict error if it still doesn't fit.
        try:
            values = msgspec.convert(args, signature.arguments, strict=False)
        except msgspec.ValidationError:
            raise strict_error from None
    return {name: getattr(values, name) for name in signature.fields}


def _explain_invalid(error: str, signature: _Signature) -> str:
    match = _LOCATION.match(error)
    problem, location = (match["problem"], (match["location"] or "").removeprefix(".")) if match else (error, "")
    prefix = f"{location}." if location else ""
    if missing := _MISSING.match(problem):
        return f"{signature.spec.name}: argument {prefix}{missing[1]} is missing"
    if unknown := _UNKNOWN.match(problem):
        known = "" if location else f"; the arguments are {', '.join(signature.fields) or 'none'}"
        return f"{signature.spec.name}: there is no argument {prefix}{unknown[1]}{known}"
    return f"{signature.spec.name}: argument {location or '?'}: {problem}"


def outcome_of(value: Any) -> Outcome:
    """Convert what a function returned to an outcome.

    Raises:
        TypeError: msgspec can't encode the value.
    """
    if isinstance(value, Outcome):
        return value
    if isinstance(value, str):
        return Outcome(value)
    if value is None:
        return Outcome("done")
    if isinstance(value, Image):
        return Outcome(value.media_type, images=(value,))
    return Outcome(msgspec.json.encode(value).decode(), value=msgspec.to_builtins(value))


def failed_outcome(error: QuarterdeckError) -> Outcome:
    """Convert an error to an outcome whose text has the message and the hint."""
    return Outcome(f"{error.message}. {error.hint}" if error.hint else error.message, ok=False)
