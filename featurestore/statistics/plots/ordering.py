"""Order of columns that places correlated ones next to each other, by average linkage."""

from __future__ import annotations

import numpy as np

from featurestore.model.statistics import Correlations
from featurestore.statistics.exactsum import Floats


def correlation_matrix(correlations: Correlations) -> Floats:
    """Return the matrix as floats, NaN for missing correlations."""
    return np.array(correlations.matrix, dtype=np.float64).reshape(len(correlations.columns), -1)


def clustered_order(matrix: Floats) -> list[int]:
    """Return the leaf order of an average-linkage clustering with distance 1 - |r|.

    >>> clustered_order(np.array([[1, .1, .9], [.1, 1, .2], [.9, .2, 1]]))
    [0, 2, 1]
    """
    distances = 1.0 - np.abs(np.where(np.isnan(matrix), 0.0, matrix))
    pending_distances = distances.copy()
    np.fill_diagonal(pending_distances, np.inf)
    orders = [[index] for index in range(len(matrix))]
    sizes = np.ones(len(matrix))
    for _ in range(len(matrix) - 1):
        nearest = divmod(int(np.argmin(pending_distances)), len(pending_distances))
        first, second = min(nearest), max(nearest)
        orders[first] = _join_orders(orders[first], orders[second], distances)
        weighted = (
            pending_distances[first] * sizes[first] + pending_distances[second] * sizes[second]
        )
        mean = weighted / (sizes[first] + sizes[second])
        pending_distances[first], pending_distances[:, first] = mean, mean
        pending_distances[second], pending_distances[:, second], pending_distances[first, first] = (
            np.inf,
            np.inf,
            np.inf,
        )
        sizes[first] += sizes[second]
    return orders[0] if orders else []


def _join_orders(left: list[int], right: list[int], distances: Floats) -> list[int]:
    """Concatenate two orders, reversed if needed, so that the closest end columns meet."""
    left_reversed, right_reversed = left[::-1], right[::-1]
    best_order: list[int] = []
    min_distance = np.inf
    for first, second in (
        (left_reversed, right),
        (left, right),
        (left, right_reversed),
        (left_reversed, right_reversed),
    ):
        distance = distances[first[-1], second[0]]
        if distance < min_distance:
            best_order, min_distance = first + second, distance
    return best_order
