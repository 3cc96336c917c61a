"""Canonical bytes are equal exactly for equal rows and are totally ordered."""

from __future__ import annotations

import math
import struct
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.hashing import canonical_bytes
from tests.hashing.strategies import kinds, tables, values


def identity(value: Any) -> Any:
    """Return a value that compares in Python like its canonical bytes: floats by bits."""
    if isinstance(value, float):
        return ("nan", struct.pack("<d", value)) if math.isnan(value) else struct.pack("<d", value)
    if isinstance(value, list):
        return [identity(item) for item in value]
    if isinstance(value, dict):
        return {name: identity(item) for name, item in value.items()}
    return value


@given(tables(max_rows=10))
@settings(max_examples=40, deadline=None)
def test_canonical_bytes_equal_only_for_equal_rows(table: pa.Table) -> None:
    rows = [identity(row) for row in table.to_pylist()]
    actual_rows = canonical_bytes(table).to_pylist()
    for i in range(len(rows)):
        for j in range(i):
            assert (actual_rows[i] == actual_rows[j]) == (rows[i] == rows[j])


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_canonical_bytes_near_values_differ(data: st.DataObject) -> None:
    dtype = data.draw(kinds())
    column = data.draw(st.lists(values(dtype), min_size=2, max_size=12))
    table = pa.table({"x": pa.array(column, dtype), "y": pa.array(column[::-1], dtype)})
    rows = [repr(identity(row)) for row in table.to_pylist()]
    assert len(set(canonical_bytes(table).to_pylist())) == len(set(rows))


def test_canonical_bytes_adjacent_texts_stay_distinct() -> None:
    texts = ["", "a", "aa", "\0", "\0\0", "\5\0\0\0\0\0\0\0\1"]
    pairs = [(a, b) for a in texts for b in texts]
    table = pa.table({"a": [a for a, _ in pairs], "b": [b for _, b in pairs]})
    assert len(set(canonical_bytes(table).to_pylist())) == len(pairs)


def test_canonical_bytes_ignore_arrow_representation() -> None:
    small = pa.table(
        {"n": pa.array([1, None], pa.int8()), "t": pa.array(["a", None]).dictionary_encode()}
    )
    large = pa.table(
        {"n": pa.array([1, None], pa.uint64()), "t": pa.array(["a", None], pa.large_string())}
    )
    assert canonical_bytes(small).equals(canonical_bytes(large))


def test_canonical_bytes_ignore_values_under_null_structs() -> None:
    hidden = pa.StructArray.from_arrays([pa.array([1, 2]), pa.array(["a", "b"])], ["x", "y"])
    masked = pa.StructArray.from_buffers(
        hidden.type, 2, [pa.py_buffer(bytes([0b01]))], children=[hidden.field(0), hidden.field(1)]
    )
    clean = pa.array([{"x": 1, "y": "a"}, None], hidden.type)
    assert masked.to_pylist() == clean.to_pylist()
    assert canonical_bytes(pa.table({"s": masked})).equals(canonical_bytes(pa.table({"s": clean})))


def test_canonical_bytes_sort_in_arrow() -> None:
    labels = canonical_bytes(pa.table({"x": [3, 1, 2]}))
    assert pc.sort_indices(labels).to_pylist() == [1, 2, 0]
