"""Step ranges that a worker reads together, and the assembly of their batches.

Assembly fills or masks nulls, adds padding rows with their weights, and packs the columns of each
type into one array for the transfer to TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featurestore.arrow.batches import is_item_rows
from featurestore.errors import NullsInColumns
from featurestore.model.runtime import ForkSafeLock
from featurestore.plugins.format import Plane
from featurestore.readers.columns import (
    PADDING_WEIGHT,
    NumpyArray,
    NumpyDtype,
    SelectedColumn,
    Tensor,
    Values,
)
from featurestore.readers.order import PADDING, EpochOrder, ReaderOrder, Rows

Arrays = dict[str, NumpyArray]
_CACHED_ITERATIONS = 4


@dataclass(frozen=True)
class WorkerEpoch:
    """One worker's part of one epoch."""

    epoch: EpochOrder
    worker: int
    workers: int

    @property
    def order(self) -> ReaderOrder:
        """The order of the reader."""
        return self.epoch.order

    @property
    def batch_rows(self) -> int:
        """Number of rows that this worker reads per step."""
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
    def has_padding_weights(self) -> bool:
        """Whether batches contain weights that are 0 for padding rows."""
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
        """Return the canonical row ranges of unshuffled steps, without padding."""
        order, size = self.worker_epoch.order, self.worker_epoch.batch_rows
        steps = np.arange(self.start, self.stop, dtype=np.int64)
        starts = steps * order.global_batch_size + self.worker_epoch.worker * size
        if self.worker_epoch.workers == 1:
            # The steps of a single worker are consecutive.
            starts, size = starts[:1], size * self.steps
        # Ranges after the last row are empty; these rows are padding.
        starts = np.minimum(starts, order.rows)
        return starts, np.minimum(starts + size, order.rows)

    def rows(self) -> Rows:
        """Return the canonical row numbers in step order."""
        worker_epoch = self.worker_epoch
        batches = worker_epoch.epoch.batches(
            self.start, self.stop, worker=worker_epoch.worker, workers=worker_epoch.workers
        )
        return batches.reshape(-1)


@dataclass(frozen=True)
class WorkerSteps:
    """The steps of one worker in several epochs, of which the first may start at ``start_step``."""

    epochs: int = 1
    start_epoch: int = 0
    start_step: int = 0
    worker: int = 0
    workers: int = 1


class StepRanges(Sequence[StepRange]):
    """The step ranges of several epochs.

    The first range has one step; later ranges grow up to ``max_steps_per_range`` steps. ``steps``
    is the total number of steps; None reads to the end of the last epoch.
    """

    def __init__(
        self,
        order: ReaderOrder,
        worker_steps: WorkerSteps,
        *,
        max_steps_per_range: int,
        steps: int | None = None,
    ) -> None:
        self._worker, self._workers = worker_steps.worker, worker_steps.workers
        order.check_workers(self._worker, self._workers)
        self._order = order
        self._start_epoch, start_step = worker_steps.start_epoch, worker_steps.start_step
        total = order.steps_per_epoch
        if steps is None:
            steps = worker_steps.epochs * total - start_step
        stop = start_step + max(0, steps)
        self._first = list(
            pairwise(
                _growing_range_bounds(start_step, min(stop, total), max_steps=max_steps_per_range)
            )
        )
        self._later = list(pairwise([*range(0, total, max_steps_per_range), total]))
        # Steps of a partial last epoch.
        complete_epochs, last_steps = divmod(max(0, stop - total), max(1, total))
        self._last = list(pairwise([*range(0, last_steps, max_steps_per_range), last_steps]))
        self._last_epoch = complete_epochs
        self._count = len(self._first) + complete_epochs * len(self._later) + len(self._last)
        first_epoch = WorkerEpoch(order.epoch(self._start_epoch), self._worker, self._workers)
        self._worker_epochs = {self._start_epoch: first_epoch}

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
        """Return an epoch of this worker from a cache."""
        worker_epoch = self._worker_epochs.get(number)
        if worker_epoch is None:
            worker_epoch = WorkerEpoch(self._order.epoch(number), self._worker, self._workers)
            # Drop old epochs and their block permutations. Keep the previous epoch, since another
            # thread may still read it.
            recent_epochs = {
                epoch: recent_epoch
                for epoch, recent_epoch in self._worker_epochs.copy().items()
                if epoch >= number - 1
            }
            # Replace the dict instead of changing it, since other threads read it without a lock.
            self._worker_epochs = {**recent_epochs, number: worker_epoch}
        return worker_epoch


def _growing_range_bounds(start: int, stop: int, *, max_steps: int) -> list[int]:
    """Return bounds of ranges from ``start`` to ``stop`` that grow to ``max_steps`` steps."""
    # A short first range yields the first batch early.
    bounds, distance = [start], 1
    while bounds[-1] < stop:
        bounds.append(min(stop, bounds[-1] + distance))
        distance = min(2 * distance, max_steps)
    return bounds


class Iterations:
    """The step ranges of each iteration over a dataset. Thread-safe.

    An iteration starts where the previous one ended, so each iteration reads new epochs.
    """

    def __init__(self, ranges_of: Callable[[int], StepRanges]) -> None:
        self._ranges_of = ranges_of
        self._started = 0
        # Raise errors about invalid arguments here rather than at the first step.
        self._ranges = {0: ranges_of(0)}
        self._lock = ForkSafeLock()

    def start_iteration(self) -> int:
        """Start a new iteration and return its number."""
        with self._lock:
            self._started += 1
            return self._started - 1

    def __getitem__(self, iteration: int) -> StepRanges:
        with self._lock:
            ranges = self._ranges.get(iteration)
            if ranges is None:
                ranges = self._ranges[iteration] = self._ranges_of(iteration)
                # A thread that still reads an evicted iteration computes its ranges again.
                while len(self._ranges) > _CACHED_ITERATIONS:
                    self._ranges.pop(next(iter(self._ranges)))
            return ranges


class Blocks(Protocol):
    """A reader of step ranges, which are requested in order."""

    def read(self, steps: StepRange) -> Arrays:
        """Return the columns of a step range as arrays of shape (steps * batch, ...)."""
        ...


@dataclass(frozen=True)
class Packing:
    """The assignment of batch outputs to packed arrays.

    Args:
        columns: Columns of the reader.
        has_padding_weights: Whether batches have padding weights.
        batch: Rows of a batch.
    """

    columns: tuple[SelectedColumn, ...]
    has_padding_weights: bool
    batch: int

    @cached_property
    def outputs(self) -> dict[str, tuple[NumpyDtype, tuple[int, ...]]]:
        """Numpy type and shape of one value of each output, in order."""
        result: dict[str, tuple[NumpyDtype, tuple[int, ...]]] = {}
        for column in self.columns:
            result[column.name] = column.dtype, column.shape
            if column.masked:
                result[column.mask] = np.dtype(np.bool_), ()
        if self.has_padding_weights:
            result[PADDING_WEIGHT] = np.dtype(np.float32), ()
        return result

    @cached_property
    def groups(self) -> dict[NumpyDtype, list[str]]:
        """The names of the outputs that are packed into one array, by type."""
        result: dict[NumpyDtype, list[str]] = {}
        for name, (dtype, shape) in self.outputs.items():
            if dtype.kind != "O" and not shape:
                result.setdefault(dtype, []).append(name)
        return result

    @cached_property
    def ungrouped(self) -> list[str]:
        """The outputs that are not packed: strings, lists and matrices."""
        grouped_names = set(chain.from_iterable(self.groups.values()))
        return [name for name in self.outputs if name not in grouped_names]

    @cached_property
    def planes(self) -> list[list[Plane | None]]:
        """The file plane of each output in each group; None for weights, which are not stored."""
        planes_by_output: dict[str, Plane] = {}
        for column in self.columns:
            if column.masked:
                planes_by_output[column.mask] = Plane(column.name, presence=True)
        for column in self.columns:
            planes_by_output[column.name] = Plane(column.name)
        return [list(map(planes_by_output.get, names)) for names in self.groups.values()]

    def rows_by_output(self, arrays: Sequence[NumpyArray]) -> Arrays:
        """Return the values of each packed output: one row of its group's array."""
        rows: Arrays = {}
        for names, array in zip(self.groups.values(), arrays, strict=True):
            rows.update(zip(names, array, strict=True))
        return rows

    def pack(self, group_arrays: list[NumpyArray], arrays: Arrays) -> list[NumpyArray]:
        """Return the arrays to transfer.

        Group arrays of shape (columns, steps, batch) come first, then the other outputs with shape
        (steps, batch, ...).
        """
        packed_arrays = [array.reshape(len(array), -1, self.batch) for array in group_arrays]
        for name in self.ungrouped:
            packed_arrays.append(arrays[name].reshape(-1, self.batch, *arrays[name].shape[1:]))
        return packed_arrays

    def unpack(
        self, tensors: Sequence[Tensor], split: Callable[[Tensor], Sequence[Tensor]]
    ) -> dict[str, Tensor]:
        """Return the outputs by name, in order; ``split`` splits a group into its columns."""
        outputs: dict[str, Tensor] = {}
        for names, tensor in zip(self.groups.values(), tensors, strict=False):
            outputs.update(zip(names, split(tensor), strict=True))
        outputs.update(zip(self.ungrouped, tensors[len(self.groups) :], strict=True))
        return {name: outputs[name] for name in self.outputs}


def padding_values(column: SelectedColumn, rows: int) -> Values:
    """Return padding for a column: zeros or empty bytes, marked as missing."""
    values = np.full((rows, *column.shape), column.zero, dtype=column.dtype)
    if not column.masked:
        return values, None
    return values, np.zeros(rows, dtype=np.bool_)


def padding_weights(rows: Rows) -> npt.NDArray[np.float32]:
    """Return 1 for rows and 0 for padding.

    >>> padding_weights(np.array([5, -1])).tolist()
    [1.0, 0.0]
    """
    return (rows != PADDING).astype(np.float32)


def write_values(target: Values, start: int, source: Values) -> None:
    """Write values into a column, beginning at row ``start``."""
    values, present = target
    stop = start + len(source[0])
    values[start:stop] = source[0]
    if present is not None:
        present[start:stop] = True if source[1] is None else source[1]


def fill_nulls(column: SelectedColumn, values: Values, *, in_place: bool = False) -> Values:
    """Return the values with nulls replaced, and the mask of non-null rows."""
    array, present = values
    if present is None or present.all():
        return array, present
    if column.fill is not None and not is_item_rows(array):
        array = array if in_place else array.copy()
        array[~present] = column.fill
    elif column.fill is None and not column.masked:
        raise NullsInColumns(
            f"Column {column.name!r} has nulls, but the manifest lists none.",
            hint="TrainingDataset.open(path).verify() re-reads everything",
        )
    return array, present


def add_masks(columns: tuple[SelectedColumn, ...], values: Mapping[str, Values]) -> Arrays:
    """Return the column arrays by name, and a ``<name>_present`` mask for each masked column."""
    arrays: Arrays = {}
    for column in columns:
        array, present = values[column.name]
        arrays[column.name] = array
        if column.masked:
            if present is None:
                present = np.ones(len(array), dtype=np.bool_)
            arrays[column.mask] = present
    return arrays
