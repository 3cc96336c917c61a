"""Experiments whose workers are barrier tasks of the active Spark session."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from featurestore import experiments
from featurestore.errors import NotEnoughSlots
from featurestore.training import TrainingDataset
from tests.experiments import training_functions


def bowl(x: float, context: Any) -> dict[str, float]:
    """Report a metric; one trial is killed in its first attempt."""
    context.report(1, y=-x)
    if (x, context.attempt) == (1, 1):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"y": -((x - 2) ** 2)}


def saved_regression(params: dict[str, Any], context: Any) -> dict[str, float]:
    """Fit a line and save a model in every worker."""
    from sklearn.linear_model import LinearRegression

    metrics = training_functions.regression(params, context)
    context.save(LinearRegression().fit([[0.0], [1.0]], [0.0, metrics["final"]]), "line")
    return metrics


def run(dataset: TrainingDataset) -> dict[str, Any]:
    """Launch a run, search, and request too many workers; return the results."""
    launched = experiments.collective_all_reduce(
        saved_regression,
        workers=2,
        dataset=dataset,
        params={"deaths": {"1": [33]}},
        retries=1,
        on="spark",
        name="killed",
    )
    reasons = [attempt["reason"] for attempt in launched.record.attempts]
    results: dict[str, Any] = {"killed": [launched.history("loss"), reasons]}
    results["saved"] = sorted(launched.record.files)
    study = experiments.search(
        bowl, space={"x": [1, 2]}, metric="y", sampler="grid", parallel=2, on="spark"
    )
    results["best"] = study.best.params
    results["trials"] = {
        str(run.params["x"]): [run.state, len(run.record.attempts)] for run in study.runs
    }
    runs = len(experiments.get_runs())
    start = time.monotonic()
    try:
        experiments.collective_all_reduce(training_functions.regression, workers=3, on="spark")
    except NotEnoughSlots as error:
        results["refused"] = str(error)
    results["refused_after"] = time.monotonic() - start
    results["more_runs"] = len(experiments.get_runs()) - runs
    return results
