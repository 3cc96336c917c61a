"""Clusters of rows: k-means on the scaled features of the sample, and a plane to look at them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from featurestore.errors import StatisticsNotFound
from featurestore.statistics.accumulator import StatisticsState
from featurestore.statistics.exactsum import Floats
from featurestore.statistics.kinds import correlated_columns
from featurestore.statistics.values import measured_values

_MOST_ROWS, _MOST_VALUES = 20_000, 2_000_000
_TRIED_ROWS = 4_000
_MOST_CLUSTERS = 8
_MOST_MISSING = 0.3


@dataclass(frozen=True)
class Clusters:
    """Clusters of sampled rows.

    ``labels`` (rows,), ``centres`` (clusters, columns) in standard deviations from the mean, ``plane`` (rows, 2):
    the two principal components, with the share of variance that each explains. ``left_out`` are columns that
    are constant or mostly missing; rows with any other missing value are left out, too.
    """

    columns: tuple[str, ...]
    labels: NDArray[np.int64]
    centres: Floats
    plane: Floats
    explained: tuple[float, float]
    left_out: tuple[str, ...]


def cluster_rows(state: StatisticsState) -> pa.RecordBatch:
    """Return the rows that clusters are made of: the numeric features of at most 20,000 of the sample's rows."""
    names = [each.name for each in correlated_columns(state.columns)]
    state.sample.compact()
    most = max(min(_MOST_ROWS, _MOST_VALUES // max(len(names), 1)), 1)
    return state.sample.rows().select(names).slice(0, most)


def rows_to_bytes(rows: pa.RecordBatch) -> bytes:
    """Return rows as bytes that ``rows_from_bytes`` reads: an Arrow stream, LZ4."""
    sink = pa.BufferOutputStream()
    # A slice would be written whole.
    whole = rows.take(pa.array(np.arange(rows.num_rows)))
    with pa.ipc.new_stream(
        sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")
    ) as writer:
        writer.write_batch(whole)
    return bytes(sink.getvalue())


def rows_from_bytes(data: bytes) -> pa.RecordBatch:
    """Return the rows that ``rows_to_bytes`` wrote."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_next_batch()


def find_clusters(
    given: StatisticsState | pa.RecordBatch, *, clusters: int | None = None, seed: int = 0
) -> Clusters:
    """Return clusters of the rows of a sample, the largest first.

    Args:
        given: A state of statistics, or the rows that ``cluster_rows`` took of one.
        clusters: How many; None takes the number from 2 to 8 with the best ratio of variance between to within
            (Calinski and Harabasz).
        seed: Seed of the first centres.

    Raises:
        StatisticsNotFound: There are no two numeric features with values to look at.
    """
    columns, left_out, data = _scaled(
        cluster_rows(given) if isinstance(given, StatisticsState) else given
    )
    if len(columns) < 2 or len(data) < 3:
        raise StatisticsNotFound(
            f"Clusters need two numeric features that vary, with values in the same rows; there are {len(columns)} "
            f"in {len(data)} rows."
        )
    random = np.random.default_rng(seed)
    wanted = clusters or _best_number(data[:_TRIED_ROWS], random)
    labels, centres = _k_means(data, min(wanted, len(data)), random)
    order = np.argsort(-np.bincount(labels, minlength=len(centres)), kind="stable")
    labels = np.argsort(order)[labels]
    plane, explained = _plane(data)
    return Clusters(columns, labels.astype(np.int64), centres[order], plane, explained, left_out)


def _scaled(rows: pa.RecordBatch) -> tuple[tuple[str, ...], tuple[str, ...], Floats]:
    """Return the usable columns, those left out, and complete rows scaled to mean 0 and deviation 1."""
    names, left_out, found = [], [], []
    for name in rows.schema.names:
        values = measured_values(rows.column(name))
        finite = _near_one(values.finite.astype(np.float64))
        if (
            not len(finite)
            or len(finite) < rows.num_rows * (1 - _MOST_MISSING)
            or np.ptp(finite) == 0
        ):
            left_out.append(name)
            continue
        dense = np.full(rows.num_rows, np.nan)
        dense[slice(None) if values.present is None else values.present] = finite
        names.append(name)
        found.append(dense)
    data = np.stack(found, axis=1) if found else np.empty((0, 0))
    data = data[~np.isnan(data).any(axis=1)]
    if len(data):
        deviation = data.std(axis=0)
        data = (data - data.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    return tuple(names), tuple(left_out), data


def _near_one(values: Floats) -> Floats:
    """Return values divided by a power of two, which is exact, so that no square of them leaves float64."""
    largest = float(np.abs(values).max(initial=0.0))
    return np.asarray(np.ldexp(values, -int(np.frexp(largest)[1])))


def _best_number(data: Floats, random: np.random.Generator) -> int:
    scores = {}
    for number in range(2, min(_MOST_CLUSTERS, len(data) - 1) + 1):
        labels, centres = _k_means(data, number, random)
        within = float(((data - centres[labels]) ** 2).sum())
        sizes = np.bincount(labels, minlength=number)
        between = float((sizes[:, None] * (centres - data.mean(axis=0)) ** 2).sum())
        scores[number] = between / max(within, 1e-12) * (len(data) - number) / (number - 1)
    return max(scores, key=lambda number: scores[number], default=2)


def _k_means(
    data: Floats, number: int, random: np.random.Generator
) -> tuple[NDArray[np.intp], Floats]:
    """Return labels and centres: Lloyd's steps from k-means++ centres."""
    centres = _first_centres(data, number, random)
    labels = np.zeros(len(data), dtype=np.intp)
    for _ in range(100):
        distances = ((data**2).sum(axis=1)[:, None] - 2 * data @ centres.T) + (centres**2).sum(
            axis=1
        )
        found = distances.argmin(axis=1)
        moved = np.stack(
            [
                data[found == each].mean(axis=0) if (found == each).any() else centres[each]
                for each in range(number)
            ]
        )
        done = np.array_equal(found, labels) and np.allclose(moved, centres)
        labels, centres = found, moved
        if done:
            break
    return labels, centres


def _first_centres(data: Floats, number: int, random: np.random.Generator) -> Floats:
    chosen = [data[random.integers(len(data))]]
    nearest = ((data - chosen[0]) ** 2).sum(axis=1)
    while len(chosen) < number:
        total = nearest.sum()
        index = (
            random.choice(len(data), p=nearest / total) if total > 0 else random.integers(len(data))
        )
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
