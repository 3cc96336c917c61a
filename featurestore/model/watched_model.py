"""Monitored models: predictions, labels and measures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from featurestore.errors import InvalidJob, did_you_mean
from featurestore.model.durations import format_duration, parse_duration

AUC, LOG_LOSS = "auc", "log_loss"
# The share of predictions whose label is known, monitored with the measures.
LABELLED = "labelled"
# SQL over the columns ``prediction`` and ``label`` of one row each; ``{threshold}`` is a number, and
# ``surprise`` the logarithm of the chance that the label was given, below zero.
_ABOVE = "prediction >= {threshold}"
SQL_MEASURES: Mapping[str, str] = {
    "accuracy": f"avg(case when ({_ABOVE}) = (label >= 0.5) then 1 else 0 end)",
    "precision": f"avg(case when {_ABOVE} then label else null end)",
    "recall": f"avg(case when label >= 0.5 then case when {_ABOVE} then 1 else 0 end else null end)",
    LOG_LOSS: "avg(surprise)",
    "brier": "avg((prediction - label) * (prediction - label))",
    "mae": "avg(abs(prediction - label))",
    "mse": "avg((prediction - label) * (prediction - label))",
    "bias": "avg(prediction - label)",
}
# Accuracy of predictions that are classes, not numbers with a threshold.
SAME_CLASS = "avg(case when prediction = label then 1 else 0 end)"
MEASURES = (AUC, *SQL_MEASURES)


@dataclass(frozen=True)
class MonitoredModel:
    """A registered model whose predictions are joined to labels.

    ``version`` None takes predictions of all versions, ``label`` None the model's own label. A
    label belongs to the prediction of its key at its time, or at most ``within`` before it.
    ``measures`` are names of ``MEASURES``, ``metrics`` SQL over ``prediction`` and ``label``.
    """

    model: str
    version: int | None
    labels: str
    label: str | None
    prediction: str
    measures: tuple[str, ...]
    metrics: Mapping[str, str] = field(default_factory=dict)
    within: timedelta = timedelta(0)
    threshold: float = 0.5

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all that is measured."""
        return (*self.measures, *self.metrics, LABELLED)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that ``from_json`` reads back equal."""
        return {
            "model": self.model,
            "version": self.version,
            "labels": self.labels,
            "label": self.label,
            "prediction": self.prediction,
            "measures": list(self.measures),
            "metrics": dict(self.metrics),
            "within": format_duration(self.within),
            "threshold": self.threshold,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MonitoredModel:
        """Parse the output of ``to_json``; raise KeyError, TypeError or ValueError if invalid."""
        version, label = data["version"], data["label"]
        return check_monitored_model(
            cls(
                model=str(data["model"]),
                version=None if version is None else int(version),
                labels=str(data["labels"]),
                label=None if label is None else str(label),
                prediction=str(data["prediction"]),
                measures=tuple(map(str, data["measures"])),
                metrics={str(name): str(text) for name, text in dict(data["metrics"]).items()},
                within=parse_duration(data["within"]),
                threshold=float(data["threshold"]),
            )
        )


def check_monitored_model(watched: MonitoredModel) -> MonitoredModel:
    """Return it if there are such measures and its numbers make sense, else raise InvalidJob."""
    for name in watched.measures:
        if name not in MEASURES:
            suggestion = did_you_mean(name, MEASURES)
            raise InvalidJob(
                f"metric={name!r}: there is no such measure of predictions.",
                hint=suggestion or f"one of {', '.join(MEASURES)}; metrics= takes SQL",
            )
    duplicates = {*watched.measures, LABELLED}.intersection(watched.metrics)
    if duplicates or len(set(watched.measures)) < len(watched.measures):
        raise InvalidJob(
            f"Two metrics have the same name among {', '.join(watched.names)}.",
            hint='metric="auc", metrics={"cost": "avg(abs(prediction - label))"}',
        )
    if not watched.measures and not watched.metrics:
        raise InvalidJob("Nothing is measured of the predictions.", hint='metric="auc"')
    if watched.within < timedelta(0) or watched.within % timedelta(seconds=1):
        raise InvalidJob(f"within={watched.within} is no whole number of seconds.", hint='"7d"')
    if not isinstance(watched.threshold, int | float) or not math.isfinite(watched.threshold):
        raise InvalidJob(f"threshold={watched.threshold!r} is no number.", hint="threshold=0.5")
    return watched
