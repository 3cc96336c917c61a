"""Custom metrics: SQL expressions over the rows of a window, with what merges behind them."""

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
    """The values of metrics, None where there is none, and the parts of those that merge."""

    values: Mapping[str, float | None] = field(default_factory=dict)
    estimates: Mapping[str, Estimate] = field(default_factory=dict)

    def __or__(self, other: Metrics) -> Metrics:
        return Metrics(
            {**self.values, **other.values},
            {**self.estimates, **other.estimates},
        )


def metrics_of(engine: Engine, rows: Relation, metrics: Mapping[str, str]) -> Metrics:
    """Return each metric of the rows.

    Raises:
        InvalidSql: A metric cannot be computed, or is no number.
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
        found = _estimate(name, usersql.merge_of(name, text), values[name], row)
        if found is not None:
            estimates[name] = found
    return Metrics(values, estimates)


def check_metrics(metrics: Mapping[str, str]) -> None:
    """Raise InvalidSql for expressions that are not SQL over the rows of a window."""
    if metrics:
        usersql.metrics_query(metrics, dialect=usersql.DIALECT)


def _estimate(
    name: str, merge: usersql.Merge | None, value: float | None, row: Mapping[str, Any]
) -> Estimate | None:
    """Return the parts of a metric; None where it does not merge, or a part is no number."""
    if merge is None or value is None:
        return None
    if merge != "mean":
        return Estimate(merge, total=value)
    parts = []
    for part in usersql.MEAN_PARTS:
        number = _as_number(name, row[usersql.part_name(name, part)])
        if number is None:
            return None
        parts.append(number)
    return Estimate(merge, *parts)


def _as_number(name: str, value: object) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise InvalidSql(
            f"The metric {name!r} gave {value!r}, which is no number.", hint="avg, sum, count, max"
        ) from error
    return number if math.isfinite(number) else None
