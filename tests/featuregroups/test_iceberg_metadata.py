"""Groups with ``iceberg=True`` are read by Iceberg clients at the published version."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import featurestore
from featurestore.delta import iceberg
from featurestore.errors import InvalidArgument, UnsupportedType
from featurestore.store import FeatureStore

pytest.importorskip("pyiceberg")
if not hasattr(pa.types, "is_string_view"):
    pytest.skip("pyiceberg reads strings with pyarrow 16 and later", allow_module_level=True)

TIMES = [dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3, 4)]
ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4]),
        "day": ["a b", "é%3F", "a b", None],
        "at": pa.array(TIMES, pa.timestamp("us", "UTC")),
        "small": pa.array([1, -1, None, 7], pa.int8()),
        "unsigned": pa.array([1, 2, 3, 2**32 - 1], pa.uint32()),
        "ratio": pa.array([0.5, None, 1.5, 2.5], pa.float32()),
        "price": pa.array([1, 2, 3, 4], pa.decimal128(12, 2)),
        "flag": [True, False, None, True],
        "on": pa.array([dt.date(2026, 1, 1)] * 4),
        "vector": pa.array([[1.0, 2.0]] * 4, pa.list_(pa.float64(), 2)),
        "names": [["x"], [], None, ["y", "z"]],
        "blob": [b"\x00", b"", None, b"z"],
    }
)


def iceberg_table(path: str) -> Any:
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(f"{path}/{iceberg.FOLDER}")


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: row["id"])


def assert_published(store: FeatureStore, name: str = "g") -> None:
    """Check that pyiceberg reads the rows and the version that the store reads."""
    group = store.featuregroup(name)
    table = iceberg_table(group.path)
    expected = store.get_featuregroup(name, dataframe_type="arrow")
    assert rows_of(table.scan().to_arrow()) == rows_of(expected)
    assert table.metadata.properties["featurestore.delta-version"] == str(group.delta_version)


def test_iceberg_clients_read_each_commit(empty_store: FeatureStore) -> None:
    store = empty_store
    group = store.create_featuregroup(ROWS, "g", primary_key=["id"], event_time="at", iceberg=True)
    assert_published(store)
    first_ids = {field.name: field.field_id for field in iceberg_table(group.path).schema().fields}
    later = ROWS.set_column(0, "id", pa.array([5, 6, 7, 8]))
    store.insert_into_featuregroup(later, "g")
    assert_published(store)
    changed = ROWS.slice(0, 2).set_column(5, "ratio", pa.array([9.0, 9.5], pa.float32()))
    store.insert_into_featuregroup(changed, "g", mode="upsert")
    assert_published(store)
    store.delete_from_featuregroup("g", "id = 6")
    assert_published(store)
    added = ROWS.set_column(0, "id", pa.array([9, 10, 11, 12])).append_column(
        "extra", pa.array([1, 2, 3, 4])
    )
    store.insert_into_featuregroup(added, "g", schema_change="add")
    assert_published(store)
    table = iceberg_table(group.path)
    ids = {field.name: field.field_id for field in table.schema().fields}
    assert ids == {**first_ids, "extra": len(first_ids) + 1}
    matching = table.scan(row_filter="day = 'a b' and id > 4", selected_fields=("id",)).to_arrow()
    assert sorted(matching["id"].to_pylist()) == [5, 7, 9, 11]
    store.compact_featuregroup("g")
    store.insert_into_featuregroup(added, "g", mode="overwrite")
    store.vacuum_featuregroup("g", retain="0s")
    assert_published(store)
    folder = Path(group.path, iceberg.FOLDER, "metadata")
    assert len(list(folder.iterdir())) <= 2 * 3 + 1
    # The protocol of the Delta table is that of other groups.
    log = Path(group.path, "_delta_log", f"{0:020}.json").read_text()
    assert '"minReaderVersion":1,"minWriterVersion":2' in log


@pytest.mark.parametrize("hint", [b"", b"x", b"../../9", b"9" * 5000, "²".encode(), b"-1", b"\xff"])
def test_damaged_hint_is_published_again(empty_store: FeatureStore, hint: bytes) -> None:
    group = empty_store.create_featuregroup(ROWS, "g", primary_key=["id"], iceberg=True)
    folder = Path(group.path, iceberg.FOLDER, "metadata")
    (folder / "version-hint.text").write_bytes(hint)
    (folder / "v².metadata.json").touch()
    assert Path(iceberg.current_metadata(group.path)).exists()
    iceberg.remove_old_metadata(group.path, version=1)
    assert_published(empty_store)


KILLED = """
import os, sys
import featurestore
from featurestore.storage import Storage
written = []
real = Storage.write_atomically
def write(storage, path, data):
    if len(written) == int(sys.argv[2]):
        os._exit(9)
    written.append(path)
    real(storage, path, data)
Storage.write_atomically = write
store = featurestore.connect(sys.argv[1])
store.insert_into_featuregroup([{"id": 2, "day": "x"}], "g")
"""


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_killed_publication_is_repaired_by_next_commit(tmp_path: Path, writes: int) -> None:
    location = str(tmp_path / "store")
    with featurestore.connect(location) as store:
        group = store.create_featuregroup(
            [{"id": 1, "day": "x"}], "g", primary_key=["id"], iceberg=True
        )
    killed = subprocess.run([sys.executable, "-c", KILLED, location, str(writes)], check=False)
    assert killed.returncode == 9
    # The commit is in the Delta table; Iceberg clients read the previous version.
    assert rows_of(iceberg_table(group.path).scan().to_arrow()) == [{"id": 1, "day": "x"}]
    with featurestore.connect(location) as store:
        assert store.get_featuregroup("g").count() == 2
        store.delete_from_featuregroup("g", "id = 1")
        assert_published(store)
        assert iceberg_table(group.path).scan().to_arrow()["id"].to_pylist() == [2]


# DuckDB's extension is on PyPI for some releases of DuckDB, so it has an environment of its own.
DUCKDB_PACKAGES = ["duckdb", "duckdb-extension-avro", "duckdb-extension-iceberg"]
DUCKDB_VERSION = "1.5.5"
COPY_WITH_DUCKDB = """
import pathlib, sys
import duckdb, duckdb_extension_avro, duckdb_extension_iceberg
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
for package in (duckdb_extension_avro, duckdb_extension_iceberg):
    (file,) = pathlib.Path(package.__file__).parent.glob("extensions/*/*.duckdb_extension")
    connection.execute(f"LOAD '{file}'")
connection.execute(f"COPY (FROM iceberg_scan('{sys.argv[1]}') WHERE {sys.argv[3]}) TO '{sys.argv[2]}'")
"""


@pytest.mark.soak
def test_duckdb_reads_each_commit(empty_store: FeatureStore, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = str(environment / "bin" / "python")
    packages = [f"{name}=={DUCKDB_VERSION}" for name in DUCKDB_PACKAGES]
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *packages]
    subprocess.run(pip, check=True)

    def assert_read(condition: str) -> None:
        copy = tmp_path / "rows.parquet"
        folder = f"{group.path}/{iceberg.FOLDER}"
        subprocess.run([python, "-c", COPY_WITH_DUCKDB, folder, copy, condition], check=True)
        stored_rows = store.get_featuregroup("g", dataframe_type="arrow")
        expected = duckdb.from_arrow(stored_rows).filter(condition).to_arrow_table()
        assert rows_of(pq.read_table(copy)) == rows_of(expected)

    store = empty_store
    group = store.create_featuregroup(ROWS, "g", primary_key=["id"], event_time="at", iceberg=True)
    assert_read("true")
    added = ROWS.set_column(0, "id", pa.array([5, 6, 7, 8])).append_column(
        "extra", pa.array([1, 2, 3, 4])
    )
    store.insert_into_featuregroup(added, "g", schema_change="add")
    store.delete_from_featuregroup("g", "id = 6")
    store.insert_into_featuregroup(added.slice(0, 1), "g", mode="upsert")
    store.compact_featuregroup("g")
    assert_read("true")
    assert_read("day = 'a b' AND extra IS NULL")


def test_iceberg_definition_survives_reopening(empty_store: FeatureStore) -> None:
    store = empty_store
    rows = [{"id": 1}]
    store.create_featuregroup(rows, "g", primary_key=["id"], iceberg=True)
    again = store.create_featuregroup(rows, "g", primary_key=["id"], iceberg=True)
    assert (again.version, again.spec.iceberg) == (1, True)
    plain = store.create_featuregroup(rows, "plain", primary_key=["id"])
    assert not Path(plain.path, iceberg.FOLDER).exists()


def test_iceberg_type_without_equivalent_raises() -> None:
    schema = pa.schema([("length", pa.duration("us")), ("id", pa.int64())])
    with pytest.raises(InvalidArgument, match=r"partition_by=\['id'\]"):
        iceberg.check_schema(schema, ["id"])
    with pytest.raises(UnsupportedType, match=r"length \(duration\[us\]\)"):
        iceberg.check_schema(schema)
