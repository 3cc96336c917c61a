"""Shapes of data: what groups and exports of each cost, compared with a plain Parquet write.

Texts, images, embeddings, narrow types, nulls, a label of many values. Every figure is the time
of `pyarrow.parquet.write_table` of the same table in the same run; medians, in turns.

python benchmarks/shapes.py [--quick] [--trials 3] [--only doubles images ...] [--rows 200000]

Each export is read back and compared with the table before anything is timed.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from report import Report

ROWS, TRIALS = 200_000, 3
LABEL_LIMIT, STATISTICS_LIMIT, TEXT_LIMIT = 1.05, 1.5, 3.0
TEXTS = ("categories", "texts", "narrow")
IMAGE_BYTES, IMAGE_RATIO, IMAGE_SPEED = 1000, 4.0, 400e6
WORKS = (
    "group",
    "group, statistics",
    "tfrecord",
    "tfrecord, statistics",
    "parquet",
    "parquet, statistics",
)


def _texts(random: np.random.Generator, rows: int, values: int) -> pa.Array:
    """Return texts of 8 bytes."""
    return pa.array(np.char.mod("w%07d", random.integers(0, values, rows)))


def _doubles(random: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    return {f"x{index}": pa.array(random.random(rows)) for index in range(24)}


def doubles(random: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    return {**_doubles(random, rows), "label": pa.array(random.integers(0, 2, rows).astype(float))}


def regression(random: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    return {**_doubles(random, rows), "label": pa.array(random.random(rows))}


def categories(random: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    return {f"t{index}": _texts(random, rows, 20) for index in range(10)}


def texts(random: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    columns = {}
    for index in range(10):
        columns[f"t{index}"] = pa.array(np.char.mod("w%07d", random.permutation(rows)))
    return columns


def embedding(random: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    flat = pa.array(random.random(rows * 128, dtype=np.float32))
    return {"embedding": pa.FixedSizeListArray.from_arrays(flat, 128)}


def nulls(random: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    columns = {}
    for index in range(25):
        columns[f"x{index}"] = pa.array(random.random(rows), mask=random.random(rows) < 0.3)
    return columns


def narrow(random: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    columns = {f"b{index}": pa.array(random.random(rows) < 0.5) for index in range(12)}
    for index in range(13):
        columns[f"i{index}"] = pa.array(random.integers(-128, 128, rows).astype(np.int8))
    return columns


def decimals(random: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    columns = {}
    for index in range(5):
        cents = pa.array(random.integers(0, 10**8, rows)).cast(pa.decimal128(19, 0))
        hundred = pa.array([100], pa.decimal128(3, 0))
        scaled = pa.compute.divide(cents.cast(pa.decimal128(21, 2)), hundred[0])
        columns[f"d{index}"] = scaled.cast(pa.decimal128(12, 2), safe=False)
    return columns


def images(random: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    flat = random.integers(0, 256, rows * IMAGE_BYTES, dtype=np.uint8)
    offsets = np.arange(rows + 1, dtype=np.int32) * IMAGE_BYTES
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(flat)]
    return {"image": pa.Array.from_buffers(pa.binary(), rows, buffers)}


def floats(random: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    return {f"x{index}": pa.array(random.random(rows, dtype=np.float32)) for index in range(300)}


SHAPES: dict[str, Callable[[np.random.Generator, int], dict[str, pa.Array]]] = {
    "doubles": doubles,
    "regression": regression,
    "categories": categories,
    "texts": texts,
    "embedding": embedding,
    "nulls": nulls,
    "narrow": narrow,
    "decimals": decimals,
    "images": images,
    "floats": floats,
}
LABELED = ("doubles", "regression")
TITLES = {
    "doubles": "25 doubles",
    "regression": "25 doubles, label a double",
    "categories": "10 texts of 20 values",
    "texts": "10 texts, all different",
    "embedding": "embedding of 128 floats",
    "nulls": "25 doubles, 30 % null",
    "narrow": "12 booleans, 13 int8",
    "decimals": "5 decimals",
    "images": "1,000 bytes (an image)",
    "floats": "300 floats",
}
REPORT = Report(
    "shapes",
    "200,000 rows; time / `pyarrow.parquet.write_table`, and the time with statistics / without.",
)


class Cost(NamedTuple):
    """Seconds on a clock, and of the processors, which a busy machine disturbs less."""

    clock: float
    processor: float

    def ratio(self, base: Cost) -> str:
        return f"{self.clock / base.clock:.1f} ({self.processor / base.processor:.1f})"


class Shape:
    """A table of one shape, and a store that holds it as the group ``rows``."""

    def __init__(self, name: str, rows: int) -> None:
        import featurestore

        self.name = name
        self.folder = Path(tempfile.mkdtemp(prefix="bench-shapes-"))
        columns = {"id": pa.array(np.arange(rows))} | SHAPES[name](np.random.default_rng(7), rows)
        self.table = pa.table(columns)
        self.label = "label" if name in LABELED else None
        self.store = featurestore.connect(self.folder / "store")
        self.store.create_featuregroup(self.table, "rows", primary_key="id", statistics=False)
        self._number = 0

    def plain(self) -> str:
        folder = self.folder / "plain"
        folder.mkdir()
        pq.write_table(self.table, folder / "rows.parquet")
        return str(folder)

    def run(self, work: str) -> str:
        """Do one kind of work; return the folder with the written files."""
        if work == "plain":
            return self.plain()
        target, _, more = work.partition(", ")
        statistics = more == "statistics"
        self._number += 1
        if target == "group":
            name = f"g{self._number}"
            group = self.store.create_featuregroup(
                self.table, name, primary_key="id", statistics=statistics
            )
            return str(group.path)
        return str(self.export(target, statistics=statistics).path)

    def export(self, data_format: str, *, statistics: bool) -> Any:
        self._number += 1
        frame = self.store.get_featuregroup("rows")
        with redirect_stdout(io.StringIO()):  # the roles, which every export names
            return self.store.create_training_dataset(
                frame,
                f"d{self._number}",
                data_format=data_format,
                label=self.label,
                statistics=statistics,
            )

    def check(self) -> None:
        """Compare what exports hold with the table."""
        for data_format in ("tfrecord", "parquet"):
            dataset = self.export(data_format, statistics=True)
            lossy = {column.name for column in dataset.manifest.columns if column.loss is not None}
            rows = dataset.read("train").to_arrow().sort_by("id")
            for name in self.table.schema.names:
                expected = self.table[name]
                if name in lossy:
                    expected = expected.cast(pa.float32(), safe=False).cast(pa.float64())
                assert rows[name].combine_chunks().equals(expected.combine_chunks()), name
            shutil.rmtree(dataset.path)

    def close(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def open_shape(name: str, rows: int) -> Iterator[Shape]:
    shape = Shape(name, rows)
    try:
        yield shape
    finally:
        shape.close()


def cost(shape: Shape, work: str) -> Cost:
    """Return the time of one kind of work, without the removal of its files."""
    start, used = time.perf_counter(), time.process_time()
    folder = shape.run(work)
    duration = Cost(time.perf_counter() - start, time.process_time() - used)
    shutil.rmtree(folder)
    return duration


def measure(shape: Shape, trials: int) -> dict[str, Cost]:
    """Return the medians of all works on a shape, measured in turns."""
    shape.check()
    costs_of_works: dict[str, list[Cost]] = {work: [] for work in ("plain", *WORKS)}
    for trial in range(trials + 1):
        for work, costs in costs_of_works.items():
            duration = cost(shape, work)
            if trial:  # the first one warms up
                costs.append(duration)
    medians = {}
    for work, costs in costs_of_works.items():
        clocks, processors = zip(*costs, strict=True)
        medians[work] = Cost(statistics.median(clocks), statistics.median(processors))
    return medians


def report(name: str, shape: Shape, costs: dict[str, Cost]) -> None:
    plain = costs["plain"]
    cells = [costs[work].ratio(plain) for work in WORKS]
    print(f"| {name} | {plain.clock:.2f} | {' | '.join(cells)} |", flush=True)
    missed = []
    row = f"{TITLES[name]}, {shape.table.num_rows:,} rows"
    REPORT.add("shape", row, "pyarrow", plain.clock, "s")
    for work in WORKS[::2]:
        ratio, by_processor = (value / base for value, base in zip(costs[work], plain, strict=True))
        limit = None
        if work != "group":
            limit = {"images": IMAGE_RATIO, **dict.fromkeys(TEXTS, TEXT_LIMIT)}.get(name)
        REPORT.add("shape", row, work, ratio, processor=by_processor, at_most=limit)
        more = costs[f"{work}, statistics"]
        clock = more.clock / costs[work].clock
        processor = more.processor / costs[work].processor
        column = f"{work}, statistics"
        REPORT.add("shape", row, column, clock, processor=processor, at_most=STATISTICS_LIMIT)
        if clock > STATISTICS_LIMIT:
            missed.append(f"{work} {clock:.2f} ({processor:.2f})")
    if missed:
        print(f"    statistics cost more than {STATISTICS_LIMIT}: {', '.join(missed)}")
    if name in TEXTS:
        for work in ("tfrecord", "parquet"):
            if costs[work].clock > TEXT_LIMIT * plain.clock:
                print(f"    {work} takes more than {TEXT_LIMIT} times of the plain write")
    if name == "images":
        size = shape.table.nbytes
        for work in ("tfrecord", "parquet"):
            speed = size / costs[work].processor
            print(f"    {work}: {speed / 1e6:.0f} MB/s a core (wanted 400, or ratio {IMAGE_RATIO})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--trials", type=int, default=TRIALS, help="fewer on a busy machine")
    parser.add_argument("--rows", type=int, default=ROWS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows, trials = arguments.rows, arguments.trials
    if arguments.quick:
        rows, trials = 20_000, 1
    print(
        f"{rows:,} rows; times of pyarrow's write (by processor time); load {os.getloadavg()[0]:.1f}"
    )
    print(f"| shape | plain, s | {' | '.join(WORKS)} |")
    measured = {}
    for name in arguments.only:
        with open_shape(name, rows) as shape:
            measured[name] = measure(shape, trials)
            report(name, shape, measured[name])
    REPORT.save(quick=arguments.quick)
    if set(LABELED) <= set(measured):
        for work in ("tfrecord", "parquet"):
            binary, continuous = (measured[name][work] for name in LABELED)
            print(
                f"{work}: a continuous label costs {continuous.ratio(binary)} of a binary one "
                f"(limit {LABEL_LIMIT})"
            )


if __name__ == "__main__":
    main()
