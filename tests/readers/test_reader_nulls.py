"""Null handling of readers."""

from __future__ import annotations

from typing import Any

import pytest

from featurestore.errors import InvalidArgument, NullsInColumns
from featurestore.readers.columns import PRESENT, SAMPLE_WEIGHT
from tests.readers.conftest import Example, plain
from tests.readers.test_reader_contract import open_example

WITH_NULLS = ["count", "flag", "ratio", "name", "vector", "moment", "day"]


def test_reader_columns_with_nulls_raise_with_all_names(example_with_nulls: Example) -> None:
    with pytest.raises(NullsInColumns) as caught:
        open_example(example_with_nulls)
    for name in WITH_NULLS:
        assert f"'{name}' ({example_with_nulls.table[name].null_count})" in str(caught.value)
    assert "'label'" not in str(caught.value)
    assert open_example(example_with_nulls, columns=["row_id", "label"]).steps_per_epoch == 16


@pytest.mark.parametrize("shuffle", [True, False])
def test_nulls_mask_adds_presence_columns(example_with_nulls: Example, shuffle: bool) -> None:
    reader = open_example(example_with_nulls, nulls="mask", remainder="pad", shuffle=shuffle)
    table = example_with_nulls.table
    for step, batch in enumerate(reader.batches()):
        assert [name for name in batch if name.endswith(PRESENT)] == [
            name + PRESENT for name in WITH_NULLS
        ]
        rows = reader.rows(0, step).tolist()
        for name in WITH_NULLS:
            present = [row >= 0 and table[name][row].is_valid for row in rows]
            assert batch[name + PRESENT].tolist() == present
            zero: Any = [0.0] * 4 if name == "vector" else reader_zero(reader, name)
            expected = [
                plain(table[name][row].as_py()) if valid else zero
                for row, valid in zip(rows, present, strict=True)
            ]
            assert batch[name].tolist() == expected


def reader_zero(reader: Any, name: str) -> Any:
    return next(column.zero for column in reader.columns if column.name == name)


def test_nulls_fill_values_leave_padding_unfilled(example_with_nulls: Example) -> None:
    fills = {
        "count": -1,
        "flag": True,
        "ratio": 0.5,
        "name": "none",
        "vector": 9.0,
        "moment": 7,
        "day": 3,
    }
    reader = open_example(example_with_nulls, nulls=fills, remainder="pad")
    table = example_with_nulls.table
    for step, batch in enumerate(reader.batches()):
        rows = reader.rows(0, step).tolist()
        for name, fill in fills.items():
            for row, value in zip(rows, batch[name].tolist(), strict=True):
                null = row >= 0 and not table[name][row].is_valid
                if null:
                    assert value == ([9.0] * 4 if name == "vector" else plain(fill))
                if row < 0:
                    assert value == ([0.0] * 4 if name == "vector" else reader_zero(reader, name))
        assert batch[SAMPLE_WEIGHT].sum() == sum(row >= 0 for row in rows)


@pytest.mark.parametrize(
    ("nulls", "message"),
    [
        ("keep", r"nulls='keep'"),
        ({"absent": 1}, r"not read: 'absent'"),
        ({"count": "text"}, r"'count': 'text'"),
        ({"count": 1.5}, r"'count': 1.5"),
        ({"name": 3}, r"'name': 3"),
        ({"vector": [1, 2]}, r"'vector'"),
    ],
)
def test_nulls_invalid_policies_raise(tfrecord: Example, nulls: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        open_example(tfrecord, nulls=nulls)
