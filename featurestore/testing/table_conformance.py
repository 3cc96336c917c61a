"""Conformance suite for tables: commits, versions, merges, replacement, transactions, upkeep."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from featurestore.delta.history import added_files, commit_at, read_history
from featurestore.delta.snapshot import Snapshot, read_snapshot, transaction_version
from featurestore.errors import (
    FeatureStoreError,
    SchemaMismatch,
    TableDamaged,
    VersionNotFound,
    VersionVacuumed,
)
from featurestore.plugins.engine import (
    TABLE_PROPERTIES,
    Engine,
    PropertyChange,
    TableWrite,
    TimeRange,
)
from featurestore.storage import storage_for
from featurestore.testing.relation_conformance import NOON, make_rows, read_ids, rows

SCHEMA = make_rows(0).schema


def new_table(
    engine: Engine,
    directory: Path,
    *,
    partition_by: tuple[str, ...] = (),
    schema: pa.Schema = SCHEMA,
) -> str:
    """Create an empty table and return its path."""
    path = str(directory / "table")
    engine.create_table(
        path,
        schema=schema,
        partition_by=partition_by,
        properties={"featurestore.spec": "{}"},
        commit_metadata={},
    )
    return path


def write(
    engine: Engine, path: str, table: pa.Table, table_write: TableWrite | None = None
) -> int | None:
    """Write a table as one commit, by default an append."""
    return engine.write(
        path, engine.from_arrow(table.to_reader()), table_write or TableWrite("append")
    )


def ids(engine: Engine, path: str, version: int | None = None) -> list[int]:
    """Return the sorted ids of a table."""
    return read_ids(engine, engine.read_table(path, version=version, columns=["id"]))


def rows_with_ids(*numbers: int, value: float | None = None) -> pa.Table:
    """Return a table with these ids, with ``value`` in every row if it is not None."""
    table = make_rows(max(numbers) + 1).take(list(numbers))
    if value is None:
        return table
    return table.set_column(3, "value", pa.array([value] * len(numbers), pa.float64()))


def prices(dtype: pa.DataType, *values: str | None) -> pa.Table:
    """Return rows with decimals of a type, one row per string."""
    numbers = [None if value is None else Decimal(value) for value in values]
    times = pa.array([NOON] * len(values), pa.timestamp("us", tz="UTC"))
    return pa.table({"price": pa.array(numbers, dtype), "t": times})


class TableConformance:
    """Tests for the engine methods that modify tables."""

    def test_create_table_commits_an_empty_table(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        state = read_snapshot(path)
        assert (state.version, state.rows, state.files) == (0, 0, ())
        assert state.properties == {"featurestore.spec": "{}", **TABLE_PROPERTIES}
        assert ids(engine, path) == []

    def test_create_table_twice_raises(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        with pytest.raises(FileExistsError):
            new_table(engine, tmp_path)
        assert read_snapshot(path).version == 0

    def test_concurrent_create_table_has_one_winner(self, engine: Engine, tmp_path: Path) -> None:
        outcomes: list[str] = []

        def create() -> None:
            try:
                new_table(engine, tmp_path)
                outcomes.append("created")
            except FileExistsError:
                outcomes.append("exists")

        threads = [threading.Thread(target=create) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["created", "exists", "exists", "exists"]

    def test_tables_need_no_reader_features(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        write(engine, path, make_rows(3))
        write(engine, path, rows_with_ids(1, value=9.0), TableWrite("upsert", key=("id",)))
        engine.delete(path, "id = 2", commit_metadata={})
        # Reader version 1 and writer version 2 have no deletion vectors or column mapping, so any
        # Delta client can read the table.
        protocol = read_snapshot(path).protocol
        assert (protocol.reader, protocol.writer) == (1, 2)

    def test_append_keeps_old_versions_readable(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        assert write(engine, path, rows_with_ids(0, 1)) == 1
        assert write(engine, path, rows_with_ids(2)) == 2
        assert ids(engine, path) == [0, 1, 2]
        assert ids(engine, path, version=1) == [0, 1]
        assert ids(engine, path, version=0) == []

    def test_read_unknown_version_raises(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        with pytest.raises(VersionNotFound):
            ids(engine, path, version=5)

    def test_append_matches_columns_by_name(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        write(engine, path, rows_with_ids(1).select(["value", "id", "hour"]))
        assert rows(engine, engine.read_table(path, schema=SCHEMA)) == [
            {**rows_with_ids(1).to_pylist()[0], "zone": None}
        ]

    def test_append_casts_narrower_types(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        # The columns hour and zone are missing and become null.
        narrow = pa.table({"id": pa.array([7], pa.int8()), "value": pa.array([0.5], pa.float32())})
        write(engine, path, narrow)
        actual = rows(engine, engine.read_table(path, schema=SCHEMA, columns=["id", "value"]))
        assert actual == [{"id": 7, "value": 0.5}]

    def test_read_table_selects_columns_in_order(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        write(engine, path, rows_with_ids(1))
        assert rows(engine, engine.read_table(path, schema=SCHEMA, columns=["value", "id"])) == [
            {"value": 0.5, "id": 1}
        ]

    def test_read_table_reads_only_named_data_files(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path, partition_by=("zone",))
        tables = [rows_with_ids(0), rows_with_ids(4, value=9.0)]
        paths: list[str] = []
        for table in tables:
            write(engine, path, table)
            paths += [file.path for file in read_snapshot(path).files if file.path not in paths]

        def read(data_files: list[str], version: int | None = None) -> list[dict[str, Any]]:
            relation = engine.read_table(
                path, version=version, schema=SCHEMA, data_files=data_files
            )
            return rows(engine, relation, sort_by="id")

        assert read(paths) == [row for table in tables for row in table.to_pylist()]
        assert read(paths[1:]) == tables[1].to_pylist()
        assert read([]) == []
        # A version contains only its own files, and other files are not needed.
        assert read(paths, version=1) == tables[0].to_pylist()
        storage_for(paths[0]).remove(paths[0], below=path)
        assert read(paths[1:]) == tables[1].to_pylist()
        with pytest.raises(TableDamaged, match=os.path.basename(paths[0])):
            read(paths)

    def test_overwrite_keeps_only_new_rows(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        write(engine, path, rows_with_ids(0, 1))
        write(engine, path, rows_with_ids(5), TableWrite("overwrite"))
        assert ids(engine, path) == [5]
        assert ids(engine, path, version=1) == [0, 1]

    def test_overwrite_without_rows_empties_table(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        write(engine, path, rows_with_ids(0, 1))
        write(engine, path, make_rows(0), TableWrite("overwrite"))
        assert ids(engine, path) == []

    @pytest.mark.parametrize(
        ("closed", "remaining_ids"), [("left", [0, 1, 5, 6]), ("right", [0, 1, 2, 6])]
    )
    def test_replace_deletes_exactly_its_range(
        self, engine: Engine, tmp_path: Path, closed: Any, remaining_ids: list[int]
    ) -> None:
        path = new_table(engine, tmp_path)
        write(engine, path, rows_with_ids(0, 1, 2, 3))
        write(engine, path, rows_with_ids(4, 5, 6))
        window = TimeRange("hour", NOON + timedelta(hours=2), NOON + timedelta(hours=5), closed)
        version = write(
            engine, path, rows_with_ids(4, value=-1.0), TableWrite("replace", replace=window)
        )
        assert version == 3
        assert ids(engine, path) == sorted([*remaining_ids, 4])
        replaced = engine.filter(engine.read_table(path, schema=SCHEMA), "id = 4")
        assert engine.stream(replaced).read_all()["value"].to_pylist() == [-1.0]

    def test_replace_refuses_rows_outside_its_range(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        write(engine, path, rows_with_ids(0, 1))
        window = TimeRange("hour", NOON, NOON + timedelta(hours=1))
        with pytest.raises(FeatureStoreError):
            write(engine, path, rows_with_ids(9), TableWrite("replace", replace=window))
        assert ids(engine, path) == [0, 1]

    def test_replace_without_rows_empties_range(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        write(engine, path, rows_with_ids(0, 1, 2))
        window = TimeRange("hour", NOON, NOON + timedelta(hours=2))
        write(engine, path, make_rows(0), TableWrite("replace", replace=window))
        assert ids(engine, path) == [2]

    @pytest.mark.parametrize("partition_by", [(), ("zone",)])
    def test_delete_removes_rows_with_true_predicate(
        self, engine: Engine, tmp_path: Path, partition_by: tuple[str, ...]
    ) -> None:
        path = new_table(engine, tmp_path, partition_by=partition_by)
        write(engine, path, make_rows(10))
        assert engine.delete(path, "zone <> 'a' and value < 4", commit_metadata={"run": "r"}) == 2
        assert ids(engine, path) == [0, 4, 5, 8, 9]
        assert engine.delete(path, "id > 100", commit_metadata={}) is None
        assert read_snapshot(path).version == 2

    def test_delete_removes_partition_or_all_rows(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path, partition_by=("zone",))
        write(engine, path, make_rows(10))
        engine.delete(path, "zone = 'b'", commit_metadata={})
        assert ids(engine, path) == [0, 2, 3, 4, 5, 7, 8, 9]
        engine.delete(path, "true", commit_metadata={})
        assert ids(engine, path) == []

    def test_added_columns_are_null_in_older_rows(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        write(engine, path, rows_with_ids(1))
        added = pa.schema([("extra", pa.uint8()), ("vector", pa.list_(pa.float32(), 2))])
        wider = rows_with_ids(2).append_column("extra", pa.array([200], pa.uint8()))
        wider = wider.append_column("vector", pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)))
        write(engine, path, wider, TableWrite("append", add_columns=added))
        schema = wider.schema
        expected = [
            {**rows_with_ids(1).to_pylist()[0], "extra": None, "vector": None},
            *wider.to_pylist(),
        ]
        actual = rows(engine, engine.read_table(path, schema=schema), sort_by="id")
        assert repr(actual) == repr(expected)  # also of NaN
        again = rows_with_ids(1, value=8.0).append_column("extra", pa.array([7], pa.uint8()))
        write(engine, path, again, TableWrite("upsert", key=("id",), add_columns=added))
        now = engine.stream(engine.read_table(path, schema=schema)).read_all().sort_by("id")
        assert now["extra"].to_pylist() == [7, 200]
        old = engine.stream(engine.read_table(path, version=1, schema=schema)).read_all()
        assert old["extra"].to_pylist() == [None]

    def test_repeated_transaction_is_skipped(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        for mode, key in (("append", ()), ("upsert", ("id",)), ("overwrite", ())):
            app = f"app/{mode}"
            table_write = TableWrite(mode, key=key, transaction=(app, 3))  # type: ignore[arg-type]
            assert write(engine, path, rows_with_ids(1), table_write) is not None
            before = read_snapshot(path).version
            assert write(engine, path, rows_with_ids(1), table_write) is None
            # A lower number is also a repetition.
            lower = TableWrite(mode, key=key, transaction=(app, 2))  # type: ignore[arg-type]
            assert write(engine, path, rows_with_ids(1), lower) is None
            assert read_snapshot(path).version == before
            assert transaction_version(path, app) == 3
        assert (
            write(
                engine, path, rows_with_ids(2), TableWrite("append", transaction=("app/append", 4))
            )
            is not None
        )

    def test_history_has_metadata_and_row_counts(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        write(
            engine,
            path,
            make_rows(4),
            TableWrite("append", commit_metadata={"operation": "append", "run": "r1"}),
        )
        note = {"operation": "upsert", "inputs": {"a": 1}}
        write(
            engine,
            path,
            rows_with_ids(3, 4, value=1.0),
            TableWrite("upsert", key=("id",), commit_metadata=note),
        )
        engine.delete(path, "id = 0", commit_metadata={"operation": "delete"})
        write(
            engine,
            path,
            rows_with_ids(9),
            TableWrite("overwrite", commit_metadata={"operation": "overwrite"}),
        )
        # Oldest first, without the creation of the table.
        commits = read_history(path)[-2::-1]
        assert [
            (commit.operation, commit.rows_in, commit.rows_out, commit.rows) for commit in commits
        ] == [("append", 4, 0, 4), ("upsert", 2, 1, 5), ("delete", 0, 1, 4), ("overwrite", 1, 4, 1)]
        assert commits[0].user_metadata["run"] == "r1"
        assert commits[1].user_metadata["inputs"] == {"a": 1}
        times = [commit.timestamp for commit in commits]
        assert times == sorted(times)

    def test_snapshot_counts_rows_and_bytes(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        version = write(engine, path, make_rows(4))
        state = read_snapshot(path)
        assert version is not None
        paths = [file.path for file in state.files]
        assert (state.rows, state.bytes) == (4, sum(map(storage_for(path).size, paths)))
        assert set(added_files(path, version)) == set(paths)

    def test_change_properties_commits_separately(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        write(engine, path, rows_with_ids(1))
        change = PropertyChange(
            {"featurestore.meta": '{"tags": {"a": "ü"}}'}, {"operation": "update", "changes": ["ü"]}
        )
        version = engine.change_properties(path, lambda _: change)
        assert engine.change_properties(path, lambda _: None) is None
        state = read_snapshot(path)
        assert version == state.version
        commit = commit_at(path, state.version)
        assert (commit.operation, commit.user_metadata["changes"]) == ("update", ["ü"])
        assert state.properties["featurestore.meta"] == '{"tags": {"a": "ü"}}'
        assert state.properties["featurestore.spec"] == "{}"
        assert ids(engine, path) == [1]

    def test_concurrent_property_changes_all_land(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)

        def count(state: Snapshot) -> PropertyChange:
            return PropertyChange({"count": str(int(state.properties.get("count", "0")) + 1)})

        def change(number: int) -> None:
            engine.change_properties(path, count)
            if number == 2:  # a commit of rows in between
                write(engine, path, rows_with_ids(1))

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(change, range(6)))
        assert read_snapshot(path).properties["count"] == "6"
        assert ids(engine, path) == [1]

    @pytest.mark.parametrize("partition_by", [(), ("price",)])
    def test_widened_decimals_keep_rows(
        self, engine: Engine, tmp_path: Path, partition_by: tuple[str, ...]
    ) -> None:
        narrow, wide = pa.decimal128(3, 2), pa.decimal128(5, 3)
        path = new_table(engine, tmp_path, schema=prices(narrow).schema, partition_by=partition_by)
        write(engine, path, prices(narrow, "1.25", None))
        before = write(engine, path, prices(narrow, "9.99"))
        columns = pa.schema([("price", wide)])
        after = engine.widen_columns(path, columns)
        assert (before, after) == (2, 3)
        # The table is wide enough already.
        assert engine.widen_columns(path, columns) is None
        write(engine, path, prices(wide, "12.125"), TableWrite("append"))
        for version, dtype, values in ((2, narrow, []), (4, wide, ["12.125"])):
            read = engine.read_table(path, version=version)
            assert read.schema.field("price").type == dtype
            expected = prices(dtype, "1.25", "9.99", *values, None)
            assert rows(engine, read, sort_by="price") == expected.to_pylist()
        assert [commit.rows_in for commit in read_history(path)[:3]] == [1, 0, 1]
        assert read_history(path)[1].operation == "widen"
        with pytest.raises(SchemaMismatch, match="38 digits"):
            engine.widen_columns(path, pa.schema([("price", pa.decimal128(38, 0))]))

    @pytest.mark.parametrize("mode", ["append", "upsert", "overwrite", "replace"])
    def test_append_casts_decimals_to_wider_columns(
        self, engine: Engine, tmp_path: Path, mode: str
    ) -> None:
        narrow, wide = pa.decimal128(3, 2), pa.decimal128(5, 3)
        path = new_table(engine, tmp_path, schema=prices(narrow).schema)
        write(engine, path, prices(narrow, "1.25"))
        engine.widen_columns(path, pa.schema([("price", wide)]))
        window = TimeRange("t", NOON, NOON + timedelta(days=1)) if mode == "replace" else None
        key = ("price",) if mode == "upsert" else ()
        write(engine, path, prices(narrow, "2.5"), TableWrite(mode, key=key, replace=window))  # type: ignore[arg-type]
        expected = ["1.25", "2.5"] if mode in ("append", "upsert") else ["2.5"]
        stored_rows = rows(engine, engine.read_table(path), sort_by="price")
        assert stored_rows == prices(wide, *expected).to_pylist()
        for file in read_snapshot(path).files:
            assert (
                parquet.read_schema(storage_for(file.path).open_ranges(file.path))
                .field("price")
                .type
                == wide
            )

    def test_compaction_keeps_rows(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        for number in range(3):
            write(engine, path, rows_with_ids(number))
        assert engine.compact(path) is not None
        assert ids(engine, path) == [0, 1, 2]
        assert len(read_snapshot(path).files) == 1
        last = read_history(path)[0]
        assert (last.rows_in, last.rows_out, last.rows) == (0, 0, 3)
        assert engine.compact(path) is None

    def test_vacuum_keeps_pinned_versions(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        for number in range(3):
            write(engine, path, rows_with_ids(number), TableWrite("overwrite"))
        # All versions are older than this time, so only the pin retains files.
        removed = engine.vacuum(
            path, keep_versions=[2], retain=datetime.now(UTC) + timedelta(seconds=1)
        )
        assert len(removed) == 1
        assert ids(engine, path) == [2]
        assert ids(engine, path, version=2) == [1]
        with pytest.raises(VersionVacuumed, match="Readable versions: 0, 2 to 3"):
            ids(engine, path, version=1)
        assert len(read_history(path)) == 4

    def test_vacuum_keeps_files_of_recent_versions(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        for number in range(3):
            write(engine, path, rows_with_ids(number), TableWrite("overwrite"))
        assert (
            list(
                engine.vacuum(path, keep_versions=[], retain=datetime.now(UTC) - timedelta(days=1))
            )
            == []
        )
        for version in (1, 2, 3):
            assert ids(engine, path, version=version) == [version - 1]

    def test_missing_data_file_is_named(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        write(engine, path, rows_with_ids(1))
        (file,) = read_snapshot(path).files
        storage_for(file.path).remove(file.path, below=path)
        with pytest.raises(TableDamaged, match=os.path.basename(file.path)):
            ids(engine, path)

    def test_concurrent_appends_are_all_committed(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for step in range(2):
                    write(engine, path, rows_with_ids(number * 2 + step))
            except BaseException as error:
                failures.append(error)

        # The commits conflict with each other, so the engine must retry them.
        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert ids(engine, path) == list(range(6))

    def test_many_versions_are_read_from_checkpoints(self, engine: Engine, tmp_path: Path) -> None:
        path = str(tmp_path / "table")
        often = {"delta.checkpointInterval": "2"}
        engine.create_table(
            path, schema=SCHEMA, partition_by=(), properties=often, commit_metadata={}
        )
        for number in range(3):
            write(engine, path, rows_with_ids(number))
        # With a checkpoint every two commits, later versions are read from a checkpoint and the
        # commits after it.
        log = storage_for(path).list_directory(os.path.join(path, "_delta_log"))
        assert [name for name in log if name.endswith("2.checkpoint.parquet")]
        assert ids(engine, path) == list(range(3))
        assert ids(engine, path, version=2) == list(range(2))
        assert len(read_history(path)) == 4

    def test_write_accepts_staged_rows(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        rng = np.random.default_rng(0)
        table = make_rows(1000).take(rng.permutation(1000))
        staged = engine.stage(engine.from_arrow(table.to_reader()), str(tmp_path / "stage"))
        engine.write(path, staged, TableWrite("append"))
        engine.write(path, engine.filter(staged, "id < 5"), TableWrite("upsert", key=("id",)))
        assert ids(engine, path) == list(range(1000))
        storage_for(str(tmp_path / "stage")).remove(str(tmp_path / "stage"), below=str(tmp_path))
        assert (
            rows(engine, engine.read_table(path, schema=SCHEMA), sort_by="id")
            == make_rows(1000).to_pylist()
        )
