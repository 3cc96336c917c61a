"""Feature types and storage types: mapping of each input type, and lossless casts."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featurestore.arrow.casts import cast_array, cast_batch
from featurestore.arrow.fitting import can_widen
from featurestore.arrow.types import (
    TIMESTAMP,
    can_be_key,
    feature_schema,
    feature_type,
    storage_type,
)
from featurestore.errors import SchemaMismatch, UnsupportedType

ITEM = pa.field("item", pa.float32())


def test_feature_type_maps_arrow_types(subtests: pytest.Subtests) -> None:
    for arrow_type, expected in (
        (pa.float16(), pa.float32()),
        (pa.large_string(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary(4), pa.binary()),
        (pa.date64(), pa.date32()),
        (pa.timestamp("ns"), TIMESTAMP),
        (pa.timestamp("s", tz="Asia/Tokyo"), TIMESTAMP),
        (pa.dictionary(pa.int32(), pa.large_string()), pa.string()),
        (pa.large_list(pa.uint8()), pa.list_(pa.uint8())),
        (pa.list_(pa.float16(), 3), pa.list_(ITEM, 3)),
        (pa.struct([("a", pa.large_string())]), pa.struct([("a", pa.string())])),
        (pa.decimal128(10, 2), pa.decimal128(10, 2)),
    ):
        with subtests.test(arrow_type=arrow_type):
            assert feature_type(arrow_type) == expected
            assert str(feature_type(arrow_type)) == str(expected)
            assert feature_type(expected) == expected


def test_feature_type_without_storage_is_none(subtests: pytest.Subtests) -> None:
    for arrow_type in (
        pa.null(),
        pa.time64("us"),
        pa.duration("ns"),
        pa.month_day_nano_interval(),
        pa.map_(pa.string(), pa.int64()),
        pa.decimal256(50, 2),
        pa.decimal128(5, -2),
        pa.list_(pa.null()),
        pa.struct([]),
        pa.struct([("a", pa.int64()), ("A", pa.int64())]),
        pa.struct([("a", pa.time32("s"))]),
        pa.list_(pa.float32(), 0),
    ):
        with subtests.test(arrow_type=arrow_type):
            assert feature_type(arrow_type) is None


def test_feature_schema_unsupported_columns_raise_together() -> None:
    schema = pa.schema(
        [
            ("ok", pa.int64()),
            ("a", pa.month_day_nano_interval()),
            ("b", pa.duration("s")),
            ("c", pa.list_(pa.time32("s"))),
        ]
    )
    with pytest.raises(
        UnsupportedType, match=r"a: month_day_nano_interval .*; b: duration.*; c: list"
    ):
        feature_schema(schema)


def test_storage_type_maps_feature_types(subtests: pytest.Subtests) -> None:
    for feature, storage in (
        (pa.uint8(), pa.int16()),
        (pa.uint16(), pa.int32()),
        (pa.uint32(), pa.int64()),
        (pa.uint64(), pa.decimal128(20, 0)),
        (pa.list_(pa.uint8(), 2), pa.list_(pa.field("element", pa.int16()))),
        (pa.struct([("u", pa.uint64())]), pa.struct([("u", pa.decimal128(20, 0))])),
        (pa.string(), pa.string()),
    ):
        with subtests.test(feature_type=feature):
            assert storage_type(feature) == storage
            assert str(storage_type(feature)) == str(storage)


def test_can_be_key_floats_and_nested_types_is_false() -> None:
    assert [can_be_key(dtype) for dtype in (pa.int64(), pa.string(), TIMESTAMP, pa.binary())] == [
        True
    ] * 4
    assert [can_be_key(dtype) for dtype in (pa.float32(), pa.list_(pa.int64()))] == [False] * 2
    fixed, struct = pa.list_(pa.int64(), 2), pa.struct([("a", pa.int64())])
    assert [can_be_key(dtype) for dtype in (fixed, struct)] == [False] * 2


def test_widens_only_without_loss(subtests: pytest.Subtests) -> None:
    for narrow, wide, expected in (
        (pa.int8(), pa.int64(), True),
        (pa.uint32(), pa.int64(), True),
        (pa.uint64(), pa.int64(), False),
        (pa.int32(), pa.float64(), True),
        (pa.int64(), pa.float64(), False),
        (pa.int32(), pa.float32(), False),
        (pa.float64(), pa.float32(), False),
        (pa.decimal128(5, 2), pa.decimal128(10, 4), True),
        (pa.decimal128(10, 2), pa.decimal128(10, 4), False),
        (pa.null(), pa.string(), True),
        (pa.date32(), TIMESTAMP, False),
        (pa.list_(pa.int8()), pa.list_(pa.int64()), True),
        (pa.list_(pa.float32(), 2), pa.list_(pa.float64(), 2), True),
        (pa.list_(pa.float32(), 2), pa.list_(pa.float32(), 3), False),
        (pa.string(), pa.binary(), False),
    ):
        with subtests.test(narrow=narrow, wide=wide):
            assert can_widen(narrow, wide) is expected


# -- casts --------------------------------------------------------------------------------------------------------


def check(array: pa.Array, dtype: pa.DataType, expected: list[Any]) -> None:
    result = cast_array(array, dtype)
    result.validate(full=True)
    assert (result.type, str(result.type)) == (dtype, str(dtype))
    assert result.to_pylist() == expected
    for start in range(len(array)):
        tail = cast_array(array.slice(start), dtype)
        tail.validate(full=True)
        assert tail.to_pylist() == expected[start:]


def test_cast_array_lists_to_fixed_size_and_back() -> None:
    fixed = pa.list_(ITEM, 2)
    values = [[1.0, 2.0], None, [3.0, None], None]
    check(pa.array(values, pa.list_(pa.field("element", pa.float32()), 2)), fixed, values)
    check(pa.array(values, pa.list_(pa.float64())), fixed, values)
    check(pa.array(values, fixed), pa.list_(pa.field("element", pa.float64())), values)
    check(pa.array(values, fixed), pa.list_(pa.field("item", pa.float64()), 2), values)
    check(pa.array([None, None], pa.list_(pa.float32())), fixed, [None, None])
    with pytest.raises(pa.ArrowInvalid, match=r"lengths \[3\], expected 2"):
        cast_array(pa.array([[1.0, 2.0], [1.0, 2.0, 3.0]]), fixed)


def test_cast_array_empty_offsets_buffer_is_not_read() -> None:
    """Spark's Arrow writer sends such arrays.

    The buffer of offsets is empty, and reading it can end the process.
    """
    list_type = pa.list_(pa.field("element", pa.int16()))
    bare = pa.Array.from_buffers(
        list_type, 0, [None, pa.py_buffer(b"")], 0, children=[pa.array([], pa.int16())]
    )
    outer = pa.list_(pa.field("element", list_type))
    nested = pa.Array.from_buffers(
        outer, 2, [pa.py_buffer(bytes(8)), pa.py_buffer(bytes(12))], 2, children=[bare]
    )
    for dtype in (pa.list_(pa.uint8()), pa.list_(pa.uint8(), 2)):
        assert cast_array(bare, dtype).to_pylist() == []
        assert cast_array(nested, pa.list_(dtype)).to_pylist() == [None, None]


def test_cast_array_structs_match_fields_by_name() -> None:
    dtype = pa.struct([pa.field("u", pa.uint8()), pa.field("v", pa.list_(ITEM, 2))])
    stored_type = pa.struct([("v", pa.list_(pa.float32())), ("u", pa.int16())])
    values = [{"u": 1, "v": [1.0, 2.0]}, None, {"u": None, "v": None}]
    check(pa.array(values, stored_type), dtype, values)


@given(st.lists(st.none() | st.integers(0, 2**64 - 1)))
def test_cast_array_uint64_round_trips_decimal_storage(values: list[int | None]) -> None:
    decimals = cast_array(pa.array(values, pa.uint64()), pa.decimal128(20, 0))
    assert decimals.to_pylist() == [None if value is None else Decimal(value) for value in values]
    check(decimals, pa.uint64(), values)


def test_cast_array_out_of_range_raises() -> None:
    with pytest.raises(pa.ArrowInvalid):
        cast_array(pa.array([-1], pa.int16()), pa.uint8())
    with pytest.raises(pa.ArrowInvalid):
        cast_array(pa.array([Decimal(-1)], pa.decimal128(20, 0)), pa.uint64())
    with pytest.raises(pa.ArrowInvalid):
        cast_array(pa.array([1], pa.timestamp("ns")), TIMESTAMP)


def test_cast_array_converts_float16_and_dictionaries() -> None:
    halves = pa.array([np.float16(1.5), None], pa.float16())
    check(halves, pa.float32(), [1.5, None])
    check(pa.array(["a", None, "a"]).dictionary_encode(), pa.string(), ["a", None, "a"])


def test_cast_batch_matches_columns_by_name() -> None:
    batch = pa.RecordBatch.from_pydict({"b": ["x"], "a": pa.array([1], pa.int8())})
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    assert cast_batch(batch, schema).to_pylist() == [{"a": 1, "b": "x"}]
    with pytest.raises(SchemaMismatch, match="'c'"):
        cast_batch(batch, pa.schema([("c", pa.int64())]))
    with pytest.raises(UnsupportedType, match="'b'"):
        cast_batch(batch, pa.schema([("b", pa.int64())]))
