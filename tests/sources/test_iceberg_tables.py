"""Iceberg tables: snapshots, columns by id, deleted rows and refusals."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyiceberg")
from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    SourceError,
    SourceTableNotFound,
    SourceUnavailable,
    UnsupportedType,
)
from featurestore.plugins.engine import TimeRange
from featurestore.plugins.source import SourceQuery
from featurestore.store import FeatureStore
from featurestore_connectors.sources import locations
from tests.http_server import serve
from tests.sources.source_writers import iceberg_append, iceberg_table, open_source

ORDERS = SourceQuery(table="sales.orders")
TIME = pa.timestamp("us", tz="UTC")
START = datetime(2024, 1, 1, tzinfo=UTC)


def orders(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    times = [START + timedelta(hours=number) for number in numbers]
    return pa.table(
        {
            "id": pa.array(numbers, pa.int32()),
            "customer": list(map(str, numbers)),
            "at": pa.array(times, TIME),
        }
    )


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """A table of two files of ten rows, and two snapshots."""
    new_table = iceberg_table(tmp_path, orders(0, 1).schema)
    iceberg_append(new_table, orders(0, 10), tmp_path / "lake" / "a.parquet")
    iceberg_append(new_table, orders(10, 10), tmp_path / "lake" / "b.parquet")
    return new_table


def uri(directory: Path) -> str:
    return f"iceberg+sqlite:///{directory}/catalog.db"


def read(directory: Path, query: SourceQuery = ORDERS, *, version: Any = None) -> pa.Table:
    snapshot = open_source(
        "iceberg", uri(directory), catalog="shop", folder=str(directory)
    ).snapshot(version)
    try:
        return snapshot.read(query).read_all()
    finally:
        snapshot.close()


def test_iceberg_snapshot_is_read_by_id_or_time(
    empty_store: FeatureStore, table: Any, tmp_path: Path
) -> None:
    first, second = table.metadata.snapshots
    assert read(tmp_path, version=first.snapshot_id).num_rows == 10
    when = datetime.fromtimestamp(first.timestamp_ms / 1000, UTC)
    assert read(tmp_path, version=when).num_rows == 10
    empty_store.add_source(
        "lake", uri(tmp_path), options={"catalog": "shop", "folder": str(tmp_path)}
    )
    frame = empty_store.read_source("lake", table="sales.orders", at=first.snapshot_id)
    group = empty_store.create_featuregroup(frame, "orders", primary_key="id")
    (source_read,) = group.history()[0].inputs.values()
    assert source_read["snapshot"] == f"sales.orders snapshot {first.snapshot_id}"
    assert empty_store.check_source("lake").ok
    latest = empty_store.read_source("lake", table="sales.orders")
    assert latest.count() == 20
    assert latest.reads[0].snapshot == f"sales.orders snapshot {second.snapshot_id}"


def test_iceberg_branches_tags_and_ids_are_versions_as_text(
    empty_store: FeatureStore, table: Any, tmp_path: Path
) -> None:
    """A text is a branch or tag, else a snapshot id, else a time."""
    first, second = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)
    first_time = datetime.fromtimestamp(table.metadata.snapshots[0].timestamp_ms / 1000, UTC)
    names = {"audit": first, "2024-01-31": first, "20240131": first, "newest run": second}
    with table.manage_snapshots() as changes:
        for name, snapshot_id in names.items():
            changes.create_tag(snapshot_id, name)
        changes.create_branch(first, "experiment/a")
    with table.update_schema() as columns:
        columns.rename_column("customer", "who")
    source = {"catalog": "shop", "folder": str(tmp_path)}
    empty_store.add_source("lake", uri(tmp_path), options=source)

    def version(at: Any) -> tuple[int, str]:
        rows = empty_store.read_source("lake", table="sales.orders", at=at).to_arrow()
        return rows.num_rows, rows.schema.names[1]

    # A branch has the columns of the table, a tag and a snapshot have those of their time.
    expected: dict[Any, tuple[int, str]] = {
        name: (10 if snapshot_id == first else 20, "customer")
        for name, snapshot_id in names.items()
    }
    expected |= {"main": (20, "who"), "experiment/a": (10, "who")}
    expected |= {str(first): (10, "customer"), first: (10, "customer"), 20240131: (10, "customer")}
    expected[first_time.isoformat()] = (10, "customer")
    assert {at: version(at) for at in expected} == expected
    frame = empty_store.read_source("lake", table="sales.orders", at="audit")
    assert frame.count() == 10
    assert frame.reads[0].snapshot == f"sales.orders snapshot {first}"
    for unknown in ("audits", str(first + 1), "1999-01-01T00:00:00Z"):
        with pytest.raises(SourceTableNotFound, match=r"'sales\.orders' has no"):
            version(unknown)
    with pytest.raises(SourceTableNotFound, match=r"Available: .*'audit'") as refused:
        version("audits")
    assert refused.value.hint == "did you mean at='audit'?"
    # A source without names takes no other text than before.
    empty_store.add_source("files", str(tmp_path))
    with pytest.raises(InvalidArgument, match="at='audit'"):
        empty_store.read_source("files", at="audit")


@pytest.mark.parametrize("answer", [403, 404])
def test_unreachable_iceberg_files_are_errors_of_their_storage(tmp_path: Path, answer: int) -> None:
    """DuckDB reports an exception of Python code as a text with its traceback."""

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer)
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *arguments: object) -> None:
            pass

    table = iceberg_table(tmp_path, orders(0, 1).schema)
    with serve(Refusing) as port:
        endpoint = f"http://127.0.0.1:{port}"
        with table.transaction() as changes:
            changes.set_properties({"s3.endpoint": endpoint, "s3.region": "us-east-1"})
        iceberg_append(
            table, orders(0, 1), tmp_path / "lake" / "a.parquet", location="s3://lake/a.parquet"
        )
        kind = SourceError if answer == 404 else SourceUnavailable
        reason = "a file of the table no longer exists" if answer == 404 else f"status {answer}"
        with pytest.raises(kind, match=reason) as refused:
            read(tmp_path)
    text = str(refused.value)
    assert "'s3://lake/a.parquet'" in text
    for word in ("Traceback", ".py", "LINE 1", "parquet_schema"):
        assert word not in text


def test_iceberg_columns_are_resolved_by_ids(table: Any, tmp_path: Path) -> None:
    with table.update_schema() as changes:
        from pyiceberg.types import DoubleType, LongType

        changes.rename_column("customer", "who")
        changes.update_column("id", LongType())
        changes.add_column("total", DoubleType())
    actual = read(tmp_path)
    assert actual.schema.names == ["id", "who", "at", "total"]
    assert actual.schema.field("id").type == pa.int64()
    assert sorted(map(int, actual.column("who").to_pylist())) == list(range(20))
    assert actual.column("total").null_count == 20
    old = read(tmp_path, version=table.metadata.snapshots[0].snapshot_id)
    assert old.schema.names == ["id", "customer", "at"]


def test_iceberg_position_deletes_are_applied(table: Any, tmp_path: Path) -> None:
    delete = tmp_path / "lake" / "delete.parquet"
    with duckdb.connect() as database:
        database.execute(
            f"copy (select 'file://{tmp_path}/lake/a.parquet' as file_path, unnest([0, 3]) as pos) "
            f"to '{delete}' (format parquet, field_ids {{file_path: 2147483546, pos: 2147483545}})"
        )
    append_deletes(table, delete, rows=2)
    ids = read(tmp_path).column("id").to_pylist()
    assert sorted(ids) == [number for number in range(20) if number not in (0, 3)]
    window = TimeRange("at", START + timedelta(hours=2), START + timedelta(hours=12))
    cut = read(tmp_path, SourceQuery(table="sales.orders", columns=("id",), window=window))
    assert sorted(cut.column("id").to_pylist()) == [2, *range(4, 12)]
    assert read(tmp_path, version=table.metadata.snapshots[1].snapshot_id).num_rows == 20


def append_deletes(table: Any, path: Path, *, rows: int) -> None:
    """Commit a file of position deletes, like other writers."""
    from pyiceberg.manifest import (
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestContent,
        ManifestEntry,
        ManifestEntryStatus,
        ManifestWriterV2,
    )
    from pyiceberg.table.update.snapshot import _FastAppendFiles
    from pyiceberg.typedef import Record

    class DeletesWriter(ManifestWriterV2):
        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows,
        file_size_in_bytes=path.stat().st_size,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={},
        upper_bounds={},
    )

    class Deletes(_FastAppendFiles):
        def _manifests(self) -> list[Any]:
            output = self.new_manifest_output()
            with DeletesWriter(
                self._transaction.table_metadata.spec(),
                self._transaction.table_metadata.schema(),
                output,
                self._snapshot_id,
                "deflate",
            ) as writer:
                writer.add(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=file,
                    )
                )
            return [writer.to_manifest_file(), *self._existing_manifests()]

    from pyiceberg.table.snapshots import Operation

    with table.transaction() as changes:
        Deletes(Operation.DELETE, changes, table.io).commit()


def test_iceberg_metadata_file_is_a_source(table: Any, tmp_path: Path) -> None:
    path = table.metadata_location.removeprefix("file://")
    source = open_source("iceberg", f"iceberg+{path}", folder=str(tmp_path))
    assert source.snapshot().read(SourceQuery()).read_all().num_rows == 20
    with pytest.raises(FeatureStoreError, match="no table="):
        source.snapshot().schema(ORDERS)
    # A table of another person names files of this machine.
    outside = open_source("iceberg", f"iceberg+{path}")
    with pytest.raises(SourceError, match="local path outside of the folder"):
        outside.snapshot().read(SourceQuery()).read_all()


def test_sql_catalog_names_metadata_files_below_folder_only(table: Any, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside.metadata.json"
    outside.write_bytes(Path(table.metadata_location.removeprefix("file://")).read_bytes())
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as database, database:
        database.execute("update iceberg_tables set metadata_location = ?", (f"file://{outside}",))
    with pytest.raises(SourceError, match=r"'sales\.orders': the location .*outside of the folder"):
        read(tmp_path)


@given(
    folder=st.sampled_from(["/data", "/data/"]),
    name=st.lists(st.sampled_from(["a", "..", ".", "", "data2", "%2e%2e"]), max_size=5),
    prefix=st.sampled_from(["", "file:", "file://"]),
)
def test_catalogs_name_local_files_below_folder_only(
    folder: str, name: list[str], prefix: str
) -> None:
    """The answer of a catalog is data: it chooses no file of this machine."""
    path = "/" + "/".join(["data", *name])

    def locate(chosen: str | None) -> str:
        return locations.catalog_path(
            f"{prefix}{path}", subject="Source 'lake'", settings=lambda *_: {}, folder=chosen
        )

    if (os.path.normpath(path) + "/").startswith("/data/"):
        assert os.path.normpath(locate(folder)) == os.path.normpath(path)
    else:
        with pytest.raises(SourceError, match="outside of the folder"):
            locate(folder)
    with pytest.raises(SourceError, match="options="):
        locate(None)


def test_missing_iceberg_file_raises(table: Any, tmp_path: Path) -> None:
    (tmp_path / "lake" / "a.parquet").unlink()
    with pytest.raises(SourceError, match="no longer exists"):
        read(tmp_path)


def test_unsupported_iceberg_features_are_refused(table: Any, tmp_path: Path) -> None:
    with table.update_schema() as changes:
        from pyiceberg.types import LongType, MapType, StringType

        changes.add_column("tags", MapType(90, StringType(), 91, LongType()))
    with pytest.raises(UnsupportedType, match=r"'tags' \(map<string, long>\)"):
        read(tmp_path)
    assert read(tmp_path, SourceQuery(table="sales.orders", columns=("id",))).num_rows == 20
    with table.update_schema() as changes:
        changes.delete_column("tags")
        changes.add_column("CUSTOMER", StringType())
    with pytest.raises(UnsupportedType, match=r"'CUSTOMER' \(a name that differs"):
        read(tmp_path)
    query = SourceQuery(table="sales.orders", columns=("CUSTOMER",))
    assert read(tmp_path, query).to_pydict() == {"CUSTOMER": [None] * 20}
    with pytest.raises(SourceTableNotFound, match=r"unknown table 'sales.order'.*'sales.orders'"):
        read(tmp_path, SourceQuery(table="sales.order"))
    expired_id = table.metadata.snapshots[0].snapshot_id
    table.maintenance.expire_snapshots().by_id(expired_id).commit()
    with pytest.raises(SourceTableNotFound, match="may have expired"):
        read(tmp_path, version=expired_id)
    with pytest.raises(SourceUnavailable, match="does not exist"):
        read(tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


class Planted:
    """A file reader that a foreign table names."""

    instance_count = 0

    def __init__(self, properties: Any) -> None:
        type(self).instance_count += 1


def test_iceberg_properties_load_no_code(
    table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = f"{__name__}.{Planted.__name__}"
    path = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    path.write_text(json.dumps({**metadata, "properties": {"py-io-impl": planted}}))
    configured = {"catalog": {"shop": {"py-io-impl": planted, "token": "tr0ub4"}}}
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG.config", configured)
    assert read(tmp_path).num_rows == 20
    snapshot = open_source("iceberg", f"iceberg+{path}", folder=str(tmp_path)).snapshot()
    assert snapshot.read(SourceQuery()).read_all().num_rows == 20
    assert Planted.instance_count == 0


@pytest.mark.parametrize(
    "uri",
    ["hive://host", "thrift://host:9083", "iceberg+thrift://host:9083", "iceberg+hive://host"],
)
def test_hive_metastore_is_refused_with_alternatives(empty_store: FeatureStore, uri: str) -> None:
    with pytest.raises(InvalidArgument, match="Hive Metastore is not supported") as refused:
        empty_store.add_source("lake", uri)
    assert "iceberg+https://host" in str(refused.value)
    assert empty_store.get_sources() == []
