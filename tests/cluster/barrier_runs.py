"""Experiments whose workers are tasks of a barrier stage, in the session that is active."""

from __future__ import annotations

import time
from typing import Any

from featurestore import experiments
from featurestore.errors import NotEnoughSlots
from featurestore.training import TrainingDataset
from tests.experiments import training


def bowl(x: float, context: Any) -> dict[str, float]:
    """Report a little."""
    context.report(1, y=-x)
    return {"y": -((x - 2) ** 2)}


def run(dataset: TrainingDataset) -> dict[str, Any]:
    """Launch, search, and ask for too much; return what came of it."""
    launched = experiments.collective_all_reduce(
        training.regression,
        workers=2,
        dataset=dataset,
        params={"deaths": {"1": [33]}},
        retries=1,
        on="spark",
        name="killed",
    )
    reasons = [attempt["reason"] for attempt in launched.record.attempts]
    answer: dict[str, Any] = {"killed": [launched.history("loss"), reasons]}
    study = experiments.search(
        bowl, space={"x": [1, 2]}, metric="y", sampler="grid", parallel=2, on="spark"
    )
    answer["best"] = study.best.params
    runs = len(experiments.get_runs())
    begun = time.monotonic()
    try:
        experiments.collective_all_reduce(training.regression, workers=3, on="spark")
    except NotEnoughSlots as error:
        answer["refused"] = str(error)
    answer["refused_after"] = time.monotonic() - begun
    answer["more_runs"] = len(experiments.get_runs()) - runs
    return answer
