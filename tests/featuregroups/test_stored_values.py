"""Values that tables cannot store are refused before a write, on both engines."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from featurestore.errors import InvalidArgument, OutOfRange
from featurestore.store import FeatureStore
from tests.on_spark import on_engines

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
NEAR = 1_700_000_000_000_000
FAR = {"year 10000": 253_402_300_800_000_000, "year 0": -62_135_596_800_000_001, "most": 2**63 - 1}


def table(role: str, micros: int) -> pa.Table:
    """Return two rows; the second has an out-of-range time in the column of a role."""
    dtype = pa.timestamp("us", "UTC")
    near = pa.array([NOON, NOON], dtype)
    far = pa.array([NEAR, micros], pa.int64()).cast(dtype)
    columns = {"k": pa.array([7, 8]), "t": near, "c": near, "day": near, "x": near}
    columns[role] = far
    columns["list"] = pa.array([[cell] for cell in near.to_pylist()], pa.list_(dtype))
    return pa.table(columns)


ROLES = {"t": "event time", "c": "created time", "day": "key", "x": "feature"}
DECLARED: dict[str, Any] = {
    "primary_key": ["k", "day"],
    "event_time": "t",
    "created_time": "c",
}


@pytest.mark.parametrize("far", FAR.values(), ids=FAR.keys())
@pytest.mark.parametrize("role", ROLES)
def test_out_of_range_times_in_memory_raise(empty_store: FeatureStore, role: str, far: int) -> None:
    store, rows = empty_store, table(role, far)
    refused = rf"^Row 1 has .* in '{role}', outside of the years 1 to 9999"
    with pytest.raises(OutOfRange, match=refused):
        store.create_featuregroup(rows, "g", **DECLARED)
    with pytest.raises(OutOfRange, match=refused):
        store.create_training_dataset(rows, "d", data_format="parquet", exclude=[*ROLES, "list"])
    for folder in ("featuregroups", "trainingdatasets"):
        assert not os.path.exists(os.path.join(store.location, folder, "g"))
    store.create_featuregroup(table(role, NEAR), "g", **DECLARED)
    for mode in ("append", "upsert", "overwrite"):
        with pytest.raises(OutOfRange, match=refused):
            store.insert_into_featuregroup(rows, "g", mode=mode)
    assert store.get_featuregroup("g").count() == 2
    labels = rows.select([role, "k"]).rename_columns(["asked", "k"])
    with pytest.raises(OutOfRange, match=r"^Row 1 has .* in 'asked'"):
        store.get_features("g.x", labels=labels, label_time="asked", join_key="k").to_pandas()


@on_engines("validation", ["strict", "warn", "quarantine", "off"], spark=["quarantine"])
def test_out_of_range_times_in_native_rows_raise(store: FeatureStore, validation: str) -> None:
    store.create_featuregroup(table("t", NEAR), "near")
    native = store.sql("select k, t, t + interval 8000 years as x from near")
    with pytest.raises(OutOfRange, match="outside of the years 1 to 9999"):
        store.create_featuregroup(
            native, "far", primary_key="k", event_time="t", validation=validation
        )
    with pytest.raises(OutOfRange, match="outside of the years 1 to 9999"):
        store.create_featuregroup(native, "plain", validation=validation)
    assert [group.name for group in store.get_featuregroups()] == ["near"]


@on_engines("text", ["東" * 36, "x" * 300, "/" * 90, "a" * 251], spark=["/" * 90])
def test_partition_text_over_folder_name_limit_raises(store: FeatureStore, text: str) -> None:
    rows = [{"k": 1, "city": "Paris"}, {"k": 2, "city": text}]
    with pytest.raises(InvalidArgument, match=f"'city' has a string of {len(text)} characters"):
        store.create_featuregroup(rows, "g", primary_key="k", partition_by="city")
    with pytest.raises(InvalidArgument, match="file systems allow 255"):
        store.create_featuregroup(rows, "plain", partition_by="city", validation="off")
    assert store.get_featuregroups() == []


@on_engines("text", ["東" * 27, "y" * 250, "/" * 83], spark=["/" * 83])
def test_partition_text_at_folder_name_limit_is_stored(store: FeatureStore, text: str) -> None:
    rows = [{"k": 1, "city": "Paris"}, {"k": 2, "city": text}]
    group = store.create_featuregroup(rows, "g", primary_key="k", partition_by="city")
    assert sorted(group.read().to_arrow().column("city").to_pylist()) == sorted(["Paris", text])
