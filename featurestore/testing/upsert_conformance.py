"""Conformance suite for upserts: replaced and deleted keys, null keys, and a model of random writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest

from featurestore.delta.history import read_history
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import DuplicateKeys, StreamOvertaken
from featurestore.plugins.engine import Engine, TableWrite
from featurestore.testing.relation_conformance import RelationConformance, make_rows, rows
from featurestore.testing.table_conformance import SCHEMA, ids, new_table, rows_with_ids, write

# Rows of a key (``a``, ``b``), of which both may be null, and a value.
_KeyedRow = tuple[str | None, int | None, int]
_KEYED = pa.schema([("a", pa.string()), ("b", pa.int64()), ("value", pa.int64())])


def _random_rows(random: np.random.Generator, *, count: int, value: int) -> list[_KeyedRow]:
    """Return rows of 12 keys without null and 8 keys with null."""
    keys = zip(random.integers(4, size=count), random.integers(5, size=count), strict=True)
    return [(("x", "y|", "y", None)[a], None if b == 4 else int(b), value) for a, b in keys]


def _keyed_table(keyed_rows: list[_KeyedRow]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(_KEYED.names, row, strict=True)) for row in keyed_rows], _KEYED
    )


class UpsertConformance(RelationConformance):
    """Tests for the mode "upsert" of the engine method ``write``."""

    # The random histories that are compared with a model.
    upsert_seeds: ClassVar[Sequence[int]] = range(3)

    @pytest.mark.parametrize("partition_by", [(), ("zone",)])
    def test_upsert_replaces_rows_of_equal_keys(
        self, engine: Engine, tmp_path: Path, partition_by: tuple[str, ...]
    ) -> None:
        path = new_table(engine, tmp_path, partition_by=partition_by)
        write(engine, path, make_rows(10))
        version = write(
            engine, path, rows_with_ids(3, 11, value=-1.0), TableWrite("upsert", key=("id", "hour"))
        )
        assert version == 2
        actual = rows(engine, engine.read_table(path, schema=SCHEMA), sort_by="id")
        changed = {3: -1.0, 11: -1.0}
        expected = [
            {**row, "value": changed.get(row["id"], row["value"])}
            for row in make_rows(12).to_pylist()
            if row["id"] != 10
        ]
        assert actual == expected

    def test_upsert_leaves_one_row_of_each_written_key(
        self, engine: Engine, tmp_path: Path
    ) -> None:
        for seed in self.upsert_seeds:
            self._check_random_upserts(engine, tmp_path / str(seed), np.random.default_rng(seed))

    def _check_random_upserts(
        self, engine: Engine, directory: Path, random: np.random.Generator
    ) -> None:
        """Compare random appends and upserts with a list of rows, of which several have one key."""
        partition_by = ("a",) if random.integers(2) else ()
        path = new_table(engine, directory, schema=_KEYED, partition_by=partition_by)
        stored_rows: list[_KeyedRow] = []
        for number in range(3):
            # Appends repeat keys, within a commit and across commits.
            appended = _random_rows(random, count=8, value=number)
            write(engine, path, _keyed_table(appended))
            stored_rows += appended
            # The keys of the incoming rows are unique if they have no null.
            candidates = {row[:2]: row for row in _random_rows(random, count=6, value=-number)}
            incoming = list(candidates.values())
            outgoing = {row[:2] for row in _random_rows(random, count=3, value=0)}
            outgoing -= {row[:2] for row in incoming}
            has_deletes = bool(random.integers(2))
            removed_keys = {row[:2] for row in incoming} | (outgoing if has_deletes else set())
            remaining = [
                row for row in stored_rows if None in row[:2] or row[:2] not in removed_keys
            ]
            table_write = TableWrite("upsert", key=("a", "b"), transaction=("model", number))
            if has_deletes:
                deletes = _keyed_table([(*key, 0) for key in outgoing]).select(["a", "b"])
                relation = self.staged_relation(engine, deletes)
                table_write = replace(table_write, deletes=relation)
            rows_to_write = self.staged_relation(engine, _keyed_table(incoming))
            if random.integers(2):
                rows_to_write = engine.from_arrow(_keyed_table(incoming).to_reader())
            assert engine.write(path, rows_to_write, table_write) is not None
            (newest, *_) = read_history(path)
            counts = len(incoming), len(stored_rows) - len(remaining)
            assert (newest.rows_in, newest.rows_out) == counts
            stored_rows = remaining + incoming
            actual = engine.stream(engine.read_table(path, schema=_KEYED)).read_all().to_pylist()
            assert sorted(map(repr, actual)) == sorted(
                map(repr, _keyed_table(stored_rows).to_pylist())
            )
            assert engine.write(path, rows_to_write, table_write) is None

    def test_upsert_refuses_two_rows_of_one_key(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        write(engine, path, rows_with_ids(2))
        for relation in (
            self.staged_relation(engine, rows_with_ids(1, 1)),
            engine.from_arrow(rows_with_ids(1, 1).to_reader()),
        ):
            with pytest.raises(DuplicateKeys, match="'id': 1"):
                engine.write(path, relation, TableWrite("upsert", key=("id",)))
        assert ids(engine, path) == [2]

    @pytest.mark.parametrize("partition_by", [(), ("zone",)])
    def test_upsert_deletes_keys_and_stores_offsets(
        self, engine: Engine, tmp_path: Path, partition_by: tuple[str, ...]
    ) -> None:
        path = new_table(engine, tmp_path, partition_by=partition_by)
        write(engine, path, make_rows(6))
        # Deletes, rows and offsets must be visible in the same commit.
        deletes = engine.from_arrow(rows_with_ids(1, 4).select(["id"]).to_reader())
        offsets = {"stream/0": (None, 7), "stream/1": (None, 9)}
        upsert = TableWrite("upsert", key=("id",), deletes=deletes, offsets=offsets)
        assert write(engine, path, rows_with_ids(2, 9, value=-1.0), upsert) == 2
        actual = rows(engine, engine.read_table(path, schema=SCHEMA), sort_by="id")
        values = {row["id"]: row["value"] for row in make_rows(6).to_pylist()}
        expected = {0: values[0], 2: -1.0, 3: values[3], 5: values[5], 9: -1.0}
        assert {row["id"]: row["value"] for row in actual} == expected
        assert dict(read_snapshot(path).transactions) == {"stream/0": 7, "stream/1": 9}
        (newest, *_) = read_history(path)
        assert newest.rows_in == 2
        # The partitions have new numbers now, so another writer would be
        # overtaken.
        again = TableWrite("upsert", key=("id",), offsets=offsets)
        with pytest.raises(StreamOvertaken):
            write(engine, path, rows_with_ids(2), again)

    def test_upsert_of_a_null_key_matches_nothing(self, engine: Engine, tmp_path: Path) -> None:
        schema = pa.schema([("id", pa.int64()), ("value", pa.float64())])
        path = new_table(engine, tmp_path, schema=schema)
        table = pa.table({"id": pa.array([1, None], pa.int64()), "value": [1.0, 2.0]})
        write(engine, path, table)
        write(engine, path, table, TableWrite("upsert", key=("id",)))
        actual = engine.stream(engine.read_table(path, schema=schema)).read_all()
        assert sorted(actual["value"].to_pylist()) == [1.0, 2.0, 2.0]

    def test_composite_keys_never_meet_by_their_text(self, engine: Engine, tmp_path: Path) -> None:
        schema = pa.schema([("a", pa.string()), ("b", pa.string()), ("id", pa.int64())])
        path = new_table(engine, tmp_path, schema=schema)
        # Both pairs of keys are equal if they are joined by a separator.
        write(engine, path, pa.table({"a": ["x|", "x"], "b": ["y", "|y"], "id": [1, 2]}))
        write(
            engine,
            path,
            pa.table({"a": ["x|"], "b": ["y"], "id": [3]}),
            TableWrite("upsert", key=("a", "b")),
        )
        assert ids(engine, path) == [2, 3]

    def test_upsert_supports_empty_table_and_input(self, engine: Engine, tmp_path: Path) -> None:
        path = new_table(engine, tmp_path)
        write(engine, path, rows_with_ids(1, 2), TableWrite("upsert", key=("id",)))
        write(engine, path, make_rows(0), TableWrite("upsert", key=("id",)))
        assert ids(engine, path) == [1, 2]
