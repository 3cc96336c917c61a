"""Dataframe columns with invalid feature names are renamed by the store."""

from __future__ import annotations

from collections.abc import Callable

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from featurestore.errors import InvalidArgument, InvalidName
from featurestore.store import FeatureStore

COLUMNS = {"Country Name": ["Peru", "Fiji"], "1978": [1, 2], "id": [10, 20]}
FRAMES: dict[str, Callable[[], object]] = {
    "pandas": lambda: pd.DataFrame(COLUMNS),
    "pandas with an index": lambda: pd.DataFrame(COLUMNS).set_index("Country Name"),
    "polars": lambda: pl.DataFrame(COLUMNS),
    "arrow": lambda: pa.table(COLUMNS),
    "reader": lambda: pa.table(COLUMNS).to_reader(),
    "columns": lambda: {name: np.array(values) for name, values in COLUMNS.items()},
    "rows": lambda: pa.table(COLUMNS).to_pylist(),
    "duckdb": lambda: duckdb.from_arrow(pa.table(COLUMNS)),
}


@pytest.mark.parametrize("library", FRAMES)
def test_columns_of_frames_are_renamed(empty_store: FeatureStore, library: str) -> None:
    store, frame = empty_store, FRAMES[library]
    group = store.create_featuregroup(frame(), "places", primary_key="id", rename="snake_case")
    assert sorted(group.schema.names) == ["country_name", "f_1978", "id"]
    renames = {"Country Name": "country_name", "1978": "f_1978"}
    store.insert_into_featuregroup(frame(), "places", mode="overwrite", rename=renames)
    rows = group.read().to_arrow().sort_by("id").select(["country_name", "f_1978"])
    assert rows.to_pylist() == [
        {"country_name": "Peru", "f_1978": 1},
        {"country_name": "Fiji", "f_1978": 2},
    ]
    with pytest.raises(InvalidArgument, match="unknown columns 'Country'"):
        store.create_featuregroup(frame(), "other", rename={"Country": "country"})


def test_rename_invalid_frames_and_names_raise(empty_store: FeatureStore) -> None:
    frame = empty_store.create_featuregroup([{"id": 1}], "places").read()
    with pytest.raises(InvalidArgument, match="does not support a FeatureFrame"):
        empty_store.create_featuregroup(frame, "other", rename={"id": "key"})
    with pytest.raises(InvalidName, match="unique ignoring case"):
        empty_store.create_featuregroup([{"a": 1, "b": 2}], "other", rename={"a": "B"})
    with pytest.raises(InvalidArgument, match="not a mapping of names"):
        empty_store.create_featuregroup([{"a": 1}], "other", rename="camel")
