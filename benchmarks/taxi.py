"""The shape of the published benchmarks of feature stores: taxi rides of New York.

Features of three groups by location and time (every 15, 30 and 60 minutes, four features each, 265
locations, 120 days) joined as of the time of each label, which is a double; to Arrow, to pandas and
to Parquet training data. Beside it three ASOF joins written by hand over the same files, in turns;
medians of one run. Rates that Hopsworks published for 16 virtual processors are listed next to ours as
context, not as a comparison: the machines differ.

python benchmarks/taxi.py [--quick] [--trials 3] [--only 1 2 5 10]   (millions of labels)

The rows are compared with those of the joins before anything is timed.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from report import Report

LOCATIONS, DAYS, FEATURES = 265, 120, 4
MINUTES = (15, 30, 60)
START = 1_546_300_800_000_000  # 2019-01-01
MINUTE = 60_000_000
TIME = pa.timestamp("us", tz="UTC")
# featurestore-benchmarks, thousands of rows a second on 16 virtual processors, by millions of labels.
PUBLISHED = {1: (483, 132), 2: (347, 215), 5: (673, 228), 10: (967, 384)}
ARROW_LIMIT, PANDAS_LIMIT = 1.15, 1.5
EXPORT_SPEED, ARROW_SPEED = 400_000, 1_000_000
REPORT = Report(
    "taxi",
    "The shape of published benchmarks: 265 locations, features every 15, 30 and 60 minutes, "
    "120 days. Published on 16 processors for 2, 5 and 10 million labels: 347,000, 673,000 and "
    "967,000 rows/s to pandas; 215,000, 228,000 and 384,000 to Parquet.",
)


class Cost(NamedTuple):
    """Seconds on a clock, and of the processors, which a busy machine disturbs less."""

    clock: float
    processor: float


def group(minutes: int, days: int) -> pa.Table:
    """Return the features of every location at every step of so many minutes."""
    random = np.random.default_rng(minutes)
    steps = days * 24 * 60 // minutes
    times = START + np.arange(steps, dtype=np.int64) * minutes * MINUTE
    columns = {
        "location": pa.array(np.tile(np.arange(LOCATIONS), steps)),
        "at": pa.array(np.repeat(times, LOCATIONS), TIME),
    }
    for index in range(FEATURES):
        columns[f"f{minutes}_{index}"] = pa.array(random.random(steps * LOCATIONS))
    return pa.table(columns)


def labels(rows: int, days: int) -> pa.Table:
    random = np.random.default_rng(3)
    length = days * 24 * 60 * MINUTE
    return pa.table(
        {
            "ride": pa.array(np.arange(rows)),
            "location": pa.array(random.integers(0, LOCATIONS, rows)),
            "at": pa.array(START + random.integers(0, length, rows), TIME),
            "fare": pa.array(random.random(rows) * 100),
        }
    )


def names(minutes: int) -> list[str]:
    return [f"f{minutes}_{index}" for index in range(FEATURES)]


class Taxi:
    """A store with the three groups and one of labels, joined by it and by hand."""

    def __init__(self, rows: int, days: int) -> None:
        import duckdb

        import featurestore

        self.rows, self._number = rows, 0
        self.folder = Path(tempfile.mkdtemp(prefix="bench-taxi-"))
        self.store = featurestore.connect(self.folder / "store")
        for minutes in MINUTES:
            self._create(group(minutes, days), f"demand_{minutes}", ("location",))
        self._create(labels(rows, days), "rides", ("ride",))
        self.connection = duckdb.connect()
        self.connection.execute("SET TimeZone = 'UTC'")
        self.query = self._by_hand()

    def _create(self, table: pa.Table, name: str, key: tuple[str, ...]) -> None:
        self.store.create_featuregroup(
            table, name, primary_key=key, event_time="at", statistics=False
        )

    def _files(self, name: str) -> str:
        files = sorted((self.folder / "store/featuregroups" / name / "v1").glob("*.parquet"))
        listed = ", ".join(f"'{file}'" for file in files)
        return f"read_parquet([{listed}])"

    def _by_hand(self) -> str:
        columns = ["l.*"]
        joins = []
        for minutes in MINUTES:
            side = f"d{minutes}"
            columns += [f"{side}.{name}" for name in names(minutes)]
            joins.append(
                f"ASOF LEFT JOIN {self._files(f'demand_{minutes}')} {side}"
                f" ON l.location = {side}.location AND l.at >= {side}.at"
            )
        return f"SELECT {', '.join(columns)} FROM {self._files('rides')} l {' '.join(joins)}"

    def frame(self):  # type: ignore[no-untyped-def]
        features = []
        for minutes in MINUTES:
            features += [f"demand_{minutes}.{name}" for name in names(minutes)]
        return self.store.get_features(features, labels="rides")

    def hand_to_arrow(self) -> pa.Table:
        return self.connection.sql(self.query).to_arrow_table()

    def export(self, *, statistics: bool) -> None:
        self._number += 1
        with redirect_stdout(io.StringIO()):
            dataset = self.store.create_training_dataset(
                self.frame(),
                f"d{self._number}",
                label="fare",
                data_format="parquet",
                statistics=statistics,
            )
        shutil.rmtree(dataset.path)

    def check(self) -> None:
        ours, expected = self.frame().to_arrow(), self.hand_to_arrow()
        columns = expected.schema.names
        ours = ours.select(columns).sort_by("ride").combine_chunks()
        assert ours.num_rows == self.rows
        expected = expected.sort_by("ride").cast(ours.schema).combine_chunks()
        assert ours.equals(expected), "the rows differ"

    def works(self) -> dict[str, Callable[[], object]]:
        return {
            "hand to Arrow": self.hand_to_arrow,
            "ours to Arrow": lambda: self.frame().to_arrow(),
            "hand to pandas": lambda: self.connection.sql(self.query).df(),
            "ours to pandas": lambda: self.frame().to_pandas(),
            "export": lambda: self.export(statistics=False),
            "export, statistics": lambda: self.export(statistics=True),
        }

    def close(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def measured(taxi: Taxi, trials: int) -> dict[str, Cost]:
    costs_of_works: dict[str, list[Cost]] = {}
    for trial in range(trials + 1):
        for name, work in taxi.works().items():
            start, used = time.perf_counter(), time.process_time()
            work()
            cost = Cost(time.perf_counter() - start, time.process_time() - used)
            if trial:  # the first one warms up
                costs_of_works.setdefault(name, []).append(cost)
    medians = {}
    for name, costs in costs_of_works.items():
        clocks, processors = zip(*costs, strict=True)
        medians[name] = Cost(statistics.median(clocks), statistics.median(processors))
    return medians


def report(rows: int, costs: dict[str, Cost]) -> None:
    published = PUBLISHED.get(rows // 1_000_000)
    for target, limit in (("Arrow", ARROW_LIMIT), ("pandas", PANDAS_LIMIT)):
        ours, hand = costs[f"ours to {target}"], costs[f"hand to {target}"]
        line = f"  to {target:<7} {rows / ours.clock:12,.0f} rows/s, "
        line += f"{ours.clock / hand.clock:.2f} of the joins by hand "
        line += f"({ours.processor / hand.processor:.2f} by processor time, limit {limit})"
        ratio, by_processor = (value / base for value, base in zip(ours, hand, strict=True))
        table, row = "labels", f"{rows:,}"
        REPORT.add(table, row, f"{target}, rows/s", rows / ours.clock)
        column = f"{target} / `ASOF` joins"
        REPORT.add(table, row, column, ratio, processor=by_processor, at_most=limit)
        if target == "pandas" and published is not None:
            line += f"; published {published[0]},000 on 16 processors"
        print(line)
    arrow = costs["ours to Arrow"]
    for name in ("export", "export, statistics"):
        cost = costs[name]
        line = f"  Parquet {name:<18} {rows / cost.clock:12,.0f} rows/s, "
        line += f"{cost.clock / arrow.clock:.2f} of ours to Arrow "
        line += f"({cost.processor / arrow.processor:.2f} by processor time, "
        line += f"limit {ARROW_SPEED / EXPORT_SPEED})"
        REPORT.add(table, row, f"{name}, rows/s", rows / cost.clock, at_least=EXPORT_SPEED)
        limit = ARROW_SPEED / EXPORT_SPEED
        ratio, by_processor = (value / base for value, base in zip(cost, arrow, strict=True))
        column = f"{name} / Arrow"
        REPORT.add(table, row, column, ratio, processor=by_processor, at_most=limit)
        if published is not None:
            line += f"; published {published[1]},000"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--trials", type=int, default=3, help="fewer on a busy machine")
    parser.add_argument("--only", nargs="+", type=int, default=[1, 2, 5, 10])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    sizes, days, trials = (
        [millions * 1_000_000 for millions in arguments.only],
        DAYS,
        arguments.trials,
    )
    if arguments.quick:
        sizes, days, trials = [100_000], 10, 1
    for rows in sizes:
        taxi = Taxi(rows, days)
        try:
            taxi.check()
            costs = measured(taxi, trials)
        finally:
            taxi.close()
        print(f"{rows:,} labels, {days} days, load {os.getloadavg()[0]:.1f}", flush=True)
        report(rows, costs)
    REPORT.save(quick=arguments.quick)


if __name__ == "__main__":
    main()
