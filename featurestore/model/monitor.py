"""Monitor definitions: the monitored group or model, the baseline, and thresholds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from featurestore.errors import InvalidJob, did_you_mean
from featurestore.model import display
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.model.times import (
    duration_from_json,
    duration_to_json,
    format_duration,
    parse_duration,
    parse_moment,
)

AUC, LOG_LOSS = "auc", "log_loss"
# The fraction of predictions with a known label, monitored with the measures.
LABELLED = "labelled"
# SQL over the columns ``prediction`` and ``label`` of one row; ``{threshold}`` is a number, and
# ``surprise`` is the log-likelihood of the label, which is negative.
_ABOVE = "prediction >= {threshold}"
SQL_MEASURES: Mapping[str, str] = {
    "accuracy": f"avg(case when ({_ABOVE}) = (label >= 0.5) then 1 else 0 end)",
    # ``avg`` skips nulls: the average is over predicted or over actual positives only.
    "precision": f"avg(case when {_ABOVE} then label else null end)",
    "recall": f"avg(case when label >= 0.5 then case when {_ABOVE} then 1 else 0 end else null end)",
    LOG_LOSS: "avg(surprise)",
    "brier": "avg((prediction - label) * (prediction - label))",
    "mae": "avg(abs(prediction - label))",
    "mse": "avg((prediction - label) * (prediction - label))",
    "bias": "avg(prediction - label)",
}
# The accuracy of predictions that are classes instead of numbers with a threshold.
SAME_CLASS = "avg(case when prediction = label then 1 else 0 end)"
MODEL_MEASURES = (AUC, *SQL_MEASURES)

# Smaller distribution differences are ignored. Larger differences count if they also exceed the
# differences expected by chance and those among the baseline windows.
DEFAULT_DRIFT: Mapping[str, float] = {
    "psi": 0.2,
    "ks": 0.1,
    "tv": 0.1,
    "null_share": 0.05,
    "new_values": 0.01,
    "out_of_range": 0.02,
}
MEASURES = (*DEFAULT_DRIFT, "js", "gone_values")
DEFAULT_VOLUME = (0.65, 1.8)
DEFAULT_BASELINE = timedelta(days=56)
Limits = tuple[float | None, float | None]


@dataclass(frozen=True)
class Baseline:
    """The rows that each window is compared with.

    A split of a training dataset, a version of the group, the group ``as_of`` a timestamp or Delta
    version, or the windows of the ``last`` duration before each window. ``same_weekday`` keeps only
    those windows that start a multiple of seven days earlier.
    """

    training_dataset: str | None = None
    split: str | None = None
    version: int | None = None
    as_of: datetime | int | None = None
    last: timedelta | None = None
    same_weekday: bool = False

    __repr__ = display.record_repr

    @property
    def is_moving(self) -> bool:
        """Whether the baseline moves with the window."""
        return self.last is not None

    def __str__(self) -> str:
        if self.training_dataset is not None:
            return f"training dataset {self.training_dataset!r}, split {self.split!r}"
        if self.last is not None:
            weekday = ", same weekday" if self.same_weekday else ""
            return f"the last {format_duration(self.last)}{weekday}"
        if self.as_of is not None:
            version = "Delta version " if isinstance(self.as_of, int) else ""
            return f"as of {version}{self.as_of}"
        return f"version {self.version}"

    def to_json(self) -> JsonDict:
        """Convert to a JSON object, the inverse of ``from_json``."""
        as_of: Any = self.as_of
        if isinstance(as_of, datetime):
            as_of = as_of.isoformat()
        return {
            "training_dataset": self.training_dataset,
            "split": self.split,
            "version": self.version,
            "as_of": as_of,
            "last": duration_to_json(self.last),
            "same_weekday": self.same_weekday,
        }

    @classmethod
    def from_json(cls, data: JsonMapping) -> Baseline:
        """Parse the output of ``to_json``."""
        as_of: Any = data["as_of"]
        # A number is a Delta version.
        if isinstance(as_of, str):
            as_of = parse_moment(as_of, argument="as_of", warn=False)
        return cls(
            training_dataset=data["training_dataset"],
            split=data["split"],
            version=data["version"],
            as_of=as_of,
            last=duration_from_json(data["last"]),
            same_weekday=bool(data["same_weekday"]),
        )


@dataclass(frozen=True)
class MonitorSpec:
    """The monitored properties of a group, and their thresholds.

    An alarm requires ``confirm`` consecutive windows out of bounds. ``limits`` are the lower and
    upper bounds of metrics; None means unbounded. ``model`` is set if the group contains a model's
    predictions and their quality is monitored.
    """

    featuregroup: str
    baseline: Baseline = field(
        default_factory=lambda: Baseline(last=DEFAULT_BASELINE, same_weekday=True)
    )
    drift: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_DRIFT))
    features: tuple[str, ...] | None = None
    freshness: timedelta | None = None
    commit_freshness: timedelta | None = None
    volume: tuple[float, float] | None = DEFAULT_VOLUME
    schema: bool = True
    metrics: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, Limits] = field(default_factory=dict)
    confirm: int = 2
    model: MonitoredModel | None = None

    __repr__ = display.record_repr

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The names of the custom metrics and of the model measures."""
        if self.model is None:
            return tuple(self.metrics)
        return (*self.metrics, *self.model.names)

    @property
    def is_freshness_only(self) -> bool:
        """Whether only the age of the event time is monitored, which needs no stored rows."""
        others = (self.drift, self.volume, self.metrics, self.commit_freshness, self.model)
        return self.freshness is not None and not any(others)

    def to_json(self) -> JsonDict:
        """Convert to a JSON object, the inverse of ``from_json``."""
        features = None
        if self.features is not None:
            features = list(self.features)
        volume = None
        if self.volume is not None:
            volume = list(self.volume)
        data = {
            "featuregroup": self.featuregroup,
            "baseline": self.baseline.to_json(),
            "drift": dict(self.drift),
            "features": features,
            "freshness": duration_to_json(self.freshness),
            "commit_freshness": duration_to_json(self.commit_freshness),
            "volume": volume,
            "schema": self.schema,
            "metrics": dict(self.metrics),
            "limits": {name: list(pair) for name, pair in self.limits.items()},
            "confirm": self.confirm,
        }
        if self.model is not None:
            data["model"] = self.model.to_json()
        return data

    @classmethod
    def from_json(cls, data: JsonMapping) -> MonitorSpec:
        """Parse the output of ``to_json``; raise KeyError, TypeError or ValueError if invalid."""
        features, volume = data["features"], data["volume"]
        drift = {str(name): float(value) for name, value in dict(data["drift"]).items()}
        metrics = {str(name): str(text) for name, text in dict(data["metrics"]).items()}
        limits = {}
        for name, (low, high) in dict(data["limits"]).items():
            limits[str(name)] = (_to_optional_float(low), _to_optional_float(high))
        model = None
        if "model" in data:
            model = MonitoredModel.from_json(data["model"])
        return check_monitor_spec(
            cls(
                featuregroup=str(data["featuregroup"]),
                baseline=Baseline.from_json(data["baseline"]),
                drift=drift,
                features=None if features is None else tuple(map(str, features)),
                freshness=duration_from_json(data["freshness"]),
                commit_freshness=duration_from_json(data["commit_freshness"]),
                volume=None if volume is None else (float(volume[0]), float(volume[1])),
                schema=bool(data["schema"]),
                metrics=metrics,
                limits=limits,
                confirm=int(data["confirm"]),
                model=model,
            )
        )


def check_monitor_spec(watched: MonitorSpec) -> MonitorSpec:
    """Return the specification if it is valid; otherwise raise InvalidJob."""
    for name, value in watched.drift.items():
        if name not in MEASURES:
            suggestion = did_you_mean(name, MEASURES)
            raise InvalidJob(
                f"drift={{{name!r}: ...}}: unknown measure.",
                hint=suggestion or f"one of {', '.join(MEASURES)}",
            )
        if not 0 < value < 1000:
            raise InvalidJob(
                f"drift={{{name!r}: {value!r}}} is not a valid threshold.",
                hint="a number greater than 0 and less than 1000",
            )
    if watched.volume is not None and not 0 <= watched.volume[0] < 1 < watched.volume[1]:
        raise InvalidJob(
            f"volume={watched.volume!r} is not a range that contains 1.",
            hint="volume=(0.5, 2.0): from half the usual rows to twice as many",
        )
    unknown = [name for name in watched.limits if name not in watched.metric_names]
    if unknown:
        available = ", ".join(watched.metric_names) or "none"
        raise InvalidJob(
            f"limits= names metrics that are not in metrics= ({available}): {', '.join(unknown)}.",
            hint='metrics={"late_share": "avg(late)"}, limits={"late_share": (None, 0.3)}',
        )
    if not 1 <= watched.confirm <= 10:
        raise InvalidJob(
            f"confirm={watched.confirm!r} is not between 1 and 10.",
            hint="confirm=1 alarms at the first window out of bounds, confirm=2 at the second",
        )
    return watched


@dataclass(frozen=True)
class MonitoredModel:
    """A registered model whose predictions are joined to labels.

    If ``version`` is None, predictions of all versions are monitored; if ``label`` is None, the
    model's own label is used. A label matches the prediction with the same key and time, or the
    last one at most ``within`` earlier. ``measures`` are names in ``MEASURES``, ``metrics`` are SQL
    over ``prediction`` and ``label``.
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
        """The names of all measures and metrics."""
        return (*self.measures, *self.metrics, LABELLED)

    def to_json(self) -> JsonDict:
        """Convert to a JSON object, the inverse of ``from_json``."""
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
    def from_json(cls, data: JsonMapping) -> MonitoredModel:
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
    """Return the model if its measures and numbers are valid; otherwise raise InvalidJob."""
    for name in watched.measures:
        if name not in MODEL_MEASURES:
            suggestion = did_you_mean(name, MODEL_MEASURES)
            raise InvalidJob(
                f"metric={name!r}: unknown prediction measure.",
                hint=suggestion or f"one of {', '.join(MODEL_MEASURES)}; metrics= takes SQL",
            )
    duplicates = {*watched.measures, LABELLED}.intersection(watched.metrics)
    if duplicates or len(set(watched.measures)) < len(watched.measures):
        raise InvalidJob(
            f"Two metrics have the same name among {', '.join(watched.names)}.",
            hint='metric="auc", metrics={"cost": "avg(abs(prediction - label))"}',
        )
    if not watched.measures and not watched.metrics:
        raise InvalidJob("The monitor has no metrics for the predictions.", hint='metric="auc"')
    if watched.within < timedelta(0) or watched.within % timedelta(seconds=1):
        raise InvalidJob(f"within={watched.within} is not a whole number of seconds.", hint='"7d"')
    if not isinstance(watched.threshold, int | float) or not math.isfinite(watched.threshold):
        raise InvalidJob(f"threshold={watched.threshold!r} is not a number.", hint="threshold=0.5")
    return watched


def _to_optional_float(value: Any) -> float | None:
    return None if value is None else float(value)
