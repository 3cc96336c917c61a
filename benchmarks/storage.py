"""The same store on a disk, on S3 and on HDFS (loopback): times and requests per operation.

It also exports a training dataset of random-access TFRecord, reads epochs by ranges and through a
cache, and counts the requests of the first batch per lane.

The servers are those of the tests (``scripts/object-server``, ``tests/hdfs_server.py``) on the
loopback, which has no latency; the number of requests shows more than the times. A proxy counts the
requests to S3, a wrapper the calls of the HDFS client. Both are counted on a group of 5 commits and
on one of 55, since they must not grow with the commits.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from report import Report

import featurestore
from featurestore.storage import storage_for
from featurestore.storage.connections import object_store_for, use_options
from featurestore.store import FeatureStore
from featurestore.training.dataset import TrainingDataset

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.hdfs_server import serving as serving_hdfs
from tests.object_server import options_for, serving
from tests.storage.faulty_proxy import faulty

Operation = Callable[[FeatureStore, int], object]
EPOCH_TARGET = 0.6
REPORT = Report(
    "storage",
    "A store on disk, S3 (versitygw) and HDFS on the loopback; 100,000 rows per commit, requests "
    "of commits of 1,000 rows.",
)


def frame(first: int, rows: int) -> pd.DataFrame:
    ids = np.arange(first, first + rows)
    values = {f"x{column}": ids * 0.5 + column for column in range(8)}
    return pd.DataFrame({"id": ids, **values})


def operations(rows: int) -> dict[str, Operation]:
    return {
        "append": lambda store, turn: store.insert_into_featuregroup(
            frame((turn + 1000) * rows, rows), "g"
        ),
        "upsert of 100 rows": lambda store, turn: store.insert_into_featuregroup(
            frame(turn * 100, 100), "g", mode="upsert"
        ),
        "read all columns": lambda store, turn: store.get_featuregroup("g").to_arrow(),
        "read two columns": lambda store, turn: store.get_features(["g.x1", "g.x2"]).to_arrow(),
        "history": lambda store, turn: store.get_featuregroup_history("g"),
    }


def new_store(location: str, folder: Path, *, rows: int, **options: object) -> FeatureStore:
    store = featurestore.connect(location, registry=f"sqlite:///{folder}.db", **options)  # type: ignore[arg-type]
    store.create_featuregroup(frame(0, rows), "g", primary_key="id")
    for turn in range(4):
        store.insert_into_featuregroup(frame((turn + 1) * rows, rows), "g")
    return store


def measure(stores: dict[str, FeatureStore], rows: int, repeats: int) -> None:
    title = f"{'operation':22} {'disk, ms':>9}"
    for storage_name in list(stores)[1:]:
        title += f" {storage_name + ', ms':>9} {'times':>6}"
    print(title)
    for name, operation in operations(rows).items():
        seconds: dict[str, list[float]] = {storage_name: [] for storage_name in stores}
        for turn in range(repeats):
            for storage_name, store in stores.items():
                start = time.perf_counter()
                operation(store, turn)
                seconds[storage_name].append(time.perf_counter() - start)
        disk = 1000 * statistics.median(seconds.pop("disk"))
        line = f"{name:22} {disk:9.1f}"
        REPORT.add("operation", name, "disk", disk, "ms")
        for storage_name, times in seconds.items():
            median_ms = 1000 * statistics.median(times)
            line += f" {median_ms:9.1f} {median_ms / disk:6.2f}"
            REPORT.add("operation", name, storage_name, median_ms, "ms")
            REPORT.add("operation", name, f"{storage_name} / disk", median_ms / disk)
        print(line)
    frames = []
    for store in stores.values():
        store.compact_featuregroup("g")
        frame_of_all = store.get_featuregroup("g").to_pandas().sort_values("id")
        frames.append(frame_of_all.reset_index(drop=True))
    for other_frame in frames[1:]:
        pd.testing.assert_frame_equal(frames[0], other_frame)


def count_requests(
    store: FeatureStore, storage_name: str, requests: Counter[str], *, rows: int, commits: int
) -> None:
    before: dict[str, str] = {}
    for turn in range(2):
        for name, operation in operations(rows).items():
            operation(store, turn * 50)
            requests.clear()
            operation(store, turn * 50 + 1)
            shown = " ".join(f"{method} {n}" for method, n in sorted(requests.items()))
            if turn == 0:
                before[name] = f"{requests.total():4} ({shown})"
            else:
                print(f"{name:22} {before[name]:38} {requests.total():4} ({shown})")
                column = f"{storage_name.lower()} requests"
                REPORT.add("operation", name, column, requests.total())
        if turn == 0:
            for number in range(commits):
                store.insert_into_featuregroup(frame((number + 100) * rows, rows), "g")
            store.compact_featuregroup("g")
            title = f"requests, {storage_name}"
            print(f"\n{title:22} {'few commits':38} {commits} commits more, compacted")


def count_of_s3(port: int, bucket: str, folder: Path, *, rows: int, commits: int) -> None:
    with faulty(port, rate=0.0) as (proxy, endpoint):
        options = options_for(endpoint)
        location = f"{bucket}/counted"
        store = new_store(location, folder / "counted", rows=rows, storage_options=options)
        count_requests(store, "S3", proxy.requests, rows=rows, commits=commits)
        store.close()


def count_of_hdfs(root: str, folder: Path, *, rows: int, commits: int) -> None:
    """Count the calls of our own client; checkpoints are delta-rs's, and not among them."""
    storage: Any = object_store_for(root)[0]
    requests: Counter[str] = Counter()
    for name in ("create", "rename", "read", "get_file_info", "list_status", "delete"):
        call = getattr(storage._client, name)

        def count_call(
            *arguments: Any, _name: str = name, _call: Any = call, **keywords: Any
        ) -> Any:
            requests[_name] += 1
            return _call(*arguments, **keywords)

        setattr(storage._client, name, count_call)
    store = new_store(f"{root}/counted", folder / "counted-hdfs", rows=rows)
    count_requests(store, "HDFS", requests, rows=rows, commits=commits)
    store.close()


def measure_listing(stores: dict[str, FeatureStore], *, count: int) -> None:
    """List a folder of so many shards; the objects are empty, since a list does not see more."""
    print(f"\n{'objects listed':22} {'ms':>9}")
    for storage_name, store in stores.items():
        folder = f"{store.location}/listed"
        with ThreadPoolExecutor(8) as pool:
            paths = [f"{folder}/part-{number:05d}" for number in range(count)]
            list(pool.map(storage_for(folder).replace, paths, repeat(b"")))
        start = time.perf_counter()
        listed_count = sum(1 for _ in storage_for(folder).walk_with_status(folder))
        milliseconds = 1000 * (time.perf_counter() - start)
        print(f"{count:,} {storage_name:15} {milliseconds:9.1f}")
        REPORT.add("operation", f"list of {count:,} objects", storage_name, milliseconds, "ms")
        assert listed_count == count


def measure_dataset(
    stores: dict[str, FeatureStore], folder: Path, *, rows: int, epochs: int
) -> TrainingDataset:
    """Return the dataset on S3."""
    values = np.random.default_rng(0).random((rows, 24))
    data = pd.DataFrame(values, columns=[f"x{column}" for column in range(24)])
    data["id"], data["y"] = np.arange(rows), np.arange(rows) % 2
    datasets: dict[str, TrainingDataset] = {}
    print(f"\n{'dataset of 24 doubles':30} {'rows/s':>12} {'of disk':>8}")
    rates: dict[str, list[float]] = {}
    for storage_name, store in stores.items():
        start = time.perf_counter()
        datasets[storage_name] = store.create_training_dataset(data, "d", label="y", key="id")
        rates[f"export {storage_name}"] = [rows / (time.perf_counter() - start)]
        assert (
            datasets["disk"].manifest.content_hash == datasets[storage_name].manifest.content_hash
        )
    readers = {"epoch disk": datasets["disk"].reader("train", global_batch_size=1024)}
    for storage_name in list(stores)[1:]:
        by_ranges = datasets[storage_name].reader("train", global_batch_size=1024)
        cache = folder / f"shards-{storage_name}"
        readers[f"epoch {storage_name}, by ranges"] = by_ranges
        readers[f"epoch {storage_name}, cache"] = datasets[storage_name].reader(
            "train", global_batch_size=1024, cache=cache
        )
    for epoch in range(epochs + 1):  # the first fills the cache
        sums = []
        for name, reader in readers.items():
            start = time.perf_counter()
            sums.append(sum(float(batch["x0"][7]) for batch in reader.batches(epoch)))
            rate = rows / (time.perf_counter() - start)
            title = f"{name}, first" if epoch == 0 else name
            rates.setdefault(title, []).append(rate)
        assert len(set(sums)) == 1
    for name, rates_of_reader in rates.items():
        disk = rates[f"{name.split()[0]} disk{', first' if name.endswith('first') else ''}"]
        rate = statistics.median(rates_of_reader)
        ratio = rate / statistics.median(disk)
        print(f"{name:30} {rate:12,.0f} {ratio:8.2f}")
        target = EPOCH_TARGET if name.startswith("epoch s3") else None
        if "disk" not in name:
            row = f"{name}, {rows:,} x 24, vs disk"
            REPORT.compare(row, rate, statistics.median(disk), "rows/s", at_least=target)
    return datasets["s3"]


def count_of_dataset(source: TrainingDataset, folder: Path, port: int) -> None:
    with faulty(port, rate=0.0) as (proxy, endpoint):
        dataset = TrainingDataset.open(source.path, storage_options=options_for(endpoint))
        reader = dataset.reader("train", global_batch_size=1024)
        for step in (0, reader.steps_per_epoch // 2):
            proxy.requests.clear()
            batches = reader.batches(1, start_step=step)
            next(batches)
            batches.close()  # type: ignore[attr-defined]
            lanes = reader.order.lanes
            requests = proxy.requests.total()
            print(f"first batch at step {step}: {requests} requests, {requests / lanes:.1f} a lane")
        proxy.requests.clear()
        start = time.perf_counter()
        dataset.download(folder / "downloaded")
        seconds = time.perf_counter() - start
        print(f"download: {proxy.requests.total()} requests, {seconds:.1f} s through the proxy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small, for trying the program")
    quick = parser.parse_args().quick
    rows, repeats, commits = (2_000, 3, 10) if quick else (100_000, 5, 50)
    examples, epochs, listed = (50_000, 2, 1_000) if quick else (1_000_000, 5, 10_000)
    with ExitStack() as resources:
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory()))
        for name in ("buckets", "hdfs"):
            (folder / name).mkdir()
        server = resources.enter_context(serving(folder / "buckets"))
        root = resources.enter_context(serving_hdfs(folder / "hdfs")).root
        bucket = server.new_bucket("benchmark")
        options = server.options
        stores = {
            "disk": new_store(str(folder / "disk"), folder / "disk", rows=rows),
            "s3": new_store(f"{bucket}/store", folder / "s3", rows=rows, storage_options=options),
            "hdfs": new_store(f"{root}/store", folder / "of-hdfs", rows=rows),
        }
        measure(stores, rows, repeats)
        measure_listing(stores, count=listed)
        dataset = measure_dataset(stores, folder, rows=examples, epochs=epochs)
        count_of_dataset(dataset, folder, server.port)
        use_options(dataset.path, options)
        count_of_s3(server.port, bucket, folder, rows=1_000, commits=commits)
        count_of_hdfs(root, folder, rows=1_000, commits=commits)
        for store in stores.values():
            store.close()
    REPORT.save(quick=quick)


if __name__ == "__main__":
    main()
