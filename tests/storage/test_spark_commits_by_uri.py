"""Commits of Spark at a URI: conditional puts, lost responses, and concurrent writers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from featurestore.plugins.engine import Engine
from featurestore.storage.connections import object_store_for
from tests.on_spark import APPENDED, appending, assert_appends_at_once_all_land
from tests.storage.faulty_proxy import faulty
from tests.storage.stores import SERVERS, StoreLocation, spark_on_servers
from tests.storage.uri_path import UriPath

pytestmark = pytest.mark.spark
LOG_STORES = {"s3": "S3LogStore", "gs": "GcsLogStore"}


@pytest.fixture
def put(spark: Any, spark_folder: UriPath, store_location: StoreLocation) -> Callable[..., bool]:
    """Write lines with the JVM log store; return False if the object exists."""
    from py4j.protocol import Py4JJavaError

    from featurestore_connectors.spark_delta.buckets import use_table

    use_table(spark, spark_folder)
    machine = spark._jvm
    bucket = store_location.folder.removeprefix("s3://")
    endpoint_settings = {"s3": f"fs.s3a.bucket.{bucket}.endpoint", "gs": "fs.gs.storage.root.url"}

    def put(path: str, *lines: str, overwrite: bool = False, endpoint: str | None = None) -> bool:
        configuration = machine.org.apache.hadoop.conf.Configuration(
            spark._jsc.hadoopConfiguration()
        )
        if endpoint is not None:
            configuration.set(endpoint_settings[store_location.scheme], f"{endpoint}/")
            configuration.set(f"fs.{store_location.scheme}.impl.disable.cache", "true")
        java_lines = machine.java.util.ArrayList()
        for line in lines:
            java_lines.add(line)
        log_store = getattr(machine.featurestore.delta, LOG_STORES[store_location.scheme])
        target = machine.org.apache.hadoop.fs.Path(path)
        try:
            log_store(configuration).write(target, java_lines.iterator(), overwrite, configuration)
        except Py4JJavaError as error:
            if "java.nio.file.FileAlreadyExistsException" not in str(error):
                raise
            return False
        return True

    return put


def names_from(spark: Any, path: str) -> list[str]:
    """Return the names that the log store lists from a name on."""
    machine, configuration = spark._jvm, spark._jsc.hadoopConfiguration()
    store = machine.featurestore.delta.S3LogStore(configuration)
    result = store.listFrom(machine.org.apache.hadoop.fs.Path(path), configuration)
    names = []
    while result.hasNext():
        names.append(result.next().getPath().getName())
    return names


@spark_on_servers("s3")
def test_s3_log_store_never_replaces_objects(
    put: Callable[..., bool], spark_folder: UriPath, spark: Any
) -> None:
    storage, name = object_store_for(spark_folder)
    assert put(spark_folder / "log/02.json", '{"a":"é"}', "{}")
    assert not put(spark_folder / "log/02.json", "other")
    assert storage.read(f"{name}/log/02.json").decode() == '{"a":"é"}\n{}\n'
    assert put(spark_folder / "log/02.json", "other", overwrite=True)
    assert storage.read(f"{name}/log/02.json") == b"other\n"
    for file_name in ("01.json", "02.crc", "03.json", "deeper/04.json", "_last"):
        assert put(spark_folder / "log" / file_name, file_name)
    assert names_from(spark, spark_folder / "log/02.json") == ["02.json", "03.json", "_last"]
    assert names_from(spark, spark_folder / "log/04") == ["_last"]


@spark_on_servers("s3", "gs")
def test_log_store_has_one_winner_per_name(spark_folder: UriPath, put: Callable[..., bool]) -> None:
    storage, name = object_store_for(spark_folder)
    writers, files = 4, 6
    start = Barrier(writers, timeout=60)

    def put_new(file_name: str) -> bool:
        try:
            storage.put_new(f"{name}/{file_name}", b"0\n")
        except FileExistsError:
            return False
        return True

    def race(writer: int) -> list[int]:
        won = []
        for number in range(files):
            start.wait()
            file_name = f"{number}.json"
            # The embedded engine takes part in every second race only, since it is faster.
            if (
                put(spark_folder / file_name, str(writer))
                if writer
                else number % 2 and put_new(file_name)
            ):
                won.append(number)
        return won

    with ThreadPoolExecutor(writers) as pool:
        wins = list(pool.map(race, range(writers)))
    for number in range(files):
        winners = [writer for writer, won in enumerate(wins) if number in won]
        content = storage.read(f"{name}/{number}.json").decode()
        assert [f"{writer}\n" for writer in winners] == [content]
    assert any(wins[1:])


@spark_on_servers("s3", "gs")
def test_spark_commit_with_lost_response_is_detected(
    store_location: StoreLocation,
    spark_folder: UriPath,
    put: Callable[..., bool],
    request: pytest.FixtureRequest,
) -> None:
    storage, name = object_store_for(spark_folder)
    storage.put_new(f"{name}/taken", b"theirs")
    port = request.getfixturevalue(SERVERS[store_location.scheme]).port
    # Google's client waits a second after a fault.
    commits, rate = {"s3": (12, 0.5), "gs": (4, 0.3)}[store_location.scheme]
    with faulty(port, rate=rate, kinds=("lost", "late 500"), seed=3) as (proxy, endpoint):
        for number in range(commits):
            assert put(spark_folder / str(number), "mine", "2", endpoint=endpoint)
        for _ in range(commits // 4):
            assert not put(spark_folder / "taken", "mine", "2", endpoint=endpoint)
        assert min(proxy.faults["lost"], proxy.faults["late 500"]) > commits // 5
    assert storage.read(f"{name}/taken") == b"theirs"
    assert {storage.read(f"{name}/{number}") for number in range(commits)} == {b"mine\n2\n"}


@spark_on_servers("s3", "hdfs", "gs")
def test_concurrent_appends_of_engines_are_kept(
    spark_engine: Engine, engine: Engine, spark_folder: UriPath
) -> None:
    path = spark_folder / "table"
    spark_engine.create_table(
        path, schema=APPENDED, partition_by=(), properties={}, commit_metadata={}
    )
    writers = {"spark": appending(spark_engine, path), "duckdb": appending(engine, path)}
    assert_appends_at_once_all_land(path, writers, times={"spark": 3, "duckdb": 12})
