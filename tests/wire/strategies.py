"""Any record, made from the records' own types, so that a new field is covered from its first
day.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import msgspec.inspect as types
from hypothesis import strategies as st

from ddtop.wire import records

INTEGERS = st.integers(-(2**63), 2**64 - 1)
TEXTS = st.text(max_size=12)
LONGEST = 3
RECORDS: tuple[type[records.Record], ...] = get_args(records.AnyRecord)


def values_of(kind: types.Type) -> st.SearchStrategy[Any]:
    """All values of one type that a record may hold."""
    if isinstance(kind, types.NoneType):
        return st.none()
    if isinstance(kind, types.BoolType):
        return st.booleans()
    if isinstance(kind, types.IntType):
        return INTEGERS
    if isinstance(kind, types.FloatType):
        return st.floats(allow_nan=False)
    if isinstance(kind, types.StrType):
        return TEXTS
    if isinstance(kind, types.BytesType):
        return st.binary(max_size=12)
    if isinstance(kind, types.UnionType):
        return st.one_of([values_of(one) for one in kind.types])
    if isinstance(kind, types.VarTupleType):
        return st.lists(values_of(kind.item_type), max_size=LONGEST).map(tuple)
    if isinstance(kind, types.TupleType):
        return st.tuples(*[values_of(one) for one in kind.item_types])
    if isinstance(kind, types.DictType):
        return st.dictionaries(
            values_of(kind.key_type), values_of(kind.value_type), max_size=LONGEST
        )
    if isinstance(kind, types.StructType):
        return struct_of(kind.cls)
    raise NotImplementedError(f"no values of {kind}")


def struct_of(cls: type[Any]) -> st.SearchStrategy[Any]:
    """All values of one record."""
    info = types.type_info(cls)
    assert isinstance(info, types.StructType)
    return st.builds(cls, **{field.name: values_of(field.type) for field in info.fields})


def simplest(cls: type[Any]) -> Any:
    """The record with every optional field left out."""
    empty = {
        types.StrType: "",
        types.IntType: 0,
        types.FloatType: 0.0,
        types.BoolType: False,
        types.VarTupleType: (),
        types.BytesType: b"",
    }
    required = {}
    for field in msgspec.structs.fields(cls):
        if field.required:
            kind = types.type_info(field.type)
            required[field.name] = None if isinstance(kind, types.UnionType) else empty[type(kind)]
    return cls(**required)


def filled(cls: type[Any], text: str) -> Any:
    """The record with this text in every field, of every part, that has text."""
    info = types.type_info(cls)
    assert isinstance(info, types.StructType)
    return cls(**{field.name: _filled(field.type, text) for field in info.fields})


def _filled(kind: types.Type, text: str) -> Any:
    if isinstance(kind, types.StrType):
        return text
    if isinstance(kind, types.UnionType):
        return _filled(next(one for one in kind.types if not isinstance(one, types.NoneType)), text)
    if isinstance(kind, types.VarTupleType):
        return (_filled(kind.item_type, text),)
    if isinstance(kind, types.TupleType):
        return tuple(_filled(one, text) for one in kind.item_types)
    if isinstance(kind, types.DictType):
        return {"name": _filled(kind.value_type, text)}
    if isinstance(kind, types.StructType):
        return filled(kind.cls, text)
    return {types.BoolType: True, types.BytesType: b"x", types.FloatType: 1.5}.get(type(kind), 1)
