"""The driver of the tests on a cluster: runs experiments and prints what came of them as JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from pyspark.sql import SparkSession

import featurestore
from featurestore import experiments
from featurestore.errors import NotEnoughSlots
from tests.experiments import training


def bowl(x: float, context: Any) -> dict[str, float]:
    """Report a little, and die once."""
    context.report(1, y=-x)
    return {"y": -((x - 2) ** 2)}


def main(master: str, location: str) -> None:
    """Launch, search, and ask for too much."""
    builder = SparkSession.builder.master(master).config("spark.driver.host", "127.0.0.1")
    session = builder.config("spark.log.level", "ERROR").getOrCreate()
    store = featurestore.connect(location)
    dataset = store.get_training_dataset("sums")
    answer: dict[str, Any] = {}
    start = time.monotonic()
    for name, deaths in (("whole", {}), ("killed", {"1": [33]})):
        run = experiments.collective_all_reduce(
            training.regression,
            workers=2,
            dataset=dataset,
            params={"deaths": deaths},
            retries=1,
            on="spark",
            name=name,
        )
        answer[name] = [run.history("loss"), [a["reason"] for a in run.record.attempts]]
    study = experiments.search(
        bowl, space={"x": [1, 2, 3]}, metric="y", sampler="grid", parallel=2, on="spark"
    )
    answer["best"] = study.best.params
    answer["runs"] = len(experiments.get_runs())
    begun = time.monotonic()
    try:
        experiments.collective_all_reduce(training.regression, workers=3, on="spark")
    except NotEnoughSlots as error:
        answer["refused"] = str(error)
    answer["refused_after"] = time.monotonic() - begun
    answer["more_runs"] = len(experiments.get_runs()) - answer["runs"]
    answer["seconds"] = time.monotonic() - start
    session.stop()
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
