"""Queries of the Spark engine: types, executor-side work and lazy streams."""

from __future__ import annotations

import datetime as dt
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import featurestore
from featurestore.errors import (
    ConfigurationError,
    DuplicateKeys,
    EngineError,
    InvalidSql,
    SchemaMismatch,
    StorageError,
    UnsupportedType,
    VersionNotFound,
)
from featurestore.model.plan import QuerySource, build_query_plan
from featurestore.model.times import NaiveTimeWarning
from featurestore.plugins.engine import Accumulator, Relation, TimeRange
from featurestore_connectors.spark_delta import SparkEngine, streams
from featurestore_connectors.spark_delta.row_buffer import SpooledStreams
from tests.on_spark import on_executors

UTC = dt.UTC
NOON = dt.datetime(2020, 1, 1, 12, tzinfo=UTC)

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("u8", pa.uint8()),
        ("u64", pa.uint64()),
        ("embedding", pa.list_(pa.float32(), 2)),
        ("tags", pa.list_(pa.string())),
        ("when", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("nested", pa.struct([("a", pa.uint32()), ("l", pa.list_(pa.uint16(), 1))])),
        ("x", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("flag", pa.bool_()),
    ]
)
FULL = {
    "id": 1,
    "u8": 255,
    "u64": 2**64 - 1,
    "embedding": [1.5, float("nan")],
    "tags": ["a", None, ""],
    "when": dt.datetime(1500, 3, 1, 1, 2, 3, 4, tzinfo=UTC),
    "day": dt.date(1400, 2, 2),
    "text": "é\u0000'",
    "raw": b"\x00\xff",
    "nested": {"a": 2**32 - 1, "l": [65535]},
    "x": float("nan"),
    "price": Decimal("-0.01"),
    "flag": True,
}
EMPTY = dict.fromkeys(FULL)
HOLLOW = EMPTY | {
    "id": 3,
    "tags": [],
    "nested": {"a": None, "l": None},
    "x": -0.0,
    "text": "",
    "raw": b"",
    "embedding": [None, 0.0],
}


def make_relation(
    engine: SparkEngine, rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA
) -> Relation:
    return engine.from_arrow(pa.Table.from_pylist(rows, schema).to_reader())


def rows_of(engine: SparkEngine, relation: Relation, **options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = engine.stream(relation, **options).read_all().to_pylist()
    return rows


def numbers(engine: SparkEngine, count: int, *, partitions: int = 4) -> Relation:
    frame = engine.session.range(0, count, 1, partitions).selectExpr(
        "id", "cast(id % 7 as int) as shard"
    )
    return engine.adopt(frame) or pytest.fail("not adopted")


def test_stream_keeps_every_type(spark_engine: SparkEngine) -> None:
    driver_relation = make_relation(spark_engine, [FULL, EMPTY, HOLLOW])
    expected = str(pa.Table.from_pylist([FULL, EMPTY, HOLLOW], SCHEMA).to_pylist())
    for relation in (driver_relation, on_executors(driver_relation)):
        table = spark_engine.stream(relation).read_all()
        assert table.schema == SCHEMA
        assert str(table.to_pylist()) == expected


def test_functions_see_feature_types_not_storage_types(spark_engine: SparkEngine) -> None:
    result = pa.schema([("kinds", pa.string()), ("u64", pa.uint64())])

    def describe_types(batch: pa.RecordBatch) -> pa.RecordBatch:
        dtype = str(batch.schema.field("embedding").type)
        return pa.RecordBatch.from_arrays(
            [pa.array([dtype] * batch.num_rows), batch.column(2)], schema=result
        )

    driver_relation = make_relation(spark_engine, [FULL, EMPTY])
    for relation in (driver_relation, on_executors(driver_relation)):
        rows = rows_of(
            spark_engine, spark_engine.map_batches(relation, describe_types, schema=result)
        )
        assert rows == [
            {"kinds": "fixed_size_list<item: float>[2]", "u64": value}
            for value in (2**64 - 1, None)
        ]


def test_large_stream_keeps_order(spark_engine: SparkEngine) -> None:
    schema = pa.schema([("id", pa.int64()), ("u", pa.uint32())])

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, 1_200_000, 50_000):
            ids = np.arange(start, start + 50_000)
            yield pa.RecordBatch.from_arrays(
                [pa.array(ids), pa.array(ids, pa.uint32())], schema=schema
            )

    relation = spark_engine.from_arrow(pa.RecordBatchReader.from_batches(schema, batches()))
    assert "FileScan" in spark_engine.explain(relation) or "Scan parquet" in spark_engine.explain(
        relation
    )
    ids = spark_engine.stream(relation).read_all()["id"].to_numpy()
    np.testing.assert_array_equal(ids, np.arange(1_200_000))


def test_spooled_streams_are_removed_on_close(
    spark_engine: SparkEngine, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEATURESTORE_SPARK_STAGING", str(tmp_path / "spooled"))
    wide = pa.table({"blob": pa.array([bytes(2**20)] * 10)})
    streams = SpooledStreams()
    relation = streams.spool(spark_engine.session, wide.to_reader())
    assert spark_engine.count(relation) == 10
    assert len(os.listdir(tmp_path / "spooled")) == 1
    streams.release_all()
    assert os.listdir(tmp_path / "spooled") == []


def test_spooled_streams_are_removed_after_write(
    spark_engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spooled = tmp_path / "spooled"
    monkeypatch.setenv("FEATURESTORE_SPARK_STAGING", str(spooled))
    rows = pa.table({"id": list(range(10)), "blob": pa.array([bytes(2**20)] * 10)})
    store = featurestore.connect(tmp_path / "store", engine=spark_engine)
    group = store.create_featuregroup(rows, "wide", primary_key="id", statistics=False)
    assert os.listdir(spooled) == []
    group.insert(rows, mode="upsert")
    store.get_or_create_featuregroup(rows, "wide", primary_key="id")
    with pytest.raises(SchemaMismatch):
        group.insert(rows.rename_columns(["id", "other"]))
    assert os.listdir(spooled) == []
    assert store.get_featuregroup("wide").count() == 10
    relation = spark_engine.from_arrow(rows.to_reader())
    group.insert(rows.slice(0, 1), mode="upsert")
    assert spark_engine.count(relation) == 10  # never released, so it lives as long as the engine


def test_interrupted_stream_leaves_no_files(
    spark_engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEATURESTORE_SPARK_STAGING", str(tmp_path / "spooled"))
    schema = pa.schema([("blob", pa.binary())])

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(10):
            yield pa.RecordBatch.from_arrays([pa.array([bytes(2**20)])], schema=schema)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        spark_engine.from_arrow(pa.RecordBatchReader.from_batches(schema, batches()))
    assert os.listdir(tmp_path / "spooled") == []


def test_stream_starts_before_last_partition(spark_engine: SparkEngine, tmp_path: Any) -> None:
    trace = str(tmp_path)

    def leave_trace(batch: pa.RecordBatch) -> pa.RecordBatch:
        first = batch.column(0)[0].as_py()
        open(os.path.join(trace, str(first)), "w").close()
        return batch

    relation = numbers(spark_engine, 40, partitions=8)
    reader = spark_engine.stream(
        spark_engine.map_batches(relation, leave_trace, schema=relation.schema)
    )
    assert os.listdir(trace) == []
    reader.read_next_batch()
    time.sleep(0.3)
    assert len(os.listdir(trace)) < 8


def test_small_limit_computes_few_partitions(spark_engine: SparkEngine) -> None:
    relation = numbers(spark_engine, 1000, partitions=8)
    assert [row["id"] for row in rows_of(spark_engine, relation, limit=120)] == list(range(120))
    assert rows_of(spark_engine, spark_engine.filter(relation, "id = 990"), limit=5) == [
        {"id": 990, "shard": 990 % 7}
    ]
    assert len(rows_of(spark_engine, relation, limit=5000)) == 1000


def test_batches_have_at_most_batch_rows(spark_engine: SparkEngine) -> None:
    sizes = [
        batch.num_rows for batch in spark_engine.stream(numbers(spark_engine, 1000), batch_rows=64)
    ]
    assert sum(sizes) == 1000
    assert max(sizes) == 64


class Tally(Accumulator[list[int], list[int]]):
    """Count rows and sum ids."""

    def start(self) -> list[int]:
        return [0, 0]

    def update(self, state: list[int], batch: pa.RecordBatch) -> list[int]:
        return [state[0] + batch.num_rows, state[1] + sum(batch.column(0).to_pylist())]

    def merge(self, first: list[int], second: list[int]) -> list[int]:
        return [first[0] + second[0], first[1] + second[1]]

    def finish(self, state: list[int]) -> list[int]:
        return state


@pytest.mark.parametrize("local", [True, False])
def test_states_of_partitions_are_merged(
    spark_engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    # A cluster may have thousands of states, most of which executors merge.
    monkeypatch.setattr(streams, "is_local", lambda session: local)
    monkeypatch.setattr(streams, "_STATES_AT_ONCE", 2)
    assert spark_engine.aggregate(numbers(spark_engine, 1000, partitions=9), Tally()) == [
        1000,
        499500,
    ]


def test_aggregate_without_rows_returns_start_state(spark_engine: SparkEngine) -> None:
    assert spark_engine.aggregate(
        spark_engine.filter(numbers(spark_engine, 10), "id < 0"), Tally()
    ) == [0, 0]


def test_store_errors_on_executors_keep_their_class(spark_engine: SparkEngine) -> None:
    def refuse(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise DuplicateKeys("two rows of one key", hint="look again")

    relation = numbers(spark_engine, 10)
    with pytest.raises(DuplicateKeys, match="two rows of one key\nHint: look again"):
        spark_engine.count(spark_engine.map_batches(relation, refuse, schema=relation.schema))


def test_executor_errors_have_one_line(spark_engine: SparkEngine) -> None:
    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("a bad row")

    relation = numbers(spark_engine, 10)
    with pytest.raises(EngineError, match=r"^Spark failed in stream: ValueError: a bad row$"):
        spark_engine.stream(
            spark_engine.map_batches(relation, fail, schema=relation.schema)
        ).read_all()


def identity(batch: Any) -> Any:
    return batch


def test_executors_import_the_modules_of_the_program(
    spark_engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_rules.py").write_text("def keep(batch):\n    return batch\n")
    relation = numbers(spark_engine, 10)

    def stream(function: Any) -> int:
        mapped = spark_engine.map_batches(relation, function, schema=relation.schema)
        return spark_engine.stream(mapped).read_all().num_rows

    def import_in_task(batch: pa.RecordBatch) -> pa.RecordBatch:
        rules = importlib.import_module("shop_rules")
        return rules.keep(batch)

    with monkeypatch.context() as changed:
        changed.chdir(tmp_path)
        changed.setattr(sys, "path", ["", *sys.path])  # as in an interactive session
        rules = importlib.import_module("shop_rules")
        assert stream(rules.keep) == 10  # pickled as a reference to the module
        assert stream(import_in_task) == 10
    message = r"No module named 'sales'\nHint: .*: spark\.sparkContext\.addPyFile\('sales\.zip'\)"
    with pytest.raises(EngineError, match=message):
        stream(lambda batch: importlib.import_module("sales.rules").keep(batch))
    lock = threading.Lock()
    with pytest.raises(EngineError, match=r"in map_batches: Could not serialize object: .*lock"):
        stream(lambda batch: lock)


def test_analysis_errors_name_the_call_the_plan_and_the_query(spark_engine: SparkEngine) -> None:
    """A relation without a column of its schema, in each method that builds a query."""
    schema = pa.schema({"id": pa.int64(), "at": pa.timestamp("us", tz="UTC")})
    broken = Relation("spark", numbers(spark_engine, 10).native, schema)
    window = TimeRange("at", NOON, NOON + dt.timedelta(hours=1))
    plan = build_query_plan(QuerySource("select", ()), schema)
    calls: dict[str, Callable[[], Any]] = {
        "retrieve": lambda: spark_engine.retrieve(plan, labels=broken),
        "select": lambda: spark_engine.select(broken, {"when": "at"}),
        "within": lambda: spark_engine.within(broken, window),
        "map_batches": lambda: spark_engine.map_batches(broken, identity, schema=schema),
        "aggregate": lambda: spark_engine.aggregate(broken, Tally()),
        "duplicates": lambda: spark_engine.duplicates(broken, ["at"]),
        "last_per_key": lambda: spark_engine.last_per_key(broken, ["at"]),
        "stream": lambda: spark_engine.stream(broken).read_all(),
        "with_row_hash": lambda: spark_engine.with_row_hash(broken, ["at"], seed=1, name="hash"),
        "with_range_number": lambda: spark_engine.with_range_number(
            broken, "at", starts=[0], numbers=[1], name="n"
        ),
        "count_hashes": lambda: spark_engine.count_hashes(
            broken, hashes="at", group="id", columns=[]
        ),
        "hashes_of_groups": lambda: spark_engine.hashes_of_groups(
            broken, hashes="at", group="id", bits=8
        ),
        "write_shards": lambda: spark_engine.write_shards(
            broken, shard="at", shard_count=1, order=[], write=identity
        ),
    }
    for name, call in calls.items():
        with pytest.raises(EngineError, match=rf"Spark failed in {name}: .*`at`") as error:
            call()
        notes = "\n".join(error.value.__notes__)
        assert "Spark's query:\n'" in notes
        assert (str(plan) in notes) == (name == "retrieve")
    public_methods = [
        method
        for name, method in vars(SparkEngine).items()
        if isinstance(method, FunctionType) and not name.startswith("_")
    ]
    assert len(public_methods) > len(calls)
    assert [method for method in public_methods if not hasattr(method, "__wrapped__")] == []


def test_naive_dataframe_times_are_utc_with_warning(spark_engine: SparkEngine) -> None:
    frame = spark_engine.session.sql(
        "select timestamp_ntz'2020-01-01 12:00:00' as t, array(timestamp_ntz'2020-01-01 12:00:00') as l"
    )
    with pytest.warns(NaiveTimeWarning, match="'t', 'l'"):
        relation = spark_engine.adopt(frame)
    assert relation is not None
    assert rows_of(spark_engine, relation) == [{"t": NOON, "l": [NOON]}]


def test_unsupported_types_are_refused_together(spark_engine: SparkEngine) -> None:
    frame = spark_engine.session.sql("select map(1, 2) as m, interval 1 day as i, 1 as good")
    with pytest.raises(UnsupportedType, match=r"m: .*; i: "):
        spark_engine.adopt(frame)
    with pytest.raises(UnsupportedType, match="v: variant"):
        spark_engine.adopt(spark_engine.session.sql("select parse_json('1') as v"))


def test_adopt_ignores_other_objects(spark_engine: SparkEngine) -> None:
    assert spark_engine.adopt(object()) is None
    assert spark_engine.adopt(pa.table({"a": [1]})) is None


def test_sql_binds_parameters_and_keeps_user_views(spark_engine: SparkEngine) -> None:
    spark_engine.session.range(3).createOrReplaceTempView("trips")
    schema = pa.schema([("t", pa.timestamp("us", tz="UTC")), ("s", pa.string())])
    relation = make_relation(
        spark_engine,
        [{"t": NOON, "s": "$start"}, {"t": NOON + dt.timedelta(hours=1), "s": "b"}],
        schema,
    )
    zone = dt.timezone(dt.timedelta(hours=5))
    for mark in ("$", ":"):
        query = f"select s from trips where t >= {mark}start and t < {mark}end and s = '$start'"
        parameters = {"start": NOON.astimezone(zone), "end": NOON + dt.timedelta(hours=1)}
        assert rows_of(
            spark_engine, spark_engine.sql(query, tables={"trips": relation}, parameters=parameters)
        ) == [{"s": "$start"}]
    assert spark_engine.session.table("trips").count() == 3
    spark_engine.session.catalog.dropTempView("trips")


def test_field_names_in_user_sql_are_never_sql(spark_engine: SparkEngine) -> None:
    """Someone who inserts rows chooses the names of a struct's fields."""
    call = "java_method('java.lang.System', 'setProperty', 'fields.test', 'ran')"
    names = [f"a:int>) IS NULL OR {call} IS NULL --", f"a`:int>) IS NULL OR {call} IS NULL --"]
    names += ["a`b", "a b", "a:b", "a,b", "a>", "a'b", 'a"b', "ä", "a.b", "a\nb"]
    session = spark_engine.session
    for value in (dict.fromkeys(names, 1), {names[0]: 1}, {names[1]: 1}):
        rows = pa.table({"s": [value], "items": [[value]]})
        tables = {"rows": spark_engine.from_arrow(rows.to_reader())}
        result = spark_engine.user_sql("select s, items from rows", tables=tables, parameters={})
        assert rows_of(spark_engine, result) == [{"s": value, "items": [value]}]
        getter = "select java_method('java.lang.System', 'getProperty', 'fields.test')"
        assert session.sql(getter).first()[0] != "ran"


def test_queries_and_names_read_no_environment(spark_engine: SparkEngine) -> None:
    """Spark replaces variables in the text of a query before it parses it."""
    spark_engine.session.conf.set("spark.sql.variable.substitute", "true")
    engine = SparkEngine(spark_engine.session)
    for text in ("${env:PATH}", "${system:user.home}", "${spark:spark.master}", "${x}"):
        rows = pa.table({"s": [{text: 1}], text: [7]})
        tables = {"rows": engine.from_arrow(rows.to_reader())}
        queries = {
            f"select '{text}' as v from rows": [{"v": text}],
            f'select "{text}" as v from rows': [{"v": 7}],
            f'select s."{text}" as v from rows': [{"v": 1}],
            "select s from rows": [{"s": {text: 1}}],
        }
        for query, expected in queries.items():
            result = engine.user_sql(query, tables=tables, parameters={})
            assert rows_of(engine, result) == expected
        assert rows_of(engine, engine.filter(tables["rows"], f"'{text}' = 's'")) == []
    engine.close()


def test_invalid_sql_error_names_the_cause(spark_engine: SparkEngine) -> None:
    relation = numbers(spark_engine, 3)
    with pytest.raises(InvalidSql, match="nothing"):
        spark_engine.sql("select nothing from t", tables={"t": relation}, parameters={})
    with pytest.raises(InvalidSql, match="nope"):
        spark_engine.filter(relation, "nope > 1")
    assert not spark_engine.session.catalog.tableExists("t")


def test_within_is_half_open_on_requested_side(spark_engine: SparkEngine) -> None:
    schema = pa.schema([("t", pa.timestamp("us", tz="UTC"))])
    hours = [NOON + dt.timedelta(hours=hour) for hour in range(3)]
    relation = make_relation(spark_engine, [{"t": hour} for hour in [*hours, None]], schema)
    left_closed = spark_engine.within(relation, TimeRange("t", hours[0], hours[2]))
    right_closed = spark_engine.within(relation, TimeRange("t", hours[0], hours[2], closed="right"))
    assert [row["t"] for row in rows_of(spark_engine, left_closed)] == hours[:2]
    assert [row["t"] for row in rows_of(spark_engine, right_closed)] == hours[1:]


def test_filters_and_columns_reach_the_files(spark_engine: SparkEngine, tmp_path: Any) -> None:
    relation = on_executors(make_relation(spark_engine, [FULL, EMPTY]))
    staged = spark_engine.stage(relation, str(tmp_path / "staged"))
    window = TimeRange("when", NOON, NOON + dt.timedelta(days=1))
    plan = spark_engine.explain(
        spark_engine.filter(
            spark_engine.select(spark_engine.within(staged, window), {"n": "id"}), "n > 5"
        )
    )
    assert (
        "PushedFilters: [IsNotNull(when), IsNotNull(id), GreaterThanOrEqual(when,2020-01-01 12:00:00.0)"
        in plan
    )
    assert "GreaterThan(id,5)" in plan
    assert "ReadSchema: struct<id:bigint,when:timestamp>" in plan


def test_buffered_rows_are_independent_of_source_arrays(
    spark_engine: SparkEngine,
) -> None:
    numbers = np.arange(3)
    relation = spark_engine.from_arrow(pa.table({"id": numbers}).to_reader())
    numbers[:] = 7
    assert rows_of(spark_engine, relation) == rows_of(spark_engine, on_executors(relation))
    assert spark_engine.aggregate(relation, Tally()) == [3, 3]


def test_duplicates_are_counted_with_the_most_frequent_first(spark_engine: SparkEngine) -> None:
    schema = pa.schema([("k", pa.uint64()), ("t", pa.timestamp("us", tz="UTC"))])
    keys = [1, 1, 2, 2, 2, 3, None, None]
    relation = make_relation(spark_engine, [{"k": key, "t": NOON} for key in keys], schema)
    for rows in (relation, on_executors(relation)):
        actual = spark_engine.duplicates(rows, ["k", "t"], limit=1)
        assert actual == (2, [{"k": 2, "t": NOON, "n": 3}])
    assert spark_engine.duplicates(spark_engine.filter(relation, "k = 3"), ["k"]) == (0, [])


def test_last_per_key_keeps_null_keys(spark_engine: SparkEngine) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.struct([("a", pa.uint8())]))])
    pairs = [(1, 1), (2, 2), (1, None), (None, 4), (None, 5), (2, 6)]
    relation = make_relation(
        spark_engine, [{"k": k, "v": None if v is None else {"a": v}} for k, v in pairs], schema
    )
    rows = rows_of(spark_engine, spark_engine.last_per_key(relation, ["k"]))
    assert sorted(map(str, rows)) == sorted(
        map(
            str,
            [
                {"k": 1, "v": None},
                {"k": 2, "v": {"a": 6}},
                {"k": None, "v": {"a": 4}},
                {"k": None, "v": {"a": 5}},
            ],
        )
    )


def test_parquet_folders_are_read_recursively_by_name(
    spark_engine: SparkEngine, tmp_path: Any
) -> None:
    os.makedirs(tmp_path / "deep" / "er")
    parquet.write_table(
        pa.table({"a": pa.array([1], pa.uint8()), "b": ["x"]}), tmp_path / "deep" / "one.parquet"
    )
    parquet.write_table(
        pa.table({"b": ["y"], "c": [1.5]}), tmp_path / "deep" / "er" / "two.parquet"
    )
    rows = rows_of(spark_engine, spark_engine.read_files([str(tmp_path / "deep")]))
    assert {"a": 1, "b": "x", "c": None} in rows
    assert {"a": None, "b": "y", "c": 1.5} in rows
    typed = pa.schema([("a", pa.uint8()), ("z", pa.float32())])
    assert rows_of(
        spark_engine,
        spark_engine.read_files([str(tmp_path / "deep" / "one.parquet")], schema=typed),
    ) == [{"a": 1, "z": None}]
    with pytest.raises(StorageError, match="does not exist"):
        spark_engine.read_files([str(tmp_path / "nothing")])


def test_whole_microseconds_of_nanosecond_files_are_read(
    spark_engine: SparkEngine, tmp_path: Any
) -> None:
    path = str(tmp_path / "times.parquet")
    times = pa.array([NOON, None], pa.timestamp("ns", tz="UTC"))
    parquet.write_table(pa.table({"t": times}), path)
    setting = "spark.sql.legacy.parquet.nanosAsLong"
    spark_engine.session.conf.set(setting, "false")
    try:
        with pytest.raises(ConfigurationError, match=setting):
            spark_engine.read_files([path])
        spark_engine.session.conf.set(setting, "true")
        assert rows_of(spark_engine, spark_engine.read_files([path])) == [{"t": NOON}, {"t": None}]
        parquet.write_table(pa.table({"t": pa.array([1], pa.timestamp("ns", tz="UTC"))}), path)
        with pytest.raises(EngineError, match="finer than a microsecond"):
            spark_engine.count(spark_engine.filter(spark_engine.read_files([path]), "t is null"))
    finally:
        spark_engine.session.conf.set(setting, "true")


def test_missing_version_is_named(spark_engine: SparkEngine, tmp_path: Any) -> None:
    path = str(tmp_path / "table")
    spark_engine.create_table(
        path, schema=SCHEMA, partition_by=(), properties={}, commit_metadata={}
    )
    with pytest.raises(VersionNotFound, match="Unknown Delta version 7"):
        spark_engine.read_table(path, version=7)
