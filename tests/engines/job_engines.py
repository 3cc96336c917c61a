"""SQL jobs on an engine, and their rows after each step; as a program, on Spark.

Arguments of the program: a folder, "all" or "some" for the jobs, and the address of a Spark Connect
server (optional). Without an address the session is that of the environment, for example on a
cluster. The program prints the rows as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

import featurestore
from featurestore.model import times
from featurestore_connectors.spark_delta import SparkEngine
from tests.on_spark import INTERPRETED_QUERIES

START, HOUR = datetime(2024, 1, 1, tzinfo=UTC), timedelta(hours=1)
RIDES_PER_HOUR = 200
PRICE = pa.decimal128(12, 2)
JOBS = '''
import featurestore

common = dict(schedule="0 * * * *", start="2024-01-01T00:00Z", event_time="hour")
HOUR = "date_trunc('hour', r.at) + interval 1 hour"
WITHIN = "r.at >= $window_start and r.at < $window_end"

featurestore.sql_job(
    "totals", primary_key=["zone"], inputs={"r": "rides"}, **common,
    sql=f"""
        select zone, {HOUR} as hour, count(*) as rides, sum(seats) as seats,
               cast(sum(price) as decimal(18, 2)) as price, min(word) as first, max(r.at) as last,
               cast(sum(cast(fare * 10 as integer)) as bigint) as tenths, count(distinct seats) as kinds
        from r where {WITHIN} group by zone, {HOUR}
    """,
)
featurestore.sql_job(
    "strict", primary_key=["zone"], inputs={"r": "rides"}, **common,
    sql="""
        select zone, $window_end as hour, count(*) as rides from r
        where r.at > $window_start and r.at <= $window_end group by zone
    """,
)
featurestore.sql_job(
    "joined", primary_key=["id"], inputs={"r": "rides", "z": "zones"}, closed="left", **common,
    sql=f"""
        select r.id, r.at as hour, z.name, z.name || '-' || cast(r.seats as varchar) as label,
               case when r.fare > 0 then 'up' when r.fare is null then 'none' else 'down' end as sign,
               coalesce(r.word, 'missing') as word
        from r left join z using (zone) where {WITHIN} and r.seats <> 3
    """,
)
featurestore.sql_job(
    "ranked", primary_key=["zone"], inputs={"r": "rides"}, mode="append", **common,
    sql=f"""
        with ranked as (
            select zone, r.at, price, row_number() over (partition by zone order by r.at, id) as n
            from r where {WITHIN}
        )
        select zone, $window_end as hour, price as opening from ranked where n = 1
    """,
)
featurestore.sql_job(
    "latest", primary_key=["id"], inputs={"r": "rides"}, mode="upsert", lookback="2h",
    tombstone="gone", **common,
    sql="""
        select id % 40 as id, max(r.at) as hour, max(seats) as seats,
               max(r.id) % 3 = 0 as gone
        from r where r.at >= $window_start and r.at < $window_end group by id % 40
    """,
)
'''


@dataclass(frozen=True)
class Scope:
    """The jobs that run, those that also compute due windows, and the hours of their backfill.

    With ``embedded_inputs`` the embedded engine writes the rides also for jobs on Spark, where each
    commit takes a second or more. With ``interpreted_queries`` Spark does not compile queries.
    """

    jobs: tuple[str, ...]
    due_jobs: tuple[str, ...]
    hours: int
    embedded_inputs: bool
    interpreted_queries: bool

    @property
    def end(self) -> datetime:
        """The time at which the due windows are computed."""
        return START + (self.hours + 2) * HOUR


SCOPES = {
    "some": Scope(
        ("totals", "latest"),
        due_jobs=("totals",),
        hours=2,
        embedded_inputs=True,
        interpreted_queries=True,
    ),
    "all": Scope(
        ("totals", "strict", "joined", "ranked", "latest"),
        due_jobs=("totals", "strict", "joined", "ranked", "latest"),
        hours=4,
        embedded_inputs=False,
        interpreted_queries=False,
    ),
}


def rides(first: int, last: int, *, factor: int = 1) -> pa.Table:
    """Return rides with ties at the bounds of hours, nulls and decimals."""
    numbers = np.arange(first, last)
    micros = 1_704_067_200_000_000 + numbers * (3_600_000_000 // RIDES_PER_HOUR)
    prices = pa.array([Decimal(int(number) * factor) / 100 for number in numbers % 997], PRICE)
    return pa.table(
        {
            "id": pa.array(numbers),
            "at": pa.array(micros).cast(pa.timestamp("us", "UTC")),
            "zone": pa.array([f"z{number}" for number in numbers % 7]),
            "seats": pa.array(numbers * factor % 5, pa.int32()),
            "fare": pa.array(np.round(np.sin(numbers), 1), mask=numbers % 11 == 3),
            "price": prices,
            "word": pa.array(
                [None if number % 13 == 0 else "é" * (number % 4) for number in numbers]
            ),
        }
    )


def run_on(engine: Any, folder: Path, scope: Scope) -> dict[str, Any]:
    """Return the rows and the states of jobs in a new store in a new folder."""
    folder.mkdir()
    if engine != "duckdb" and scope.interpreted_queries:
        for key, value in INTERPRETED_QUERIES.items():
            engine.session.conf.set(key, value)
    jobs = folder / "jobs.py"
    jobs.write_text(JOBS)
    with (
        mock.patch.object(times, "clock", return_value=scope.end),
        featurestore.connect(
            folder / "store", engine="duckdb" if scope.embedded_inputs else engine
        ) as inputs,
        featurestore.connect(folder / "store", engine=engine) as store,
    ):
        return run_jobs(store, inputs, jobs, scope)


def run_jobs(store: Any, inputs: Any, jobs: Path, scope: Scope) -> dict[str, Any]:
    """Backfill jobs, recompute windows after late rows, and compute due windows.

    ``store`` runs the jobs, and ``inputs`` is the same store for writes of the inputs.
    """
    names, last = scope.jobs, scope.hours * RIDES_PER_HOUR
    zones = {"zone": [f"z{number}" for number in range(5)], "name": ["a", "ß", None, "d", ""]}
    inputs.create_featuregroup(pa.table(zones), "zones", primary_key="zone")
    inputs.create_featuregroup(rides(0, last + 100), "rides", primary_key="id", event_time="at")
    store.register_jobs(jobs)
    steps: dict[str, Any] = {}
    for name in names:
        store.backfill_job(name, START, START + scope.hours * HOUR)
    steps["backfill"] = read_all(store, names)
    # Late rows of the first and second hours, which replace rides.
    inputs.insert_into_featuregroup(rides(50, 300, factor=2), "rides", mode="upsert")
    # Which windows are stale depends on the files of an engine; their rows do not.
    store.run_job("totals", stale=True)
    store.run_job("latest", window=START)
    steps["again"] = read_all(store, names)
    inputs.insert_into_featuregroup(rides(last + 100, last + 400), "rides")
    for name in scope.due_jobs:
        store.run_job(name, due=True)
    steps["due"] = read_all(store, scope.due_jobs)
    steps["states"] = sorted({run.state for name in names for run in store.get_runs(name)})
    return steps


def read_all(store: Any, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the rows and the types of each group."""
    result = {}
    for name in names:
        table = store.get_featuregroup(name).to_arrow()
        result[name] = [str(table.schema.types), *sorted(map(repr, table.to_pylist()))]
    return result


def main() -> None:
    folder, scope, *addresses = sys.argv[1:]
    with redirect_stdout(StringIO()):
        if addresses:
            from pyspark.sql import SparkSession

            SparkSession.builder.remote(addresses[0]).getOrCreate()
        engine = SparkEngine()
        result = run_on(engine, Path(folder), SCOPES[scope])
        result["session"] = type(engine.session).__module__
        if not addresses:
            result["master"] = engine.session.sparkContext.master
    print(json.dumps(result))


if __name__ == "__main__":
    main()
