"""Conformance suite for relations: select, filter, SQL, batch functions, aggregates, shards."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import FeatureStoreError, InvalidSql
from featurestore.plugins.engine import Accumulator, Engine, Relation, TimeRange

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def rows(engine: Engine, relation: Relation, *, sort_by: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of a relation, sorted by ``sort_by`` if it is not None."""
    table = engine.stream(relation).read_all()
    assert table.schema == relation.schema
    if sort_by is not None:
        table = table.sort_by(sort_by)
    row_dicts: list[dict[str, Any]] = table.to_pylist()
    return row_dicts


def read_ids(engine: Engine, relation: Relation) -> list[int]:
    """Return the sorted values of the column ``id``."""
    return sorted(row["id"] for row in rows(engine, relation))


def make_rows(count: int) -> pa.Table:
    """Return a table of ``count`` rows with an id, an hour, a zone and a value."""
    ids = np.arange(count)
    hours: list[datetime] = []
    zones: list[str | None] = []
    for row in range(count):
        hours.append(NOON + timedelta(hours=row))
        zones.append(("a", "b", "c", "d", None)[row % 5])
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "hour": pa.array(hours, TIMESTAMP),
            "zone": pa.array(zones, pa.string()),
            "value": pa.array(ids / 2, pa.float64()),
        }
    )


def double_value(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the ids and the doubled values of a batch."""
    values = pa.array(np.asarray(batch.column(batch.schema.get_field_index("value"))) * 2)
    return pa.RecordBatch.from_arrays(
        [batch.column(batch.schema.get_field_index("id")), values], names=["id", "twice"]
    )


def fail_at_seven(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Raise ValueError if a row has the id 7."""
    if 7 in batch.column(batch.schema.get_field_index("id")).to_pylist():
        raise ValueError("seven is not allowed")
    return batch


@dataclass(frozen=True)
class SumAndCount(Accumulator[tuple[int, int], tuple[int, int]]):
    """A test accumulator for the number of rows and the sum of their ids."""

    def start(self) -> tuple[int, int]:
        """Return the empty state."""
        return 0, 0

    def update(self, state: tuple[int, int], batch: pa.RecordBatch) -> tuple[int, int]:
        """Add the ids of a batch to the state."""
        ids = np.asarray(batch.column(batch.schema.get_field_index("id")))
        return state[0] + batch.num_rows, state[1] + int(ids.sum())

    def merge(self, state: tuple[int, int], other_state: tuple[int, int]) -> tuple[int, int]:
        """Merge two states."""
        return state[0] + other_state[0], state[1] + other_state[1]

    def finish(self, state: tuple[int, int]) -> tuple[int, int]:
        """Return the row count and the sum."""
        return state


def write_ids(directory: str, number: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
    """Write the ids of a shard to a file; return the shard's number and row count."""
    count = 0
    with open(f"{directory}/{number}", "w", encoding="utf-8") as file:
        for batch in batches:
            count += batch.num_rows
            for row in batch.to_pylist():
                file.write(f"{row['id']}\n")
    return number, count


class RelationConformance:
    """Tests for the engine methods that transform or read relations."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        # Each staged relation has its own directory, because staging may empty the directory.
        self._stages = (str(tmp_path / "given" / str(number)) for number in itertools.count())

    def staged_relation(self, engine: Engine, table: pa.Table) -> Relation:
        """Convert a table to a relation that can be read repeatedly."""
        return engine.stage(engine.from_arrow(table.to_reader()), next(self._stages))

    def test_from_arrow_round_trip_keeps_rows(self, engine: Engine) -> None:
        table = make_rows(10)
        relation = engine.from_arrow(table.to_reader())
        assert relation.engine == engine.name
        assert rows(engine, relation, sort_by="id") == table.to_pylist()

    def test_select_renames_and_orders_columns(self, engine: Engine) -> None:
        selected = engine.select(
            self.staged_relation(engine, make_rows(2)), {"x": "value", "id": "id"}
        )
        assert selected.schema == pa.schema([("x", pa.float64()), ("id", pa.int64())])
        assert rows(engine, selected, sort_by="id") == [{"x": 0.0, "id": 0}, {"x": 0.5, "id": 1}]

    def test_select_unknown_column_raises(self, engine: Engine) -> None:
        with pytest.raises(FeatureStoreError, match="nothing"):
            engine.select(self.staged_relation(engine, make_rows(2)), {"x": "nothing"})

    def test_filter_keeps_rows_with_true_predicate(self, engine: Engine) -> None:
        filtered = engine.filter(self.staged_relation(engine, make_rows(10)), "zone <> 'a'")
        assert read_ids(engine, filtered) == [1, 2, 3, 6, 7, 8]

    @pytest.mark.parametrize(("closed", "ids"), [("left", [2, 3, 4]), ("right", [3, 4, 5])])
    def test_within_has_one_open_end(self, engine: Engine, closed: Any, ids: list[int]) -> None:
        window = TimeRange("hour", NOON + timedelta(hours=2), NOON + timedelta(hours=5), closed)
        filtered = engine.within(self.staged_relation(engine, make_rows(10)), window)
        assert read_ids(engine, filtered) == ids

    def test_within_compares_dates_as_midnights(self, engine: Engine) -> None:
        days = pa.table(
            {
                "id": pa.array([1, 2, 3, 4]),
                "day": pa.array([date(2024, 1, 1), date(2024, 1, 2), date(2024, 1, 3), None]),
            }
        )
        window = TimeRange(
            "day",
            datetime(2024, 1, 1, 0, 0, 1, tzinfo=UTC),
            datetime(2024, 1, 3, tzinfo=UTC),
            "right",
        )
        assert read_ids(engine, engine.within(self.staged_relation(engine, days), window)) == [2, 3]

    def test_sql_reads_named_tables_and_binds_parameters(self, engine: Engine) -> None:
        from featurestore.usersql import query

        text = query(
            "select l.id, r.value, $word as word, $flag as flag from l join r on l.id = r.id "
            "where l.hour >= $start and l.hour < $end",
            tables=["l", "r"],
            dialect=engine.dialect,
        )
        values = {
            "start": NOON + timedelta(hours=1),
            "end": NOON + timedelta(hours=3),
            "word": "it's",
            "flag": True,
        }
        tables = {
            "l": self.staged_relation(engine, make_rows(5)),
            "r": self.staged_relation(engine, make_rows(2)),
        }
        # Both methods support the same queries; only user_sql restricts the tables at run time.
        for run in (engine.sql, engine.user_sql):
            relation = run(text, tables=tables, parameters=values)
            assert rows(engine, relation) == [{"id": 1, "value": 0.5, "word": "it's", "flag": True}]

    def test_syntax_is_checked_without_tables(self, engine: Engine) -> None:
        engine.check_syntax("select a, max(b) as b from nowhere where c > 1 group by a")
        with pytest.raises(InvalidSql):
            engine.check_syntax("select a from nowhere where group by")

    def test_sql_unknown_table_raises(self, engine: Engine) -> None:
        with pytest.raises(FeatureStoreError, match="nowhere"):
            rows(
                engine,
                engine.sql(
                    "select * from nowhere",
                    tables={"l": self.staged_relation(engine, make_rows(1))},
                    parameters={},
                ),
            )

    def test_count_returns_row_count(self, engine: Engine) -> None:
        relation = self.staged_relation(engine, make_rows(10))
        assert engine.count(relation) == 10
        assert engine.count(engine.filter(relation, "id > 100")) == 0

    def test_map_batches_applies_a_function_lazily(self, engine: Engine) -> None:
        schema = pa.schema([("id", pa.int64()), ("twice", pa.float64())])
        mapped = engine.map_batches(
            self.staged_relation(engine, make_rows(4)), double_value, schema=schema
        )
        assert mapped.schema == schema
        expected = [{"id": row, "twice": float(row)} for row in range(4)]
        assert rows(engine, mapped, sort_by="id") == expected
        assert rows(engine, engine.filter(mapped, "twice > 1"), sort_by="id") == expected[2:]

    def test_map_batches_error_keeps_message(self, engine: Engine) -> None:
        table = make_rows(10)
        mapped = engine.map_batches(
            self.staged_relation(engine, table), fail_at_seven, schema=table.schema
        )
        with pytest.raises(Exception, match="seven is not allowed"):
            engine.stream(mapped).read_all()

    def test_aggregate_merges_states(self, engine: Engine) -> None:
        relation = self.staged_relation(engine, make_rows(1000))
        assert engine.aggregate(relation, SumAndCount()) == (1000, 499_500)
        assert engine.aggregate(engine.filter(relation, "id < 0"), SumAndCount()) == (0, 0)

    def test_duplicates_are_counted_with_examples(self, engine: Engine) -> None:
        keys = pa.table(
            {
                "a": pa.array([1, 1, 1, 2, 2, 3, None, None]),
                "b": ["x", "x", "x", "y", "y", "z", "n", "n"],
            }
        )
        count, examples = engine.duplicates(self.staged_relation(engine, keys), ["a", "b"], limit=1)
        assert count == 2
        assert examples == [{"a": 1, "b": "x", "n": 3}]
        assert engine.duplicates(self.staged_relation(engine, keys.slice(4, 2)), ["a"]) == (0, [])

    def test_last_per_key_keeps_the_last_row(self, engine: Engine) -> None:
        table = pa.table({"k": pa.array([1, 2, 1, 3, 2, 1]), "id": pa.array([0, 1, 2, 3, 4, 5])})
        last_rows = engine.last_per_key(self.staged_relation(engine, table), ["k"])
        assert last_rows.schema == table.schema
        assert rows(engine, last_rows, sort_by="id") == [
            {"k": 3, "id": 3},
            {"k": 2, "id": 4},
            {"k": 1, "id": 5},
        ]

    def test_stream_respects_batch_rows_and_limit(self, engine: Engine) -> None:
        relation = self.staged_relation(engine, make_rows(100))
        sizes = [batch.num_rows for batch in engine.stream(relation, batch_rows=30)]
        assert sum(sizes) == 100
        assert max(sizes) <= 30
        # A limit below the batch size must not return a full batch.
        assert engine.stream(relation, limit=7).read_all().num_rows == 7

    def test_two_streams_run_concurrently(self, engine: Engine) -> None:
        relation = self.staged_relation(engine, make_rows(1000))
        first = engine.stream(relation, batch_rows=100)
        second = engine.stream(relation, batch_rows=100)
        # The streams are read alternately, and a query runs while both are open.
        both = [(next(first).num_rows, next(second).num_rows) for _ in range(3)]
        assert len(both) == 3
        assert engine.count(relation) == 1000

    def test_stage_writes_rereadable_files(self, engine: Engine, tmp_path: Path) -> None:
        table = pa.table({"id": pa.array([1, 2]), "u": pa.array([1, 2**64 - 1], pa.uint64())})
        staged = engine.stage(engine.from_arrow(table.to_reader()), str(tmp_path / "stage"))
        assert not staged.single_use
        assert list((tmp_path / "stage").rglob("*.parquet"))
        for _ in range(2):
            assert rows(engine, staged, sort_by="id") == table.to_pylist()

    def test_stage_without_rows_keeps_schema(self, engine: Engine, tmp_path: Path) -> None:
        empty = make_rows(0)
        staged = engine.stage(engine.from_arrow(empty.to_reader()), str(tmp_path / "stage"))
        assert engine.stream(staged).read_all().schema == empty.schema
        assert engine.count(staged) == 0

    def test_read_files_takes_files_and_folders(self, engine: Engine, tmp_path: Path) -> None:
        from pyarrow import parquet

        table = make_rows(4)
        (tmp_path / "folder").mkdir()
        parquet.write_table(table.slice(0, 2), tmp_path / "folder" / "a.parquet")
        parquet.write_table(table.slice(2, 2), tmp_path / "folder" / "b.parquet")
        assert (
            rows(engine, engine.read_files([str(tmp_path / "folder")]), sort_by="id")
            == table.to_pylist()
        )
        relation = engine.read_files([str(tmp_path / "folder" / "b.parquet")], schema=table.schema)
        assert read_ids(engine, relation) == [2, 3]

    def test_shards_are_written_once_in_order(self, engine: Engine, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        count = 10_000
        order = pa.array(rng.permutation(count), pa.int64())
        # Shards 3 and 4 have no rows, so the function must not be called for them.
        shard = pa.array(rng.choice([0, 1, 2, 5], count), pa.int32())
        table = pa.table({"id": pa.array(range(count), pa.int64()), "order": order, "shard": shard})
        results = engine.write_shards(
            self.staged_relation(engine, table),
            shard="shard",
            shard_count=6,
            order=["order"],
            write=functools.partial(write_ids, str(tmp_path)),
        )
        shards, orders = np.asarray(shard), np.asarray(order)
        assert results == [(number, int((shards == number).sum())) for number in (0, 1, 2, 5)]
        for number, _ in results:
            expected = np.flatnonzero(shards == number)
            expected = expected[np.argsort(orders[expected])]
            assert (tmp_path / str(number)).read_text().split() == list(map(str, expected))

    def test_ascending_shards_are_written_in_order(self, engine: Engine, tmp_path: Path) -> None:
        count = 10_000
        order = np.random.default_rng(0).permutation(count)
        shard = pa.array(order // 100, pa.int32())
        table = pa.table({"id": pa.array(range(count), pa.int64()), "order": order, "shard": shard})
        results = engine.write_shards(
            self.staged_relation(engine, table),
            shard="shard",
            shard_count=100,
            order=["order"],
            shard_ascends=True,
            write=functools.partial(write_ids, str(tmp_path)),
        )
        assert results == [(number, 100) for number in range(100)]
        ids_in_order = np.argsort(order)
        for number in range(100):
            expected = ids_in_order[number * 100 : (number + 1) * 100]
            assert (tmp_path / str(number)).read_text().split() == list(map(str, expected))

    def test_write_shards_without_rows_writes_none(self, engine: Engine, tmp_path: Path) -> None:
        table = pa.table({"id": pa.array([], pa.int64()), "shard": pa.array([], pa.int32())})
        write = functools.partial(write_ids, str(tmp_path))
        results = engine.write_shards(
            self.staged_relation(engine, table),
            shard="shard",
            shard_count=3,
            order=["id"],
            write=write,
        )
        assert results == []

    def test_explain_returns_text(self, engine: Engine) -> None:
        assert (
            len(engine.explain(engine.filter(self.staged_relation(engine, make_rows(3)), "id > 1")))
            > 10
        )

    def test_adopt_unknown_object_returns_none(self, engine: Engine) -> None:
        assert engine.adopt(make_rows(1)) is None
        assert engine.adopt([1]) is None
