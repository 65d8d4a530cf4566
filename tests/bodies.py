"""Strategies for event bodies, made from the vocabulary's own types: any value that a body may hold.

tests/fuzz has a pool of confusing bodies for long logs; here it is the values themselves that are drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec import Struct, inspect

from quarterdeck.events import TYPES, Body

_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
#: What an agent may give for arguments and results.
json_values: SearchStrategy[Any] = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


def any_body() -> SearchStrategy[Body]:
    """A body of any type."""
    return st.sampled_from(TYPES).flatmap(body_of)


@cache
def body_of(kind: type[Body]) -> SearchStrategy[Body]:
    """Bodies of this type; what may be left out sometimes is."""
    return _struct(kind)


def _struct(kind: type[Struct]) -> SearchStrategy[Any]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    needed = {one.name: _values(one.type) for one in info.fields if one.required}
    optional = {one.name: _values(one.type) for one in info.fields if not one.required}
    return st.fixed_dictionaries(needed, optional=optional).map(lambda fields: kind(**fields))


_BY_TYPE: dict[type[inspect.Type], Callable[[Any], SearchStrategy[Any]]] = {
    inspect.StrType: lambda _: st.text(max_size=12),
    inspect.IntType: lambda _: st.integers(-(2**63), 2**63),
    inspect.FloatType: lambda _: st.floats(allow_nan=False, allow_infinity=False),
    inspect.BoolType: lambda _: st.booleans(),
    inspect.NoneType: lambda _: st.none(),
    inspect.AnyType: lambda _: json_values,
    inspect.LiteralType: lambda kind: st.sampled_from(kind.values),
    inspect.UnionType: lambda kind: st.one_of(*map(_values, kind.types)),
    inspect.VarTupleType: lambda kind: st.lists(_values(kind.item_type), max_size=2).map(tuple),
    inspect.StructType: lambda kind: _struct(kind.cls),
}


def _values(kind: inspect.Type) -> SearchStrategy[Any]:
    return _BY_TYPE[type(kind)](kind)
