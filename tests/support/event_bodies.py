"""Generate event bodies with any value that their types allow.

tests/fuzz/bodies.py has a pool of confusing bodies for long logs; here the values themselves are generated.
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
#: Values that an agent may send as arguments and results.
json_values: SearchStrategy[Any] = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


def any_body() -> SearchStrategy[Body]:
    """Generate a body of any type."""
    return st.sampled_from(TYPES).flatmap(body_of)


@cache
def body_of(kind: type[Body]) -> SearchStrategy[Body]:
    """Generate bodies of this type. Optional fields are sometimes omitted."""
    return _struct(kind)


def _struct(kind: type[Struct]) -> SearchStrategy[Any]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    required = {field.name: _values(field.type) for field in info.fields if field.required}
    optional = {field.name: _values(field.type) for field in info.fields if not field.required}
    return st.fixed_dictionaries(required, optional=optional).map(lambda fields: kind(**fields))


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
