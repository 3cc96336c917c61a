"""Speed of the PyTorch loader compared with its peers.

Medians of 5 interleaved rounds, rows a second as batches of 1,024 rows, shuffled.

    python benchmarks/pytorch.py [--quick] [--rows 200000] [--only peers,workers]

Needs an environment with torch, and for the peers mosaicml-streaming; without them it says so. Peers
read the same rows: a map-style dataset over a Parquet file, row by row as its documentation has it
and by whole batches (``__getitems__``), and MosaicML Streaming over MDS shards. Sums over an epoch
are compared. Beside the rows a second stands the processor time of a row over all threads.
``workers`` compares two worker processes with none over epochs of ten times the rows.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from report import COMPARISONS, Report

BATCH = 1024
ROUNDS = 5
REPORT = Report(
    "pytorch",
    "Shuffled batches of 1,024 rows in one process, PyTorch 2.15.0, numpy 2.4.6, pyarrow 26.0.1, "
    "MosaicML Streaming 0.13.0.",
)

# An epoch: batches of (features, label), features a dict of tensors.
Epoch = Callable[[], Iterable[tuple[Mapping[str, Any], Any]]]


def table(rows: int) -> pa.Table:
    """Return 10 columns of int64, 12 of float32 and 2 of float64, with an id."""
    random = np.random.default_rng(0)
    arrays: dict[str, pa.Array] = {"id": pa.array(np.arange(rows))}
    for index in range(10):
        arrays[f"i{index}"] = pa.array(random.integers(0, 10 ** (2 + index % 9), rows))
    for index in range(12):
        arrays[f"f{index}"] = pa.array(random.random(rows, np.float32))
    for index in range(2):
        arrays[f"d{index}"] = pa.array(random.random(rows))
    return pa.table(arrays)


# -- contestants -----------------------------------------------------------------------------------------------------


def ours(
    rows: pa.Table, folder: Path, *, data_format: str, workers: int = 0, epochs: int = 1
) -> Epoch:
    import featurestore

    store = featurestore.connect(folder / "store")
    name = f"torch_{data_format}_{workers}"
    dataset = store.create_training_dataset(
        rows, name, label="i0", key="id", data_format=data_format, statistics=False, progress=False
    )
    reader = dataset.reader("train", global_batch_size=BATCH)
    return lambda: reader.torch_loader(epochs, num_workers=workers)


def map_style(rows: pa.Table, folder: Path, *, by_batch: bool) -> Epoch:
    import torch
    from torch.utils.data import DataLoader, Dataset

    path = folder / "rows.parquet"
    pq.write_table(rows.drop_columns(["id"]), path)

    class Rows(Dataset):  # type: ignore[misc]
        def __init__(self) -> None:
            self.table = pq.read_table(path).combine_chunks()

        def __len__(self) -> int:
            return self.table.num_rows

        def __getitem__(self, row: int) -> tuple[dict[str, Any], Any]:
            features = {}
            for name in self.table.column_names:
                features[name] = self.table[name][row].as_py()
            label = features.pop("i0")
            return features, label

    class Batches(Rows):
        def __getitems__(self, rows: list[int]) -> tuple[dict[str, Any], Any]:
            batch = self.table.take(rows)
            features = {}
            for name in batch.column_names:
                features[name] = torch.from_numpy(batch[name].to_numpy().copy())
            label = features.pop("i0")
            return features, label

    if by_batch:
        return lambda: DataLoader(
            Batches(),
            batch_size=BATCH,
            shuffle=True,
            drop_last=True,
            collate_fn=lambda batch: batch,
        )
    return lambda: DataLoader(Rows(), batch_size=BATCH, shuffle=True, drop_last=True)


def streaming(rows: pa.Table, folder: Path) -> Epoch:
    from streaming import MDSWriter, StreamingDataset
    from torch.utils.data import DataLoader

    path = str(folder / "mds")
    mds_types = {"int64": "int64", "float": "float32", "double": "float64"}
    columns = {}
    for field in rows.schema:
        if field.name != "id":
            columns[field.name] = mds_types[str(field.type)]
    arrays = {name: rows[name].to_numpy() for name in columns}
    with MDSWriter(out=path, columns=columns) as writer:
        for row in range(rows.num_rows):
            writer.write({name: array[row] for name, array in arrays.items()})
    dataset = StreamingDataset(local=path, shuffle=True, batch_size=BATCH)

    def epoch() -> Iterable[tuple[Mapping[str, Any], Any]]:
        for features in DataLoader(dataset, batch_size=BATCH, drop_last=True):
            label = features.pop("i0")
            yield features, label

    return epoch


# -- measuring -------------------------------------------------------------------------------------------------------


def processor_seconds() -> float:
    total = 0.0
    for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(scope)
        total += used.ru_utime + used.ru_stime
    return total


def read(epoch: Epoch) -> tuple[int, int, float, float]:
    """Return the rows of an epoch, the sum of their labels, seconds and processor seconds."""
    processor, begin = processor_seconds(), time.perf_counter()
    rows, total = 0, 0
    for features, label in epoch():
        rows += len(features["f0"])
        total += int(label.sum())
    return rows, total, time.perf_counter() - begin, processor_seconds() - processor


def race(contestants: Mapping[str, Epoch], *, rounds: int) -> dict[str, dict[str, float]]:
    speeds: dict[str, list[float]] = {name: [] for name in contestants}
    costs: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        sums = {}
        for name, epoch in contestants.items():
            rows, sums[name], seconds, used = read(epoch)
            if number:  # the first round warms up
                speeds[name].append(rows / seconds)
                costs[name].append(used / rows * 1e9)
        assert len(set(sums.values())) == 1, f"an epoch is not the same rows: {sums}"
    result = {}
    for name in contestants:
        speed, cost = statistics.median(speeds[name]), statistics.median(costs[name])
        result[name] = {"rows/s": speed, "ns/row": cost}
    return result


def show(
    title: str,
    figures: Mapping[str, Mapping[str, float]],
    ratios: Mapping[str, tuple[str, float]],
) -> None:
    for name, figure in figures.items():
        print(
            f"  {name:44}{figure['rows/s']:12,.0f} rows/s {figure['ns/row']:9,.0f} ns of processor"
        )
        if name not in {peer for peer, _ in ratios.values()} and name != "ours":
            REPORT.add(COMPARISONS, f"{title}: {name}", "ours", figure["rows/s"], "rows/s")
    for name, (peer, target) in ratios.items():
        speed = figures["ours"]["rows/s"] / figures[peer]["rows/s"]
        cost = figures[peer]["ns/row"] / figures["ours"]["ns/row"]
        verdict = "reached" if speed >= target else "missed"
        print(f"  {name}: {speed:.1f}x rows/s, {cost:.1f}x by processor; {target}x: {verdict}")
        rates = figures["ours"]["rows/s"], figures[peer]["rows/s"]
        row = f"{title}, vs {peer}"
        REPORT.compare(row, *rates, "rows/s", processor=cost, at_least=target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=int)

    parser.add_argument("--only", default="peers,workers")

    arguments = parser.parse_args()
    row_count = arguments.rows or (20_000 if arguments.quick else 200_000)
    rows = table(row_count // BATCH * BATCH)
    rounds = 1 if arguments.quick else ROUNDS
    sections = {"peers": (peers, ("torch", "streaming")), "workers": (workers, ("torch",))}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only.split(","):
            section, libraries = sections[name]
            missing = [
                library for library in libraries if importlib.util.find_spec(library) is None
            ]
            if missing:
                print(f"left out {name}: {', '.join(missing)} is not installed")
            else:
                section(rows, Path(folder), rounds=rounds)
    REPORT.save(quick=arguments.quick)


def peers(rows: pa.Table, folder: Path, *, rounds: int) -> None:
    contestants = {
        "ours": ours(rows, folder, data_format="tfrecord"),
        "ours, num_workers=1": ours(rows, folder, data_format="tfrecord", workers=1),
        "ours on Parquet": ours(rows, folder, data_format="parquet"),
        "map-style over Parquet, by row": map_style(rows, folder, by_batch=False),
        "map-style over Parquet, by batch": map_style(rows, folder, by_batch=True),
        "MosaicML Streaming": streaming(rows, folder),
    }
    figures = race(contestants, rounds=rounds)
    print(f"{rows.num_rows:,} rows of 24 columns, shuffled, batches of {BATCH:,}")
    ratios = {
        "to the map-style dataset": ("map-style over Parquet, by row", 5.0),
        "to the same by batches": ("map-style over Parquet, by batch", 1.0),
        "to MosaicML Streaming": ("MosaicML Streaming", 1.0),
    }
    show(f"PyTorch, {rows.num_rows:,} x 24 shuffled", figures, ratios)


def workers(rows: pa.Table, folder: Path, *, rounds: int) -> None:
    """Compare two worker processes with none, where starting them takes little of an epoch."""
    contestants = {}
    for count in (2, 0):
        contestants[f"num_workers={count}"] = ours(
            rows, folder, data_format="tfrecord", workers=count, epochs=10
        )
    figures = race(contestants, rounds=rounds)
    many, none = figures.values()
    speed, cost = many["rows/s"] / none["rows/s"], none["ns/row"] / many["ns/row"]
    verdict = "reached" if speed >= 1.4 else "missed"
    print(f"{10 * rows.num_rows:,} rows of 24 columns, shuffled, batches of {BATCH:,}")
    for name, figure in figures.items():
        print(
            f"  {name:44}{figure['rows/s']:12,.0f} rows/s {figure['ns/row']:9,.0f} ns of processor"
        )
    print(f"  two workers, vs none: {speed:.2f}x rows/s, {cost:.2f}x by processor; 1.4x: {verdict}")
    REPORT.compare(
        f"PyTorch, {10 * rows.num_rows:,} x 24 shuffled: num_workers=2, vs num_workers=0",
        many["rows/s"],
        none["rows/s"],
        "rows/s",
        processor=cost,
        at_least=1.4,
    )


if __name__ == "__main__":
    main()
