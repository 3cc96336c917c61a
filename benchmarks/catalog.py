"""Lists, searches, pages and commands take the same time in a store with ten times as many objects.

python benchmarks/catalog.py [--quick] [--groups 3000] [--datasets 5000] [--runs 100000] [--only
TEXT ...]

The objects on the first pages are real, with their tables and files; the rows of the others are
copied in the registry. Every figure is the ratio of two medians of one run: the large store against
a store of a tenth of its size, with equal results. Processor times are compared, which other
programs on the machine hardly change. The program ends with 1 if a ratio is over its limit. With
--quick the stores are small, and the ratios say little.
"""

from __future__ import annotations

import argparse
import datetime as dt
import logging
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from fastapi.testclient import TestClient
from report import Report

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import featurestore
from featurestore import experiments
from featurestore.experiments import catalog
from featurestore.server import ServerSettings, create_app
from featurestore.store import FeatureStore
from tests.grown_store import Size, grow_registry
from tests.server.trained_runs import train

# More than a page of the command line and of the server.
REAL_OBJECTS = 60
FEATURES = 7
ORIGIN = {
    "group": "copied",
    "dataset": "copied",
    "view": "copied",
    "monitor": "watch",
    "job": "watch",
    "run": "20240301-120000-copied",
    "model": "copied",
}
MONITOR = """
import featurestore
featurestore.monitor_job(
    "watch", featuregroup="copied", schedule="0 * * * *", window="1h",
    start="2024-03-01T12:00Z", volume=(0.5, 2.0),
)
"""
NOON = dt.datetime(2024, 3, 1, 12, tzinfo=dt.UTC)
LIMIT = 1.3
REPORT = Report(
    "catalog",
    "A store with 3,000 feature groups, 21,000 features, 5,000 training datasets and 100,000 runs, "
    "compared with a store of a tenth of that, by processor time; lists and searches show 50 objects.",
)
PAGES = [
    "/",
    "/groups",
    "/groups?page=4",
    "/groups/copied/1",
    "/datasets",
    "/experiments",
    "/experiments?name=copied",
    "/lineage",
    "/search?q=copied",
    "/search?q=value",
    "/search?q=nosuchname",
    "/api/v1/featuregroups?limit=50",
    "/api/v1/features?limit=50",
    "/api/v1/training-datasets?limit=50",
    "/api/v1/experiments?limit=50",
]
COMMANDS = ["fg list", "td list", "run list", "features search value"]


def build(folder: Path) -> None:
    """Create a store with the objects of the first pages, and one of each kind to be copied."""
    columns = [f"value_{number}" for number in range(FEATURES)]
    hours = [NOON + dt.timedelta(hours=number) for number in range(6)]
    rows = {"shop": ["a"] * 6, "seen": hours, **{name: [1.0] * 6 for name in columns}}
    names = [*(f"a_{number:02}" for number in range(REAL_OBJECTS)), "copied"]
    with featurestore.connect(folder, engine="duckdb") as store:
        for name in names:
            store.create_featuregroup(
                pa.table(rows), name, primary_key="shop", event_time="seen", tags={"owner": "ann"}
            )
        labels = [{"shop": "a", "at": hours[-1], "good": True}]
        frame = store.get_features(["copied.value_0"], labels=labels)
        for name in names:
            store.create_training_dataset(frame, name, label="good", progress=False)
        store.create_feature_view("copied", features=["copied.value_0"])
        train(store, "copied", "copied")
        run = catalog.load(store.session, ORIGIN["run"])
        newer = [
            replace(
                run, id=f"20250101-{number}", created=f"2025-01-01T12:{number - 1000:02}:00+00:00"
            )
            for number in range(1000, 1000 + REAL_OBJECTS)
        ]
        catalog.save_all(store.session, newer)
        file = folder / "monitors.py"
        file.write_text(MONITOR)
        store.register_jobs(file)
        store.backfill_job("watch", NOON, NOON + dt.timedelta(hours=6))


def calls_of(store: FeatureStore) -> dict[str, Callable[[int], Any]]:
    """Return the measured calls by name; their results are equal in both stores."""
    labels = [{"shop": "a", "at": NOON + dt.timedelta(hours=4)}]
    client = TestClient(create_app(store, ServerSettings()), base_url="http://localhost")

    def read_names(name: str, **options: Any) -> Callable[[int], Any]:
        return lambda _: [each.name for each in getattr(store, name)(limit=50, **options)]

    def search(text: str) -> Callable[[int], Any]:
        return lambda _: [match.where for match in store.search(text, limit=50)]

    def load(address: str) -> Callable[[int], Any]:
        return lambda _: client.get(address).raise_for_status().status_code

    def run(command: str) -> Callable[[int], Any]:
        program = [sys.executable, "-m", "featurestore", "--location", store.location]
        return lambda _: (
            subprocess.run([*program, *command.split()], capture_output=True, check=True).stdout
        )

    calls: dict[str, Callable[[int], Any]] = {
        "connect": lambda _: featurestore.connect(store.location, engine="duckdb").close(),
        "first 50 groups": read_names("get_featuregroups"),
        "first 50 training datasets": read_names("get_training_datasets"),
        "first 50 runs": lambda _: [
            each.id for each in experiments.get_runs(limit=50, store=store)
        ],
        "search, all match": search("value"),
        "search, few match": search("a_07"),
        "search, none match": search("nosuchname"),
        "get_features": lambda _: (
            store.get_features("a_07.value_1", labels=labels).to_arrow().to_pylist()
        ),
    }
    calls |= {f"page {address}": load(address) for address in PAGES}
    return calls | {f"featurestore {command}": run(command) for command in COMMANDS}


def all_groups(store: FeatureStore) -> Callable[[int], int]:
    """Return a call that lists all groups and returns their number."""
    return lambda _: len(store.get_featuregroups())


def main() -> int:
    """Build both stores and compare them; 1 if a ratio is too high."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, count in (("groups", 3_000), ("datasets", 5_000), ("runs", 100_000)):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--trials", type=int, default=15)
    parser.add_argument("--only", nargs="*", help="calls whose names contain one of these texts")
    parser.add_argument("--quick", action="store_true", help="small stores; never ends with 1")
    options = parser.parse_args()
    tenth = 100 if options.quick else 10
    small = Size(
        groups=options.groups // tenth,
        datasets=options.datasets // tenth,
        runs=options.runs // tenth,
        # More than the 400 nodes of a lineage graph, so that the pages of both stores are full.
        views=410,
        monitors=10,
        job_runs=300,
        models=410,
    )
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    over = 0
    with tempfile.TemporaryDirectory(prefix="catalog-") as folder:
        build(Path(folder) / "base")
        stores = []
        for name, size in (("small", small), ("large", small.times(10))):
            shutil.copytree(
                Path(folder) / "base",
                Path(folder) / name,
                ignore=shutil.ignore_patterns("_owners"),
            )
            stores.append(featurestore.connect(Path(folder) / name, engine="duckdb"))
            grow_registry(stores[-1], size, origin=ORIGIN)
        small_calls, large_calls = map(calls_of, stores)
        for name, call in small_calls.items():
            if options.only and not any(text in name for text in options.only):
                continue
            assert call(0) == large_calls[name](0), name
            over += compare(name, call, large_calls[name], trials=options.trials)
        few, many = map(all_groups, stores)
        over += compare(
            "all groups, per group", few, many, trials=options.trials, factor=many(0) / few(0)
        )
    REPORT.save(quick=options.quick)
    print(f"{over} ratios over their limits")
    return int(over > 0 and not options.quick)


def compare(
    name: str,
    small: Callable[[int], object],
    large: Callable[[int], object],
    *,
    trials: int,
    factor: float = 1.0,
) -> bool:
    """Print and record both medians, the large one divided by a factor; return whether it is over."""
    durations: dict[Callable[[int], object], list[tuple[float, float]]] = {small: [], large: []}
    for trial in range(trials):
        for call, measured in durations.items():
            start, worked = time.perf_counter(), processor_seconds()
            call(trial)
            measured.append((time.perf_counter() - start, processor_seconds() - worked))
    (short, short_work), (long, long_work) = (
        [statistics.median(column) for column in zip(*measured, strict=True)]
        for measured in durations.values()
    )
    long, long_work = long / factor, long_work / factor
    ratio = long_work / short_work
    REPORT.compare(
        f"{name}, large vs small store",
        1000 * long_work,
        1000 * short_work,
        "ms of processor time",
        at_most=LIMIT,
    )
    print(
        f"{name:45} {short * 1000:9.1f} ms {long * 1000:9.1f} ms   x{long / short:5.2f}   "
        f"processor {short_work * 1000:7.1f} {long_work * 1000:7.1f} ms   x{ratio:5.2f}",
        flush=True,
    )
    return ratio > LIMIT


def processor_seconds() -> float:
    """Return the processor time of this process and of the programs that it ran."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    sys.exit(main())
