"""Delta tables with features of Databricks are read correctly at every version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import featurestore
from featurestore.errors import SourceError, UnsupportedType
from featurestore.store import FeatureStore
from tests.hdfs_server import HdfsServer

pytestmark = pytest.mark.spark

ROWS = "select id, cast(id % 3 as int) as part, concat('n', id) as name from range(20)"
# The table properties and statements of each table; every statement creates a version.
TABLES = {
    "deletion_vectors": (
        "'delta.enableDeletionVectors' = 'true'",
        ["delete from {t} where id < 5", "update {t} set name = 'new' where id = 7"],
    ),
    "mapped_by_name": (
        "'delta.columnMapping.mode' = 'name'",
        [
            "alter table {t} rename column name to label",
            "delete from {t} where id > 15",
            "alter table {t} drop column part",
            "insert into {t} values (100, 'more')",
        ],
    ),
    "mapped_by_id": ("'delta.columnMapping.mode' = 'id'", ["delete from {t} where id = 3"]),
    "widened": (
        "'delta.enableTypeWidening' = 'true'",
        [
            "alter table {t} alter column part type decimal(20, 0)",
            "insert into {t} values (200, 5000000000, 'wide')",
        ],
    ),
    "v2_checkpoints": (
        "'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '2'",
        [
            "insert into {t} values (1000, 1, 'a')",
            "delete from {t} where id = 2",
            "insert into {t} values (1001, 1, 'b')",
            "delete from {t} where id = 1000",
        ],
    ),
}


def same(store: FeatureStore, spark: Any, path: Path | str, version: int) -> None:
    """Compare a version read by the source with what Spark reads."""
    frame = store.read_source("table", at=version)
    inputs = spark.read.format("delta").option("versionAsOf", version).load(str(path))
    assert frame.columns == inputs.columns
    rows = sorted(tuple(row.values()) for row in frame.to_arrow().to_pylist())
    assert rows == sorted(tuple(row) for row in inputs.collect())


def make(spark: Any, name: str, path: Path | str) -> int:
    """Create one of the tables and return its last version."""
    properties, statements = TABLES[name]
    table = f"delta.`{path}`"
    spark.sql(f"create table {table} using delta tblproperties ({properties}) as {ROWS}")
    for statement in statements:
        spark.sql(statement.format(t=table))
    last: int = spark.sql(f"describe history {table}").count() - 1
    assert last >= len(statements)
    return last


@pytest.mark.parametrize("name", TABLES)
def test_delta_source_equals_spark_at_every_version(
    name: str, spark: Any, empty_store: FeatureStore, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    last = make(spark, name, path)
    empty_store.add_source("table", f"delta+{path}")
    for version in range(last + 1):
        same(empty_store, spark, path, version)
    with featurestore.connect(empty_store.location, engine="spark") as store:
        for version in (1, last):
            same(store, spark, path, version)


@pytest.mark.soak
@pytest.mark.parametrize("name", TABLES)
def test_delta_source_on_hdfs_equals_spark(
    name: str, spark: Any, empty_store: FeatureStore, hdfs_server: HdfsServer
) -> None:
    path = f"{hdfs_server.root}/table-{uuid4().hex[:8]}"
    last = make(spark, name, path)
    empty_store.add_source("table", f"delta+{path}")
    for version in range(last + 1):
        same(empty_store, spark, path, version)


def compact_log(path: Path, first: int, last: int) -> None:
    """Write a compacted log file for some commits, as in the Delta protocol."""
    files: dict[str, dict[str, Any]] = {}
    metadata_actions: dict[str, dict[str, Any]] = {}
    log = path / "_delta_log"
    for version in range(first, last + 1):
        for line in (log / f"{version:020}.json").read_text().splitlines():
            action = json.loads(line)
            (action_name,) = action
            if action_name in ("add", "remove"):
                files[action[action_name]["path"]] = action
            elif action_name != "commitInfo":
                metadata_actions[action_name] = action
    lines = map(json.dumps, [*metadata_actions.values(), *files.values()])
    name = f"{first:020}.{last:020}.compacted.json"
    (log / name).write_text("".join(f"{line}\n" for line in lines))


def test_delta_source_reads_compacted_logs(
    spark: Any, empty_store: FeatureStore, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    spark.sql(f"create table delta.`{path}` using delta as {ROWS}")
    for number in range(3):
        spark.sql(f"insert into delta.`{path}` values ({100 + number}, 1, 'more')")
    spark.sql(f"delete from delta.`{path}` where id in (3, 101)")
    compact_log(path, 1, 3)
    empty_store.add_source("table", f"delta+{path}")
    for version in range(5):
        same(empty_store, spark, path, version)
    with featurestore.connect(empty_store.location, engine="spark") as store:
        for version in range(5):
            same(store, spark, path, version)


def test_delta_source_reads_clones_and_maps(
    spark: Any, empty_store: FeatureStore, tmp_path: Path
) -> None:
    path, clone = tmp_path / "table", tmp_path / "clone"
    spark.sql(f"create table delta.`{path}` using delta as {ROWS}")
    spark.sql(f"create table delta.`{clone}` shallow clone delta.`{path}`")
    spark.sql(f"insert into delta.`{clone}` values (50, 2, 'of the clone')")
    for name, options in (("alone", {}), ("narrow", {"folder": str(clone)})):
        empty_store.add_source(name, f"delta+{clone}", options=options)
        with pytest.raises(SourceError, match="outside its folder") as error:
            empty_store.read_source(name).to_arrow()
        assert "options={'folder': '/data/lake'}" in str(error.value)
    empty_store.add_source("table", f"delta+{clone}", options={"folder": str(tmp_path)})
    same(empty_store, spark, clone, 0)
    same(empty_store, spark, clone, 1)
    with featurestore.connect(empty_store.location, engine="spark") as store:
        same(store, spark, clone, 0)
        same(store, spark, clone, 1)
    maps = tmp_path / "maps"
    spark.sql(f"create table delta.`{maps}` using delta as select 1 as id, map('a', 1) as m")
    empty_store.add_source("maps", f"delta+{maps}")
    read = empty_store.read_source("maps")
    assert read.to_arrow().to_pylist() == [{"id": 1, "m": [{"key": "a", "value": 1}]}]


def test_variant_column_is_refused_only_if_selected(
    spark: Any, empty_store: FeatureStore, tmp_path: Path
) -> None:
    path = tmp_path / "variants"
    rows_query = """select 1 as id, parse_json('{"a": 1}') as v"""
    spark.sql(f"create table delta.`{path}` using delta as {rows_query}")
    spark.sql(f"insert into delta.`{path}` select 2, parse_json('[2]')")
    empty_store.add_source("variants", f"delta+{path}")
    with featurestore.connect(empty_store.location, engine="spark") as store:
        for reader in (empty_store, store):
            for version, ids in enumerate([[1], [1, 2]]):
                frame = reader.read_source("variants", at=version, columns=["id"])
                assert sorted(frame.to_arrow().column("id").to_pylist()) == ids
                with pytest.raises(UnsupportedType, match="'v'"):
                    reader.read_source("variants", at=version)
