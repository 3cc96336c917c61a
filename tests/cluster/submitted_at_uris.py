"""A program for spark-submit whose stores are at URIs.

How they are reached stands in an environment variable of the driver alone. Prints the checksums of
the shards of a training dataset in each store, and what is in its group, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import featurestore
from featurestore.store import FeatureStore
from featurestore_connectors.spark_delta import SparkEngine

ROWS = 60_000  # too many for the driver


def write(store: FeatureStore, frame: Any, more: Any) -> dict[str, Any]:
    """Write a group in several modes and a dataset of it; return their contents."""
    store.create_featuregroup(frame, "fares", primary_key="id", statistics=False)
    store.insert_into_featuregroup(more, "fares", mode="upsert")
    store.delete_from_featuregroup("fares", "zone = 3")
    group = store.get_featuregroup("fares")
    dataset = store.create_training_dataset(
        group, "fares", label="fare", splits={"train": 0.8, "test": 0.2}, shards=4, seed=7
    )
    assert dataset.verify(recompute=True).problems == ()
    shards = {}
    for split in dataset.manifest.splits:
        shards[split.name] = [shard.sha256 for shard in split.shards]
    fares = group.select("fare").to_arrow().column("fare")
    return {"rows": group.count(), "fares": sum(fares.to_pylist()), "shards": shards}


def main(folder: str, *locations: str) -> None:
    engine = SparkEngine()
    options = json.loads(os.environ["OPTIONS_OF_STORES"])
    frame = engine.session.range(ROWS).selectExpr("id", "id % 50 as zone", "id / 4 as fare")
    more = engine.session.range(ROWS - 100, ROWS + 100).selectExpr(
        "id", "id % 50 as zone", "1d as fare"
    )
    results = {"master": engine.session.sparkContext.master}
    for number, location in enumerate(locations):
        registry = f"sqlite:///{folder}/registry-{number}.db"
        arguments = {"registry": registry, "storage_options": options[number]}
        # Not closed, since that would stop the session.
        store = featurestore.connect(location, engine=engine, **arguments)
        results[location] = write(store, frame, more)
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
