"""Times must be in the years 1 to 9999, in every unit, type and nesting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featurestore.arrow.bounds import find_out_of_range, out_of_range_mask, time_columns
from featurestore.errors import OutOfRange
from featurestore.ingest import to_reader
from featurestore.model.times import FIRST, LAST, to_micros

FIRST_SECOND, LAST_SECOND = to_micros(FIRST) // 10**6, to_micros(LAST) // 10**6
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
INT64 = 2**63 - 1


@st.composite
def times(draw: st.DrawFn) -> tuple[pa.Array, int | None]:
    """Return times of a type, one of which may be out of range, and its row."""
    time_type = draw(st.sampled_from([*UNITS, "date32", "date64"]))
    day = 86_400
    if time_type == "date32":
        low, high, most, target = FIRST_SECOND // day, LAST_SECOND // day, 2**31 - 1, pa.date32()
    elif time_type == "date64":
        low, high = FIRST_SECOND // day * day * 1000, LAST_SECOND // day * day * 1000
        most, target = 10**16, pa.date64()
    else:
        low, high = FIRST_SECOND * UNITS[time_type], (LAST_SECOND + 1) * UNITS[time_type] - 1
        zone = draw(st.sampled_from([None, "UTC", "Asia/Tokyo"]))
        most, target = INT64, pa.timestamp(time_type, zone)
    low, high = max(low, -most), min(high, most)
    step = day * 1000 if time_type == "date64" else 1
    inside = st.integers(low // step, high // step) | st.none() | st.sampled_from([low // step])
    numbers = draw(st.lists(inside, max_size=30))
    outside = None
    if high < most and draw(st.booleans()):
        beyond = draw(st.integers(high // step + 1, most // step) | st.integers(-most, low - 1))
        beyond = max(beyond, -most // step)
        outside = draw(st.integers(0, len(numbers)))
        numbers.insert(outside, beyond)
    scaled = [None if number is None else number * step for number in numbers]
    width = pa.int32() if time_type == "date32" else pa.int64()
    return pa.array(scaled, width).view(target), outside


def nested(array: pa.Array, wrapper: str) -> pa.Array:
    """Return the same rows as lists, structs or dictionaries of their times."""
    rows = len(array)
    if wrapper == "list":
        return pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), array)
    if wrapper == "fixed":
        return pa.FixedSizeListArray.from_arrays(array, 1)
    if wrapper == "struct":
        return pa.StructArray.from_arrays([pa.nulls(rows, pa.int8()), array], ["a", "b"])
    if wrapper == "dictionary":
        return array.dictionary_encode()
    return array


@given(times(), st.sampled_from(["plain", "list", "fixed", "struct", "dictionary"]))
def test_first_out_of_range_returns_row_for_every_type(
    drawn: tuple[pa.Array, int | None], wrapper: str
) -> None:
    array, row = drawn
    column = nested(array, wrapper)
    assert time_columns(pa.schema([("t", column.type)])) == ("t",)
    assert find_out_of_range(column) == row
    marks = out_of_range_mask(column)
    marked = [] if marks is None else np.flatnonzero(marks)
    assert list(marked) == ([] if row is None else [row])
    if row is not None:
        assert find_out_of_range(column.slice(row + 1)) is None
        assert find_out_of_range(column.slice(row)) == 0


@pytest.mark.filterwarnings("ignore:times without a time zone")
@given(times(), st.sampled_from(["plain", "list", "struct"]), st.integers(1, 7))
def test_to_reader_time_out_of_range_raises_with_row(
    drawn: tuple[pa.Array, int | None], wrapper: str, batch_rows: int
) -> None:
    array, row = drawn
    table = pa.table({"t": nested(array, wrapper)})
    batches = pa.RecordBatchReader.from_batches(
        table.schema, table.to_batches(max_chunksize=batch_rows)
    )
    if row is None:
        unit = str(array.type)
        fits_microseconds = "[ns" not in unit or all(
            v is None or v % 1000 == 0 for v in _numbers(array)
        )
        if fits_microseconds:
            assert to_reader(batches).read_all().num_rows == len(array)
        return
    with pytest.raises(OutOfRange, match=rf"^Row {row} has .* in 't', outside of the years"):
        to_reader(batches).read_all()


def _numbers(array: pa.Array) -> list[Any]:
    return array.view(pa.int64()).to_pylist()
