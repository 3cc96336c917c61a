"""Scans of tables: the pinned version, the file check, and the columns to read."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pyarrow as pa
import pytest

from featurestore.delta.scan import plan_scan
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import (
    SchemaMismatch,
    TableDamaged,
    UnsupportedType,
    VersionNotFound,
    VersionVacuumed,
)
from featurestore.model.times import NaiveTimeWarning
from tests.deltalog.hand_made import add, commit, metadata, protocol, schema_string

ROWS = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "zone": ["a", "b"],
        "at": pa.array([0, 1], pa.timestamp("us")),
    }
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with three columns, of which one has times without a time zone."""
    path = tmp_path / "table"
    commit(path, 0, protocol("timestampNtz"), metadata(ROWS.schema))
    commit(path, 1, add(path, "part-1.parquet", ROWS))
    removal = {"remove": {"path": "part-1.parquet", "dataChange": True}}
    commit(path, 2, removal, add(path, "part-2.parquet", ROWS.slice(0, 1)))
    return path


def test_plan_scan_without_version_pins_latest(table: Path) -> None:
    assert plan_scan(str(table), columns=["id"]).snapshot == read_snapshot(str(table), 2)
    assert plan_scan(str(table), version=1, columns=["id"]).snapshot.rows == 2
    with pytest.raises(VersionNotFound):
        plan_scan(str(table), version=3)


def test_plan_scan_returns_requested_columns_in_order(table: Path) -> None:
    expected = pa.schema([("zone", pa.string()), ("id", pa.int64())])
    assert plan_scan(str(table), columns=["zone", "id"]).schema == expected


def test_plan_scan_schema_restores_feature_types(table: Path) -> None:
    features = pa.schema([("id", pa.uint32()), ("added_later", pa.float32())])
    assert plan_scan(str(table), schema=features).schema == features
    scan = plan_scan(str(table), schema=features, columns=["added_later"])
    assert scan.schema == pa.schema([("added_later", pa.float32())])


def test_plan_scan_unknown_columns_raise(table: Path) -> None:
    with pytest.raises(SchemaMismatch, match=r"'x', 'y'.*'id', 'zone', 'at'"):
        plan_scan(str(table), columns=["id", "x", "y"])
    features = pa.schema([("id", pa.int64())])
    with pytest.raises(SchemaMismatch, match="'zone'"):
        plan_scan(str(table), schema=features, columns=["zone"])


def test_plan_scan_naive_times_warn_only_when_requested(table: Path) -> None:
    with pytest.warns(NaiveTimeWarning, match=f"Column 'at' of {table}"):
        scan = plan_scan(str(table))
    assert scan.schema.field("at").type == pa.timestamp("us", tz="UTC")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan_scan(str(table), columns=["id"])


def test_plan_scan_unsupported_types_raise_only_when_requested(tmp_path: Path) -> None:
    path = tmp_path / "table"
    labels = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}
    columns = schema_string(("id", "long"), ("labels", labels), ("empty", "void"))
    commit(path, 0, protocol(), metadata(columns))
    assert plan_scan(str(path), columns=["id"]).schema.names == ["id"]
    for column in ("labels", "empty"):
        with pytest.raises(UnsupportedType, match=column):
            plan_scan(str(path), columns=["id", column])


def test_plan_scan_truncated_file_raises(table: Path) -> None:
    os.truncate(table / "part-2.parquet", 10)
    with pytest.raises(TableDamaged, match="has 10 bytes"):
        plan_scan(str(table), columns=["id"])


def test_plan_scan_vacuumed_version_raises(table: Path) -> None:
    os.unlink(table / "part-1.parquet")
    with pytest.raises(VersionVacuumed, match="Readable versions: 0, 2"):
        plan_scan(str(table), version=1, columns=["id"])
    assert plan_scan(str(table), columns=["id"]).snapshot.version == 2
