"""Spark on Google Cloud Storage equals the embedded engine on a local folder."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

import featurestore
from featurestore.errors import ConfigurationError
from featurestore.storage.connections import object_store_for, use_options
from tests.conftest import SKIPPED_CLOUDS
from tests.gcs_server import GcsServer
from tests.on_spark import APPENDED, appending, assert_appends_at_once_all_land
from tests.storage.faulty_proxy import faulty
from tests.storage.stores import Connect
from tests.storage.test_spark_on_s3 import epoch_of, export, write_both_ways
from tests.storage.uri_path import UriPath

USER = "u:p%40ss"
PROXY = f"http://{USER}@proxy:3128"

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def gcs_spark(spark: Any) -> Any:
    """The Spark session of the run with Google's connector."""
    from featurestore_connectors.spark_delta.jars import gcs_connector

    if not gcs_connector().exists():
        pytest.skip(f"{SKIPPED_CLOUDS}: Google's connector of Hadoop was not fetched")
    return spark


@pytest.fixture
def gcs_folder(gcs_server: GcsServer, gcs_spark: Any) -> UriPath:
    """A bucket folder that this process has opened."""
    bucket = gcs_server.new_bucket(f"test-{uuid.uuid4().hex[:12]}")
    use_options(bucket, gcs_server.options)
    return UriPath(bucket) / "team a"


@pytest.fixture
def connect_gcs(gcs_folder: UriPath, tmp_path: Path) -> Iterator[Connect]:
    """Connect to a store in the folder."""
    stores: list[Any] = []

    def call(**options: Any) -> Any:
        registry = f"sqlite:///{tmp_path / 'cache'}.db"
        stores.append(featurestore.connect(gcs_folder / "store", registry=registry, **options))
        return stores[-1]

    yield call
    for store in stores:
        store.close()


def test_spark_on_gcs_equals_local_embedded_engine(connect_gcs: Connect, tmp_path: Path) -> None:
    with featurestore.connect(tmp_path / "disk") as disk:
        expected = write_both_ways(disk, disk)
        local = export(disk)
        spark, embedded = connect_gcs(engine="spark"), connect_gcs()
        assert write_both_ways(spark, embedded) == expected
        remote = export(spark)
        assert remote.manifest.content_hash == local.manifest.content_hash
        shards = [
            [
                (shard.path, shard.sha256)
                for split in dataset.manifest.splits
                for shard in split.shards
            ]
            for dataset in (local, remote)
        ]
        assert shards[0] == shards[1]
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


@pytest.fixture
def put(gcs_spark: Any) -> Callable[..., bool]:
    """Write lines with the JVM log store; return False if the object exists."""
    from py4j.protocol import Py4JJavaError

    machine = gcs_spark._jvm

    def put(path: str, *lines: str, endpoint: str | None = None) -> bool:
        configuration = machine.org.apache.hadoop.conf.Configuration(
            gcs_spark._jsc.hadoopConfiguration()
        )
        if endpoint is not None:
            configuration.set("fs.gs.storage.root.url", f"{endpoint}/")
            configuration.set("fs.gs.impl.disable.cache", "true")
        content = machine.java.util.ArrayList()
        for line in lines:
            content.add(line)
        target = machine.org.apache.hadoop.fs.Path(path)
        log_store = machine.featurestore.delta.GcsLogStore(configuration)
        try:
            log_store.write(target, content.iterator(), False, configuration)
        except Py4JJavaError as error:
            if "java.nio.file.FileAlreadyExistsException" not in str(error):
                raise
            return False
        return True

    return put


def test_gcs_log_store_has_one_winner_per_name(
    gcs_spark: Any, gcs_folder: UriPath, put: Callable[..., bool]
) -> None:
    from featurestore_connectors.spark_delta.buckets import use_table

    use_table(gcs_spark, gcs_folder)
    storage, folder = object_store_for(gcs_folder)
    writers, names = 4, 6
    start = Barrier(writers)

    def put_new(name: str) -> bool:
        try:
            storage.put_new(f"{folder}/{name}", b"0\n")
        except FileExistsError:
            return False
        return True

    def race(writer: int) -> list[int]:
        won = []
        for number in range(names):
            start.wait()
            name = f"{number}.json"
            # The embedded engine takes part in every second race only, since it is faster.
            if put(gcs_folder / name, str(writer)) if writer else number % 2 and put_new(name):
                won.append(number)
        return won

    with ThreadPoolExecutor(writers) as pool:
        wins = list(pool.map(race, range(writers)))
    for number in range(names):
        winners = [writer for writer, won in enumerate(wins) if number in won]
        content = storage.read(f"{folder}/{number}.json").decode()
        assert [f"{writer}\n" for writer in winners] == [content]
    assert any(wins[1:])


def test_spark_commit_on_gcs_with_lost_response_is_detected(
    gcs_spark: Any, gcs_folder: UriPath, gcs_server: GcsServer, put: Callable[..., bool]
) -> None:
    from featurestore_connectors.spark_delta.buckets import use_table

    use_table(gcs_spark, gcs_folder)
    storage, folder = object_store_for(gcs_folder)
    storage.put_new(f"{folder}/taken", b"theirs")
    with faulty(gcs_server.port, rate=0.3, kinds=("lost", "late 500"), seed=3) as (proxy, endpoint):
        for number in range(4):
            assert put(gcs_folder / str(number), "mine", "2", endpoint=endpoint)
        assert not put(gcs_folder / "taken", "mine", "2", endpoint=endpoint)
        assert min(proxy.faults["lost"], proxy.faults["late 500"]) > 0
    assert storage.read(f"{folder}/taken") == b"theirs"
    assert {storage.read(f"{folder}/{number}") for number in range(4)} == {b"mine\n2\n"}


def test_concurrent_appends_of_engines_on_gcs_are_kept(gcs_spark: Any, gcs_folder: UriPath) -> None:
    from featurestore_connectors.duckdb_delta import DuckDBEngine
    from featurestore_connectors.spark_delta import SparkEngine

    path, engine = gcs_folder / "some table", SparkEngine(gcs_spark)
    engine.create_table(path, schema=APPENDED, partition_by=(), properties={}, commit_metadata={})
    embedded = DuckDBEngine()
    writers = {"spark": appending(engine, path), "duckdb": appending(embedded, path)}
    assert_appends_at_once_all_land(path, writers, times={"spark": 3, "duckdb": 12})
    embedded.close()


def test_spark_session_without_google_connector_is_refused(
    gcs_spark: Any, gcs_folder: UriPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    from featurestore_connectors.spark_delta import buckets, session

    buckets.use_table(gcs_spark, gcs_folder)
    use_options(gcs_folder, {"endpoint": "http://127.0.0.1:1", "anonymous": "true"})
    with pytest.raises(ConfigurationError, match="with other settings"):
        buckets.use_location(gcs_spark, gcs_folder)
    monkeypatch.setattr(
        session, "_configured_log_store", lambda *arguments: "io.delta.storage.GCSLogStore"
    )
    with pytest.raises(ConfigurationError, match="which then lose rows") as caught:
        session.check_log_store(gcs_spark, gcs_folder)
    assert "spark.delta.logStore.gs.impl=featurestore.delta.GcsLogStore" in str(caught.value.hint)
    monkeypatch.setattr(buckets, "has_class", lambda *arguments: False)
    with pytest.raises(ConfigurationError, match="no gcs-connector") as caught:
        buckets.use_location(gcs_spark, gcs_folder)
    assert "gcs-connector-3.0.4-shaded.jar" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {"auth.type": "APPLICATION_DEFAULT"}),
        ({"application_credentials": "/of-environment"}, {"auth.type": "APPLICATION_DEFAULT"}),
        (
            {"service_account": "/key"},
            {
                "auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
                "auth.service.account.json.keyfile": "/key",
            },
        ),
        (
            {"anonymous": "true", "proxy_url": PROXY},
            {
                "auth.type": "UNAUTHENTICATED",
                "proxy.address": "proxy:3128",
                "proxy.username": "u",
                "proxy.password": "p@ss",
            },
        ),
        (
            {"endpoint": "http://127.0.0.1:4443", "anonymous": "true"},
            {"auth.type": "UNAUTHENTICATED", "storage.root.url": "http://127.0.0.1:4443/"},
        ),
    ],
)
def test_google_connector_gets_credentials_of_options(
    options: dict[str, str], settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from featurestore_connectors.spark_delta.buckets import hadoop_options

    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/of-environment")
    monkeypatch.delenv("GOOGLE_SERVICE_ACCOUNT", raising=False)
    use_options("gs://of-options", options)
    common = {
        "implicit.dir.repair.enable": "false",
        "http.read-timeout": "60s",
        "http.connect-timeout": "10s",
    }
    expected = {f"fs.gs.{name}": value for name, value in {**common, **settings}.items()}
    assert hadoop_options("gs://of-options/store") == expected


def test_google_key_as_text_is_refused_without_the_key() -> None:
    from featurestore_connectors.spark_delta.buckets import hadoop_options

    use_options("gs://of-options", {"service_account_key": '{"private_key": "S3 cret"}'})
    with pytest.raises(ConfigurationError, match="from a file") as caught:
        hadoop_options("gs://of-options/store")
    assert "S3 cret" not in str(caught.value)
