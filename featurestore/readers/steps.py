"""What is read at once: ranges of steps of one worker, and the rows that they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featurestore.readers.order import EpochOrder, ReaderOrder, Rows

Arrays = dict[str, npt.NDArray[Any]]
_ITERATIONS_KEPT = 4


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
        return self.part.order.remainder != "drop"

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
    """The ranges of some epochs: one step first, then more and more, up to ``most`` steps.

    ``steps`` is how many there are in all; None: to the end of the last epoch.
    """

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
        steps: int | None = None,
    ) -> None:
        order.check_workers(worker, workers)
        self._order = order
        self._worker, self._workers = worker, workers
        self._start_epoch = start_epoch
        total = order.steps_per_epoch
        if steps is None:
            steps = epochs * total - start_step
        stop = start_step + max(0, steps)
        self._first = list(pairwise(_growing_edges(start_step, min(stop, total), most=most)))
        self._later = list(pairwise([*range(0, total, most), total]))
        # Steps of the last epoch, where it is not read to its end.
        whole, rest = divmod(max(0, stop - total), max(1, total))
        self._last = list(pairwise([*range(0, rest, most), rest]))
        self._last_epoch = whole
        self._count = len(self._first) + whole * len(self._later) + len(self._last)
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
        start, stop = (self._last if epoch == self._last_epoch else self._later)[index]
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


class Iterations:
    """What each iteration over a dataset reads: it goes on where the one before ended.

    So an iteration of whole epochs is followed by one of the next epochs. Serves many threads.
    """

    def __init__(self, ranges_of: Callable[[int], StepRanges]) -> None:
        self._ranges_of = ranges_of
        self._begun = 0
        # What is wrong with the arguments is said here and not in the first step.
        self._ranges = {0: ranges_of(0)}
        self._lock = Lock()

    def begin(self) -> int:
        """Return the number of an iteration that begins now."""
        with self._lock:
            self._begun += 1
            return self._begun - 1

    def __getitem__(self, iteration: int) -> StepRanges:
        with self._lock:
            known = self._ranges.get(iteration)
            if known is None:
                known = self._ranges[iteration] = self._ranges_of(iteration)
                while len(self._ranges) > _ITERATIONS_KEPT:
                    self._ranges.pop(next(iter(self._ranges)))
            return known


class Blocks(Protocol):
    """Reads ranges of steps in the order in which they come."""

    def read(self, steps: StepRange) -> Arrays:
        """Return the columns as (steps * batch, ...)."""
        ...
