"""Spark at a URI: groups, shards of executors, and the settings of a session on each server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import ConfigurationError, UnsupportedLocation
from featurestore.plugins.engine import Engine
from featurestore.storage.connections import object_store_for, use_options
from featurestore.store import FeatureStore
from featurestore.testing.table_conformance import TableConformance
from featurestore.training.dataset import TrainingDataset
from tests.object_server import ACCESS_KEY, SECRET_KEY, ObjectServer
from tests.storage.stores import (
    StoreLocation,
    history_of_a_group,
    labeled,
    names_below,
    rows,
    skip_without_spark_client,
    spark_on_servers,
)
from tests.storage.uri_path import UriPath
from tests.streams import kafka_server

pytestmark = pytest.mark.spark


@pytest.mark.soak
class TestTablesOfSparkOnS3(TableConformance):
    @pytest.fixture
    def engine(self, spark_engine: Engine) -> Engine:
        return spark_engine

    @pytest.fixture
    def tmp_path(self, bucket: str, object_server: ObjectServer) -> UriPath:
        skip_without_spark_client("s3")
        use_options(bucket, object_server.options)
        return UriPath(bucket) / "some folder"


def write_both_ways(store: FeatureStore, other_store: FeatureStore) -> list[Any]:
    """Write a group and a dataset of it with two connections in turns; return their contents."""
    store.create_featuregroup(labeled(300), "weather", primary_key="id", event_time="at")
    other_store.insert_into_featuregroup(labeled(330).tail(30), "weather", transaction=("etl", 1))
    store.insert_into_featuregroup(labeled(330).tail(30), "weather", transaction=("etl", 1))
    store.insert_into_featuregroup(labeled(5).assign(x=7.0), "weather", mode="upsert")
    other_store.delete_from_featuregroup("weather", "x > 160")
    table = store.get_featuregroup("weather").to_pandas().sort_values("id")
    return [table["id"].tolist(), table["x"].tolist()]


def export_features(store: FeatureStore) -> TrainingDataset:
    frame = store.get_features(["weather.x", "weather.late"])
    splits = {"train": 0.8, "test": 0.2}
    return store.create_training_dataset(frame, "d", label="late", splits=splits, shards=3)


def epoch_of(path: str) -> list[list[float]]:
    reader = TrainingDataset.open(path).reader("train", global_batch_size=32, seed=3)
    return [batch["x"].tolist() for batch in reader.batches()]


def shards_of(dataset: TrainingDataset) -> list[tuple[str, str]]:
    splits = dataset.manifest.splits
    return [(shard.path, shard.sha256) for split in splits for shard in split.shards]


@dataclass(frozen=True)
class LocalResults:
    rows: list[Any]
    dataset: TrainingDataset


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalResults]:
    """The results of the embedded engine in a local directory, for all servers."""
    with featurestore.connect(tmp_path_factory.mktemp("disk")) as disk:
        yield LocalResults(write_both_ways(disk, disk), export_features(disk))


@pytest.mark.usefixtures("spark_folder")
@spark_on_servers("s3", "hdfs", "gs")
def test_spark_by_uri_equals_local_embedded_engine(
    store_location: StoreLocation, local: LocalResults
) -> None:
    spark, embedded = store_location.connect(engine="spark"), store_location.connect()
    assert write_both_ways(spark, embedded) == local.rows
    assert sorted(spark.get_features(["weather.x"]).to_pandas()["x"]) == sorted(local.rows[1])
    remote = export_features(spark)
    assert remote.manifest.content_hash == local.dataset.manifest.content_hash
    assert shards_of(remote) == shards_of(local.dataset)
    assert remote.verify(recompute=True).problems == ()
    assert epoch_of(remote.path) == epoch_of(local.dataset.path)
    spark.compact_featuregroup("weather")
    pd.testing.assert_series_equal(
        embedded.get_featuregroup("weather").to_pandas()["x"].sort_values(ignore_index=True),
        pd.Series(sorted(local.rows[1]), name="x"),
    )
    # Folders are not objects, so no spark_folder markers may be left.
    storage, name = object_store_for(spark.location)
    assert [entry.name for entry in storage.list(name) if entry.size == 0] == []
    spark.delete_training_dataset("d", version=1)
    spark.delete_featuregroup("weather", version=1)
    assert storage.children(f"{name}/featuregroups/weather") == ["v1.deleted"]


@pytest.mark.soak
@pytest.mark.usefixtures("spark_folder")
@spark_on_servers("s3")
def test_spark_groups_on_s3_equal_local_groups(
    store_location: StoreLocation, tmp_path: Path
) -> None:
    with featurestore.connect(tmp_path / "disk") as disk:
        expected = history_of_a_group(disk)
    assert history_of_a_group(store_location.connect(engine="spark")) == expected


# -- what a session must have ---------------------------------------------------------------------

# The missing client of a session, words of the hint, and the log store of the hint.
SESSION_HINTS = {
    "s3": (
        "no hadoop-aws",
        (
            kafka_server.S3A.replace("hadoop-aws-", "hadoop-aws:"),
            "spark.jars.excludes=software.amazon.awssdk:bundle",
        ),
        "featurestore.delta.S3LogStore",
    ),
    "gs": (
        "no gcs-connector",
        ("gcs-connector-3.0.4-shaded.jar",),
        "featurestore.delta.GcsLogStore",
    ),
    "hdfs": ("no Hadoop client", ("featurestore[spark]",), "featurestore.delta.HdfsLogStore"),
}


@pytest.mark.usefixtures("spark_folder")
@spark_on_servers("s3", "hdfs", "gs")
def test_spark_session_without_support_is_refused(
    store_location: StoreLocation, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from featurestore_connectors.spark_delta import buckets, session

    missing_client, words, log_store = SESSION_HINTS[store_location.scheme]
    store = store_location.connect(engine="spark")
    before = names_below(store_location.folder)
    with monkeypatch.context() as patched:
        patched.setattr(buckets, "has_class", lambda *arguments: False)
        with pytest.raises(ConfigurationError, match=missing_client) as caught:
            store.create_featuregroup(rows(0, 3), "weather")
    for word in words:
        assert word in str(caught.value.hint)
    monkeypatch.setattr(
        session, "_configured_log_store", lambda *arguments: "io.delta.storage.S3LogStore"
    )
    with pytest.raises(ConfigurationError, match="which then lose rows") as caught:
        store.create_featuregroup(rows(0, 3), "weather")
    setting = f"spark.delta.logStore.{store_location.scheme}.impl={log_store}"
    for word in (setting, f"spark.jars={session.JVM_JAR}"):
        assert word in str(caught.value.hint)
    assert names_below(store_location.folder) == before
    with pytest.raises(UnsupportedLocation, match="az://"):
        buckets.use_location(spark, "az://some/where")


@spark_on_servers("s3", "hdfs", "gs")
def test_spark_session_with_changed_settings_is_refused(
    store_location: StoreLocation, spark_folder: UriPath, spark: Any, request: pytest.FixtureRequest
) -> None:
    from featurestore_connectors.spark_delta.buckets import use_location

    location, options = str(spark_folder), dict(store_location.options)
    if store_location.scheme == "hdfs":
        # A cluster with settings of its own, since all tests share the file system.
        port = request.getfixturevalue("hdfs_server").port
        location = f"hdfs://changed-{port}/table"
        options = {
            f"dfs.ha.namenodes.changed-{port}": "one",
            f"dfs.namenode.rpc-address.changed-{port}.one": f"127.0.0.1:{port}",
        }
        use_options(location, options)
    use_location(spark, location)
    use_location(spark, location)
    changed = {
        "s3": {"aws_secret_access_key": "another"},
        "gs": {"endpoint": "http://127.0.0.1:1"},
        "hdfs": dict.fromkeys(list(options)[:1], "another"),
    }
    use_options(location, {**options, **changed[store_location.scheme]})
    with pytest.raises(ConfigurationError, match=r"with other settings.*executors keep") as caught:
        use_location(spark, location)
    assert "another" not in str(caught.value)


# -- credentials ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("spark_folder")
@spark_on_servers("s3")
def test_spark_event_log_contains_no_credentials(
    store_location: StoreLocation, spark: Any, tmp_path: Path
) -> None:
    """The event log contains the jobs on the bucket and the environment."""
    machine, context = spark._jvm, spark.sparkContext._jsc.sc()
    events = tmp_path / "events"
    events.mkdir()
    listener = machine.org.apache.spark.scheduler.EventLoggingListener(
        "credentials",
        machine.scala.Option.empty(),
        machine.java.net.URI(events.as_uri()),
        context.conf(),
    )
    listener.start()
    context.addSparkListener(listener)
    try:
        store = store_location.connect(engine="spark")
        store.create_featuregroup(labeled(50), "weather", primary_key="id")
        assert export_features(store).verify().ok
        (tmp_path / "file").write_text("what is added makes Spark tell of its environment")
        context.addFile(str(tmp_path / "file"))
        context.listenerBus().waitUntilEmpty()
    finally:
        context.removeSparkListener(listener)
        listener.stop()
    text = ""
    for file in events.rglob("events_*"):
        with pa.input_stream(str(file), compression="zstd") as stream:
            text += stream.read().decode()
    kinds = set(re.findall(r'"Event":"(\w+)"', text))
    assert {"SparkListenerEnvironmentUpdate", "SparkListenerJobStart"} <= kinds
    assert store_location.folder in text
    settings = spark.sparkContext.getConf().toDebugString()
    for secret in (ACCESS_KEY, SECRET_KEY):
        assert secret not in text
        assert secret not in settings
