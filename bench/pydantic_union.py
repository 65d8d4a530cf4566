"""Build our whole vocabulary as a pydantic union, from the msgspec types field by field."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal, Union, cast

from msgspec import inspect
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model

from quarterdeck import events as ev


class _Base(BaseModel):
    # As strict as ours: unknown fields are refused, and a number isn't accepted as text.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def decoder() -> Callable[[bytes], object]:
    """Return pydantic's own decoder from bytes to a model, discriminated by `type`."""
    models = tuple(_model(kind) for kind in ev.TYPES)
    union = Annotated[Union[cast(Any, models)], Field(discriminator="type")]  # noqa: UP007
    return TypeAdapter[Any](union).validate_json


@cache
def _model(kind: type[Any]) -> type[BaseModel]:
    info = cast(inspect.StructType, inspect.type_info(kind))
    fields: dict[str, Any] = {one.name: (_annotation(one.type), _field(one)) for one in info.fields}
    if info.tag is not None:
        fields["type"] = (Literal[info.tag], ...)
    return create_model(kind.__name__, __base__=_Base, **fields)


def _field(one: inspect.Field) -> Any:
    alias = None if one.encode_name == one.name else one.encode_name
    return Field(alias=alias) if one.required else Field(default=one.default, alias=alias)


def _annotation(kind: inspect.Type) -> Any:
    if isinstance(kind, inspect.StructType):
        return _model(kind.cls)
    if isinstance(kind, inspect.UnionType):
        return Union[tuple(_annotation(one) for one in kind.types)]  # noqa: UP007
    if isinstance(kind, inspect.VarTupleType):
        return tuple[_annotation(kind.item_type), ...]
    if isinstance(kind, inspect.LiteralType):
        return Literal[kind.values]
    return _PLAIN[type(kind)]


_PLAIN: dict[type[inspect.Type], Any] = {
    inspect.AnyType: Any,
    inspect.BoolType: bool,
    inspect.FloatType: float,
    inspect.IntType: int,
    inspect.NoneType: None,
    inspect.StrType: str,
}
