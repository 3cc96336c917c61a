"""An order of columns that puts correlated ones beside each other.

Leaves of an average-linkage clustering.
"""

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
        nearest = divmod(int(np.argmin(near)), len(near))
        first, second = min(nearest), max(nearest)
        orders[first] = _joined(orders[first], orders[second], distances)
        weighted = near[first] * sizes[first] + near[second] * sizes[second]
        mean = weighted / (sizes[first] + sizes[second])
        near[first], near[:, first] = mean, mean
        near[second], near[:, second], near[first, first] = np.inf, np.inf, np.inf
        sizes[first] += sizes[second]
    return orders[0] if orders else []


def _joined(left: list[int], right: list[int], distances: Floats) -> list[int]:
    """Return two orders end to end, turned so that the columns that meet are the nearest ends."""
    left_turned, right_turned = left[::-1], right[::-1]
    best: list[int] = []
    least = np.inf
    for first, second in (
        (left_turned, right),
        (left, right),
        (left, right_turned),
        (left_turned, right_turned),
    ):
        distance = distances[first[-1], second[0]]
        if distance < least:
            best, least = first + second, distance
    return best
