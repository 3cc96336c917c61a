"""Speed of the readers compared with their peers.

Medians of 5 interleaved rounds, rows a second into tf.data tensors.

    python benchmarks/read.py [--quick] [--only tables,petastorm,workers,starts,shards,mixing]
    [--rows 1000000]

Every dataset is consumed inside the graph (``reduce``), so the loop costs the same for all. Beside
the rows a second stands the processor time of a row over all threads, which other programs on the
machine disturb less.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from report import COMPARISONS, Report

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pyarrow as pa

BATCH = 1024
ROUNDS = 5
REPORT = Report(
    "read",
    "Batches of 1,024 rows as TensorFlow tensors, compared with `TFRecordDataset` with `parse_example` and "
    "petastorm's `make_batch_reader`.",
)

# Makes ready what is not measured; returns a number of rows and what reads them and says when the
# last one came.
Start = Callable[[], tuple[int, Callable[[], float]]]


# -- data ------------------------------------------------------------------------------------------------------------


def table(rows: int, columns: int) -> pa.Table:
    """Return int64, float32, float64 and text columns as 10 : 12 : 2 : 1.

    Plus labels and ids.
    """
    random = np.random.default_rng(0)
    share = columns // 25
    arrays: dict[str, pa.Array] = {"id": pa.array(np.arange(rows))}
    for index in range(10 * share):
        arrays[f"i{index}"] = pa.array(random.integers(0, 10 ** (2 + index % 9), rows))
    for index in range(12 * share):
        arrays[f"f{index}"] = pa.array(random.random(rows, np.float32))
    for index in range(2 * share):
        arrays[f"d{index}"] = pa.array(random.random(rows))
    for index in range(share):
        arrays[f"s{index}"] = pa.array(np.char.mod("%08d", random.integers(0, 10**8, rows)))
    return pa.table(arrays)


def make(folder: Path, rows: int, columns: int, data_format: str) -> Any:
    import featurestore

    store = featurestore.connect(folder / f"store-{columns}")
    return store.create_training_dataset(
        table(rows, columns),
        f"read_{data_format}",
        label="i0",
        key="id",
        data_format=data_format,
        statistics=False,
    )


# -- measuring -------------------------------------------------------------------------------------------------------


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def consume(dataset: Any) -> float:
    """Go through a dataset; return the moment of its last element.

    Where tf.data tunes itself, the end takes up to a second more, until the tuning thread wakes.
    """
    import tensorflow as tf

    return float(dataset.reduce(np.float64(0), lambda *_: tf.timestamp()))


def iterate(batches: Iterable[Any]) -> float:
    for _ in batches:
        pass
    return time.time()


def race(contestants: Mapping[str, Start], *, rounds: int) -> dict[str, Any]:
    """Return medians of rows/s and processor nanoseconds a row.

    Each round runs all contestants once.
    """
    speeds: dict[str, list[float]] = {name: [] for name in contestants}
    costs: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, start in contestants.items():
            rows, run = start()
            processor, begin = processor_seconds(), time.time()
            elapsed, used = run() - begin, processor_seconds() - processor
            if number:  # the first round warms up
                speeds[name].append(rows / elapsed)
                costs[name].append(used / rows * 1e9)
    return {
        name: {"rows/s": statistics.median(speeds[name]), "ns/row": statistics.median(costs[name])}
        for name in contestants
    }


def show(
    title: str,
    figures: Mapping[str, Mapping[str, float]],
    ratios: Mapping[str, tuple[str, str, float]],
    *,
    size: str,
) -> None:
    print(f"\n{title}")
    for name, figure in figures.items():
        print(
            f"  {name:52}{figure['rows/s']:12,.0f} rows/s {figure['ns/row']:8.0f} ns of processor a row"
        )

    for text, (ours, peer, target) in ratios.items():
        if ours in figures and peer in figures:
            speed = figures[ours]["rows/s"] / figures[peer]["rows/s"]
            cost = figures[peer]["ns/row"] / figures[ours]["ns/row"]
            verdict = "reached" if speed >= target else "missed"
            print(
                f"  {text}: {speed:.1f}x rows/s, {cost:.1f}x by processor time; target {target}x: {verdict}"
            )
            rates = figures[ours]["rows/s"], figures[peer]["rows/s"]
            REPORT.compare(f"{size}: {text}", *rates, "rows/s", processor=cost, at_least=target)


# -- contestants -----------------------------------------------------------------------------------------------------


def ours(td: Any, *, shuffle: bool, numpy: bool = False) -> Start:
    def start() -> tuple[int, Callable[[], float]]:
        reader = td.reader("train", global_batch_size=BATCH, shuffle=shuffle)
        rows = reader.steps_per_epoch * BATCH
        if numpy:
            return rows, lambda: iterate(reader.batches())
        dataset = reader.tf_dataset()
        return rows, lambda: consume(dataset)

    return start


def parse_example(td: Any, *, shuffle: bool, files: int | None) -> Start:
    import tensorflow as tf

    names = {column.name for column in td.manifest.columns if column.role in ("feature", "label")}
    spec = {name: feature for name, feature in td.tf_feature_spec().items() if name in names}
    split = td.manifest.split("train")
    paths = [os.path.join(td.path, shard.path) for shard in split.shards]

    def parse(records: Any) -> Any:
        features = tf.io.parse_example(records, spec)
        label = features.pop("i0")
        return features, label

    def start() -> tuple[int, Callable[[], float]]:
        dataset = tf.data.TFRecordDataset(paths, num_parallel_reads=files, buffer_size=8 << 20)
        if shuffle:
            dataset = dataset.shuffle(65_536, seed=0)
        dataset = dataset.batch(BATCH, drop_remainder=True).map(
            parse, num_parallel_calls=tf.data.AUTOTUNE
        )
        dataset = dataset.prefetch(tf.data.AUTOTUNE)
        return split.rows // BATCH * BATCH, lambda: consume(dataset)

    return start


def memory_map(td: Any, folder: Path) -> Start:
    """The ceiling.

    The same columns, already as numpy arrays in one uncompressed file, into tensors.
    """
    import tensorflow as tf

    reader = td.reader("train", global_batch_size=BATCH, shuffle=False)
    batches = list(reader.batches())
    columns = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    packed = {
        name: array.astype("S8") if array.dtype == object else array
        for name, array in columns.items()
    }
    del batches, columns
    path = folder / "columns.npy"
    layout = [(name, array.dtype, len(array)) for name, array in packed.items()]
    with path.open("wb") as file:
        for array in packed.values():
            array.tofile(file)
    del packed
    steps = 16

    def start() -> tuple[int, Callable[[], float]]:
        maps, offset = {}, 0
        for name, dtype, rows in layout:
            maps[name] = np.memmap(path, dtype, "r", offset=offset, shape=(rows,))
            offset += rows * dtype.itemsize
        count = layout[0][2]

        def read(number: Any) -> list[Any]:
            row_slice = slice(
                int(number) * steps * BATCH, min(count, (int(number) + 1) * steps * BATCH)
            )
            arrays = [array[row_slice].reshape(-1, BATCH) for array in maps.values()]
            return [array.astype(object) if array.dtype.kind == "S" else array for array in arrays]

        tf_dtypes = [
            tf.string if dtype.kind == "S" else tf.as_dtype(dtype) for _, dtype, _ in layout
        ]

        def load(number: Any) -> Any:
            tensors = tf.numpy_function(read, [number], tf_dtypes, stateful=False)
            for tensor in tensors:
                tensor.set_shape((None, BATCH))
            return dict(zip(maps, tensors, strict=True))

        numbers = tf.data.Dataset.range(-(-count // (steps * BATCH)))
        dataset = numbers.map(load, num_parallel_calls=tf.data.AUTOTUNE).unbatch().prefetch(2)
        return count, lambda: consume(dataset)

    return start


def petastorm(td: Any, *, shuffle: bool) -> Start:
    from petastorm import make_batch_reader
    from petastorm.tf_utils import make_petastorm_dataset

    url = Path(td.path, "train").as_uri()
    names = [column.name for column in td.manifest.columns if column.role in ("feature", "label")]

    def start() -> tuple[int, Callable[[], float]]:
        def run() -> float:
            with make_batch_reader(
                url, schema_fields=names, num_epochs=1, workers_count=2, shuffle_row_groups=shuffle
            ) as reader:
                return consume(make_petastorm_dataset(reader).unbatch().batch(BATCH))

        return td.num_rows("train"), run

    return start


# -- sections --------------------------------------------------------------------------------------------------------


def tables(folder: Path, rows: int, rounds: int, widths: list[int]) -> None:
    for columns in widths:
        some = rows if columns == 25 else rows // 2
        td = make(folder, some, columns, "tfrecord")
        figures = race(
            {
                "ours": ours(td, shuffle=False),
                "ours, shuffled": ours(td, shuffle=True),
                "ours, numpy": ours(td, shuffle=False, numpy=True),
                "ours, numpy, shuffled": ours(td, shuffle=True, numpy=True),
                "parse_example, one file after the other": parse_example(
                    td, shuffle=False, files=None
                ),
                "parse_example, two files at once": parse_example(td, shuffle=False, files=2),
                "parse_example, shuffle(65536)": parse_example(td, shuffle=True, files=None),
                "memory map of columns (ceiling)": memory_map(td, folder),
            },
            rounds=rounds,
        )
        serial, parallel = (
            "parse_example, one file after the other",
            "parse_example, two files at once",
        )
        best = max((serial, parallel), key=lambda name: figures[name]["rows/s"])
        target = 12.0 if columns == 25 else 8.0
        ratios = {
            "in order, vs parse_example": ("ours", best, target),
            "shuffled, vs shuffle(65536)": (
                "ours, shuffled",
                "parse_example, shuffle(65536)",
                target,
            ),
            "in order, vs a memory map of decoded columns": (
                "ours",
                "memory map of columns (ceiling)",
                0.85,
            ),
        }
        show(
            f"{some:,} rows of {columns} columns, {td.manifest.layout['record_bytes']} bytes a record",
            figures,
            ratios,
            size=f"{some:,} x {columns}",
        )


def against_petastorm(folder: Path, rows: int, rounds: int) -> None:
    records = make(folder / "petastorm", rows, 25, "tfrecord")
    files = make(folder / "petastorm", rows, 25, "petastorm")
    figures = race(
        {
            "ours on TFRecord": ours(records, shuffle=False),
            "ours on TFRecord, shuffled": ours(records, shuffle=True),
            "ours on petastorm's files": ours(files, shuffle=False),
            "ours on petastorm's files, shuffled": ours(files, shuffle=True),
            "petastorm, unbatch().batch(1024)": petastorm(files, shuffle=False),
            "petastorm, row groups shuffled": petastorm(files, shuffle=True),
        },
        rounds=rounds,
    )
    ratios = {
        "in order, vs petastorm": (
            "ours on TFRecord",
            "petastorm, unbatch().batch(1024)",
            20.0,
        ),
        "rows shuffled, vs row groups shuffled by petastorm": (
            "ours on TFRecord, shuffled",
            "petastorm, row groups shuffled",
            20.0,
        ),
    }
    title = f"{rows:,} rows of 25 columns"
    show(title, figures, ratios, size=f"{rows:,} x 25")


WORKER = """
import os, sys, time
core, path, worker, workers, batch = int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
os.sched_setaffinity(0, {core})
import numpy as np, tensorflow as tf
tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(1)
from featurestore.training import TrainingDataset
reader = TrainingDataset.open(path).reader("train", global_batch_size=batch)
count = lambda data: int(data.reduce(np.int64(0), lambda n, *_: n + 1))
count(reader.tf_dataset(worker=worker, workers=workers).take(20))
print("ready", flush=True)
sys.stdin.readline()
processor, start = time.process_time(), time.perf_counter()
rows = count(reader.tf_dataset(8, worker=worker, workers=workers)) * batch // workers
elapsed, used = time.perf_counter() - start, time.process_time() - processor
print(rows / elapsed, rows / used, flush=True)
"""


def workers(folder: Path, rows: int, rounds: int) -> None:
    """Rows/s of one worker on one core, and of two workers on a core each, over eight epochs of one dataset."""
    td = make(folder / "workers", rows, 25, "tfrecord")
    cores = sorted(os.sched_getaffinity(0))[:2]

    def run(count: int, batch: int) -> tuple[float, float]:
        processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    WORKER,
                    str(cores[worker]),
                    td.path,
                    str(worker),
                    str(count),
                    str(batch),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for worker in range(count)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "ready"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        rates = [tuple(map(float, process.communicate()[0].split())) for process in processes]
        clock, processor = (sum(column) for column in zip(*rates, strict=True))
        return clock, processor

    setups = {
        f"one worker, batches of {BATCH:,}": (1, BATCH),
        f"two workers, batches of {BATCH:,} each": (2, 2 * BATCH),
        f"two workers, batches of {BATCH // 2:,} each": (2, BATCH),
    }
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in setups}
    for _ in range(rounds):
        for name, setup in setups.items():
            runs[name].append(run(*setup))
    figures = {
        name: {
            "rows/s": statistics.median(rate[0] for rate in times),
            "by processor": statistics.median(rate[1] for rate in times),
        }
        for name, times in runs.items()
    }
    print(f"\nTwo workers on a core each, {rows:,} rows of 25 columns, shuffled")
    base, *remaining = figures
    print(f"  {base:40}{figures[base]['rows/s']:12,.0f} rows/s")
    for name in remaining:
        factor, cost = (figures[name][key] / figures[base][key] for key in figures[name])
        verdict = "reached" if factor >= 1.8 else "missed"
        print(
            f"  {name:40}{figures[name]['rows/s']:12,.0f} rows/s, factor {factor:.2f}, {cost:.2f} by processor time; "
            f"target 1.8: {verdict}"
        )
        rates = figures[name]["rows/s"], figures[base]["rows/s"]
        row = f"{rows:,} x 25: {name}, vs one worker"
        REPORT.compare(row, *rates, "rows/s", processor=cost, at_least=1.8)


def first_batch(reader: Any, step: int) -> float:
    start = time.perf_counter()
    batches: Any = reader.batches(start_step=step)
    next(batches)
    elapsed = time.perf_counter() - start
    batches.close()
    return elapsed


def starts(folder: Path, rows: int, rounds: int) -> None:
    """Seconds to the first batch at the beginning and at 90 % of an epoch."""
    td = make(folder / "starts", rows, 25, "tfrecord")
    reader = td.reader("train", global_batch_size=BATCH)
    late = reader.steps_per_epoch * 9 // 10
    first_batch(reader, 0), first_batch(reader, late)
    times = [(first_batch(reader, 0), first_batch(reader, late)) for _ in range(4 * rounds)]
    begin, end = (statistics.median(seconds) for seconds in zip(*times, strict=True))
    print(
        f"\nFirst batch of {rows:,} rows: {begin * 1e3:.1f} ms at step 0, {end * 1e3:.1f} ms at 90 % of the epoch"
    )
    print(
        f"  factor {end / begin:.2f}; target at most 1.2: {'reached' if end / begin <= 1.2 else 'missed'}"
    )
    row = f"{rows:,} x 25: first batch at 90 % of an epoch, vs at its start"
    REPORT.compare(row, end * 1e3, begin * 1e3, "ms", at_most=1.2)


def shards(folder: Path, rounds: int) -> None:
    """Seconds from opening to the first batch, with 10 shards and with 10,000."""
    from featurestore.storage import storage_for
    from featurestore.training import TrainingDataset

    td = make(folder / "shards", 1000, 25, "tfrecord")
    split = td.manifest.split("train")
    medians = {}
    for count in (10, 10_000):
        dataset_folder = folder / f"shards-{count}"
        (dataset_folder / "train").mkdir(parents=True)
        copies = []
        for number in range(count):
            path = f"train/tfrecord-{number:05d}-of-{count:05d}"
            shutil.copyfile(os.path.join(td.path, split.shards[0].path), dataset_folder / path)
            copies.append(
                replace(split.shards[0], path=path, first_row=number * split.shards[0].rows)
            )
        repeated_split = replace(split, shards=tuple(copies), rows=count * split.shards[0].rows)
        manifest = replace(td.manifest, splits=(repeated_split,))
        storage_for(str(dataset_folder / "manifest.json")).write_atomically(
            str(dataset_folder / "manifest.json"), manifest.to_bytes()
        )
        seconds = []
        for _ in range(rounds):
            start = time.perf_counter()
            reader = TrainingDataset.open(dataset_folder).reader(
                "train", global_batch_size=BATCH, remainder="pad"
            )
            batches: Any = reader.batches()
            next(batches)
            seconds.append(time.perf_counter() - start)
            batches.close()
        medians[f"{count} shards"] = statistics.median(seconds)
    more = medians["10000 shards"] - medians["10 shards"]
    print(
        "\nOpening to the first batch: "
        + ", ".join(f"{name} {value:.2f} s" for name, value in medians.items())
    )
    print(f"  {more:.2f} s more; target under 1 s: {'reached' if more < 1 else 'missed'}")
    row = "opening 10,000 shards, less the time of 10 shards"
    REPORT.add(COMPARISONS, row, "ours", more, "s", at_most=1)


def mixing(rows: int) -> None:
    """How well windows mix, compared with a full shuffle.

    Labels as the hash deals them, and sorted, the worst case.
    """
    from featurestore.readers.order import ReaderOrder

    random = np.random.default_rng(0)
    print(f"\nMixing of {rows:,} rows, global batch {BATCH}, 64 lanes, blocks of 1,024 rows")
    print(
        "  window      neighbours kept   in one batch again   spread of labels, 1 is a full shuffle: hashed   sorted"
    )
    orders: dict[str, list[Any]] = {}
    for window in (1024, 2048, 4096, 16_384):
        order = ReaderOrder(
            rows=rows, block_rows=1024, window_rows=window, global_batch_size=BATCH, lanes=64
        )
        orders[f"{window:,}"] = [
            order.epoch(epoch).batches(0, order.steps_per_epoch) for epoch in range(2)
        ]
    orders["full shuffle"] = [
        random.permutation(rows)[: rows // BATCH * BATCH].reshape(-1, BATCH) for _ in range(2)
    ]
    labels = {"hashed": random.random(rows), "sorted": np.arange(rows) / rows}
    full = {
        label_order: spread(orders["full shuffle"][0], values)
        for label_order, values in labels.items()
    }
    for name, (first, second) in orders.items():
        neighbor_share = float(np.mean(np.abs(np.diff(first.reshape(-1))) == 1))
        again = together_again(first, second, rows)
        wide = {
            label_order: spread(first, values) / full[label_order]
            for label_order, values in labels.items()
        }
        print(
            f"  {name:12}{neighbor_share:15.5%}{again:21.3%}{wide['hashed']:49.2f}{wide['sorted']:9.2f}"
        )


def spread(batches: Any, labels: Any) -> float:
    """Return the standard deviation of the batches' mean label.

    ``labels`` stand in canonical order.
    """
    return float(np.std(labels[batches].mean(axis=1)))


def together_again(first: Any, second: Any, rows: int) -> float:
    """Return the chance that two rows of one batch share a batch in the next epoch too."""
    batch_of = np.full(rows, -1)
    batch_of[second.reshape(-1)] = np.repeat(np.arange(len(second)), second.shape[1])
    shares = []
    for batch in first[:: max(1, len(first) // 50)]:
        _, counts = np.unique(batch_of[batch], return_counts=True)
        shares.append((counts * (counts - 1)).sum() / (len(batch) * (len(batch) - 1)))
    return float(np.mean(shares))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one round")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="tables,petastorm,workers,starts,shards,mixing")
    parser.add_argument("--columns", default="25,200", help="of the tables")

    arguments = parser.parse_args()
    rows, rounds = (
        (arguments.rows // 10, 1) if arguments.quick else (arguments.rows, arguments.rounds)
    )
    warnings.simplefilter("ignore")
    folder = Path(tempfile.mkdtemp(prefix="featurestore-read-"))
    sections: dict[str, Callable[[], None]] = {
        "tables": lambda: tables(
            folder, rows, rounds, list(map(int, arguments.columns.split(",")))
        ),
        "petastorm": lambda: against_petastorm(folder, rows, rounds),
        "workers": lambda: workers(folder, rows, rounds),
        "starts": lambda: starts(folder, rows, rounds),
        "shards": lambda: shards(folder, rounds),
        "mixing": lambda: mixing(rows),
    }
    try:
        for name in arguments.only.split(","):
            sections[name]()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    REPORT.save(quick=arguments.quick)


if __name__ == "__main__":
    main()
