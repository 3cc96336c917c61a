"""Clusters of rows: k-means on the scaled features of the sample, and a plane to look at them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from featurestore.errors import StatisticsNotFound
from featurestore.statistics.accumulator import StatisticsState
from featurestore.statistics.codec import batch_to_bytes
from featurestore.statistics.exactsum import Floats
from featurestore.statistics.kinds import correlated_columns
from featurestore.statistics.values import Values, measured_values

_MOST_ROWS, _MOST_VALUES = 20_000, 2_000_000
_TRIED_ROWS = 4_000
_MOST_CLUSTERS = 8
_MOST_STEPS = 100
_MOST_MISSING = 0.3


@dataclass(frozen=True)
class Clusters:
    """Clusters of sampled rows.

    ``labels`` (rows,), ``centers`` (clusters, columns) in standard deviations from the mean,
    ``plane`` (rows, 2): the two principal components, with the share of variance that each
    explains. ``left_out`` are columns that are constant or mostly missing; rows with any other
    missing value are left out, too.
    """

    columns: tuple[str, ...]
    labels: NDArray[np.int64]
    centers: Floats
    plane: Floats
    explained: tuple[float, float]
    left_out: tuple[str, ...]


def cluster_rows(state: StatisticsState) -> pa.RecordBatch:
    """Return the rows that clusters are made of.

    The numeric features of at most 20,000 of the sample's rows.
    """
    names = [each.name for each in correlated_columns(state.columns)]
    state.sample.compact()
    most = max(min(_MOST_ROWS, _MOST_VALUES // max(len(names), 1)), 1)
    return state.sample.rows().select(names).slice(0, most)


def rows_to_bytes(rows: pa.RecordBatch) -> bytes:
    """Return rows as bytes that ``rows_from_bytes`` reads: an Arrow stream."""
    return bytes(batch_to_bytes(rows))


def rows_from_bytes(data: bytes) -> pa.RecordBatch:
    """Return the rows that ``rows_to_bytes`` wrote."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_next_batch()


def find_clusters(
    sample: StatisticsState | pa.RecordBatch, *, clusters: int | None = None, seed: int = 0
) -> Clusters:
    """Return clusters of the rows of a sample, the largest first.

    Args:
        sample: A state of statistics, or the rows that ``cluster_rows`` took of one.
        clusters: How many; None takes the number from 2 to 8 with the best ratio of variance
            between to within (Calinski and Harabasz).
        seed: Seed of the first centers.

    Raises:
        StatisticsNotFound: There are no two numeric features with values to look at.
    """
    if isinstance(sample, StatisticsState):
        sample = cluster_rows(sample)
    columns, left_out, data = _scaled(sample)
    if len(columns) < 2 or len(data) < 3:
        raise StatisticsNotFound(
            "Clusters need two numeric features that vary, with values in the same rows; "
            f"there are {len(columns)} in {len(data)} rows."
        )
    random = np.random.default_rng(seed)
    wanted = clusters or _best_number(data[:_TRIED_ROWS], random)
    labels, centers = _k_means(data, min(wanted, len(data)), random)
    order = np.argsort(-np.bincount(labels, minlength=len(centers)), kind="stable")
    labels = np.argsort(order)[labels]
    plane, explained = _plane(data)
    return Clusters(columns, labels.astype(np.int64), centers[order], plane, explained, left_out)


def _scaled(rows: pa.RecordBatch) -> tuple[tuple[str, ...], tuple[str, ...], Floats]:
    """Return the usable columns, those left out, and complete rows.

    The rows are scaled to mean 0 and deviation 1.
    """
    names, left_out, columns = [], [], []
    for name in rows.schema.names:
        column = _scalable(measured_values(rows.column(name)), rows.num_rows)
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


def _scalable(values: Values, rows: int) -> Floats | None:
    """Return a column with NaN where it has no value; None if it is constant or mostly missing."""
    finite = _near_one(values.finite.astype(np.float64))
    if not len(finite) or len(finite) < rows * (1 - _MOST_MISSING) or np.ptp(finite) == 0:
        return None
    if values.present is None:
        return finite
    column = np.full(rows, np.nan)
    column[values.present] = finite
    return column


def _near_one(values: Floats) -> Floats:
    """Return values divided by a power of two, so that no square of them leaves float64.

    The division is exact.
    """
    largest = float(np.abs(values).max(initial=0.0))
    return np.asarray(np.ldexp(values, -int(np.frexp(largest)[1])))


def _best_number(data: Floats, random: np.random.Generator) -> int:
    """Return the number of clusters with the highest index of Calinski and Harabasz."""
    best, best_score = 2, -np.inf
    for number in range(2, min(_MOST_CLUSTERS, len(data) - 1) + 1):
        labels, centers = _k_means(data, number, random)
        within = float(((data - centers[labels]) ** 2).sum())
        sizes = np.bincount(labels, minlength=number)
        between = float((sizes[:, None] * (centers - data.mean(axis=0)) ** 2).sum())
        score = between / max(within, 1e-12) * (len(data) - number) / (number - 1)
        if score > best_score:
            best, best_score = number, score
    return best


def _k_means(
    data: Floats, number: int, random: np.random.Generator
) -> tuple[NDArray[np.intp], Floats]:
    """Return labels and centers: Lloyd's steps from k-means++ centers."""
    centers = _first_centers(data, number, random)
    labels = np.zeros(len(data), dtype=np.intp)
    squares = (data**2).sum(axis=1)[:, None]
    for _ in range(_MOST_STEPS):
        distances = (squares - 2 * data @ centers.T) + (centers**2).sum(axis=1)
        nearest = distances.argmin(axis=1)
        moved = _means(data, nearest, centers)
        done = np.array_equal(nearest, labels) and np.allclose(moved, centers)
        labels, centers = nearest, moved
        if done:
            break
    return labels, centers


def _means(data: Floats, labels: NDArray[np.intp], centers: Floats) -> Floats:
    """Return the mean of each cluster; one without rows stays where it is."""
    moved = centers.copy()
    for number in range(len(centers)):
        members = labels == number
        if members.any():
            moved[number] = data[members].mean(axis=0)
    return moved


def _first_centers(data: Floats, number: int, random: np.random.Generator) -> Floats:
    """Return rows far from each other: each is drawn by its squared distance from those before."""
    chosen = [data[random.integers(len(data))]]
    nearest = ((data - chosen[0]) ** 2).sum(axis=1)
    while len(chosen) < number:
        total = nearest.sum()
        if total > 0:
            index = random.choice(len(data), p=nearest / total)
        else:
            index = random.integers(len(data))
        chosen.append(data[index])
        nearest = np.minimum(nearest, ((data - chosen[-1]) ** 2).sum(axis=1))
    return np.stack(chosen)


def _plane(data: Floats) -> tuple[Floats, tuple[float, float]]:
    """Return the rows in the plane of the two greatest principal components, their signs fixed."""
    values, vectors = np.linalg.eigh(data.T @ data / len(data))
    axes = vectors[:, ::-1][:, :2]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]])
    shares = values[::-1][:2] / max(values.sum(), 1e-12)
    return data @ axes, (float(shares[0]), float(shares[1]))
