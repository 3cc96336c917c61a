"""Rows taken by number, from complete arrays and slices."""

from __future__ import annotations

from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from featurestore.arrow.batches import concat_arrays, select_rows, take_values

PIXELS = np.random.default_rng(0).integers(0, 255, (40, 3, 4))
LISTS = pa.FixedSizeListArray.from_arrays(
    pa.FixedSizeListArray.from_arrays(pa.array(PIXELS.reshape(-1)), 4), 3
)
ROW_NUMBERS = np.random.default_rng(1).permutation(20)
ARRAYS = {
    "numbers": pa.array(range(40)),
    "vectors": LISTS.flatten().slice(0, 40),
    "images": LISTS,
    "null items": pa.array(
        [[1.5, None if number % 5 == 0 else number] for number in range(40)],
        pa.list_(pa.float32(), 2),
    ),
    "words": pa.array([[f"w{number}", ""] for number in range(40)], pa.list_(pa.string(), 2)),
    "nothing": pa.array([[]] * 40, pa.list_(pa.int8(), 0)),
    "structs": pa.StructArray.from_arrays([LISTS], ["image"]),
    "nulls": pa.array(
        [None if number % 3 == 0 else row.tolist() for number, row in enumerate(PIXELS)], LISTS.type
    ),
}


def test_take_values_from_slice_returns_rows_by_number(subtests: pytest.Subtests) -> None:
    for name, start in product(ARRAYS, (0, 7, 20)):
        with subtests.test(name, start=start):
            values = ARRAYS[name].to_pylist()
            expected = [values[start + row] for row in ROW_NUMBERS]
            array = ARRAYS[name].slice(start, 20)
            assert take_values(array, ROW_NUMBERS).to_pylist() == expected
            actual = take_values(array, pa.array(ROW_NUMBERS))
            actual.validate(full=True)
            assert actual.type == array.type
            assert actual.to_pylist() == expected
            batch = pa.record_batch([pa.array(range(40)), ARRAYS[name]], ["row", "x"])
            batch = batch.slice(start, 20)
            actual = select_rows(batch, ROW_NUMBERS)
            assert actual.schema == batch.schema
            assert actual.to_pydict() == {"row": (start + ROW_NUMBERS).tolist(), "x": expected}


def test_concat_arrays_large_binaries_keep_nulls() -> None:
    long = [None if row % 7 == 0 else bytes([row % 251]) * 3000 for row in range(1000)]
    arrays = [pa.array(long, pa.binary()).slice(5), pa.array([], pa.binary()), pa.array(long)]
    actual = concat_arrays(arrays)
    assert actual.equals(pa.concat_arrays(arrays))
    actual.validate(full=True)
