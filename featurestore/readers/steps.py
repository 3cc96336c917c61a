"""Ranges of steps of one worker, which are read together, and their rows."""

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
_CACHED_ITERATIONS = 4


@dataclass(frozen=True)
class WorkerEpoch:
    """The share of one worker in one epoch."""

    epoch: EpochOrder
    worker: int
    workers: int

    @property
    def order(self) -> ReaderOrder:
        """The order of the reader."""
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
    """Steps ``[start, stop)`` of a worker's epoch, read together."""

    worker_epoch: WorkerEpoch
    start: int
    stop: int

    @property
    def weighted(self) -> bool:
        """Whether batches have padding weights: 0 for padding rows."""
        return self.worker_epoch.order.remainder != "drop"

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.stop - self.start

    @property
    def row_count(self) -> int:
        """Number of rows, padding included."""
        return self.steps * self.worker_epoch.batch_rows

    def canonical_ranges(self) -> tuple[Rows, Rows]:
        """Return the ranges of canonical rows of the steps without shuffling, up to the last row."""
        order, size = self.worker_epoch.order, self.worker_epoch.batch_rows
        steps = np.arange(self.start, self.stop, dtype=np.int64)
        starts = steps * order.global_batch_size + self.worker_epoch.worker * size
        if self.worker_epoch.workers == 1:
            # The steps of a single worker are consecutive.
            starts, size = starts[:1], size * self.steps
        starts = np.minimum(starts, order.rows)
        return starts, np.minimum(starts + size, order.rows)

    def rows(self) -> Rows:
        """Return the canonical rows in order of steps."""
        worker_epoch = self.worker_epoch
        batches = worker_epoch.epoch.batches(
            self.start, self.stop, worker=worker_epoch.worker, workers=worker_epoch.workers
        )
        return batches.reshape(-1)


class StepRanges(Sequence[StepRange]):
    """The ranges of some epochs: a first range of one step, then growing up to ``most`` steps.

    ``steps`` is the total number of steps; None reads to the end of the last epoch.
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
        # Steps of a partial last epoch.
        complete_epochs, last_steps = divmod(max(0, stop - total), max(1, total))
        self._last = list(pairwise([*range(0, last_steps, most), last_steps]))
        self._last_epoch = complete_epochs
        self._count = len(self._first) + complete_epochs * len(self._later) + len(self._last)
        self._worker_epochs = {start_epoch: WorkerEpoch(order.epoch(start_epoch), worker, workers)}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._count:
            raise IndexError(index)
        if index < len(self._first):
            start, stop = self._first[index]
            return StepRange(self._worker_epoch(self._start_epoch), start, stop)
        epoch, index = divmod(index - len(self._first), len(self._later))
        start, stop = (self._last if epoch == self._last_epoch else self._later)[index]
        return StepRange(self._worker_epoch(self._start_epoch + 1 + epoch), start, stop)

    def _worker_epoch(self, number: int) -> WorkerEpoch:
        worker_epoch = self._worker_epochs.get(number)
        if worker_epoch is None:
            worker_epoch = WorkerEpoch(self._order.epoch(number), self._worker, self._workers)
            # Drop old epochs with their permutations of blocks, but not the previous one, which
            # another thread may still read.
            recent_epochs = {
                epoch: recent_epoch
                for epoch, recent_epoch in self._worker_epochs.copy().items()
                if epoch >= number - 1
            }
            self._worker_epochs = {**recent_epochs, number: worker_epoch}
        return worker_epoch


def _growing_edges(start: int, stop: int, *, most: int) -> list[int]:
    """Return edges from ``start`` to ``stop`` at growing distances of up to ``most`` steps."""
    edges, distance = [start], 1
    while edges[-1] < stop:
        edges.append(min(stop, edges[-1] + distance))
        distance = min(2 * distance, most)
    return edges


class Iterations:
    """The step ranges of each iteration over a dataset. Thread-safe.

    An iteration continues at the end of the previous one, so each iteration reads new epochs.
    """

    def __init__(self, ranges_of: Callable[[int], StepRanges]) -> None:
        self._ranges_of = ranges_of
        self._started = 0
        # Invalid arguments raise here and not at the first step.
        self._ranges = {0: ranges_of(0)}
        self._lock = Lock()

    def begin(self) -> int:
        """Return the number of a new iteration."""
        with self._lock:
            self._started += 1
            return self._started - 1

    def __getitem__(self, iteration: int) -> StepRanges:
        with self._lock:
            ranges = self._ranges.get(iteration)
            if ranges is None:
                ranges = self._ranges[iteration] = self._ranges_of(iteration)
                while len(self._ranges) > _CACHED_ITERATIONS:
                    self._ranges.pop(next(iter(self._ranges)))
            return ranges


class Blocks(Protocol):
    """A reader of ranges of steps, called in their order."""

    def read(self, steps: StepRange) -> Arrays:
        """Return the columns as (steps * batch, ...)."""
        ...
