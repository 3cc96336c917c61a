"""Tables for the format conformance suite: all types, random values, expected losses."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pat
from hypothesis import strategies as st

from featurestore.arrow.schemas import type_to_json
from featurestore.errors import UnsupportedType
from featurestore.model.manifest import Manifest, ManifestColumn, ManifestShard, ManifestSplit
from featurestore.plugins.format import (
    ColumnEncoding,
    ColumnProfile,
    DatasetFormat,
    Layout,
    WrittenShard,
)
from featurestore.training.export.profiles import ProfileAccumulator

TIME = pa.timestamp("us", tz="UTC")
NUMBERS = (
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
)
DECIMALS = (pa.decimal128(12, 3), pa.decimal128(38, 10), pa.decimal128(20, 0), pa.decimal128(2, 2))
SCALARS = (*NUMBERS, *DECIMALS, pa.string(), pa.binary(), pa.date32(), TIME)
LISTS = (*(pa.list_(dtype) for dtype in SCALARS), pa.list_(pa.list_(pa.int64())))
FIXED_LISTS = (
    *(pa.list_(pa.field("item", dtype), 3) for dtype in SCALARS),
    pa.list_(pa.field("item", pa.list_(pa.field("item", pa.uint8()), 2)), 2),
)
STRUCTS = (
    pa.struct([("x", pa.int64()), ("y", pa.string())]),
    pa.list_(pa.struct([("x", pa.float32())])),
)
_LARGEST_FLOAT32 = float(2**128 - 2**104)
_NOT_FINITE = (float("inf"), float("-inf"), float("nan"))
EVERY_TYPE = (*SCALARS, *LISTS, *FIXED_LISTS, *STRUCTS)
# Types that every format must support.
REQUIRED = (
    *NUMBERS,
    pa.string(),
    pa.binary(),
    pa.date32(),
    TIME,
    pa.list_(pa.field("item", pa.float32()), 3),
)


def supported(
    dataset_format: DatasetFormat, kinds: Sequence[pa.DataType] = EVERY_TYPE
) -> list[pa.DataType]:
    """Return the types that a format supports."""
    return [dtype for dtype in kinds if _supports(dataset_format, dtype)]


def _supports(dataset_format: DatasetFormat, dtype: pa.DataType) -> bool:
    try:
        dataset_format.check(pa.schema([("x", dtype)]), compression=None)
    except UnsupportedType:
        return False
    return True


def values(dtype: pa.DataType) -> st.SearchStrategy[Any]:
    """Return a strategy for values that contain no nulls, not even inside lists."""
    if pat.is_fixed_size_list(dtype):
        return st.lists(
            values(dtype.value_type), min_size=dtype.list_size, max_size=dtype.list_size
        )
    if pat.is_list(dtype):
        return st.lists(values(dtype.value_type), max_size=4)
    if pat.is_struct(dtype):
        fields = {}
        for index in range(dtype.num_fields):
            fields[dtype.field(index).name] = values(dtype.field(index).type)
        return st.fixed_dictionaries(fields)
    return _scalars(dtype)


def _scalars(dtype: pa.DataType) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a scalar type."""
    if pat.is_boolean(dtype):
        return st.booleans()
    if pat.is_integer(dtype):
        lowest = -(2 ** (dtype.bit_width - 1))
        highest = -lowest - 1
        # Formats may refuse unsigned numbers above 2**63-1, which have their own test.
        if pat.is_unsigned_integer(dtype):
            lowest, highest = 0, min(2**dtype.bit_width, 2**63) - 1
        return st.integers(lowest, highest)
    if pat.is_float64(dtype):
        # Formats may refuse numbers beyond float32, which have their own test.
        return st.floats(-_LARGEST_FLOAT32, _LARGEST_FLOAT32) | st.sampled_from(_NOT_FINITE)
    if pat.is_floating(dtype):
        return st.floats(width=dtype.bit_width)
    if pat.is_decimal(dtype):
        digits = st.integers(-(10**dtype.precision) + 1, 10**dtype.precision - 1)
        context = Context(prec=dtype.precision + 1)
        return digits.map(lambda unscaled: Decimal(unscaled).scaleb(-dtype.scale, context))
    if pat.is_date(dtype):
        return st.dates()
    if pat.is_timestamp(dtype):
        return st.datetimes(timezones=st.just(dt.UTC))
    if pat.is_binary(dtype):
        return st.binary(max_size=12)
    return st.text(max_size=12)


@st.composite
def tables(draw: st.DrawFn, kinds: Sequence[pa.DataType], *, max_rows: int = 12) -> pa.Table:
    """Draw a table of one to five columns of these types, with and without nulls."""
    column_types = draw(st.lists(st.sampled_from(list(kinds)), min_size=1, max_size=5))
    rows = draw(st.integers(0, max_rows))
    columns = {}
    for index, dtype in enumerate(column_types):
        cell = values(dtype)
        if draw(st.booleans()):
            cell = st.one_of(st.none(), cell)
        cells = draw(st.lists(cell, min_size=rows, max_size=rows))
        columns[f"c{index}"] = pa.array(cells, dtype)
    return pa.table(columns)


def example_table(kinds: Sequence[pa.DataType], *, rows: int = 300) -> pa.Table:
    """Return a deterministic table with one column for each type and some nulls."""
    columns = {}
    for number, dtype in enumerate(kinds):
        cells = [
            None if (row + number) % 7 == 3 else _value(dtype, row * 31 + number)
            for row in range(rows)
        ]
        columns[f"c{number}"] = pa.array(cells, dtype)
    return pa.table(columns)


def _value(dtype: pa.DataType, seed: int) -> Any:
    """Return a value of a type that is determined by a seed."""
    if pat.is_fixed_size_list(dtype):
        return [_value(dtype.value_type, seed + item) for item in range(dtype.list_size)]
    if pat.is_list(dtype):
        return [_value(dtype.value_type, seed + item) for item in range(seed % 4)]
    if pat.is_struct(dtype):
        fields = {}
        for index in range(dtype.num_fields):
            fields[dtype.field(index).name] = _value(dtype.field(index).type, seed + index)
        return fields
    if pat.is_date(dtype):
        return dt.date(1960, 1, 1) + dt.timedelta(days=seed)
    if pat.is_timestamp(dtype):
        return dt.datetime(1960, 1, 1, tzinfo=dt.UTC) + dt.timedelta(days=seed, microseconds=seed)
    if pat.is_string(dtype) or pat.is_binary(dtype):
        # Quotes, separators, line breaks and characters of several bytes require escaping in text
        # formats.
        text = f'{"é" * (seed % 3)}"{seed}",\r\n'[: 2 + seed % 9]
        if pat.is_string(dtype):
            return text
        return text.encode() + bytes([0, 255])
    return _number(dtype, seed)


def _number(dtype: pa.DataType, seed: int) -> Any:
    """Return a number of a type that is determined by a seed."""
    if pat.is_boolean(dtype):
        return seed % 3 == 0
    if pat.is_integer(dtype):
        span = 2 ** (dtype.bit_width - 1)
        number = seed * 7919 % span
        if pat.is_unsigned_integer(dtype):
            return number
        return number - span // 2
    if pat.is_floating(dtype):
        # Multiples of 1/64 are exact in float32.
        return (seed - 4000) / 64
    return Decimal(seed % 10**dtype.precision).scaleb(-dtype.scale)


def profiles(table: pa.Table) -> tuple[ColumnProfile, ...]:
    """Return the profiles of a table's columns."""
    accumulator = ProfileAccumulator(tuple(table.schema.names))
    state = accumulator.start()
    for batch in table.to_batches():
        state = accumulator.update(state, batch)
    return accumulator.finish(state)


def apply_losses(table: pa.Table, encodings: dict[str, ColumnEncoding]) -> pa.Table:
    """Return the expected values of a table after a round trip: declared losses are applied."""
    columns = []
    for field in table.schema:
        column = table[field.name]
        if encodings[field.name].loss is not None:
            column = pa.chunked_array(list(map(_to_float32, column.chunks)), field.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=table.schema)


def _to_float32(array: pa.Array) -> pa.Array:
    """Round float64 values to float32, including the items of lists."""
    if pat.is_float64(array.type):
        return array.cast(pa.float32(), safe=False).cast(pa.float64())
    if pat.is_fixed_size_list(array.type):
        # Lists of variable length have offsets, from which the array can be built with its null
        # mask.
        return _to_float32(array.cast(pa.list_(array.type.value_type))).cast(array.type)
    absent = None
    if array.null_count:
        absent = array.is_null()
    return pa.ListArray.from_arrays(array.offsets, _to_float32(array.values), mask=absent)


def is_identical(first: pa.Table | pa.RecordBatch, second: pa.Table | pa.RecordBatch) -> bool:
    """Return True if two tables are bitwise equal: NaN equals NaN, 0.0 differs from -0.0."""
    if first.schema != second.schema or first.num_rows != second.num_rows:
        return False
    return all(
        _representations(a) == _representations(b)
        for a, b in zip(first.columns, second.columns, strict=True)
    )


def _representations(column: Any) -> Any:
    return list(map(repr, column.to_pylist()))


def build_manifest(
    dataset_format: DatasetFormat, table: pa.Table, layout: Layout, shards: Sequence[WrittenShard]
) -> Manifest:
    """Return a manifest of shards of one split, ``train``."""
    encodings = dataset_format.encodings(layout)
    columns = []
    for field in table.schema:
        encoding = encodings[field.name]
        columns.append(
            ManifestColumn(
                field.name,
                type_to_json(field.type),
                "feature",
                encoding.tf_type,
                encoding.shape,
                encoding.null,
                encoding.loss,
            )
        )
    first, size, entries = 0, 0, []
    for shard in shards:
        entries.append(
            ManifestShard(shard.file.path, first, shard.rows, shard.file.bytes, shard.file.sha256)
        )
        first += shard.rows
        size += entries[-1].bytes
    nulls = {name: table[name].null_count for name in table.schema.names if table[name].null_count}
    split = ManifestSplit("train", first, size, tuple(entries), nulls)
    return Manifest(
        name="cases",
        version=1,
        data_format=dataset_format.name,
        seed=0,
        key=(table.schema.names[0],),
        split_rule={},
        block_rows=8,
        compression=None,
        columns=tuple(columns),
        layout=layout,
        splits=(split,),
        files=(),
        plan=None,
        plan_hash=None,
        sources=(),
        reproducible=False,
        reproducible_reason="created for a test",
    )
