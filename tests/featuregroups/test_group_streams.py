"""Streams ten times larger than memory are inserted in bounded memory."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# Ten times DuckDB's limit, in batches that are released once they are written.
PROGRAM = """
    import re, sys
    import numpy as np, pyarrow as pa, duckdb
    import featurestore
    from featurestore_connectors.duckdb_delta import DuckDBEngine

    location, kind, policy = sys.argv[1:]
    LIMIT, WIDTH = 100, 10
    ROWS = LIMIT * 10 * 2**20 // (WIDTH * 8)

    def peak():
        return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

    def batches(rows, size=100_000):
        random = np.random.default_rng(0)
        for first in range(0, rows, size):
            count = min(size, rows - first)
            ids = np.arange(first, first + count)
            columns = [pa.array(ids)] + [pa.array(random.random(count)) for _ in range(WIDTH - 1)]
            yield pa.RecordBatch.from_arrays(columns, ["id"] + [f"x{i}" for i in range(WIDTH - 1)])

    def frame(rows):
        if kind == "reader":
            return pa.RecordBatchReader.from_batches(next(batches(1)).schema, batches(rows))
        columns = ", ".join(f"random() AS x{i}" for i in range(WIDTH - 1))
        duckdb.sql("SET enable_progress_bar = false")
        return duckdb.sql(f"SELECT range AS id, {columns} FROM range({rows})")

    store = featurestore.connect(location, engine=DuckDBEngine(memory_limit=f"{LIMIT}MB"))
    options = dict(validation=policy, statistics=False, primary_key="id")
    store.create_featuregroup(frame(1000), "warm", **options)
    idle = peak()
    store.create_featuregroup(frame(ROWS), "g", **options)
    store.insert_into_featuregroup(frame(1000), "g", mode="upsert", validation="off")
    print(peak() - idle)
    assert store.get_featuregroup("g").count() == ROWS
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize(
    ("source", "policy"),
    [pytest.param("duckdb", "off", marks=pytest.mark.soak), ("reader", "strict")],
)
def test_insert_stream_ten_times_larger_than_memory(
    tmp_path: Path, source: str, policy: str
) -> None:
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path / "store"), source, policy],
        capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    assert float(result.stdout) < 500, (
        f"{result.stdout.strip()} MiB above idle for 1,000 MiB of rows"
    )
    print(f"{source}, {policy}: {float(result.stdout):.0f} MiB above idle")
