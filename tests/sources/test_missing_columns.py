"""Columns that data files lack: the partition's value, the default, null, or an error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyarrow import parquet

pytest.importorskip("pyiceberg")
from featurestore.errors import FeatureStoreError, InvalidSourceFile, UnsupportedType
from featurestore.plugins.engine import TimeRange
from featurestore.plugins.source import SourceQuery
from tests.deltalog.hand_made import add, commit, metadata, protocol, table_schema
from tests.sources.source_writers import iceberg_append, open_source

TABLE = SourceQuery(table="sales.orders")
DAY = 86_400_000_000


@dataclass(frozen=True)
class Value:
    """A value as Python and the source have it, as manifests have it, and as JSON has it."""

    value: object
    stored: object
    text: object


def same(value: object) -> Value:
    return Value(value, value, value)


UUIDS = UUID(int=5), UUID(int=2**127)
# Two values of each type. Values of the last two types are never stored in files by this test.
VALUES: Mapping[str, tuple[Value, Value]] = {
    "boolean": (same(False), same(True)),
    "int": (same(-7), same(2**31 - 1)),
    "long": (same(2**53 + 1), same(-(2**63))),
    "float": (same(0.5), same(-0.25)),
    "double": (same(0.1), same(1e300)),
    "date": (Value(date(1969, 12, 31), -1, "1969-12-31"), Value(date(2024, 2, 29), 19782, "2024-02-29")),
    "timestamp": (
        Value(datetime(1970, 1, 1, 0, 0, 0, 1, UTC), 1, "1970-01-01T00:00:00.000001"),
        Value(datetime(1969, 12, 31, 12, tzinfo=UTC), -DAY // 2, "1969-12-31T12:00:00.000000"),
    ),
    "timestamptz": (
        Value(datetime(1970, 1, 2, tzinfo=UTC), DAY, "1970-01-02T00:00:00.000000+00:00"),
        Value(datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC), 10**15, "2001-09-09T01:46:40.000000+00:00"),
    ),
    "string": (same("a'b[1]*%2F"), same("")),
    "binary": (Value(b"\x00\xff'", b"\x00\xff'", "00ff27"), Value(b"", b"", "")),
    "decimal(20,3)": (
        Value(Decimal("-12345678901234567.891"), Decimal("-12345678901234567.891"), "-12345678901234567.891"),
        Value(Decimal("1000.000"), Decimal("1000.000"), "1000.000"),
    ),
    "uuid": (Value(str(UUIDS[0]), UUIDS[0], str(UUIDS[0])), Value(str(UUIDS[1]), UUIDS[1], str(UUIDS[1]))),
    "fixed[3]": (Value(b"abc", b"abc", "616263"), Value(b"\x00'\xff", b"\x00'\xff", "0027ff")),
}  # fmt: skip
ARROW = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "date": pa.date32(), "timestamp": pa.timestamp("us"), "timestamptz": pa.timestamp("us", "UTC"),
    "string": pa.string(), "binary": pa.binary(), "decimal(20,3)": pa.decimal128(20, 3),
}  # fmt: skip


def create_table(directory: Path, fields: list[dict[str, Any]], partition_by: list[str]) -> Any:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform

    location = f"file://{directory}/lake"
    catalog = load_catalog(
        "shop", type="sql", uri=f"sqlite:///{directory}/catalog.db", warehouse=location
    )
    catalog.create_namespace_if_not_exists("sales")
    numbered = [
        {"id": number, "required": False, **each} for number, each in enumerate(fields, start=1)
    ]
    ids = {field["name"]: field["id"] for field in numbered}
    partitions = [
        PartitionField(source_id=ids[name], field_id=1000 + ids[name], transform=IdentityTransform(), name=name)
        for name in partition_by
    ]  # fmt: skip
    schema = Schema.model_validate({"type": "struct", "fields": numbered})
    return catalog.create_table("sales.orders", schema=schema, partition_spec=PartitionSpec(*partitions))  # fmt: skip


def set_defaults(table: Any, defaults: Mapping[str, object]) -> None:
    """Add ``initial-default`` to fields, as writers of format version 3 do."""
    path = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    for field in metadata["schemas"][-1]["fields"]:
        if field["name"] in defaults:
            field["initial-default"] = defaults[field["name"]]
    path.write_text(json.dumps(metadata))


def read(directory: Path, query: SourceQuery = TABLE) -> list[dict[str, Any]]:
    source = open_source(
        "iceberg",
        f"iceberg+sqlite:///{directory}/catalog.db",
        catalog="shop",
        folder=str(directory),
    )
    snapshot = source.snapshot()
    try:
        reader = snapshot.read(query)
        assert reader.schema == snapshot.schema(query)
        return sorted(reader.read_all().to_pylist(), key=lambda row: row["id"])
    finally:
        snapshot.close()


@pytest.mark.parametrize("has_ids", [True, False])
def test_iceberg_columns_that_files_lack_follow_the_specification(
    tmp_path: Path, has_ids: bool
) -> None:
    """Each file stores other columns; some are partitions, have defaults, or neither."""
    random = Random(int(has_ids))
    names = {
        f"{role}{number}": (role, dtype)
        for number, dtype in enumerate(VALUES)
        for role in "pdn"
        if role != "p" or dtype != "double"
    }
    fields = [{"name": name, "type": dtype} for name, (_, dtype) in names.items()]
    partition_by = [name for name in names if name.startswith("p")]
    table = create_table(
        tmp_path, [{"name": "id", "type": "long", "required": True}, *fields], partition_by
    )
    defaults = {name: VALUES[dtype][1] for name, (role, dtype) in names.items() if role == "d"}
    if not has_ids:
        # A column of another name in the files, and nested names that equal those of columns.
        mapping = [
            {"field-id": each.field_id, "names": ["unused", each.name]}
            for each in table.schema().fields
        ]
        with table.transaction() as changes:
            changes.set_properties({"schema.name-mapping.default": json.dumps(mapping)})
    expected = []
    for number in range(4):
        partition = {name: random.choice([None, *VALUES[names[name][1]]]) for name in partition_by}
        # The first file has no columns but the key, the second one has all.
        share = {0: 0.0, 1: 1.0}.get(number, 0.5)
        stored = [
            name for name, (_, dtype) in names.items() if dtype in ARROW and random.random() < share
        ]
        values = {
            name: [random.choice([None, *VALUES[names[name][1]]]) for _ in range(2)]
            for name in stored
        }
        columns = {"id": pa.array([2 * number, 2 * number + 1], pa.int64())}
        for name, column in values.items():
            column_values = [value and value.value for value in column]
            columns[name] = pa.array(column_values, pa.timestamp("us", "UTC")).cast(pa.timestamp("us")) if (
                names[name][1] == "timestamp"
            ) else pa.array(column_values, ARROW[names[name][1]])  # fmt: skip
        iceberg_append(
            table, pa.table(columns), tmp_path / "lake" / f"{number}.parquet", has_ids=has_ids,
            partition=[value and value.stored for value in partition.values()],
        )  # fmt: skip
        for position in range(2):
            row: dict[str, object] = {"id": 2 * number + position}
            for name in names:
                value = partition.get(name, defaults.get(name))
                if name in values:
                    value = values[name][position]
                row[name] = value and value.value
            expected.append(row)
    set_defaults(table, {name: value.text for name, value in defaults.items()})
    assert read(tmp_path) == expected
    # The order and the number of the requested columns do not matter.
    chosen = ("id", *random.sample(list(names), 5))
    assert read(tmp_path, SourceQuery(table="sales.orders", columns=chosen)) == [
        {name: row[name] for name in chosen} for row in expected
    ]


def test_required_iceberg_column_without_value_is_refused_by_file(tmp_path: Path) -> None:
    fields = [{"name": name, "type": "long", "required": True} for name in ("id", "day", "total")]
    table = create_table(tmp_path, [*fields, {"name": "at", "type": "timestamptz"}], ["at"])
    stored = {
        "whole.parquet": {"id": [1], "day": [1], "total": [1]},
        "no day.parquet": {"id": [2], "total": [2]},
    }
    for number, (name, columns) in enumerate(stored.items()):
        path = tmp_path / "lake" / name
        iceberg_append(table, pa.table(columns), path, partition=[number * DAY])
    with pytest.raises(InvalidSourceFile, match=r"no day\.parquet lacks the required column 'day'"):
        read(tmp_path)
    # Neither other columns nor files of other partitions need it.
    query = SourceQuery(table="sales.orders", columns=("id", "total"))
    assert read(tmp_path, query) == [{"id": 1, "total": 1}, {"id": 2, "total": 2}]
    start = datetime(1970, 1, 1, tzinfo=UTC)
    first_day = TimeRange("at", start, start.replace(hour=12))
    first_row = {"id": 1, "day": 1, "total": 1, "at": start}
    assert read(tmp_path, replace(TABLE, window=first_day)) == [first_row]
    set_defaults(table, {"day": 7})
    assert [row["day"] for row in read(tmp_path)] == [1, 7]


def test_double_partitions_of_iceberg_are_exact_or_refused(tmp_path: Path) -> None:
    """The manifest reader of pyiceberg 0.12 returns doubles as floats."""
    fields = [{"name": "id", "type": "long"}, {"name": "ratio", "type": "double"}]
    table = create_table(tmp_path, fields, ["ratio"])
    iceberg_append(table, pa.table({"id": [1]}), tmp_path / "lake" / "a.parquet", partition=[0.1])
    try:
        rows: object = read(tmp_path)
    except UnsupportedType as error:
        rows = str(error)
    assert rows == [{"id": 1, "ratio": 0.1}] or "the column 'ratio' is only in" in str(rows)
    assert read(tmp_path, replace(TABLE, columns=("id",))) == [{"id": 1}]


def test_added_hive_files_of_iceberg_have_their_columns_by_name(tmp_path: Path) -> None:
    """``add_files`` of pyiceberg adds Parquet files without field ids, and a name mapping."""
    fields = [{"name": "id", "type": "long"}, {"name": "total", "type": "double"}]
    table = create_table(tmp_path, fields, [])
    rows = pa.table({"total": [0.5, None], "points": [[{"id": 9}], []], "id": [1, 2]})
    (tmp_path / "hive").mkdir()
    parquet.write_table(rows.drop_columns("points"), tmp_path / "hive" / "a.parquet")
    table.add_files([f"file://{tmp_path}/hive/a.parquet"])
    # A later column of the files with a nested field of the same name.
    iceberg_append(table, rows, tmp_path / "hive" / "b.parquet", has_ids=False)
    with table.update_schema() as changes:
        changes.rename_column("total", "amount")
    expected = [{"id": 1, "amount": 0.5}, {"id": 2, "amount": None}]
    assert read(tmp_path) == [row for row in expected for _ in range(2)]
    with table.transaction() as changes:
        changes.remove_properties("schema.name-mapping.default")
    with pytest.raises(FeatureStoreError, match=r"[ab]\.parquet has no Iceberg field ids"):
        read(tmp_path)


@pytest.mark.parametrize("mode", ["none", "name", "id"])
def test_delta_columns_that_files_lack_are_null_or_refused(tmp_path: Path, mode: str) -> None:
    """The kernel returns nulls; a required column without values is refused by its file."""

    def field(number: int, name: str, *, nullable: bool = True) -> dict[str, Any]:
        identifiers = {"id": number, "physicalName": f"col-{number}"}
        mapped = {f"delta.columnMapping.{key}": value for key, value in identifiers.items()}
        mapped_fields = {} if mode == "none" else mapped
        return {"name": name, "type": "long", "nullable": nullable, "metadata": mapped_fields}

    def stored(**columns: list[int]) -> pa.Table:
        numbers = {"id": 1, "total": 2, "day": 3, "share": 4}
        fields = []
        for name in columns:
            file_name = name if mode == "none" else f"col-{numbers[name]}"
            ids = {"PARQUET:field_id": str(numbers[name])}
            fields.append(pa.field(file_name, pa.int64(), metadata=ids))
        return pa.table(list(columns.values()), schema=pa.schema(fields))

    def rows(*fields: dict[str, Any]) -> list[dict[str, Any]]:
        table = tmp_path / f"table {len(list(tmp_path.iterdir()))}"
        day = "day" if mode == "none" else "col-3"
        commit(
            table,
            0,
            protocol() if mode == "none" else protocol("columnMapping"),
            metadata(
                table_schema(list(fields)),
                partition_by=("day",),
                delta__columnMapping__mode=mode,
            ),
            add(table, "a.parquet", stored(id=[1], total=[5]), partitionValues={day: "7"}),
            add(table, "b.parquet", stored(id=[2]), partitionValues={day: None}),
        )
        snapshot = open_source("delta", f"delta+{table}").snapshot()
        return sorted(
            snapshot.read(SourceQuery()).read_all().to_pylist(), key=lambda row: row["id"]
        )

    identifier, total, day = field(1, "id", nullable=False), field(2, "total"), field(3, "day")
    first, second = {"id": 1, "total": 5, "day": 7}, {"id": 2, "total": None, "day": None}
    assert rows(identifier, total, day, field(4, "share")) == [
        {**first, "share": None},
        {**second, "share": None},
    ]
    for name, fields in {
        "total": (identifier, field(2, "total", nullable=False), day),
        "day": (identifier, total, field(3, "day", nullable=False)),
    }.items():
        with pytest.raises(InvalidSourceFile, match=rf"b\.parquet lacks the .* column '{name}'"):
            rows(*fields)


def test_hive_folders_have_partition_values_and_refuse_missing_columns(tmp_path: Path) -> None:
    stored = {
        "day=2024-01-31/a": {"id": [1], "total": [5]},
        "day=__HIVE_DEFAULT_PARTITION__/b": {"id": [2]},
    }
    for name, columns in stored.items():
        (tmp_path / name).parent.mkdir(parents=True)
        parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    snapshot = open_source("file", str(tmp_path)).snapshot()
    with pytest.raises(InvalidSourceFile, match="lacks the columns 'total'"):
        snapshot.read(SourceQuery())
    declared = open_source("file", str(tmp_path), dtypes='{"total": "int64"}').snapshot()
    rows = declared.read(SourceQuery()).read_all().to_pylist()
    assert sorted(rows, key=lambda row: row["id"]) == [
        {"id": 1, "total": 5, "day": date(2024, 1, 31)},
        {"id": 2, "total": None, "day": None},
    ]
