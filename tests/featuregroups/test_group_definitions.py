"""Version definitions: equality, differences and refusals."""

from __future__ import annotations

import datetime as dt
import os
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import (
    DefinitionMismatch,
    FeatureGroupExists,
    FeatureGroupNotFound,
    InvalidArgument,
    InvalidName,
    KeyRequired,
    OutOfRange,
    UnsupportedDataframe,
)
from featurestore.store import FeatureStore

DAY = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
TABLE = pa.table({"id": [1, 2], "t": [DAY] * 2, "known": [DAY] * 2, "x": [0.5, 1.5]})
VECTORS = TABLE.append_column("vector", pa.array([[1, 2]] * 2, pa.list_(pa.int64(), 2)))


def test_create_featuregroup_increments_version(empty_store: FeatureStore) -> None:
    first = empty_store.create_featuregroup(TABLE, "g")
    second = empty_store.create_featuregroup(TABLE.drop(["known"]), "g", primary_key="id")
    assert (first.version, second.version) == (1, 2)
    assert empty_store.get_latest_featuregroup_version("g") == 2
    assert empty_store.featuregroup("g") == second
    assert empty_store.featuregroup("g", version=1).primary_key == ()
    assert empty_store.get_featuregroup("g@v1").columns == TABLE.column_names
    with pytest.raises(FeatureGroupExists, match="version 1 exists already"):
        empty_store.create_featuregroup(TABLE, "g", version=1)
    assert empty_store.create_featuregroup(TABLE, "g", version=7).version == 7
    assert empty_store.create_featuregroup(TABLE.slice(1), "g").version == 8


def test_featuregroup_handle_attributes_and_repr(empty_store: FeatureStore) -> None:
    group = empty_store.create_featuregroup(
        TABLE,
        "g",
        primary_key=["id"],
        event_time="t",
        created_time="known",
        ttl="7d",
        description="Speeds",
        tags={"a": "b"},
    )
    assert (group.name, group.version, group.delta_version) == ("g", 1, 1)
    assert (group.primary_key, group.event_time, group.created_time) == (("id",), "t", "known")
    assert (group.spec.ttl, group.description, group.tags) == (
        dt.timedelta(days=7),
        "Speeds",
        {"a": "b"},
    )
    assert group.path == os.path.join(empty_store.location, "featuregroups", "g", "v1")
    assert repr(group) == "FeatureGroup('g', version=1)"
    assert {group, empty_store.featuregroup("g")} == {group}


def test_get_or_create_writes_once_and_compares_definitions(empty_store: FeatureStore) -> None:
    options: dict[str, Any] = {"primary_key": "id", "event_time": "t"}
    first = empty_store.get_or_create_featuregroup(TABLE, "g", **options)
    again = empty_store.get_or_create_featuregroup(TABLE.slice(0, 1), "g", **options)
    assert first == again
    assert again.delta_version == 1
    for definition, message in (
        ({"primary_key": ["id", "x"][:1]}, "event_time: stored 't', declared None"),
        ({**options, "ttl": "1h"}, "ttl: stored None, declared '1h'"),
        (
            {**options, "primary_key": ["id", "t"]},
            r"primary_key: stored \['id'\], declared \['id', 't'\]",
        ),
    ):
        with pytest.raises(DefinitionMismatch, match=message):
            empty_store.get_or_create_featuregroup(TABLE, "g", **definition)
    with pytest.raises(DefinitionMismatch, match=r"column 'x' .* is missing.*column 'y' is new"):
        empty_store.get_or_create_featuregroup(
            TABLE.rename_columns(["id", "t", "known", "y"]), "g", **options
        )


@pytest.mark.parametrize(
    ("options", "error_type", "message"),
    [
        ({"primary_key": "nope"}, InvalidArgument, "'nope'.*Available: 'id'"),
        (
            {"primary_key": "x"},
            InvalidArgument,
            r"'x' of type double cannot be a key.*\n.*cast\(df, \{'x': 'int64'",
        ),
        ({"primary_key": "vector"}, InvalidArgument, r"fixed_size_list.* cannot be a key"),
        ({"partition_by": "vector"}, InvalidArgument, "cannot be folder names"),
        ({"primary_key": ["id", "id"]}, InvalidArgument, "twice"),
        ({"event_time": "id"}, InvalidArgument, "times are timestamps"),
        ({"created_time": "t"}, KeyRequired, "needs an event_time"),
        ({"ttl": "1h"}, KeyRequired, "ttl needs an event_time"),
        ({"event_time": "t", "ttl": "soon"}, InvalidArgument, "not a duration"),
        ({"event_time": "t", "created_time": "t"}, InvalidArgument, "same column"),
        ({"validation": "loose"}, InvalidArgument, "not a validation policy"),
        ({"tags": {"a": 1}}, InvalidArgument, "not a pair of strings"),
        ({"version": 0}, OutOfRange, "not between 1 and"),
        ({"version": True}, InvalidArgument, "not an integer"),
        ({"partition_by": ["id", "t", "known", "x"]}, InvalidArgument, "partition"),
    ],
)
def test_create_featuregroup_invalid_definition_writes_nothing(
    empty_store: FeatureStore, options: Any, error_type: Any, message: str
) -> None:
    with pytest.raises(error_type, match=message):
        empty_store.create_featuregroup(VECTORS, "g", **options)
    assert empty_store.get_featuregroups() == []
    assert not os.path.exists(os.path.join(empty_store.location, "featuregroups", "g", "v1"))
    assert empty_store.create_featuregroup(TABLE, "g").version == 1


@pytest.mark.parametrize("name", ["Speeds", "../up", "a/b", "", "a" * 64, "1st", "a b", "ä"])
def test_featuregroup_invalid_name_raises_with_suggestion(
    empty_store: FeatureStore, name: str
) -> None:
    with pytest.raises(InvalidName, match="Hint: call it"):
        empty_store.create_featuregroup(TABLE, name)
    with pytest.raises((InvalidName, FeatureGroupNotFound)):
        empty_store.get_featuregroup(name)


def test_get_featuregroup_unknown_raises_with_available(empty_store: FeatureStore) -> None:
    with pytest.raises(FeatureGroupNotFound, match="Available: none"):
        empty_store.featuregroup("g")
    empty_store.create_featuregroup(TABLE, "g")
    with pytest.raises(FeatureGroupNotFound, match="Available: 'g'"):
        empty_store.get_featuregroup("h")
    with pytest.raises(FeatureGroupNotFound, match=r"no version 2\. Available: 1"):
        empty_store.insert_into_featuregroup(TABLE, "g", version=2)


def test_concurrent_create_of_one_version_succeeds_once(empty_store: FeatureStore) -> None:
    outcomes: list[object] = []
    start = threading.Barrier(4)

    def create() -> None:
        store = featurestore.connect(empty_store.location)
        start.wait()
        try:
            outcomes.append(store.create_featuregroup(TABLE, "g", version=1))
        except FeatureGroupExists as error:
            outcomes.append(error)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == [
        "FeatureGroup",
        *["FeatureGroupExists"] * 3,
    ]
    assert empty_store.get_featuregroup("g").count() == 2


def test_concurrent_create_without_version_gives_distinct_versions(
    empty_store: FeatureStore,
) -> None:
    versions: list[int] = []

    def create(number: int) -> None:
        # A repeated call with the same rows returns the group that exists.
        rows = TABLE.append_column("number", pa.array([number] * TABLE.num_rows))
        store = featurestore.connect(empty_store.location)
        versions.append(store.create_featuregroup(rows, "g").version)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(versions) == [1, 2, 3, 4]


def test_concurrent_get_or_create_returns_same_group(empty_store: FeatureStore) -> None:
    actual: list[featurestore.FeatureGroup] = []
    threads = [
        threading.Thread(
            target=lambda: actual.append(
                featurestore.connect(empty_store.location).get_or_create_featuregroup(
                    TABLE, "g", primary_key="id"
                )
            )
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(actual) == 4
    assert len(set(actual)) == 1
    assert empty_store.get_featuregroup("g").count() == 2


def test_delete_featuregroup_version_keeps_other_versions(empty_store: FeatureStore) -> None:
    first = empty_store.create_featuregroup(TABLE, "g", tags={"a": "b"})
    empty_store.create_featuregroup(TABLE, "g", version=2)
    empty_store.delete_featuregroup("g", version=1)
    assert not os.path.exists(first.path)
    assert [group.version for group in empty_store.get_featuregroups()] == [2]
    with pytest.raises(FeatureGroupNotFound):
        first.read()
    again = empty_store.create_featuregroup(TABLE, "g", version=1)
    assert (again.tags, again.delta_version) == ({}, 1)


@pytest.mark.parametrize("df", [pa.table({}), np.zeros((3, 0))])
def test_create_featuregroup_without_columns_raises(empty_store: FeatureStore, df: object) -> None:
    with pytest.raises(UnsupportedDataframe, match="no columns"):
        empty_store.create_featuregroup(df, "g")
    assert empty_store.get_featuregroups() == []


def test_featuregroup_with_1000_columns_roundtrip(empty_store: FeatureStore) -> None:
    wide = pa.table({f"c{number}": [float(number)] for number in range(1_000)})
    group = empty_store.create_featuregroup(wide, "g", statistics=False)
    group.insert(wide, validation="off")
    assert group.read().to_arrow().equals(pa.concat_tables([wide, wide]))
