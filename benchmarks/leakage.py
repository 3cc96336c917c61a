"""The leak check compared with the retrieval that it checks, on equal values.

python benchmarks/leakage.py [--quick]

Each shape has 1,000 labels, all of which are checked. Retrieval and check are timed three times in
turn, and the medians count. The values of the check equal those of the retrieval, which the check
itself compares, and for 20 labels those of the row-by-row reference. If the retrieval ignores the
created time, the check must report it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from report import Report

import featurestore
from featurestore.aggregates import reference
from featurestore.model.plan import ROW, WindowJoin
from featurestore.retrieval.window_rows import matching_rows, to_event_rows
from featurestore.testing.oracle import bits

LIMIT, LABELS, REFERENCE_LABELS, TRIALS = 10.0, 1000, 20, 3
HALF_HOUR, START = 1_800_000_000, 1_700_000_000_000_000
TIMES = pa.timestamp("us", "UTC")
REPORT = Report(
    "leakage",
    "`check_leakage` of 1,000 labels, compared with the retrieval of the same features. The 11 "
    "aggregates have windows of 7 to 365 days over half-hourly rows.",
)


@dataclass(frozen=True)
class Shape:
    """Rows of a group: their number of keys, and the share of rows that are corrected later."""

    name: str
    rows: int
    keys: int = 1
    is_late: bool = False
    is_as_of: bool = False


SHAPES = (
    Shape("one key, 17,520 rows, 11 aggregates", 17_520),
    Shape("one key, 17,520 late rows, a third corrected, 11 aggregates", 17_520, is_late=True),
    Shape("one key, 17,520 rows, 3 features as of a time", 17_520, is_as_of=True),
    Shape("1,000 keys, 200,000 rows, 11 aggregates", 200_000, keys=1000),
    Shape("one key, 300,000 rows, 11 aggregates", 300_000),
)


def rows_of(shape: Shape, random: np.random.Generator) -> pa.Table:
    """Return half-hourly rows of each key; late ones are known a day later on average."""
    times = START + np.arange(shape.rows) // shape.keys * HALF_HOUR
    created = times.copy()
    if shape.is_late:
        created += random.integers(0, 96, shape.rows) * HALF_HOUR
        corrected = random.choice(shape.rows, shape.rows // 3, replace=False)
        times = np.concatenate([times, times[corrected]])
        created = np.concatenate([created, created[corrected] + 48 * HALF_HOUR])
    count = len(times)
    return pa.table(
        {
            "sensor": np.arange(count) % shape.keys,
            "at": pa.array(times, TIMES),
            "known": pa.array(created, TIMES),
            "load": random.normal(size=count),
            "code": random.integers(0, 9, count),
            "name": [f"n{number % 7}" for number in range(count)],
        }
    )


def labels_of(shape: Shape, random: np.random.Generator) -> pa.Table:
    span = shape.rows // shape.keys * HALF_HOUR
    return pa.table(
        {
            "sensor": random.integers(0, shape.keys, LABELS),
            "asked_at": pa.array(START + random.integers(0, span, LABELS), TIMES),
            "y": random.normal(size=LABELS),
        }
    )


def features_of(shape: Shape) -> list[Any]:
    if shape.is_as_of:
        return ["readings.load", "readings.code", "readings.name"]
    return [
        *featurestore.windows("readings.load", ["sum", "mean", "std", "max"], over="7d"),
        *featurestore.windows("readings.load", ["sum", "mean", "min"], over="90d"),
        featurestore.window("readings.load", "mean", over="365d"),
        featurestore.window("readings.code", "count_distinct", over="30d"),
        featurestore.window("readings.name", "last_n", over="30d", n=3),
        featurestore.window("readings.load", "count", over="30d", where="load > 0", name="high"),
    ]


def measure(shape: Shape, folder: Path) -> float:
    """Time the retrieval and the check of a shape and return their ratio."""
    random = np.random.default_rng(0)
    store = featurestore.connect(folder)
    rows, labels = rows_of(shape, random), labels_of(shape, random)
    store.create_featuregroup(
        rows,
        "readings",
        primary_key="sensor",
        event_time="at",
        created_time="known" if shape.is_late else None,
        validation="off",
    )

    def retrieve(**options: Any) -> Any:
        return store.get_features(
            features_of(shape), labels=labels, label_time="asked_at", **options
        )

    seconds: dict[str, list[float]] = {"retrieval": [], "check": []}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = call()
        seconds[name].append(time.perf_counter() - start)
        return result

    for _ in range(TRIALS):
        retrieved = timed("retrieval", lambda: retrieve().to_arrow())
        report = timed("check", lambda: store.check_leakage(retrieve()))
        if not report.ok or report.rows != LABELS:
            raise SystemExit(f"{shape.name}: the check differs from the retrieval\n{report}")
    if shape.is_late and store.check_leakage(retrieve(created_time_filter=False)).ok:
        raise SystemExit(f"{shape.name}: the check misses rows that were not known")
    plan = retrieve().plan
    for join in () if plan is None else plan.windows:
        compare_with_reference(store, join, rows, labels, retrieved)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = medians["check"] / medians["retrieval"]
    print(
        f"{shape.name}: retrieval {medians['retrieval']:.3f} s, check {medians['check']:.3f} s, "
        f"ratio {ratio:.2f} (at most {LIMIT:.0f})"
    )
    REPORT.add("leak check", shape.name, "retrieval", medians["retrieval"], "s")
    REPORT.add("leak check", shape.name, "check", medians["check"], "s")
    REPORT.add("leak check", shape.name, "check / retrieval", ratio, at_most=LIMIT)
    return ratio


def compare_with_reference(
    store: featurestore.FeatureStore,
    join: WindowJoin,
    rows: pa.Table,
    labels: pa.Table,
    retrieved: pa.Table,
) -> None:
    """Exit if the retrieved values of some labels differ from the reference in any bit."""
    first = labels.slice(0, REFERENCE_LABELS)
    values: dict[str, list[Any]] = {output.name: [] for output in join.outputs}
    is_wanted = np.isin(rows["sensor"].to_numpy(), first["sensor"].to_numpy())
    key_rows = rows.filter(pa.array(is_wanted))
    events = to_event_rows(join, key_rows)
    matches = {
        output.name: matching_rows(store.session, output, key_rows) for output in join.outputs
    }
    for label in first.to_pylist():
        visible = reference.visible_events(
            join,
            events,
            (label["sensor"],),
            label["asked_at"],
            filters_created_time=join.created_time is not None,
        )
        for output in join.outputs:
            window_rows = reference.rows_in_window(output, visible, label["asked_at"])
            counted = [
                row.values[output.column]
                for row in window_rows
                if row.values[ROW] in matches[output.name]
            ]
            values[output.name].append(reference.apply_function(output, counted))
    for output in join.outputs:
        expected = pa.table({output.name: pa.array(values[output.name], output.kind)})
        if bits(expected) != bits(retrieved.select([output.name]).slice(0, len(first))):
            raise SystemExit(f"{output.name} differs from the row-by-row reference")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="without the largest shapes")
    quick = parser.parse_args().quick
    shapes = [shape for shape in SHAPES if not quick or shape.rows < 100_000]
    with tempfile.TemporaryDirectory() as folder:
        ratios = [measure(shape, Path(folder) / str(index)) for index, shape in enumerate(shapes)]
    REPORT.save(quick=quick)
    return 0 if max(ratios) <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
