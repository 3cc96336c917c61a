"""Random Arrow tables of all feature types, nested ones too, for the hashing properties."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pat
from hypothesis import strategies as st

SIMPLE = [
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.large_binary(),
    pa.binary(5),
    pa.date32(),
    pa.timestamp("us", tz="UTC"),
    pa.timestamp("ms"),
    pa.decimal128(38, 9),
    pa.decimal128(12, 2),
    pa.decimal128(20, 0),
]


def kinds(*, depth: int = 2) -> st.SearchStrategy[pa.DataType]:
    simple = st.sampled_from(SIMPLE)
    if depth == 0:
        return simple
    inner = kinds(depth=depth - 1)
    return st.one_of(
        simple,
        simple,
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.builds(pa.list_, inner, st.integers(1, 3)),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda types: pa.struct(
                [pa.field(f"f{index}", dtype) for index, dtype in enumerate(types)]
            )
        ),
    )


def values(dtype: pa.DataType) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), present(dtype))


def present(dtype: pa.DataType) -> st.SearchStrategy[Any]:
    if pat.is_boolean(dtype):
        return st.booleans()
    if pat.is_integer(dtype):
        low, high = (
            (0, 2**dtype.bit_width - 1) if pat.is_unsigned_integer(dtype) else integer_range(dtype)
        )
        return st.integers(low, high)
    if pat.is_floating(dtype):
        return st.floats(width=dtype.bit_width)
    if pat.is_fixed_size_binary(dtype) and not pat.is_decimal(dtype):
        return st.binary(min_size=dtype.byte_width, max_size=dtype.byte_width)
    if pat.is_string(dtype) or pat.is_large_string(dtype):
        return st.text(max_size=40)
    if pat.is_binary(dtype) or pat.is_large_binary(dtype):
        return st.binary(max_size=40)
    if pat.is_date(dtype):
        return st.dates()
    if pat.is_timestamp(dtype):
        zone = dt.UTC if dtype.tz else None
        timestamps = st.datetimes(timezones=st.just(zone))
        return (
            timestamps
            if dtype.unit == "us"
            else timestamps.map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000))
        )
    if pat.is_decimal(dtype):
        limit = 10**dtype.precision - 1
        context = decimal.Context(prec=50)
        return st.integers(-limit, limit).map(
            lambda n: decimal.Decimal(n).scaleb(-dtype.scale, context)
        )
    if pat.is_struct(dtype):
        fields = [dtype.field(index) for index in range(dtype.num_fields)]
        return st.fixed_dictionaries({field.name: values(field.type) for field in fields})
    sizes = (dtype.list_size, dtype.list_size) if pat.is_fixed_size_list(dtype) else (0, 4)
    return st.lists(values(dtype.value_type), min_size=sizes[0], max_size=sizes[1])


def integer_range(dtype: pa.DataType) -> tuple[int, int]:
    return -(2 ** (dtype.bit_width - 1)), 2 ** (dtype.bit_width - 1) - 1


@st.composite
def tables(draw: st.DrawFn, *, max_columns: int = 4, max_rows: int = 12) -> pa.Table:
    rows = draw(st.integers(0, max_rows))
    types = draw(st.lists(kinds(), min_size=1, max_size=max_columns))
    arrays = [
        pa.array(draw(st.lists(values(dtype), min_size=rows, max_size=rows)), dtype)
        for dtype in types
    ]
    return pa.table({f"c{index}": array for index, array in enumerate(arrays)})
