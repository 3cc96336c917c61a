"""Conformance suite for engines, with values of every type.

A test class inherits ``EngineConformance`` and provides the fixture ``engine``:

    @pytest.fixture(scope="module")
    def engine():
        engine = MyEngine()
        yield engine
        engine.close()

    class TestMyEngine(EngineConformance):
        pass

``CrossEngineConformance`` requires a second engine, ``other``: each engine reads, appends to and
merges into the tables of the other. Functions that are passed to engines are defined at module
level, so that they can be pickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from featurestore.arrow.types import TIMESTAMP
from featurestore.delta.history import read_history
from featurestore.plugins.engine import Engine, TableWrite
from featurestore.testing.relation_conformance import rows
from featurestore.testing.table_conformance import TableConformance, new_table, write
from featurestore.testing.upsert_conformance import UpsertConformance

_MAX = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
_STRUCT = pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.list_(pa.string()))])
_DEEP = pa.list_(pa.struct([pa.field("u", pa.uint8()), pa.field("v", pa.list_(pa.float32(), 2))]))
# Values of every feature type, including its limits; the tests add nulls.
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [-128, 127, 0]),
    "int16": (pa.int16(), [-(2**15), 2**15 - 1]),
    "int32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "uint8": (pa.uint8(), [0, 255]),
    "uint16": (pa.uint16(), [0, 2**16 - 1]),
    "uint32": (pa.uint32(), [0, 2**32 - 1]),
    "uint64": (pa.uint64(), [0, 2**63, 2**64 - 1]),
    # 1.4e-45 and 5e-324 are the smallest subnormal numbers, which some libraries flush to zero.
    "float32": (
        pa.float32(),
        [1.5, float("inf"), -float("inf"), float("nan"), -0.0, 1.401298464324817e-45],
    ),
    "float64": (pa.float64(), [0.1, float("inf"), -float("inf"), float("nan"), -0.0, 5e-324]),
    "decimal": (pa.decimal128(10, 2), [Decimal("12345678.90"), Decimal("-0.01")]),
    "wide_decimal": (
        pa.decimal128(38, 10),
        [Decimal("9999999999999999999999999999.9999999999"), Decimal(0)],
    ),
    "string": (
        pa.string(),
        # The last string is the folder name of null partitions in Hive and Spark.
        ["", "a", "ä€𝄞", "x" * 5000, 'it\'s "quoted"\n\t\\', "__HIVE_DEFAULT_PARTITION__"],
    ),
    "binary": (pa.binary(), [b"", b"\x00\xff", b"y" * 5000]),
    "date": (pa.date32(), [date(1970, 1, 1), date(1900, 3, 1), date(9999, 12, 31)]),
    "timestamp": (
        TIMESTAMP,
        [datetime(1970, 1, 1, tzinfo=UTC), datetime(1901, 1, 1, 0, 0, 0, 1, tzinfo=UTC), _MAX],
    ),
    "list": (pa.list_(pa.int64()), [[], [1], [1, None, 3]]),
    "list_of_lists": (pa.list_(pa.list_(pa.float64())), [[], [[]], [[1.0], None, [2.0, 3.0]]]),
    "embedding": (pa.list_(pa.float32(), 3), [[1.0, 2.0, 3.0], [0.0, float("inf"), -1.5]]),
    "pixels": (pa.list_(pa.uint8(), 4), [[0, 255, 1, 2]]),
    "struct": (_STRUCT, [{"a": 1, "b": ["x"]}, {"a": None, "b": []}, {"a": 2, "b": None}]),
    "list_of_structs": (_DEEP, [[], [{"u": 255, "v": [1.0, 2.0]}], [{"u": None, "v": None}]]),
}


class TypeConformance:
    """Round trips through tables, streams and merges."""

    def test_table_round_trip_keeps_every_type(self, engine: Engine, tmp_path: Path) -> None:
        table = _padded_table(VALUES)
        path = str(tmp_path / "table")
        engine.create_table(
            path, schema=table.schema, partition_by=(), properties={}, commit_metadata={}
        )
        engine.write(path, engine.from_arrow(table.to_reader()), TableWrite("append"))
        relation = engine.read_table(path, schema=table.schema)
        assert relation.schema == table.schema
        actual = engine.stream(relation).read_all()
        assert actual.schema == table.schema
        assert _changed_columns(actual, table) == []

    def test_upsert_keeps_every_type(self, engine: Engine, tmp_path: Path) -> None:
        columns = {"id": pa.array([1, 2, 3], pa.int64())}
        for name, (dtype, values) in VALUES.items():
            columns[name] = pa.array([values[0], None, values[-1]], dtype)
        table = pa.table(columns)
        path = str(tmp_path / "table")
        engine.create_table(
            path, schema=table.schema, partition_by=(), properties={}, commit_metadata={}
        )
        # The second row is in both writes, so it is replaced. The third row is inserted.
        engine.write(path, engine.from_arrow(table.slice(0, 2).to_reader()), TableWrite("append"))
        engine.write(
            path,
            engine.from_arrow(table.slice(1, 2).to_reader()),
            TableWrite("upsert", key=("id",)),
        )
        actual = engine.stream(engine.read_table(path, schema=table.schema)).read_all()
        assert is_identical(actual.sort_by("id").to_pylist(), table.to_pylist())

    def test_partition_values_keep_every_type(self, engine: Engine, tmp_path: Path) -> None:
        names = ["int8", "uint16", "int64", "bool", "decimal", "string", "date", "timestamp"]
        values_by_name = {name: VALUES[name] for name in names}
        # Delta reads empty strings as null, and some readers do the same for the null folder's
        # name.
        texts = ["a", "with space", "a/b=c?d*e[f]%20+'\"ä€", "null", "12:30"]
        values_by_name["string"] = (pa.string(), texts)
        table = _padded_table(values_by_name)
        path = str(tmp_path / "table")
        engine.create_table(
            path, schema=table.schema, partition_by=names, properties={}, commit_metadata={}
        )
        engine.write(path, engine.from_arrow(table.to_reader()), TableWrite("append"))
        actual = engine.stream(engine.read_table(path, schema=table.schema)).read_all()
        assert _changed_columns(actual, table) == []

    def test_slices_keep_every_type(self, engine: Engine) -> None:
        columns = {"id": pa.array(range(4), pa.int64())}
        for name, (dtype, values) in VALUES.items():
            columns[name] = pa.array([values[0], values[-1], None, values[0]], dtype)
        inner = [{"x": {"y": number}, "z": [{"q": {"r": "a"}}]} for number in range(3)]
        columns["structs_in_structs"] = pa.array([*inner, None])
        # The arrays of a slice have an offset, which also applies to the children of nested types.
        table = pa.table(columns).slice(1, 2)
        actual = engine.stream(engine.from_arrow(table.to_reader())).read_all()
        assert is_identical(actual.sort_by("id").to_pylist(), table.to_pylist())

    def test_empty_table_keeps_schema(self, engine: Engine, tmp_path: Path) -> None:
        schema = pa.schema([("id", pa.int64())])
        for name, (dtype, _) in VALUES.items():
            schema = schema.append(pa.field(name, dtype))
        path = str(tmp_path / "table")
        engine.create_table(path, schema=schema, partition_by=(), properties={}, commit_metadata={})
        assert engine.stream(engine.read_table(path, schema=schema)).read_all().schema == schema
        engine.write(
            path, engine.from_arrow(schema.empty_table().to_reader()), TableWrite("append")
        )
        actual = engine.stream(engine.read_table(path, schema=schema)).read_all()
        assert (actual.schema, actual.num_rows) == (schema, 0)


class EngineConformance(TypeConformance, UpsertConformance, TableConformance):
    """Tests for one engine; the subclass's module provides the fixture ``engine``."""


class CrossEngineConformance:
    """Tests for two engines on the same tables, with the fixtures ``engine`` and ``other``."""

    def test_tables_are_writable_by_both_engines(
        self, engine: Engine, other: Engine, tmp_path: Path
    ) -> None:
        table = _every_type()
        # Each engine merges into and deletes from files that the other engine wrote.
        for first, second, partition_by in ((engine, other, ()), (other, engine, ("part",))):
            path = new_table(
                first, tmp_path / first.name, schema=table.schema, partition_by=partition_by
            )
            write(first, path, table.slice(0, 2))
            write(second, path, table.slice(2, 1))
            write(first, path, table.slice(1, 2), TableWrite("upsert", key=("id",)))
            write(second, path, table.slice(0, 2), TableWrite("upsert", key=("id",)))
            for reader in (first, second):
                actual = rows(reader, reader.read_table(path, schema=table.schema), sort_by="id")
                assert is_identical(actual, table.to_pylist())
            assert first.delete(path, "id = 1", commit_metadata={}) is not None
            assert second.delete(path, "id = 0", commit_metadata={}) is not None
            for reader in (first, second):
                actual = rows(reader, reader.read_table(path, schema=table.schema))
                assert is_identical(actual, table.slice(2, 1).to_pylist())

    def test_transactions_are_shared_by_both_engines(
        self, engine: Engine, other: Engine, tmp_path: Path
    ) -> None:
        table = _every_type()
        path = new_table(engine, tmp_path, schema=table.schema)
        assert write(engine, path, table, TableWrite("append", transaction=("app", 5))) == 1
        assert write(other, path, table, TableWrite("append", transaction=("app", 5))) is None
        assert write(other, path, table, TableWrite("append", transaction=("app", 6))) == 2
        assert write(engine, path, table, TableWrite("append", transaction=("app", 6))) is None

    def test_added_columns_are_read_by_both_engines(
        self, engine: Engine, other: Engine, tmp_path: Path
    ) -> None:
        schema = pa.schema([("id", pa.int64())])
        path = new_table(engine, tmp_path, schema=schema)
        names = ["from_one", "from_other"]
        for number, (writer, name) in enumerate(zip((engine, other), names, strict=True)):
            extra = pa.schema([(name, pa.uint16())])
            table = pa.table({"id": pa.array([number]), name: pa.array([number], pa.uint16())})
            write(
                writer,
                path,
                table,
                TableWrite(
                    "append", add_columns=extra, commit_metadata={"operation": "append", "by": name}
                ),
            )
        wide = pa.schema({"id": pa.int64()} | dict.fromkeys(names, pa.uint16()))
        expected = [
            {"id": 0, "from_one": 0, "from_other": None},
            {"id": 1, "from_one": None, "from_other": 1},
        ]
        for reader in (engine, other):
            assert rows(reader, reader.read_table(path, schema=wide), sort_by="id") == expected
        assert [commit.user_metadata.get("by") for commit in read_history(path)[1::-1]] == names


def is_identical(first: Any, second: Any) -> bool:
    """Return True if two Python values are identical: NaN equals NaN, -0.0 differs from 0.0."""
    # The comparison operators of Python regard -0.0 and 0.0 as equal, and NaN as unequal to itself.
    return repr(first) == repr(second)


def _padded_table(values: Mapping[str, tuple[pa.DataType, list[Any]]]) -> pa.Table:
    """Return a table with a column per type, padded so that every column contains a null."""
    rows = 1 + max(len(cells) for _, cells in values.values())
    columns = {"id": pa.array(range(rows), pa.int64())}
    for name, (dtype, cells) in values.items():
        columns[name] = pa.array(cells + [None] * (rows - len(cells)), dtype)
    return pa.table(columns)


def _changed_columns(actual: pa.Table, expected: pa.Table) -> list[str]:
    """Return the columns whose values differ after sorting by ``id``."""
    actual = actual.sort_by("id")
    return [
        name
        for name in expected.column_names
        if not is_identical(actual[name].to_pylist(), expected[name].to_pylist())
    ]


def _every_type() -> pa.Table:
    columns = {"id": pa.array([0, 1, 2], pa.int64()), "part": pa.array(["a b/c", None, "ä"])}
    for name, (dtype, values) in VALUES.items():
        columns[name] = pa.array([values[0], None, values[-1]], dtype)
    return pa.table(columns)
