"""Lists and structs are nested at most 16 deep; deeper ones are refused before anything is read."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featurestore.arrow.types import MAX_LEVELS, check_nesting
from featurestore.errors import UnsupportedType
from featurestore.store import FeatureStore

LEVELS = st.lists(st.sampled_from(["list", "large", "fixed", "struct"]), max_size=40)


def nested_type(levels: list[str]) -> pa.DataType:
    dtype = pa.float64()
    for level in levels:
        if level == "struct":
            dtype = pa.struct([("a", pa.int8()), ("b", dtype)])
        elif level == "fixed":
            dtype = pa.list_(dtype, 1)
        elif level == "large":
            dtype = pa.large_list(dtype)
        else:
            dtype = pa.list_(dtype)
    return dtype


def nested_value(depth: int) -> Any:
    value: Any = 1.0
    for _ in range(depth):
        value = [value]
    return value


@given(LEVELS)
def test_check_nesting_over_max_levels_raises(levels: list[str]) -> None:
    schema = pa.schema([("k", pa.int64()), ("x", nested_type(levels))])
    if len(levels) <= MAX_LEVELS:
        check_nesting(schema)
    else:
        with pytest.raises(UnsupportedType, match=rf"x \({len(levels)} levels\)"):
            check_nesting(schema)


def frames(depth: int, store: FeatureStore) -> dict[str, Any]:
    """Return a column of nested lists of this depth in each library."""
    import pandas as pd
    import polars as pl

    value = nested_value(depth)
    table = pa.table({"k": [1], "x": pa.array([value], nested_type(["list"] * depth))})
    return {
        "pyarrow": table,
        "rows": [{"k": 1, "x": value}],
        "pandas": pd.DataFrame({"k": [1], "x": [value]}),
        "polars": pl.DataFrame({"k": [1], "x": [value]}),
        "engine": store.session.engine.from_arrow(table.to_reader()).native,
    }


@pytest.mark.parametrize("library", ["pyarrow", "rows", "pandas", "polars", "engine"])
def test_max_nested_lists_are_stored(empty_store: FeatureStore, library: str) -> None:
    frame = frames(MAX_LEVELS, empty_store)[library]
    empty_store.create_featuregroup(frame, "deep", primary_key="k")
    table = empty_store.get_featuregroup("deep").to_arrow()
    assert table.column("x").to_pylist() == [nested_value(MAX_LEVELS)]


@pytest.mark.parametrize("library", ["pyarrow", "rows", "pandas", "polars", "engine"])
def test_too_deeply_nested_lists_are_refused_before_writing(
    empty_store: FeatureStore, library: str
) -> None:
    frame = frames(MAX_LEVELS + 1, empty_store)[library]
    with pytest.raises(UnsupportedType, match="nested deeper than 16 levels"):
        empty_store.create_featuregroup(frame, "deep", primary_key="k")
    with pytest.raises(UnsupportedType, match="nested deeper than 16 levels"):
        empty_store.create_training_dataset(frame, "deep", data_format="parquet")
    for folder in ("featuregroups", "trainingdatasets"):
        assert not os.path.exists(os.path.join(empty_store.location, folder, "deep"))


@pytest.mark.parametrize("depth", [64, 200])
def test_extremely_nested_rows_are_refused(empty_store: FeatureStore, depth: int) -> None:
    with pytest.raises(UnsupportedType):
        empty_store.create_featuregroup([{"k": 1, "x": nested_value(depth)}], "deep")
