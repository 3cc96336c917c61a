"""Feature groups against the bare libraries.

Create, read, upsert, stream, open. Ratios in one run, medians of 5.

python benchmarks/feature_groups.py [--quick] [--only create read upsert stream open]
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from report import COMPARISONS, Report

from featurestore.model.runtime import usable_cores

TRIALS = 5
EPOCH = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
REPORT = Report(
    "feature_groups", "Validation and statistics are off where a row does not name them."
)


def table(rows: int, *, seed: int = 0, first: int = 0) -> pa.Table:
    """Return rows x 10: an id, a time, a text and seven numbers."""
    random = np.random.default_rng(seed)
    ids = np.arange(first, first + rows)
    micros = int(EPOCH.timestamp()) * 1_000_000 + ids * 1_000_000
    columns = {
        "id": pa.array(ids),
        "t": pa.array(micros, pa.timestamp("us", tz="UTC")),
        "place": pa.array(
            np.array([f"place{n}" for n in range(200)])[random.integers(0, 200, rows)]
        ),
        "n": pa.array(random.integers(0, 1000, rows), pa.int32()),
    }
    for index in range(6):
        columns[f"x{index}"] = pa.array(random.random(rows))
    return pa.table(columns)


def compare(
    title: str,
    limit: float,
    ours: Callable[[], None],
    bare: Callable[[], None],
    *,
    bare_name: str,
    trials: int = TRIALS,
) -> None:
    """Print the medians of both, measured in turns, and their ratio."""
    seconds: dict[str, list[float]] = {"ours": [], "bare": []}
    for trial in range(trials + 1):
        for name, function in (("bare", bare), ("ours", ours)):
            start = time.perf_counter()
            function()
            if trial:  # the first one warms up
                seconds[name].append(time.perf_counter() - start)
    our_median, bare_median = (statistics.median(seconds[name]) for name in ("ours", "bare"))
    verdict = "ok" if our_median / bare_median <= limit else "MISSED"
    print(
        f"{title:34} ours {our_median:7.3f} s   {bare_name:22} {bare_median:7.3f} s   "
        f"x{our_median / bare_median:5.2f} (<= {limit}) {verdict}"
    )
    REPORT.compare(f"{title}, vs {bare_name}", our_median, bare_median, "s", at_most=limit)


class Numbers:
    """A new name at each call."""

    def __init__(self, prefix: str) -> None:
        self.prefix, self.count = prefix, 0

    def __call__(self) -> str:
        self.count += 1
        return f"{self.prefix}{self.count}"


def create(folder: Path, rows: int) -> None:
    from deltalake import write_deltalake

    import featurestore

    data = table(rows)
    store = featurestore.connect(folder / "store")
    names, paths = Numbers("g"), Numbers("bare")

    def ours() -> None:
        name = names()
        store.create_featuregroup(
            data, name, primary_key="id", event_time="t", validation="off", statistics=False
        )
        shutil.rmtree(store.featuregroup(name).path + "_old", ignore_errors=True)

    def bare() -> None:
        write_deltalake(str(folder / paths()), data)

    compare(f"create {rows:,} x 10", 1.15, ours, bare, bare_name="write_deltalake")
    for policy, with_statistics in (("strict", False), ("off", True), ("strict", True)):
        start = time.perf_counter()
        store.create_featuregroup(
            data,
            names(),
            primary_key="id",
            event_time="t",
            validation=policy,
            statistics=with_statistics,
        )
        options = f"validation={policy!r}, statistics={with_statistics}"
        print(f"{'  with ' + options:50} {time.perf_counter() - start:7.3f} s")


def read(folder: Path, rows: int) -> None:
    import duckdb

    import featurestore
    from featurestore.delta.snapshot import read_snapshot

    store = featurestore.connect(folder / "store")
    group = store.create_featuregroup(table(rows), "g", validation="off", statistics=False)
    files = [file.path for file in read_snapshot(group.path).files]

    def ours() -> None:
        assert store.get_featuregroup("g", dataframe_type="arrow").num_rows == rows

    def bare() -> None:
        assert duckdb.connect().read_parquet(files).to_arrow_table().num_rows == rows

    compare(f"read {rows:,} x 10 to Arrow", 1.15, ours, bare, bare_name="duckdb read_parquet")


def upsert(folder: Path, rows: int) -> None:
    from deltalake import DeltaTable, write_deltalake

    import featurestore

    store = featurestore.connect(folder / "store")
    data = table(rows)
    group = store.create_featuregroup(
        data, "g", primary_key="id", event_time="t", validation="off", statistics=False
    )
    path = str(folder / "bare")
    write_deltalake(path, data)
    random = np.random.default_rng(1)
    indices = np.sort(random.choice(rows, rows // 100, replace=False))
    changed = data.take(pa.array(indices)).combine_chunks()

    def ours() -> None:
        group.insert(changed, mode="upsert", validation="off")

    def bare() -> None:
        target = DeltaTable(path)
        merge = target.merge(
            changed, predicate="t.id = s.id and t.t = s.t", source_alias="s", target_alias="t"
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    compare(f"upsert of 1 % into {rows:,}", 1.3, ours, bare, bare_name="delta-rs merge")


STREAM = """
    import re, sys
    sys.path.insert(0, {folder!r})
    import pyarrow as pa
    import featurestore, feature_groups
    import duckdb, deltalake, pyarrow.parquet, numpy
    store = featurestore.connect({location!r})
    store.create_featuregroup(pa.table({{"a": [1]}}), "warm", validation="off", statistics=False)
    def peak():  # getrusage would tell the parent's, which a child inherits
        return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
    idle = peak()
    reader = pa.RecordBatchReader.from_batches(feature_groups.table(1).schema, feature_groups.batches({rows}))
    store.create_featuregroup(reader, "g", validation={policy!r}, statistics={statistics!r}, primary_key="id")
    used = peak()
    assert store.get_featuregroup("g").count() == {rows}
    print((used - idle) / 2**20, idle / 2**20)
"""


def batches(rows: int, *, size: int = 250_000) -> Iterator[pa.RecordBatch]:
    for first in range(0, rows, size):
        yield from table(min(size, rows - first), seed=first, first=first).to_batches()


def stream(folder: Path, rows: int) -> None:
    for policy, with_statistics in (("off", False), ("strict", True)):
        program = textwrap.dedent(STREAM).format(
            folder=str(Path(__file__).parent), location=str(folder / f"store-{policy}"), rows=rows, policy=policy,
            statistics=with_statistics,
        )  # fmt: skip
        start = time.perf_counter()
        process = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        )
        if process.returncode:
            sys.exit(process.stderr)
        above, idle = map(float, process.stdout.split())
        verdict = "ok" if above < 1.5 else "MISSED"
        print(
            f"stream {rows:,} rows, validation={policy!r}, statistics={with_statistics}: {above:.2f} GiB above "
            f"{idle:.2f} GiB idle (< 1.5) {verdict}, {time.perf_counter() - start:.0f} s"
        )
        row = f"stream {rows:,} rows, validation={policy!r}, statistics={with_statistics}"
        REPORT.add(COMPARISONS, row, "peak above idle", above, "GiB", at_most=1.5)
        shutil.rmtree(folder / f"store-{policy}")


OPEN = """
    import sys, time
    import duckdb, deltalake, sqlalchemy, pyarrow, pyarrow.parquet, numpy
    import featurestore, featurestore.featuregroups.frames, featurestore.retrieval, featurestore.delta.commits
    import featurestore.store, featurestore_connectors.duckdb_delta
    location, path = sys.argv[1:]
    def ours():
        start = time.perf_counter()
        store = featurestore.connect(location)
        frame = store.get_featuregroup("g")
        took = time.perf_counter() - start
        store.close()
        return took
    def bare():
        start = time.perf_counter()
        connection = duckdb.connect()
        table = deltalake.DeltaTable(path)
        took = time.perf_counter() - start
        connection.close()
        return took
    print(bare(), ours(), sorted(bare() for _ in range(5))[2], sorted(ours() for _ in range(5))[2])
"""


def opening(folder: Path, _rows: int) -> None:
    import featurestore

    store = featurestore.connect(folder / "store")
    group = store.create_featuregroup(table(1000), "g", primary_key="id", event_time="t")
    store.close()
    timings = []
    for _ in range(TRIALS):
        process = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(OPEN), store.location, group.path],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        timings.append([float(seconds) * 1000 for seconds in process.stdout.split()])
    first_bare, first_ours, bare, ours = (
        statistics.median(column) for column in zip(*timings, strict=True)
    )
    for label, our_ms, bare_ms in (
        ("first in a process", first_ours, first_bare),
        ("again", ours, bare),
    ):
        verdict = "ok" if our_ms - bare_ms < 50 else "MISSED"
        line = (
            f"{our_ms:.1f} ms, bare {bare_ms:.1f} ms, +{our_ms - bare_ms:.1f} ms (< 50) {verdict}"
        )
        print(f"connect + get_featuregroup, {label}: {line}")
        row = f"`connect` and `get_featuregroup`, {label}, vs DuckDB and delta-rs"
        REPORT.compare(row, our_ms, bare_ms, "ms")
    imports = {name: interpreter(f"import {name}") for name in ("sys", "numpy", "featurestore")}
    above = imports["featurestore"] - imports["sys"]
    ratio = above / max(imports["numpy"] - imports["sys"], 1e-9)
    REPORT.add(COMPARISONS, "`import featurestore`", "ours", above * 1000, "ms", at_most=150)
    verdict = "ok" if above <= 0.150 else "MISSED"
    print(
        f"import featurestore: {above * 1000:.0f} ms over bare Python (<= 150) {verdict}, x{ratio:.2f} of import numpy"
    )


def interpreter(statement: str) -> float:
    seconds = []
    for _ in range(2 * TRIALS + 1):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


SECTIONS = {"create": create, "read": read, "upsert": upsert, "stream": stream, "open": opening}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--only", nargs="*", choices=SECTIONS, default=list(SECTIONS))
    arguments = parser.parse_args()
    print(f"{usable_cores()} processors, load {os.getloadavg()[0]:.1f}")
    for name in arguments.only:
        rows = (20_000_000 if name == "stream" else 5_000_000) // (10 if arguments.quick else 1)
        with tempfile.TemporaryDirectory(prefix="featurestore-bench-") as folder:
            SECTIONS[name](Path(folder), rows)
    REPORT.save(quick=arguments.quick)


if __name__ == "__main__":
    main()
