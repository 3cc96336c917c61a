"""Custom metrics: SQL expressions over the rows of a window, with mergeable estimates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from featurestore import usersql
from featurestore.errors import InvalidSql
from featurestore.monitoring.estimates import Estimate
from featurestore.plugins.engine import Engine, Relation


@dataclass(frozen=True)
class Metrics:
    """Metric values by name (None without a value), and estimates of mergeable metrics."""

    values: Mapping[str, float | None] = field(default_factory=dict)
    estimates: Mapping[str, Estimate] = field(default_factory=dict)

    def __or__(self, metrics: Metrics) -> Metrics:
        return Metrics(
            {**self.values, **metrics.values},
            {**self.estimates, **metrics.estimates},
        )


def metrics_of(engine: Engine, rows: Relation, metrics: Mapping[str, str]) -> Metrics:
    """Return each metric of the rows.

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
        estimate = _estimate(name, usersql.merge_of(name, text), values[name], row)
        if estimate is not None:
            estimates[name] = estimate
    return Metrics(values, estimates)


def check_metrics(metrics: Mapping[str, str]) -> None:
    """Raise InvalidSql for expressions that are not SQL over the rows of a window."""
    if metrics:
        usersql.metrics_query(metrics, dialect=usersql.DIALECT)


def _estimate(
    name: str, merge: usersql.Merge | None, value: float | None, row: Mapping[str, Any]
) -> Estimate | None:
    """Return the estimate of a metric; None if it is not mergeable or not a number."""
    if merge is None or value is None:
        return None
    if merge != "mean":
        return Estimate(merge, total=value)
    components = []
    for component in usersql.MEAN_PARTS:
        number = _as_number(name, row[usersql.part_name(name, component)])
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
            hint="avg, sum, count, max",
        ) from error
    return number if math.isfinite(number) else None
