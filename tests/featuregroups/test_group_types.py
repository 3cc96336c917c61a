"""Each type is stored and read back equal on both engines, or refused before a write."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import SchemaMismatch, UnsupportedType
from featurestore.model.times import NaiveTimeWarning

if TYPE_CHECKING:
    from pathlib import Path

    from featurestore.store import FeatureStore

NOON = dt.datetime(2024, 1, 1, 12, 0, 0, 1, tzinfo=dt.UTC)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
COLUMNS = {
    "boolean": pa.array([True, False, None]),
    "i8": pa.array([-128, 127, None], pa.int8()),
    "i16": pa.array([-(2**15), 2**15 - 1, None], pa.int16()),
    "i32": pa.array([-(2**31), 2**31 - 1, None], pa.int32()),
    "i64": pa.array([-(2**63), 2**63 - 1, None], pa.int64()),
    "u8": pa.array([0, 255, None], pa.uint8()),
    "u16": pa.array([0, 2**16 - 1, None], pa.uint16()),
    "u32": pa.array([0, 2**32 - 1, None], pa.uint32()),
    "u64": pa.array([0, 2**64 - 1, None], pa.uint64()),
    "f32": pa.array([1.5, float("inf"), None], pa.float32()),
    "f64": pa.array([1e150, -0.0, None], pa.float64()),
    "money": pa.array([Decimal("-1.20"), Decimal("99999999.99"), None], pa.decimal128(10, 2)),
    "huge": pa.array([Decimal(10**37), Decimal(-(10**37)), None], pa.decimal128(38, 0)),
    "text": pa.array(["", "æøå 中文 \x00 'quoted'", None]),
    "blob": pa.array([b"", b"\x00\xff", None]),
    "day": pa.array([dt.date(1900, 1, 1), dt.date(2024, 2, 29), None]),
    "moment": pa.array(
        [NOON, dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC), None], TIMESTAMP
    ),
    "list": pa.array([[1, None], [], None], pa.list_(pa.int32())),
    "nested": pa.array([[["a"], None], [[]], None], pa.list_(pa.list_(pa.string()))),
    "embedding": pa.array([[1.0, 2.0], [3.0, 4.0], None], pa.list_(pa.float32(), 2)),
    "pixels": pa.array([[0, 255], [1, 2], None], pa.list_(pa.uint8(), 2)),
    "record": pa.array(
        [{"a": 1, "b": ["x"]}, {"a": None, "b": None}, None],
        pa.struct([("a", pa.uint16()), ("b", pa.list_(pa.string()))]),
    ),
}
TABLE = pa.table({"id": [0, 1, 2], **COLUMNS})


def test_all_types_roundtrip(empty_store: FeatureStore) -> None:
    group = empty_store.create_featuregroup(TABLE, "types", primary_key="id")
    actual = empty_store.get_featuregroup("types", dataframe_type="arrow").sort_by("id")
    assert actual.schema.equals(TABLE.schema), f"{actual.schema}\n{TABLE.schema}"
    assert actual.to_pylist() == TABLE.to_pylist()
    assert np.signbit(actual["f64"][1].as_py())

    group.insert(TABLE.set_column(0, "id", pa.array([2, 3, 4])), mode="upsert")
    merged = empty_store.get_featuregroup("types", dataframe_type="arrow").sort_by("id")
    assert merged.schema.equals(TABLE.schema)
    expected = [
        *TABLE.to_pylist()[:2],
        *({**row, "id": row["id"] + 2} for row in TABLE.to_pylist()),
    ]
    assert merged.to_pylist() == expected


def test_nan_and_null_stay_distinct(empty_store: FeatureStore) -> None:
    empty_store.create_featuregroup(pa.table({"x": pa.array([float("nan"), None, 1.0])}), "gaps")
    actual = empty_store.get_featuregroup("gaps", dataframe_type="python")
    assert sorted(str(row["x"]) for row in actual) == ["1.0", "None", "nan"]


def test_empty_dataframe_creates_group(empty_store: FeatureStore) -> None:
    group = empty_store.create_featuregroup(TABLE.slice(0, 0), "empty", primary_key="id")
    assert (group.delta_version, group.history()[-1].rows) == (1, 0)
    assert empty_store.get_featuregroup("empty", dataframe_type="arrow").num_rows == 0
    commit = group.insert(TABLE)
    assert (commit.rows, commit.unique) == (3, True)


def test_numpy_matrix_roundtrip(empty_store: FeatureStore) -> None:
    matrix = np.random.default_rng(0).random((20, 10))
    empty_store.create_featuregroup(matrix, "eit_school")
    actual = empty_store.get_featuregroup("eit_school", dataframe_type="numpy")
    np.testing.assert_array_equal(actual[actual[:, 0].argsort()], matrix[matrix[:, 0].argsort()])


def test_unsupported_types_raise_without_writing(empty_store: FeatureStore) -> None:
    bad = pa.table({"a": pa.array([1], pa.duration("s")), "b": pa.array([1], pa.time32("s"))})
    with pytest.raises(UnsupportedType, match=r"a: .*b: "):
        empty_store.create_featuregroup(bad, "bad")
    assert empty_store.get_featuregroups() == []


CONVERSIONS = {
    "category": (pa.array(["a", None]).dictionary_encode(), pa.string(), ["a", None]),
    "wide_text": (pa.array(["x", None], pa.large_string()), pa.string(), ["x", None]),
    "wide_blob": (pa.array([b"x", None], pa.large_binary()), pa.binary(), [b"x", None]),
    "code": (pa.array([b"xy", None], pa.binary(2)), pa.binary(), [b"xy", None]),
    "half": (pa.array([np.float16(0.5), None], pa.float16()), pa.float32(), [0.5, None]),
    "day": (pa.array([dt.date(2024, 1, 1), None], pa.date64()), pa.date32(), [dt.date(2024, 1, 1), None]),
    "naive": (pa.array([NOON.replace(tzinfo=None), None]), TIMESTAMP, [NOON, None]),
    "nanos": (pa.array([1_000, None], pa.timestamp("ns", "UTC")), TIMESTAMP, [EPOCH.replace(microsecond=1), None]),
    "tokyo": (pa.array([NOON, None], pa.timestamp("us", "Asia/Tokyo")), TIMESTAMP, [NOON, None]),
    "wide_list": (pa.array([[1, 2], None], pa.large_list(pa.int32())), pa.list_(pa.int32()), [[1, 2], None]),
    "halves": (pa.array([[np.float16(1)] * 2] * 2, pa.list_(pa.float16(), 2)), pa.list_(pa.float32(), 2), [[1, 1]] * 2),
}  # fmt: skip


def test_input_types_are_stored_as_documented_feature_types(empty_store: FeatureStore) -> None:
    table = pa.table(
        {"id": [0, 1], **{name: inputs for name, (inputs, _, _) in CONVERSIONS.items()}}
    )
    with pytest.warns(NaiveTimeWarning, match="'naive'") as caught:
        group = empty_store.create_featuregroup(table, "given", primary_key="id")
    assert [warning.category for warning in caught].count(
        NaiveTimeWarning
    ) == 1  # Spark's libraries warn of their own
    actual = empty_store.get_featuregroup("given", dataframe_type="arrow").sort_by("id")
    assert group.schema.equals(actual.schema)
    for name, (_, dtype, values) in CONVERSIONS.items():
        assert str(actual.schema.field(name).type) == str(dtype), name
        assert actual[name].to_pylist() == values, name
    finer = table.set_column(
        table.column_names.index("nanos"), "nanos", pa.array([1, 2], pa.timestamp("ns", "UTC"))
    )
    finer = finer.set_column(table.column_names.index("naive"), "naive", finer["tokyo"])
    with pytest.raises(UnsupportedType, match="Column 'nanos'"):
        group.insert(finer)
    assert group.delta_version == 1


def test_naive_times_of_relation_warn_once(empty_store: FeatureStore) -> None:
    rows = duckdb.sql("select 1 as id, timestamp '2024-01-01' as t")
    with pytest.warns(NaiveTimeWarning) as caught:
        empty_store.create_featuregroup(rows, "naive", primary_key="id")
    with pytest.warns(NaiveTimeWarning) as caught_later:
        empty_store.insert_into_featuregroup(rows, "naive", mode="overwrite")
    assert (len(caught), len(caught_later)) == (1, 1)


def test_null_column_takes_type_of_group(empty_store: FeatureStore) -> None:
    group = empty_store.create_featuregroup(TABLE, "types", primary_key="id")
    nothing = pa.table({"id": [9], **{name: pa.nulls(1) for name in COLUMNS}})
    group.insert(nothing)
    table = empty_store.get_featuregroup("types").filter("id = 9").to_arrow()
    assert table.schema.equals(TABLE.schema)
    assert table.to_pylist() == nothing.to_pylist()


def test_array_shapes_persist_in_delta_column_metadata(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    images = np.arange(2 * 8 * 6, dtype=np.uint8).reshape(2, 8, 6)
    group = empty_store.create_featuregroup({"id": [1, 2], "image": images}, "images")
    group.insert({"id": [3], "image": images[:1], "more": [[1.0, 2.0]]}, schema_change="add")
    from featurestore_connectors.spark_delta.tables import create_table

    spark_path = str(tmp_path / "other")
    create_table(
        spark_path, schema=group.schema, partition_by=(), properties={}, commit_metadata={}
    )
    for path in (group.path, spark_path):
        fields = json.loads(DeltaTable(path).schema().to_json())["fields"]
        shapes = {field["name"]: field["metadata"].get("featurestore.shape") for field in fields}
        assert shapes == {"id": None, "image": "[8, 6]", "more": "[2]"}
    group.insert({"id": [4], "image": images[:1], "more": [[1.0, 2.0]]})
    table = group.read().to_pandas().sort_values("id")
    assert [cell.shape for cell in table["image"]] == [(8, 6)] * 4
    np.testing.assert_array_equal(table["image"].iloc[1], images[1])


A, B = ("a", pa.int32()), ("b", pa.string())
SHAPES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "another order": (pa.struct([B, A]), {"b": "x", "a": 1}, {"a": 1, "b": "x"}),
    "wider numbers": (pa.struct([("a", pa.int64()), B]), {"a": 2, "b": "x"}, {"a": 2, "b": "x"}),
    "whole floats": (pa.struct([B, ("a", pa.float64())]), {"a": 3.0}, {"a": 3, "b": None}),
    "no b": (pa.struct([A]), {"a": 4}, {"a": 4, "b": None}),
    "no a": (pa.struct([B]), {"b": "x"}, {"a": None, "b": "x"}),
    "a null": (pa.struct([B, A]), None, None),
}
UNFIT_SHAPES: dict[str, tuple[pa.DataType, Any]] = {
    "a fraction": (pa.struct([("a", pa.float64()), B]), {"a": 1.5}),
    "a large number": (pa.struct([("a", pa.int64()), B]), {"a": 2**31}),
    "a text": (pa.struct([("a", pa.string()), B]), {"a": "1"}),
    "one more field": (pa.struct([A, B, ("c", pa.int8())]), {"a": 1}),
}
ON_SPARK = ("another order", "whole floats", "no b", "a null", "a fraction")


def _struct_rows(key: int, struct: pa.DataType, value: Any) -> pa.Table:
    """Return a row with a struct, and with the struct in a list."""
    return pa.table(
        {
            "k": pa.array([key], pa.int64()),
            "s": pa.array([value], struct),
            "listed": pa.array([[value]], pa.list_(struct)),
        }
    )


def _native_rows(store: FeatureStore, rows: pa.Table) -> Any:
    """Return rows as a dataframe of the engine, which it reads without the checks of Arrow."""
    if store.engine == "spark":
        from pyspark.sql import SparkSession

        return SparkSession.active().createDataFrame(rows)  # type: ignore[arg-type]
    return duckdb.sql("FROM rows")


def test_struct_fields_are_matched_by_name_on_both_engines(
    store: FeatureStore, engine_name: str, subtests: pytest.Subtests
) -> None:
    store.create_featuregroup(_struct_rows(0, pa.struct([A, B]), {"a": 0}), "g", primary_key="k")
    expected: dict[int, Any] = {0: {"a": 0, "b": None}}
    cases: dict[str, tuple[Any, ...]] = {**SHAPES, **UNFIT_SHAPES}
    for title in ON_SPARK if engine_name == "spark" else cases:
        struct, value, *stored_values = cases[title]
        for form in ("Arrow", "native"):
            key = len(expected)
            rows = _struct_rows(key, struct, value)
            df = rows if form == "Arrow" else _native_rows(store, rows)
            with subtests.test(f"{title} in a dataframe of {form}"):
                if title in UNFIT_SHAPES:
                    with pytest.raises(SchemaMismatch, match="'s' is struct<"):
                        store.insert_into_featuregroup(df, "g")
                else:
                    store.insert_into_featuregroup(df, "g")
                    expected[key] = stored_values[0]
    rows = store.get_featuregroup("g").to_arrow().to_pylist()
    assert {row["k"]: row["s"] for row in rows} == expected
    assert {row["k"]: row["listed"] for row in rows} == {key: [s] for key, s in expected.items()}
