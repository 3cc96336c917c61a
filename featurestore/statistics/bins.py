"""Histogram bins of equal width that cover equally many possible values.

Integers in bins that cover unequal numbers of values (ages in bins of 1.7 years) show a comb
pattern that the data do not have. The same is true of prices in cents.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featurestore.statistics.exactsum import Floats
from featurestore.statistics.kinds import CountedColumn

BINS = 30
_MIN_BINS, _MAX_BINS = 15, 60
# With so many values in a range, one value more or less in a bin is not visible.
_MANY_VALUES = 3_000
_STEPS = (1.0, 0.1, 0.01)
# float32 has seven digits: a value within this relative distance of a multiple of the step is one.
_TOLERANCE = 2.0**-22
_MAX_STEPPED = 2.0**51
# The differences of fewer values may have a common divisor by chance.
_MIN_VALUES_FOR_STEP = 8
_PROBED_VALUES = 1_000


def bin_edges(
    column: CountedColumn, unique: NDArray[Any], *, low: Any, high: Any
) -> tuple[float, ...] | None:
    """Return the bin edges of a column; None if float64 cannot represent distinct edges.

    ``unique`` are the sampled values, ``low`` and ``high`` the extremes over all rows.
    """
    if low is None or high is None or not math.isfinite(float(high) - float(low)):
        return None
    if low == high:
        return (low - 0.5, high + 0.5)
    step = _value_step(column, unique, float(low), float(high))
    if step is not None:
        # A number is in the middle of its bin; a day starts at the left edge of its bin.
        shift = 0.0 if column.kind == "time" else 0.5
        return stepped_edges(float(low), float(high), step=step, shift=shift)
    edges = np.linspace(float(low), float(high), BINS + 1)
    if not np.all(np.diff(edges) > 0):
        return None
    return tuple(edges.tolist())


def stepped_edges(
    low: float, high: float, *, step: float = 1.0, shift: float = 0.5
) -> tuple[float, ...]:
    """Return edges for values at multiples of a step; all bins but the last cover equally many.

    >>> stepped_edges(1, 3)
    (0.5, 1.5, 2.5, 3.5)
    >>> edges = stepped_edges(50, 101)
    >>> (edges[:3], edges[-1], len(edges) - 1)
    ((49.5, 51.5, 53.5), 101.5, 26)
    """
    values = round((high - low) / step) + 1
    width = _values_per_bin(values)
    bins = math.ceil(values / width)
    return tuple((low + step * (width * np.arange(bins + 1) - shift)).tolist())


def bin_counts(
    unique: NDArray[Any], ends: NDArray[np.int64], edges: tuple[float, ...]
) -> NDArray[np.int64]:
    """Return the number of rows in each bin [left, right), like ``numpy.histogram``.

    The last bin includes its right edge.
    """
    values: Floats = unique.astype(np.float64)
    positions = np.searchsorted(values, edges)
    positions[-1] = np.searchsorted(values, edges[-1], side="right")
    return np.diff(np.where(positions > 0, ends[positions - 1], 0))


def _values_per_bin(value_count: int) -> int:
    """Return the number of values per bin, for about thirty bins with a nearly full last one."""
    if value_count <= BINS:
        return 1
    if value_count > _MANY_VALUES:
        return math.ceil(value_count / BINS)
    best_width, best_score = 1, math.inf
    for width in range(math.ceil(value_count / _MAX_BINS), math.ceil(value_count / _MIN_BINS) + 1):
        bins = math.ceil(value_count / width)
        score = (bins * width - value_count) / width + abs(bins - BINS) / BINS
        if score < best_score:
            best_width, best_score = width, score
    return best_width


def _value_step(
    column: CountedColumn, unique: NDArray[Any], low: float, high: float
) -> float | None:
    """Return the step that all values are multiples of, None for continuous values."""
    if max(abs(low), abs(high)) > _MAX_STEPPED:
        return None
    if unique.dtype.kind != "f":
        step = float(_common_divisor(unique.astype(np.int64)))
        is_optional = column.kind == "time"
    else:
        step = _decimal_step(unique)
        is_optional = True
    # Integers always get integer bins; for other kinds the step matters in small ranges only.
    if not step or (is_optional and (high - low) / step > _MANY_VALUES):
        return None
    return step


def _decimal_step(unique: Floats) -> float:
    """Return the step of floats with up to two decimals, 0 for other floats."""
    for step in _STEPS:
        # Continuous values fail the test within the first few values.
        if _whole_steps(unique[:_PROBED_VALUES], step) is None:
            continue
        steps = _whole_steps(unique, step)
        if steps is not None:
            return step * _common_divisor(steps.astype(np.int64))
    return 0.0


def _whole_steps(values: Floats, step: float) -> Floats | None:
    """Return each value in steps, None if a value is not a multiple of the step."""
    steps = values / step
    rounded: Floats = np.round(steps)
    is_whole = np.abs(steps - rounded) <= np.abs(steps) * _TOLERANCE
    if is_whole.all():
        return rounded
    return None


def _common_divisor(values: NDArray[np.int64]) -> int:
    """Return the greatest common divisor of all differences; 1 for fewer than eight values."""
    if len(values) < _MIN_VALUES_FOR_STEP:
        return 1
    differences = np.diff(values)
    first = int(np.gcd.reduce(differences[:_PROBED_VALUES]))
    if first <= 1:
        return 1
    return max(int(np.gcd.reduce(differences)), 1)
