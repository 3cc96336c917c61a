"""Speed of the row hash, the tie hash and the canonical bytes.

Rows a second on one core, medians of 5.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from report import Report

from featurestore.hashing import canonical_bytes, row_hash, tie_hash

REPORT = Report("hashing", "Millions of rows per second on one core, 2,000,000 rows.")


def keys(rows: int) -> dict[str, pa.Table]:
    random = np.random.default_rng(0)
    ids = pa.array(random.integers(0, 1 << 40, rows))
    times = pa.array(random.integers(0, 1 << 50, rows), pa.timestamp("us", tz="UTC"))
    numbers = random.integers(0, 10**12, rows)
    eight = pa.array([f"{number % 10**8:08d}" for number in numbers])
    sixteen = pa.array([f"user{number:012d}" for number in numbers])
    return {
        "int64": pa.table({"id": ids}),
        "int64 and timestamp": pa.table({"id": ids, "time": times}),
        "text of 8 bytes": pa.table({"id": eight}),
        "text of 16 bytes": pa.table({"id": sixteen}),
        "text of 16 bytes and timestamp": pa.table({"id": sixteen, "time": times}),
        "dictionary of 1,000 texts": pa.table(
            {"id": pa.array([f"k{n % 1000}" for n in numbers]).dictionary_encode()}
        ),
        "decimal(12, 2)": pa.table(
            {"id": pa.array(numbers % 10**8).cast(pa.decimal128(20)).cast(pa.decimal128(22, 2))}
        ),
        "16 float32": pa.table(
            {"x": pa.FixedSizeListArray.from_arrays(pa.array(random.random(rows * 16, "f4")), 16)}
        ),
    }


def rate(function: Callable[[pa.Table], object], table: pa.Table) -> float:
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        function(table)
        seconds.append(time.perf_counter() - start)
    return table.num_rows / statistics.median(seconds) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    quick = parser.parse_args().quick
    rows = 200_000 if quick else 2_000_000
    print(f"{rows:,} rows, million rows/s: row_hash, tie_hash, canonical_bytes")
    functions = (row_hash, tie_hash, canonical_bytes)
    for name, table in keys(rows).items():
        speeds = [rate(function, table) for function in functions]
        print(f"{name:32}" + "".join(f"{speed:8.1f}" for speed in speeds))
        for function, speed in zip(functions, speeds, strict=True):
            REPORT.add("key", name, f"`{function.__name__}`", speed)
    REPORT.save(quick=quick)


if __name__ == "__main__":
    main()
