"""Later batches with other types are appended if the cast is lossless."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from featurestore.errors import SchemaMismatch

if TYPE_CHECKING:
    from featurestore.featuregroups import FeatureGroup
    from featurestore.store import FeatureStore

FIRST = pa.table(
    {
        "id": [1],
        "seats": [180],
        "price": [9.5],
        "rows": pa.array([30], pa.int32()),
        "score": pa.array([0.5], pa.float32()),
        "note": ["a"],
        "spectrum": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)),
    }
)


@pytest.fixture
def group(empty_store: FeatureStore) -> FeatureGroup:
    return empty_store.create_featuregroup(FIRST, "planes")


def chunk(**changed: Any) -> pd.DataFrame:
    columns = {"id": [2, 3], "seats": [180, 2], "price": [9, 10], "rows": [1, 2]}
    columns |= {"score": [0.25, 1.0], "note": ["b", "c"], "spectrum": [[1, 2], [3, 4]]}
    return pd.DataFrame(columns | changed)


def test_insert_next_csv_chunk_appends(empty_store: FeatureStore) -> None:
    text = "id,seats,price,note\n1,180,9.5,a\n2,,10.5,b\n3,200,8,\n4,,9,\n"
    chunks = pd.read_csv(io.StringIO(text), chunksize=1)
    group = empty_store.create_featuregroup(next(chunks), "planes")
    dtypes = []
    for chunk in chunks:
        names = list(map(str, chunk.dtypes[["seats", "price", "note"]]))
        # pandas 3 has its own string type.
        dtypes.append(tuple("object" if name == "str" else name for name in names))
        group.insert(chunk)
    assert set(dtypes) == {
        ("float64", "float64", "object"),
        ("int64", "int64", "float64"),
        ("float64", "int64", "float64"),
    }
    table = group.read().to_arrow().sort_by("id")
    assert table.schema.types == [pa.int64(), pa.int64(), pa.float64(), pa.string()]
    assert table["seats"].to_pylist() == [180, None, 200, None]
    assert table["price"].to_pylist() == [9.5, 10.5, 8.0, 9.0]
    assert table["note"].to_pylist() == ["a", "b", None, None]


@pytest.mark.parametrize(
    "changed",
    [{}, {"seats": [1.0, np.nan]}, {"note": [np.nan] * 2}, {"spectrum": [np.array([1, 2])] * 2}],
    ids=["as pandas has it", "missing integers", "no texts", "arrays of integers"],
)
def test_insert_lossless_values_are_cast(group: FeatureGroup, changed: dict[str, Any]) -> None:
    assert group.insert(chunk(**changed)).rows == 3
    assert group.read().schema.types == FIRST.schema.types


REFUSED = {
    "a fraction": (
        {"seats": [1, 2.5]},
        "'seats' is double .* int64, and 2.5 does not fit",
        "create the next version",
    ),
    "too large": (
        {"rows": [1, 2**31]},
        "'rows' is int64 .* int32, and 2147483648 does",
        "create the next version",
    ),
    "more digits": (
        {"score": [1, 0.1]},
        "'score' is double .* float, and 0.1 does",
        "create the next version",
    ),
    "not exact": (
        {"price": [1, 2**53 + 1]},
        "'price' is int64 .* double, and 9007199254740993",
        "create the next version",
    ),
    "longer": (
        {"spectrum": [[1, 2, 3]] * 2},
        r"'spectrum' is int64 of shape \(3,\) .* float of shape \(2,\)",
        "pad or resize",
    ),
    "ragged": (
        {"spectrum": [[1, 2], [3]]},
        r"'spectrum' is list of int64 .*, and an array of shape \(1,\) does",
        "pad or resize",
    ),
    "finer arrays": (
        {"spectrum": [[0.5, 0.1]] * 2},
        "'spectrum' .*, and 0.1 does not fit",
        "create the next version",
    ),
    "texts": (
        {"seats": ["1", "x"]},
        "'seats' is string where the group has int64",
        "featurestore.cast(df, {'seats': 'int64'})",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_insert_lossy_value_error_contains_cast(group: FeatureGroup, case: str) -> None:
    changed, says, paste = REFUSED[case]
    with pytest.raises(SchemaMismatch, match=says) as error:
        group.insert(chunk(**changed))
    assert paste in str(error.value.hint)
    assert "create_featuregroup" in str(error.value.hint) or "pad" in paste
    assert group.delta_version == 1
    files = [name for name in os.listdir(group.path) if name.endswith(".parquet")]
    assert len(files) == 1


def test_insert_error_hint_casts_any_dataframe(group: FeatureGroup) -> None:
    for df in (chunk(seats=["1", "2"]), pl.from_pandas(chunk(seats=["1", "2"]))):
        with pytest.raises(SchemaMismatch) as error:
            group.insert(df)
        assert "df = featurestore.cast(df, {'seats': 'int64'})" in str(error.value.hint)


def test_variable_lists_accept_arrays(empty_store: FeatureStore) -> None:
    lists = pa.table({"tokens": pa.array([[1], [2, 3]], pa.list_(pa.int64()))})
    group = empty_store.create_featuregroup(lists, "texts")
    group.insert(pd.DataFrame({"tokens": [[4, 5], [6, 7]]}))
    assert group.read().schema == lists.schema
    assert group.read().count() == 4
