"""Conformance suite of engines.

A test class inherits ``EngineConformance`` and provides the fixture ``engine``:

    @pytest.fixture(scope="module")
    def engine():
        engine = MyEngine()
        yield engine
        engine.close()

    class TestMyEngine(EngineConformance):
        pass

``CrossEngineConformance`` needs a second engine, ``other``: each reads, appends to and merges into
the tables of the other. Functions passed to engines are on module level, so that they can be
pickled.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from featurestore.delta.history import read_history
from featurestore.plugins.engine import Engine, TableWrite
from featurestore.testing.relation_conformance import RelationConformance, rows
from featurestore.testing.table_conformance import TableConformance, new_table, write
from featurestore.testing.type_conformance import VALUES, TypeConformance, same


class EngineConformance(TypeConformance, RelationConformance, TableConformance):
    """The suite of one engine; the module of the subclass provides the fixture ``engine``."""


class CrossEngineConformance:
    """The suite of two engines over the same tables; the fixtures are ``engine`` and ``other``."""

    def test_tables_are_writable_by_both_engines(
        self, engine: Engine, other: Engine, tmp_path: Path
    ) -> None:
        table = _every_type()
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
                assert same(actual, table.to_pylist())
            assert first.delete(path, "id = 1", commit_metadata={}) is not None
            assert second.delete(path, "id = 0", commit_metadata={}) is not None
            for reader in (first, second):
                actual = rows(reader, reader.read_table(path, schema=table.schema))
                assert same(actual, table.slice(2, 1).to_pylist())

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
        assert [commit.note.get("by") for commit in read_history(path)[1::-1]] == names


def _every_type() -> pa.Table:
    columns = {"id": pa.array([0, 1, 2], pa.int64()), "part": pa.array(["a b/c", None, "ä"])}
    for name, (kind, values) in VALUES.items():
        columns[name] = pa.array([values[0], None, values[-1]], kind)
    return pa.table(columns)
