"""Eight writers of both engines append to one table, on each storage."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from featurestore.storage.connections import use_options
from featurestore_connectors.duckdb_delta import DuckDBEngine
from featurestore_connectors.spark_delta import SparkEngine
from tests.on_spark import APPENDED, appending, assert_appends_at_once_all_land
from tests.storage.programs import appender
from tests.storage.stores import skip_without_spark_client
from tests.storage.uri_path import UriPath

pytestmark = [pytest.mark.spark, pytest.mark.soak]


@pytest.fixture(params=["disk", "s3", "hdfs"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """The path of a table, and the environment for other processes."""
    if request.param == "disk":
        return str(tmp_path / "table"), {}
    if request.param == "hdfs":
        return UriPath(request.getfixturevalue("hdfs_folder")) / "table", {}
    skip_without_spark_client("s3")
    bucket, server = (request.getfixturevalue(name) for name in ("bucket", "object_server"))
    use_options(bucket, server.options)
    environment = {key.upper(): value for key, value in server.options.items()}
    return UriPath(bucket) / "table", environment


def test_eight_writers_of_both_engines_append_once(
    spark: Any, shared: tuple[str, dict[str, str]]
) -> None:
    """Three Spark drivers, one with two writers, and four embedded processes."""
    path, environment = shared
    engine, embedded = SparkEngine(spark), DuckDBEngine()
    engine.create_table(path, schema=APPENDED, partition_by=(), properties={}, commit_metadata={})
    writers = {}
    with ExitStack() as running:
        for number in (1, 2):
            writers[f"spark {number}"] = appending(engine, path)
            process = appender("spark", path, environment)
            writers[f"another spark {number}"] = running.enter_context(process)
        writers["duckdb"] = appending(embedded, path)
        for number in (1, 2, 3):
            process = appender("duckdb", path, environment)
            writers[f"another duckdb {number}"] = running.enter_context(process)
        assert_appends_at_once_all_land(path, writers, times=dict.fromkeys(writers, 4))
    embedded.close()
