"""Export of training datasets.

Whole exports against tf.train.Example and DuckDB COPY, memory. Medians, one run.

python benchmarks/export.py [--quick] [--trials 5] [--only tfrecord parquet petastorm cores memory]

Encoding alone has its own program, encode.py. Each comparison asserts that the rows are equal
before it is timed.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from report import COMPARISONS, Report

TRIALS = 5
SECTIONS = ("tfrecord", "parquet", "petastorm", "cores", "memory")
REPORT = Report(
    "export",
    "Exports of a feature group; `COPY` writes Parquet in hash order without checksums and fsync.",
)


def table(rows: int, columns: int = 25, *, first: int = 0) -> pa.Table:
    """Return rows x columns: an id, int64, float32, 2 float64 and a string of 8."""
    random = np.random.default_rng(first)
    arrays: dict[str, pa.Array] = {"id": pa.array(np.arange(first, first + rows))}
    integers = (columns - 3) * 10 // 22
    for index in range(integers - 1):
        arrays[f"i{index}"] = pa.array(random.integers(0, 1 << 20, rows))
    for index in range(columns - 3 - integers):
        arrays[f"f{index}"] = pa.array(random.random(rows, dtype=np.float32))
    arrays |= {f"d{index}": pa.array(random.random(rows)) for index in range(2)}
    arrays["word"] = pa.array(np.char.mod("w%07d", random.integers(0, 10**7, rows)))
    return pa.table(arrays)


class Seconds(NamedTuple):
    """What a work took.

    On a clock, and of the processors, which remains comparable on a busy machine.
    """

    clock: float
    processor: float


def measured(export: Callable[[], str], trials: int) -> Seconds:
    """Return the median time of exports to folders, which are removed after each measurement."""
    clocks, processors = [], []
    for trial in range(trials + 1):
        start, used = time.perf_counter(), time.process_time()
        folder = export()
        if trial:  # the first one warms up
            clocks.append(time.perf_counter() - start)
            processors.append(time.process_time() - used)
        shutil.rmtree(folder)
    return Seconds(statistics.median(clocks), statistics.median(processors))


class Export:
    """One store with one group, exported again and again."""

    def __init__(self, rows: int, columns: int) -> None:
        import featurestore

        self.folder = Path(tempfile.mkdtemp(prefix="bench-export-"))
        self.rows = rows
        self.data = table(rows, columns)
        self.store = featurestore.connect(self.folder / "store")
        self.store.create_featuregroup(self.data, "rows", primary_key="id", statistics=False)
        self.name = 0

    def ours(self, data_format: str, *, statistics: bool = False) -> str:
        self.name += 1
        dataset = self.store.create_training_dataset(
            self.store.get_featuregroup("rows"),
            f"d{self.name}",
            data_format=data_format,
            shards=8,
            statistics=statistics,
        )
        return dataset.path

    def copy_to_parquet(self) -> str:
        """Return the same rows in hash order, written by DuckDB alone."""
        import duckdb

        target = self.folder / f"copy{time.monotonic_ns()}"
        target.mkdir()
        files = list((self.folder / "store" / "featuregroups" / "rows" / "v1").glob("*.parquet"))
        listed = ", ".join(f"'{file}'" for file in files)
        with duckdb.connect() as connection:
            connection.execute(
                f"COPY (SELECT * FROM read_parquet([{listed}]) ORDER BY hash(id)) "
                f"TO '{target}/rows.parquet' (FORMAT parquet)"
            )
        return str(target)

    def examples(self, rows: int) -> float:
        """Return the seconds that the plain loop with tf.train.Example takes for some of the rows."""
        import tensorflow as tf

        start = time.perf_counter()
        with tf.io.TFRecordWriter(str(self.folder / "examples.tfrecord")) as writer:
            for row in self.data.slice(0, rows).to_pylist():
                feature = {}
                for name, value in row.items():
                    if isinstance(value, int):
                        feature[name] = tf.train.Feature(
                            int64_list=tf.train.Int64List(value=[value])
                        )
                    elif isinstance(value, float):
                        feature[name] = tf.train.Feature(
                            float_list=tf.train.FloatList(value=[value])
                        )
                    else:
                        feature[name] = tf.train.Feature(
                            bytes_list=tf.train.BytesList(value=[value.encode()])
                        )
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
        return time.perf_counter() - start

    def close(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def compare(rows: int, columns: int, formats: tuple[str, ...], trials: int) -> None:
    export = Export(rows, columns)
    size = f"{rows:,} x {columns}"
    try:
        copy = measured(export.copy_to_parquet, trials)
        print(f"\n{rows:,} rows x {columns} columns")
        print(f"  DuckDB COPY in hash order           {rows / copy.clock:12,.0f} rows/s")

        if "tfrecord" in formats:
            loop = statistics.median(export.examples(min(rows, 20_000)) for _ in range(3)) / min(
                rows, 20_000
            )
            print(f"  tf.train.Example loop               {1 / loop:12,.0f} rows/s")

        for data_format in formats:
            check(export, data_format)
            seconds = measured(partial(export.ours, data_format), trials)
            line = f"  {data_format:<10} whole export             {rows / seconds.clock:12,.0f} rows/s, "
            line += f"{seconds.clock / copy.clock:.2f}x the time of COPY"
            line += f" ({seconds.processor / copy.processor:.2f}x by processor time)"
            by_processor = seconds.processor / copy.processor
            limit = 3.0 if data_format == "tfrecord" else 1.5
            row = f"{data_format}, {size}, vs `COPY`"
            REPORT.compare(
                row, seconds.clock, copy.clock, "s", processor=by_processor, at_most=limit
            )
            if data_format == "tfrecord":
                line += f", {loop * rows / seconds.clock:.1f}x the loop's speed (target >= 15; COPY's time <= 3x)"
                more = measured(partial(export.ours, "tfrecord", statistics=True), min(trials, 3))
                line += f"; with statistics, the default, {rows / more.clock:,.0f} rows/s, "
                line += f"{loop * rows / more.clock:.1f}x (target >= 15)"
                for title, cost in (("tfrecord", seconds), ("tfrecord with statistics", more)):
                    row = f"{title}, {size}, vs a loop of `tf.train.Example`"
                    rate = rows / cost.clock
                    REPORT.compare(row, rate, 1 / loop, "rows/s", at_least=15.0)
            else:
                line += " (target <= 1.5x)"
            print(line)
    finally:
        export.close()


def check(export: Export, data_format: str) -> None:
    from featurestore.training.dataset import TrainingDataset

    dataset = TrainingDataset.open(export.ours(data_format))
    rows = dataset.read("train").to_arrow()
    order = np.argsort(rows["id"].to_numpy())
    assert np.array_equal(rows["id"].to_numpy()[order], np.arange(export.rows))
    lossy = {column.name for column in dataset.manifest.columns if column.loss is not None}
    for name in rows.schema.names:
        expected = export.data[name]
        if name in lossy:
            expected = expected.cast(pa.float32(), safe=False).cast(pa.float64())
        assert rows[name].take(pa.array(order)).equals(expected), name
    shutil.rmtree(dataset.path)


def cores(rows: int, trials: int) -> None:
    """Whole export with one core and with both."""
    seconds = {}
    for count in (1, 2):
        folder = str(Path(__file__).parent)
        program = f"import sys; sys.path.insert(0, {folder!r}); import export; export.print_seconds({rows}, {trials})"
        command = ["taskset", "-c", ",".join(map(str, range(count))), sys.executable, "-c", program]
        environment = os.environ | {"OMP_NUM_THREADS": str(count)}
        process = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        )
        seconds[count] = float(process.stdout.split()[-1])
    print(f"\nboth cores: {seconds[1] / seconds[2]:.2f}x one core (target >= 1.6)")
    row = f"tfrecord, {rows:,} x 25, two cores vs one"
    REPORT.compare(row, rows / seconds[2], rows / seconds[1], "rows/s", at_least=1.6)


def print_seconds(rows: int, trials: int) -> None:
    export = Export(rows, 25)
    try:
        print(measured(partial(export.ours, "tfrecord"), trials).clock)
    finally:
        export.close()


def memory(rows: int) -> None:
    """Peak memory of an export of many rows above the idle process; the group is streamed in."""
    folder = str(Path(__file__).parent)
    program = (
        f"import sys; sys.path.insert(0, {folder!r}); import export; export.print_peak({rows})"
    )
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    print(f"\n{process.stdout.strip()} (target < 2 GiB)")
    took, peak = re.search(r": (\S+) s, peak (\S+) GiB", process.stdout).groups()  # type: ignore[union-attr]
    row = f"tfrecord, {rows:,} x 25"
    REPORT.add(COMPARISONS, row, "ours", rows / float(took), "rows/s")
    REPORT.add(COMPARISONS, row, "peak above idle", float(peak), "GiB", at_most=2)


def print_peak(rows: int) -> None:
    import featurestore

    step = 500_000
    schema = table(1).schema
    folder = Path(tempfile.mkdtemp(prefix="bench-export-"))
    store = featurestore.connect(folder / "store")
    table(10)
    reader = pa.RecordBatchReader.from_batches(
        schema,
        (
            batch
            for first in range(0, rows, step)
            for batch in table(step, first=first).to_batches()
        ),
    )
    store.create_featuregroup(reader, "rows", validation="off", statistics=False)
    store.close()
    program = f"""
import resource, sys, time, featurestore
import featurestore_connectors.tfrecord, featurestore.training.create
store = featurestore.connect({str(folder / "store")!r})
idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
dataset = store.create_training_dataset(store.get_featuregroup("rows"), "d", key="id", statistics=False)
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert dataset.num_rows("train") == {rows}
print(f"{rows:,} rows x 25 columns: {{seconds:.0f}} s, peak {{(peak - idle) / 2**20:.2f}} GiB above idle")
"""
    try:
        subprocess.run([sys.executable, "-c", program], check=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--trials", type=int, default=TRIALS, help="fewer on a busy machine")
    arguments = parser.parse_args()
    rows, trials = (50_000, 1) if arguments.quick else (1_000_000, arguments.trials)
    formats = tuple(
        data_format
        for data_format in ("tfrecord", "parquet", "petastorm")
        if data_format in arguments.only
    )
    if formats:
        compare(rows, 25, formats, trials)
        compare(max(rows // 8, 10_000), 200, formats, trials)
    if "cores" in arguments.only:
        cores(rows, min(trials, 3))
    if "memory" in arguments.only:
        memory(500_000 if arguments.quick else 20_000_000)
    REPORT.save(quick=arguments.quick)
    print(
        f"\npeak of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB"
    )


if __name__ == "__main__":
    main()
