"""Fixed-size binary values from slices, with and without nulls."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from featurestore.arrow.casts import cast_bytes
from featurestore.hashing import row_hash

if TYPE_CHECKING:
    from featurestore.store import FeatureStore

LETTERS = [b"ab", b"cd", b"ef", b"gh"]


def test_cast_bytes_fixed_size_slices_keep_values(subtests: pytest.Subtests) -> None:
    for values in (LETTERS, [None, *LETTERS[1:]]):
        array = pa.array(values, pa.binary(2))
        for dtype, start in product((pa.binary(), pa.large_binary()), range(len(values) + 1)):
            with subtests.test(values=values, dtype=dtype, start=start):
                assert cast_bytes(array.slice(start), dtype).to_pylist() == values[start:]


def test_row_hash_fixed_size_slice_equals_row_hashes() -> None:
    table = pa.table({"x": pa.array(LETTERS, pa.binary(2))})
    assert row_hash(table.slice(2)).tolist() == row_hash(table)[2:].tolist()


def test_featuregroups_and_datasets_accept_fixed_size_slices(empty_store: FeatureStore) -> None:
    pairs = pa.array([[value, value] for value in LETTERS], pa.list_(pa.binary(2)))
    table = pa.table({"id": pa.array(LETTERS, pa.binary(2)), "pairs": pairs, "y": [0, 1, 0, 1]})
    group = empty_store.create_featuregroup(table.slice(1), "g", primary_key="id")
    assert sorted(group.read().to_arrow()["id"].to_pylist()) == LETTERS[1:]
    dataset = empty_store.create_training_dataset(table.slice(2), "d", label="y", key="id")
    assert dataset.verify().ok
