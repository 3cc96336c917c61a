"""Scale on one machine: the same work on a large store and on a tenth of it, with little memory.

A group with 10 features (100 million rows), labels with 12 more (a fifth as many), their join as of
the labels' times, and its export as TFRecord (25 columns). Each size runs in a process of its own,
which makes its rows as a stream and tells its engine to use four fifths of 6 GiB; the small one runs
three times, and its medians are taken. Printed are seconds, nanoseconds of processor time for a row,
the peak of its processes (limit 6 GiB), and what a row costs in the large store compared with the
small one (limit 1.3). Joined rows are counted and looked at: each has the features that the times say.

python benchmarks/scale.py [--rows 100] [--parts 10] [--memory 6] [--spark]   (millions of rows)

``--spark`` does the same on Spark (``local[2]``). Time and memory are those of all its processes, Python's and
the JVM's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from report import Report

MILLION = 1_000_000
FEATURES, MORE, LABEL_SHARE = 10, 12, 5
KEYS_OF_ROWS = 100
FIRST_ROWS = 10_000  # done before the clock runs: the first calls import, start and compile
ROW_LIMIT = 1.3
SMALL_RUNS = 3
STEP = 60_000_000  # of event times, microseconds
START = 1_546_300_800_000_000
BATCH = 100_000
TIME = pa.timestamp("us", tz="UTC")
WORKS = ("group", "labels", "join", "export")
REPORT = Report(
    "scale",
    "A group of R rows x 10 doubles, R / 5 labels, their join and its TFRecord export with "
    "statistics and checks, in 6 GiB; nanoseconds of processor time per row of R.",
)


def features(rows: int) -> pa.RecordBatchReader:
    """Return rows of ``rows / 100`` keys at 100 times each, the first feature the row's number."""
    keys = max(rows // KEYS_OF_ROWS, 1)
    names = [f"f{index}" for index in range(FEATURES)]
    fields = [("key", pa.int64()), ("at", TIME), *((name, pa.float64()) for name in names)]
    schema = pa.schema(fields)

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, rows, BATCH):
            numbers = np.arange(first, min(first + BATCH, rows))
            times = pa.array(START + numbers // keys * STEP).cast(TIME)
            values = [numbers.astype(np.float64)]
            random = np.random.default_rng(first)
            values += list(random.random((FEATURES - 1, len(numbers)), dtype=np.float32))
            columns = [pa.array(numbers % keys), times]
            columns += [pa.array(array.astype(np.float64)) for array in values]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def labels(rows: int) -> pa.RecordBatchReader:
    """Return a fifth as many labels; ``expected`` is the first feature as of the label's time."""
    keys = max(rows // KEYS_OF_ROWS, 1)
    names = ["expected", *(f"m{index}" for index in range(MORE - 1))]
    fields = [("label", pa.int64()), ("key", pa.int64()), ("at", TIME)]
    schema = pa.schema([*fields, *((name, pa.float64()) for name in names)])
    count = rows // LABEL_SHARE

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, count, BATCH):
            random = np.random.default_rng(rows + first)
            size = min(BATCH, count - first)
            key = random.integers(0, keys, size)
            step = random.integers(0, KEYS_OF_ROWS, size)
            late = random.integers(0, STEP, size)
            columns = [pa.array(np.arange(first, first + size)), pa.array(key)]
            columns.append(pa.array(START + step * STEP + late).cast(TIME))
            columns.append(pa.array((step * keys + key).astype(np.float64)))
            columns += [pa.array(values) for values in random.random((MORE - 1, size))]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


class Work:
    """One store of one size; its steps in order."""

    def __init__(self, folder: Path, rows: int, engine: str) -> None:
        import featurestore

        self.rows = rows
        self.store = featurestore.connect(folder / "store", engine=engine)

    def group(self) -> None:
        self.store.create_featuregroup(
            features(self.rows), "readings", primary_key="key", event_time="at"
        )

    def labels(self) -> None:
        self.store.create_featuregroup(
            labels(self.rows), "asked", primary_key="label", event_time="at"
        )

    def _frame(self) -> Any:
        names = [f"readings.f{index}" for index in range(FEATURES)]
        return self.store.get_features(names, labels="asked")

    def join(self) -> None:
        row_count = 0
        for batch in self._frame().to_batches():
            assert batch.column("f0").equals(batch.column("expected")), "another row was joined"
            row_count += batch.num_rows
        assert row_count == self.rows // LABEL_SHARE

    def export(self) -> None:
        dataset = self.store.create_training_dataset(
            self._frame(), "asked", data_format="tfrecord", label="m0", exclude=["label"]
        )
        assert sum(split.rows for split in dataset.manifest.splits) == self.rows // LABEL_SHARE

    def close(self) -> None:
        self.store.close()


def child(rows: int, engine: str) -> None:
    """Run the steps of one size and print what they took as a line of JSON."""
    warnings.simplefilter("ignore")
    folder = Path(tempfile.mkdtemp(prefix="bench-scale-"))
    costs: dict[str, Any] = {"peak": 0.0}
    try:
        first = Work(folder / "first", FIRST_ROWS, engine)
        for name in WORKS:
            getattr(first, name)()
        first.close()
        work = Work(folder, rows, engine)
        for name in WORKS:
            step: Callable[[], None] = getattr(work, name)
            start, (before, _) = time.perf_counter(), used_by_processes()
            step()
            after, peak = used_by_processes()
            costs[name] = (time.perf_counter() - start, after - before)
            costs["peak"] = max(costs["peak"], peak)
        work.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(costs), flush=True)


def used_by_processes() -> tuple[float, float]:
    """Return seconds of processor time and GiB of this process and all below it, such as the JVM.

    Memory is the sum of what each held at most.
    """
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            stats[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    seconds, peak = 0.0, 0.0
    waiting = [os.getpid()]
    while waiting:
        process = waiting.pop()
        waiting += [child for child, fields in stats.items() if int(fields[1]) == process]
        ticks = sum(map(int, stats[process][11:15]))  # with those of children that ended
        seconds += ticks / os.sysconf("SC_CLK_TCK")
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process}/status").read_text().splitlines():
                if line.startswith("VmHWM"):
                    peak += int(line.split()[1]) / 2**20
    return seconds, peak


def measured(rows: int, engine: str, memory: float) -> dict[str, Any]:
    """Return what a process of its own took for one size."""
    environment = os.environ | {
        "FEATURESTORE_DUCKDB_MEMORY_LIMIT": f"{memory * 0.8:g}GB",
        "FEATURESTORE_SPARK_DRIVER_MEMORY": f"{memory * 2 / 3:.0f}g",
        "FEATURESTORE_SPARK_MASTER": "local[2]",
    }
    command = [sys.executable, __file__, "--child", str(rows), "--engine", engine]
    process = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return dict(json.loads(process.stdout.splitlines()[-1]))


def _medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of seconds and processor seconds, and the greatest peak."""
    medians: dict[str, Any] = {"peak": max(run["peak"] for run in runs)}
    for name in WORKS:
        costs = [run[name] for run in runs]
        medians[name] = [statistics.median(values) for values in zip(*costs, strict=True)]
    return medians


def report(engine: str, sizes: list[int], memory: float) -> bool:
    """Print one table of an engine; tell whether its limits hold."""
    large = measured(sizes[0], engine, memory)
    small = _medians([measured(sizes[1], engine, memory) for _ in range(SMALL_RUNS)])
    print(f"{engine}, load {os.getloadavg()[0]:.1f}; nanoseconds of processor time a row")
    good = True
    for name in WORKS:
        costs = [large[name][1] / sizes[0] * 1e9, small[name][1] / sizes[1] * 1e9]
        ratio = costs[0] / costs[1]
        missed = "" if ratio <= ROW_LIMIT else "  MISSED"
        good = good and not missed
        print(
            f"  {name:7} {sizes[0]:,} rows: {large[name][0]:.1f} s, {costs[0]:.0f} ns; "
            f"{sizes[1]:,}: {small[name][0]:.1f} s, {costs[1]:.0f} ns; "
            f"ratio {ratio:.2f} (limit {ROW_LIMIT}){missed}"
        )
        titles = [f"{engine}, {size / MILLION:,g} M rows" for size in sizes]
        REPORT.add("step", name, f"{titles[0]}, time", large[name][0], "s")
        for title, cost in zip(titles, costs, strict=True):
            REPORT.add("step", name, title, cost, "ns")
        REPORT.add("step", name, f"{engine}, ratio", ratio, at_most=ROW_LIMIT)
    within = large["peak"] <= memory
    for title, peak in zip(titles, (large["peak"], small["peak"]), strict=True):
        REPORT.add("step", f"peak memory, at most {memory:g} GiB", title, peak, "GiB")
    print(
        f"  peak {large['peak']:.2f} GiB and {small['peak']:.2f} GiB "
        f"(limit {memory:g}){'' if within else '  MISSED'}",
        flush=True,
    )
    return good and within


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=100, help="millions of feature rows")
    parser.add_argument("--parts", type=int, default=10, help="the small store has a part of them")
    parser.add_argument("--memory", type=float, default=6, help="GiB")
    parser.add_argument("--spark", action="store_true", help="on Spark instead")
    parser.add_argument("--quick", action="store_true", help="100,000 rows")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--engine", default="duckdb", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        child(arguments.child, arguments.engine)
        return
    rows = int(arguments.rows * MILLION)
    if arguments.quick:
        rows = MILLION // 10
    engine = "spark" if arguments.spark else "duckdb"
    is_within_limits = report(engine, [rows, rows // arguments.parts], arguments.memory)
    REPORT.save(quick=arguments.quick)
    if not is_within_limits:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
