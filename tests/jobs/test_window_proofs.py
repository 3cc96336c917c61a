"""Chunks of windows: one query for many windows only with a proof, and with the rows of each window."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featurestore
from featurestore.errors import (
    FeatureStoreError,
    InvalidJob,
    InvalidSql,
    JobFailed,
    RowsOutsideWindow,
)
from featurestore.jobs.compute import compute_transform
from featurestore.jobs.definitions import JobDefinition
from featurestore.jobs.inputs import SourceInputs, pin_inputs
from featurestore.jobs.query import Unproven, parse_query
from featurestore.jobs.run import JobRun
from featurestore.jobs.window_proofs import TimeExpression, prove_chunk
from featurestore.model.job import JobSpec, SqlWork
from featurestore.model.times import Window, to_micros
from featurestore.registry.jobs import RegisteredJob
from featurestore.store import FeatureStore
from featurestore.usersql import find_tables
from tests.jobs.conftest import START
from tests.jobs.random_queries import QueryGenerator

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
HOURLY = [Window(START + n * HOUR, START + (n + 1) * HOUR) for n in range(30)]
CHUNK = tuple(HOURLY[:5])
UNITS = ["second", "minute", "hour", "day", "week", "month", "year"]
TIMESTAMPS = st.datetimes(datetime(1950, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMES = {"trips": "left_at", "stops": "left_at"}


def input_tables(seed: int = 0) -> dict[str, pa.Table]:
    """Return rows of five hours: every third is on the bound of a window or just before it."""
    random = np.random.default_rng(seed)
    tables = {}
    for name, count in (("trips", 40), ("stops", 10)):
        quarters = random.integers(0, 20, count)
        event_times = [START + timedelta(minutes=15 * int(quarter)) for quarter in quarters]
        for number in range(0, count, 7):
            event_times[number] -= timedelta(microseconds=int(event_times[number] > START))
        tables[name] = pa.table(
            {
                "id": pa.array(range(count), pa.int64()),
                "left_at": pa.array(event_times, TIMESTAMP),
                "zone": random.choice(["a", "b", "c"], count),
                "fare": pa.array(random.integers(0, 5, count), pa.int64()),
            }
        )
    valid_from = [START + timedelta(minutes=50 * number) for number in range(8)]
    tables["prices"] = pa.table(
        {
            "zone": list("aaabbddd"),
            "price": pa.array(range(8), pa.int64()),
            "left_at": pa.array(valid_from, TIMESTAMP),
            "valid_from": pa.array(valid_from, TIMESTAMP),
        }
    )
    return tables


TABLES = input_tables()
SCHEMAS = {name: table.schema for name, table in TABLES.items()}


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureStore]:
    """A store with two groups that have event times, and one without."""
    with featurestore.connect(tmp_path_factory.mktemp("market"), engine="duckdb") as store:
        fill_market(store)
        yield store


def fill_market(store: FeatureStore) -> None:
    for name, table in TABLES.items():
        key = ["id"] if name in TIMES else ["zone", "price"]
        store.create_featuregroup(table, name, primary_key=key, event_time=TIMES.get(name))


def build_spec(sql: str, **rules: Any) -> JobSpec:
    values = {"primary_key": ["zone"], "event_time": "hour", "schedule": "0 * * * *"}
    inputs = {name: name for name in find_tables(sql)}
    return featurestore.sql_job("demand", sql=sql, inputs=inputs, **{**values, **rules}).spec


def sql_work(spec: JobSpec) -> SqlWork:
    assert isinstance(spec.work, SqlWork)
    return spec.work


def outcome_of(spec: JobSpec, windows: Sequence[Window] = CHUNK) -> str:
    """Return how windows are computed: "as is", "columns", or the reason for one by one."""
    work = sql_work(spec)
    try:
        chunk = prove_chunk(work, windows, schemas=SCHEMAS, times=TIMES)
    except Unproven as obstacle:
        return str(obstacle)
    assert (chunk.input is None) == (chunk.code == work.code)
    return "as is" if chunk.input is None else "columns"


# -- Proofs ---------------------------------------------------------------------------------------


@st.composite
def time_expressions(draw: st.DrawFn) -> str:
    """Draw a time expression of any depth that the proof supports."""
    text = "left_at"
    for _ in range(draw(st.integers(0, 3))):
        unit = draw(st.sampled_from(UNITS))
        form = draw(st.sampled_from(["truncate", "shift", "cast"]))
        amount = draw(st.integers(1, 90))
        if form == "truncate":
            text = f"date_trunc('{unit}', {text})"
        elif form == "cast":
            text = f"cast({text} as {draw(st.sampled_from(['date', 'timestamp', 'timestamptz']))})"
        elif unit not in ("month", "year"):
            sign = draw(st.sampled_from("+-"))
            text = f"({text} {sign} interval {amount} {unit}s)"
    return text


@cache
def utc_database() -> duckdb.DuckDBPyConnection:
    """Return an empty database; opening one takes longer than a query."""
    connection = duckdb.connect()
    connection.execute("set TimeZone = 'UTC'")
    return connection


@given(time_expressions(), st.lists(TIMESTAMPS, min_size=1, max_size=5))
def test_transform_of_event_time_equals_duckdb(text: str, timestamps: list[datetime]) -> None:
    expression = TimeExpression.parse(parse_query(f"select {text}").expressions[0])
    assert expression.operand.sql() == "left_at"
    micros = np.array([to_micros(timestamp) for timestamp in timestamps], np.int64)
    actual = expression.compute(micros).tolist()
    sql = f"select epoch_us({text}) from (select unnest($timestamps::timestamptz[]) as left_at)"
    result = utc_database().execute(sql, {"timestamps": timestamps}).fetchall()
    assert actual == [row[0] for row in result]


HOURS = "date_trunc('hour', left_at) + interval 1 hour as hour"
BOUNDED = "from trips where left_at >= $window_start and left_at < $window_end"
JOINED = f"select t.zone, {HOURS.replace('left_at', 't.left_at')}, count(*) as n from trips t"
# A query, rules of its job, and how windows are computed.
PROOFS: list[tuple[str, dict[str, Any], str]] = [
    (f"select zone, {HOURS}, count(*) as n {BOUNDED} group by zone, hour", {}, "as is"),
    (f"select zone, {HOURS}, count(*) as n from trips group by all", {}, "as is"),
    (f"select zone, {HOURS}, sum(fare) as n {BOUNDED} group by 1, left_at having n > 1", {}, "as is"),
    (f"select distinct zone, {HOURS} {BOUNDED}", {}, "as is"),
    ("select * from trips", {"closed": "left", "event_time": "left_at"}, "as is"),
    ("select *, left_at as hour from trips", {"closed": "left"}, "as is"),
    (f"{JOINED} join prices p using (zone) group by all", {}, "as is"),
    (f"{JOINED} left join prices p on p.zone = t.zone group by 1, 2", {}, "as is"),
    ("select p.zone, t.left_at as hour from prices p right join trips t using (zone)",
     {"closed": "left"}, "as is"),
    # Bounds
    ("select zone, left_at as hour from trips where left_at > $window_start", {"closed": "left"},
     "columns"),
    ("select zone, left_at as hour from trips where left_at <= $window_end", {"closed": "left"},
     "columns"),
    ("select zone, left_at as hour from trips where not left_at < $window_start",
     {"closed": "left"}, "columns"),
    ("select zone, left_at as hour from trips where fare >= $window_start", {"closed": "left"},
     "columns"),
    (f"{JOINED} join prices p using (zone) where p.left_at < $window_end group by all", {},
     "columns"),
    (f"{JOINED} join prices p using (zone) where left_at < $window_end group by all", {},
     "columns"),
    (f"{JOINED} join prices p on p.zone = t.zone and p.valid_from < $window_end group by all", {},
     "columns"),
    ("select zone, $window_end as hour, count(*) as n from trips group by all", {}, "columns"),
    # Tables
    (f"{JOINED} join stops s using (zone) group by all", {}, "reads inputs with a time 2 times"),
    (f"{JOINED} join trips s using (zone) group by all", {}, "reads inputs with a time 2 times"),
    ("select zone, valid_from as hour from prices", {}, "reads inputs with a time 0 times"),
    (f"{JOINED} right join prices p using (zone) group by all", {}, "may add rows"),
    (f"{JOINED} full join prices p using (zone) group by all", {}, "may add rows"),
    ("select p.zone, p.valid_from as hour from prices p semi join trips t using (zone)", {},
     "may add rows"),
    ("select t.zone, t.left_at as hour from trips t positional join prices p", {}, "may add rows"),
    (f"select zone, {HOURS} from trips as t(id, left_at, fare, zone)", {}, "may combine rows"),
    (f"select zone, {HOURS} from (trips join prices using (zone))", {}, "may combine rows"),
    # Clauses and functions
    ("select zone, left_at as hour, lag(fare) over (order by id) as l from trips", {},
     "may combine rows"),
    (f"with t as (select * from trips) select zone, {HOURS} from t", {}, "may combine rows"),
    (f"select zone, {HOURS} from trips where fare = (select max(fare) from trips)", {},
     "may combine rows"),
    (f"select zone, {HOURS} from trips limit 3", {}, "may combine rows"),
    (f"select distinct on (zone) zone, {HOURS} from trips", {}, "may combine rows"),
    (f"select zone, {HOURS} from trips union all select zone, left_at from trips", {},
     "not a SELECT"),
    (f"select zone, {HOURS}, count(*) from trips group by rollup (zone, hour)", {},
     "may combine rows"),
    (f"select {HOURS}, first(zone) as zone from trips group by all", {}, "depends on the order"),
    ("select max(left_at) as hour, count(*) as n from trips", {}, "one row for all windows"),
    # The event time
    ("select zone, count(*) as n from trips group by 1", {}, "columns"),
    ("select zone, count(*) as n from trips group by all", {}, "columns"),
    ("select zone, count(*) as n from trips group by 1", {"closed": "left"}, "no column 'hour'"),
    ("select count(*) as n from trips", {}, "one row for all windows"),
    ("select zone, $window_end - interval 1 hour as hour from trips", {}, "may be outside"),
    ("select zone, $window_end - interval 1 hour as hour from trips", {"closed": "left"},
     "columns"),
    (f"select zone, {HOURS}, epoch($window_end) / count(*) as n from trips group by 1, 2", {},
     "columns"),
    (f"select zone, {HOURS}, epoch($window_end) / count(*) as n from trips group by all", {},
     "GROUP BY ALL"),
    ("select *, $window_end as hour from trips", {}, "* would return"),
    ("select t.zone from prices p join prices q on p.left_at < $window_end join trips t using (zone)",
     {}, "does not see"),
    ("select zone, left_at as hour, left_at as Hour from trips", {"closed": "left"},
     "exactly one column"),
    ("select *, left_at as hour from trips", {}, "may be outside"),
    ("select zone, date_trunc('hour', left_at) as hour from trips", {}, "may be outside"),
    (f"select zone, {HOURS} from trips", {"closed": "left"}, "may be outside"),
    ("select zone, date_trunc('day', left_at) + interval 1 day as hour from trips", {},
     "may be outside"),
    ("select zone, date_trunc('hour', left_at) + interval 1 month as hour from trips", {},
     "not a known function"),
    ("select zone, max(left_at) as hour from trips group by zone", {"closed": "left"},
     "not a known function"),
    ("select zone, left_at + fare * interval 1 minute as hour from trips", {},
     "not a known function"),
    (f"select zone, {HOURS}, count(*) as n from trips group by zone", {}, "columns"),
    (f"select zone, {HOURS} from trips", {"lookback": "1h"}, "lookback="),
]  # fmt: skip


def test_prove_chunk_of_query(subtests: pytest.Subtests) -> None:
    for query, rules, expected in PROOFS:
        with subtests.test(query=query, **rules):
            outcome = outcome_of(build_spec(query, **rules))
            if expected in ("as is", "columns"):
                assert outcome == expected
            else:
                assert expected in outcome


def test_prove_chunk_of_windows_with_gap_raises() -> None:
    spec = build_spec(f"select zone, {HOURS} {BOUNDED}")
    assert outcome_of(spec, HOURLY) == "as is"
    assert outcome_of(spec, HOURLY[::2]) == "there is time between the windows"


# -- The rows of chunks ---------------------------------------------------------------------------

Rows = list[tuple[Any, ...]] | type[Exception]


def rows_of_chunk(
    store: FeatureStore, spec: JobSpec, windows: tuple[Window, ...], folder: Path
) -> Rows:
    """Return the rows that the library computes for windows, or the class of its error."""
    job = RegisteredJob(spec, 1, "", paused=False, watermark=None)
    run = JobRun(store.session, job, JobDefinition(spec), windows, "owner")
    run = replace(run, inputs=pin_inputs(store.session, spec), staging=str(folder))
    work = sql_work(spec)
    sources = SourceInputs(store.session, work, run.inputs, run.staging)
    try:
        relation = compute_transform(run, work, sources)
        assert relation is not None
        return sort_rows(store.session.engine.stream(relation).read_all())
    except FeatureStoreError as error:
        return type(error)


def rows_of_windows(spec: JobSpec, windows: Sequence[Window]) -> Rows:
    """Return the rows that DuckDB computes for each window alone, or the class of an error."""
    work, results = sql_work(spec), []
    for window in windows:
        connection = tables_of_window(window.start - work.lookback, window.end)
        bounds = {"window_start": window.start, "window_end": window.end}
        used = {name: value for name, value in bounds.items() if f"${name}" in work.code}
        try:
            result = connection.sql(work.code, params=used).to_arrow_table()
        except duckdb.Error:
            return InvalidSql
        if "hour" not in result.schema.names:
            if work.closed == "left":
                return InvalidJob
            stamps = pa.array([window.end] * len(result), TIMESTAMP)
            result = result.append_column("hour", stamps)
        for time in to_timestamps(result["hour"]):
            if time is None or not is_inside(time, window, work.closed):
                return RowsOutsideWindow
        results += sort_rows(result)
    return sorted(results, key=repr)


@cache
def tables_of_window(start: datetime, end: datetime) -> duckdb.DuckDBPyConnection:
    """Return a database with the input rows that a window may read."""
    connection = duckdb.connect()
    connection.execute("set TimeZone = 'UTC'")
    for name, table in TABLES.items():
        if name in TIMES:
            times = table["left_at"].to_pylist()
            table = table.filter([start <= time < end for time in times])
        connection.register("rows", table)
        connection.execute(f"create table {name} as from rows")
    return connection


def sort_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows with plain values, sorted: equal rows of two engines are equal."""
    columns = [
        to_timestamps(column)
        if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)
        else [round(float(value), 6) if is_number(value) else value for value in column.to_pylist()]
        for column in table.columns
    ]
    return sorted(zip(*columns, strict=True), key=repr)


def is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal)


def to_timestamps(column: pa.ChunkedArray) -> list[datetime | None]:
    """Return times as timestamps; dates are midnights, and times without a zone are UTC."""
    return column.cast(pa.timestamp("us")).cast(TIMESTAMP).to_pylist()


def is_inside(time: datetime, window: Window, closed: str) -> bool:
    if closed == "right":
        return window.start < time <= window.end
    return window.start <= time < window.end


@pytest.mark.filterwarnings("ignore::featurestore.model.times.NaiveTimeWarning")
@pytest.mark.parametrize("count", [60, pytest.param(20_000, marks=pytest.mark.soak)])
def test_random_queries_in_chunk_equal_single_windows(
    market: FeatureStore, tmp_path: Path, count: int
) -> None:
    statistics: Counter[str] = Counter()
    for seed in range(count):
        query = QueryGenerator(seed).query()
        spec = build_spec(**query.rules)
        outcome = outcome_of(spec)
        if outcome not in ("as is", "columns"):
            statistics["one by one"] += 1
            # Such windows take 30 ms each, so only a sample is computed.
            if seed % 20:
                continue
        actual = rows_of_chunk(market, spec, CHUNK, tmp_path / str(seed))
        expected = rows_of_windows(spec, CHUNK)
        check_alike(actual, expected, f"{query} ({outcome})")
        if isinstance(expected, list) and expected:
            statistics[outcome] += 1
    # The test shows nothing if all random queries are computed in the same way.
    for outcome in ("as is", "columns", "one by one"):
        assert statistics[outcome] > count / 12, statistics


def check_alike(actual: Rows, expected: Rows, query: str) -> None:
    if isinstance(expected, type) and isinstance(actual, type):
        assert (actual is RowsOutsideWindow) == (expected is RowsOutsideWindow), query
    else:
        assert actual == expected, query


LOWER = {"": None, "{time} >= $window_start": operator.ge, "{time} > $window_start": operator.gt}
UPPER = {"": None, "{time} < $window_end": operator.lt, "{time} <= $window_end": operator.le}
# The event time, and how much later it is than the hour of the row; None is the window's end.
STAMPS: dict[str, timedelta | None] = {
    "": None,
    "$window_end as hour": None,
    "date_trunc('hour', {time}) as hour": timedelta(0),
    "date_trunc('hour', {time}) + interval 30 minutes as hour": timedelta(minutes=30),
    "date_trunc('hour', {time}) + interval 1 hour as hour": HOUR,
}
SIMPLE = [
    (lower, upper, stamp, closed)
    for lower in LOWER
    for upper in UPPER
    for stamp in STAMPS
    for closed in ("left", "right")
    if stamp or closed == "right"
]


@pytest.mark.parametrize("count", [15, pytest.param(len(SIMPLE), marks=pytest.mark.soak)])
def test_chunks_of_simple_queries_equal_python(
    market: FeatureStore, tmp_path: Path, count: int
) -> None:
    outcomes: Counter[str] = Counter()
    for number, (lower, upper, stamp, closed) in enumerate(Random(1).sample(SIMPLE, count)):
        conditions = [condition for condition in (lower, upper) if condition]
        text = (
            f"select zone, count(*) as n, sum(fare) as fares{stamp and ', '}{stamp} from trips"
            f"{' where ' if conditions else ''}{' and '.join(conditions)}"
            f" group by zone{stamp and ', hour'}"
        )
        spec = build_spec(text.format(time="left_at"), closed=closed)
        outcomes[outcome_of(spec)] += 1
        actual = rows_of_chunk(market, spec, CHUNK, tmp_path / str(number))
        expected = rows_in_python(LOWER[lower], UPPER[upper], STAMPS[stamp], closed)
        check_alike(actual, expected, f"{sql_work(spec).code} closed={closed}")
    assert outcomes["as is"]
    assert outcomes["columns"] > count / 4


def rows_in_python(
    lower: Callable[..., bool] | None,
    upper: Callable[..., bool] | None,
    shift: timedelta | None,
    closed: str,
) -> Rows:
    """Return the count and the sum of fares for each zone and event time, window by window."""
    groups: dict[tuple[str, datetime], list[int]] = {}
    for window in CHUNK:
        for row in TABLES["trips"].to_pylist():
            time = row["left_at"]
            is_below = lower is not None and not lower(time, window.start)
            is_above = upper is not None and not upper(time, window.end)
            if not window.start <= time < window.end or is_below or is_above:
                continue
            stamp = window.end
            if shift is not None:
                stamp = time.replace(minute=0, second=0, microsecond=0) + shift
            if not is_inside(stamp, window, closed):
                return RowsOutsideWindow
            groups.setdefault((row["zone"], stamp), []).append(row["fare"])
    return sorted(
        [
            (zone, float(len(fares)), float(sum(fares)), time)
            for (zone, time), fares in groups.items()
        ],
        key=repr,
    )


@pytest.fixture
def crossing(tmp_path: Path) -> FeatureStore:
    """A store with trips on the bounds between inner windows, and a price that rises later."""
    store = featurestore.connect(tmp_path / "crossing", engine="duckdb")
    minutes = {"a": [30, 90, 120, 150, 270], "b": [70, 170]}
    trips = [
        {"id": 100 * minute + number, "left_at": START + timedelta(minutes=minute), "zone": zone}
        for zone, times in minutes.items()
        for minute in times
        for number in range(2)
    ]
    store.create_featuregroup(trips, "trips", primary_key="id", event_time="left_at")
    prices = [
        {"zone": zone, "price": price, "left_at": START + timedelta(minutes=minute)}
        for zone, price, minute in (("a", 1, 0), ("b", 2, 0), ("b", 5, 160))
    ]
    store.create_featuregroup(prices, "prices", primary_key=["zone", "price"])
    return store


CROSSING_QUERIES = {
    "strict": f"""select zone, {HOURS}, count(*) as value from trips
        where left_at > $window_start and left_at <= $window_end group by all""",
    "leak": f"""select t.zone, {HOURS.replace("left_at", "t.left_at")}, max(p.price) as value
        from trips t join prices p on p.zone = t.zone
        where t.left_at >= $window_start and t.left_at < $window_end and p.left_at < $window_end
        group by all""",
    "outside": "select zone, left_at as hour, count(*) as value from trips group by all",
    "proven": f"select zone, {HOURS}, count(*) as value {BOUNDED} group by all",
}

# The zone, the minute of the event time and the value of each row.
EXPECTED_CROSSINGS = {
    # Strict bounds leave out the trips at the start of a window.
    "strict": [("a", 60, 2), ("a", 120, 2), ("a", 180, 2), ("a", 300, 2), ("b", 120, 2),
               ("b", 180, 2)],
    # The price from minute 160 is not known before.
    "leak": [("a", 60, 1), ("a", 120, 1), ("a", 180, 1), ("a", 300, 1), ("b", 120, 2),
             ("b", 180, 5)],
    # A window with a trip at its start fails, and is not written.
    "outside": [("a", 30, 2), ("a", 90, 2), ("a", 270, 2), ("b", 70, 2)],
    "proven": [("a", 60, 2), ("a", 120, 2), ("a", 180, 4), ("a", 300, 2), ("b", 120, 2),
               ("b", 180, 2)],
}  # fmt: skip


def test_backfill_of_unproven_queries_equals_single_windows(
    crossing: FeatureStore, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    jobs = [
        f"featurestore.sql_job({name + suffix!r}, sql={sql!r}, mode={mode!r}, inputs={inputs},"
        "primary_key=['zone'], event_time='hour', schedule='0 * * * *', start='2024-01-01T00:00Z')"
        for name, sql in CROSSING_QUERIES.items()
        for suffix, mode in (("", "replace_window"), ("_single", "append"))
        for inputs in [{"trips": "trips"} | ({"prices": "prices"} if "prices" in sql else {})]
    ]
    file = tmp_path / "jobs.py"
    file.write_text("\n".join(["import featurestore", *jobs]))
    crossing.register_jobs(file)
    for name, expected in EXPECTED_CROSSINGS.items():
        with subtests.test(name):
            actual = []
            for job in (name, f"{name}_single"):
                with suppress(JobFailed):
                    crossing.backfill_job(job, START, START + 5 * HOUR)
                rows = crossing.get_featuregroup(job).to_arrow().to_pylist()
                actual.append(
                    sorted(
                        (row["zone"], (row["hour"] - START) // MINUTE, row["value"]) for row in rows
                    )
                )
            assert actual == [expected, expected]
