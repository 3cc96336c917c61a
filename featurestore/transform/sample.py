"""What a step is fitted on: the different values of a column in one split, and how often each occurs.

Values come in ascending order, so that what is computed of them does not depend on how the rows
were cut into batches, or on the engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from featurestore.statistics.exactsum import sum_twofold
from featurestore.transform.ops import NumpyOps, Value

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
_OPS = NumpyOps()


@dataclass(frozen=True)
class Sample:
    """Values as far as a chain has come, and the rows of each; missing ones are among them."""

    value: Value
    counts: Counts

    def numbers(self) -> tuple[Floats, Counts]:
        """Return the finite numbers in ascending order, and the rows of each."""
        data = _OPS.number(self.value)
        data = data.reshape(-1)
        known = np.isfinite(data)
        values, counts = data[known], self._spread(data.size)[known]
        order = np.argsort(values, kind="stable")
        return values[order], counts[order]

    def by_frequency(self) -> list[tuple[Any, int]]:
        """Return the values that are not missing, the most frequent first, equals in order."""
        data = np.asarray(self.value.data).reshape(-1)
        present = np.ones(data.size, dtype=np.bool_)
        if self.value.present is not None:
            present = np.broadcast_to(_deep(self.value.present, self.value.data), data.shape)
        if self.value.kind == "number":
            present = present & ~np.isnan(data)
        totals: dict[Any, int] = {}
        counts = self._spread(data.size)
        for value, count in zip(data[present].tolist(), counts[present].tolist(), strict=True):
            totals[value] = totals.get(value, 0) + count
        return sorted(totals.items(), key=lambda pair: (-pair[1], pair[0]))

    def _spread(self, size: int) -> Counts:
        """Return the rows of each value where a row holds several."""
        return np.repeat(self.counts, size // max(1, len(self.counts)))


def _deep(present: Any, data: Any) -> Any:
    """Return which values are present, where whole rows are told or each value by itself."""
    shape = np.shape(data)
    widened = np.reshape(present, np.shape(present) + (1,) * (len(shape) - np.ndim(present)))
    return np.broadcast_to(widened, shape).reshape(-1)


def moments(values: Floats, counts: Counts) -> tuple[float, float]:
    """Return mean and standard deviation (with n) of values that occur several times.

    >>> moments(np.array([1.0, 3.0]), np.array([2, 2]))
    (2.0, 1.0)
    """
    rows = int(counts.sum())
    total = sum_twofold(values * counts)
    mean = (total[0] + total[1]) / rows
    squares = sum_twofold((values - mean) ** 2 * counts)
    return mean, math.sqrt(max(squares[0], 0.0) / rows)


def quantile(values: Floats, counts: Counts, probability: float) -> float:
    """Return a quantile of ascending values, between two of them in proportion.

    >>> quantile(np.array([1.0, 3.0]), np.array([1, 1]), 0.5)
    2.0
    """
    ends = np.cumsum(counts)
    position = (int(ends[-1]) - 1) * probability
    below = math.floor(position)
    low = float(values[np.searchsorted(ends, below, side="right")])
    if below == position:
        return low
    high = float(values[np.searchsorted(ends, below + 1, side="right")])
    return low + (high - low) * (position - below)


def settled(value: float) -> float:
    """Return a spread to nine digits, so that it cannot show how rows were cut when it was summed."""
    return float(f"{value:.9g}")


def most(pairs: Sequence[tuple[Any, int]], limit: int | None) -> list[Any]:
    """Return the first values of a list by frequency, texts as str."""
    found = []
    for value, _ in pairs[:limit]:
        if isinstance(value, bytes):
            value = value.decode()
        found.append(value)
    return found
