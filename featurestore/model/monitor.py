"""Monitor definitions: the monitored group or model, the baseline, and thresholds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated

from featurestore.errors import InvalidJob, did_you_mean
from featurestore.model import display
from featurestore.model.json_object import JsonMapping
from featurestore.model.records import OMIT_DEFAULT, Codec, Record, Version, codec_of
from featurestore.model.times import format_duration

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


def _parse_as_of(value: str | int) -> datetime | int:
    # A number is a Delta version.
    return codec_of(datetime if isinstance(value, str) else int).read(value)


def _write_as_of(value: datetime | int) -> str | int:
    return value.isoformat() if isinstance(value, datetime) else value


_AS_OF = Codec(_parse_as_of, _write_as_of)


@dataclass(frozen=True)
class Baseline(Record):
    """The rows that each window is compared with.

    A split of a training dataset, a version of the group, the group ``as_of`` a timestamp or Delta
    version, or the windows of the ``last`` duration before each window. ``same_weekday`` keeps only
    those windows that start a multiple of seven days earlier.
    """

    training_dataset: str | None = None
    split: str | None = None
    version: int | None = None
    as_of: Annotated[datetime | int | None, _AS_OF] = None
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


@dataclass(frozen=True)
class MonitorSpec(Record):
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
    model: Annotated[MonitoredModel | None, OMIT_DEFAULT] = None

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

    def check_json(self, data: JsonMapping) -> MonitorSpec:
        """Refuse invalid thresholds."""
        return check_monitor_spec(self)


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
class MonitoredModel(Record):
    """A registered model whose predictions are joined to labels.

    If ``version`` is None, predictions of all versions are monitored; if ``label`` is None, the
    model's own label is used. A label matches the prediction with the same key and time, or the
    last one at most ``within`` earlier. ``measures`` are names in ``MEASURES``, ``metrics`` are SQL
    over ``prediction`` and ``label``.
    """

    model: str
    version: Version | None
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

    def check_json(self, data: JsonMapping) -> MonitoredModel:
        """Refuse invalid measures and numbers."""
        return check_monitored_model(self)


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
