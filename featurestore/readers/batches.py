"""The batches of one worker: ranges of steps that are read together, and their assembly.

Assembly fills or masks nulls, adds padding and its weights, and packs columns of one type into one
array for the transfer to TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from threading import Lock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featurestore.arrow.batches import is_item_rows
from featurestore.errors import NullsInColumns
from featurestore.plugins.format import Plane
from featurestore.readers.columns import PADDING_WEIGHT, PRESENT, SelectedColumn, Values
from featurestore.readers.order import PADDING, EpochOrder, ReaderOrder, Rows

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


@dataclass(frozen=True)
class Packing:
    """The assignment of the outputs of a batch to packed arrays.

    Args:
        columns: Columns of the reader.
        weighted: Whether batches have padding weights.
        batch: Rows of a batch.
    """

    columns: tuple[SelectedColumn, ...]
    weighted: bool
    batch: int

    @cached_property
    def outputs(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Numpy type and shape of one value of each output, in order."""
        result: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        for column in self.columns:
            result[column.name] = column.dtype, column.shape
            if column.masked:
                result[column.name + PRESENT] = np.dtype(np.bool_), ()
        if self.weighted:
            result[PADDING_WEIGHT] = np.dtype(np.float32), ()
        return result

    @cached_property
    def groups(self) -> dict[np.dtype[Any], list[str]]:
        """The outputs that are packed together, by type."""
        result: dict[np.dtype[Any], list[str]] = {}
        for name, (dtype, shape) in self.outputs.items():
            if dtype.kind != "O" and not shape:
                result.setdefault(dtype, []).append(name)
        return result

    @cached_property
    def ungrouped(self) -> list[str]:
        """The other outputs: strings, lists, matrices."""
        grouped_names = set(chain.from_iterable(self.groups.values()))
        return [name for name in self.outputs if name not in grouped_names]

    @cached_property
    def planes(self) -> list[list[Plane | None]]:
        """The planes of the rows of the groups' arrays; None for weights, which files do not have."""
        planes_by_output: dict[str, Plane] = {}
        for column in self.columns:
            if column.masked:
                planes_by_output[column.name + PRESENT] = Plane(column.name, presence=True)
        for column in self.columns:
            planes_by_output[column.name] = Plane(column.name)
        return [list(map(planes_by_output.get, names)) for names in self.groups.values()]

    def rows_by_output(self, arrays: Sequence[npt.NDArray[Any]]) -> Arrays:
        """Return the rows of the groups' arrays by output."""
        rows: Arrays = {}
        for names, array in zip(self.groups.values(), arrays, strict=True):
            rows.update(zip(names, array, strict=True))
        return rows

    def pack(self, group_arrays: list[npt.NDArray[Any]], arrays: Arrays) -> list[npt.NDArray[Any]]:
        """Return the arrays to transfer.

        Groups as (columns, steps, batch), then the other outputs as (steps, batch, ...).
        """
        packed_arrays = [array.reshape(len(array), -1, self.batch) for array in group_arrays]
        for name in self.ungrouped:
            packed_arrays.append(arrays[name].reshape(-1, self.batch, *arrays[name].shape[1:]))
        return packed_arrays

    def unpack(
        self, tensors: Sequence[Any], split: Callable[[Any], Sequence[Any]]
    ) -> dict[str, Any]:
        """Return the outputs in order; ``split`` separates the columns of a group."""
        outputs: dict[str, Any] = {}
        for names, tensor in zip(self.groups.values(), tensors, strict=False):
            outputs.update(zip(names, split(tensor), strict=True))
        outputs.update(zip(self.ungrouped, tensors[len(self.groups) :], strict=True))
        return {name: outputs[name] for name in self.outputs}


def padding_values(column: SelectedColumn, rows: int) -> Values:
    """Return a column of padding: zeros or empty bytes, not present."""
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
    """Write values into a column from row ``start`` on."""
    values, present = target
    stop = start + len(source[0])
    values[start:stop] = source[0]
    if present is not None:
        present[start:stop] = True if source[1] is None else source[1]


def fill_nulls(column: SelectedColumn, values: Values, *, in_place: bool = False) -> Values:
    """Return values with nulls filled, and the mask of present rows."""
    array, present = values
    if present is None or present.all():
        return array, present
    if column.fill is not None and not is_item_rows(array):
        array = array if in_place else array.copy()
        array[~present] = column.fill
    elif column.fill is None and not column.masked:
        raise NullsInColumns(
            f"Column {column.name!r} has nulls, but its manifest lists none.",
            hint="TrainingDataset.open(path).verify() re-reads everything",
        )
    return array, present


def with_masks(columns: tuple[SelectedColumn, ...], values: Mapping[str, Values]) -> Arrays:
    """Return the arrays of columns by name, with ``<name>_present`` for masked columns."""
    arrays: Arrays = {}
    for column in columns:
        array, present = values[column.name]
        arrays[column.name] = array
        if column.masked:
            if present is None:
                present = np.ones(len(array), dtype=np.bool_)
            arrays[column.name + PRESENT] = present
    return arrays
