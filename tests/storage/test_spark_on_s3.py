"""Spark at a URI: S3A, conditional commits, and shards written by executors."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
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
from tests.conftest import SKIPPED_STORAGE
from tests.object_server import ACCESS_KEY, SECRET_KEY, ObjectServer, options_for
from tests.on_spark import APPENDED, appending, assert_appends_at_once_all_land
from tests.storage.faulty_proxy import faulty
from tests.storage.stores import Connect, history_of_a_group, rows
from tests.storage.uri_path import UriPath
from tests.streams import kafka_server

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def s3a(spark: Any) -> Any:
    """The Spark session of the run with an S3 client."""
    if not kafka_server.spark_jars(kafka_server.S3A):
        pytest.skip(f"{SKIPPED_STORAGE}: the jars of hadoop-aws were not fetched")
    return spark


@pytest.fixture
def folder(bucket: str, object_server: ObjectServer, s3a: Any) -> UriPath:
    """A bucket folder that this process has opened."""
    use_options(bucket, object_server.options)
    object_store_for(bucket)
    return UriPath(bucket) / "some folder"


@pytest.fixture
def engine(s3a: Any) -> Engine:
    from featurestore_connectors.spark_delta import SparkEngine

    return SparkEngine(s3a)


@pytest.mark.soak
class TestTablesOfSparkOnS3(TableConformance):
    @pytest.fixture
    def tmp_path(self, folder: UriPath) -> UriPath:
        return folder


def labeled(count: int) -> pd.DataFrame:
    return rows(0, count).assign(late=np.arange(count) % 3 == 0)


def export(store: FeatureStore, **options: Any) -> TrainingDataset:
    frame = store.get_features(["weather.x", "weather.late"])
    splits = {"train": 0.8, "test": 0.2}
    return store.create_training_dataset(
        frame, "d", label="late", splits=splits, shards=3, **options
    )


def epoch_of(path: str) -> list[list[float]]:
    reader = TrainingDataset.open(path).reader("train", global_batch_size=32, seed=3)
    return [batch["x"].tolist() for batch in reader.batches()]


def write_both_ways(store: FeatureStore, other_store: FeatureStore) -> list[Any]:
    """Write a group and a dataset of it with two connections in turns; return their contents."""
    store.create_featuregroup(labeled(300), "weather", primary_key="id", event_time="at")
    other_store.insert_into_featuregroup(labeled(330).tail(30), "weather", transaction=("etl", 1))
    store.insert_into_featuregroup(labeled(330).tail(30), "weather", transaction=("etl", 1))
    store.insert_into_featuregroup(labeled(5).assign(x=7.0), "weather", mode="upsert")
    other_store.delete_from_featuregroup("weather", "x > 160")
    table = store.get_featuregroup("weather").to_pandas().sort_values("id")
    return [table["id"].tolist(), table["x"].tolist()]


def test_spark_on_s3_equals_local_embedded_engine(
    connect: Connect, s3a: Any, tmp_path: Path, object_server: ObjectServer, bucket: str
) -> None:
    with featurestore.connect(tmp_path / "disk") as disk:
        expected = write_both_ways(disk, disk)
        local = export(disk)
        spark, embedded = connect(engine="spark"), connect()
        assert write_both_ways(spark, embedded) == expected
        remote = export(spark)
        assert remote.manifest.content_hash == local.manifest.content_hash
        local_shards, remote_shards = (
            [
                (shard.path, shard.sha256)
                for split in dataset.manifest.splits
                for shard in split.shards
            ]
            for dataset in (local, remote)
        )
        assert local_shards == remote_shards
    assert remote.verify(recompute=True).problems == ()
    assert epoch_of(remote.path) == epoch_of(local.path)
    spark.compact_featuregroup("weather")
    assert embedded.get_featuregroup("weather").count() == len(expected[0])
    # Folders are not objects, so no folder markers may be left.
    storage, name = object_store_for(spark.location)
    assert [entry.name for entry in storage.list(name) if entry.size == 0] == []
    spark.delete_training_dataset("d", version=1)
    spark.delete_featuregroup("weather", version=1)
    assert storage.children(f"{name}/featuregroups/weather") == ["v1.deleted"]


@pytest.mark.soak
def test_spark_groups_on_s3_equal_local_groups(connect: Connect, s3a: Any, tmp_path: Path) -> None:
    with featurestore.connect(tmp_path / "disk") as disk:
        expected = history_of_a_group(disk)
    assert history_of_a_group(connect(engine="spark")) == expected


# -- commits --------------------------------------------------------------------------------------


@pytest.fixture
def put(s3a: Any) -> Callable[..., bool]:
    """Write lines with the JVM log store; return False if the object exists."""
    from py4j.protocol import Py4JJavaError

    machine = s3a._jvm

    def put(path: str, *lines: str, overwrite: bool = False) -> bool:
        configuration = s3a._jsc.hadoopConfiguration()
        java_lines = machine.java.util.ArrayList()
        for line in lines:
            java_lines.add(line)
        store = machine.featurestore.delta.S3LogStore(configuration)
        target = machine.org.apache.hadoop.fs.Path(path)
        try:
            store.write(target, java_lines.iterator(), overwrite, configuration)
        except Py4JJavaError as error:
            if "java.nio.file.FileAlreadyExistsException" not in str(error):
                raise
            return False
        return True

    return put


def names_from(s3a: Any, path: str) -> list[str]:
    """Return the names that the log store lists from a name on."""
    machine, configuration = s3a._jvm, s3a._jsc.hadoopConfiguration()
    store = machine.featurestore.delta.S3LogStore(configuration)
    result = store.listFrom(machine.org.apache.hadoop.fs.Path(path), configuration)
    names = []
    while result.hasNext():
        names.append(result.next().getPath().getName())
    return names


def test_s3_log_store_never_replaces_objects(
    put: Callable[..., bool], folder: UriPath, s3a: Any, engine: Engine
) -> None:
    from featurestore_connectors.spark_delta.buckets import use_table

    use_table(s3a, folder)
    storage, name = object_store_for(folder)
    assert put(folder / "log/02.json", '{"a":"é"}', "{}")
    assert not put(folder / "log/02.json", "other")
    assert storage.read(f"{name}/log/02.json").decode() == '{"a":"é"}\n{}\n'
    assert put(folder / "log/02.json", "other", overwrite=True)
    assert storage.read(f"{name}/log/02.json") == b"other\n"
    for file_name in ("01.json", "02.crc", "03.json", "deeper/04.json", "_last"):
        assert put(folder / "log" / file_name, file_name)
    assert names_from(s3a, folder / "log/02.json") == ["02.json", "03.json", "_last"]
    assert names_from(s3a, folder / "log/04") == ["_last"]


def test_spark_commit_with_lost_response_is_detected(
    put: Callable[..., bool], bucket: str, object_server: ObjectServer, s3a: Any
) -> None:
    from featurestore_connectors.spark_delta.buckets import use_table

    log_folder = UriPath(bucket) / "log"
    clean, _ = object_store_for(bucket)
    with faulty(object_server.port, rate=0.5, kinds=("lost", "late 500"), seed=3) as served:
        proxy, endpoint = served
        use_options(bucket, options_for(endpoint))
        use_table(s3a, log_folder)
        use_options(bucket, object_server.options)
        clean, _ = object_store_for(bucket)
        clean.put_new("log/taken", b"theirs")
        for number in range(12):
            assert put(log_folder / str(number), "mine")
            assert not put(log_folder / "taken", "mine")
        assert proxy.faults["lost"] > 2
        assert proxy.faults["late 500"] > 2
    assert clean.read("log/taken") == b"theirs"
    assert [clean.read(f"log/{number}") for number in range(12)] == [b"mine\n"] * 12


def test_concurrent_appends_of_engines_on_s3_are_kept(engine: Engine, folder: UriPath) -> None:
    from featurestore_connectors.duckdb_delta import DuckDBEngine

    engine.create_table(folder, schema=APPENDED, partition_by=(), properties={}, commit_metadata={})
    embedded = DuckDBEngine()
    writers = {"spark": appending(engine, folder), "duckdb": appending(embedded, folder)}
    assert_appends_at_once_all_land(folder, writers, times={"spark": 3, "duckdb": 12})
    embedded.close()


# -- what a session must have ---------------------------------------------------------------------


def test_spark_session_without_s3_support_is_refused(
    connect: Connect, s3a: Any, monkeypatch: pytest.MonkeyPatch, bucket: str, server_files: Any
) -> None:
    from featurestore_connectors.spark_delta import buckets, session

    store = connect(engine="spark")
    before = server_files()
    has_class = session.has_class
    monkeypatch.setattr(buckets, "has_class", lambda *arguments: False)
    with pytest.raises(ConfigurationError, match="no hadoop-aws") as caught:
        store.create_featuregroup(rows(0, 3), "weather")
    hadoop_aws = kafka_server.S3A.replace("hadoop-aws-", "hadoop-aws:")
    for word in (hadoop_aws, "spark.jars.excludes=software.amazon.awssdk:bundle"):
        assert word in str(caught.value.hint)
    monkeypatch.setattr(buckets, "has_class", has_class)
    monkeypatch.setattr(
        session, "_configured_log_store", lambda *arguments: "io.delta.storage.S3LogStore"
    )
    with pytest.raises(ConfigurationError, match="which then lose rows") as caught:
        store.create_featuregroup(rows(0, 3), "weather")
    assert "spark.delta.logStore.s3.impl=featurestore.delta.S3LogStore" in str(caught.value.hint)
    assert f"spark.jars={session.JVM_JAR}" in str(caught.value.hint)
    assert server_files() == before
    with pytest.raises(UnsupportedLocation, match="az://"):
        buckets.use_location(s3a, "az://some/where")


def test_spark_session_changed_bucket_credentials_are_refused(
    folder: UriPath, bucket: str, object_server: ObjectServer, s3a: Any
) -> None:
    from featurestore_connectors.spark_delta.buckets import use_location

    use_location(s3a, folder)
    use_location(s3a, folder)
    use_options(bucket, {**object_server.options, "aws_secret_access_key": "another"})
    with pytest.raises(ConfigurationError, match="executors keep") as caught:
        use_location(s3a, folder)
    assert "another" not in str(caught.value)


@pytest.fixture
def server_files(object_server: ObjectServer, bucket: str) -> Callable[[], list[Path]]:
    """Return all objects of the bucket."""

    def list_files() -> list[Path]:
        return sorted(
            path for path in (object_server.root / bucket[5:]).rglob("*") if path.is_file()
        )

    return list_files


# -- credentials ----------------------------------------------------------------------------------


def test_spark_event_log_contains_no_credentials(
    connect: Connect, bucket: str, s3a: Any, tmp_path: Path
) -> None:
    """The event log contains the jobs on the bucket and the environment."""
    machine, context = s3a._jvm, s3a.sparkContext._jsc.sc()
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
        store = connect(engine="spark")
        store.create_featuregroup(labeled(50), "weather", primary_key="id")
        assert export(store).verify().ok
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
    assert bucket in text
    settings = s3a.sparkContext.getConf().toDebugString()
    for secret in (ACCESS_KEY, SECRET_KEY):
        assert secret not in text
        assert secret not in settings
