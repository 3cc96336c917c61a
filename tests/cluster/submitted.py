"""What a user hands to spark-submit: a program that calls the library; prints what it made as JSON."""

from __future__ import annotations

import json
import sys

import pyarrow as pa

import featurestore


def main(location: str) -> None:
    store = featurestore.connect(location, engine="spark")
    rows = [{"zone": number % 50, "trips": number, "fare": number / 4} for number in range(2000)]
    store.create_featuregroup(
        pa.Table.from_pylist(rows), "trips", validation="off", statistics=False
    )
    frame = store.get_featuregroup("trips")
    dataset = store.create_training_dataset(
        frame,
        "fares",
        label="fare",
        splits={"train": 0.8, "test": 0.2},
        shards=4,
        seed=7,
        statistics=False,
    )
    shards = {
        split.name: [shard.sha256 for shard in split.shards] for split in dataset.manifest.splits
    }
    context = frame.to_spark().sparkSession.sparkContext
    print(json.dumps({"master": context.master, "rows": frame.count(), "shards": shards}))


if __name__ == "__main__":
    main(sys.argv[1])
