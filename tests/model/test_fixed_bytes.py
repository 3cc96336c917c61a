"""Bytes of one length come right from slices, with and without nulls."""

from __future__ import annotations

import pyarrow as pa
import pytest

from featurestore.hashing import row_hash
from featurestore.model.fixed_bytes import cast_bytes

LETTERS = [b"ab", b"cd", b"ef", b"gh"]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("values", [LETTERS, [None, *LETTERS[1:]]])
def test_slices_of_bytes_of_one_length_are_cast(
    values: list[bytes | None], kind: pa.DataType
) -> None:
    array = pa.array(values, pa.binary(2))
    for start in range(len(values) + 1):
        assert cast_bytes(array.slice(start), kind).to_pylist() == values[start:]


def test_a_slice_of_bytes_of_one_length_has_the_hashes_of_its_rows() -> None:
    table = pa.table({"x": pa.array(LETTERS, pa.binary(2))})
    assert row_hash(table.slice(2)).tolist() == row_hash(table)[2:].tolist()
