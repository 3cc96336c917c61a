"""Hints for keys, times and duplicate rows use the library of the input."""

from __future__ import annotations

import datetime
from collections import namedtuple
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import DuplicateKeys, InvalidArgument, LabelTimeRequired, NoJoinKey
from tests.ingest.pasting import pasted

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from featurestore.store import FeatureStore

pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
NOON = datetime.datetime(2024, 1, 31, 12, tzinfo=datetime.UTC)
DAY = datetime.date(2024, 1, 31)
LIBRARIES = ("pandas", "polars", "pyarrow", "duckdb", "rows", "columns", "tuples", "named tuples")
# Label keys, group keys, and the group key that each label matches.
KEYS: dict[str, tuple[pa.Array, pa.Array, list[int | None]]] = {
    "floats": (
        pa.array([1.0, 2.0, 1.5, None, float("inf"), 1e300]),
        pa.array([1, 2]),
        [0, 1, None, None, None, None],
    ),
    "floats and small numbers": (
        pa.array([1.0, 2.5, 300.0], pa.float32()),
        pa.array([1, 2, 3], pa.int8()),
        [0, None, None],
    ),
    "texts of numbers": (pa.array(["1", "2", None, "x"]), pa.array([1, 2]), [0, 1, None, None]),
    "numbers": (pa.array([1, 2, None]), pa.array(["1", "2"]), [0, 1, None]),
    "texts of days": (pa.array(["2024-01-31", None]), pa.array([DAY]), [0, None]),
    "texts of times": (pa.array(["2024-01-31T12:00:00+00:00"]), pa.array([NOON]), [0]),
    "days": (pa.array([DAY, None]), pa.array([NOON.replace(hour=0)]), [0, None]),
    "whole numbers and flags": (pa.array([1, 0, 2]), pa.array([False, True]), [1, 0, None]),
    "flags": (pa.array([True, False]), pa.array([0, 1]), [1, 0]),
}


def in_library(table: pa.Table, library: str) -> Any:
    """Return a table with columns col_0, col_1, ... as a frame of a library."""
    if library == "tuples":
        return list(zip(*table.to_pydict().values(), strict=True))
    if library == "named tuples":
        row = namedtuple("row", table.column_names)  # type: ignore[misc]
        return [row(**cells) for cells in table.to_pylist()]
    names = table.column_names
    makers: dict[str, Any] = {
        "pandas": lambda: pd.DataFrame({name: table[name].to_pandas() for name in names}),
        "polars": lambda: pl.from_arrow(table),
        "pyarrow": lambda: table,
        "duckdb": lambda: duckdb.connect().from_arrow(table),
        "rows": table.to_pylist,
        "columns": table.to_pydict,
    }
    return makers[library]()


def create_group(store: FeatureStore, name: str, keys: pa.Array) -> None:
    table = pa.table({"key": keys, "x": pa.array(range(len(keys)))})
    store.create_featuregroup(table, name, primary_key="key")


@pytest.mark.filterwarnings("ignore:string columns that contain dates")
def test_label_key_type_hint_makes_keys_match(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    for number, (title, (cells, keys, met)) in enumerate(KEYS.items()):
        name = f"g{number}"
        create_group(empty_store, name, keys)
        table = pa.table({"col_0": cells, "col_1": pa.array(range(len(cells)))})
        for library in LIBRARIES:
            with subtests.test(f"{title}, {library}"):
                labels = in_library(table, library)
                with pytest.raises(NoJoinKey) as refused:
                    empty_store.get_features(
                        [f"{name}.x"], labels=labels, join_key={"col_0": "key"}
                    )
                labels = pasted(labels, str(refused.value.hint))
                frame = empty_store.get_features(
                    [f"{name}.x"], labels=labels, join_key={"col_0": "key"}
                )
                assert frame.to_arrow().sort_by("col_1")["x"].to_pylist() == met


def test_label_key_type_hint_works_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions

    store = featurestore.connect(tmp_path, engine="spark")
    for number, (cells, keys, met) in enumerate(KEYS.values()):
        name = f"g{number}"
        create_group(store, name, keys)
        rows = pa.table({"row": pa.array(range(len(cells))), "col_0": cells})
        df = spark.createDataFrame(rows.to_pandas())
        if pa.types.is_integer(cells.type):
            df = df.withColumn("col_0", functions.expr("try_cast(col_0 AS bigint)"))
        with pytest.raises(NoJoinKey) as refused:
            store.get_features([f"{name}.x"], labels=df, join_key={"col_0": "key"})
        df = pasted(df, str(refused.value.hint))
        frame = store.get_features([f"{name}.x"], labels=df, join_key={"col_0": "key"})
        assert frame.to_arrow().sort_by("row")["x"].to_pylist() == met


def test_stored_label_key_type_hint_names_type(empty_store: FeatureStore) -> None:
    create_group(empty_store, "g", pa.array([1, 2]))
    label_table = pa.table({"key": ["1"], "y": [1]})
    empty_store.create_featuregroup(label_table, "other", primary_key="key")
    with pytest.raises(NoJoinKey) as refused:
        empty_store.get_features(["g.x"], labels="other")
    assert refused.value.hint == "convert the column 'key' to int64 first"


# Rows with the primary key col_0, and the definition that stores all of them.
DAYS = [NOON + datetime.timedelta(days=day) for day in range(3)]
REPEATED: dict[str, tuple[dict[str, list[Any]], dict[str, Any]]] = {
    "time": (
        {"col_0": [1, 1, 2], "col_1": [1.0, 2.0, 3.0], "col_2": [DAYS[0], DAYS[1], DAYS[0]]},
        {"event_time": "col_2"},
    ),
    "day": (
        {"col_0": [1, 1, 2], "col_1": ["a", "b", "a"], "col_2": [DAY, DAY.replace(day=1), DAY]},
        {"event_time": "col_2"},
    ),
    "text": (
        {"col_0": [1, 1, 2], "col_1": ["a", "b", "a"], "col_2": [DAYS[0]] * 3},
        {"primary_key": ["col_0", "col_1"]},
    ),
    "time with nulls": (
        {"col_0": [1, 1, 2], "col_1": ["a", "b", "a"], "col_2": [DAYS[0], DAYS[1], None]},
        {"primary_key": ["col_0", "col_1"]},
    ),
    "text and time": (
        {
            "col_0": [1, 1, 1],
            "col_1": ["a", "b", "b"],
            "col_2": [DAYS[0], DAYS[0], DAYS[1]],
        },
        {"primary_key": ["col_0", "col_1"], "event_time": "col_2"},
    ),
    "floats only": ({"col_0": [1, 1, 2], "col_1": [1.0, 2.0, 3.0]}, {"primary_key": ()}),
    "equal rows": ({"col_0": [1, 1, 2], "col_1": [1.0, 1.0, 3.0]}, {}),
}


def row_set(rows: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    return {tuple(row[name] for name in sorted(row)) for row in rows}


def test_duplicate_keys_hint_stores_all_values(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    for number, (title, (columns, definition)) in enumerate(REPEATED.items()):
        table = pa.table(columns)
        for library in LIBRARIES:
            with subtests.test(f"{title}, {library}"):
                df, name = in_library(table, library), f"g{number}_{LIBRARIES.index(library)}"
                with pytest.raises(DuplicateKeys) as refused:
                    empty_store.create_featuregroup(df, name, primary_key="col_0")
                hint = str(refused.value.hint)
                arguments: dict[str, Any] = {}
                if not definition:
                    assert hint.startswith(
                        "pass one row of each key, as df.drop_duplicates(['col_0'])"
                    )
                    assert hint.endswith("; all rows of a key are equal")
                    df = pd.DataFrame(columns).drop_duplicates(["col_0"])
                elif definition == {"primary_key": ()}:
                    assert hint.startswith("omit primary_key= to store every row, or ")
                    arguments = definition
                else:
                    arguments = eval(f"dict({hint.removesuffix(' stores every row')})")
                    assert arguments == definition
                group = empty_store.create_featuregroup(
                    df, name, **{"primary_key": "col_0", **arguments}
                )
                group_rows = group.read().to_arrow().to_pylist()
                assert row_set(group_rows) == row_set(table.to_pylist())
                assert len(group_rows) == len(row_set(table.to_pylist()))


def test_duplicate_keys_hint_of_insert_stores_all_values(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    check_inserts(empty_store, subtests)


def test_duplicate_keys_hint_of_insert_stores_all_values_on_spark(
    spark: SparkSession, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    check_inserts(featurestore.connect(tmp_path, engine="spark"), subtests)


def check_inserts(store: FeatureStore, subtests: pytest.Subtests) -> None:
    for number, (title, (columns, definition)) in enumerate(REPEATED.items()):
        df, name = pd.DataFrame(columns), f"g{number}"
        store.create_featuregroup(df.drop_duplicates("col_0"), name, primary_key="col_0")
        with subtests.test(title):
            with pytest.raises(DuplicateKeys) as refused:
                store.insert_into_featuregroup(df, name, mode="upsert")
            hint = str(refused.value.hint)
            line = hint.partition(" creates a version")[0]
            if definition in ({}, {"primary_key": ()}):
                assert hint.startswith("on_duplicates='last' keeps the last row of each key")
                assert ("all rows of a key are equal" in hint) == (definition == {})
                continue
            group = eval(f"store.{line}", {"store": store, "df": df})
            group_rows = group.read().to_arrow().to_pylist()
            assert group.version == 2
            assert row_set(group_rows) == row_set(pa.Table.from_pandas(df).to_pylist())


@pytest.mark.filterwarnings("ignore:string columns that contain dates")
def test_text_event_time_hint_converts_column(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    table = pa.table({"col_0": [1], "col_1": ["2024-01-31T12:00:00+00:00"], "col_2": [7.0]})
    arguments: dict[str, Any] = {"primary_key": "col_0", "event_time": "col_1"}
    for number, library in enumerate(LIBRARIES):
        with subtests.test(library):
            name = f"g{number}"
            df = in_library(table, library)
            with pytest.raises(InvalidArgument) as refused:
                empty_store.create_featuregroup(df, name, **arguments)
            df = pasted(df, str(refused.value.hint))
            group = empty_store.create_featuregroup(df, name, **arguments)
            assert group.read().to_arrow()["col_1"].to_pylist() == [NOON]
            features = [f"{name}.col_2"]
            labels = in_library(table.select(["col_0", "col_1"]), library)
            with pytest.raises(LabelTimeRequired) as undated:
                empty_store.get_features(features, labels=labels, label_time="col_1")
            labels = pasted(labels, str(undated.value.hint))
            frame = empty_store.get_features(features, labels=labels, label_time="col_1")
            assert frame.to_arrow()["col_2"].to_pylist() == [7.0]
