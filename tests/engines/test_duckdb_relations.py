"""DuckDB relations: adopted frames, pushdown, bounded batches and settings."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from featurestore.arrow.types import TIMESTAMP
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import (
    ConfigurationError,
    EngineError,
    FeatureStoreError,
    InvalidSql,
    StorageError,
    UnsupportedType,
)
from featurestore.model.times import NaiveTimeWarning
from featurestore.plugins.engine import Relation, TableWrite
from featurestore.testing.relation_conformance import SumAndCount, make_rows
from featurestore_connectors.duckdb_delta import DuckDBEngine, session, shards


def adopted(engine: DuckDBEngine, frame: duckdb.DuckDBPyRelation) -> Relation:
    relation = engine.adopt(frame)
    assert relation is not None
    return relation


def read(engine: DuckDBEngine, relation: Relation) -> pa.Table:
    table = engine.stream(relation).read_all()
    assert table.schema == relation.schema
    return table


def table_of(
    engine: DuckDBEngine, path: Path, table: pa.Table, *, partition_by: tuple[str, ...] = ()
) -> str:
    engine.create_table(
        str(path), schema=table.schema, partition_by=partition_by, properties={}, commit_metadata={}
    )
    engine.write(str(path), engine.from_arrow(table.to_reader()), TableWrite("append"))
    return str(path)


# -- adopted frames -----------------------------------------------------------------------------------------------


def test_own_relation_is_adopted_without_copy(engine: DuckDBEngine) -> None:
    native = engine.database.connection.sql("select range as id from range(5)")
    relation = adopted(engine, native)
    assert read(engine, relation).to_pydict() == {"id": [0, 1, 2, 3, 4]}
    assert "RANGE" in engine.explain(relation).upper()


def test_relation_of_another_database_is_reread(engine: DuckDBEngine) -> None:
    connection = duckdb.connect()
    connection.execute("create table t as select 1 as id, 'x' as s")
    relation = adopted(engine, connection.table("t"))
    for _ in range(2):
        assert read(engine, relation).to_pylist() == [{"id": 1, "s": "x"}]
    assert engine.count(relation) == 1


def test_a_relation_of_the_default_connection_is_adopted(engine: DuckDBEngine) -> None:
    relation = adopted(engine, duckdb.sql("select 7 as id"))
    assert read(engine, relation).to_pylist() == [{"id": 7}]


def test_parameters_of_an_adopted_relation_stay_bound(engine: DuckDBEngine) -> None:
    native = engine.database.connection.sql("select $a as id", params={"a": 5})
    assert read(engine, adopted(engine, native)).to_pylist() == [{"id": 5}]


def test_duckdb_types_become_feature_types(engine: DuckDBEngine) -> None:
    frame = duckdb.sql(
        "select 'a'::enum('a', 'b') as e, uuid() as u, [1, 2]::float[2] as f, 1::utinyint as small, "
        "1.50::decimal(5, 2) as d, {'a': [1]} as s, now() as t"
    )
    schema = adopted(engine, frame).schema
    assert schema.types[:1] + schema.types[2:5] == [
        pa.string(),
        pa.list_(pa.float32(), 2),
        pa.uint8(),
        pa.decimal128(5, 2),
    ]
    assert schema.field("t").type == TIMESTAMP
    assert read(engine, adopted(engine, frame)).num_rows == 1


def test_naive_adopted_times_are_utc_with_warning(engine: DuckDBEngine) -> None:
    frame = duckdb.sql("select timestamp '2024-01-01 12:00:00' as t")
    with pytest.warns(NaiveTimeWarning, match="'t'"):
        relation = adopted(engine, frame)
    assert read(engine, relation)["t"].to_pylist() == [datetime(2024, 1, 1, 12, tzinfo=UTC)]


def test_times_finer_than_microseconds_are_refused(engine: DuckDBEngine) -> None:
    with pytest.warns(NaiveTimeWarning):
        fits = adopted(engine, duckdb.sql("select '2024-01-01 12:00:00.000001'::timestamp_ns as t"))
    assert read(engine, fits)["t"].to_pylist() == [datetime(2024, 1, 1, 12, 0, 0, 1, tzinfo=UTC)]
    with pytest.warns(NaiveTimeWarning):
        finer = adopted(
            engine, duckdb.sql("select '2024-01-01 12:00:00.000000001'::timestamp_ns as t")
        )
    with pytest.raises(FeatureStoreError, match="finer than a microsecond"):
        read(engine, finer)


def test_sums_of_integers_are_integers(engine: DuckDBEngine) -> None:
    relation = adopted(engine, duckdb.sql("select sum(range) as n from range(10)"))
    assert relation.schema.field("n").type == pa.int64()
    assert read(engine, relation).to_pylist() == [{"n": 45}]
    with pytest.raises(FeatureStoreError):
        read(engine, adopted(engine, duckdb.sql("select 9223372036854775808::hugeint as n")))


def test_unsupported_types_are_refused_together(engine: DuckDBEngine) -> None:
    with pytest.raises(UnsupportedType, match=r"a: .*; b: "):
        engine.adopt(duckdb.sql("select time '12:00' as a, map {'x': 1} as b, 1 as c"))


# -- streams ------------------------------------------------------------------------------------------------------


def test_arrow_types_are_cast_to_feature_types(engine: DuckDBEngine) -> None:
    table = pa.table(
        {
            "d": pa.array(["x", None]).dictionary_encode(),
            "l": pa.array(["a", "b"], pa.large_string()),
            "h": pa.array(np.array([1.5, 2], "f2")),
            "t": pa.array([0, 1], pa.timestamp("ms", tz="Europe/Berlin")),
        }
    )
    actual = read(engine, engine.from_arrow(table.to_reader()))
    assert actual.schema.types == [pa.string(), pa.string(), pa.float32(), TIMESTAMP]
    assert actual["d"].to_pylist() == ["x", None]


def test_broken_stream_raises_its_own_error(engine: DuckDBEngine) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from make_rows(3).to_batches()
        raise FileNotFoundError("the source went away")

    reader = pa.RecordBatchReader.from_batches(make_rows(0).schema, batches())
    with pytest.raises(FileNotFoundError, match=r"^the source went away$"):
        engine.stream(engine.from_arrow(reader)).read_all()


def test_second_read_of_stream_raises(engine: DuckDBEngine) -> None:
    relation = engine.from_arrow(make_rows(3).to_reader())
    assert relation.single_use
    assert engine.filter(relation, "id > 0").single_use
    assert engine.count(relation) == 3
    with pytest.raises(EngineError, match="only once"):
        engine.count(relation)


# Queries that scan a table twice, and the number of rows that each counts in 30,000 rows.
TWO_SCANS = {
    "select count(*) from t where id in (select id + 100 from t where id > -1)": 29_900,
    "select count(*) from t where not exists (select 1 from t as u where u.id = t.id + 1)": 1,
    "select count(*) from (select id from t where id < 10 union all select id from t)": 30_010,
    "select count(*) from t join (select max(id) as top from t) on id < top": 29_999,
}


def test_stream_read_twice_in_one_query_loses_no_rows(
    engine: DuckDBEngine, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    def read_stream() -> Relation:
        return engine.from_arrow(pa.table({"id": range(30_000)}).to_reader(1_000))

    def count(result: Relation) -> int:
        return int(engine.stream(result).read_all().column(0)[0].as_py())

    staged = engine.stage(read_stream(), str(tmp_path / "staged"))
    for query, expected in TWO_SCANS.items():
        with subtests.test(query):
            assert count(engine.sql(query, tables={"t": read_stream()}, parameters={})) == expected
            assert count(engine.user_sql(query, tables={"t": staged}, parameters={})) == expected
            with pytest.raises(EngineError, match="only once"):
                count(engine.user_sql(query, tables={"t": read_stream()}, parameters={}))


def test_batches_of_wide_rows_stay_small(engine: DuckDBEngine) -> None:
    pixels = np.zeros((300, 1_000_000), dtype="u1")
    wide = pa.table(
        {"image": pa.FixedSizeListArray.from_arrays(pa.array(pixels.ravel()), 1_000_000)}
    )
    sizes = [batch.num_rows for batch in engine.stream(engine.from_arrow(wide.to_reader()))]
    assert sum(sizes) == 300
    assert max(sizes) <= 67


def test_batches_of_long_bytes_stay_small(engine: DuckDBEngine) -> None:
    relation = adopted(
        engine,
        engine.database.connection.sql("select repeat('x', 20000)::blob as b from range(20000)"),
    )
    sizes = [batch.nbytes for batch in engine.stream(relation)]
    assert max(sizes) < 128 << 20
    assert len(sizes) > 3


def test_mapped_relation_is_written_and_mapped(engine: DuckDBEngine, tmp_path: Path) -> None:
    table = make_rows(10_000)
    mapped = engine.stage(engine.from_arrow(table.to_reader()), str(tmp_path / "a"))
    for _ in range(3):
        mapped = engine.map_batches(mapped, lambda batch: batch, schema=table.schema)
    assert read(engine, engine.stage(mapped, str(tmp_path / "b"))).num_rows == 10_000


def test_threaded_aggregate_equals_single_thread(engine: DuckDBEngine) -> None:
    class Threaded(SumAndCount):
        threads = 3

    relation = adopted(
        engine, engine.database.connection.sql("select range as id from range(1000000)")
    )
    assert engine.aggregate(relation, Threaded()) == engine.aggregate(relation, SumAndCount())


def test_threaded_aggregate_stops_at_error(engine: DuckDBEngine) -> None:
    class Failing(SumAndCount):
        threads = 2

        def update(self, state: tuple[int, int], batch: pa.RecordBatch) -> tuple[int, int]:
            raise ValueError("no")

    relation = adopted(
        engine, engine.database.connection.sql("select range as id from range(1000000)")
    )
    with pytest.raises(ValueError, match="no"):
        engine.aggregate(relation, Failing())


def test_relations_are_usable_from_many_threads(engine: DuckDBEngine) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(10):
                relation = engine.filter(
                    engine.from_arrow(make_rows(50).to_reader()), f"id >= {number}"
                )
                assert read(engine, relation).num_rows == 50 - number
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# -- files and tables ---------------------------------------------------------------------------------------------


def test_columns_and_filters_reach_the_files(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = table_of(engine, tmp_path / "table", make_rows(10))
    plan = engine.explain(engine.filter(engine.read_table(path, columns=["id", "value"]), "id = 3"))
    assert "zone" not in plan
    assert "Filters" in plan
    assert "id=3" in plan.replace(" ", "")


def test_filters_on_partitions_leave_files_out(engine: DuckDBEngine, tmp_path: Path) -> None:
    path = table_of(engine, tmp_path / "table", make_rows(10), partition_by=("zone",))
    relation = engine.filter(engine.read_table(path), "zone = 'a'")
    for file in read_snapshot(path).files:
        if file.partition["zone"] != "a":
            Path(file.path).write_bytes(b"")
    assert read(engine, relation)["id"].to_pylist() == [0, 5]


def test_paths_with_glob_characters_are_taken_literally(
    engine: DuckDBEngine, tmp_path: Path
) -> None:
    odd = tmp_path / "a[1]*?'b"
    odd.mkdir()
    path = table_of(engine, odd / "table", make_rows(3))
    assert read(engine, engine.read_table(path)).num_rows == 3
    staged = engine.stage(engine.from_arrow(make_rows(3).to_reader()), str(odd / "stage"))
    assert engine.count(staged) == 3
    assert engine.count(engine.read_files([str(odd / "stage")])) == 3


def test_read_files_names_missing_files(engine: DuckDBEngine, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nothing\.parquet"):
        engine.read_files([str(tmp_path / "nothing.parquet")])


def test_sql_without_result_is_refused(engine: DuckDBEngine) -> None:
    with pytest.raises(InvalidSql):
        engine.sql("create table t (a int)", tables={}, parameters={})


# -- settings -----------------------------------------------------------------------------------------------------


def test_duckdb_settings_come_from_arguments_and_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEATURESTORE_DUCKDB_MEMORY_LIMIT", "200MB")
    monkeypatch.setenv("FEATURESTORE_DUCKDB_TEMP_DIRECTORY", str(tmp_path))
    engine = DuckDBEngine(threads=1)
    settings = engine.database.rows(
        "select current_setting('memory_limit'), current_setting('threads'), current_setting('temp_directory'), "
        "current_setting('TimeZone')"
    )
    assert settings == [("190.7 MiB", 1, str(tmp_path), "UTC")]
    engine.close()


def test_invalid_setting_names_its_variables() -> None:
    with pytest.raises(ConfigurationError, match="FEATURESTORE_DUCKDB_MEMORY_LIMIT"):
        DuckDBEngine(memory_limit="much")


def test_memory_limit_is_current_during_and_after_a_lower_limit(engine: DuckDBEngine) -> None:
    database = engine.database
    limits = [database.memory_limit]
    with database.limit_memory(1 << 30):
        limits.append(database.memory_limit)
    limits.append(database.memory_limit)
    assert limits[0] == limits[2]
    assert limits[1] == pytest.approx(1 << 30, rel=0.01)


def test_queries_beyond_memory_spill_to_disk(tmp_path: Path) -> None:
    engine = DuckDBEngine(memory_limit="150MB", temp_directory=str(tmp_path / "spill"))
    native = engine.database.connection.sql(
        "select (hash(range) % 4000000000)::bigint as id, range::double as x, repeat('y', 100) as s from range(3000000)"
    )
    staged = engine.stage(adopted(engine, native), str(tmp_path / "stage"))
    ordered = engine.sql("select * from r order by id", tables={"r": staged}, parameters={})
    last = -1
    for batch in engine.stream(ordered):
        ids = np.asarray(batch.column(0))
        assert ids[0] >= last
        assert (np.diff(ids) >= 0).all()
        last = ids[-1]
    engine.close()


# -- shards -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_memory", [0, 1 << 30])
@pytest.mark.parametrize("threads", [1, 2])
def test_failing_shard_stops_the_others(
    engine: DuckDBEngine, threads: int, max_memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_max_memory", lambda _: max_memory)
    native = engine.database.connection.sql(
        "select range as id, (range % 40)::int as shard from range(2000000)"
    )
    finished: list[int] = []

    def write(number: int, batches: Iterator[pa.RecordBatch]) -> int:
        count = sum(batch.num_rows for batch in batches)
        if number == 1:
            raise ValueError("shard 1 is cursed")
        finished.append(number)
        return count

    relation = adopted(engine, native)
    with pytest.raises(ValueError, match="cursed"):
        shards.write_shards(
            engine.database, relation, shard="shard", order=["id"], write=write, threads=threads
        )
    assert 39 not in finished


def test_failing_source_leaves_no_complete_shard(engine: DuckDBEngine) -> None:
    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("bad row")

    table = pa.table({"id": pa.array([1, 2]), "shard": pa.array([0, 1], pa.int32())})
    relation = engine.map_batches(engine.from_arrow(table.to_reader()), fail, schema=table.schema)
    with pytest.raises(ValueError, match="bad row"):
        engine.write_shards(
            relation,
            shard="shard",
            shard_count=2,
            order=["id"],
            write=lambda number, batches: sum(1 for _ in batches),
        )


def test_last_per_key_spans_batches(engine: DuckDBEngine) -> None:
    count = 1_000_000
    keys = np.random.default_rng(0).integers(0, 1000, count)
    table = pa.table({"key": pa.array(keys), "id": pa.array(np.arange(count))})
    rows = engine.from_arrow(table.to_reader(max_chunksize=10_000))
    actual = read(engine, engine.last_per_key(rows, ["key"])).sort_by("key")
    expected = {int(key): position for position, key in enumerate(keys.tolist())}
    assert actual.to_pydict() == {
        "key": sorted(expected),
        "id": [expected[key] for key in sorted(expected)],
    }


def test_duckdb_interrupt_becomes_keyboard_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt), session.translate_errors():
        raise RuntimeError("Query interrupted")  # how DuckDB reports Ctrl-C
    with pytest.raises(RuntimeError, match="another"), session.translate_errors():
        raise RuntimeError("another error")


def test_interrupt_inside_query_becomes_keyboard_interrupt(engine: DuckDBEngine) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([1])], names=["a"])
        raise KeyboardInterrupt

    schema = pa.schema([("a", pa.int64())])
    for read in (engine.count, lambda rows: engine.stream(rows).read_all()):
        reader = pa.RecordBatchReader.from_batches(schema, batches())
        with pytest.raises(KeyboardInterrupt):
            read(engine.from_arrow(reader))
