"""A store on a disk and the same store on S3 (loopback): ratios, and requests per operation.

Also a training dataset of random-access TFRecord: export, epochs by ranges and through a cache, and
the requests of a first batch, for each lane.

The S3 server is the one of the tests (``scripts/object-server``), so the times are those of a
network without length; requests tell more. A proxy counts them, for each operation on a group of 5
commits and on one of 55, since they must not grow with commits.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

import featurestore
from featurestore.storage.location import use_options
from featurestore.store import FeatureStore
from featurestore.training.dataset import TrainingDataset

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.object_server import options_for, serving
from tests.storage.faulty_proxy import faulty

Operation = Callable[[FeatureStore, int], object]


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


def new_store(location: str, folder: Path, *, rows: int, **given: object) -> FeatureStore:
    store = featurestore.connect(location, registry=f"sqlite:///{folder}.db", **given)  # type: ignore[arg-type]
    store.create_featuregroup(frame(0, rows), "g", primary_key="id")
    for turn in range(4):
        store.insert_into_featuregroup(frame((turn + 1) * rows, rows), "g")
    return store


def measure(stores: dict[str, FeatureStore], rows: int, repeats: int) -> None:
    print(f"{'operation':22} {'disk, ms':>9} {'S3, ms':>9} {'times':>6}")
    for name, operation in operations(rows).items():
        seconds: dict[str, list[float]] = {place: [] for place in stores}
        for turn in range(repeats):
            for place, store in stores.items():
                begun = time.perf_counter()
                operation(store, turn)
                seconds[place].append(time.perf_counter() - begun)
        disk, s3 = (1000 * statistics.median(seconds[place]) for place in ("disk", "s3"))
        print(f"{name:22} {disk:9.1f} {s3:9.1f} {s3 / disk:6.2f}")
    for store in stores.values():
        store.compact_featuregroup("g")
    found = [store.get_featuregroup("g").to_pandas().sort_values("id") for store in stores.values()]
    pd.testing.assert_frame_equal(*(each.reset_index(drop=True) for each in found))


def count_requests(port: int, bucket: str, folder: Path, *, rows: int, commits: int) -> None:
    with faulty(port, rate=0.0) as (proxy, endpoint):
        options = options_for(endpoint)
        store = new_store(
            f"{bucket}/counted", folder / "counted", rows=rows, storage_options=options
        )
        before: dict[str, str] = {}
        for turn in range(2):
            for name, operation in operations(rows).items():
                operation(store, turn * 50)
                proxy.requests.clear()
                operation(store, turn * 50 + 1)
                shown = " ".join(f"{method} {n}" for method, n in sorted(proxy.requests.items()))
                if turn == 0:
                    before[name] = f"{proxy.requests.total():4} ({shown})"
                else:
                    print(f"{name:22} {before[name]:38} {proxy.requests.total():4} ({shown})")
            if turn == 0:
                for number in range(commits):
                    store.insert_into_featuregroup(frame((number + 100) * rows, rows), "g")
                store.compact_featuregroup("g")
                print(f"\n{'requests':22} {'few commits':38} {commits} commits more, compacted")
        store.close()


def measure_dataset(
    stores: dict[str, FeatureStore], folder: Path, port: int, *, rows: int, epochs: int
) -> None:
    wide = np.random.default_rng(0).random((rows, 24))
    data = pd.DataFrame(wide, columns=[f"x{column}" for column in range(24)])
    data["id"], data["y"] = np.arange(rows), np.arange(rows) % 2
    made: dict[str, TrainingDataset] = {}
    print(f"\n{'dataset of 24 doubles':30} {'rows/s':>12} {'of disk':>8}")
    rates: dict[str, list[float]] = {"export disk": [], "export s3": []}
    for place, store in stores.items():
        begun = time.perf_counter()
        made[place] = store.create_training_dataset(data, "d", label="y", key="id")
        rates[f"export {place}"].append(rows / (time.perf_counter() - begun))
    assert made["disk"].manifest.content_hash == made["s3"].manifest.content_hash
    readers = {
        "epoch disk": made["disk"].reader("train", global_batch_size=1024),
        "epoch s3, by ranges": made["s3"].reader("train", global_batch_size=1024),
        "epoch s3, cache": made["s3"].reader(
            "train", global_batch_size=1024, cache=folder / "shards"
        ),
    }
    for epoch in range(epochs + 1):  # the first fills the cache
        sums = []
        for name, reader in readers.items():
            begun = time.perf_counter()
            sums.append(sum(float(batch["x0"][7]) for batch in reader.batches(epoch)))
            rate = rows / (time.perf_counter() - begun)
            title = f"{name}, first" if epoch == 0 else name
            rates.setdefault(title, []).append(rate)
        assert len(set(sums)) == 1
    for name, found in rates.items():
        disk = rates[f"{name.split()[0]} disk{', first' if name.endswith('first') else ''}"]
        rate = statistics.median(found)
        print(f"{name:30} {rate:12,.0f} {rate / statistics.median(disk):8.2f}")
    with faulty(port, rate=0.0) as (proxy, endpoint):
        dataset = TrainingDataset.open(made["s3"].path, storage_options=options_for(endpoint))
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
        begun = time.perf_counter()
        dataset.download(folder / "downloaded")
        seconds = time.perf_counter() - begun
        print(f"download: {proxy.requests.total()} requests, {seconds:.1f} s through the proxy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small, for trying the program")
    rows, repeats, commits = (2_000, 3, 10) if parser.parse_args().quick else (100_000, 5, 50)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "buckets").mkdir()
        with serving(folder / "buckets") as server:
            bucket = server.new_bucket("benchmark")
            place = folder / "disk"
            disk = new_store(str(place), place, rows=rows)
            options = server.options
            s3 = new_store(f"{bucket}/store", folder / "s3", rows=rows, storage_options=options)
            measure({"disk": disk, "s3": s3}, rows, repeats)
            few = rows <= 2_000
            measure_dataset(
                {"disk": disk, "s3": s3},
                folder,
                server.port,
                rows=50_000 if few else 1_000_000,
                epochs=2 if few else 5,
            )
            use_options(s3.location, server.options)
            count_requests(server.port, bucket, folder, rows=1_000, commits=commits)
            disk.close()
            s3.close()


if __name__ == "__main__":
    main()
