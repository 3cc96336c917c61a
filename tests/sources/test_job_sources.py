"""Jobs over registered sources: one snapshot per window, recorded reads and deletes."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import featurestore
from featurestore.errors import InvalidArgument, InvalidJob, JobFailed
from featurestore.model.job import JobSpec
from featurestore.registry import lineage
from featurestore.store import FeatureStore
from tests.jobs.conftest import (  # noqa: F401  # fixtures
    HOURS,
    SQL,
    Clock,
    clock,
    define,
    expected,
    rows,
    sql_job,
    trips,
)
from tests.on_spark import spark_in_soak
from tests.registry.conftest import postgres_server, postgres_url  # noqa: F401  # fixtures

Define = Callable[..., Path]
TRIPS = '{"trips": featurestore.source("city", table="trips", time="left_at")}'
CUSTOMERS = """
import featurestore
customers = featurestore.sql_job(
    "customers", sql="select id, name, gone, changed_at from given", primary_key="id",
    event_time="changed_at", schedule="0 * * * *", start="2024-01-01T00:00Z", mode="upsert",
    closed="left", inputs={{"given": featurestore.source("crm", table="customers"{time})}}, {rules}
)
"""


def sqlite_of(path: Path, table: pa.Table, name: str) -> str:
    """Write rows into a table of a SQLite file and return its URI."""
    kinds = {"string": "text", "int64": "integer", "bool": "boolean"}
    columns = []
    for field in table.schema:
        columns.append(f"{field.name} {kinds.get(str(field.type), 'timestamp')}")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"drop table if exists {name}")
        database.execute(f"create table {name} ({', '.join(columns)})")
        marks = ", ".join("?" for _ in columns)
        for row in table.to_pylist():
            values = [str(value) if hasattr(value, "hour") else value for value in row.values()]
            database.execute(f"insert into {name} values ({marks})", values)
    return f"sqlite:///{path}"


@pytest.fixture
def city(tmp_path: Path, clock: Clock, store: FeatureStore) -> FeatureStore:  # noqa: F811
    del clock
    store.add_source("city", sqlite_of(tmp_path / "city.db", trips(), "trips"))
    return store


def test_job_over_source_equals_job_over_group(
    city: FeatureStore,
    define: Define,  # noqa: F811
) -> None:
    (definition,) = city.register_jobs(define(sql_job(inputs=TRIPS)))
    del definition
    assert city.plan_job("demand").inputs[0].source == "source:city"
    (run,) = city.run_job("demand", due=True)
    assert (run.state, run.windows) == ("done", HOURS), run.error
    assert rows(city) == expected()
    (source_read,) = city.get_featuregroup_history("demand")[0].inputs.values()
    assert (source_read["source"], source_read["input"], source_read["rows"]) == (
        "source:city",
        "trips",
        len(trips()),
    )
    assert source_read["high_water_mark"] == "2024-01-02T23:50:00+00:00"
    assert source_read["snapshot"]
    assert len(source_read["query"]) == 64
    with city.session.registry.reading() as connection:
        (edge,) = lineage.sources(connection, "featuregroup", "demand", 1)
    assert (edge.source, edge.detail, edge.job) == ("source:city", source_read, "demand")


def test_job_function_gets_rows_of_each_window(
    empty_store: FeatureStore,
    tmp_path: Path,
    clock: Clock,  # noqa: F811
    define: Define,  # noqa: F811
) -> None:
    del clock
    empty_store.add_source("city", sqlite_of(tmp_path / "city.db", trips(), "trips"))
    source = """
import featurestore
@featurestore.job(
    featuregroup="demand", primary_key=["zone"], event_time="hour", schedule="0 * * * *",
    start="2024-01-01T00:00Z",
    inputs={"trips": featurestore.source(
        "city", sql="select zone, left_at, fare from trips", time="left_at")},
)
def demand(window, trips):
    return trips.aggregate("zone, date_trunc('hour', left_at) + interval 1 hour as hour, "
                           "count(*) as trips, sum(fare) as fares")
"""
    empty_store.register_jobs(define(source))
    runs = empty_store.run_job("demand", due=True)
    assert {run.state for run in runs} == {"done"}, runs[0].error
    assert rows(empty_store) == expected()


@pytest.mark.postgres
def test_job_reads_only_window_and_columns(
    empty_store: FeatureStore,
    clock: Clock,  # noqa: F811
    define: Define,  # noqa: F811
    postgres_url: str,  # noqa: F811
) -> None:
    import psycopg

    del clock
    with psycopg.connect(postgres_url, autocommit=True) as database:
        database.execute("create table trips (zone text, left_at timestamptz, fare int, fat money)")
        for row in trips().to_pylist():
            values = (row["zone"], row["left_at"], row["fare"])
            database.execute("insert into trips values (%s, %s, %s, 1)", values)
        database.execute(
            f"alter database {postgres_url.rsplit('/', 1)[1]} set log_statement = 'all'"
        )
        (data,) = database.execute("show data_directory").fetchone() or ("",)
    empty_store.add_source("city", postgres_url)
    empty_store.register_jobs(define(sql_job(inputs=TRIPS, rules='lookback="30min"')))
    (run,) = empty_store.backfill_job("demand", "2024-01-01T03:00Z", "2024-01-01T04:00Z")
    assert run.state == "done", run.error
    assert rows(empty_store) == expected(4, first=3)
    log = Path(data).parent.joinpath("log").read_text().splitlines()
    (statement,) = [line for line in log if "COPY" in line and 'FROM "trips"' in line]
    assert "fat" not in statement
    assert "\"left_at\" >= TIMESTAMPTZ '2024-01-01 02:30:00.000000+00:00'" in statement
    assert "\"left_at\" < TIMESTAMPTZ '2024-01-01 04:00:00.000000+00:00'" in statement


def test_failed_source_read_is_retried_by_next_run(
    empty_store: FeatureStore,
    tmp_path: Path,
    clock: Clock,  # noqa: F811
    define: Define,  # noqa: F811
) -> None:
    del clock
    path = tmp_path / "city.db"
    empty_store.add_source("city", sqlite_of(path, trips(), "trips"))
    empty_store.register_jobs(define(sql_job(inputs=TRIPS)))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("alter table trips rename column fare to price")
    with pytest.raises(JobFailed, match="fare"):
        empty_store.run_job("demand", due=True)
    path.rename(tmp_path / "away.db")
    with pytest.raises(JobFailed, match="does not exist"):
        empty_store.run_job("demand", due=True)
    assert empty_store.get_featuregroups() == []
    sqlite_of(path, trips(), "trips")
    assert {run.state for run in empty_store.run_job("demand", due=True)} == {"done"}
    assert rows(empty_store) == expected()


def customers(*changes: tuple[int, str, bool, int]) -> pa.Table:
    """Return customers with the hour of their last change."""
    from tests.jobs.conftest import START, timedelta

    return pa.table(
        {
            "id": pa.array([change[0] for change in changes], pa.int64()),
            "name": [change[1] for change in changes],
            "gone": [change[2] for change in changes],
            "changed_at": pa.array(
                [START + timedelta(hours=change[3], minutes=5) for change in changes],
                pa.timestamp("us", tz="UTC"),
            ),
        }
    )


def read_customers(store: FeatureStore) -> list[tuple[Any, ...]]:
    result = store.get_featuregroup("customers").to_arrow().to_pylist()
    return sorted((row["id"], row["name"]) for row in result)


def test_tombstones_delete_earlier_rows_of_key(
    store: FeatureStore,
    tmp_path: Path,
    clock: Clock,  # noqa: F811
    define: Define,  # noqa: F811
) -> None:
    path = tmp_path / "crm.db"
    first = customers((1, "ada", False, 0), (2, "bob", False, 0), (3, "eve", False, 1))
    store.add_source("crm", sqlite_of(path, first, "customers"))
    text = CUSTOMERS.format(time=', time="changed_at"', rules='tombstone="gone"')
    store.register_jobs(define(text))
    from tests.jobs.conftest import START, timedelta

    clock.now = START + timedelta(hours=2)
    (run,) = store.run_job("customers", due=True)
    assert run.state == "done", run.error
    assert read_customers(store) == [(1, "ada"), (2, "bob"), (3, "eve")]
    later = customers((1, "ada", True, 2), (2, "bobby", False, 2), (1, "ada again", False, 3))
    sqlite_of(path, later, "customers")
    clock.now = START + timedelta(hours=4)
    runs = store.run_job("customers", due=True)
    assert {run.state for run in runs} == {"done"}, runs[0].error
    assert read_customers(store) == [(1, "ada again"), (2, "bob"), (2, "bobby"), (3, "eve")]
    assert "gone" not in store.get_featuregroup("customers").columns
    start, end = START + timedelta(hours=2), START + timedelta(hours=4)
    store.backfill_job("customers", start, end, resume=False)  # once more changes nothing
    assert read_customers(store) == [(1, "ada again"), (2, "bob"), (2, "bobby"), (3, "eve")]


@spark_in_soak  # tombstones delete rows on Spark, too
def test_missing_keys_are_deleted_unless_all_missing(
    store: FeatureStore,
    tmp_path: Path,
    clock: Clock,  # noqa: F811
    define: Define,  # noqa: F811
) -> None:
    from tests.jobs.conftest import START, timedelta

    path = tmp_path / "crm.db"
    first = customers((1, "ada", False, 0), (2, "o'bob", False, 0), (3, "eve", False, 0))
    store.add_source("crm", sqlite_of(path, first, "customers"))
    text = CUSTOMERS.format(time=', time="changed_at"', rules="delete_missing=True")
    store.register_jobs(define(text))
    clock.now = START + timedelta(hours=1)
    store.run_job("customers", due=True)
    assert len(read_customers(store)) == 3
    sqlite_of(path, customers((1, "ada", False, 0), (4, "joe", False, 1)), "customers")
    clock.now = START + timedelta(hours=2)
    (run,) = store.run_job("customers", due=True)
    assert run.state == "done", run.error
    assert read_customers(store) == [(1, "ada"), (4, "joe")]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("delete from customers")
    clock.now = START + timedelta(hours=3)
    with pytest.raises(JobFailed, match="the source has no rows"):
        store.run_job("customers", due=True)
    assert read_customers(store) == [(1, "ada"), (4, "joe")]


COUNTS = """
counts = featurestore.sql_job(
    "counts", sql="select 'all' as site, count(*) as rows, date_trunc('hour', changed_at) + "
    "interval 1 hour as hour from customers group by all", primary_key="site", event_time="hour",
    schedule="0 * * * *", start="2024-01-01T00:00Z", inputs={"customers": "customers"},
)
"""


def test_late_rows_within_lookback_are_read(
    empty_store: FeatureStore,
    tmp_path: Path,
    clock: Clock,  # noqa: F811
    define: Define,  # noqa: F811
) -> None:
    from tests.jobs.conftest import START, timedelta

    path = tmp_path / "crm.db"
    first = [(1, "ada", False, 0), (2, "bob", False, 3)]
    empty_store.add_source("crm", sqlite_of(path, customers(*first), "customers"))
    text = CUSTOMERS.format(time=', time="changed_at"', rules='lookback="2h"')
    empty_store.register_jobs(define(text, COUNTS))
    clock.now = START + timedelta(hours=4)
    for name in ("customers", "counts"):
        assert {run.state for run in empty_store.run_job(name, due=True)} == {"done"}
    late = [(1, "too late", False, 1), (3, "late", False, 2), (2, "bob again", False, 3)]
    sqlite_of(path, customers(*first[:1], *late, (4, "new", False, 4)), "customers")
    clock.now = START + timedelta(hours=5)
    runs = empty_store.run_job("customers", due=True)
    assert {run.state for run in runs} == {"done"}, runs[0].error
    assert read_customers(empty_store) == [(1, "ada"), (2, "bob again"), (3, "late"), (4, "new")]
    (run,) = empty_store.run_job("counts", stale=True)
    actual = (run.window.start - START, run.window.end - START)
    assert actual == (timedelta(hours=2), timedelta(hours=4))


def test_source_definitions_are_stored_or_refused() -> None:
    spec = featurestore.sql_job(
        "demand",
        sql=SQL,
        primary_key="zone",
        event_time="hour",
        schedule="0 * * * *",
        mode="upsert",
        tombstone="gone",
        delete_missing=True,
        inputs={"trips": featurestore.source("city", table="trips", time="left_at")},
    ).spec
    assert JobSpec.from_text(json.dumps(spec.to_json())) == spec
    assert spec.work.input_times == {"trips": "left_at"}
    with pytest.raises(InvalidArgument, match="exclude each other"):
        featurestore.source("city", table="trips", sql="select 1")
    for wrong in (
        {"mode": "append", "tombstone": "gone"},
        {"mode": "upsert", "delete_missing": True},
    ):
        with pytest.raises(InvalidJob, match=r"upsert|one source"):
            featurestore.sql_job(
                "demand",
                sql=SQL,
                primary_key="zone",
                event_time="hour",
                schedule="0 * * * *",
                inputs={"trips": "trips"},
                **wrong,  # type: ignore[arg-type]
            )


PICTURES = """
import featurestore

pictures = featurestore.sql_job(
    "pictures", sql="SELECT id, taken_at, image FROM given", primary_key="id", event_time="taken_at",
    schedule="0 * * * *", start="2024-01-01T00:00Z", closed="left",
    inputs={"given": featurestore.source("arrays", time="taken_at")},
)
"""


def test_encoded_arrays_error_has_decode_hint(
    empty_store: FeatureStore,
    define: Define,  # noqa: F811
    clock: Clock,  # noqa: F811
    tmp_path: Path,
) -> None:
    del clock
    cells = io.BytesIO()
    np.save(cells, np.ones((2, 3)))
    (tmp_path / "arrays").mkdir()
    times = trips()["left_at"].slice(0, 2)
    images = pa.array([None, cells.getvalue()])
    table = pa.table({"id": [1, 2], "taken_at": times, "image": images})
    pq.write_table(table, tmp_path / "arrays" / "part-0.parquet")
    empty_store.add_source("arrays", str(tmp_path / "arrays"))
    empty_store.register_jobs(define(PICTURES))
    for _ in range(2):  # the second one meets the group that empty windows have made
        with pytest.raises(JobFailed, match="NdarrayCodec"):
            empty_store.run_job("pictures", due=True)
        assert empty_store.featuregroup("pictures").read().count() == 0
