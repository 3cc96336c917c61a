"""Columns without values take the type of the column they are combined with."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import InvalidSql, SchemaMismatch, UnsupportedType
from featurestore.usersql.row_functions import feature
from tests.ingest.pasting import pasted

if TYPE_CHECKING:
    from featurestore.featuregroups import FeatureGroup
    from featurestore.store import FeatureStore

DAY = datetime(2024, 1, 1, tzinfo=UTC)
STRUCT = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])
# For each type: a value, and values without a type.
COLUMNS: dict[str, tuple[pa.DataType, Any, list[Any]]] = {
    "text": (pa.string(), "x", [None]),
    "number": (pa.int32(), 1, [None]),
    "yes": (pa.bool_(), True, [None]),
    "price": (pa.decimal128(4, 2), Decimal("9.99"), [None]),
    "day": (pa.date32(), date(2024, 1, 1), [None]),
    "time": (TIMESTAMP, DAY, [None]),
    "raw": (pa.binary(), b"x", [None]),
    "tags": (pa.list_(pa.string()), ["x"], [None, [], [None]]),
    "levels": (pa.list_(pa.list_(pa.int64())), [[1]], [None, [], [[]], [None]]),
    "parts": (STRUCT, {"a": 1, "b": ["x"]}, [None, {"a": None, "b": []}, {"a": None, "b": None}]),
    "points": (pa.list_(STRUCT), [{"a": 1, "b": []}], [[], [None], [{"a": None, "b": []}]]),
    "vector": (pa.list_(pa.float32(), 2), [1.0, 2.0], [None]),
}
SCHEMA = pa.schema(
    [
        ("user", pa.string()),
        ("at", TIMESTAMP),
        *[(name, dtype) for name, (dtype, _, _) in COLUMNS.items()],
    ]
)


@pytest.fixture
def group(store: FeatureStore) -> FeatureGroup:
    row = {"user": "full", "at": DAY, **{name: value for name, (_, value, _) in COLUMNS.items()}}
    rows = pa.Table.from_pylist([row], SCHEMA)
    return store.create_featuregroup(rows, "g", primary_key="user", event_time="at")


def blank_rows() -> list[dict[str, Any]]:
    """Return rows that cover all values without a type for each column."""
    rows = []
    for number in range(4):
        row: dict[str, Any] = {"user": f"blank{number}", "at": DAY}
        for name, (_, _, values) in COLUMNS.items():
            row[name] = values[min(number, len(values) - 1)]
        rows.append(row)
    return rows


def native(store: FeatureStore, rows: list[dict[str, Any]]) -> Any:
    """Return rows as a native frame of the engine, in which these columns have no type."""
    if store.engine != "spark":
        table = pa.Table.from_pylist(rows)
        return duckdb.connect().from_arrow(table)
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    assert session is not None
    return session.sql(
        "SELECT 'native' AS user, timestamp_micros(1704067200000000) AS at, null AS text, "
        "null AS number, null AS yes, null AS price, null AS day, null AS time, null AS raw, "
        "array() AS tags, array(array()) AS levels, named_struct('a', null, 'b', array()) AS parts, "
        "array(named_struct('a', null, 'b', array())) AS points, null AS vector"
    )


def test_batches_without_values_take_group_types(store: FeatureStore, group: FeatureGroup) -> None:
    rows = blank_rows()
    for row in rows:  # one by one, so that no batch has the types of the others
        group.insert([row], mode="upsert")
    expected = sorted(rows, key=lambda row: row["user"])
    condition = "starts_with(user, 'blank')"
    result = store.get_featuregroup("g").filter(condition).to_arrow().sort_by("user")
    assert result.schema.types == SCHEMA.types
    assert result.to_pylist() == expected
    table = pa.Table.from_pylist(rows)
    frames = [table, pl.from_arrow(table), pd.DataFrame(rows), iter(table.to_batches())]
    for frame in every_library(store, frames):
        group.insert(frame, mode="upsert")
        assert store.get_featuregroup("g").filter(condition).to_arrow().sort_by("user") == result
    group.insert(native(store, rows), mode="upsert")
    group.insert(pd.DataFrame({name: [] for name in SCHEMA.names}))
    assert set(store.get_featuregroup("g").to_arrow()["tags"].to_pylist()[0] or ["x"]) <= {"x"}


def test_empty_list_for_fixed_size_array_raises(group: FeatureGroup) -> None:
    row = {**blank_rows()[0], "vector": []}
    with pytest.raises(SchemaMismatch, match=r"'vector' .*\(0,\) does not fit"):
        group.insert([row])


def every_library(store: FeatureStore, frames: list[Any]) -> list[Any]:
    """Return the frames to test; on Spark the first, since the conversion to Arrow is the same."""
    return frames[:1] if store.engine == "spark" else frames


def labels_of_libraries(rows: list[dict[str, Any]]) -> list[Any]:
    table = pa.Table.from_pylist(rows)
    return [
        rows,
        table,
        pl.from_arrow(table),
        pd.DataFrame(rows),
        duckdb.connect().from_arrow(table),
    ]


@pytest.mark.filterwarnings("ignore::featurestore.errors.DataWarning")
@pytest.mark.filterwarnings("ignore::featurestore.retrieval.CoverageWarning")
def test_untyped_labels_take_key_types(store: FeatureStore, group: FeatureGroup) -> None:
    blank: dict[str, Any] = {"user": None, "label": None, "seen": [], "more": {"a": None}}
    for labels in every_library(store, labels_of_libraries([{**blank, "asked": DAY}])):
        frame = store.get_features("g.tags", labels=labels, label_time="asked")
        (row,) = frame.to_arrow().to_pylist()
        assert row == {**blank, "asked": DAY, "tags": None}
        assert frame.schema.field("user").type == pa.string()
        assert frame.schema.field("label").type == pa.null()
        again = store.get_features("g.number", labels=frame).to_pandas()
        assert again["number"].isna().all()
        assert list(again.columns) == ["user", "label", "seen", "more", "asked", "tags", "number"]
    untyped = [
        pd.DataFrame({"user": [], "asked": []}),
        pl.DataFrame({"user": [], "asked": []}),
        pd.DataFrame({"user": [np.nan], "asked": [None]}),
    ]
    for labels in every_library(store, untyped):
        frame = store.get_features("g.tags", labels=labels, label_time="asked")
        assert frame.schema.types[:2] == [pa.string(), TIMESTAMP]
        assert frame.to_arrow()["tags"].null_count == len(labels)


@pytest.mark.filterwarnings("ignore::featurestore.retrieval.CoverageWarning")
def test_view_labels_take_label_group_types(store: FeatureStore, group: FeatureGroup) -> None:
    input_rows = pa.table({"user": ["full"], "at": [DAY], "coupon": ["x"]})
    store.create_featuregroup(input_rows, "asked", primary_key="user", event_time="at")
    view = store.create_feature_view(
        "v",
        features=["g.number", feature("used", "coalesce(coupon, 'none')")],
        labels="asked",
        label_time="at",
    )
    alone = view.get_features(labels=[{"user": "full", "coupon": None, "at": DAY}]).to_arrow()
    assert alone.schema.field("coupon").type == pa.string()
    company = [{"user": "full", "coupon": text, "at": DAY} for text in (None, "x")]
    batch = view.get_features(labels=company).to_arrow()
    assert alone.to_pylist() == batch.slice(0, 1).to_pylist()
    assert alone["used"].to_pylist() == ["none"]


def test_untyped_labels_in_expressions_need_cast(store: FeatureStore, group: FeatureGroup) -> None:
    labels = [{"user": "full", "coupon": None, "asked": DAY + timedelta(days=1)}]
    with pytest.raises(InvalidSql, match=r"null to string: cast\(x as varchar\)"):
        store.get_features(["g.text", feature("f", "coupon = 'x'")], labels=labels)
    cast = feature("f", "coalesce(cast(coupon as varchar), text)")
    assert store.get_features(["g.text", cast], labels=labels).to_arrow()["f"].to_pylist() == ["x"]


def test_untyped_columns_raise_with_cast_hint(store: FeatureStore, group: FeatureGroup) -> None:
    with pytest.raises(UnsupportedType, match="'x'") as refusal:
        store.sql("select user, null as x from g")
    assert store.sql(str(refusal.value.hint)).schema.types == [pa.string(), pa.float64()]
    typed = store.sql("select user, cast(null as varchar) as x from g")
    assert typed.schema.types == [pa.string(), pa.string()]
    labels = pd.DataFrame({"user": ["full"], "coupon": [None], "asked": [DAY]})
    with pytest.raises(UnsupportedType, match="'coupon'") as refusal:
        store.create_training_dataset(
            store.get_features("g.text", labels=labels, label_time="asked"), "d"
        )
    labels = pasted(labels, str(refusal.value.hint))
    frame = store.get_features("g.text", labels=labels, label_time="asked")
    assert frame.schema.field("coupon").type == pa.float64()
    rows = [{**blank_rows()[0], "new": None, "newer": []}]
    with pytest.raises(UnsupportedType, match=r"'new' \(null\), 'newer' \(list<item: null>\)"):
        group.insert(rows, schema_change="add")
    with pytest.raises(UnsupportedType, match="dtypes="):
        store.create_featuregroup(rows, "h")
    assert store.get_featuregroup("g").count() == 1
