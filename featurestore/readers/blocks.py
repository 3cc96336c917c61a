"""What is read at once: stretches of steps of one worker, and the form in which their columns come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featurestore.errors import NullsInColumns
from featurestore.readers.columns import Values
from featurestore.readers.order import PADDING, EpochOrder, ReaderOrder, Rows
from featurestore.readers.selection import PRESENT, SAMPLE_WEIGHT, SelectedColumn

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Share:
    """One worker's part of one epoch."""

    epoch: EpochOrder
    worker: int
    workers: int


@dataclass(frozen=True)
class Stretch:
    """Steps ``[start, stop)`` of a share, read at once."""

    share: Share
    start: int
    stop: int

    @property
    def weighted(self) -> bool:
        """Whether batches come with weights: 0 for padding rows."""
        return self.share.epoch.order.remainder == "pad"

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.stop - self.start

    def canonical_ranges(self) -> tuple[Rows, Rows]:
        """Return the ranges of canonical rows of the steps when nothing is shuffled; none beyond the last row."""
        order, size = (
            self.share.epoch.order,
            self.share.epoch.order.worker_batch(self.share.workers),
        )
        starts = (
            np.arange(self.start, self.stop, dtype=np.int64) * order.global_batch_size
            + self.share.worker * size
        )
        if self.share.workers == 1:
            starts, size = starts[:1], size * self.steps
        starts = np.minimum(starts, order.rows)
        return starts, np.minimum(starts + size, order.rows)

    def rows(self) -> Rows:
        """Return the canonical rows, one step after the other."""
        share = self.share
        return share.epoch.batches(
            self.start, self.stop, worker=share.worker, workers=share.workers
        ).reshape(-1)


class Stretches(Sequence[Stretch]):
    """The stretches of some epochs: one step first, then more and more, up to ``most``."""

    def __init__(
        self,
        order: ReaderOrder,
        epochs: int,
        *,
        worker: int,
        workers: int,
        start_epoch: int,
        start_step: int,
        most: int,
    ) -> None:
        order.check_workers(worker, workers)
        self._order, self._worker, self._workers, self._start_epoch = (
            order,
            worker,
            workers,
            start_epoch,
        )
        total = order.steps_per_epoch
        self._first = [start_step]
        steps = 1
        while self._first[-1] < total:
            self._first.append(min(total, self._first[-1] + steps))
            steps = min(2 * steps, most)
        self._later = [*range(0, total, most), total] if total else [0]
        self._count = (
            (len(self._first) - 1 + (epochs - 1) * (len(self._later) - 1)) if epochs > 0 else 0
        )
        self._shares: dict[int, Share] = {
            start_epoch: Share(order.epoch(start_epoch), worker, workers)
        }

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._count:
            raise IndexError(index)
        if index < len(self._first) - 1:
            return Stretch(
                self._share(self._start_epoch), self._first[index], self._first[index + 1]
            )
        epoch, piece = divmod(index - len(self._first) + 1, len(self._later) - 1)
        return Stretch(
            self._share(self._start_epoch + 1 + epoch), self._later[piece], self._later[piece + 1]
        )

    def _share(self, number: int) -> Share:
        known = self._shares.get(number)
        if known is None:
            known = Share(self._order.epoch(number), self._worker, self._workers)
            # A share holds the epoch's permutation of blocks; the one before may still be read by another thread.
            self._shares = {
                n: share for n, share in [*self._shares.items(), (number, known)] if n >= number - 1
            }
        return known


class Blocks(Protocol):
    """Reads stretches in the order in which they come."""

    def read(self, stretch: Stretch) -> Arrays:
        """Return the columns as (steps * batch, ...)."""
        ...


def empty(column: SelectedColumn, rows: int) -> Values:
    """Return a column of padding: zeros or empty texts, nothing present."""
    values = np.full((rows, *column.shape), column.zero, dtype=column.dtype)
    return values, np.zeros(rows, dtype=np.bool_) if column.masked else None


def put(target: Values, at: int, found: Values) -> None:
    """Write values into a column from row ``at`` on."""
    values, present = target
    count = len(found[0])
    values[at : at + count] = found[0]
    if present is not None:
        present[at : at + count] = True if found[1] is None else found[1]


def finish(column: SelectedColumn, values: Values, *, in_place: bool = False) -> Values:
    """Return values with nulls filled, and which rows are present."""
    array, present = values
    if present is not None and not present.all():
        if column.fill is None and not column.masked:
            raise NullsInColumns(
                f"Column {column.name!r} has nulls, the manifest knows of none.",
                hint="TrainingDataset.open(path).verify() re-reads everything",
            )
        if column.fill is not None:
            array = array if in_place else array.copy()
            array[~present] = column.fill
    return array, present


def named(columns: tuple[SelectedColumn, ...], values: Mapping[str, Values]) -> Arrays:
    """Return the columns under the names that readers yield: masked ones with ``<name>_present``."""
    result: Arrays = {}
    for column in columns:
        array, present = values[column.name]
        result[column.name] = array
        if column.masked:
            result[column.name + PRESENT] = (
                np.ones(len(array), dtype=np.bool_) if present is None else present
            )
    return result


def weights(rows: Rows) -> npt.NDArray[np.float32]:
    """Return 1 for rows and 0 for padding.

    >>> weights(np.array([5, -1])).tolist()
    [1.0, 0.0]
    """
    return (rows != PADDING).astype(np.float32)


def output_names(columns: tuple[SelectedColumn, ...], *, weighted: bool) -> list[str]:
    """Return the names of what a batch holds, in order."""
    names = [
        name for c in columns for name in ([c.name, c.name + PRESENT] if c.masked else [c.name])
    ]
    return [*names, SAMPLE_WEIGHT] if weighted else names
