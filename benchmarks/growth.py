"""Growth stays flat: what calls cost after many commits, among many groups, behind many windows.

python benchmarks/growth.py [--quick] [--commits 10000] [--groups 10000] [--windows 100000] [--only
writes reads groups windows]

Every figure is the ratio of two medians of one run: the long store against the short one. The
limits are those of processor times, which other programs on the machine hardly change. Commits are
written by the engine's own commit code, without syncing to disk and without audits, so that
10,000 of them take a minute; what is measured are the public calls. Every ratio is printed with its
limit; the program ends with 1 when one is over it. With --quick everything is small, which shows
that the program runs, and the ratios say little.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import parquet
from report import Report

import featurestore
from featurestore.delta import commits
from featurestore.delta.log import commit_path
from featurestore.delta.maintenance import find_merge_size_limit
from featurestore.delta.snapshot import read_snapshot
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.registry import featuregroups, tables
from featurestore.registry import jobs as registered_jobs
from featurestore.storage.publication import Publication
from featurestore.store import FeatureStore
from featurestore_connectors.duckdb_delta import commits as duckdb_commits
from featurestore_connectors.duckdb_delta.relations import NewFile

ROWS = 100
KEYS = 1000
EPOCH = int(dt.datetime(2024, 1, 1, tzinfo=dt.UTC).timestamp()) * 1_000_000
TRIALS = 15
REPORT = Report(
    "growth",
    "The time of a call with many commits, groups or windows, compared with the time with few.",
)


def rows_of(commit: int, rows: int = ROWS) -> pa.Table:
    """Return the rows of one commit: keys in turn, one second after the other."""
    numbers = np.arange(commit * rows, (commit + 1) * rows)
    return pa.table(
        {
            "key": pa.array(numbers % KEYS),
            "at": pa.array(EPOCH + numbers * 1_000_000, pa.timestamp("us", tz="UTC")),
            "x": pa.array(np.sin(numbers)),
            "y": pa.array(np.cos(numbers)),
        }
    )


def append(path: str, commit: int, *, rows: int = ROWS) -> None:
    """Append the rows of a commit to a table as the engine does."""
    table = rows_of(commit, rows)
    file = os.path.join(path, f"part-{commit:05d}-grown.snappy.parquet")
    parquet.write_table(table, file)
    sides = {}
    for side, position in (("minValues", 0), ("maxValues", -1)):
        timestamp = table["at"][position].as_py().replace(tzinfo=None)
        sides[side] = {"at": timestamp.isoformat(timespec="microseconds") + "Z"}
    keys = table["key"].to_pylist()
    sides["minValues"]["key"], sides["maxValues"]["key"] = min(keys), max(keys)
    file_statistics = {"numRecords": table.num_rows, **sides, "nullCount": {"key": 0, "at": 0}}
    new = NewFile(file, os.path.getsize(file), table.num_rows, json.dumps(file_statistics))
    snapshot = read_snapshot(path)
    note = {"operation": "append", "run": f"grown-{commit}", "unique": "kept_after"}
    note |= commits.base_metadata(path, snapshot.version)
    change = duckdb_commits.TableChange(
        "WRITE", {"mode": "Append"}, adds=[new], commit_metadata=note
    )
    duckdb_commits.commit(snapshot, change, Publication(durable=False))


def grow(store: FeatureStore, name: str, appends: int, *, rows: int = ROWS) -> None:
    """Append to a group so many times, and merge small files where the group says so."""
    path = store.featuregroup(name).path
    compacts = store.featuregroup(name).spec.compact == "auto"
    for commit in range(1, appends):
        append(path, commit, rows=rows)
        below = find_merge_size_limit(read_snapshot(path)) if compacts else None
        if below is not None:
            store.session.engine.compact(path, below=below)


@dataclass(frozen=True)
class Cost:
    """The seconds of a call by the clock, and of the processor."""

    wall: float
    processor: float


def medians_of(*calls: Callable[[int], object], trials: int = TRIALS) -> list[Cost]:
    """Return the median costs of calls, which take turns and have the number of the round."""
    costs: list[list[Cost]] = [[] for _ in calls]
    for trial in range(trials + 1):
        for costs_of_call, call in zip(costs, calls, strict=True):
            start, processor_start = time.perf_counter(), time.process_time()
            call(trial)
            if trial:  # the first one warms up
                wall = time.perf_counter() - start
                costs_of_call.append(Cost(wall, time.process_time() - processor_start))
    return [
        Cost(
            statistics.median(cost.wall for cost in costs_of_call),
            statistics.median(cost.processor for cost in costs_of_call),
        )
        for costs_of_call in costs
    ]


@dataclass
class Ratios:
    """The ratios of a run, and how many there are over their limits."""

    measured: int = 0
    over: int = 0

    def report(self, title: str, short: Cost, long: Cost, limit: float) -> None:
        """Print both medians, the ratios by the clock and by processor time, and the limit."""
        ratio = long.processor / short.processor
        verdict = "ok"
        self.measured += 1
        if ratio > limit:
            verdict = "OVER"
            self.over += 1
        REPORT.compare(
            title, 1000 * long.wall, 1000 * short.wall, "ms", processor=ratio, at_most=limit
        )
        times = f"{short.wall * 1000:9.1f} ms {long.wall * 1000:9.1f} ms"
        wall_ratio = long.wall / short.wall
        print(
            f"{title:60} {times}   x{wall_ratio:5.2f} ({ratio:.2f} <= {limit}) {verdict}",
            flush=True,
        )


class Calls:
    """The calls that are measured on a group with so many commits."""

    def __init__(self, store: FeatureStore, name: str) -> None:
        self.store = store
        self.name = name
        self.next = read_snapshot(store.featuregroup(name).path).version

    def insert(self, _: int) -> None:
        self.next += 1
        self.store.insert_into_featuregroup(rows_of(self.next), self.name)

    def upsert(self, _: int) -> None:
        self.store.insert_into_featuregroup(rows_of(self.next), self.name, mode="upsert")

    def get(self, _: int) -> None:
        assert self.store.get_featuregroup(self.name).columns

    def history(self, _: int) -> None:
        assert len(self.store.get_featuregroup_history(self.name, limit=10)) == 10


def new_group(store: FeatureStore, name: str, *, rows: int = ROWS, **options: Any) -> None:
    """Create a group with an event time and its first commit; one of 1,000 keys, or all alike."""
    store.create_featuregroup(
        rows_of(0, rows), name, primary_key=["key"], event_time="at", validation="off", **options
    )


def writes(store: FeatureStore, options: argparse.Namespace, ratios: Ratios) -> None:
    """Measure writes and histories after 10 and after many commits, and reads of many files."""
    few, many = (
        _grown(store, name, count) for name, count in (("few", 10), ("many", options.commits))
    )
    for title, name in (
        ("insert", "insert"),
        ("upsert", "upsert"),
        ("get_featuregroup", "get"),
        ("history, newest 10", "history"),
    ):
        short, long = medians_of(getattr(few, name), getattr(many, name))
        ratios.report(f"{title}, {options.commits:,} commits vs 10", short, long, 1.5)
    tenth = options.commits // 10
    new_group(store, "tenth", rows=10 * ROWS)
    grow(store, "tenth", tenth, rows=10 * ROWS)
    labels = labels_of(options)
    # Without compact="auto" a read opens each file, so the time grows with their number.
    for title, call in (("get_features", retrieve), ("all rows", read_all)):
        short, long = medians_of(
            *(call(store, name, labels) for name in ("tenth", "many")), trials=5
        )
        ratios.report(f"{title}, {options.commits:,} files vs {tenth:,}", short, long, 10.0)


def labels_of(options: argparse.Namespace) -> pa.Table:
    """Return labels with times in the middle of the rows of all commits."""
    return rows_of(options.commits // 2).select(["key", "at"])


def retrieve(store: FeatureStore, name: str, labels: pa.Table) -> Callable[[int], object]:
    """Return a call that joins a column of a group to labels."""
    return lambda _: store.get_features(f"{name}.x", labels=labels, label_time="at").to_arrow()


def read_all(store: FeatureStore, name: str, _: pa.Table) -> Callable[[int], object]:
    """Return a call that reads all rows of a group."""
    return lambda _: store.get_featuregroup(name).to_arrow()


def validate(store: FeatureStore, name: str, _: pa.Table) -> Callable[[int], object]:
    """Return a call that validates a group."""
    return lambda _: store.validate_featuregroup(name)


def _grown(store: FeatureStore, name: str, count: int) -> Calls:
    new_group(store, name)
    start = time.perf_counter()
    grow(store, name, count)
    print(f"# {count} commits in {time.perf_counter() - start:.0f} s", flush=True)
    return Calls(store, name)


def reads(store: FeatureStore, options: argparse.Namespace, ratios: Ratios) -> None:
    """Measure reads of the same rows.

    In many small commits that merge by themselves, in a tenth of these commits, and in one file.
    """
    few = options.commits // 10
    for name, appends, rows in (("few", few, 10 * ROWS), ("many", options.commits, ROWS)):
        new_group(store, name, rows=rows, compact="auto", statistics=False)
        start = time.perf_counter()
        grow(store, name, appends, rows=rows)
        state = read_snapshot(store.featuregroup(name).path)
        seconds = time.perf_counter() - start
        print(
            f"# {appends} appends in {seconds:.0f} s: {len(state.files)} files, version {state.version}",
            flush=True,
        )
    labels = labels_of(options)
    title = f"{options.commits * ROWS:,} rows in {options.commits:,} commits vs {few:,}"
    for call, call_name in (
        (retrieve, "get_features"),
        (validate, "validate"),
        (read_all, "all rows"),
    ):
        short, long = medians_of(*(call(store, name, labels) for name in ("few", "many")))
        ratios.report(f"{call_name}, {title}", short, long, 1.3)
    new_group(store, "one", rows=options.commits * ROWS, statistics=False)
    store.compact_featuregroup("one")
    compacted_seconds, merged_seconds = medians_of(
        *(read_all(store, name, labels) for name in ("one", "many"))
    )
    ratios.report("all rows, compact='auto' vs compacted", compacted_seconds, merged_seconds, 2.0)


def groups(store: FeatureStore, options: argparse.Namespace, ratios: Ratios) -> None:
    """Measure retrievals and lists among 10 and among many groups, of which two have tables."""
    stores = []
    for title, count in (("few", 10), ("many", options.groups)):
        target = featurestore.connect(os.path.join(store.location, title))
        for name in ("left", "right"):
            rows = rows_of(0).rename_columns(["key", "at", f"x_{name}", f"y_{name}"])
            target.create_featuregroup(rows, name, primary_key=["key"], event_time="at")
        _register_others(target, count - 2)
        stores.append(target)
    labels = rows_of(0).select(["key", "at"])

    def retrieve_by_reference(target: FeatureStore) -> Callable[[int], object]:
        references = ["left.x_left", "right.y_right"]
        return lambda _: target.get_features(references, labels=labels, label_time="at").to_arrow()

    def retrieve_by_name(target: FeatureStore) -> Callable[[int], object]:
        return lambda _: target.get_features(
            ["x_left", "y_right"], labels=labels, label_time="at"
        ).to_arrow()

    def connect(target: FeatureStore) -> Callable[[int], object]:
        return lambda _: featurestore.connect(target.location)

    def list_groups(target: FeatureStore) -> Callable[[int], object]:
        return lambda _: target.get_featuregroups(limit=10)

    def search_groups(target: FeatureStore) -> Callable[[int], object]:
        return lambda _: target.search("x_left", limit=10)

    title = f"{options.groups:,} groups vs 10"
    for name, call, limit in (
        ("get_features of named groups", retrieve_by_reference, 1.2),
        ("get_features by plain name", retrieve_by_name, 1.5),
        ("connect", connect, 1.5),
        ("first 10 of the groups", list_groups, 1.5),
        ("search, first 10 (reads all names)", search_groups, 10.0),
    ):
        short, long = medians_of(*(call(target) for target in stores))
        ratios.report(f"{name}, {title}", short, long, limit)


def _register_others(store: FeatureStore, count: int) -> None:
    """Put groups into the registry alone: no call that is measured opens their tables."""
    schema = pa.schema(
        [("key", pa.int64()), *((f"f{number}", pa.float64()) for number in range(8))]
    )
    with store._session.registry.transaction() as connection:
        for number in range(count):
            spec = FeatureGroupSpec(f"other_{number}", 1, schema, primary_key=("key",))
            featuregroups.add(connection, spec, table_id=f"{number}", delta_version=1)


def windows(store: FeatureStore, options: argparse.Namespace, ratios: Ratios) -> None:
    """Measure the next window of a job with few and with many windows behind it, one after the other."""
    now = dt.datetime.now(dt.UTC).replace(second=0, microsecond=0)
    stores = []
    for title, window_count in (("few", 1), ("many", options.windows)):
        target = featurestore.connect(os.path.join(store.location, title))
        start = now - dt.timedelta(minutes=window_count + 40)
        target.create_featuregroup(
            _minutes(start, window_count + 40), "measured", event_time="minute", validation="off"
        )
        source = Path(target.location) / "minutes.py"
        source.write_text(JOB.format(start=start.isoformat()))
        target.register_jobs(str(source))
        target.run_job("minutes", due=True)
        if window_count > 1:
            _put_windows_behind(target, start, window_count)
        stores.append(target)
    title = f"{options.windows:,} windows vs 1"
    plans = [lambda _, target=target: target.plan_job("minutes") for target in stores]
    short, long = medians_of(*plans)
    ratios.report(f"plan_job, {title}", short, long, 1.5)
    runs_ = [lambda _, target=target: target.run_job("minutes", due=True) for target in stores]
    short, long = medians_of(*runs_)
    ratios.report(f"run_job of the next window, {title}", short, long, 1.5)


JOB = """
import featurestore
featurestore.sql_job(
    "minutes", sql="select minute, count(*) as n from measured group by all", event_time="minute",
    schedule="* * * * *", start="{start}", closed="left", catchup=1, inputs={{"measured": "measured"}},
)
"""


def _minutes(start: dt.datetime, count: int) -> pa.Table:
    first = int(start.timestamp()) * 1_000_000
    micros = first + np.arange(count) * 60_000_000
    return pa.table(
        {"minute": pa.array(micros, pa.timestamp("us", tz="UTC")), "x": np.arange(count)}
    )


def _put_windows_behind(store: FeatureStore, start: dt.datetime, count: int) -> None:
    """Record windows, runs and transactions as if a job had computed so many windows one by one."""
    first = int(start.timestamp()) * 1_000_000
    group = store.featuregroup("minutes")
    actions, run_rows, window_rows = [], [], []
    for number in range(1, count):
        low = first + number * 60_000_000
        begin = start + dt.timedelta(minutes=number)
        app = f"job/minutes/{begin.isoformat()}/{(begin + dt.timedelta(minutes=1)).isoformat()}"
        actions.append({"txn": {"appId": app, "version": 0, "lastUpdated": low // 1000}})
        run = {"run_id": f"behind-{number}", "job": "minutes", "job_version": 1, "windows": 1}
        run |= {"window_start": low, "window_end": low + 60_000_000, "state": "done", "owner": "x"}
        run_rows.append(run | {"inputs": "{}", "started": low, "ended": low + 100_000, "rows": 1})
        window = {"job": "minutes", "window_start": low, "window_end": low + 60_000_000}
        window |= {"state": "done", "run_id": f"behind-{number}", "tries": 0, "updated": low}
        window_rows.append(window | {"inputs": "{}", "target_version": 1})
    version = read_snapshot(group.path).version + 1
    info = {"commitInfo": {"timestamp": first // 1000, "operation": "WRITE"}}
    lines = [json.dumps(action) for action in (info, *actions)]
    Path(commit_path(group.path, version)).write_text("\n".join(lines) + "\n")
    DeltaTable(group.path).create_checkpoint()
    with store.session.registry.transaction() as connection:
        connection.execute(tables.runs.insert(), run_rows)
        connection.execute(tables.windows.insert(), window_rows)
        registered_jobs.advance(connection, "minutes", start + dt.timedelta(minutes=count))


SECTIONS: dict[str, Callable[[FeatureStore, argparse.Namespace, Ratios], None]] = {
    "writes": writes,
    "reads": reads,
    "groups": groups,
    "windows": windows,
}
QUICK = {"commits": 200, "groups": 200, "windows": 500}


def main() -> int:
    """Run the selected sections, each in a store of its own; 1 when a ratio is too high."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--windows", type=int, default=100_000)
    parser.add_argument("--only", nargs="*", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="small numbers; never ends with 1")
    options = parser.parse_args()
    if options.quick:
        vars(options).update(QUICK)
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    ratios = Ratios()
    for name in options.only:
        with tempfile.TemporaryDirectory(prefix=f"growth-{name}-") as folder:
            store = featurestore.connect(folder)
            SECTIONS[name](store, options, ratios)
    REPORT.save(quick=options.quick)
    print(f"{ratios.measured} ratios, {ratios.over} over their limits")
    return int(ratios.over > 0 and not options.quick)


if __name__ == "__main__":
    sys.exit(main())
