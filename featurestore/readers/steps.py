"""What is read at once: ranges of steps of one worker, and the rows that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featurestore.readers.order import EpochOrder, ReaderOrder, Rows

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class WorkerEpoch:
    """One worker's part of one epoch."""

    epoch: EpochOrder
    worker: int
    workers: int

    @property
    def order(self) -> ReaderOrder:
        """The order that the epoch is of."""
        return self.epoch.order

    @property
    def batch_rows(self) -> int:
        """Rows of one step of this worker."""
        return self.order.worker_batch(self.workers)

    @property
    def lanes(self) -> range:
        """The lanes that this worker owns."""
        return self.order.worker_lanes(self.worker, self.workers)


@dataclass(frozen=True)
class StepRange:
    """Steps ``[start, stop)`` of a worker's epoch, read at once."""

    part: WorkerEpoch
    start: int
    stop: int

    @property
    def weighted(self) -> bool:
        """Whether batches come with weights: 0 for padding rows."""
        return self.part.order.remainder == "pad"

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.stop - self.start

    @property
    def row_count(self) -> int:
        """Number of rows, padding included."""
        return self.steps * self.part.batch_rows

    def canonical_ranges(self) -> tuple[Rows, Rows]:
        """Return the ranges of canonical rows of the steps when nothing is shuffled.

        None beyond the last row.
        """
        order, size = self.part.order, self.part.batch_rows
        steps = np.arange(self.start, self.stop, dtype=np.int64)
        starts = steps * order.global_batch_size + self.part.worker * size
        if self.part.workers == 1:
            # The steps of a single worker lie one after the other.
            starts, size = starts[:1], size * self.steps
        starts = np.minimum(starts, order.rows)
        return starts, np.minimum(starts + size, order.rows)

    def rows(self) -> Rows:
        """Return the canonical rows, one step after the other."""
        part = self.part
        batches = part.epoch.batches(
            self.start, self.stop, worker=part.worker, workers=part.workers
        )
        return batches.reshape(-1)


class StepRanges(Sequence[StepRange]):
    """The ranges of some epochs: one step first, then more and more, up to ``most`` steps."""

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
        self._order = order
        self._worker, self._workers = worker, workers
        self._start_epoch = start_epoch
        total = order.steps_per_epoch
        self._first = list(pairwise(_growing_edges(start_step, total, most=most)))
        self._later = list(pairwise([*range(0, total, most), total]))
        self._count = 0
        if epochs > 0:
            self._count = len(self._first) + (epochs - 1) * len(self._later)
        self._parts = {start_epoch: WorkerEpoch(order.epoch(start_epoch), worker, workers)}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._count:
            raise IndexError(index)
        if index < len(self._first):
            start, stop = self._first[index]
            return StepRange(self._part(self._start_epoch), start, stop)
        epoch, index = divmod(index - len(self._first), len(self._later))
        start, stop = self._later[index]
        return StepRange(self._part(self._start_epoch + 1 + epoch), start, stop)

    def _part(self, number: int) -> WorkerEpoch:
        known = self._parts.get(number)
        if known is None:
            known = WorkerEpoch(self._order.epoch(number), self._worker, self._workers)
            # It holds the epoch's permutation of blocks; the one before may still be read by
            # another thread.
            recent = {n: part for n, part in self._parts.copy().items() if n >= number - 1}
            self._parts = {**recent, number: known}
        return known


def _growing_edges(start: int, stop: int, *, most: int) -> list[int]:
    """Return ``start``, steps at growing distances of up to ``most``, and ``stop``."""
    edges, distance = [start], 1
    while edges[-1] < stop:
        edges.append(min(stop, edges[-1] + distance))
        distance = min(2 * distance, most)
    return edges


class Blocks(Protocol):
    """Reads ranges of steps in the order in which they come."""

    def read(self, steps: StepRange) -> Arrays:
        """Return the columns as (steps * batch, ...)."""
        ...
