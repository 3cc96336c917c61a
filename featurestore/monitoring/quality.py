"""How good the predictions of a window were: each with its label, as far as it was known then.

A window is looked at when it has ended and its allowed lateness is over. What was not known by then
does not count, neither a label nor a prediction, however late the window is computed: a backfill
says what the monitor would have said. A prediction that was made when its label was known is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

import pyarrow as pa

from featurestore.errors import FeatureNotFound, InvalidJob, listing
from featurestore.featuregroups.table import OpenGroup
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.watched_model import (
    AUC,
    LABELLED,
    LOG_LOSS,
    SAME_CLASS,
    SQL_MEASURES,
    WatchedModel,
)
from featurestore.model.window import Window
from featurestore.monitoring.custom_metrics import Metrics, metrics_of
from featurestore.monitoring.estimates import Estimate
from featurestore.plugins.engine import Engine, Relation, TimeRange

_LABELLED = {LABELLED: "avg(case when label is null then 0 else 1 end)"}
_VERSION = "model_version"
# The area under the ROC curve is the share of pairs, one of each label, that are ordered rightly,
# and its variance that of DeLong, DeLong and Clarke-Pearson (1988), by distinct predictions.
_CURVE = """
    select sum(yes) as yes, sum(no) as no, sum(odd) as odd, sum(yes * below) as won,
        sum(yes * below * below) as won_squares, sum(no * above * above) as lost_squares
    from (
        select yes, no, odd,
            sum(no) over (
                order by prediction rows between unbounded preceding and current row
            ) - no / 2 as below,
            sum(yes) over (
                order by prediction desc rows between unbounded preceding and current row
            ) - yes / 2 as above
        from (
            select prediction, sum(label) as yes, sum(1 - label) as no,
                sum(case when label = 0 or label = 1 then 0 else 1 end) as odd
            from pairs group by prediction
        ) counted
    ) ordered
"""


# The logarithm is the store's own, as users may not take it on every engine.
_SURPRISE = """
    select surprise from (
        select -ln(case when given < 1e-15 then 1e-15 else given end) as surprise
        from (select case when label >= 0.5 then prediction else 1 - prediction end as given from pairs)
            given
    ) surprises
"""


@dataclass(frozen=True)
class Quality:
    """Measures the predictions of windows of one version of two groups.

    ``label`` is the column of the labels, ``wait`` how long after its end a window is looked at.
    """

    engine: Engine
    watched: WatchedModel
    predictions: OpenGroup
    labels: OpenGroup
    label: str
    wait: timedelta

    def __post_init__(self) -> None:
        self._check()

    def measure(self, window: Window) -> Metrics:
        """Return the measures of the predictions of a window, and the share that has labels."""
        pairs = self._pairs(window)
        labelled = self.engine.filter(pairs, "label is not null")
        found = metrics_of(self.engine, pairs, _LABELLED)
        found |= metrics_of(self.engine, labelled, self._expressions)
        if LOG_LOSS in self.watched.measures:
            surprises = self.engine.sql(_SURPRISE, tables={"pairs": labelled}, parameters={})
            found |= metrics_of(self.engine, surprises, {LOG_LOSS: SQL_MEASURES[LOG_LOSS]})
        if AUC in self.watched.measures:
            found |= self._auc(labelled)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return what the numbers of a window depend on, beside the rows."""
        spec = self.labels.spec
        told = {**self.watched.to_json(), "labels": [spec.name, spec.version], "label": self.label}
        return {**told, "wait": self.wait.total_seconds()}

    @property
    def _is_number(self) -> bool:
        return _is_number(self.predictions.spec, self.watched.prediction)

    @cached_property
    def _expressions(self) -> dict[str, str]:
        found = dict(self.watched.metrics)
        kind = self.predictions.spec.schema.field(self.watched.prediction).type
        for name in self.watched.measures:
            if name == "accuracy" and not pa.types.is_floating(kind):
                found[name] = SAME_CLASS
            elif name not in (AUC, LOG_LOSS):
                found[name] = SQL_MEASURES[name].replace(
                    "{threshold}", repr(self.watched.threshold)
                )
        return found

    def _auc(self, pairs: Relation) -> Metrics:
        query = self.engine.sql(_CURVE, tables={"pairs": pairs}, parameters={})
        (row,) = self.engine.stream(query).read_all().to_pylist()
        if row["odd"]:
            raise InvalidJob(
                f"{self.label!r} of {self.labels.spec.name!r} has {row['odd']} labels that are "
                "neither 0 nor 1, and the AUC is of two classes.",
                hint='metric="mae"',
            )
        if not row["yes"] or not row["no"]:
            return Metrics({AUC: None})
        estimate = area_under_curve(row)
        return Metrics({AUC: estimate.value}, {AUC: estimate})

    # -- predictions and labels ---------------------------------------------------------------

    def _pairs(self, window: Window) -> Relation:
        """Return a row for each prediction of a window, with its label or null."""
        predictions, labels = self.predictions.spec, self.labels.spec
        parameters: dict[str, object] = {}
        if self.watched.version is not None:
            parameters["version"] = self.watched.version
        query = _query(self.watched, predictions, labels, as_numbers=self._is_number)
        if "$at" in query:
            parameters["at"] = window.end + self.wait
        inside = TimeRange(str(predictions.event_time), window.start, window.end)
        tables = {"p": self._read(self.predictions, inside, self._of_predictions)}
        until = None
        if labels.event_time is not None:
            end = window.end + self.watched.within + timedelta(microseconds=1)
            until = TimeRange(labels.event_time, window.start, end)
        tables["l"] = self._read(self.labels, until, self._of_labels)
        return self.engine.sql(query, tables=tables, parameters=parameters)

    def _read(
        self, group: OpenGroup, inside: TimeRange | None, columns: Mapping[str, str]
    ) -> Relation:
        relation = self.engine.read_table(
            group.path,
            version=group.delta_version,
            schema=group.spec.schema,
            columns=list(dict.fromkeys(columns.values())),
        )
        if inside is not None:
            relation = self.engine.within(relation, inside)
        return self.engine.select(relation, columns)

    @property
    def _of_predictions(self) -> dict[str, str]:
        spec = self.predictions.spec
        found = {"t": str(spec.event_time), "prediction": self.watched.prediction}
        for index, name in enumerate(spec.primary_key):
            found[f"q{index}"] = name
        for index, name in enumerate(self.labels.spec.primary_key):
            found[f"k{index}"] = name
        if spec.created_time is not None:
            found["made"] = spec.created_time
        if self.watched.version is not None:
            found["version"] = _VERSION
        return found

    @property
    def _of_labels(self) -> dict[str, str]:
        spec = self.labels.spec
        found = {"label": self.label}
        for index, name in enumerate(spec.primary_key):
            found[f"k{index}"] = name
        if spec.event_time is not None:
            found["t"] = spec.event_time
        if spec.created_time is not None:
            found["known"] = spec.created_time
        return found

    # -- what is refused ----------------------------------------------------------------------

    def _check(self) -> None:
        predictions, labels = self.predictions.spec, self.labels.spec
        if predictions.event_time is None or not predictions.primary_key:
            raise InvalidJob(
                f"{predictions.name!r} has no primary key or no event time: nobody can tell which "
                "label belongs to which of its predictions.",
                hint=f"store.score({self.watched.model!r}, labels=..., label_time=..., "
                f"featuregroup={predictions.name!r}) makes such a group",
            )
        _check_has(predictions, self.watched.prediction, "prediction=")
        _check_has(labels, self.label, "label=")
        if self.watched.version is not None:
            _check_has(predictions, _VERSION, "the version of a model")
        absent = [name for name in labels.primary_key if name not in predictions.schema.names]
        if absent or not labels.primary_key:
            raise InvalidJob(
                f"Labels of {labels.name!r} have the primary key {list(labels.primary_key)}, and "
                f"the predictions of {predictions.name!r} have no {listing(absent)}.",
                hint="labels are joined by their primary key, on the same names",
            )
        if not self._is_number and any(name != "accuracy" for name in self.watched.measures):
            raise InvalidJob(
                f"{self.watched.prediction!r} of {predictions.name!r} is no number, so that "
                "accuracy alone can be measured.",
                hint='metric="accuracy", or metrics= over prediction and label',
            )
        if self._is_number != _is_number(labels, self.label):
            raise InvalidJob(
                f"Of {self.watched.prediction!r} of {predictions.name!r} and {self.label!r} of "
                f"{labels.name!r} one is a number and the other is none.",
                hint="prediction= and label= name the columns that are compared",
            )


def area_under_curve(row: Mapping[str, Any]) -> Estimate:
    """Return the AUC of counted predictions, its rows those of which a mean would be as exact.

    >>> separated = {"yes": 2, "no": 2, "won": 4, "won_squares": 8, "lost_squares": 8}
    >>> area_under_curve(separated).value
    1.0
    """
    yes, no = float(row["yes"]), float(row["no"])
    rows = yes * no / (yes + no)
    area = row["won"] / (yes * no)
    of_yes = row["won_squares"] / (yes * no**2) - area**2
    of_no = row["lost_squares"] / (no * yes**2) - area**2
    variance = max(of_yes, 0.0) / yes + max(of_no, 0.0) / no
    if variance == 0:  # all pairs alike: half a pair that is not, lest chance be nothing
        share = (area * rows + 0.5) / (rows + 1)
        variance = share * (1 - share) / rows
    return Estimate("mean", rows, area * rows, rows * (variance * rows + area**2))


def _query(
    watched: WatchedModel,
    predictions: FeatureGroupSpec,
    labels: FeatureGroupSpec,
    *,
    as_numbers: bool,
) -> str:
    """Return the query over ``p`` and ``l`` that gives each prediction its label.

    The first label at or after the prediction's time; of several values of one label the one that
    was known last.
    """
    key = [f"p.q{index}" for index in range(len(predictions.primary_key))]
    same = ", ".join([*key, "p.t"])
    joined = [f"p.k{index} = l.k{index}" for index in range(len(labels.primary_key))]
    order, of_predictions, too_late = [], ["p.prediction is not null"], "null"
    if labels.event_time is not None:
        seconds = round(watched.within.total_seconds())
        joined += ["l.t >= p.t", f"l.t <= p.t + interval '{seconds}' second", "l.t <= $at"]
        order.append("l.t")
    if labels.created_time is not None:
        joined.append("l.known <= $at")
        order.append("l.known desc")
    if predictions.created_time is not None:
        of_predictions.append("p.made <= $at")
        if labels.created_time is not None:
            too_late = f"min(case when p.made > l.known then 1 end) over (partition by {same})"
    if watched.version is not None:
        of_predictions.append("p.version = $version")
    prediction, label = "p.prediction", "l.label"
    if as_numbers:
        prediction, label = _number(prediction), _number(label)
    return f"""
        select prediction, label from (
            select {prediction} as prediction, {label} as label, {too_late} as too_late,
                row_number() over (
                    partition by {same} order by {", ".join(order or ["p.t"])}
                ) as place
            from p left join l on {" and ".join(joined)}
            where {" and ".join(of_predictions)}
        ) matched where place = 1 and too_late is null and prediction is not null
    """


def _number(column: str) -> str:
    """Return a column as a number, null where it is none."""
    value = f"cast({column} as double)"
    return f"case when isnan({value}) then null else {value} end"


def _is_number(spec: FeatureGroupSpec, column: str) -> bool:
    kind = spec.schema.field(column).type
    return bool(
        pa.types.is_floating(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    )


def _check_has(spec: FeatureGroupSpec, column: str, what: str) -> None:
    if column not in spec.schema.names:
        raise FeatureNotFound(
            f"{spec.name!r} version {spec.version} has no column {column!r} ({what}); it has "
            f"{listing(spec.schema.names)}.",
            hint=f"{what.rstrip('=')}=...",
        )
