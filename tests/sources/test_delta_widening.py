"""Delta tables are read exactly after every change of a type that Delta's protocol allows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import featurestore
from featurestore.plugins.engine import Engine, TimeRange
from featurestore.plugins.source import SourceQuery
from featurestore.storage import storage_for
from featurestore.storage.connections import use_options_for_owner
from featurestore.store import FeatureStore
from featurestore_connectors.duckdb_delta import DuckDBEngine
from tests.deltalog.hand_made import add, commit, metadata, protocol, table_schema
from tests.object_server import SECRET_KEY, ObjectServer
from tests.sources.source_writers import open_source

DOCS = Path(__file__).parents[2] / "docs" / "how-to" / "sources.md"
pytestmark = pytest.mark.filterwarnings("ignore::featurestore.model.times.NaiveTimeWarning")

ARROW_TYPES = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
}
# https://github.com/delta-io/delta/blob/master/PROTOCOL.md, "Type Widening"; decimals for integers
# have at least as many digits before the point as the integers.
WIDENINGS = (
    *(("byte", wide) for wide in ("short", "integer", "long", "decimal(13,3)", "double")),
    *(("short", wide) for wide in ("integer", "long", "decimal(10,0)", "double")),
    *(("integer", wide) for wide in ("long", "decimal(38,28)", "decimal(10,0)", "double")),
    *(("long", wide) for wide in ("decimal(20,0)", "decimal(25,5)")),
    ("float", "double"),
    *(("decimal(10,2)", wide) for wide in ("decimal(12,2)", "decimal(14,6)", "decimal(38,2)")),
    ("date", "timestamp_ntz"),
)
BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
LATE = datetime(2024, 5, 1, 12, 30, 0, 250_001)


def decimal_digits(name: str) -> tuple[int, int] | None:
    digits = re.fullmatch(r"decimal\((\d+),(\d+)\)", name)
    return None if digits is None else (int(digits[1]), int(digits[2]))


def arrow_type(name: str) -> pa.DataType:
    digits = decimal_digits(name)
    return ARROW_TYPES[name] if digits is None else pa.decimal128(*digits)


def extremes(name: str) -> list[Any]:
    """Return the minimum and maximum of a type, or values that need all its digits."""
    if name in BITS:
        return [-(2 ** (BITS[name] - 1)), 2 ** (BITS[name] - 1) - 1]
    digits = decimal_digits(name)
    if digits is not None:
        largest = f"{'9' * (digits[0] - digits[1])}.{'9' * digits[1]}"
        return [Decimal(f"-{largest}"), Decimal(largest)]
    # Half of a power of two is exact in a text.
    numbers = {"float": [-0.5, 2.0**100], "double": [0.1, -5e-324]}
    times = {"date": [date(1969, 12, 31), date(2024, 5, 1)]}
    return {**numbers, **times, "timestamp_ntz": [datetime(1969, 12, 31, 23, 59), LATE]}[name]


def widened(value: Any, name: str) -> Any:
    """Return a value as a value of a wider type, as the store returns it."""
    digits = decimal_digits(name)
    if value is None:
        return None
    if digits is not None:
        return Decimal(value)
    if name == "timestamp_ntz" and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC)
    return float(value) if name in ("float", "double") else value


def fields(types: list[str], narrow: list[str]) -> list[dict[str, Any]]:
    """Return the columns of a table; ``narrow`` are their earlier types."""
    columns = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]
    for number, (dtype, earlier) in enumerate(zip(types, narrow, strict=True)):
        changes = [{"fromType": earlier, "toType": dtype}]
        column_metadata = {"delta.typeChanges": changes} if dtype != earlier else {}
        column = {"name": f"c{number}", "type": dtype, "nullable": True}
        columns.append({**column, "metadata": column_metadata})
    return columns


def rows_of(types: list[str], first: int) -> list[dict[str, Any]]:
    """Return a row of nulls, and rows with the extremes of all types."""
    rows: list[dict[str, Any]] = [{f"c{number}": None for number in range(len(types))}]
    for index in range(2):
        rows.append({f"c{number}": extremes(name)[index] for number, name in enumerate(types)})
    return [{"id": first + offset, **row} for offset, row in enumerate(rows)]


def write_table(path: Path, *, partitioned: bool) -> list[list[dict[str, Any]]]:
    """Write a table whose columns are widened in version 2; return the rows of each version."""
    narrow, wide = (list(types) for types in zip(*WIDENINGS, strict=True))
    names = tuple(f"c{number}" for number in range(len(wide)))
    partition_by = names if partitioned else ()
    versions: list[list[dict[str, Any]]] = []
    stored: list[dict[str, Any]] = []
    for version, types in enumerate((narrow, narrow, wide, wide)):
        schema = table_schema(fields(types, narrow))
        actions = [protocol("typeWidening", "timestampNtz")] if version == 0 else []
        if version in (0, 2):
            actions.append(metadata(schema, partition_by=partition_by))
        else:
            rows = rows_of(types, first=version * 10)
            stored += rows
            actions += add_rows(path, types, rows, partitioned=partitioned)
        commit(path, version, *actions)
        versions.append([expected_row(row, types) for row in stored])
    return versions


def add_rows(
    path: Path, types: list[str], rows: list[dict[str, Any]], *, partitioned: bool
) -> list[dict[str, Any]]:
    """Write rows to a file, or each to a file with partition values; return the add actions."""
    ids = pa.field("id", pa.int64())
    if not partitioned:
        columns = [pa.field(f"c{number}", arrow_type(name)) for number, name in enumerate(types)]
        table = pa.Table.from_pylist(rows, pa.schema([ids, *columns]))
        return [add(path, f"part-{rows[0]['id']}.parquet", table)]
    actions = []
    for row in rows:
        table = pa.table({"id": pa.array([row["id"]], pa.int64())})
        texts = {
            name: None if value is None else str(value)
            for name, value in row.items()
            if name != "id"
        }
        actions.append(add(path, f"part-{row['id']}.parquet", table, partitionValues=texts))
    return actions


def expected_row(row: dict[str, Any], types: list[str]) -> dict[str, Any]:
    names = ["long", *types]
    return {
        column: widened(value, name)
        for (column, value), name in zip(row.items(), names, strict=True)
    }


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.sort_by("id").to_pylist()
    return rows


def check_versions(
    store: FeatureStore, engine: Engine, path: Path, versions: Mapping[int, list[dict[str, Any]]]
) -> None:
    """Compare versions, as the source and as the engine read them, with the expected rows."""
    for version, expected in versions.items():
        assert sorted_rows(store.read_source(path.name, at=version).to_arrow()) == expected
        frame = engine.read_table(str(path), version=version)
        assert sorted_rows(engine.stream(frame).read_all()) == expected


def test_documented_widenings_are_those_of_delta() -> None:
    text = DOCS.read_text(encoding="utf-8").split("| type of the file | types of the table |")[1]
    documented = set()
    for row in text.split("\n\n")[0].splitlines()[2:]:
        narrow, *wider = re.findall(r"`(\w+)`", row)
        documented |= {(narrow, wide) for wide in wider}
    tested = {tuple(re.sub(r"\(.*\)", "", name) for name in pair) for pair in WIDENINGS}
    shown = {tuple(name.replace("integer", "int") for name in pair) for pair in tested}
    assert documented == shown


@pytest.mark.parametrize("partitioned", [False, True])
def test_widened_columns_are_exact_at_every_version(
    empty_store: FeatureStore, engine: DuckDBEngine, tmp_path: Path, partitioned: bool
) -> None:
    versions = write_table(tmp_path / "lake", partitioned=partitioned)
    empty_store.add_source("lake", f"delta+{tmp_path}/lake")
    check_versions(empty_store, engine, tmp_path / "lake", dict(enumerate(versions)))


@pytest.mark.parametrize("partitioned", [False, True])
def test_windows_of_widened_dates_have_their_rows(tmp_path: Path, partitioned: bool) -> None:
    *_, expected = write_table(tmp_path / "lake", partitioned=partitioned)
    column = f"c{WIDENINGS.index(('date', 'timestamp_ntz'))}"
    midnight, late = datetime(2024, 5, 1, tzinfo=UTC), LATE.replace(tzinfo=UTC)
    snapshot = open_source("delta", f"delta+{tmp_path}/lake").snapshot()
    for closed, times in (("left", {midnight}), ("right", {late})):
        query = SourceQuery(window=TimeRange(column, midnight, late, closed))
        rows = sorted_rows(snapshot.read(query).read_all())
        assert rows == [row for row in expected if row[column] in times]
    snapshot.close()


def test_widened_columns_in_a_bucket_are_exact(
    empty_store: FeatureStore,
    object_server: ObjectServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = write_table(tmp_path / "lake", partitioned=False)
    bucket = object_server.new_bucket("widened-tables")
    location = use_options_for_owner(bucket, "writer", object_server.options)
    for path in (tmp_path / "lake").rglob("*"):
        if path.is_file():
            storage_for(location).upload_all(
                [(str(path), f"{location}/lake/{path.relative_to(tmp_path / 'lake')}")]
            )
    monkeypatch.setenv("LAKE_SECRET", SECRET_KEY)
    options = {name: text for name, text in object_server.options.items() if "secret" not in name}
    empty_store.add_source(
        "lake", f"delta+{bucket}/lake", secret="env:LAKE_SECRET", options=options
    )
    for version, expected in enumerate(versions):
        assert sorted_rows(empty_store.read_source("lake", at=version).to_arrow()) == expected


@pytest.mark.spark
@pytest.mark.parametrize("partitioned", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_widened_columns_are_exact_on_spark(
    empty_store: FeatureStore, spark_engine: Engine, tmp_path: Path, partitioned: bool
) -> None:
    versions = write_table(tmp_path / "lake", partitioned=partitioned)
    empty_store.add_source("lake", f"delta+{tmp_path}/lake")
    with featurestore.connect(empty_store.location, engine="spark") as store:
        # Versions without new rows take as long as the others on Spark.
        check_versions(store, spark_engine, tmp_path / "lake", {1: versions[1], 3: versions[3]})


COLUMNS = ("id", "s", "l", "map_entries(m)")
NESTED = "s struct<n: int, t: date>, l array<decimal(4,1)>, m map<string, short>"
FIRST = "named_struct('n', id, 't', date'2024-05-01'), array(1.5, null), map('k', id)"
LAST = (
    "named_struct('n', 4.5, 't', timestamp_ntz'2024-05-01 12:30:00'), array(4.555), map('k', 4e9)"
)


@pytest.mark.spark
@pytest.mark.parametrize(
    "mapping", ["name", *(pytest.param(mode, marks=pytest.mark.soak) for mode in ("none", "id"))]
)
def test_widened_tables_of_spark_equal_spark_at_every_version(
    spark: Any, empty_store: FeatureStore, tmp_path: Path, mapping: str
) -> None:
    """Nested columns, deleted rows of narrower files, and mapped names, as Spark writes them."""
    table = f"delta.`{tmp_path}/lake`"
    properties = (
        "'delta.enableTypeWidening' = 'true', 'delta.feature.timestampNtz' = 'supported', "
        f"'delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = '{mapping}'"
    )
    for statement in (
        f"create table {table} (id int, {NESTED}) using delta tblproperties ({properties})",
        f"insert into {table} select int(id), {FIRST} from range(1, 5, 1, 1)",
        f"alter table {table} alter column s.n type decimal(11,1)",
        f"alter table {table} alter column s.t type timestamp_ntz",
        f"alter table {table} alter column l.element type decimal(10,3)",
        f"alter table {table} alter column m.value type decimal(10,0)",
        f"insert into {table} select 9, {LAST}",
        f"delete from {table} where id = 2",
    ):
        spark.sql(statement)
    empty_store.add_source("lake", f"delta+{tmp_path}/lake")
    for version in range(8):
        frame = spark.read.format("delta").option("versionAsOf", version)
        rows = frame.load(f"{tmp_path}/lake").sort("id").selectExpr(*COLUMNS).collect()
        actual = sorted_rows(empty_store.read_source("lake", at=version).to_arrow())
        assert plain(actual) == plain(rows)


def plain(value: Any) -> Any:
    """Return a value of Spark or of the store with lists instead of structs."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    members = list(value.values()) if isinstance(value, dict) else value
    return [plain(member) for member in members] if isinstance(members, list | tuple) else members
