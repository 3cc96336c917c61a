"""An order of columns that puts correlated ones beside each other: leaves of an average-linkage clustering."""

from __future__ import annotations

import numpy as np

from featurestore.model.statistics import Correlations
from featurestore.statistics.exactsum import Floats


def matrix_of(correlations: Correlations) -> Floats:
    """Return the matrix as floats, NaN where there is no correlation."""
    return np.array(correlations.matrix, dtype=np.float64).reshape(len(correlations.columns), -1)


def clustered_order(matrix: Floats) -> list[int]:
    """Return the order of columns; the distance of two is 1 - |r|, the same for the same matrix.

    >>> clustered_order(np.array([[1, .1, .9], [.1, 1, .2], [.9, .2, 1]]))
    [0, 2, 1]
    """
    distances = 1.0 - np.abs(np.where(np.isnan(matrix), 0.0, matrix))
    near = distances.copy()
    np.fill_diagonal(near, np.inf)
    orders = [[index] for index in range(len(matrix))]
    sizes = np.ones(len(matrix))
    for _ in range(len(matrix) - 1):
        first, second = divmod(int(np.argmin(near)), len(near))
        first, second = min(first, second), max(first, second)
        orders[first] = _joined(orders[first], orders[second], distances)
        mean = (near[first] * sizes[first] + near[second] * sizes[second]) / (
            sizes[first] + sizes[second]
        )
        near[first], near[:, first] = mean, mean
        near[second], near[:, second], near[first, first] = np.inf, np.inf, np.inf
        sizes[first] += sizes[second]
    return orders[0] if orders else []


def _joined(left: list[int], right: list[int], distances: Floats) -> list[int]:
    """Return two orders end to end, turned so that the columns that meet are the nearest ends."""
    ways = [(left[::-1], right), (left, right), (left, right[::-1]), (left[::-1], right[::-1])]
    return min(
        (a + b for a, b in ways),
        key=lambda order: distances[order[len(left) - 1], order[len(left)]],
    )
