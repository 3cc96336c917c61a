"""Metrics of a window's rows: SQL expressions, and the quality of a model's predictions.

Predictions are compared with the labels that were known when the window was evaluated, which is
after its allowed lateness. Later labels and predictions are ignored even if the window is computed
later, so that a backfill gives the same results as the monitor would have given. Predictions that
were made after their label was known are ignored, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any

import pyarrow as pa

from featurestore import usersql
from featurestore.errors import FeatureNotFound, InvalidJob, InvalidSql, listing
from featurestore.featuregroups.table import OpenGroup
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.monitor import (
    AUC,
    LABELLED,
    LOG_LOSS,
    SAME_CLASS,
    SQL_MEASURES,
    MonitoredModel,
)
from featurestore.model.times import Window
from featurestore.monitoring.profile import Estimate
from featurestore.plugins.engine import Engine, Relation, TimeRange


@dataclass(frozen=True)
class Metrics:
    """Metric values by name (None if undefined), and estimates of the mergeable metrics."""

    values: Mapping[str, float | None] = field(default_factory=dict)
    estimates: Mapping[str, Estimate] = field(default_factory=dict)

    def __or__(self, metrics: Metrics) -> Metrics:
        return Metrics(
            {**self.values, **metrics.values},
            {**self.estimates, **metrics.estimates},
        )


def compute_metrics(engine: Engine, rows: Relation, metrics: Mapping[str, str]) -> Metrics:
    """Compute metrics over rows.

    Raises:
        InvalidSql: A metric cannot be computed, or is not a number.
    """
    if not metrics:
        return Metrics()
    query = usersql.metrics_query(metrics, dialect=engine.dialect)
    table = engine.stream(engine.user_sql(query, tables={"rows": rows}, parameters={}))
    (row,) = table.read_all().to_pylist()
    values = {}
    estimates = {}
    for name, text in metrics.items():
        values[name] = _as_number(name, row[name])
        estimate = _to_estimate(name, usersql.merge_method(name, text), values[name], row)
        if estimate is not None:
            estimates[name] = estimate
    return Metrics(values, estimates)


def check_metrics(metrics: Mapping[str, str]) -> None:
    """Raise InvalidSql for expressions that are not valid SQL over the rows of a window."""
    if metrics:
        usersql.metrics_query(metrics, dialect=usersql.DIALECT)


def _to_estimate(
    name: str, merge: usersql.Merge | None, value: float | None, row: Mapping[str, Any]
) -> Estimate | None:
    """Return the estimate of a metric; None if it is not mergeable or not a number."""
    if merge is None or value is None:
        return None
    if merge != "mean":
        return Estimate(merge, total=value)
    components = []
    for component in usersql.MEAN_PARTS:
        number = _as_number(name, row[usersql.mean_part_name(name, component)])
        if number is None:
            return None
        components.append(number)
    return Estimate(merge, *components)


def _as_number(name: str, value: object) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise InvalidSql(
            f"The metric {name!r} returned {value!r}, which is not a number.",
            hint="use a numeric aggregate such as avg, sum, count or max",
        ) from error
    # NaN and infinity cannot be compared with bounds.
    return number if math.isfinite(number) else None


_LABELLED = {LABELLED: "avg(case when label is null then 0 else 1 end)"}
_VERSION = "model_version"
# The area under the ROC curve is the share of correctly ordered (positive, negative) pairs. Its
# variance follows DeLong, DeLong and Clarke-Pearson (1988), by distinct predictions.
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


# The query bypasses user SQL, which does not support logarithms on every engine.
_SURPRISE = """
    select surprise from (
        select -ln(case when given < 1e-15 then 1e-15 else given end) as surprise
        from (select case when label >= 0.5 then prediction else 1 - prediction end as given from pairs)
            given
    ) surprises
"""


@dataclass(frozen=True)
class Quality:
    """Measures predictions by window, for one version of the prediction and label groups.

    ``label`` is the label column, ``wait`` the time from the end of a window to its evaluation.
    """

    engine: Engine
    watched: MonitoredModel
    predictions: OpenGroup
    labels: OpenGroup
    label: str
    wait: timedelta

    def __post_init__(self) -> None:
        self._check()

    def measure(self, window: Window) -> Metrics:
        """Measure the predictions of a window, and the share of predictions with labels."""
        pairs = self._pairs(window)
        labelled = self.engine.filter(pairs, "label is not null")
        metrics = compute_metrics(self.engine, pairs, _LABELLED)
        metrics |= compute_metrics(self.engine, labelled, self._expressions)
        if LOG_LOSS in self.watched.measures:
            surprises = self.engine.sql(_SURPRISE, tables={"pairs": labelled}, parameters={})
            metrics |= compute_metrics(self.engine, surprises, {LOG_LOSS: SQL_MEASURES[LOG_LOSS]})
        if AUC in self.watched.measures:
            metrics |= self._auc(labelled)
        return metrics

    def to_json(self) -> dict[str, Any]:
        """Return the settings that affect the measures, as a JSON object."""
        spec = self.labels.spec
        settings = {
            **self.watched.to_json(),
            "labels": [spec.name, spec.version],
            "label": self.label,
        }
        return {**settings, "wait": self.wait.total_seconds()}

    @property
    def _is_number(self) -> bool:
        return _is_number(self.predictions.spec, self.watched.prediction)

    @cached_property
    def _expressions(self) -> dict[str, str]:
        expressions = dict(self.watched.metrics)
        dtype = self.predictions.spec.schema.field(self.watched.prediction).type
        for name in self.watched.measures:
            # A float is a probability, to which the threshold applies; any other prediction is a
            # class.
            if name == "accuracy" and not pa.types.is_floating(dtype):
                expressions[name] = SAME_CLASS
            elif name not in (AUC, LOG_LOSS):
                expressions[name] = SQL_MEASURES[name].replace(
                    "{threshold}", repr(self.watched.threshold)
                )
        return expressions

    def _auc(self, pairs: Relation) -> Metrics:
        """Measure the area under the ROC curve; it is undefined for a single class."""
        query = self.engine.sql(_CURVE, tables={"pairs": pairs}, parameters={})
        (row,) = self.engine.stream(query).read_all().to_pylist()
        if row["odd"]:
            raise InvalidJob(
                f"{self.label!r} of {self.labels.spec.name!r} has {row['odd']} labels that are "
                "neither 0 nor 1, and the AUC needs two classes.",
                hint='metric="mae"',
            )
        if not row["yes"] or not row["no"]:
            return Metrics({AUC: None})
        estimate = area_under_curve(row)
        return Metrics({AUC: estimate.value}, {AUC: estimate})

    # -- predictions and labels ---------------------------------------------------------------

    def _pairs(self, window: Window) -> Relation:
        """Return a row for each prediction in a window, with its label or null."""
        predictions, labels = self.predictions.spec, self.labels.spec
        parameters: dict[str, object] = {}
        if self.watched.version is not None:
            parameters["version"] = self.watched.version
        query = _build_query(self.watched, predictions, labels, as_numbers=self._is_number)
        if "$at" in query:
            parameters["at"] = window.end + self.wait
        window_range = TimeRange(str(predictions.event_time), window.start, window.end)
        tables = {"p": self._read(self.predictions, window_range, self._prediction_columns)}
        label_range = None
        if labels.event_time is not None:
            # A label may come exactly ``within`` after its prediction; the end of a range is
            # exclusive.
            end = window.end + self.watched.within + timedelta(microseconds=1)
            label_range = TimeRange(labels.event_time, window.start, end)
        tables["l"] = self._read(self.labels, label_range, self._label_columns)
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
    def _prediction_columns(self) -> dict[str, str]:
        spec = self.predictions.spec
        columns = {"t": str(spec.event_time), "prediction": self.watched.prediction}
        for index, name in enumerate(spec.primary_key):
            columns[f"q{index}"] = name
        for index, name in enumerate(self.labels.spec.primary_key):
            columns[f"k{index}"] = name
        if spec.created_time is not None:
            columns["made"] = spec.created_time
        if self.watched.version is not None:
            columns["version"] = _VERSION
        return columns

    @property
    def _label_columns(self) -> dict[str, str]:
        spec = self.labels.spec
        columns = {"label": self.label}
        for index, name in enumerate(spec.primary_key):
            columns[f"k{index}"] = name
        if spec.event_time is not None:
            columns["t"] = spec.event_time
        if spec.created_time is not None:
            columns["known"] = spec.created_time
        return columns

    # -- checks -------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise an error if predictions and labels cannot be joined or compared."""
        predictions, labels = self.predictions.spec, self.labels.spec
        if predictions.event_time is None or not predictions.primary_key:
            raise InvalidJob(
                f"{predictions.name!r} has no primary key or no event time, so labels cannot be "
                "joined to its predictions.",
                hint=f"store.score({self.watched.model!r}, labels=..., label_time=..., "
                f"featuregroup={predictions.name!r}) creates such a group",
            )
        _check_column_exists(predictions, self.watched.prediction, "prediction=")
        _check_column_exists(labels, self.label, "label=")
        if self.watched.version is not None:
            _check_column_exists(predictions, _VERSION, "model=")
        missing_keys = [name for name in labels.primary_key if name not in predictions.schema.names]
        if missing_keys or not labels.primary_key:
            raise InvalidJob(
                f"Labels of {labels.name!r} have the primary key {list(labels.primary_key)}, but "
                f"the predictions of {predictions.name!r} have no {listing(missing_keys)}.",
                hint="labels are joined by primary key, on columns with the same names",
            )
        if not self._is_number and any(name != "accuracy" for name in self.watched.measures):
            raise InvalidJob(
                f"{self.watched.prediction!r} of {predictions.name!r} is not a number, so only "
                "accuracy can be measured.",
                hint='metric="accuracy", or metrics= over prediction and label',
            )
        if self._is_number != _is_number(labels, self.label):
            raise InvalidJob(
                f"The prediction {self.watched.prediction!r} of {predictions.name!r} and the label "
                f"{self.label!r} of {labels.name!r} are not both numbers.",
                hint="prediction= and label= must have comparable types",
            )


def area_under_curve(row: Mapping[str, Any]) -> Estimate:
    """Compute the AUC from prediction counts, with rows that give a mean of the same variance.

    >>> separated = {"yes": 2, "no": 2, "won": 4, "won_squares": 8, "lost_squares": 8}
    >>> area_under_curve(separated).value
    1.0
    """
    positives, negatives = float(row["yes"]), float(row["no"])
    rows = positives * negatives / (positives + negatives)
    area = row["won"] / (positives * negatives)
    positive_variance = row["won_squares"] / (positives * negatives**2) - area**2
    negative_variance = row["lost_squares"] / (negatives * positives**2) - area**2
    variance = max(positive_variance, 0.0) / positives + max(negative_variance, 0.0) / negatives
    # If all pairs are ordered alike, half a pair is added, so that the variance is positive.
    if variance == 0:
        share = (area * rows + 0.5) / (rows + 1)
        variance = share * (1 - share) / rows
    return Estimate("mean", rows, area * rows, rows * (variance * rows + area**2))


def _build_query(
    watched: MonitoredModel,
    predictions: FeatureGroupSpec,
    labels: FeatureGroupSpec,
    *,
    as_numbers: bool,
) -> str:
    """Build the query over ``p`` and ``l`` that joins each prediction with its label.

    The label is the first one at or after the prediction time; if a label has several values, the
    latest known value is used.
    """
    key = [f"p.q{index}" for index in range(len(predictions.primary_key))]
    prediction_key = ", ".join([*key, "p.t"])
    conditions = [f"p.k{index} = l.k{index}" for index in range(len(labels.primary_key))]
    # ``$at`` is the time of the evaluation. Labels and predictions that became known later are
    # ignored, so that a backfill gives the results that the monitor would have given.
    order, filters, too_late = [], ["p.prediction is not null"], "null"
    if labels.event_time is not None:
        seconds = round(watched.within.total_seconds())
        conditions += ["l.t >= p.t", f"l.t <= p.t + interval '{seconds}' second", "l.t <= $at"]
        order.append("l.t")
    if labels.created_time is not None:
        conditions.append("l.known <= $at")
        order.append("l.known desc")
    if predictions.created_time is not None:
        filters.append("p.made <= $at")
        if labels.created_time is not None:
            # A prediction that was made after any of its labels was known may have used the label.
            # The window function runs before the first label is selected.
            too_late = (
                f"min(case when p.made > l.known then 1 end) over (partition by {prediction_key})"
            )
    if watched.version is not None:
        filters.append("p.version = $version")
    prediction, label = "p.prediction", "l.label"
    if as_numbers:
        # Booleans, integers and decimals become doubles, so that one expression works for all
        # types.
        prediction, label = _number_expression(prediction), _number_expression(label)
    return f"""
        select prediction, label from (
            select {prediction} as prediction, {label} as label, {too_late} as too_late,
                row_number() over (
                    partition by {prediction_key} order by {", ".join(order or ["p.t"])}
                ) as place
            from p left join l on {" and ".join(conditions)}
            where {" and ".join(filters)}
        ) matched where place = 1 and too_late is null and prediction is not null
    """


def _number_expression(column: str) -> str:
    """Return a SQL expression that converts a column to a number, with null for NaN."""
    value = f"cast({column} as double)"
    return f"case when isnan({value}) then null else {value} end"


def _is_number(spec: FeatureGroupSpec, column: str) -> bool:
    dtype = spec.schema.field(column).type
    return bool(
        pa.types.is_floating(dtype)
        or pa.types.is_integer(dtype)
        or pa.types.is_boolean(dtype)
        or pa.types.is_decimal(dtype)
    )


def _check_column_exists(spec: FeatureGroupSpec, column: str, argument: str) -> None:
    if column not in spec.schema.names:
        raise FeatureNotFound(
            f"{spec.name!r} version {spec.version} has no column {column!r} ({argument}). "
            f"Available: {listing(spec.schema.names)}.",
            hint=f"{argument.rstrip('=')}=...",
        )
