"""What transformations cost: applied by a reader, and fitted when a dataset is made.

Medians of 5 interleaved rounds; processor time over all threads next to seconds.

    python benchmarks/transformations.py [--quick] [--rows 500000]

Applying: epochs of one dataset (10 numbers, 2 texts) with and without transformations, as
numpy batches of 1,024 rows. Fitting: the same rows exported without transformations, with those
that statistics tell, and with those that need a pass over the split. Memory of the pass: the peak
beyond the start, in a process of its own, over columns with ever more rows of the same and of ever
more different values; and whether the fitted values are those of numpy over all rows.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from report import COMPARISONS, Report

BATCH, ROUNDS = 1024, 5
NUMBERS = [f"n{index}" for index in range(10)]
REPORT = Report("transformations", "Processor time per row.")
_MIB = 1024 * 1024


def rows_of(count: int) -> pa.Table:
    """Return numbers, texts with 100 values, a label and an id."""
    random = np.random.default_rng(0)
    categories = np.array([f"category-{number:03d}" for number in range(100)])
    arrays: dict[str, Any] = {"id": np.arange(count)}
    for name in NUMBERS:
        arrays[name] = random.normal(5, 2, count).astype(np.float32)
    for name in ("t0", "t1"):
        arrays[name] = categories[random.integers(0, 100, count)]
    arrays["y"] = random.integers(0, 2, count)
    return pa.table(arrays)


def build_exact_chains() -> dict[str, Any]:
    """Return chains that the statistics of the export are enough for."""
    from featurestore import transform as t

    chains: dict[str, Any] = {}
    for index, name in enumerate(NUMBERS):
        chains[name] = (t.standardize(), t.min_max(), t.clip(0, 10))[index % 3]
    return chains


def build_pass_chains() -> dict[str, Any]:
    """Return chains that need a pass over the rows."""
    from featurestore import transform as t

    return {
        "n0": t.robust(),
        "n1": t.quantile_bins(10),
        "n2": t.impute("median") | t.standardize(),
        "t0": t.vocabulary(max_size=50),
        "t1": t.one_hot(),
    }


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measured(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return a result, its seconds and its processor seconds."""
    processor, begin = processor_seconds(), time.perf_counter()
    result = work()
    return result, time.perf_counter() - begin, processor_seconds() - processor


def race(contestants: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, dict[str, float]]:
    """Return median seconds and processor seconds of each contestant; one round warms up."""
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, work in contestants.items():
            _, seconds, used = measured(work)
            if number:
                costs[name].append((seconds, used))
    result = {}
    for name, pairs in costs.items():
        seconds, used = (statistics.median(values) for values in zip(*pairs, strict=True))
        result[name] = {"seconds": seconds, "processor": used}
    return result


def show(title: str, figures: Mapping[str, Mapping[str, float]], first: str, rows: int) -> None:
    print(f"\n{title}")
    base = figures[first]
    for name, figure in figures.items():
        base = figure if name.endswith("as stored") else base
        ratio = figure["seconds"] / base["seconds"], figure["processor"] / base["processor"]
        print(
            f"  {name:44}{rows / figure['seconds']:12,.0f} rows/s "
            f"{figure['processor'] / rows * 1e9:8,.0f} ns of processor a row  "
            f"{ratio[0]:.2f}x the time, {ratio[1]:.2f}x by processor"
        )
        if figure is not base:
            ours, peer = (1e9 * contestant["processor"] / rows for contestant in (figure, base))
            REPORT.compare(f"{title}: {name}, vs without", ours, peer, "ns")


def make(store: Any, rows: pa.Table, name: str, **options: Any) -> Any:
    return store.create_training_dataset(rows, name, label="y", key="id", progress=False, **options)


def epoch(dataset: Any, transformed: Any, names: list[str]) -> int:
    reader = dataset.reader(
        "train", global_batch_size=BATCH, columns=names, transformed=transformed
    )
    return sum(len(batch[names[0]]) for batch in reader.batches())


def applying(store: Any, rows: pa.Table, rounds: int) -> None:
    dataset = make(store, rows, "applied")
    sets = {"exact": dataset.fit(build_exact_chains()), "counted": dataset.fit(build_pass_chains())}
    texts = [*NUMBERS, "t0", "t1"]
    contestants = {
        "numbers as stored": lambda: epoch(dataset, False, NUMBERS),
        "numbers, all scaled or clipped": lambda: epoch(dataset, sets["exact"], NUMBERS),
        "numbers and texts as stored": lambda: epoch(dataset, False, texts),
        "3 numbers and 2 texts by quantiles, codes": lambda: epoch(dataset, sets["counted"], texts),
    }
    figures = race(contestants, rounds)
    show(f"applying, {rows.num_rows:,} rows shuffled", figures, "numbers as stored", rows.num_rows)


def fitting(store: Any, rows: pa.Table, rounds: int) -> None:
    names = iter(range(1_000))

    def export(chains: Mapping[str, Any] | None) -> None:
        make(store, rows, f"fitted_{next(names)}", transformations=chains)

    contestants = {
        "export without transformations": lambda: export(None),
        "export with those computed from statistics": lambda: export(build_exact_chains()),
        "export with quantiles and vocabularies": lambda: export(build_pass_chains()),
    }
    figures = race(contestants, rounds)
    show(
        f"fitting, {rows.num_rows:,} rows", figures, "export without transformations", rows.num_rows
    )


def pass_memory(rows: int, distinct: int) -> dict[str, float]:
    """Return the memory that counting the values of a number and a text takes, and check them."""
    from featurestore.transform.fit import ValueCounts, to_sample
    from featurestore.transform.rules.rule import quantile
    from featurestore.transform.steps import Form

    counts = ValueCounts(("x", "s"))
    state = counts.start()
    random = np.random.default_rng(0)
    values = random.normal(0, 1, distinct)
    start, peak, size = _resident(), 0, 65_536
    for begin in range(0, rows, size):
        indices = (np.arange(begin, min(rows, begin + size)) * 7_919) % distinct
        texts = pa.array(indices.astype(str).tolist())
        batch = pa.RecordBatch.from_arrays([pa.array(values[indices]), texts], ["x", "s"])
        state = counts.update(state, batch)
        peak = max(peak, _resident())
    state = counts.finish(state)
    peak = max(peak, _resident())
    numbers, occurrences = to_sample(state["x"], Form("number"), narrow=False).numbers()
    everything = values[(np.arange(rows) * 7_919) % distinct]
    for share in (0.25, 0.5, 0.9):
        assert np.isclose(quantile(numbers, occurrences, share), np.quantile(everything, share))
    return {"rows": rows, "distinct": distinct, "MiB": (peak - start) / _MIB}


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def memory(quick: bool) -> None:
    million = 100_000 if quick else 1_000_000
    shapes = [(million, 1_000), (8 * million, 1_000), (million, million), (4 * million, million)]
    print("\nmemory of the pass over a number and a text")
    for rows, distinct in shapes:
        words = [sys.executable, __file__, "--pass-memory", str(rows), str(distinct)]
        output = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        usage = json.loads(output)
        print(f"  {rows:12,} rows, {distinct:10,} different: {usage['MiB']:8,.0f} MiB at most")
        row = f"fitting a number and a text, {rows:,} rows of {distinct:,} values"
        REPORT.add(COMPARISONS, row, "peak", usage["MiB"], "MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=int)

    parser.add_argument("--pass-memory", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.pass_memory:
        print(json.dumps(pass_memory(*arguments.pass_memory)))
        return
    import featurestore

    rounds = 1 if arguments.quick else ROUNDS
    rows = rows_of(arguments.rows or (100_000 if arguments.quick else 500_000))
    with tempfile.TemporaryDirectory() as location, featurestore.connect(location) as store:
        applying(store, rows, rounds)
        fitting(store, rows, rounds)
        memory(arguments.quick)
    REPORT.save(quick=arguments.quick)


if __name__ == "__main__":
    main()
