"""What the calls of every day cost in two checkouts: processor time after against before.

Both run the same works on the embedded engine, each checkout in processes of its own, in turns;
of each work the least processor time counts, since load only adds. A work that one of them does not
know is left out.

python benchmarks/before_and_after.py ../old-checkout [--rows 200000] [--rounds 3] [--only create]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 1.05
TRIALS = 3
FORMATS = ("tfrecord", "parquet", "petastorm")
HOUR = 3_600_000_000
TIME = pa.timestamp("us", tz="UTC")


def features(rows: int, *, first: int = 0) -> pa.Table:
    """Return ten numbers, a text and a time for each of ``rows`` keys."""
    random = np.random.default_rng(first)
    columns = {
        "id": pa.array(np.arange(first, first + rows)),
        "at": pa.array(random.integers(0, 1000, rows) * HOUR).cast(TIME),
    }
    for index in range(10):
        columns[f"d{index}"] = pa.array(random.random(rows))
    columns["word"] = pa.array(np.char.mod("w%03d", random.integers(0, 1000, rows)))
    return pa.table(columns)


def history(rows: int, *, prefix: str) -> pa.Table:
    """Return numbers of a hundred keys at many times."""
    random = np.random.default_rng(rows)
    columns = {
        "key": pa.array(np.arange(rows) % 100),
        "at": pa.array(np.arange(rows) // 100 * HOUR).cast(TIME),
    }
    for index in range(4):
        columns[f"{prefix}{index}"] = pa.array(random.random(rows))
    return pa.table(columns)


def labels(rows: int) -> pa.Table:
    """Return keys, times within those of ``history``, and a label."""
    random = np.random.default_rng(7)
    times = random.integers(0, rows // 100 * HOUR, rows)
    columns = {
        "key": pa.array(random.integers(0, 100, rows)),
        "at": pa.array(times).cast(TIME),
        "label": pa.array(random.integers(0, 2, rows)),
    }
    return pa.table(columns)


class Works:
    """The works of one store, by name."""

    def __init__(self, folder: Path, rows: int) -> None:
        import featurestore

        self.store = featurestore.connect(folder / "store")
        self._rows, self._number = features(rows), 0
        self._more = features(rows // 10, first=rows)
        self._changed = features(rows // 10)
        self._labels = labels(rows)
        self.store.create_featuregroup(self._rows, "rows", primary_key="id", statistics=False)
        for name in ("a", "b"):
            self.store.create_featuregroup(
                history(rows, prefix=name), name, primary_key="key", event_time="at"
            )
        self._datasets: dict[str, Any] = {}
        for data_format in FORMATS:
            self._datasets[data_format] = self._export(data_format)

    def all(self) -> dict[str, Callable[[], object]]:
        """Return each work; some follow on the one before."""
        works: dict[str, Callable[[], object]] = {
            "create": self._create,
            "append": lambda: self._insert(self._more, mode="append"),
            "upsert": lambda: self._insert(self._changed, mode="upsert"),
            "create, statistics": lambda: self._create(statistics=True),
            "read": lambda: self.store.get_featuregroup("rows").to_arrow(),
            "point in time": self._point_in_time,
        }
        for name in FORMATS:
            works[f"export {name}"] = lambda name=name: self._export(name)
            works[f"export {name}, statistics"] = lambda name=name: self._export(
                name, with_statistics=True
            )
            works[f"reader {name}"] = lambda name=name: self._epoch(name)
            works[f"verify {name}"] = lambda name=name: self._datasets[name].verify()
        return works

    def _create(self, *, statistics: bool = False) -> None:
        self._number += 1
        self._group = self.store.create_featuregroup(
            self._rows, f"g{self._number}", primary_key="id", statistics=statistics
        )

    def _insert(self, rows: pa.Table, *, mode: str) -> None:
        self._group.insert(rows, mode=mode)

    def _point_in_time(self) -> pa.Table:
        feature_names = [f"{name}.{name}{index}" for name in ("a", "b") for index in range(4)]
        return self.store.get_features(feature_names, labels=self._labels).to_arrow()

    def _export(self, data_format: str, *, with_statistics: bool = False) -> Any:
        self._number += 1
        rows = self.store.get_featuregroup("rows")
        return self.store.create_training_dataset(
            rows, f"d{self._number}", data_format=data_format, shards=8, statistics=with_statistics
        )

    def _epoch(self, data_format: str) -> int:
        reader = self._datasets[data_format].reader("train", global_batch_size=1024)
        batch_count = 0
        for _ in reader.batches():
            batch_count += 1
        return batch_count


def child(rows: int, only: list[str] | None) -> None:
    """Print what each work took, as a line of JSON."""
    warnings.simplefilter("ignore")
    folder = Path(tempfile.mkdtemp(prefix="bench-before-"))
    seconds: dict[str, float | None] = {}
    try:
        with redirect_stdout(io.StringIO()):  # the roles
            for _ in range(TRIALS + 1):
                _measure_all(folder, rows, only, seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(seconds), flush=True)


def _measure_all(
    folder: Path, rows: int, only: list[str] | None, seconds: dict[str, float | None]
) -> None:
    works = Works(Path(tempfile.mkdtemp(dir=folder)), rows)
    try:
        for name, work in works.all().items():
            if only and not any(name.startswith(prefix) for prefix in only):
                continue
            start = time.process_time()
            try:
                work()
            except (AttributeError, TypeError):  # an older call
                seconds[name] = None
                continue
            took = time.process_time() - start
            before = seconds.get(name)
            seconds[name] = took if before is None else min(before, took)
    finally:
        works.store.close()


def run(checkout: Path, rows: int, only: list[str] | None) -> dict[str, float | None]:
    """Return what a process of a checkout measured."""
    folders = [checkout, checkout / "connectors", checkout / "schemas"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, __file__, str(checkout), "--child", "--rows", str(rows)]
    if only:
        command += ["--only", *only]
    process = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return dict(json.loads(process.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="works whose names begin so")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.rows, arguments.only)
        return
    least: list[dict[str, float]] = [{}, {}]
    for _ in range(arguments.rounds):
        for side, checkout in zip(least, (arguments.before.resolve(), ROOT), strict=True):
            for name, took in run(checkout, arguments.rows, arguments.only).items():
                if took is not None:
                    side[name] = min(took, side.get(name, took))
    before, after = least
    print(f"{arguments.rows:,} rows, load {os.getloadavg()[0]:.1f}; processor seconds")
    for name, took in after.items():
        if name in before:
            ratio = took / before[name]
            missed = "" if ratio <= LIMIT else "  MORE"
            print(f"  {name:<28} {before[name]:.3f} before, {took:.3f}, {ratio:.2f}{missed}")


if __name__ == "__main__":
    main()
