"""Monitor definitions: the monitored group, its baseline and thresholds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from featurestore.errors import InvalidJob, did_you_mean
from featurestore.model.durations import format_duration, parse_duration
from featurestore.model.times import parse_moment
from featurestore.model.watched_model import MonitoredModel

# What a distribution may differ by before it is looked at, where it is also more than chance and
# more than the windows of the baseline differ among each other.
DEFAULT_DRIFT: Mapping[str, float] = {"psi": 0.2, "ks": 0.1, "null_share": 0.05, "new_values": 0.01}
MEASURES = (*DEFAULT_DRIFT, "js", "gone_values")
DEFAULT_VOLUME = (0.65, 1.8)
DEFAULT_BASELINE = timedelta(days=56)
Limits = tuple[float | None, float | None]


@dataclass(frozen=True)
class Baseline:
    """What windows are compared with.

    A split of a training dataset, a version of the group, the group ``as_of`` an instant or Delta
    version, or the windows of the ``last`` time before each window. ``same_weekday`` leaves of
    these windows those that begin whole weeks earlier.
    """

    training_dataset: str | None = None
    split: str | None = None
    version: int | None = None
    as_of: datetime | int | None = None
    last: timedelta | None = None
    same_weekday: bool = False

    @property
    def rolls(self) -> bool:
        """Whether it moves with the window."""
        return self.last is not None

    def __str__(self) -> str:
        if self.training_dataset is not None:
            return f"training dataset {self.training_dataset!r}, split {self.split!r}"
        if self.last is not None:
            weekday = ", same weekday" if self.same_weekday else ""
            return f"the last {format_duration(self.last)}{weekday}"
        if self.as_of is not None:
            return f"as of {self.as_of}"
        return f"version {self.version}"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that ``from_json`` reads back equal."""
        as_of: Any = self.as_of
        if isinstance(as_of, datetime):
            as_of = as_of.isoformat()
        return {
            "training_dataset": self.training_dataset,
            "split": self.split,
            "version": self.version,
            "as_of": as_of,
            "last": None if self.last is None else format_duration(self.last),
            "same_weekday": self.same_weekday,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Baseline:
        """Return the baseline that ``to_json`` wrote."""
        as_of: Any = data["as_of"]
        if isinstance(as_of, str):
            as_of = parse_moment(as_of, argument="as_of", warn=False)
        last = data["last"]
        return cls(
            training_dataset=data["training_dataset"],
            split=data["split"],
            version=data["version"],
            as_of=as_of,
            last=None if last is None else parse_duration(last),
            same_weekday=bool(data["same_weekday"]),
        )


@dataclass(frozen=True)
class MonitorSpec:
    """What a monitor watches of which group, and by which rules.

    ``confirm`` is how many windows in a row have to be out of bounds before there is an alarm.
    ``limits`` are the bounds of metrics, None if there is none. ``model`` is there where the
    group holds a model's predictions, and its quality is watched.
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

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The names of the custom metrics and of what is measured of a model."""
        if self.model is None:
            return tuple(self.metrics)
        return (*self.metrics, *self.model.names)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that ``from_json`` reads back equal."""
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
            "freshness": _time_text(self.freshness),
            "commit_freshness": _time_text(self.commit_freshness),
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
    def from_json(cls, data: Mapping[str, Any]) -> MonitorSpec:
        """Parse the output of ``to_json``; raise KeyError, TypeError or ValueError if invalid."""
        features, volume = data["features"], data["volume"]
        drift = {str(name): float(value) for name, value in dict(data["drift"]).items()}
        metrics = {str(name): str(text) for name, text in dict(data["metrics"]).items()}
        limits = {}
        for name, (low, high) in dict(data["limits"]).items():
            limits[str(name)] = (_number(low), _number(high))
        model = None
        if "model" in data:
            model = MonitoredModel.from_json(data["model"])
        return check_monitor_spec(
            cls(
                featuregroup=str(data["featuregroup"]),
                baseline=Baseline.from_json(data["baseline"]),
                drift=drift,
                features=None if features is None else tuple(map(str, features)),
                freshness=_duration(data["freshness"]),
                commit_freshness=_duration(data["commit_freshness"]),
                volume=None if volume is None else (float(volume[0]), float(volume[1])),
                schema=bool(data["schema"]),
                metrics=metrics,
                limits=limits,
                confirm=int(data["confirm"]),
                model=model,
            )
        )


def check_monitor_spec(watched: MonitorSpec) -> MonitorSpec:
    """Return what is to be watched if its numbers make sense, else raise InvalidJob."""
    for name, value in watched.drift.items():
        if name not in MEASURES:
            suggestion = did_you_mean(name, MEASURES)
            raise InvalidJob(
                f"drift={{{name!r}: ...}}: there is no such measure.",
                hint=suggestion or f"one of {', '.join(MEASURES)}",
            )
        if not 0 < value < 1000:
            raise InvalidJob(f"drift={{{name!r}: {value!r}}} is not a bound.", hint="above 0")
    if watched.volume is not None and not 0 <= watched.volume[0] < 1 < watched.volume[1]:
        raise InvalidJob(
            f"volume={watched.volume!r} is not a range around 1.",
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
            f"confirm={watched.confirm!r}: so many windows in a row cannot be asked for.",
            hint="confirm=1 alarms at the first window out of bounds, confirm=2 at the second",
        )
    return watched


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _time_text(value: timedelta | None) -> str | None:
    return None if value is None else format_duration(value)


def _duration(value: str | None) -> timedelta | None:
    return None if value is None else parse_duration(value)
