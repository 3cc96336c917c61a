"""What ``reader(..., verify=True)`` costs, and reads by pread compared with memory maps.

Epochs with and without verification alternate, on equal batches. The first epoch of a reader
compares the SHA-256 of complete shards where records have no checksum; later epochs do not.

python benchmarks/verified_reads.py [--quick] [--rows 400000] [--only verify pread]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from report import COMPARISONS, Report

import featurestore
from featurestore.readers import Reader
from featurestore.readers.plan import ReadPlan, shard_files
from featurestore.readers.prefetch import RangedShardFiles
from featurestore.training.dataset import TrainingDataset

BATCH = 1024
PAIRS = 7
# format and layout: (data_format, whether texts differ in length, share of the rows)
FORMATS = {
    "tfrecord, one width": ("tfrecord", False, 1),
    "tfrecord, several widths": ("tfrecord", True, 4),
    "parquet": ("parquet", False, 1),
    "csv": ("csv", False, 20),
}
Run = Callable[[], int]
"""A read of an epoch, which returns its number of rows."""
REPORT = Report(
    "verified_reads",
    "Epochs of 25 columns as numpy batches of 1,024 rows, with `verify=True` and without, in turns; "
    "the ratio is the median of the ratios of the pairs. All files are in the page cache.",
)


def table(rows: int, *, texts: bool) -> pa.Table:
    """Return an id, ten integers, fourteen floats, and a text of up to 399 characters."""
    random = np.random.default_rng(0)
    columns: dict[str, Any] = {"id": np.arange(rows)}
    for index in range(10):
        columns[f"i{index}"] = random.integers(0, 10 ** (2 + index % 9), rows)
    for index in range(14):
        columns[f"f{index}"] = random.random(rows, np.float32)
    if texts:
        columns["text"] = ["x" * (number % 400) for number in range(rows)]
    return pa.table(columns)


def read_epoch(reader: Reader, epoch: int) -> int:
    return sum(len(batch["i0"]) for batch in reader.batches(epoch))


def read_first_epoch(open_reader: Callable[[], Reader]) -> int:
    return read_epoch(open_reader(), 0)


def measure(peer: Run, ours: Run) -> tuple[float, float, float, float]:
    """Return rows/s of both, and the medians of the ratios of pairs by wall and processor time."""
    seconds: dict[Run, list[tuple[float, float]]] = {peer: [], ours: []}
    rows = 0
    for number in range(PAIRS):
        for run in (peer, ours) if number % 2 else (ours, peer):
            start, processor_start = time.perf_counter(), time.process_time()
            rows = run()
            used = time.process_time() - processor_start
            seconds[run].append((time.perf_counter() - start, used))
    ratios = [
        statistics.median(
            with_it[clock] / without[clock]
            for with_it, without in zip(seconds[ours], seconds[peer], strict=True)
        )
        for clock in (0, 1)
    ]
    rates = [rows / statistics.median(wall for wall, _ in seconds[run]) for run in (ours, peer)]
    return rates[0], rates[1], ratios[0], ratios[1]


def compare(row: str, *, peer: Run, ours: Run) -> None:
    our_rate, peer_rate, ratio, processor = measure(peer, ours)
    print(f"{row:84} {our_rate:12,.0f} {peer_rate:12,.0f} time {ratio:.2f} ({processor:.2f})")
    REPORT.add(COMPARISONS, row, "ours", our_rate, "rows/s")
    REPORT.add(COMPARISONS, row, "peer", peer_rate, "rows/s")
    # A rate is the reciprocal of a time.
    REPORT.add(COMPARISONS, row, "ours / peer", 1 / ratio, processor=1 / processor)


def check_equal(first: Reader, second: Reader) -> None:
    for batch, other in zip(first.batches(), second.batches(), strict=True):
        for name, values in batch.items():
            np.testing.assert_array_equal(values, other[name])


def measure_verification(dataset: TrainingDataset, name: str) -> None:
    """Compare verified epochs with others."""
    names = [column.name for column in dataset.manifest.columns]
    for shuffle in (False, True):
        open_reader = partial(
            dataset.reader, "train", global_batch_size=BATCH, shuffle=shuffle, columns=names
        )
        plain, verified = open_reader(), open_reader(verify=True)
        check_equal(plain, verified)
        subject = f"{plain.order.rows:,} rows of {name}, {'shuffled' if shuffle else 'in order'}"
        compare(
            f"{subject}, first epoch, `verify=True` vs False",
            peer=partial(read_first_epoch, open_reader),
            ours=partial(read_first_epoch, partial(open_reader, verify=True)),
        )
        compare(
            f"{subject}, later epochs, `verify=True` vs False",
            peer=partial(read_epoch, plain, 1),
            ours=partial(read_epoch, verified, 1),
        )


def ranged_files(plan: ReadPlan) -> RangedShardFiles:
    """Return the files of a local split as those of an object store, which are read by pread."""
    local = shard_files(plan.path, plan.manifest, plan.split)
    assert local.access is not None
    window_blocks = plan.order.lanes * (plan.order.window_rows // plan.order.block_rows + 1)
    return RangedShardFiles(
        plan.path,
        plan.manifest,
        plan.split,
        local.format,
        local.access,
        read_blocks=2 * window_blocks + len(plan.split.shards),
        ahead_bytes=256 << 20,
        memory=plan.memory,
    )


def measure_pread(datasets: Mapping[str, TrainingDataset]) -> None:
    """Compare pread with memory maps, which readers use for records but not for Parquet."""
    mapped = partial(pq.ParquetFile, memory_map=True)
    changes: dict[str, tuple[Callable[[], AbstractContextManager[Any]], ...]] = {
        "tfrecord, one width": (
            nullcontext,
            partial(mock.patch.object, ReadPlan, "files", ranged_files),
        ),
        "parquet": (partial(mock.patch.object, pq, "ParquetFile", mapped), nullcontext),
    }
    for name, (map_files, pread_files) in changes.items():
        for shuffle in (False, True):
            reader = datasets[name].reader("train", global_batch_size=BATCH, shuffle=shuffle)

            def run(
                change: Callable[[], AbstractContextManager[Any]], reader: Reader = reader
            ) -> int:
                with change():
                    return read_epoch(reader, 1)

            order = "shuffled" if shuffle else "in order"
            compare(
                f"{reader.order.rows:,} rows of {name}, {order}, pread vs memory map",
                peer=partial(run, map_files),
                ours=partial(run, pread_files),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument(
        "--only", nargs="+", choices=("verify", "pread"), default=["verify", "pread"]
    )
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = 20_000 if arguments.quick else arguments.rows
    print(f"load {os.getloadavg()[0]:.1f}; rows/s with and without, and the ratio of times")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        store = featurestore.connect(folder, progress=False)
        datasets = {}
        for number, (name, (data_format, texts, share)) in enumerate(FORMATS.items()):
            datasets[name] = store.create_training_dataset(
                table(rows // share, texts=texts), f"d{number}", label="i0", key="id",
                data_format=data_format, statistics=False,
            )  # fmt: skip
            assert datasets[name].manifest.layout.get("kind") != ("fixed" if texts else "variable")
        if "verify" in arguments.only:
            for name, dataset in datasets.items():
                measure_verification(dataset, name)
                REPORT.save(quick=arguments.quick)
        if "pread" in arguments.only:
            measure_pread(datasets)
            REPORT.save(quick=arguments.quick)


if __name__ == "__main__":
    main()
