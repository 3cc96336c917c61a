"""The Delta log: snapshots, history, times, transactions and damage."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from featurestore.delta.history import added_files, read_history, version_at
from featurestore.delta.log import commit_path, is_delta_table
from featurestore.delta.scan import check_files
from featurestore.delta.snapshot import read_snapshot, transaction_version
from featurestore.errors import TableDamaged, VersionNotFound
from tests.commit_files import read_actions, write_actions


def table_at(path: Path, *, commits: int = 3) -> str:
    """Write a table with plain delta-rs that gains one row per commit."""
    for number in range(commits):
        rows = pa.table({"id": pa.array([number], pa.int64()), "zone": [f"z{number % 2}"]})
        note = CommitProperties(custom_metadata={"userMetadata": json.dumps({"run": f"r{number}"})})
        write_deltalake(
            str(path), rows, mode="append", partition_by=["zone"], commit_properties=note
        )
    return str(path)


def set_times(path: str, *millis: int) -> None:
    """Change the commit times."""
    for version, timestamp in enumerate(millis):
        file = Path(commit_path(path, version))
        actions = read_actions(file)
        for action in actions:
            if "commitInfo" in action:
                action["commitInfo"]["timestamp"] = timestamp
        write_actions(file, actions)


def from_millis(millis: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=millis)


def test_read_snapshot_returns_schema_files_and_bounds(tmp_path: Path) -> None:
    path = table_at(tmp_path / "table")
    state = read_snapshot(path, 1)
    assert (state.version, state.rows, state.partition_by) == (1, 2, ("zone",))
    assert state.schema == pa.schema([("id", pa.int64()), ("zone", pa.string())])
    assert [file.partition for file in state.files] == [{"zone": "z0"}, {"zone": "z1"}]
    assert all(os.path.getsize(file.path) == file.bytes for file in state.files)
    bounds = state.bounds("id")
    assert bounds is not None
    assert bounds.pairs() == [(0, 0), (1, 1)]
    assert state.bounds("zone") is None
    assert state.table_id == read_snapshot(path).table_id == str(DeltaTable(path).metadata().id)


def test_read_snapshot_relative_path_returns_absolute_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_at(tmp_path / "table")
    monkeypatch.chdir(tmp_path)
    state = read_snapshot("table")
    assert all(os.path.isabs(file.path) and os.path.exists(file.path) for file in state.files)


def test_is_delta_table_plain_folder_returns_false(tmp_path: Path) -> None:
    assert not is_delta_table(str(tmp_path / "nothing"))
    (tmp_path / "_delta_log").mkdir()
    assert not is_delta_table(str(tmp_path))
    assert is_delta_table(table_at(tmp_path / "table"))


def test_read_history_counts_rows_from_actions(tmp_path: Path) -> None:
    path = table_at(tmp_path / "table")
    table = DeltaTable(path)
    new = pa.table({"id": pa.array([2, 7], pa.int64()), "zone": ["z0", "z1"]})
    merge = table.merge(new, "o.id = n.id", source_alias="n", target_alias="o")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    DeltaTable(path).delete("id = 0")
    DeltaTable(path).optimize.compact()
    write_deltalake(path, new.slice(0, 1), mode="overwrite")
    actual = read_history(path)[::-1]
    assert [(commit.version, commit.rows_in, commit.rows_out, commit.rows) for commit in actual][
        :5
    ] == [
        (0, 1, 0, 1),
        (1, 1, 0, 2),
        (2, 1, 0, 3),
        (3, 2, 1, 4),
        (4, 0, 1, 3),
    ]
    assert (actual[-2].rows_in, actual[-2].rows_out) == (0, 0)
    assert (actual[-1].operation, actual[-1].rows_in, actual[-1].rows_out, actual[-1].rows) == (
        "write",
        1,
        3,
        1,
    )
    assert [commit.user_metadata for commit in actual[:3]] == [
        {"run": "r0"},
        {"run": "r1"},
        {"run": "r2"},
    ]


def test_read_history_counts_rows_without_statistics(tmp_path: Path) -> None:
    path = table_at(tmp_path / "table", commits=2)
    for version in range(2):
        file = Path(commit_path(path, version))
        actions = read_actions(file)
        for action in actions:
            action.get("add", {}).pop("stats", None)
        write_actions(file, actions)
    assert [commit.rows for commit in read_history(path)] == [2, 1]
    assert read_snapshot(path).rows == 2


def test_read_history_non_json_metadata_is_empty(tmp_path: Path) -> None:
    note = CommitProperties(custom_metadata={"userMetadata": "written by hand"})
    write_deltalake(str(tmp_path / "t"), pa.table({"id": [1]}), commit_properties=note)
    assert read_history(str(tmp_path / "t"))[0].user_metadata == {}


def test_read_history_invalid_timestamps_are_ignored(tmp_path: Path) -> None:
    path = table_at(tmp_path / "table", commits=3)
    set_times(path, 1000, 2**63, -5)
    for commit in read_history(path):
        assert commit.time.year < 9999


def test_version_at_returns_last_version_before_time(tmp_path: Path) -> None:
    path = table_at(tmp_path / "table", commits=5)
    set_times(path, 1000, 1500, 1500, 1500, 3000)
    assert version_at(path, from_millis(1000)) == 0
    assert version_at(path, from_millis(1499)) == 0
    assert version_at(path, from_millis(1500)) == 3
    assert version_at(path, from_millis(2999)) == 3
    assert version_at(path, from_millis(3000)) == 4
    assert version_at(path, from_millis(10**12)) == 4
    with pytest.raises(VersionNotFound, match="its commits are from"):
        version_at(path, from_millis(999))


def test_version_at_decreasing_timestamps_keep_commit_order(tmp_path: Path) -> None:
    path = table_at(tmp_path / "table", commits=4)
    set_times(path, 1000, 5000, 2000, 6000)
    assert [commit.timestamp for commit in read_history(path)] == [6000, 5000, 5000, 1000]
    assert version_at(path, from_millis(2000)) == 0
    assert version_at(path, from_millis(5000)) == 2


def test_transaction_version_is_stored_per_application(tmp_path: Path) -> None:
    path = table_at(tmp_path / "table", commits=1)
    rows = pa.table({"id": pa.array([9], pa.int64()), "zone": ["z0"]})
    properties = CommitProperties(app_transactions=[Transaction("job/a", 7)])
    write_deltalake(path, rows, mode="append", commit_properties=properties)
    assert transaction_version(path, "job/a") == 7
    assert transaction_version(path, "job/b") is None


def test_added_files_returns_files_of_one_commit(tmp_path: Path) -> None:
    path = table_at(tmp_path / "table")
    for version in range(3):
        (file,) = added_files(path, version)
        assert os.path.exists(file)
    with pytest.raises(VersionNotFound, match="the latest commit is 2"):
        added_files(path, 3)


def test_read_snapshot_unknown_version_lists_available(tmp_path: Path) -> None:
    path = table_at(tmp_path / "table")
    with pytest.raises(VersionNotFound, match="0 to 2"):
        read_snapshot(path, 3)


def test_missing_log_raises_table_damaged(tmp_path: Path) -> None:
    with pytest.raises(TableDamaged, match="_delta_log"):
        read_snapshot(str(tmp_path / "nothing"))
    with pytest.raises(TableDamaged, match="_delta_log"):
        read_history(str(tmp_path / "nothing"))


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"add": 1'])
def test_damaged_commit_raises_table_damaged(tmp_path: Path, content: str) -> None:
    path = table_at(tmp_path / "table")
    commit = Path(commit_path(path, 1))
    commit.write_text(content)
    with pytest.raises(TableDamaged, match=commit.name):
        read_snapshot(path)
    with pytest.raises(TableDamaged, match=commit.name):
        read_history(path)


def test_snapshot_cache_is_invalidated_by_log_changes(tmp_path: Path) -> None:
    path = table_at(tmp_path / "table")
    before = read_snapshot(path)
    assert read_snapshot(path) is before
    write_deltalake(path, pa.table({"id": [7], "zone": ["z7"]}), mode="append")
    assert read_snapshot(path).rows == before.rows + 1
    assert read_snapshot(path, before.version).rows == before.rows
    Path(commit_path(path, 1)).write_text("{")
    for version in (None, 2):
        with pytest.raises(TableDamaged):
            read_snapshot(path, version)
    shutil.rmtree(path)
    table_at(tmp_path / "table", commits=1)
    assert read_snapshot(path).rows == 1
    assert read_snapshot(path).table_id != before.table_id


def test_missing_commit_raises_table_damaged(tmp_path: Path) -> None:
    path = table_at(tmp_path / "table")
    commit = Path(commit_path(path, 1))
    commit.unlink()
    with pytest.raises(TableDamaged, match=commit.name):
        read_snapshot(path)
    with pytest.raises(TableDamaged, match=commit.name):
        read_history(path)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PAR1 half"])
def test_damaged_checkpoint_falls_back_to_commits(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = table_at(tmp_path / "table", commits=4)
    expected = read_snapshot(path)
    DeltaTable(path).create_checkpoint()
    (checkpoint,) = (tmp_path / "table" / "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(content)
    shutil.copytree(path, tmp_path / "copy")  # not in the cache
    copy = str(tmp_path / "copy")
    actual = read_snapshot(copy)
    assert [file.log_path for file in actual.files] == [file.log_path for file in expected.files]
    assert checkpoint.name in caplog.text
    Path(commit_path(path, 0)).unlink()
    with pytest.raises(TableDamaged, match=checkpoint.name):
        read_snapshot(path)


def test_damaged_first_commit_falls_back_to_checkpoint(tmp_path: Path) -> None:
    path = table_at(tmp_path / "table", commits=1)
    DeltaTable(path).create_checkpoint()
    commit = Path(commit_path(path, 0))
    commit.write_text('{"add":')
    assert read_snapshot(path).rows == 1
    (tmp_path / "table" / "_delta_log" / "_last_checkpoint").unlink()
    next((tmp_path / "table" / "_delta_log").glob("*.checkpoint.parquet")).unlink()
    shutil.copytree(path, tmp_path / "copy")  # not in the cache
    with pytest.raises(TableDamaged, match=commit.name):
        read_snapshot(str(tmp_path / "copy"))


def test_check_files_missing_or_truncated_raises(tmp_path: Path) -> None:
    path = table_at(tmp_path / "table")
    state = read_snapshot(path)
    check_files(state)
    os.truncate(state.files[0].path, 10)
    with pytest.raises(TableDamaged, match="has 10 bytes"):
        check_files(state)
    os.unlink(state.files[0].path)
    with pytest.raises(TableDamaged, match=os.path.basename(state.files[0].path)):
        check_files(state)
