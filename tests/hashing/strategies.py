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
            lambda found: pa.struct(
                [pa.field(f"f{index}", kind) for index, kind in enumerate(found)]
            )
        ),
    )


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), present(kind))


def present(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pat.is_boolean(kind):
        return st.booleans()
    if pat.is_integer(kind):
        low, high = (
            (0, 2**kind.bit_width - 1) if pat.is_unsigned_integer(kind) else integer_range(kind)
        )
        return st.integers(low, high)
    if pat.is_floating(kind):
        return st.floats(width=kind.bit_width)
    if pat.is_fixed_size_binary(kind) and not pat.is_decimal(kind):
        return st.binary(min_size=kind.byte_width, max_size=kind.byte_width)
    if pat.is_string(kind) or pat.is_large_string(kind):
        return st.text(max_size=40)
    if pat.is_binary(kind) or pat.is_large_binary(kind):
        return st.binary(max_size=40)
    if pat.is_date(kind):
        return st.dates()
    if pat.is_timestamp(kind):
        zone = dt.UTC if kind.tz else None
        moments = st.datetimes(timezones=st.just(zone))
        return (
            moments
            if kind.unit == "us"
            else moments.map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000))
        )
    if pat.is_decimal(kind):
        limit = 10**kind.precision - 1
        context = decimal.Context(prec=50)
        return st.integers(-limit, limit).map(
            lambda n: decimal.Decimal(n).scaleb(-kind.scale, context)
        )
    if pat.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return st.fixed_dictionaries({field.name: values(field.type) for field in fields})
    sizes = (kind.list_size, kind.list_size) if pat.is_fixed_size_list(kind) else (0, 4)
    return st.lists(values(kind.value_type), min_size=sizes[0], max_size=sizes[1])


def integer_range(kind: pa.DataType) -> tuple[int, int]:
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


@st.composite
def tables(draw: st.DrawFn, *, max_columns: int = 4, max_rows: int = 12) -> pa.Table:
    rows = draw(st.integers(0, max_rows))
    types = draw(st.lists(kinds(), min_size=1, max_size=max_columns))
    arrays = [
        pa.array(draw(st.lists(values(kind), min_size=rows, max_size=rows)), kind) for kind in types
    ]
    return pa.table({f"c{index}": array for index, array in enumerate(arrays)})
