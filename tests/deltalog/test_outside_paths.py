"""Files outside of a table are refused by both engines, in any part and spelling of its log."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from featurestore.errors import SourceError, UnsupportedTable
from featurestore.plugins.engine import TableWrite
from featurestore.plugins.source import SourceConfig, SourceQuery, find_source
from featurestore.testing.table_conformance import write
from tests.deltalog.hand_made import add, commit, metadata, protocol

if TYPE_CHECKING:
    from featurestore.plugins.engine import Engine
    from featurestore.plugins.source import SourceSnapshot
    from featurestore_connectors.duckdb_delta import DuckDBEngine
    from featurestore_connectors.spark_delta import SparkEngine

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
COLUMNS = pa.schema([("id", pa.int64()), ("part", pa.int64())])
FORMS: dict[str, Callable[[Path, Path], str]] = {
    "absolute": lambda _, secret: str(secret),
    "two slashes": lambda _, secret: f"/{secret}",
    "uri": lambda _, secret: secret.as_uri(),
    "short uri": lambda _, secret: f"file:{secret}",
    "upper-case uri": lambda _, secret: f"FILE:{secret}",
    "uri with host": lambda _, secret: f"file://localhost{secret}",
    "relative uri": lambda table, secret: f"file:{os.path.relpath(secret, table)}",
    "parent": lambda table, secret: os.path.relpath(secret, table),
    "parent of folder": lambda table, secret: f"x/../{os.path.relpath(secret, table)}",
    "encoded dots": lambda table, secret: os.path.relpath(secret, table).replace("..", "%2E%2e"),
    "encoded slash": lambda table, secret: os.path.relpath(secret, table).replace("/", "%2F"),
    "all encoded": lambda _, secret: "".join(f"%{byte:02X}" for byte in os.fsencode(secret)),
    "other scheme": lambda _, secret: f"local:{secret}",
    "bucket": lambda _, secret: f"s3a://bucket{secret}",
    "web": lambda _, secret: f"http://127.0.0.1:1{secret}",
}
_TEXTS = pa.map_(pa.string(), pa.string())
_TYPES = {
    "protocol": pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())]),
    "metaData": pa.struct(
        [
            ("id", pa.string()),
            ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
            ("schemaString", pa.string()),
            ("partitionColumns", pa.list_(pa.string())),
            ("configuration", _TEXTS),
        ]
    ),
    "add": pa.struct(
        [
            ("path", pa.string()),
            ("partitionValues", _TEXTS),
            ("size", pa.int64()),
            ("modificationTime", pa.int64()),
            ("dataChange", pa.bool_()),
            ("stats", pa.string()),
        ]
    ),
}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A Parquet file next to the table."""
    file = tmp_path / "secret.parquet"
    parquet.write_table(pa.table({"id": pa.array([666_666], pa.int64())}), file)
    return file


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A partitioned table of another writer, with two files."""
    path = tmp_path / "table"
    commit(path, 0, protocol(), metadata(COLUMNS, partition_by=("part",)))
    commit(path, 1, add(path, "part-1.parquet", ROWS, partitionValues={"part": "1"}))
    commit(path, 2, add(path, "part-2.parquet", ROWS, partitionValues={"part": "2"}))
    return path


def add_outside(secret: Path, log_path: str) -> dict[str, Any]:
    """Return the action that adds the secret file by a path."""
    stats = json.dumps({"numRecords": 1})
    entry = {"path": log_path, "size": secret.stat().st_size, "dataChange": True, "stats": stats}
    return {"add": {**entry, "partitionValues": {"part": "1"}, "modificationTime": 1}}


def write_checkpoint(file: Path, *actions: dict[str, Any]) -> None:
    """Write actions as a Parquet checkpoint or a sidecar."""
    file.parent.mkdir(exist_ok=True)
    columns = {}
    for kind, dtype in _TYPES.items():
        payloads = [_map_pairs(action.get(kind)) for action in actions]
        columns[kind] = pa.array(payloads, dtype)
    parquet.write_table(pa.table(columns), file)


def _map_pairs(payload: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a payload whose maps are lists of pairs, as pyarrow expects."""
    if payload is None:
        return None
    names = ("partitionValues", "configuration")
    pairs = {name: list(payload[name].items()) for name in names if name in payload}
    changed = {**payload, **pairs}
    if "format" in changed:
        changed["format"] = {"provider": "parquet", "options": []}
    return changed


def compacted_log(table: Path, secret: Path) -> None:
    """Delta reads a compacted log instead of its commits."""
    lines = [protocol(), metadata(COLUMNS, partition_by=("part",))]
    file = table / "_delta_log" / f"{0:020d}.{2:020d}.compacted.json"
    text = "\n".join(map(json.dumps, [*lines, add_outside(secret, str(secret))]))
    file.write_text(f"{text}\n")


def second_checkpoint(table: Path, secret: Path) -> None:
    """Delta prefers a checkpoint in parts, which is listed after the other one."""
    lines = [protocol(), metadata(COLUMNS, partition_by=("part",))]
    actions = (table / "_delta_log" / f"{2:020d}.json").read_text().splitlines()
    log = table / "_delta_log"
    write_checkpoint(log / f"{2:020d}.checkpoint.parquet", *lines, *map(json.loads, actions))
    outside = add_outside(secret, secret.as_uri())
    name = f"{2:020d}.checkpoint.{1:010d}.{1:010d}.parquet"
    write_checkpoint(log / name, *lines, outside)


def sidecar_elsewhere(table: Path, secret: Path) -> None:
    """A sidecar outside of the table; one with the same name is in its folder."""
    log = table / "_delta_log"
    actions = (log / f"{2:020d}.json").read_text().splitlines()
    write_checkpoint(log / "_sidecars" / "one.parquet", *map(json.loads, actions))
    elsewhere = table.parent / "one.parquet"
    write_checkpoint(elsewhere, add_outside(secret, str(secret)))
    commit(table, 0, protocol("v2Checkpoint"), metadata(COLUMNS, partition_by=("part",)))
    lines = [protocol("v2Checkpoint"), metadata(COLUMNS, partition_by=("part",))]
    sidecar = {"path": str(elsewhere), "sizeInBytes": elsewhere.stat().st_size}
    lines.append({"checkpointMetadata": {"version": 2}})
    lines.append({"sidecar": {**sidecar, "modificationTime": 1}})
    name = f"{2:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    (log / name).write_text("\n".join(map(json.dumps, lines)) + "\n")


def assert_refused(engine: Engine, table: Path) -> None:
    """Each call of an engine that opens the table's files fails and changes nothing."""
    before = sorted(os.listdir(table)), sorted(os.listdir(table / "_delta_log"))
    rows = pa.table({"id": [9], "part": [1]})
    upsert = TableWrite("upsert", key=("id",))
    calls: list[Callable[[], object]] = [
        lambda: engine.stream(engine.read_table(str(table))).read_all(),
        lambda: write(engine, str(table), rows),
        lambda: write(engine, str(table), rows, upsert),
        lambda: engine.delete(str(table), "id = 1", commit_metadata={}),
        lambda: engine.compact(str(table)),
    ]
    for call in calls:
        with pytest.raises(UnsupportedTable, match="outside its folder"):
            call()
    after = sorted(os.listdir(table)), sorted(os.listdir(table / "_delta_log"))
    assert after == before


@pytest.mark.parametrize("form", FORMS)
def test_files_outside_are_refused_in_each_form(
    engine: DuckDBEngine, table: Path, secret: Path, form: str
) -> None:
    commit(table, 3, add_outside(secret, FORMS[form](table, secret)))
    assert_refused(engine, table)


def open_source(table: Path) -> SourceSnapshot:
    """Open a Delta table as a source, which the Delta kernel reads."""
    return find_source("delta")(SourceConfig("lake", f"delta+{table}", {}, None)).snapshot()


def test_delta_source_refuses_files_outside_in_each_form(
    table: Path, secret: Path, subtests: pytest.Subtests
) -> None:
    """The kernel opens all paths in a log; a catalog or another team may have written it."""
    for form, spell in FORMS.items():
        with subtests.test(form):
            commit(table, 3, add_outside(secret, spell(table, secret)))
            with pytest.raises(SourceError, match="outside its folder"):
                open_source(table)


def test_delta_source_refuses_links_to_files_outside(
    table: Path, secret: Path, subtests: pytest.Subtests
) -> None:
    """A user who can write to the table must not read other files through the source."""
    open_source(table)
    checkpoint = table / "_delta_log" / f"{2:020d}.checkpoint.parquet"
    for link, target in (
        (table / "part-2.parquet", secret),
        (table / "_delta_log" / f"{2:020d}.json", secret.with_suffix(".json")),
        (checkpoint, secret),
    ):
        with subtests.test(link.name):
            content = link.read_bytes() if link.exists() else None
            link.unlink(missing_ok=True)
            target.write_bytes(content or target.read_bytes())
            link.symlink_to(target)
            with pytest.raises(SourceError, match="links to files outside its folder"):
                open_source(table)
            link.unlink()
            if content is not None:
                link.write_bytes(content)
    open_source(table)


@pytest.mark.parametrize("hide", [compacted_log, second_checkpoint, sidecar_elsewhere])
def test_delta_source_refuses_files_outside_that_only_kernel_lists(
    table: Path, secret: Path, hide: Callable[[Path, Path], None]
) -> None:
    snapshot = open_source(table)
    assert snapshot.read(SourceQuery()).read_all().num_rows == 6
    snapshot.close()
    hide(table, secret)
    with pytest.raises(SourceError, match="outside its folder"):
        open_source(table)


@pytest.mark.spark
def test_spark_refuses_files_outside_in_each_form(
    spark_engine: SparkEngine, table: Path, secret: Path, subtests: pytest.Subtests
) -> None:
    for form, spell in FORMS.items():
        with subtests.test(form):
            commit(table, 3, add_outside(secret, spell(table, secret)))
            assert_refused(spark_engine, table)


@pytest.mark.spark
@pytest.mark.parametrize("hide", [compacted_log, second_checkpoint, sidecar_elsewhere])
def test_spark_refuses_files_outside_that_only_spark_lists(
    spark_engine: SparkEngine, table: Path, secret: Path, hide: Callable[[Path, Path], None]
) -> None:
    hide(table, secret)
    assert_refused(spark_engine, table)


@pytest.mark.spark
def test_spark_reads_files_inside_beneath_checkpoint(
    spark_engine: SparkEngine, tmp_path: Path
) -> None:
    """Names with spaces and percent signs, a checkpoint, and absolute paths in the folder."""
    path = tmp_path / "a b%41"
    commit(path, 0, protocol(), metadata(COLUMNS, partition_by=("part",)))
    own = add(path, "part-1.parquet", ROWS, partitionValues={"part": "1"})
    own["add"]["path"] = (path / "part-1.parquet").as_uri()
    commit(path, 1, own)
    lines = [protocol(), metadata(COLUMNS, partition_by=("part",)), own]
    write_checkpoint(path / "_delta_log" / f"{1:020d}.checkpoint.parquet", *lines)
    assert write(spark_engine, str(path), pa.table({"id": [9], "part": [1]})) == 2
    rows = spark_engine.stream(spark_engine.read_table(str(path))).read_all()
    assert sorted(rows["id"].to_pylist()) == [1, 2, 3, 9]
