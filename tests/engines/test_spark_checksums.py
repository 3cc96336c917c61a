"""Checksums in the commits of Spark: equal to those of the embedded engine, in one chain."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest

import featurestore
from featurestore.delta import log
from featurestore.delta.checksums import checksum_in_add, checksums_of, file_checksum
from featurestore.store import FeatureStore

pytestmark = pytest.mark.spark


def rows(first: int) -> pa.Table:
    return pa.table({"id": range(first, first + 3), "v": [1.0, 2.0, 3.0]})


def test_both_engines_continue_one_chain_of_checksums(
    spark_engine: object, tmp_path: object
) -> None:
    location = str(tmp_path)
    with (
        featurestore.connect(location, engine="spark") as spark,
        featurestore.connect(location, engine="duckdb") as embedded,
    ):
        spark.create_featuregroup(rows(0), "g", primary_key=["id"])
        stores: list[FeatureStore] = [embedded, spark]
        for number in range(1, 11):
            mode = "upsert" if number % 3 == 0 else "append"
            store = stores[number % 2]
            store.insert_into_featuregroup(rows(10 * number), "g", mode=mode)
        spark.delete_from_featuregroup("g", "id = 11")
        spark.compact_featuregroup("g")
        spark.add_featuregroup_tag("g", "team", "sky")
        assert embedded.verify_featuregroup("g").to_json() == (
            spark.verify_featuregroup("g").to_json()
        )
        report = spark.verify_featuregroup("g")
        assert (report.ok, report.unverified, report.checkpoints) == (True, (), 1)
        path = spark.featuregroup("g").path
    previous, checked = None, 0
    for version in range(report.delta_version + 1):
        actions = log.read_commit(log.commit_path(path, version))
        checksums = checksums_of(log.commit_info(actions))
        assert checksums is not None
        assert checksums.previous == previous
        previous = log.commit_digest(path, version)
        for add in log.actions_of_kind(actions, "add"):
            assert checksum_in_add(add) == file_checksum(os.path.join(path, add["path"]))
            checked += 1
    assert checked > 10
