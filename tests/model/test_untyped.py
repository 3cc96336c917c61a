"""Types without leaves take the leaf types of the type they are combined with."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featurestore.arrow.casts import cast_array
from featurestore.arrow.exact_casts import cast_exactly
from featurestore.arrow.fitting import can_fit, can_widen
from featurestore.arrow.types import feature_schema, feature_type, is_untyped
from featurestore.arrow.untyped import (
    adopt_types,
    format_dtypes,
    format_sql_casts,
    refuse_untyped,
    replace_null_types,
)
from featurestore.errors import UnsupportedType

LEAVES = st.sampled_from([pa.int32(), pa.string(), pa.bool_(), pa.decimal128(4, 2), pa.date32()])


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = inner.map(lambda dtype: pa.list_(pa.field("item", dtype)))
    structs = st.tuples(inner, inner).map(lambda pair: pa.struct(zip("ab", pair, strict=True)))
    return lists | structs


TYPES = st.recursive(LEAVES, nested, max_leaves=4)


def without_leaves(dtype: pa.DataType, draw: Any) -> pa.DataType:
    """Return the type of a batch that has no values below some depth."""
    if draw(st.booleans()):
        return pa.null()
    if pa.types.is_list(dtype):
        return pa.list_(pa.field("item", without_leaves(dtype.value_type, draw)))
    if pa.types.is_struct(dtype):
        fields = [dtype.field(index) for index in range(dtype.num_fields)]
        return pa.struct([(field.name, without_leaves(field.type, draw)) for field in fields])
    return dtype


def blank(dtype: pa.DataType, draw: Any) -> Any:
    """Return a value of an untyped type."""
    if pa.types.is_list(dtype):
        return (
            draw(st.sampled_from([None, []]))
            if draw(st.booleans())
            else [blank(dtype.value_type, draw)]
        )
    if pa.types.is_struct(dtype):
        return {field.name: blank(field.type, draw) for field in map(dtype.field, range(2))}
    return None


@given(dtype=TYPES, data=st.data())
def test_untyped_columns_cast_to_typed_keep_values(dtype: pa.DataType, data: Any) -> None:
    given_type = without_leaves(dtype, data.draw)
    assert replace_null_types(given_type, dtype) == dtype
    assert can_widen(given_type, dtype)
    assert can_fit(given_type, dtype)
    values = [blank(given_type, data.draw) for _ in range(3)]
    array = pa.array(values, given_type)
    for converted in (cast_array(array, dtype), cast_exactly(array, dtype)):
        assert converted.type == dtype
        assert converted.to_pylist() == values
    assert cast_array(cast_array(array, dtype), given_type).to_pylist() == values


@given(dtype=TYPES, data=st.data())
def test_refuse_untyped_raises_with_dtypes_hint(dtype: pa.DataType, data: Any) -> None:
    given_type = without_leaves(dtype, data.draw)
    schema = feature_schema(pa.schema([("a", given_type), ("b", pa.int8())]))
    assert schema.field("a").type == given_type
    assert (feature_type(given_type) is None) == is_untyped(given_type)
    if is_untyped(given_type):
        with pytest.raises(UnsupportedType, match="no row has a value") as refusal:
            refuse_untyped(schema, subject="It", hint=format_dtypes)
        line = str(refusal.value.hint).removeprefix("dtypes=")
        suggested = eval(line, {"pa": pa})["a"]
        if isinstance(suggested, pa.DataType):
            assert not is_untyped(suggested)
            assert replace_null_types(given_type, suggested) == suggested


def test_typed_like_other_shapes_keep_type() -> None:
    given_schema = pa.schema([("a", pa.list_(pa.null())), ("b", pa.null()), ("c", pa.int8())])
    like = pa.schema([("a", pa.string()), ("c", pa.int64())])
    assert adopt_types(given_schema, like) == given_schema


@given(TYPES, st.data())
def test_sql_casts_type_only_null_columns(dtype: pa.DataType, data: Any) -> None:
    given_type = without_leaves(dtype, data.draw)
    rows = pa.table({"a": pa.nulls(1, given_type)})
    query = f"select {format_sql_casts(rows.schema)} from rows"
    result_type = feature_schema(duckdb.sql(query).to_arrow_table().schema).field("a").type
    assert not is_untyped(result_type)
    assert replace_null_types(given_type, result_type) == result_type
