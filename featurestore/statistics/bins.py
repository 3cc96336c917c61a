"""Bins of histograms: equal ones, each with room for as many possible values as any other.

Whole numbers in bins of unequal numbers of values (ages in bins of 1.7 years) show teeth that the
data do not have, and so do prices in cents.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featurestore.statistics.exactsum import Floats
from featurestore.statistics.kinds import CountedColumn

BINS = 30
_FEWEST_BINS, _MOST_BINS = 15, 60
# With so many values in a range, one more or less in a bin cannot be seen.
_MANY_VALUES = 3_000
_STEPS = (1.0, 0.1, 0.01)
# A float32 holds seven digits; what is nearer to a step than this was meant to be one.
_TOLERANCE = 2.0**-22
_EXACT = 2.0**51
# Fewer values than this may be apart by chance.
_FEWEST_STEPS = 8
_LOOKED_AT = 1_000


def edges_of(
    column: CountedColumn, unique: NDArray[Any], *, low: Any, high: Any
) -> tuple[float, ...] | None:
    """Return the edges of a column's bins; None where float64 cannot tell them apart.

    ``unique`` are its sampled values, ``low`` and ``high`` the extremes over all rows.
    """
    if low is None or high is None or not math.isfinite(float(high) - float(low)):
        return None
    if low == high:
        return (low - 0.5, high + 0.5)
    step = _step_of(column, unique, float(low), float(high))
    if step is not None:
        # Numbers stand in the middle of their bin; a day begins at its bin's left edge.
        shift = 0.0 if column.kind == "time" else 0.5
        return stepped_edges(float(low), float(high), step=step, shift=shift)
    edges = np.linspace(float(low), float(high), BINS + 1)
    if not np.all(np.diff(edges) > 0):
        return None
    return tuple(edges.tolist())


def stepped_edges(
    low: float, high: float, *, step: float = 1.0, shift: float = 0.5
) -> tuple[float, ...]:
    """Return edges for values a step apart; every bin but the last has equally many of them.

    >>> stepped_edges(1, 3)
    (0.5, 1.5, 2.5, 3.5)
    >>> edges = stepped_edges(50, 101)
    >>> (edges[:3], edges[-1], len(edges) - 1)
    ((49.5, 51.5, 53.5), 101.5, 26)
    """
    values = round((high - low) / step) + 1
    width = _values_in_a_bin(values)
    bins = math.ceil(values / width)
    return tuple((low + step * (width * np.arange(bins + 1) - shift)).tolist())


def counts_between(
    unique: NDArray[Any], ends: NDArray[np.int64], edges: tuple[float, ...]
) -> NDArray[np.int64]:
    """Return the rows in each bin [left, right), as numpy's histogram does.

    The last bin has its right edge, too.
    """
    values: Floats = unique.astype(np.float64)
    positions = np.searchsorted(values, edges)
    positions[-1] = np.searchsorted(values, edges[-1], side="right")
    return np.diff(np.where(positions > 0, ends[positions - 1], 0))


def _values_in_a_bin(values: int) -> int:
    """Return how many values share a bin: about thirty bins, and the last one nearly full."""
    if values <= BINS:
        return 1
    if values > _MANY_VALUES:
        return math.ceil(values / BINS)
    best, best_score = 1, math.inf
    for width in range(math.ceil(values / _MOST_BINS), math.ceil(values / _FEWEST_BINS) + 1):
        bins = math.ceil(values / width)
        score = (bins * width - values) / width + abs(bins - BINS) / BINS
        if score < best_score:
            best, best_score = width, score
    return best


def _step_of(column: CountedColumn, unique: NDArray[Any], low: float, high: float) -> float | None:
    """Return the step that all values are apart, None for values of any size."""
    if max(abs(low), abs(high)) > _EXACT:
        return None
    if unique.dtype.kind != "f":
        step = float(_common_divisor(unique.astype(np.int64)))
        is_optional = column.kind == "time"
    else:
        step = _step_of_floats(unique)
        is_optional = True
    # Whole numbers always have bins of whole numbers; for others it matters in small ranges only.
    if not step or (is_optional and (high - low) / step > _MANY_VALUES):
        return None
    return step


def _step_of_floats(unique: Floats) -> float:
    """Return the step that floats of up to two decimals are apart, 0 for others."""
    for step in _STEPS:
        # Values of any size show it in the first few already.
        if _whole(unique[:_LOOKED_AT], step) is None:
            continue
        whole = _whole(unique, step)
        if whole is not None:
            return step * _common_divisor(whole.astype(np.int64))
    return 0.0


def _whole(values: Floats, step: float) -> Floats | None:
    """Return of how many steps each value is, None where one lies between two of them."""
    steps = values / step
    whole: Floats = np.round(steps)
    near = np.abs(steps - whole) <= np.abs(steps) * _TOLERANCE
    if near.all():
        return whole
    return None


def _common_divisor(values: NDArray[np.int64]) -> int:
    """Return the greatest number that all differences are multiples of; 1 for a few values."""
    if len(values) < _FEWEST_STEPS:
        return 1
    differences = np.diff(values)
    first = int(np.gcd.reduce(differences[:_LOOKED_AT]))
    if first <= 1:
        return 1
    return max(int(np.gcd.reduce(differences)), 1)
