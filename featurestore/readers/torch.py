"""PyTorch datasets and resumable loaders of readers, with equal step counts on all ranks.

This module is imported only if PyTorch is used. Numpy reads ranges of many steps, and the tensors
of each step are views of these arrays. In evaluations, each rank processes a part of the rows, and
the ranks add up their sums.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from featurestore.errors import InvalidArgument, ReaderConfigError, UnsupportedType, listing
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.readers import torch_workers
from featurestore.readers.batches import StepRange, WorkerSteps
from featurestore.readers.columns import (
    PADDING_WEIGHT,
    NumpyArray,
    NumpyDtype,
    Ragged,
    Tensor,
    to_ragged,
)
from featurestore.readers.plan import ReadPlan
from featurestore.readers.torch_workers import (
    DataLoader,
    IterableDataset,
    Iteration,
    LoaderPosition,
    distributed,
    get_worker_info,
    torch,
)

# Workers transfer ranges of steps, since a transfer takes about a millisecond. All transferred ranges
# must fit into the shared memory of a container, which is often 64 MiB.
_SHARED_BYTES = 32 * 1024 * 1024
# The features of a batch, or a tuple of features, label and weight.
Element: TypeAlias = Any
_PREFETCH_FACTOR = 2  # the default of ``DataLoader``
_HINT = (
    'return {"loss": cross_entropy(model(inputs), label, reduction="none")}: a tensor with one '
    "value for each row"
)


class ReaderDataset(IterableDataset):  # type: ignore[misc]
    """The batches of one rank, for ``DataLoader(dataset, batch_size=None, num_workers=n)``.

    Step i goes to worker ``i % workers`` of a ``DataLoader``, so the loader yields the steps in
    order for any number of workers. Iterating again reads the next epochs.
    """

    def __init__(self, plan: ReadPlan, steps: WorkerSteps) -> None:
        torch_workers.require_torch()
        refuse_strings(plan)
        plan.check_step(steps.start_step)
        plan.order.check_workers(steps.worker, steps.workers)
        total = plan.steps_per_epoch
        self.plan = plan
        self.rank, self.world_size = steps.worker, steps.workers
        self._steps = steps.epochs * total
        first = steps.start_epoch * total
        self._position = LoaderPosition(first + steps.start_step, first=first, steps=self._steps)
        self._iteration: Iteration | None = None
        self._loaded: Iteration | None = None
        # Maximum size of the ranges that worker processes yield, for a loader that splits them; with
        # 0, workers yield elements.
        self.transferred_bytes = 0

    def __len__(self) -> int:
        """Return the number of steps per iteration; the first has fewer if it starts mid-epoch."""
        return self._steps

    def __iter__(self) -> Iterator[Element]:
        # Start the iteration at the first batch, because loaders also create iterators that they
        # do not use.
        self._iteration = None
        return self._iterate()

    def _iterate(self) -> Iterator[Element]:
        iteration, self._loaded = self._loaded, None
        if iteration is None:
            iteration = self._position.begin(*get_loader_worker())
        self._iteration = iteration
        is_worker = get_worker_info() is not None
        if is_worker and self.transferred_bytes:
            yield from self._packed_ranges(iteration)
            return
        for element in self._elements(iteration):
            iteration.yielded += 1
            yield torch_workers.pack_element(element) if is_worker else element

    def start_at(self, step: int, *, independent: bool) -> None:
        """Start the next iteration at a step, counted from epoch 0.

        Args:
            step: The step.
            independent: Whether to create a new position. Running workers keep the previous one.
        """
        if independent:
            self._position = self._position.restarted_at(step)
        else:
            self._position.set(step)

    def end_from(self, step: int) -> int:
        """Return the step at which an iteration that starts at ``step`` ends."""
        return self._position.end_from(step)

    def state_dict(self) -> JsonDict:
        """Return the position of this process, for ``torchdata.StatefulDataLoader``.

        In a worker process, the position includes the number of steps that it has yielded.
        """
        iteration = self._iteration or self._loaded
        if iteration is None:
            iteration = self._position.peek(*get_loader_worker())
        step, yielded = iteration.begin, iteration.yielded
        # The steps of a single worker are consecutive, so its position is a step.
        if iteration.workers == 1:
            step, yielded = step + yielded, 0
        epoch, step = divmod(step, max(1, self.plan.steps_per_epoch))
        state = self.plan.state(epoch, step)
        return {**state, "workers": iteration.workers, "yielded": yielded}

    def load_state_dict(self, state: JsonMapping) -> None:
        """Continue the next iteration at the position of ``state_dict``.

        Raises:
            ManifestMismatch: The state belongs to another dataset.
            ReaderConfigError: The state belongs to a reader with different settings or workers.
        """
        step = torch_workers.step_from_state(self.plan, state)
        worker, workers = get_loader_worker()
        state_workers = state.get("workers", 1)
        self._iteration = self._loaded = None
        if state_workers == 1 and workers == 1:
            self._position.set(step)
        elif state_workers == workers:
            yielded = state["yielded"]
            self._loaded = self._position.resume(step, worker, workers, yielded=yielded)
        else:
            raise ReaderConfigError(
                f"The state belongs to a DataLoader with {state_workers} workers; this one has {workers}.",
                hint=f"load it through a StatefulDataLoader with num_workers={state_workers}; the state "
                "of reader.torch_loader() works with any number of workers",
            )

    def _packed_ranges(self, iteration: Iteration) -> Iterator[Element]:
        """Yield the ranges that belong to this worker, range i to worker ``i % workers``.

        All workers divide the iteration into the same ranges, so the loader yields them in order.
        """
        total = self.plan.steps_per_epoch
        if iteration.begin >= iteration.end or not total:
            return
        epoch, step = divmod(iteration.begin, total)
        ranges = self.plan.step_ranges(
            WorkerSteps(1, epoch, step, self.rank, self.world_size),
            steps=iteration.end - iteration.begin,
            max_bytes=self.transferred_bytes,
        )
        # The loader prefetches by processes, so threads would only compete for their cores.
        blocks = self.plan.blocks()
        for number in range(iteration.worker, len(ranges), iteration.workers):
            yield torch_workers.pack_range(blocks.read(ranges[number]))

    def split_range(self, packed_range: Tensor) -> Iterator[Element]:
        """Yield the elements of a range that a worker process yielded."""
        size = self.plan.order.worker_batch(self.world_size)
        yield from ElementBuilder(self.plan).elements(
            torch_workers.unpack_range(*packed_range), size
        )

    def _elements(self, iteration: Iteration) -> Iterator[Element]:
        """Yield the elements of the steps that belong to this process."""
        first = iteration.begin + iteration.worker + iteration.yielded * iteration.workers
        total = self.plan.steps_per_epoch
        if first >= iteration.end or not total:
            return
        epoch, step = divmod(first, total)
        ranges: Iterable[StepRange] = self.plan.step_ranges(
            WorkerSteps(1, epoch, step, self.rank, self.world_size), steps=iteration.end - first
        )
        if iteration.workers > 1:
            ranges = _every_nth_step(iteration.workers, ranges)
        form = ElementBuilder(self.plan)
        for steps, arrays in self.plan.read(ranges):
            yield from form.elements(arrays, steps.worker_epoch.batch_rows)


@dataclass(frozen=True)
class ElementBuilder:
    """A builder of batch elements: features, label and weight, as in ``tf_dataset``.

    ``removes_padding`` removes padding rows, unless all rows of a batch are padding.
    """

    plan: ReadPlan
    removes_padding: bool = False

    def elements(self, arrays: Mapping[str, NumpyArray], size: int) -> Iterator[Element]:
        """Yield the batch elements of a step range, with ``size`` rows each.

        Their tensors are views of the arrays.
        """
        by_step = [_split_batches(array, size) for array in arrays.values()]
        for columns in zip(*by_step, strict=True):
            yield self._element(dict(zip(arrays, columns, strict=True)))

    def _element(self, columns: dict[str, Tensor]) -> Element:
        weight = columns.pop(PADDING_WEIGHT, None)
        if self.removes_padding or self.plan.order.remainder == "keep":
            columns, weight = _remove_padding(columns, weight), None
        for name, items in self.plan.ragged.items():
            columns[name] = _ragged_tensors(columns[name], items)
        if self.plan.weight is not None:
            # The weight of padding rows is 0, because all values of padding rows are 0.
            weight = columns.pop(self.plan.weight).to(torch.float32)
        labels = {name: columns.pop(name) for name in self.plan.labels}
        element_parts: list[Tensor] = [columns]
        if len(labels) == 1:
            element_parts.extend(labels.values())
        elif labels:
            element_parts.append(labels)
        if weight is not None:
            element_parts.append(weight)
        return tuple(element_parts) if len(element_parts) > 1 else columns


def _split_batches(array: NumpyArray, size: int) -> Sequence[Tensor]:
    """Split a column into batches: tensors, or lists for strings."""
    if array.dtype == object:
        return [array[start : start + size].tolist() for start in range(0, len(array), size)]
    if not array.flags.writeable:
        # The array is a view of a memory-mapped file, but tensors must be writable.
        array = array.copy()
    batches: Sequence[Tensor] = (
        torch.from_numpy(array).reshape(-1, size, *array.shape[1:]).unbind(0)
    )
    return batches


def _ragged_tensors(rows: Sequence[Tensor], items: NumpyDtype) -> Ragged:
    """Convert variable-length lists to tensors of values and row splits."""
    cells = np.empty(len(rows), dtype=object)
    for row, cell in enumerate(rows):
        cells[row] = cell
    values, splits = to_ragged(cells, items)
    if items.kind == "O":
        return Ragged(values.tolist(), torch.from_numpy(splits))
    return Ragged(torch.from_numpy(values), torch.from_numpy(splits))


def _remove_padding(columns: Mapping[str, Tensor], weight: Tensor) -> dict[str, Tensor]:
    # A batch of padding alone is kept, because all ranks must call their models equally often.
    if weight is None or bool(weight.all()) or not bool(weight.any()):
        return dict(columns)
    # Without shuffling, padding rows are at the end of the last step; otherwise anywhere in it.
    rows = np.flatnonzero(weight.numpy())
    real_columns = {}
    for name, values in columns.items():
        if isinstance(values, list):
            real_columns[name] = [values[row] for row in rows]
        else:
            real_columns[name] = values[torch.from_numpy(rows)]
    return real_columns


def refuse_strings(plan: ReadPlan) -> None:
    """Refuse strings unless ``columns=`` names the column, since tensors cannot hold strings."""
    requested_names = plan.settings.get("columns") or ()
    string_columns = [
        column.name
        for column in plan.columns
        if column.dtype == object and column.name not in requested_names
    ]
    if string_columns:
        other_columns = [
            column.name for column in plan.columns if column.name not in string_columns
        ]
        raise UnsupportedType(
            "These columns contain strings or bytes, for which PyTorch has no tensor type: "
            f"{listing(string_columns, limit=50)}.",
            hint=f"encode them: transformations={{{string_columns[0]!r}: t.vocabulary()}}; or omit them: "
            f"columns={other_columns}. String columns named in columns= are lists of bytes",
        )


@dataclass(frozen=True)
class LoaderOptions:
    """Arguments of ``DataLoader`` with the same names."""

    num_workers: int = 0
    pin_memory: bool = False
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    multiprocessing_context: Any = None


class ReaderLoader(DataLoader):  # type: ignore[misc]
    """A loader of the batches of one rank; iterating again reads the next epochs.

    ``state_dict()`` between two batches is the position of the next step; ``load_state_dict(state)``
    starts the next iteration there.
    """

    def __init__(
        self,
        plan: ReadPlan,
        steps: WorkerSteps,
        *,
        rank: int | None,
        world_size: int | None,
        options: LoaderOptions,
    ) -> None:
        if (rank is None) != (world_size is None):
            raise ReaderConfigError(
                "rank= and world_size= must be passed together.",
                hint="torch_loader(rank=0, world_size=2), or neither, to use torch.distributed",
            )
        self._has_rank = rank is not None
        self._next = self._end = steps.start_epoch * plan.steps_per_epoch + steps.start_step
        own_steps = WorkerSteps(
            steps.epochs, steps.start_epoch, steps.start_step, rank or 0, world_size or 1
        )
        dataset = ReaderDataset(plan, own_steps)
        if options.num_workers > 0:
            prefetched = options.num_workers * (options.prefetch_factor or _PREFETCH_FACTOR)
            dataset.transferred_bytes = max(1, _SHARED_BYTES // prefetched)
        super().__init__(dataset, batch_size=None, collate_fn=_identity, **vars(options))

    def __iter__(self) -> Iterator[Element]:
        """Yield the batches up to the end of the iteration."""
        dataset = self.dataset
        if not self._has_rank:
            dataset.rank, dataset.world_size = distributed_rank()
            dataset.plan.order.check_workers(dataset.rank, dataset.world_size)
            self._has_rank = True
        # Treat an abandoned iteration as complete.
        start = self._end
        dataset.start_at(start, independent=self._iterator is None)
        self._next, self._end = start, dataset.end_from(start)
        for item in super().__iter__():
            for element in dataset.split_range(item) if dataset.transferred_bytes else (item,):
                self._next += 1
                yield element

    def state_dict(self) -> JsonDict:
        """Return the reader's state at the next step: a small JSON object."""
        plan: ReadPlan = self.dataset.plan
        epoch, step = divmod(self._next, max(1, plan.steps_per_epoch))
        return plan.state(epoch, step)

    def load_state_dict(self, state: JsonMapping) -> None:
        """Start the next iteration at the position of a loader state or reader state.

        Raises:
            ManifestMismatch: The state belongs to another dataset.
            ReaderConfigError: The state belongs to a reader with different settings.
        """
        self._next = self._end = torch_workers.step_from_state(self.dataset.plan, state)


def get_loader_worker() -> tuple[int, int]:
    """Return the ``DataLoader`` worker number and worker count; (0, 1) in the main process."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def _every_nth_step(count: int, ranges: Iterable[StepRange]) -> Iterator[StepRange]:
    """Yield every ``count``-th step of the ranges as a range of one step."""
    position = 0
    for steps in ranges:
        for step in range(steps.start, steps.stop):
            if position % count == 0:
                yield StepRange(steps.worker_epoch, step, step + 1)
            position += 1


def distributed_rank() -> tuple[int, int]:
    """Return rank and world size from ``torch.distributed`` or ``torchrun``, or else (0, 1)."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return 0, 1


def _identity(element: Element) -> Element:
    """Return an element unchanged: elements are batches and need no collation."""
    return element


def process_rank() -> tuple[int, int]:
    """Return rank and world size from ``torch.distributed``, or (0, 1) if it is not initialized."""
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def evaluate_by_function(
    plan: ReadPlan, function: Callable[..., Mapping[str, Tensor]]
) -> dict[str, float]:
    """Call a metric function for each batch and return the weighted means of its row values.

    Args:
        plan: A plan with padding and one lane per rank, or with ``remainder="keep"``.
        function: Function from an element of ``torch_loader`` to ``{name: (rows,)}``.
    """
    torch_workers.require_torch()
    refuse_strings(plan)
    rank, ranks = process_rank()
    sums: dict[str, float] = {}
    weights = 0.0
    builder = ElementBuilder(plan, removes_padding=True)
    steps_of_rank = plan.step_ranges(WorkerSteps(worker=rank, workers=ranks))
    with torch.no_grad():
        for steps, arrays in plan.read(steps_of_rank):
            size = steps.worker_epoch.batch_rows
            is_real = (arrays[PADDING_WEIGHT] > 0).reshape(-1, size)
            for element, real_rows in zip(builder.elements(arrays, size), is_real, strict=True):
                element_parts = element if isinstance(element, tuple) else (element,)
                # All ranks must call their models equally often, since a wrapped model synchronizes
                # its buffers in each call. Batches without real rows are not counted.
                rows = int(real_rows.sum())
                weight = torch.ones(rows) if rows else torch.zeros(len(real_rows))
                if plan.weight is not None:
                    weight = element_parts[-1]
                for name, values in _check_metrics(function(*element_parts), len(weight)).items():
                    # The value of a padding row may be NaN, and NaN times the weight 0 is NaN.
                    counted_values = torch.where(weight > 0, values.detach().cpu().double(), 0.0)
                    sums[name] = sums.get(name, 0.0) + float(
                        (counted_values * weight.double()).sum()
                    )
                weights += float(weight.double().sum())
    totals = [(sums, weights)] * ranks
    if ranks > 1:
        distributed.all_gather_object(totals, (sums, weights))
    # ``fsum`` is exact, so the result does not depend on the order of the ranks.
    weight = math.fsum(row_weight for _, row_weight in totals)
    if not weight:
        raise InvalidArgument(
            "The weights of the split sum to 0, so the means of its metrics are undefined.",
            hint="check the weight column: reader.weight",
        )
    means = {}
    for name in sums:
        means[name] = math.fsum(rank_sums[name] for rank_sums, _ in totals) / weight
    return means


def _check_metrics(metrics: Any, rows: int) -> Mapping[str, Tensor]:
    """Check the shapes of the metrics that a function returned, and return the metrics.

    Raises:
        InvalidArgument: A metric is not a tensor with one value per row.
    """
    if not isinstance(metrics, Mapping):
        raise InvalidArgument(
            f"The function returned {type(metrics).__name__}, which is not a mapping.", hint=_HINT
        )
    for name, values in metrics.items():
        shape = tuple(getattr(values, "shape", ()))
        if not isinstance(values, torch.Tensor) or shape != (rows,):
            raise InvalidArgument(
                f"The function returned {name!r} of shape {shape} for {rows} rows.", hint=_HINT
            )
    return metrics
