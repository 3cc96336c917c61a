"""Lists of names and values are accepted as the collections of any library."""

from __future__ import annotations

import inspect
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featurestore
from featurestore.arrow.lists import as_list
from featurestore.errors import FeatureStoreError, InvalidArgument
from featurestore.model.arguments import list_arguments
from featurestore.store import FeatureStore

COLLECTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "deque": deque,
    "dict keys": lambda items: dict.fromkeys(items).keys(),
    "dict values": lambda items: dict(enumerate(items)).values(),
    "generator": lambda items: (item for item in items),
    "numpy": np.array,
    "numpy objects": lambda items: np.array(items, dtype=object),
    "numpy scalars": lambda items: list(np.array(items)),
    "pandas Series": pd.Series,
    "pandas Index": pd.Index,
    "pandas categories": lambda items: pd.Series(items, dtype="category"),
    "polars": pl.Series,
    "arrow": pa.array,
    "arrow chunks": lambda items: pa.chunked_array([items[:1], items[1:]]),
}
NOT_LISTS: dict[str, Any] = {
    "data frame": pd.DataFrame({"k": ["k"]}),
    "polars frame": pl.DataFrame({"k": ["k"]}),
    "arrow table": pa.table({"k": ["k"]}),
    "two dimensions": np.array([["k"]]),
    "no dimension": np.array(5),
    "integer": 5,
    "bytes": b"k",
}
Call = Callable[[FeatureStore, Any], Any]


@given(
    st.lists(st.text("abc_", min_size=1), min_size=1, unique=True),
    st.sampled_from(list(COLLECTIONS)),
)
def test_as_list_returns_the_items_of_collections(items: list[str], collection_type: str) -> None:
    assert as_list(COLLECTIONS[collection_type](items)) == items
    assert as_list(set(items)) == as_list(frozenset(items)) == sorted(items)


def test_as_list_converts_values_of_numpy() -> None:
    days = np.array(["2020-01-01"], dtype="datetime64[ns]")
    assert as_list(days) == as_list(list(days)) == [pd.Timestamp("2020-01-01")]
    assert [type(item) for item in as_list([np.int64(1), np.bool_(True)]) or ()] == [int, bool]


def test_endless_iterator_raises() -> None:
    with pytest.raises(InvalidArgument, match="more than 1,000,000 items"):
        as_list(itertools.count())


def table() -> pa.Table:
    times = pd.date_range("2024-01-01", periods=60, freq="h", tz="UTC")
    columns = {"k": [f"k{row % 7}" for row in range(60)], "t": times, "p": ["x", "y"] * 30}
    return pa.table(
        {**columns, "a": [row % 9 for row in range(60)], "b": [row % 5 for row in range(60)]}
    )


def create(store: FeatureStore, **arguments: Any) -> Any:
    group = store.create_featuregroup(
        table(), "made", event_time="t", **{"primary_key": "k", **arguments}
    )
    return group.spec


def labels() -> pa.Table:
    return table().select(["k", "t"])


def export(store: FeatureStore, **arguments: Any) -> Any:
    manifest = store.create_training_dataset(
        store.get_featuregroup("g"), "made", **{"label": "b", "data_format": "parquet", **arguments}
    ).manifest
    return manifest.columns, manifest.to_json().get("splits")


def monitor(_: FeatureStore, **arguments: Any) -> Any:
    return featurestore.monitor_job("w", featuregroup="g", schedule="0 * * * *", **arguments).spec


def sql_job(_: FeatureStore, **arguments: Any) -> Any:
    return featurestore.sql_job(
        "j", sql="select 1 as k, 2 as p, 3 as t", schedule="0 * * * *", event_time="t", **arguments
    ).spec


def read_source(store: FeatureStore, **arguments: Any) -> Any:
    return store.read_source("files", path="rows.csv", **arguments).to_arrow()


CALLS: dict[str, tuple[Call, list[str]]] = {
    "create_featuregroup primary_key": (lambda s, v: create(s, primary_key=v), ["k", "p"]),
    "create_featuregroup partition_by": (lambda s, v: create(s, partition_by=v), ["p"]),
    "get_features features": (lambda s, v: s.get_features(v).columns, ["g.a", "g.b"]),
    "get_features join_key": (
        lambda s, v: s.get_features("g.a", labels=labels(), join_key=v, label_time="t").columns,
        ["k"],
    ),
    "create_feature_view features": (
        lambda s, v: s.create_feature_view("v", features=v).spec.features,
        ["g.a", "g.b"],
    ),
    "create_training_dataset label": (lambda s, v: export(s, label=v), ["a", "b"]),
    "create_training_dataset features": (lambda s, v: export(s, features=v), ["a"]),
    "create_training_dataset exclude": (lambda s, v: export(s, exclude=v), ["a"]),
    "create_training_dataset split_by": (
        lambda s, v: export(s, splits={"train": 0.5, "test": 0.5}, split_by=v),
        ["k"],
    ),
    "create_training_dataset key": (lambda s, v: export(s, key=v), ["k", "t"]),
    "frame.sample by": (
        lambda s, v: s.get_featuregroup("g").sample(fraction=0.5, by=v).count(),
        ["k"],
    ),
    "frame.select": (lambda s, v: s.get_featuregroup("g").select(v).columns, ["a", "b"]),
    "frame.drop": (lambda s, v: s.get_featuregroup("g").drop(v).columns, ["a", "b"]),
    "frame[...]": (lambda s, v: s.get_featuregroup("g")[v].columns, ["a", "b"]),
    "dataset.matrix columns": (
        lambda s, v: s.get_training_dataset("d").matrix("train", columns=v).names,
        ["a"],
    ),
    "dataset.reader columns": (
        lambda s, v: (
            s.get_training_dataset("d").reader("train", global_batch_size=4, columns=v).columns
        ),
        ["a", "b"],
    ),
    "monitor_job features": (lambda s, v: monitor(s, features=v), ["a", "b"]),
    "monitor_job alert": (lambda s, v: monitor(s, alert=v), ["ops", "team"]),
    "sql_job primary_key": (lambda s, v: sql_job(s, primary_key=v), ["k", "p"]),
    "sql_job partition_by": (lambda s, v: sql_job(s, partition_by=v), ["p"]),
    "window key": (lambda s, v: featurestore.window("g.a", "sum", over="1d", key=v), ["k", "p"]),
    "windows functions": (
        lambda s, v: featurestore.windows("g.a", v, over="1d"),
        ["sum", "count"],
    ),
    "windows over": (lambda s, v: featurestore.windows("g.a", "sum", over=v), ["1d", "7d"]),
    "read_source columns": (lambda s, v: read_source(s, columns=v), ["k", "a"]),
    "read_source names": (lambda s, v: read_source(s, names=v, header=False), ["k", "a"]),
    "read_source null_values": (lambda s, v: read_source(s, null_values=v), ["NA", "-"]),
}


@pytest.fixture
def filled(empty_store: FeatureStore, tmp_path: Any) -> FeatureStore:
    empty_store.create_featuregroup(table(), "g", primary_key="k", event_time="t")
    empty_store.create_training_dataset(
        empty_store.get_featuregroup("g").drop("k", "t", "p"), "d", label="b"
    )
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "rows.csv").write_text("k,a\nNA,1\nx,-\n")
    empty_store.add_source("files", folder.as_uri())
    return empty_store


def remove_results(store: FeatureStore) -> None:
    for remove in (
        lambda: store.delete_featuregroup("made", version=1),
        lambda: store.delete_training_dataset("made", version=1),
        lambda: store.delete_feature_view("v", version=1),
    ):
        with suppress(LookupError):
            remove()


def test_collections_of_any_library_are_lists_of_names(
    filled: FeatureStore, subtests: pytest.Subtests
) -> None:
    for title, (call, names) in CALLS.items():
        with subtests.test(title):
            remove_results(filled)
            expected = call(filled, names)
            for collection_type, convert in COLLECTIONS.items():
                remove_results(filled)
                assert str(call(filled, convert(list(names)))) == str(expected), collection_type


def test_other_values_than_lists_of_names_raise(
    filled: FeatureStore, subtests: pytest.Subtests
) -> None:
    for title, (call, _) in CALLS.items():
        with subtests.test(title):
            for value in NOT_LISTS.values():
                with pytest.raises(FeatureStoreError):
                    call(filled, value)


def public_functions() -> Iterator[tuple[str, Any]]:
    owners = [featurestore, featurestore.FeatureStore, featurestore.TrainingDataset]
    owners += [featurestore.FeatureFrame, featurestore.FeatureGroup, featurestore.FeatureView]
    for owner in owners:
        names = owner.__all__ if owner is featurestore else dir(owner)
        for name in names:
            member = getattr(owner, name)
            if not name.startswith("_") and inspect.isroutine(member):
                yield f"{owner.__name__}.{name}", member


def test_each_list_of_names_is_converted() -> None:
    """Parameters with the type of a list are those that the wrapper of public calls converts."""
    for name, function in public_functions():
        declared = {
            parameter.name
            for parameter in inspect.signature(function).parameters.values()
            if "Sequence[str" in str(parameter.annotation)
        }
        assert declared <= set(list_arguments(function)), name


def test_each_path_is_checked(subtests: pytest.Subtests) -> None:
    path_arguments = [
        (name, function, parameter.name)
        for name, function in public_functions()
        for parameter in inspect.signature(function).parameters.values()
        if "os.PathLike" in str(parameter.annotation)
    ]
    assert len(path_arguments) > 8
    for name, function, argument in path_arguments:
        for value in (5, b"jobs.py", ["jobs.py"], True, "", " ", "a\0b"):
            with (
                subtests.test(f"{name}, {value!r}"),
                pytest.raises(InvalidArgument, match=f"^{argument}=.* is not a path"),
            ):
                function(**{argument: value})
