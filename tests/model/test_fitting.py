"""Values fit into a column of another type only if they are exactly representable."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from featurestore.arrow.casts import cast_array
from featurestore.arrow.exact_casts import InexactValueError, cast_exactly, cast_label_keys
from featurestore.arrow.fitting import can_fit, can_widen
from featurestore.arrow.types import TIMESTAMP, integer_range, numpy_type, shaped_type

INTEGERS = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
]
FLOATS = [pa.float32(), pa.float64()]
EDGES = [
    0,
    -1,
    1.5,
    -0.0,
    2**24,
    2**24 + 1,
    2**31 - 1,
    2**31,
    -(2**31) - 1,
    2**53,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**63),
    2**64 - 1,
    0.1,
    1e300,
    math.inf,
    math.nan,
]


EXACT = [*INTEGERS, pa.decimal128(3, 2), pa.decimal128(19, 0), pa.decimal128(38, 38)]
EXACT += [pa.decimal128(38, 30), pa.decimal128(38, 0), pa.decimal128(1, 0), pa.decimal128(20, 10)]
EXACT_VALUES = st.one_of(
    st.sampled_from([0, 1, -1, 9, 10, 127, 128, -128, 2**63, 2**64 - 1, -(2**63), 10**37]),
    st.integers(-(10**20), 10**20),
).flatmap(lambda unscaled: st.integers(0, 20).map(lambda scale: Decimal(unscaled).scaleb(-scale)))


def holds(dtype: pa.DataType, value: Decimal) -> bool:
    """Return by exact arithmetic whether an integer or decimal type can represent a value."""
    if pa.types.is_integer(dtype):
        low, high = integer_range(dtype)
        return value == int(value) and low <= value <= high
    with localcontext() as context:
        context.prec = 120
        unscaled = value.scaleb(dtype.scale)
        return unscaled == int(unscaled) and abs(unscaled) < 10**dtype.precision


@given(
    values=st.lists(EXACT_VALUES | st.none(), min_size=1, max_size=4),
    source=st.sampled_from(EXACT),
    target=st.sampled_from(EXACT),
    deep=st.booleans(),
)
def test_cast_label_keys_number_without_equal_becomes_null(
    values: list[Decimal | None], source: pa.DataType, target: pa.DataType, deep: bool
) -> None:
    values = [value for value in values if value is None or holds(source, value)]
    is_integer = pa.types.is_integer(source)
    numbers = [value if value is None or not is_integer else int(value) for value in values]
    array = pa.array(numbers, source)
    expected = [value if value is None or holds(target, value) else None for value in values]
    assert cast_label_keys(array, target).to_pylist() == expected
    misfits = [value for value in values if value is not None and not holds(target, value)]
    assert can_fit(source, target)
    if can_widen(source, target):
        assert not misfits
    if deep:
        array, target = pa.array([array.to_pylist()], pa.list_(source)), pa.list_(target)
    if misfits:
        with pytest.raises(InexactValueError) as refusal:
            cast_exactly(array, target)
        assert refusal.value.value == misfits[0]
    else:
        assert cast_exactly(array, target).to_pylist() == ([values] if deep else values)


def fits(value: Any, target: pa.DataType) -> bool:
    """Return by exact arithmetic whether all values fit."""
    if target in FLOATS:
        if isinstance(value, int):
            return abs(value) <= (2**53 if target == pa.float64() else 2**24)
        with np.errstate(over="ignore"):
            return math.isnan(value) or float(numpy_type(target).type(value)) == value
    low, high = integer_range(target)
    is_whole = math.isfinite(value) and value == int(value)
    return is_whole and low <= int(value) <= high


@st.composite
def columns(draw: Any) -> pa.Array:
    dtype = draw(st.sampled_from(INTEGERS + FLOATS))
    if dtype in FLOATS:
        values = st.floats(width=dtype.bit_width) | st.integers(-(2**24), 2**24).map(float)
        edges = [float(edge) for edge in EDGES if dtype == pa.float64() or fits(float(edge), dtype)]
    else:
        low, high = integer_range(dtype)
        values = st.integers(low, high)
        edges = [edge for edge in EDGES if isinstance(edge, int) and low <= edge <= high]
    items = draw(st.lists(st.none() | values | st.sampled_from(edges), max_size=6))
    return pa.array(items, dtype, from_pandas=False)


@given(columns(), st.sampled_from(INTEGERS + FLOATS), st.integers(0, 2))
@example(pa.array([None, float("nan")], pa.float64()), pa.int64(), 1)
def test_cast_exactly_value_without_equal_raises_misfit(
    column: pa.Array, target: pa.DataType, start: int
) -> None:
    column = column.slice(start)
    assert can_fit(column.type, target)
    values = column.to_pylist()
    wrong = [value for value in values if value is not None and not fits(value, target)]
    if wrong:
        with pytest.raises(InexactValueError) as raised:
            cast_exactly(column, target)
        assert repr(raised.value.value) == repr(wrong[0])
        return
    actual = cast_exactly(column, target)
    actual.validate(full=True)
    assert actual.type == target
    for before, after in zip(values, actual.to_pylist(), strict=True):
        assert before == after or (math.isnan(before) and math.isnan(after))


def test_cast_exactly_array_items_fit_like_numbers() -> None:
    pixels = pa.array([[[1.0, 2.0]], None, [[3.0, 4.0]]], shaped_type(pa.float64(), (1, 2)))
    assert cast_exactly(pixels, shaped_type(pa.uint8(), (1, 2))).to_pylist() == pixels.to_pylist()
    with pytest.raises(InexactValueError, match=r"300\.0 does not fit"):
        cast_exactly(pa.array([[[1.0, 300.0]]], pixels.type), shaped_type(pa.uint8(), (1, 2)))


def test_cast_exactly_lists_of_other_shape_raise_misfit() -> None:
    expected = pa.list_(pa.float32(), 2)
    lists = pa.array([[1, 2], None, [3, 4]])
    assert cast_exactly(lists, expected).to_pylist() == lists.to_pylist()
    assert (
        cast_exactly(cast_exactly(lists, expected), pa.list_(pa.int64())).to_pylist()
        == lists.to_pylist()
    )
    with pytest.raises(InexactValueError, match=r"shape \(3,\)"):
        cast_exactly(pa.array([[1, 2], [1, 2, 3]]), expected)
    assert not can_fit(pa.list_(pa.float32(), 3), expected)


def test_can_fit_other_kind_is_false(subtests: pytest.Subtests) -> None:
    for source, target in (
        (pa.string(), pa.int64()),
        (pa.int64(), pa.string()),
        (pa.int64(), TIMESTAMP),
        (pa.bool_(), pa.int64()),
        (pa.float64(), pa.bool_()),
        (pa.list_(pa.string()), pa.list_(pa.int64(), 2)),
    ):
        with subtests.test(source=source, target=target):
            assert not can_fit(source, target)


def test_values_of_a_dictionary_without_rows_need_not_fit() -> None:
    encoded = pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int32()), pa.array([1, 300]))
    assert cast_array(encoded, pa.int8()).to_pylist() == [1, None]
