"""Positions of ``DataLoader`` worker processes, and the transfer of batches from them.

Steps are counted from epoch 0. An iteration ends at ``first`` plus the next multiple of ``steps``,
so a partial iteration is followed by complete ones.

A ``DataLoader`` either starts new workers for each iteration or keeps them. In both cases, a worker
starts each iteration once, so a counter per worker in shared memory identifies the iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from featurestore.errors import ManifestMismatch, ReaderConfigError, missing_extra
from featurestore.model.json_object import JsonMapping
from featurestore.readers.columns import NumpyArray, Ragged, Tensor
from featurestore.readers.order import ORDER_VERSION
from featurestore.readers.plan import ReadPlan
from featurestore.readers.prefetch import ALIGNMENT

# PyTorch is optional, and readers import it only here; their classes call ``require_torch``.
try:
    import torch
    from torch import distributed
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info
except ImportError:
    torch = distributed = get_worker_info = None
    DataLoader = IterableDataset = object

__all__ = ["DataLoader", "IterableDataset", "distributed", "get_worker_info", "torch"]


def require_torch() -> None:
    """Raise MissingExtra unless PyTorch is installed."""
    if torch is None:
        raise missing_extra("torch", "torch")


# The counters of workers are allocated before their number is known.
MAX_WORKERS = 128
# State keys that are not reader settings.
_POSITION_KEYS = ("order_version", "dataset", "manifest", "epoch", "step", "workers", "yielded")


@dataclass
class Iteration:
    """An iteration over steps ``[begin, end)``, of which a worker yields every ``workers``-th."""

    begin: int
    end: int
    worker: int
    workers: int
    yielded: int = 0


class LoaderPosition:
    """The step at which the next iteration starts.

    Args:
        start: The first step of the first iteration.
        first: A boundary of iterations.
        steps: Steps of a complete iteration.
    """

    def __init__(self, start: int, *, first: int, steps: int) -> None:
        self._first, self._steps = first, steps
        # In shared memory, because each worker process has a copy of this object.
        self._start = torch.tensor([start], dtype=torch.int64).share_memory_()
        # Number of started iterations by worker count and worker, since loaders with different
        # worker counts may read the same dataset alternately.
        counters = torch.zeros((MAX_WORKERS + 1, MAX_WORKERS), dtype=torch.int64)
        self._started = counters.share_memory_()

    def begin(self, worker: int, workers: int) -> Iteration:
        """Start and return the next iteration of a worker."""
        iteration = self.peek(worker, workers)
        # Each worker changes only its own counter, so no lock is needed.
        self._started[workers, worker] += 1
        return iteration

    def set(self, step: int) -> None:
        """Start the next iteration at a step."""
        self._start[0] = step
        self._started.zero_()

    def resume(self, step: int, worker: int, workers: int, *, yielded: int) -> Iteration:
        """Resume a worker's iteration that started at ``step``; every worker must call this."""
        self._start[0] = step
        self._started[torch.arange(len(self._started)) != workers] = 0
        self._started[workers, worker] = 1
        return Iteration(step, self.end_from(step), worker, workers, yielded)

    def restarted_at(self, step: int) -> LoaderPosition:
        """Return a new, independent position that starts at ``step``."""
        return LoaderPosition(step, first=self._first, steps=self._steps)

    def end_from(self, step: int) -> int:
        """Return the step at which an iteration that starts at ``step`` ends."""
        if not self._steps:
            return step
        return step + self._steps - (step - self._first) % self._steps

    def peek(self, worker: int, workers: int) -> Iteration:
        """Return the next iteration of a worker without starting it."""
        if workers > MAX_WORKERS:
            raise ReaderConfigError(
                f"A rank supports at most {MAX_WORKERS} DataLoader workers, not {workers}."
            )
        started = int(self._started[workers, worker])
        for worker_count, counts in enumerate(self._started):
            if worker_count != workers:
                # All workers of another loader start an iteration, so the maximum counts it once.
                started += int(counts.max())
        start = int(self._start[0])
        if started:
            start = self.end_from(start) + (started - 1) * self._steps
        return Iteration(start, self.end_from(start), worker, workers)


def step_from_state(plan: ReadPlan, state: JsonMapping) -> int:
    """Check that a state belongs to a reader, and return its step, counted from epoch 0.

    Raises:
        ManifestMismatch: The state belongs to another dataset.
        ReaderConfigError: The state is invalid, or belongs to a reader with different settings.
    """
    if "epoch" not in state or "step" not in state or "manifest" not in state:
        raise ReaderConfigError("This is not a reader state or loader state.")
    if state.get("order_version") != ORDER_VERSION:
        raise ReaderConfigError(
            f"The state has order version {state.get('order_version')}; this release reads order "
            f"version {ORDER_VERSION}.",
            hint="resume with the release that wrote the state",
        )
    if state["manifest"] != plan.manifest_hash:
        raise ManifestMismatch(
            f"The state belongs to the dataset with manifest {state['manifest']}; this reader has "
            f"manifest {plan.manifest_hash}.",
            hint="open the dataset that the run was started with, or start a new run",
        )
    settings = plan.state(0, 0)
    differences = [
        f"{name}={state[name]!r}, not {value!r}"
        for name, value in settings.items()
        if name not in _POSITION_KEYS and name in state and state[name] != value
    ]
    if differences:
        raise ReaderConfigError(
            f"The state belongs to a reader with other settings: {'; '.join(differences)}.",
            hint="reader, epoch, step = dataset.resume(state) opens the reader of the state",
        )
    step = int(state["step"])
    plan.check_step(step)
    return int(state["epoch"]) * plan.steps_per_epoch + step


@dataclass(frozen=True)
class _SharedColumn:
    """The position of a column in a shared memory segment."""

    offset: int
    kind: str
    shape: tuple[int, ...]

    def view(self, memory: Tensor) -> NumpyArray:
        """Return the column as a view of the segment, a tensor of bytes."""
        return np.ndarray(self.shape, self.kind, buffer=memory.numpy(), offset=self.offset)


def pack_range(arrays: Mapping[str, NumpyArray]) -> tuple[Tensor, dict[str, Any]]:
    """Copy the columns of a step range into one shared memory segment.

    Columns of strings and lists are not copied, since PyTorch pickles them.
    """
    columns: dict[str, Any] = {}
    size = 0
    for name, array in arrays.items():
        columns[name] = array
        if array.dtype != object:
            columns[name] = _SharedColumn(size, array.dtype.str, array.shape)
            size += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    storage = torch.UntypedStorage._new_shared(max(1, size))
    memory = torch.empty(0, dtype=torch.uint8).set_(storage)
    for name, column in columns.items():
        if isinstance(column, _SharedColumn):
            column.view(memory)[...] = arrays[name]
    return memory, columns


def unpack_range(memory: Tensor, columns: Mapping[str, Tensor]) -> dict[str, NumpyArray]:
    """Return the columns of a packed range; numbers are views of its memory."""
    arrays = {}
    for name, column in columns.items():
        arrays[name] = column.view(memory) if isinstance(column, _SharedColumn) else column
    return arrays


class PackedColumns(dict[str, Any]):
    """The columns of a batch, which are stacked for pickling and unpickled as a dict."""

    def __copy__(self) -> PackedColumns:
        return PackedColumns(self)

    def __reduce__(self) -> tuple[Any, ...]:
        groups: dict[Any, list[str]] = {}
        other_columns = {}
        for name, values in self.items():
            if isinstance(values, torch.Tensor):
                groups.setdefault((values.dtype, values.shape), []).append(name)
            else:
                other_columns[name] = values
        # PyTorch transfers each tensor in its own shared memory segment, so equal columns are
        # stacked.
        stacked = [torch.stack(list(map(self.__getitem__, names))) for names in groups.values()]
        return restore_columns, (list(self), list(groups.values()), stacked, other_columns)


def restore_columns(
    order: Sequence[str],
    groups: Sequence[Sequence[str]],
    stacked: Sequence[Tensor],
    other_columns: Any,
) -> dict[str, Tensor]:
    """Unstack the columns of an unpickled batch."""
    columns = dict(other_columns)
    for names, tensor in zip(groups, stacked, strict=True):
        columns.update(zip(names, tensor.unbind(0), strict=True))
    return {name: columns[name] for name in order}


def pack_element(element: Tensor) -> Tensor:
    """Prepare a batch element for the transfer from a worker process."""
    if isinstance(element, Ragged):
        return element
    if isinstance(element, tuple):
        return tuple(map(pack_element, element))
    if isinstance(element, dict):
        return PackedColumns(element)
    # A view would transfer the memory of its complete range.
    return element.clone()
