"""What it costs that commits are on disk when a call returns.

Inserts with full and with fast durability, in turns.

python benchmarks/durability.py [--quick] [--engine spark]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import pyarrow as pa
from checksums import rows
from report import Report

import featurestore
from featurestore.featuregroups import FeatureGroup

# name: (rows of an insert, partitions that it touches, inserts)
CASES = {
    "100 rows, one file": (100, 1, 30),
    "1,000,000 rows, one file": (1_000_000, 1, 5),
    "100,000 rows, 200 files": (100_000, 200, 5),
}


REPORT = Report(
    "durability",
    "Inserts without validation and statistics, ext4 on a virtual disk.",
)


def seconds_of(group: FeatureGroup, table: pa.Table) -> float:
    start = time.perf_counter()
    group.insert(table, validation="off")
    return time.perf_counter() - start


def measure(folder: Path, name: str, engine: str) -> None:
    """Print the median of both and their ratio."""
    number, partitions, trials = CASES[name]
    table = rows(number, partitions)
    groups = {}
    for durability in ("full", "fast"):
        store = featurestore.connect(folder / durability, engine=engine, durability=durability)
        groups[durability] = store.create_featuregroup(
            table.slice(0, partitions),
            f"g{number}",
            partition_by="part" if partitions > 1 else (),
            statistics=False,
        )
    seconds: dict[str, list[float]] = {"full": [], "fast": []}
    for _ in range(trials):
        for durability, group in groups.items():
            seconds[durability].append(seconds_of(group, table))
    full, fast = (statistics.median(seconds[durability]) for durability in ("full", "fast"))
    print(
        f"{name:26} full {1000 * full:8.1f} ms   fast {1000 * fast:8.1f} ms   ratio {full / fast:.2f}"
    )
    row = f'insert of {name}, `durability="full"` vs "fast", {engine}'
    REPORT.compare(row, 1000 * full, 1000 * fast, "ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the first case only")
    parser.add_argument("--engine", default="duckdb", help="duckdb or spark")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for name in list(CASES)[: 1 if arguments.quick else None]:
            measure(Path(folder), name, arguments.engine)
    REPORT.save(quick=arguments.quick)


if __name__ == "__main__":
    main()
