"""Delta tables of the DuckDB engine.

What other readers see, races between processes, full disks, damage.
"""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet

from featurestore.delta.log import commit_path
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.errors import (
    InvalidArgument,
    SchemaMismatch,
    StorageError,
    TableDamaged,
    UnsupportedTable,
    WriteConflict,
)
from featurestore.plugins.engine import PropertyChange, TableWrite, TimeRange
from featurestore.storage.publication import Publication
from featurestore.testing.relation_conformance import NOON, make_rows, rows
from featurestore.testing.table_conformance import (
    SCHEMA,
    ids,
    new_table,
    prices,
    rows_with_ids,
    write,
)
from featurestore_connectors.duckdb_delta import DuckDBEngine, commits
from featurestore_connectors.duckdb_delta.commits import TableChange
from tests.commit_files import read_actions, write_actions


def data_files(path: str) -> set[str]:
    return {str(file) for file in Path(path).rglob("*.parquet") if "_delta_log" not in file.parts}


# -- other readers and writers ------------------------------------------------------------------------------------


def test_plain_delta_reads_every_table_state(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = new_table(engine, tmp_path, partition_by=("zone",))
    write(engine, path, make_rows(10))
    write(engine, path, rows_with_ids(3, value=-1.0), TableWrite("upsert", key=("id",)))
    engine.delete(path, "id = 4", commit_metadata={})
    engine.compact(path)
    table = DeltaTable(path)
    assert table.count() == 9
    assert sorted(table.scan(columns=["id"]).read_all()["id"].to_pylist()) == [
        0,
        1,
        2,
        3,
        5,
        6,
        7,
        8,
        9,
    ]
    assert table.history(1)[0]["operation"] == "DELETE"


def test_plain_delta_skips_files_by_statistics(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = new_table(engine, tmp_path)
    write(engine, path, rows_with_ids(0, 1))
    write(engine, path, rows_with_ids(8, 9))
    state = read_snapshot(path)
    bounds = state.bounds("id")
    assert bounds is not None
    assert bounds.pairs() == [(0, 1), (8, 9)]
    assert state.bounds("hour") is not None
    assert len(DeltaTable(path).file_uris(file_pruning_predicate="id > 5")) == 1


def test_tables_of_plain_delta_are_read_and_continued(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    write_deltalake(path, make_rows(6), partition_by=["zone"])
    write_deltalake(path, make_rows(8).slice(6), mode="append")
    write(engine, path, rows_with_ids(3, value=-1.0), TableWrite("upsert", key=("id",)))
    table = rows(engine, engine.read_table(path, schema=SCHEMA), sort_by="id")
    assert [row["value"] for row in table] == [0.0, 0.5, 1.0, -1.0, 2.0, 2.5, 3.0, 3.5]
    assert [row["zone"] for row in table] == make_rows(8)["zone"].to_pylist()
    merge = DeltaTable(path).merge(
        rows_with_ids(0, value=7.0), "old.id = new.id", source_alias="new", target_alias="old"
    )
    merge.when_matched_update_all().execute()
    assert rows(engine, engine.read_table(path, schema=SCHEMA), sort_by="id")[0]["value"] == 7.0


def test_partitions_in_unnamed_folders_are_read(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = new_table(engine, tmp_path, partition_by=("zone",))
    write(engine, path, make_rows(10))
    for number, file in enumerate(sorted(data_files(path))):
        os.rename(file, Path(path) / f"moved-{number}.parquet")
    commit = Path(commit_path(path, 1))
    actions = read_actions(commit)
    adds = sorted(
        (action["add"] for action in actions if "add" in action), key=lambda add: add["path"]
    )
    for number, add in enumerate(adds):
        add["path"] = f"moved-{number}.parquet"
    write_actions(commit, actions)
    assert (
        rows(engine, engine.read_table(path, schema=SCHEMA), sort_by="id")
        == make_rows(10).to_pylist()
    )


def test_many_partitions_and_later_columns_are_read_together(
    engine: DuckDBEngine, tmp_path: Path
) -> None:
    partitions = 40
    schema = pa.schema([("id", pa.int64()), ("zone", pa.string()), ("late", pa.uint8())])
    path = new_table(engine, tmp_path, partition_by=("zone",), schema=pa.schema(list(schema)[:2]))
    zones = [None if number == 0 else f"z {number}" for number in range(partitions)]
    write(engine, path, pa.table({"id": range(partitions), "zone": pa.array(zones, pa.string())}))
    added = TableWrite("append", add_columns=pa.schema([schema.field("late")]))
    write(
        engine,
        path,
        pa.table({"id": [99], "zone": ["z 1"], "late": pa.array([255], pa.uint8())}),
        added,
    )
    table = engine.read_table(path, schema=schema)
    expected = [{"id": number, "zone": zone, "late": None} for number, zone in enumerate(zones)]
    expected.append({"id": 99, "zone": "z 1", "late": 255})
    assert rows(engine, table, sort_by="id") == expected
    assert [
        row["id"] for row in rows(engine, engine.filter(table, "zone = 'z 1'"), sort_by="id")
    ] == [
        1,
        99,
    ]
    assert rows(engine, engine.read_table(path, schema=schema, columns=["late"]), sort_by="late")[
        0
    ] == {"late": 255}
    assert engine.write(path, engine.filter(table, "zone is null"), TableWrite("overwrite")) == 3
    assert ids(engine, path) == [0]


def test_tables_of_newer_writers_are_read_only(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    write_deltalake(
        path, pa.table({"id": [1]}), configuration={"delta.enableChangeDataFeed": "true"}
    )
    assert ids(engine, path) == [1]
    with pytest.raises(UnsupportedTable, match="writer version"):
        write(engine, path, pa.table({"id": [2]}))


# -- what is refused ----------------------------------------------------------------------------------------------


def test_partition_by_empty_text_is_refused(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = new_table(engine, tmp_path, partition_by=("zone",))
    table = make_rows(2).set_column(2, "zone", pa.array(["", "a"]))
    with pytest.raises(InvalidArgument, match="'zone'"):
        write(engine, path, table)
    assert data_files(path) == set()


def test_partition_by_bytes_is_refused(engine: DuckDBEngine, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("raw", pa.binary())])
    with pytest.raises(InvalidArgument, match="'raw'"):
        new_table(engine, tmp_path, partition_by=("raw",), schema=schema)


def test_partition_by_all_columns_is_refused(engine: DuckDBEngine, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="All columns"):
        new_table(engine, tmp_path, partition_by=("id",), schema=pa.schema([("id", pa.int64())]))


def test_unknown_columns_are_named(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = new_table(engine, tmp_path)
    with pytest.raises(SchemaMismatch, match="'other'"):
        write(engine, path, pa.table({"id": [1], "other": [2]}))


# -- files --------------------------------------------------------------------------------------------------------


def test_a_failed_write_leaves_no_file(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = new_table(engine, tmp_path)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from make_rows(1000).to_batches()
        raise ValueError("broken source")

    reader = pa.RecordBatchReader.from_batches(SCHEMA, batches())
    for mode, key in (("append", ()), ("overwrite", ()), ("upsert", ("id",))):
        with pytest.raises(ValueError, match="broken source"):
            engine.write(path, engine.from_arrow(reader), TableWrite(mode, key=key))  # type: ignore[arg-type]
        reader = pa.RecordBatchReader.from_batches(SCHEMA, batches())
    assert sorted(os.listdir(path)) == ["_delta_log"]


def test_staged_files_are_linked_into_table(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = new_table(engine, tmp_path)
    staged = engine.stage(engine.from_arrow(make_rows(100).to_reader()), str(tmp_path / "stage"))
    engine.write(path, staged, TableWrite("append"))
    (file,) = data_files(path)
    assert os.stat(file).st_nlink == 2


def test_upsert_rewrites_only_files_with_keys(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = new_table(engine, tmp_path)
    write(engine, path, rows_with_ids(0, 1))
    write(engine, path, rows_with_ids(8, 9))
    before = {file.path for file in read_snapshot(path).files}
    write(engine, path, rows_with_ids(8, value=-1.0), TableWrite("upsert", key=("id",)))
    unchanged_files = before & {file.path for file in read_snapshot(path).files}
    assert len(unchanged_files) == 1


def test_replace_rewrites_only_files_in_range(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = new_table(engine, tmp_path)
    for row_id in (0, 5, 9):
        write(engine, path, rows_with_ids(row_id))
    untouched_path = read_snapshot(path).files[0].path
    Path(untouched_path).write_bytes(b"unreadable, and not to be read")
    window = TimeRange("hour", NOON + timedelta(hours=5), NOON + timedelta(hours=9), "right")
    write(engine, path, make_rows(0), TableWrite("replace", replace=window))
    assert [file.rows for file in read_snapshot(path).files] == [1, 1]


def test_folders_with_glob_characters_are_writable(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = new_table(engine, tmp_path / "a[1]*?'b", partition_by=("zone",))
    write(engine, path, rows_with_ids(0, 1, 2))
    write(engine, path, rows_with_ids(1, value=-1.0), TableWrite("upsert", key=("id",)))
    engine.delete(path, "id = 2", commit_metadata={})
    table = rows(
        engine, engine.read_table(path, schema=SCHEMA, columns=["id", "value"]), sort_by="id"
    )
    assert table == [{"id": 0, "value": 0.0}, {"id": 1, "value": -1.0}]


def test_rows_keep_the_order_of_writing(engine: DuckDBEngine, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64())])
    path = new_table(engine, tmp_path, schema=schema)
    order = np.random.default_rng(0).permutation(300_000)
    table = pa.table({"id": pa.array(order), "x": pa.array(order / 7)})
    for chunk in (table.slice(0, 200_000), table.slice(200_000)):
        write(engine, path, chunk)
    assert engine.stream(engine.read_table(path)).read_all()["id"].to_pylist() == order.tolist()


def test_vacuum_keeps_files_of_running_writes(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = new_table(engine, tmp_path)
    write(engine, path, rows_with_ids(1))
    fresh, old = Path(path) / "part-fresh.parquet", Path(path) / "part-old.parquet"
    for file in (fresh, old):
        file.write_bytes(b"x")
    abandoned = Path(path) / "_writing" / "abandoned"
    abandoned.mkdir(parents=True)
    long_ago = time.time() - 7 * 24 * 3600
    os.utime(old, (long_ago, long_ago))
    os.utime(abandoned, (long_ago, long_ago))
    removed = engine.vacuum(path, keep_versions=[], retain=datetime.now(UTC) + timedelta(seconds=1))
    assert list(removed) == [str(old)]
    assert fresh.exists()
    assert not abandoned.exists()
    assert ids(engine, path) == [1]


# -- races --------------------------------------------------------------------------------------------------------

_WRITER = """
import sys
import pyarrow as pa
from featurestore.plugins.engine import TableWrite, TimeRange
from featurestore_connectors.duckdb_delta import DuckDBEngine

path, me = sys.argv[1], int(sys.argv[2])
engine = DuckDBEngine(threads=1)
for turn in range(4):
    new = pa.table({"id": pa.array([1000 + me * 100 + turn]), "by": pa.array([me]), "n": pa.array([turn])})
    engine.write(path, engine.from_arrow(new.to_reader()), TableWrite("append", transaction=(f"app{me}", turn)))
    engine.write(path, engine.from_arrow(new.to_reader()), TableWrite("append", transaction=(f"app{me}", turn)))
    own = pa.table({"id": pa.array([me, 50]), "by": pa.array([me, me]), "n": pa.array([turn, turn])})
    engine.write(path, engine.from_arrow(own.to_reader()), TableWrite("upsert", key=("id",)))
"""


@pytest.mark.slow
def test_eight_processes_append_and_upsert_without_loss(
    engine: DuckDBEngine, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.int64()), ("by", pa.int64()), ("n", pa.int64())])
    path = new_table(engine, tmp_path, schema=schema)
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, path, str(number)]) for number in range(8)
    ]
    assert [writer.wait(timeout=300) for writer in writers] == [0] * 8
    table = rows(engine, engine.read_table(path), sort_by="id")
    appended = [1000 + me * 100 + turn for me in range(8) for turn in range(4)]
    assert [row["id"] for row in table] == [*range(8), 50, *appended]
    assert all(row["n"] == 3 for row in table[:9])
    assert read_snapshot(path).version == 64


def test_repeated_conflicts_raise_write_conflict(
    engine: DuckDBEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = new_table(engine, tmp_path)
    write(engine, path, rows_with_ids(1))
    rival = DuckDBEngine()
    state_of = read_snapshot

    def slow(path: str, version: int | None = None) -> Snapshot:
        state = state_of(path, version)
        monkeypatch.setattr(commits, "read_snapshot", state_of)
        write(rival, path, rows_with_ids(5))
        monkeypatch.setattr(commits, "read_snapshot", slow)
        return state

    monkeypatch.setattr(commits, "ATTEMPTS", 3)
    monkeypatch.setattr(commits, "read_snapshot", slow)
    with pytest.raises(WriteConflict, match="3 times"):
        engine.delete(path, "id = 1", commit_metadata={})
    monkeypatch.undo()
    assert 1 in ids(engine, path)
    assert len(data_files(path)) == len(read_snapshot(path).files)
    rival.close()


def test_append_ignores_concurrent_appends(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = new_table(engine, tmp_path)
    stale = read_snapshot(path)
    write(engine, path, rows_with_ids(1))
    assert commits.commit(stale, TableChange("WRITE"), Publication()) == 2


def test_concurrent_equal_transactions_commit_once(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = new_table(engine, tmp_path)
    stale = read_snapshot(path)
    write(engine, path, rows_with_ids(1), TableWrite("append", transaction=("app", 1)))
    with pytest.raises(commits.RepeatedError):
        commits.commit(stale, TableChange("WRITE", transaction=("app", 1)), Publication())


def test_transaction_committed_meanwhile_is_skipped(
    engine: DuckDBEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = new_table(engine, tmp_path)
    other_engine = DuckDBEngine()
    same = TableWrite("append", transaction=("etl", 1))
    put, puts = commits._publish_commit, []

    def outrun(*arguments: object, **options: object) -> bool:
        puts.append(arguments)
        if len(puts) == 1:  # a commit after which this write must reread the table
            other_engine.change_properties(path, lambda _: PropertyChange({"a": "b"}))
        return put(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(commits, "_publish_commit", outrun)
    monkeypatch.setattr(time, "sleep", lambda _: write(other_engine, path, rows_with_ids(1), same))
    assert write(engine, path, rows_with_ids(1), same) is None
    assert ids(engine, path) == [1]
    other_engine.close()


@pytest.mark.parametrize("partition_by", [(), ("t",)])
@pytest.mark.parametrize("mode", ["append", "overwrite", "upsert", "replace"])
def test_concurrent_widening_rewrites_rows(
    engine: DuckDBEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    partition_by: tuple[str, ...],
) -> None:
    narrow, wide = pa.decimal128(3, 2), pa.decimal128(5, 3)
    path = new_table(engine, tmp_path, schema=prices(narrow).schema, partition_by=partition_by)
    write(engine, path, prices(narrow, "1.25"))
    other_engine = DuckDBEngine()
    put, puts = commits._publish_commit, []

    def outrun(*arguments: object, **options: object) -> bool:
        puts.append(arguments)
        if len(puts) == 1:
            other_engine.widen_columns(path, pa.schema([("price", wide)]))
        return put(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(commits, "_publish_commit", outrun)
    window = TimeRange("t", NOON, NOON + timedelta(days=1)) if mode == "replace" else None
    key = ("price",) if mode == "upsert" else ()
    write(engine, path, prices(narrow, "2.5"), TableWrite(mode, key=key, replace=window))  # type: ignore[arg-type]
    other_engine.close()
    expected = ["1.25", "2.5"] if mode in ("append", "upsert") else ["2.5"]
    landed = rows(engine, engine.read_table(path), sort_by="price")
    assert landed == prices(wide, *expected).to_pylist()
    state = read_snapshot(path)
    for file in state.files:
        assert parquet.read_schema(file.path).field("price").type == wide
    assert data_files(path) >= {file.path for file in state.files}


# -- full disks and damage ----------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 20 MB, which only root can mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(file: Path) -> None:
    """Write until the disk is full."""
    try:
        with open(file, "wb", buffering=0) as filler:
            while filler.write(b"x" * 4096):
                pass
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def test_full_disk_raises_and_keeps_table(engine: DuckDBEngine, small_disk: Path) -> None:
    path = new_table(engine, small_disk)
    write(engine, path, rows_with_ids(1, 2))
    rng = np.random.default_rng(0)
    big = pa.table(
        {"id": pa.array(rng.integers(0, 2**62, 2_000_000)), "value": rng.normal(size=2_000_000)}
    )
    for table_write in (
        TableWrite("append"),
        TableWrite("overwrite"),
        TableWrite("upsert", key=("id",)),
    ):
        with pytest.raises(StorageError, match="The disk is full"):
            write(engine, path, big, table_write)
        assert ids(engine, path) == [1, 2]
        assert len(data_files(path)) == 1
    fill(small_disk / "filler")
    with pytest.raises(StorageError):
        engine.change_properties(path, lambda _: PropertyChange({"a": "b"}))
    assert ids(engine, path) == [1, 2]
    os.unlink(small_disk / "filler")
    assert write(engine, path, rows_with_ids(3)) == 2


def test_a_truncated_data_file_is_named(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = new_table(engine, tmp_path)
    write(engine, path, rows_with_ids(1, 2))
    (file,) = data_files(path)
    os.truncate(file, 100)
    with pytest.raises(TableDamaged, match=Path(file).name):
        ids(engine, path)
    with pytest.raises(TableDamaged, match=Path(file).name):
        engine.delete(path, "id = 1", commit_metadata={})


def test_damaged_data_file_is_named(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = new_table(engine, tmp_path)
    write(engine, path, rows_with_ids(1, 2))
    (file,) = data_files(path)
    size = os.stat(file).st_size
    Path(file).write_bytes(b"\x00" * size)
    with pytest.raises(TableDamaged, match=Path(file).name):
        ids(engine, path)


def test_times_of_any_year_are_written_and_read(engine: DuckDBEngine, tmp_path: Path) -> None:
    micros = pa.array([-(10**17), 0, 3 * 10**17], pa.int64())
    table = pa.table({"at": micros.cast(pa.timestamp("us", tz="UTC")), "id": [1, 2, 3]})
    path = new_table(engine, tmp_path, schema=table.schema)
    write(engine, path, table)
    actual_table = engine.stream(engine.read_table(path)).read_all()
    assert actual_table["at"].cast(pa.int64()).to_pylist() == micros.to_pylist()
    partitioned = new_table(engine, tmp_path / "by", schema=table.schema, partition_by=("at",))
    with pytest.raises(InvalidArgument, match="years must be 1 to 9999"):
        write(engine, partitioned, table)


def test_folder_can_have_several_stages(engine: DuckDBEngine, tmp_path: Path) -> None:
    stages = [
        engine.stage(engine.from_arrow(make_rows(count).to_reader()), str(tmp_path))
        for count in (2, 3)
    ]
    assert [engine.count(stage) for stage in stages] == [2, 3]


def test_too_many_open_files_is_not_damage(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = new_table(engine, tmp_path)
    for number in range(40):
        write(engine, path, rows_with_ids(number))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 4, hard))
        with pytest.raises(StorageError, match=r"ulimit -n 65536.*compact_featuregroup") as caught:
            ids(engine, path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not isinstance(caught.value, TableDamaged)
    assert ids(engine, path) == list(range(40))


def test_optimize_commits_beside_appends_not_deletes(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = new_table(engine, tmp_path)
    write(engine, path, rows_with_ids(1))
    stale = read_snapshot(path)
    write(engine, path, rows_with_ids(2))
    moving = TableChange("OPTIMIZE", removes=stale.files, data_change=False, reads=True)
    assert commits.commit(stale, moving, Publication()) == 3
    stale = read_snapshot(path)
    engine.delete(path, "id = 2", commit_metadata={})
    moving = TableChange("OPTIMIZE", removes=stale.files, data_change=False, reads=True)
    with pytest.raises(commits.LostRaceError):
        commits.commit(stale, moving, Publication())
