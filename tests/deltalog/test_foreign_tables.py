"""Delta tables of other writers are read correctly or refused by name."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from featurestore.delta.history import read_history
from featurestore.delta.log import commit_path, is_delta_table, latest_version
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import TableDamaged, UnsupportedTable, UnsupportedType, VersionNotFound
from featurestore.model.times import NaiveTimeWarning
from featurestore.plugins.engine import TableWrite
from featurestore.testing.table_conformance import new_table, rows_with_ids, write
from featurestore_connectors.duckdb_delta import DuckDBEngine
from tests.commit_files import read_actions, write_actions
from tests.deltalog.hand_made import add, commit, metadata, protocol, schema_string

IDS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


def read(engine: DuckDBEngine, path: Path, **options: Any) -> dict[str, list[Any]]:
    table: dict[str, list[Any]] = (
        engine.stream(engine.read_table(str(path), **options)).read_all().to_pydict()
    )
    return table


def simple(path: Path, *features: str, **configuration: str) -> Path:
    commit(path, 0, protocol(*features), metadata(IDS.schema, **configuration))
    commit(path, 1, add(path, "part-0.parquet", IDS))
    return path


@pytest.mark.parametrize(
    "features",
    [
        ["v2Checkpoint"],
        ["vacuumProtocolCheck"],
        ["timestampNtz"],
        ["deletionVectors"],
        ["columnMapping", "typeWidening"],
    ],
)
def test_table_with_harmless_features_is_read(
    engine: DuckDBEngine, tmp_path: Path, features: list[str]
) -> None:
    assert read(engine, simple(tmp_path / "t", *features)) == {"id": [1, 2, 3]}


@pytest.mark.parametrize("feature", ["catalogManaged", "variantType", "geospatial", "somethingNew"])
def test_table_with_unknown_feature_is_refused(
    engine: DuckDBEngine, tmp_path: Path, feature: str
) -> None:
    path = simple(tmp_path / "t", "v2Checkpoint", feature)
    with pytest.raises(UnsupportedTable, match=f"'{feature}'"):
        read(engine, path)


@pytest.mark.parametrize("mode", ["name", "id"])
def test_table_with_column_mapping_is_refused(
    engine: DuckDBEngine, tmp_path: Path, mode: str
) -> None:
    path = simple(tmp_path / "t", **{"delta__columnMapping__mode": mode})
    with pytest.raises(UnsupportedTable, match="column mapping"):
        read(engine, path)


def test_table_with_newer_reader_version_is_refused(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = tmp_path / "t"
    commit(path, 0, protocol("deletionVectors", reader=4), metadata(IDS.schema))
    with pytest.raises(UnsupportedTable, match="reader version 4"):
        read(engine, path)


def test_active_deletion_vector_is_refused(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = simple(tmp_path / "t", "deletionVectors")
    vector = {"storageType": "u", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
    with_vector = add(path, "part-0.parquet", IDS, deletionVector=vector)
    # The file is removed and added in one commit, in either order.
    commit(path, 2, with_vector, {"remove": {"path": "part-0.parquet", "dataChange": True}})
    with pytest.raises(UnsupportedTable, match="deletion vectors"):
        read(engine, path)
    assert read(engine, path, version=1) == {"id": [1, 2, 3]}
    removal = {"remove": {"path": "part-0.parquet", "dataChange": True}}
    commit(path, 3, removal, add(path, "part-1.parquet", IDS.slice(0, 2)))
    assert read(engine, path) == {"id": [1, 2]}


@pytest.mark.parametrize("type_name", ["variant", "geometry(OGC:CRS84)"])
def test_table_with_unknown_type_is_refused(
    engine: DuckDBEngine, tmp_path: Path, type_name: str
) -> None:
    commit(
        tmp_path / "t", 0, protocol(), metadata(schema_string(("id", "long"), ("shape", type_name)))
    )
    with pytest.raises(UnsupportedTable, match=r"'shape'"):
        read(engine, tmp_path / "t")


@pytest.mark.parametrize(
    "elsewhere",
    [
        "file:///etc/data.parquet",
        "/etc/data.parquet",
        "../x.parquet",
        "%2E%2E/x.parquet",
        "s3://b/x",
    ],
)
def test_files_outside_table_are_refused(
    engine: DuckDBEngine, tmp_path: Path, elsewhere: str
) -> None:
    path = simple(tmp_path / "t")
    commit(path, 2, {"add": {"path": elsewhere, "size": 1, "stats": '{"numRecords":1}'}})
    with pytest.raises(UnsupportedTable, match="outside its folder"):
        read(engine, path)


def test_absolute_file_paths_inside_table_are_read(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = tmp_path / "a b"
    commit(path, 0, protocol(), metadata(IDS.schema))
    action = add(path, "part-0.parquet", IDS)
    action["add"]["path"] = (path / "part-0.parquet").as_uri()
    commit(path, 1, action)
    assert read(engine, path) == {"id": [1, 2, 3]}


def test_map_column_is_refused_only_when_selected(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = tmp_path / "t"
    a_map = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}
    commit(path, 0, protocol(), metadata(schema_string(("id", "long"), ("counts", a_map))))
    counts = pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64()))
    commit(path, 1, add(path, "part-0.parquet", IDS.append_column("counts", counts)))
    assert read(engine, path, columns=["id"]) == {"id": [1, 2, 3]}
    with pytest.raises(UnsupportedType, match="counts"):
        read(engine, path, columns=["counts"])


def test_naive_table_times_are_utc_with_warning(engine: DuckDBEngine, tmp_path: Path) -> None:
    path, timestamp = tmp_path / "t", dt.datetime(2024, 5, 1, 12, 0, 0, 250001)
    rows = pa.table({"at": pa.array([timestamp, None], pa.timestamp("us"))})
    commit(path, 0, protocol("timestampNtz"), metadata(rows.schema))
    commit(path, 1, add(path, "part-0.parquet", rows))
    with pytest.warns(NaiveTimeWarning, match="'at'") as record:
        actual = read(engine, path)
    assert len(record) == 1
    assert actual == {"at": [timestamp.replace(tzinfo=dt.UTC), None]}


def test_narrower_file_types_are_widened_to_schema(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = tmp_path / "t"
    wide = pa.schema([("n", pa.int64()), ("x", pa.float64()), ("at", pa.timestamp("us"))])
    commit(path, 0, protocol("typeWidening", "timestampNtz"), metadata(wide))
    day = dt.date(2024, 5, 1)
    narrow = pa.table(
        {"n": pa.array([7], pa.int32()), "x": pa.array([7], pa.int32()), "at": pa.array([day])}
    )
    commit(path, 1, add(path, "part-0.parquet", narrow))
    with pytest.warns(NaiveTimeWarning):
        actual = read(engine, path)
    assert actual == {"n": [7], "x": [7.0], "at": [dt.datetime(2024, 5, 1, tzinfo=dt.UTC)]}


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x0b", "\x1c"])
def test_unicode_line_separators_in_commits_are_kept(
    engine: DuckDBEngine, tmp_path: Path, separator: str
) -> None:
    path = new_table(engine, tmp_path)
    write(engine, path, rows_with_ids(1))
    file = Path(commit_path(path, 1))
    actions = read_actions(file)
    for action in actions:
        if "add" in action:
            stats = json.loads(action["add"]["stats"])
            stats["maxValues"]["zone"] = f"z{separator}z"
            action["add"]["stats"] = json.dumps(stats, ensure_ascii=False)
    write_actions(file, actions, ensure_ascii=False)
    assert write(engine, path, rows_with_ids(2)) == 2
    assert write(engine, path, rows_with_ids(2, value=5.0), TableWrite("upsert", key=("id",))) == 3
    assert read_snapshot(path).rows == 2


def test_log_starting_with_checkpoint_is_read(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = new_table(engine, tmp_path)
    for number in range(10):
        write(engine, path, rows_with_ids(number))
    log = Path(path) / "_delta_log"
    for version in range(11):
        Path(commit_path(path, version)).unlink()
    assert is_delta_table(path)
    assert latest_version(path) == 10
    assert read_snapshot(path).rows == 10
    assert sorted(read(engine, Path(path))["id"]) == list(range(10))
    assert read_history(path) == ()
    assert write(engine, path, rows_with_ids(99)) == 11
    assert [entry.rows for entry in read_history(path)] == [11]
    with pytest.raises(VersionNotFound, match="10 to 11"):
        read_snapshot(path, 4)
    (log / "_last_checkpoint").unlink()
    assert read_snapshot(path, 10).rows == 10


def test_multipart_and_sidecar_checkpoints_are_read(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = simple(tmp_path / "t", "v2Checkpoint")
    before = read_snapshot(str(path))
    log = path / "_delta_log"
    file = before.files[0]
    added = {
        "path": file.log_path,
        "size": file.bytes,
        "modificationTime": 1,
        "stats": file.statistics,
    }
    details = {"partitionValues": pa.array([[]], pa.map_(pa.string(), pa.string()))}
    struct = pa.StructArray.from_arrays(
        [*(pa.array([value]) for value in added.values()), *details.values()], [*added, *details]
    )
    (log / "_sidecars").mkdir()
    parquet.write_table(pa.table({"add": struct}), log / "_sidecars" / "one.parquet")
    top = [protocol("v2Checkpoint"), metadata(IDS.schema), {"checkpointMetadata": {"version": 1}}]
    top.append({"sidecar": {"path": "one.parquet", "sizeInBytes": 1, "modificationTime": 1}})
    name = f"{1:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    (log / name).write_text("\n".join(map(json.dumps, top)))
    for version in (0, 1):
        Path(commit_path(str(path), version)).unlink()
    actual = read_snapshot(str(path))
    assert (actual.version, actual.schema, actual.rows) == (1, before.schema, 3)
    assert read(engine, path) == {"id": [1, 2, 3]}
    copy = shutil.copytree(path, tmp_path / "other")
    (copy / "_delta_log" / "_sidecars" / "one.parquet").unlink()
    with pytest.raises(TableDamaged, match=r"one\.parquet"):
        read_snapshot(str(copy))


def test_partition_values_are_read_from_log(engine: DuckDBEngine, tmp_path: Path) -> None:
    """The store is below folders named like columns, and file paths contain other values."""
    path = tmp_path / "zone=north" / "id=77" / "t"
    rows = pa.table(
        {"id": pa.array([1, 2], pa.int64()), "file_index": pa.array([5, 6], pa.int64())}
    )
    schema = rows.schema.append(pa.field("zone", pa.string())).append(pa.field("day", pa.date32()))
    commit(path, 0, protocol(), metadata(schema, partition_by=("zone", "day")))
    values: list[dict[str, str | None]] = [
        {"zone": "a=b'c", "day": "2024-05-01"},
        {"zone": None, "day": None},
        {"zone": "south", "day": "0001-01-01"},
    ]
    files = [
        add(path, f"zone=wrong/day=1999-01-01/{number}.parquet", rows, partitionValues=partition)
        for number, partition in enumerate(values)
    ]
    commit(path, 1, *files)
    actual = read(engine, path)
    assert actual["id"] == [1, 2] * 3
    assert actual["file_index"] == [5, 6] * 3
    assert actual["zone"] == ["a=b'c"] * 2 + [None] * 2 + ["south"] * 2
    assert actual["day"] == [dt.date(2024, 5, 1)] * 2 + [None] * 2 + [dt.date(1, 1, 1)] * 2
    write(
        engine,
        str(path),
        pa.table({"id": [2], "file_index": [9], "zone": ["south"]}),
        TableWrite("upsert", key=("id", "zone")),
    )
    after = read(engine, path)
    assert sorted(zip(after["id"], after["zone"], strict=True), key=str)[-3:] == [
        (2, "a=b'c"), (2, "south"), (2, None),
    ]  # fmt: skip


def test_millisecond_bounds_do_not_skip_files(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = tmp_path / "t"
    timestamp = dt.datetime(2024, 5, 1, 12, 0, 0, 123999, tzinfo=dt.UTC)
    rows = pa.table({"at": pa.array([timestamp], pa.timestamp("us", tz="UTC")), "v": [1.0]})
    commit(path, 0, protocol(), metadata(rows.schema))
    cut = {
        "minValues": {"at": "2024-05-01T12:00:00.123Z"},
        "maxValues": {"at": "2024-05-01T12:00:00.123Z"},
    }
    commit(path, 1, add(path, "part-0.parquet", rows, stats=cut))
    bounds = read_snapshot(str(path)).bounds("at")
    assert bounds is not None
    greatest = bounds.maximum()
    assert greatest is not None
    assert greatest >= (timestamp - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(
        microseconds=1
    )
    write(
        engine,
        str(path),
        rows.set_column(1, "v", pa.array([2.0])),
        TableWrite("upsert", key=("at",)),
    )
    assert read(engine, path)["v"] == [2.0]


@pytest.mark.parametrize("year", [1, 9999])
def test_times_at_calendar_bounds_are_written_and_matched(
    engine: DuckDBEngine, tmp_path: Path, year: int
) -> None:
    path = tmp_path / "t"
    edge = dt.datetime(year, 1 if year == 1 else 12, 1 if year == 1 else 31, tzinfo=dt.UTC)
    timestamp = (
        edge if year == 1 else edge.replace(hour=23, minute=59, second=59, microsecond=999999)
    )
    rows = pa.table({"at": pa.array([timestamp], pa.timestamp("us", tz="UTC")), "v": [1.0]})
    commit(path, 0, protocol(), metadata(rows.schema))
    for number in range(3):
        new = rows.set_column(1, "v", pa.array([float(number)]))
        write(engine, str(path), new, TableWrite("upsert", key=("at",)))
    assert read(engine, path) == {"at": [timestamp], "v": [2.0]}


@pytest.mark.parametrize(
    "text",
    [
        '{"add": []}',
        '{"add": {"size": 1}}',
        '{"commitInfo": 3}',
        '{"txn": {"appId": "a"}}',
        '{"protocol": {"minReaderVersion": "x"}}',
        '{"metaData": {"id": "a", "schemaString": "[]"}}',
        '{"metaData": {"id": "a", "schemaString": "{", "configuration": 3}}',
        '{"add": {"path": "part-0.parquet"}}',
        "[" * 100_000,
    ],
)
def test_invalid_commit_raises_table_damaged(tmp_path: Path, text: str) -> None:
    path = simple(tmp_path / "t")
    (path / "_delta_log" / f"{2:020d}.json").write_text(text)
    with pytest.raises(TableDamaged):
        read_snapshot(str(path))
