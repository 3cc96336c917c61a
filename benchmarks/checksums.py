"""What the checksums in commits cost: writes, verified reads and verification.

Inserts with checksums and without them, in turns; the functions that compute them are replaced for
the second. On Spark the driver reads the committed files once more: the time of this read is
compared with that of the insert.

python benchmarks/checksums.py [--quick] [--engine spark]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
from report import Report

import featurestore
from featurestore.delta.checksums import file_checksums
from featurestore.delta.snapshot import read_snapshot
from featurestore.store import FeatureStore
from featurestore_connectors.duckdb_delta import commits

# name: (rows of an insert, partitions that it touches, inserts of each kind)
CASES = {
    "100 rows, one file": (100, 1, 45),
    "1,000,000 rows, one file": (1_000_000, 1, 7),
    "100,000 rows, 200 files": (100_000, 200, 3),
}
LIMIT = 1.05
REPORT = Report(
    "checksums",
    "Inserts of an id, a partition and eight random numbers, with validation and fast durability, "
    "where no sync hides the checksums.",
)


def rows(number: int, partitions: int) -> pa.Table:
    """Return rows x 10: an id, the partition, and eight numbers."""
    random = np.random.default_rng(0)
    ids = np.arange(number)
    columns = {"id": pa.array(ids), "part": pa.array(ids % partitions)}
    for index in range(8):
        columns[f"x{index}"] = pa.array(random.random(number))
    return pa.table(columns)


def seal_without_checksums(_: str, __: int, actions: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(action) + "\n" for action in actions).encode()


def times_of(call: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds and the processor seconds of a call."""
    start, processor_start = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - start, time.process_time() - processor_start


def measure_embedded(store: FeatureStore, name: str) -> None:
    """Compare inserts with and without checksums, and a verified read with a plain one."""
    number, partitions, trials = CASES[name]
    table = rows(number, partitions)
    group = create(store, number, partitions)
    seconds: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for _ in range(trials):
        seconds[True].append(times_of(lambda: group.insert(table)))
        with (
            mock.patch.object(commits, "_add_checksums", lambda new, _: list(new)),
            mock.patch.object(commits, "seal_commit", seal_without_checksums),
        ):
            seconds[False].append(times_of(lambda: group.insert(table)))
    ours, peer = (
        map(statistics.median, zip(*seconds[kind], strict=True)) for kind in (True, False)
    )
    (wall, processor), (peer_wall, peer_processor) = ours, peer
    print(f"{name:26} {wall / peer_wall:.3f} ({processor / peer_processor:.3f})")
    REPORT.compare(
        f"insert of {name}, vs without checksums, duckdb",
        1000 * wall,
        1000 * peer_wall,
        "ms",
        processor=processor / peer_processor,
        at_most=LIMIT,
    )
    if number < 1_000_000:
        return
    reads: dict[str | None, list[float]] = {None: [], "sample": [], "all": []}
    for _ in range(5):
        for verify, times in reads.items():
            times.append(times_of(lambda verify=verify: read(store, group.name, verify))[0])  # type: ignore[misc]
    plain = statistics.median(reads[None])
    for verify in ("sample", "all"):
        figure = statistics.median(reads[verify])
        print(f"read with verify={verify!r} {figure / plain:.3f}")
        row = f'read of {trials * 2} million rows, `verify="{verify}"` vs None, duckdb'
        REPORT.compare(row, 1000 * figure, 1000 * plain, "ms")
    whole = times_of(lambda: store.verify_featuregroup(group.name))[0]
    row = f"verify_featuregroup of {trials * 2} million rows, vs a read, duckdb"
    REPORT.compare(row, 1000 * whole, 1000 * plain, "ms")


def create(store: FeatureStore, number: int, partitions: int) -> featurestore.FeatureGroup:
    return store.create_featuregroup(
        rows(partitions, partitions),
        f"g{number}",
        primary_key="id",
        partition_by="part" if partitions > 1 else (),
        statistics=False,
        validation="warn",
    )


def read(store: FeatureStore, name: str, verify: Any) -> None:
    store.get_featuregroup(name, verify=verify).select("id", "x0", "x1").to_arrow()


def measure_spark(store: FeatureStore, name: str) -> None:
    """Compare the time of reading the committed files with that of the insert."""
    number, partitions, trials = CASES[name]
    table = rows(number, partitions)
    group = create(store, number, partitions)
    shares = []
    for _ in range(min(trials, 5)):
        before = {file.path for file in read_snapshot(group.path).files}
        wall, _ = times_of(lambda: group.insert(table))
        new = [file.path for file in read_snapshot(group.path).files if file.path not in before]
        shares.append(times_of(lambda new=new: file_checksums(new))[0] / wall)  # type: ignore[misc]
    share = statistics.median(shares)
    print(f"{name:26} {share:.4f} of the insert")
    row = f"checksums of an insert of {name}, vs the insert, spark"
    REPORT.add("measurement", row, "ours / peer", share, at_most=LIMIT - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the first case only")
    parser.add_argument("--engine", default="duckdb", help="duckdb or spark")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    measure = measure_spark if arguments.engine == "spark" else measure_embedded
    with tempfile.TemporaryDirectory(dir=".") as folder:
        store = featurestore.connect(folder, engine=arguments.engine, durability="fast")
        for name in list(CASES)[: 1 if arguments.quick else None]:
            measure(store, name)
            REPORT.save(quick=arguments.quick)


if __name__ == "__main__":
    main()
