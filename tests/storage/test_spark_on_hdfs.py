"""Spark on HDFS equals the embedded engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import featurestore
from featurestore.errors import ConfigurationError
from featurestore.storage.connections import use_options
from tests.hdfs_server import HdfsServer
from tests.on_spark import APPENDED, appending, assert_appends_at_once_all_land
from tests.storage.stores import Connect
from tests.storage.test_spark_on_s3 import epoch_of, export, write_both_ways
from tests.storage.uri_path import UriPath

pytestmark = pytest.mark.spark


def test_spark_on_hdfs_equals_local_embedded_engine(
    connect_hdfs: Connect, spark: Any, tmp_path: Path
) -> None:
    with featurestore.connect(tmp_path / "disk") as disk:
        expected = write_both_ways(disk, disk)
        local = export(disk)
        store, embedded = connect_hdfs(engine="spark"), connect_hdfs()
        assert write_both_ways(store, embedded) == expected
        frame = store.get_features(["weather.x"]).to_pandas()["x"]
        assert sorted(frame) == sorted(disk.get_features(["weather.x"]).to_pandas()["x"])
        remote = export(store)
        assert remote.manifest.content_hash == local.manifest.content_hash
    assert remote.verify(recompute=True).problems == ()
    assert epoch_of(remote.path) == epoch_of(local.path)
    store.compact_featuregroup("weather")
    pd.testing.assert_series_equal(
        embedded.get_featuregroup("weather").to_pandas()["x"].sort_values(ignore_index=True),
        pd.Series(sorted(expected[1]), name="x"),
    )
    store.delete_training_dataset("d", version=1)
    store.delete_featuregroup("weather", version=1)


def test_concurrent_appends_of_engines_on_hdfs_are_kept(spark: Any, hdfs_folder: str) -> None:
    from featurestore_connectors.duckdb_delta import DuckDBEngine
    from featurestore_connectors.spark_delta import SparkEngine

    path, engine = UriPath(hdfs_folder) / "some table", SparkEngine(spark)
    engine.create_table(path, schema=APPENDED, partition_by=(), properties={}, commit_metadata={})
    embedded = DuckDBEngine()
    writers = {"spark": appending(engine, path), "duckdb": appending(embedded, path)}
    assert_appends_at_once_all_land(path, writers, times={"spark": 3, "duckdb": 10})
    embedded.close()


def test_spark_session_with_unsafe_hdfs_settings_is_refused(
    spark: Any, hdfs_server: HdfsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from featurestore_connectors.spark_delta import buckets, session

    root = f"hdfs://told-{hdfs_server.port}"
    options = {
        f"dfs.ha.namenodes.told-{hdfs_server.port}": "one",
        f"dfs.namenode.rpc-address.told-{hdfs_server.port}.one": f"127.0.0.1:{hdfs_server.port}",
    }
    use_options(root, options)
    buckets.use_table(spark, f"{root}/table")
    use_options(root, {**options, next(iter(options)): "another"})
    with pytest.raises(ConfigurationError, match="with other settings"):
        buckets.use_location(spark, f"{root}/table")
    monkeypatch.setattr(
        session, "_configured_log_store", lambda *arguments: "io.delta.storage.S3LogStore"
    )
    with pytest.raises(ConfigurationError, match="which then lose rows") as caught:
        buckets.use_table(spark, f"{hdfs_server.root}/table")
    assert "spark.delta.logStore.hdfs.impl=io.delta.storage.HDFSLogStore" in str(caught.value.hint)
