"""Profile of a window: row count, missing values, and the distribution of every feature.

A profile is small (a hundred quantiles or values per feature) and is computed once from the rows of
its window. Profiles are merged by mixing their distributions, weighted by rows, so that a baseline
of recent weeks does not need to read the rows again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Annotated

import numpy as np

from featurestore.model.records import AS_ARRAY, Codec, Record, codec_of
from featurestore.model.roles import MODEL_ROLES
from featurestore.model.statistics import ColumnStatistics, Statistics, Value
from featurestore.model.times import Window, parse_moment
from featurestore.monitoring import bounds
from featurestore.statistics.drift import (
    Cumulative,
    as_number,
    cumulative_from_counts,
    cumulative_from_quantiles,
)
from featurestore.statistics.moments import Floats
from featurestore.usersql import Merge

# Assumed skewness for means of few rows: the skewness of an exponential distribution.
_SKEWNESS = 2.0
_FORMAT = 1
# Profiles store every second one of the 201 quantiles in statistics.
_QUANTILE_STEP = 2
_COMPARABLE_KINDS = ("number", "boolean", "text")


@dataclass(frozen=True)
class FeatureProfile:
    """The profile of a feature in a window.

    ``rows`` counts values, ``missing`` counts nulls and NaN, and ``sampled`` counts the values that
    form the distribution. Numbers with many distinct values have ``quantiles``; other columns have
    ``values`` with their counts: all values if ``complete``, otherwise the most frequent values.
    """

    name: str
    type: str
    value_kind: str
    rows: int
    missing: int
    sampled: int
    mean: float | None = None
    std: float | None = None
    quantiles: tuple[float, ...] = ()
    values: tuple[tuple[Value, int], ...] = ()
    complete: bool = False

    @property
    def missing_share(self) -> float:
        """The share of rows without a value."""
        return self.missing / max(self.rows + self.missing, 1)

    @property
    def comparable(self) -> bool:
        """Whether the feature has a distribution that can be compared."""
        return self.value_kind in _COMPARABLE_KINDS and self.sampled > 0

    @cached_property
    def cumulative(self) -> Cumulative | None:
        """The distribution function of a numeric feature, None for other kinds."""
        if self.value_kind != "number":
            return None
        if self.quantiles:
            return cumulative_from_quantiles(self.quantiles)
        if self.values and self.complete:
            return cumulative_from_counts(self.values)
        return None

    @cached_property
    def _knots(self) -> tuple[Floats, Floats]:
        """The distribution function as a line: each point with the shares below it and up to it."""
        distribution = self.cumulative
        if distribution is None:
            return np.empty(0), np.empty(0)
        shares = np.column_stack((distribution.left, distribution.right))
        return np.repeat(distribution.points, 2), shares.ravel()

    def up_to(self, x: Floats) -> Floats:
        """Return the share of values <= x, for a numeric feature with a distribution."""
        # At a point with two knots, numpy uses the second, whose share includes the point.
        return np.interp(x, *self._knots, left=0.0, right=1.0)


@dataclass(frozen=True)
class Estimate:
    """The mergeable components of a metric.

    A mean has the number of ``rows``, the ``total`` of their values and the total of the
    ``squares``; other kinds only have a ``total``.

    >>> both = merge_estimates([Estimate("mean", 2, 1, 1), Estimate("mean", 2, 2, 2)])
    >>> both, both.value
    (Estimate(merge='mean', rows=4, total=3, squares=3), 0.75)
    """

    merge: Merge
    rows: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    @property
    def value(self) -> float:
        """The metric value; the mean of zero rows is 0."""
        if self.merge == "mean":
            return self.total / max(self.rows, 1e-300)
        return self.total

    @property
    def variance(self) -> float:
        """The variance of the values of a mean."""
        return max(self.squares / max(self.rows, 1e-300) - self.value**2, 0.0)

    @property
    def is_share(self) -> bool:
        """Whether the metric is the mean of zeros and ones."""
        # Zeros and ones are equal to their squares.
        return self.squares == self.total and 0 <= self.total <= self.rows


_COLUMNS = codec_of(tuple[Annotated[FeatureProfile, AS_ARRAY], ...])
# The columns in their order; the objects of a profile in JSON have no order.
_COLUMNS_BY_NAME = Codec(
    lambda data: {column.name: column for column in _COLUMNS.read(data)},
    lambda columns: _COLUMNS.write(columns.values()),  # type: ignore[misc]
)


@dataclass(frozen=True)
class Profile(
    Record,
    format=_FORMAT,
    subject="The profile of a window",
    keys=(
        "window",
        "rows",
        "version",
        "delta_version",
        "newest",
        "types",
        "metrics",
        "estimates",
        "labels_version",
        "columns",
    ),
):
    """The profile of a window of a group, or of a baseline.

    ``newest`` is the latest event time, ``delta_version`` the table version; ``columns`` contains
    the feature profiles. ``estimates`` contains the components of mergeable metrics,
    ``labels_version`` is the version of the label table.
    """

    window: Annotated[Window, AS_ARRAY] | None
    rows: int
    version: int
    delta_version: int
    columns: Annotated[Mapping[str, FeatureProfile], _COLUMNS_BY_NAME]
    types: Mapping[str, str]
    newest: datetime | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    estimates: Mapping[str, Annotated[Estimate, AS_ARRAY]] = field(default_factory=dict)
    labels_version: int | None = None


def to_profile(
    statistics: Statistics,
    *,
    window: Window | None = None,
    version: int = 0,
    delta_version: int = 0,
    time: str | None = None,
    types: Mapping[str, str] | None = None,
    roles: bool = True,
    features: Sequence[str] | None = None,
    rows: int | None = None,
    newest: datetime | None = None,
    metrics: Mapping[str, float | None] | None = None,
    estimates: Mapping[str, Estimate] | None = None,
    labels_version: int | None = None,
) -> Profile:
    """Convert statistics to a profile.

    ``time`` is the event time column; ``roles`` excludes keys and times. ``features`` selects and
    orders the columns, and ``rows`` replaces the number of rows of the statistics.
    """
    columns = {}
    for column in statistics.columns:
        if column.name == time and column.maximum is not None:
            newest = _parse_time(str(column.maximum))
        if column.name != time and (not roles or column.role in MODEL_ROLES):
            columns[column.name] = _column_profile(column)
    column_types = types
    if column_types is None:
        column_types = {column.name: column.type for column in statistics.columns}
    if features is not None:
        columns = {name: columns[name] for name in features if name in columns}
    return Profile(
        window=window,
        rows=statistics.rows if rows is None else rows,
        version=version,
        delta_version=delta_version,
        columns=columns,
        types=column_types,
        newest=newest,
        metrics=metrics or {},
        estimates=estimates or {},
        labels_version=labels_version,
    )


def _column_profile(column: ColumnStatistics) -> FeatureProfile:
    quantiles: tuple[float, ...] = ()
    values: tuple[tuple[Value, int], ...] = ()
    if column.kind == "number" and not column.top_complete:
        thinned = column.quantiles[::_QUANTILE_STEP]
        quantiles = tuple(float(f"{as_number(quantile):.9g}") for quantile in thinned)
    elif column.kind in _COMPARABLE_KINDS:
        values = tuple((top_value.value, top_value.count) for top_value in column.top)
    mean = column.mean if isinstance(column.mean, int | float) else None
    sampled = column.count if column.sampled is None else column.sampled
    return FeatureProfile(
        name=column.name,
        type=column.type,
        value_kind=column.kind,
        rows=column.count,
        missing=column.missing,
        sampled=sampled if quantiles or values else 0,
        mean=mean,
        std=column.std,
        quantiles=quantiles,
        values=values,
        complete=column.top_complete,
    )


def _parse_time(text: str) -> datetime | None:
    try:
        return parse_moment(text, warn=False)
    except ValueError:  # a year outside the calendar of Python
        return None


def merge_estimates(estimates: Sequence[Estimate]) -> Estimate | None:
    """Merge estimates of one metric; return None if there are none or their kinds differ."""
    if not estimates or len({estimate.merge for estimate in estimates}) > 1:
        return None
    first, *remaining = estimates
    rows, total, squares = first.rows, first.total, first.squares
    for estimate in remaining:
        if first.merge == "min":
            total = min(total, estimate.total)
        elif first.merge == "max":
            total = max(total, estimate.total)
        else:
            rows, total, squares = (
                rows + estimate.rows,
                total + estimate.total,
                squares + estimate.squares,
            )
    return Estimate(first.merge, rows, total, squares)


def chance_mean(before: Estimate, rows: float, alpha: float) -> tuple[float, float]:
    """Return the expected range of the mean of ``rows`` rows if nothing changed since ``before``.

    The variance is estimated from ``before``. A share has the exact bounds of its count; other
    means have the normal limit, corrected for the skewness of few rows (the first term of Cornish
    and Fisher, 1938).
    """
    # The estimate of an AUC has a fractional number of rows, which is not a count.
    if before.is_share and rows == round(rows):
        minimum, maximum = bounds.chance_count(before.total, before.rows, rows, alpha)
        return minimum / max(rows, 1.0), maximum / max(rows, 1.0)
    normal = bounds.quantile(alpha / 2)
    few = max(rows, 1e-300)
    deviation = math.sqrt(before.variance)
    width = normal * deviation * math.sqrt(1 / few + 1 / max(before.rows, 1e-300))
    width += deviation * _SKEWNESS * (normal**2 - 1) / (6 * few)
    return before.value - width, before.value + width
