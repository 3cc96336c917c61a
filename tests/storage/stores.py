"""Stores at a URI, and rows for them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from featurestore.errors import ValidationFailed
from featurestore.storage.connections import object_store_for
from featurestore.store import FeatureStore
from featurestore.training.dataset import TrainingDataset
from featurestore_connectors.hdfs import HdfsStorage
from tests.conftest import FIXTURE_GROUPS, SKIPPED_CLOUDS, SKIPPED_STORAGE
from tests.streams import kafka_server

Connect = Callable[..., FeatureStore]
# The fixtures of servers by the scheme of their URIs.
SERVERS = {
    "s3": "object_server",
    "hdfs": "hdfs_server",
    "gs": "gcs_server",
    "az": "azure_server",
}
# Table tests about values, which do not depend on the storage.
ABOUT_VALUES = frozenset(
    {
        "test_append_matches_columns_by_name",
        "test_append_casts_narrower_types",
        "test_read_table_selects_columns_in_order",
        "test_upsert_of_a_null_key_matches_nothing",
        "test_composite_keys_never_meet_by_their_text",
        "test_replace_deletes_exactly_its_range[right-left1]",
        "test_replace_refuses_rows_outside_its_range",
        "test_replace_without_rows_empties_range",
        "test_added_columns_are_null_in_older_rows",
    }
)
POSITIVE = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "x", "min_value": 0}}


@dataclass(frozen=True)
class StoreLocation:
    """An empty bucket or folder of test stores.

    Args:
        scheme: The scheme of its URI.
        folder: Its URI.
        options: The ``storage_options=`` of a client.
        environment: The environment variables of a client.
        secrets: The values that must not be stored or shown.
        connect: Opens a store in the folder.
    """

    scheme: str
    folder: str
    options: Mapping[str, str]
    environment: Mapping[str, str]
    secrets: tuple[str, ...]
    connect: Connect


def on_servers(*schemes: str, soak: Collection[str] = ()) -> pytest.MarkDecorator:
    """Run a test of ``store_location`` once per server, in the process that has the server.

    Args:
        schemes: The servers of every run.
        soak: Further servers, on which the test runs in ``make soak``.
    """
    parameters = []
    for scheme in (*schemes, *soak):
        marks = [pytest.mark.services]
        if SERVERS[scheme] in FIXTURE_GROUPS:
            marks.append(pytest.mark.xdist_group(FIXTURE_GROUPS[SERVERS[scheme]]))
        if scheme in soak:
            marks.append(pytest.mark.soak)
        parameters.append(pytest.param(scheme, marks=marks))
    return pytest.mark.parametrize("store_location", parameters, indirect=True)


def spark_on_servers(*schemes: str) -> pytest.MarkDecorator:
    """Run a test once per server, always in the process of the Spark session."""
    return pytest.mark.parametrize("store_location", schemes, indirect=True)


def skip_without_spark_client(scheme: str) -> None:
    """Skip the current test if Spark has no client of a server: not fetched, or not for this Spark."""
    import pyspark

    from featurestore_connectors.spark_delta.jars import gcs_connector

    if scheme == "s3" and not kafka_server.spark_jars(kafka_server.S3A):
        pytest.skip(f"{SKIPPED_STORAGE}: the jars of hadoop-aws were not fetched")
    if scheme == "gs" and not gcs_connector().exists():
        pytest.skip(f"{SKIPPED_CLOUDS}: Google's connector of Hadoop was not fetched")
    if scheme == "gs" and tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2):
        # NumberFormatException: For input string: "64m"
        pytest.skip(f"{SKIPPED_CLOUDS}: Google's connector does not read sizes of Hadoop 3.5")


def new_name() -> str:
    """Return an unused name of a bucket or folder."""
    return f"test-{uuid.uuid4().hex[:12]}"


def rows(first: int, count: int, *, x: float | None = None) -> pd.DataFrame:
    ids = np.arange(first, first + count)
    return pd.DataFrame(
        {
            "id": ids,
            "at": pd.Timestamp("2024-01-01", tz="UTC") + pd.to_timedelta(ids, unit="h"),
            "x": ids * 0.5 if x is None else np.full(count, x),
            "city": np.where(ids % 2 == 0, "São Paulo", "a/b c%"),
        }
    )


def labeled(count: int = 600) -> pd.DataFrame:
    return rows(0, count).assign(late=np.arange(count) % 3 == 0)


def export(store: FeatureStore, name: str = "d", **options: Any) -> TrainingDataset:
    frame = store.get_featuregroup("weather").select("id", "x", "late")
    splits = {"train": 0.8, "test": 0.2}
    arguments = {"label": "late", "key": "id", "splits": splits, "shards": 3, **options}
    return store.create_training_dataset(frame, name, **arguments)


def names_below(uri: str) -> list[str]:
    """Return the names of all files below a URI, including incomplete ones."""
    storage, folder = object_store_for(uri)
    if isinstance(storage, HdfsStorage):
        try:
            listed = list(storage._client.list_status(f"/{folder}", recursive=True))
        except FileNotFoundError:
            return []
        paths = [status.path[1:] for status in listed if not status.isdir]
    else:
        paths = [entry.name for entry in storage.list(folder)]
    return sorted(path[len(folder) + 1 :] for path in paths)


def history_of_a_group(store: FeatureStore) -> list[Any]:
    """Run every operation on groups and return the result of each step."""
    results: list[Any] = []

    def look() -> None:
        frame = store.get_featuregroup("weather").select("id", "x", "city")
        results.append(sorted(map(tuple, frame.to_pandas().itertuples(index=False))))
        results.append(store.featuregroup("weather").statistics().to_json()["columns"])

    store.create_featuregroup(
        rows(0, 40),
        "weather",
        primary_key="id",
        event_time="at",
        partition_by="city",
        expectations=[POSITIVE],
        tags={"team": "a"},
    )
    look()
    store.insert_into_featuregroup(rows(40, 10), "weather", transaction=("etl", 1))
    store.insert_into_featuregroup(rows(40, 10), "weather", transaction=("etl", 1))
    store.insert_into_featuregroup(rows(5, 3, x=7.0), "weather", mode="upsert")
    look()
    with pytest.raises(ValidationFailed):
        store.insert_into_featuregroup(rows(60, 3, x=-1.0), "weather")
    mixed = pd.concat([rows(70, 2), rows(72, 2, x=-1.0)])
    store.insert_into_featuregroup(mixed, "weather", validation="quarantine")
    results.append(sorted(store.get_featuregroup_quarantine("weather").to_pandas()["id"]))
    store.delete_from_featuregroup("weather", "x >= 20 and city = 'São Paulo'")
    look()
    added = rows(80, 2).assign(y=1)
    store.insert_into_featuregroup(added, "weather", schema_change="add")
    store.rename_feature("weather", "y", "z")
    renamed = store.get_featuregroup("weather", version=2).to_pandas().sort_values("id")
    results.append(renamed["z"].fillna(-1).tolist())
    store.insert_into_featuregroup(rows(90, 2).assign(z=2), "weather")
    store.compact_featuregroup("weather", version=1)
    results.append(store.get_featuregroup("weather", version=1, as_of=1).count())
    vacuumed = store.vacuum_featuregroup("weather", version=1, retain=timedelta(0))
    results.append(bool(vacuumed))  # engines write their own number of files
    labels = pd.DataFrame(
        {"id": [3, 6, 999], "when": pd.Timestamp("2024-03-01", tz="UTC"), "label": [1, 0, 1]}
    )
    joined = store.get_features(["weather.x"], labels=labels, label_time="when").to_pandas()
    results.append(joined.sort_values("id")["x"].fillna(-1).tolist())
    for version in (1, 2):
        history = store.get_featuregroup_history("weather", version=version)
        results.append([(commit.operation, commit.rows_in, commit.rows_out) for commit in history])
    results.append(len(store.search("weather")))
    store.delete_featuregroup("weather", version=1)
    results.append([group.version for group in store.get_featuregroups()])
    return results
