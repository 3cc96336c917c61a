"""K-means clustering of sampled rows, with a two-dimensional projection for plots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from featurestore.errors import StatisticsNotFound
from featurestore.statistics.moments import Floats
from featurestore.statistics.state import StatisticsState, batch_to_bytes, correlated_columns
from featurestore.statistics.values import Values, measured_values

_MAX_ROWS, _MAX_VALUES = 20_000, 2_000_000
# The number of clusters is selected on fewer rows, because k-means runs once for each number.
_TRIAL_ROWS = 4_000
_MAX_CLUSTERS = 8
_MAX_ITERATIONS = 100
_MAX_MISSING_SHARE = 0.3


@dataclass(frozen=True)
class Clusters:
    """Clusters of sampled rows.

    ``labels`` has the shape (rows,). ``centers`` has the shape (clusters, columns), in standard
    deviations from the mean. ``plane`` has the first two principal components, of shape (rows, 2),
    and ``explained`` their shares of the variance. ``left_out`` lists excluded columns, which are
    constant or mostly missing. Rows with a missing value in another column are excluded.
    """

    columns: tuple[str, ...]
    labels: NDArray[np.int64]
    centers: Floats
    plane: Floats
    explained: tuple[float, float]
    left_out: tuple[str, ...]


def select_cluster_rows(state: StatisticsState) -> pa.RecordBatch:
    """Return the rows to cluster: numeric features of at most 20,000 sampled rows."""
    names = [column.name for column in correlated_columns(state.columns)]
    state.sample.compact()
    max_rows = max(min(_MAX_ROWS, _MAX_VALUES // max(len(names), 1)), 1)
    return state.sample.rows().select(names).slice(0, max_rows)


def rows_to_bytes(rows: pa.RecordBatch) -> bytes:
    """Encode rows as an Arrow IPC stream."""
    return bytes(batch_to_bytes(rows))


def rows_from_bytes(data: bytes) -> pa.RecordBatch:
    """Decode rows that were encoded by ``rows_to_bytes``."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_next_batch()


def find_clusters(
    sample: StatisticsState | pa.RecordBatch, *, clusters: int | None = None, seed: int = 0
) -> Clusters:
    """Cluster the rows of a sample, and order the clusters by size, largest first.

    Args:
        sample: A statistics state, or the result of ``select_cluster_rows``.
        clusters: The number of clusters; None selects the number from 2 to 8 with the highest
            Calinski-Harabasz index.
        seed: The seed of the initial centers.

    Raises:
        StatisticsNotFound: The sample has fewer than two non-constant numeric features, or fewer
            than three complete rows.
    """
    if isinstance(sample, StatisticsState):
        sample = select_cluster_rows(sample)
    columns, left_out, data = _standardize_rows(sample)
    if len(columns) < 2 or len(data) < 3:
        raise StatisticsNotFound(
            "Clustering needs two numeric features that are not constant and three rows without "
            f"missing values; there are {len(columns)} such features and {len(data)} such rows."
        )
    random = np.random.default_rng(seed)
    cluster_count = clusters or _choose_cluster_count(data[:_TRIAL_ROWS], random)
    labels, centers = _k_means(data, min(cluster_count, len(data)), random)
    order = np.argsort(-np.bincount(labels, minlength=len(centers)), kind="stable")
    # The inverse permutation maps each label to the rank of its cluster.
    labels = np.argsort(order)[labels]
    plane, explained = _project_to_plane(data)
    return Clusters(columns, labels.astype(np.int64), centers[order], plane, explained, left_out)


def _standardize_rows(rows: pa.RecordBatch) -> tuple[tuple[str, ...], tuple[str, ...], Floats]:
    """Return the selected columns, the excluded columns, and the standardized complete rows."""
    names, left_out, columns = [], [], []
    for name in rows.schema.names:
        column = _to_scalable_column(measured_values(rows.column(name)), rows.num_rows)
        if column is None:
            left_out.append(name)
        else:
            names.append(name)
            columns.append(column)
    if not columns:
        return (), tuple(left_out), np.empty((0, 0))
    data = np.stack(columns, axis=1)
    data = data[~np.isnan(data).any(axis=1)]
    if len(data):
        deviation = data.std(axis=0)
        data = (data - data.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    return tuple(names), tuple(left_out), data


def _to_scalable_column(values: Values, rows: int) -> Floats | None:
    """Return a column with NaN for missing values, or None if it is constant or mostly missing."""
    finite = _divide_by_power_of_two(values.finite.astype(np.float64))
    if not len(finite) or len(finite) < rows * (1 - _MAX_MISSING_SHARE) or np.ptp(finite) == 0:
        return None
    if values.present is None:
        return finite
    column = np.full(rows, np.nan)
    column[values.present] = finite
    return column


def _divide_by_power_of_two(values: Floats) -> Floats:
    """Divide values by a power of two, so that their squares do not overflow.

    The division is exact.
    """
    largest = float(np.abs(values).max(initial=0.0))
    return np.asarray(np.ldexp(values, -int(np.frexp(largest)[1])))


def _choose_cluster_count(data: Floats, random: np.random.Generator) -> int:
    """Return the number of clusters with the highest Calinski-Harabasz index."""
    best_count, best_score = 2, -np.inf
    for number in range(2, min(_MAX_CLUSTERS, len(data) - 1) + 1):
        labels, centers = _k_means(data, number, random)
        within = float(((data - centers[labels]) ** 2).sum())
        sizes = np.bincount(labels, minlength=number)
        between = float((sizes[:, None] * (centers - data.mean(axis=0)) ** 2).sum())
        # Without the lower limit, rows that are all equal to their centers would divide by zero.
        score = between / max(within, 1e-12) * (len(data) - number) / (number - 1)
        if score > best_score:
            best_count, best_score = number, score
    return best_count


def _k_means(
    data: Floats, cluster_count: int, random: np.random.Generator
) -> tuple[NDArray[np.intp], Floats]:
    """Run Lloyd's algorithm with k-means++ initialization, and return labels and centers."""
    centers = _draw_initial_centers(data, cluster_count, random)
    labels = np.zeros(len(data), dtype=np.intp)
    squares = (data**2).sum(axis=1)[:, None]
    for _ in range(_MAX_ITERATIONS):
        # Expanding (x - c)^2 requires one matrix product instead of an array of shape (rows,
        # clusters, columns).
        distances = (squares - 2 * data @ centers.T) + (centers**2).sum(axis=1)
        nearest = distances.argmin(axis=1)
        means = _compute_cluster_means(data, nearest, centers)
        is_converged = np.array_equal(nearest, labels) and np.allclose(means, centers)
        labels, centers = nearest, means
        if is_converged:
            break
    return labels, centers


def _compute_cluster_means(data: Floats, labels: NDArray[np.intp], centers: Floats) -> Floats:
    """Return the mean of each cluster; the center of an empty cluster does not change."""
    means = centers.copy()
    for label in range(len(centers)):
        members = labels == label
        if members.any():
            means[label] = data[members].mean(axis=0)
    return means


def _draw_initial_centers(data: Floats, cluster_count: int, random: np.random.Generator) -> Floats:
    """Draw k-means++ centers, weighted by the squared distance to the nearest center."""
    centers = [data[random.integers(len(data))]]
    nearest = ((data - centers[0]) ** 2).sum(axis=1)
    while len(centers) < cluster_count:
        total = nearest.sum()
        if total > 0:
            index = int(random.choice(len(data), p=nearest / total))
        else:
            # All rows are equal to a center, so all weights are zero.
            index = int(random.integers(len(data)))
        centers.append(data[index])
        nearest = np.minimum(nearest, ((data - centers[-1]) ** 2).sum(axis=1))
    return np.stack(centers)


def _project_to_plane(data: Floats) -> tuple[Floats, tuple[float, float]]:
    """Project rows onto the first two principal components, with deterministic signs."""
    # eigh returns ascending eigenvalues, and eigenvectors with arbitrary signs. The component with
    # the largest magnitude is made positive, so that repeated plots look the same.
    values, vectors = np.linalg.eigh(data.T @ data / len(data))
    axes = vectors[:, ::-1][:, :2]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]])
    shares = values[::-1][:2] / max(values.sum(), 1e-12)
    return data @ axes, (float(shares[0]), float(shares[1]))
