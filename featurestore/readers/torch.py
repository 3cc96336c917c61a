"""Readers as PyTorch datasets: ready batches of tensors, equal steps on every rank.

Imported only where PyTorch is used. Columns are read by numpy, a range of many steps at once; the
tensors of its steps are views of that memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from featurestore.errors import ReaderConfigError, UnsupportedType, listing
from featurestore.readers.ragged import Ragged, ragged_of
from featurestore.readers.selection import PADDING_WEIGHT
from featurestore.readers.steps import StepRange
from featurestore.readers.torch_crossing import crossing
from featurestore.readers.torch_library import (
    IterableDataset,
    get_worker_info,
    require_torch,
    torch,
)
from featurestore.readers.torch_position import Iteration, Position, step_of_state

if TYPE_CHECKING:
    from featurestore.readers.reader import Reader


class ReaderDataset(IterableDataset):  # type: ignore[misc]
    """The batches of one rank, for ``DataLoader(dataset, batch_size=None, num_workers=n)``.

    The workers of a ``DataLoader`` take the steps in turn, so the loader yields them in order
    whatever their number. Iterating again reads the next epochs.
    """

    def __init__(
        self,
        reader: Reader,
        epochs: int,
        *,
        rank: int,
        world_size: int,
        start_epoch: int,
        start_step: int,
    ) -> None:
        require_torch()
        refuse_texts(reader)
        reader.check_step(start_step)
        reader.order.check_workers(rank, world_size)
        total = reader.steps_per_epoch
        self.reader = reader
        self.rank, self.world_size = rank, world_size
        self._steps = epochs * total
        self._position = Position(
            start_epoch * total + start_step, first=start_epoch * total, steps=self._steps
        )
        self._iteration: Iteration | None = None
        self._loaded: Iteration | None = None

    def __len__(self) -> int:
        """Return the steps of an iteration; one that is entered in the middle has fewer."""
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        # Nothing has begun before the first batch is asked for: loaders make iterators that they
        # throw away.
        self._iteration = None
        return self._iterate()

    def _iterate(self) -> Iterator[Any]:
        iteration, self._loaded = self._loaded, None
        if iteration is None:
            iteration = self._position.begin(*worker_of_loader())
        self._iteration = iteration
        is_worker = get_worker_info() is not None
        for element in self._elements(iteration):
            iteration.yielded += 1
            yield crossing(element) if is_worker else element

    def start_at(self, step: int, *, anew: bool) -> None:
        """Let the next iteration begin at a step, counted from epoch 0.

        Args:
            step: The step.
            anew: Whether no workers are alive that know of the position before.
        """
        if anew:
            self._position = self._position.moved(step)
        else:
            self._position.set(step)

    def end_from(self, step: int) -> int:
        """Return the step at which an iteration ends that begins at a step."""
        return self._position.end_from(step)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this process, as ``torchdata.StatefulDataLoader`` asks for it.

        In a worker it counts the steps that this worker has made.
        """
        iteration = self._iteration or self._loaded
        if iteration is None:
            iteration = self._position.following(*worker_of_loader())
        step, yielded = iteration.begin, iteration.yielded
        if iteration.workers == 1:
            step, yielded = step + yielded, 0
        epoch, step = divmod(step, max(1, self.reader.steps_per_epoch))
        state = self.reader.state(epoch, step)
        return {**state, "workers": iteration.workers, "yielded": yielded}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where ``state_dict`` was asked.

        Raises:
            ManifestMismatch: The state belongs to another dataset.
            ReaderConfigError: The state is of a reader with other settings or of other workers.
        """
        step = step_of_state(self.reader, state)
        worker, workers = worker_of_loader()
        others = state.get("workers", 1)
        self._iteration = self._loaded = None
        if others == 1 and workers == 1:
            self._position.set(step)
        elif others == workers:
            yielded = state["yielded"]
            self._loaded = self._position.resume(step, worker, workers, yielded=yielded)
        else:
            raise ReaderConfigError(
                f"The state is that of one of {others} workers of a DataLoader, here are {workers}.",
                hint=f"load it through a StatefulDataLoader with num_workers={others}; the state "
                "of reader.torch_loader() goes on with any number of workers",
            )

    def _elements(self, iteration: Iteration) -> Iterator[Any]:
        first = iteration.begin + iteration.worker + iteration.yielded * iteration.workers
        total = self.reader.steps_per_epoch
        if first >= iteration.end or not total:
            return
        epoch, step = divmod(first, total)
        ranges: Iterable[StepRange] = self.reader.step_ranges(
            1,
            worker=self.rank,
            workers=self.world_size,
            start_epoch=epoch,
            start_step=step,
            steps=iteration.end - first,
        )
        if iteration.workers > 1:
            ranges = _every(iteration.workers, ranges)
        form = ElementForm(self.reader)
        for steps, arrays in self.reader.read(ranges):
            yield from form.elements(steps, arrays)


def worker_of_loader() -> tuple[int, int]:
    """Return (worker, workers) of this process in a ``DataLoader``; (0, 1) in none."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def _every(count: int, ranges: Iterable[StepRange]) -> Iterator[StepRange]:
    """Yield every ``count``-th step of ranges, each as a range of its own."""
    position = 0
    for steps in ranges:
        for step in range(steps.start, steps.stop):
            if position % count == 0:
                yield StepRange(steps.part, step, step + 1)
            position += 1


@dataclass(frozen=True)
class ElementForm:
    """What a step of a reader looks like: features, label and weight, as of ``tf_dataset``.

    ``removes_padding``: batches have their real rows alone, if they have any.
    """

    reader: Reader
    removes_padding: bool = False

    def elements(self, steps: StepRange, arrays: Mapping[str, npt.NDArray[Any]]) -> Iterator[Any]:
        """Yield the elements of a range of steps; their tensors are views of its memory."""
        size = steps.part.batch_rows
        by_step = [_cut(array, size) for array in arrays.values()]
        for columns in zip(*by_step, strict=True):
            yield self._element(dict(zip(arrays, columns, strict=True)))

    def _element(self, columns: dict[str, Any]) -> Any:
        weight = columns.pop(PADDING_WEIGHT, None)
        if self.removes_padding or self.reader.order.remainder == "keep":
            columns, weight = _without_padding(columns, weight), None
        for name, items in self.reader.ragged.items():
            columns[name] = _ragged(columns[name], items)
        if self.reader.weight is not None:
            # Padding weighs nothing here, too: its rows hold zeros.
            weight = columns.pop(self.reader.weight).to(torch.float32)
        labels = {name: columns.pop(name) for name in self.reader.labels}
        parts: list[Any] = [columns]
        if len(labels) == 1:
            parts.extend(labels.values())
        elif labels:
            parts.append(labels)
        if weight is not None:
            parts.append(weight)
        return tuple(parts) if len(parts) > 1 else columns


def _cut(array: npt.NDArray[Any], size: int) -> Sequence[Any]:
    """Return the batches of a column: tensors, of texts lists."""
    if array.dtype == object:
        return [array[start : start + size].tolist() for start in range(0, len(array), size)]
    if not array.flags.writeable:
        # A part of a file's memory map; tensors may be written.
        array = array.copy()
    batches: Sequence[Any] = torch.from_numpy(array).reshape(-1, size, *array.shape[1:]).unbind(0)
    return batches


def _ragged(rows: Sequence[Any], items: np.dtype[Any]) -> Ragged:
    """Return lists of varying length as tensors of their values and row splits."""
    cells = np.empty(len(rows), dtype=object)
    for row, cell in enumerate(rows):
        cells[row] = cell
    values, splits = ragged_of(cells, items)
    if items.kind == "O":
        return Ragged(values.tolist(), torch.from_numpy(splits))
    return Ragged(torch.from_numpy(values), torch.from_numpy(splits))


def _without_padding(columns: Mapping[str, Any], weight: Any) -> dict[str, Any]:
    if weight is None or bool(weight.all()) or not bool(weight.any()):
        return dict(columns)
    # Padding stands at the end of the last step where nothing is shuffled, else among its rows.
    rows = np.flatnonzero(weight.numpy())
    result = {}
    for name, values in columns.items():
        if isinstance(values, list):
            result[name] = [values[row] for row in rows]
        else:
            result[name] = values[torch.from_numpy(rows)]
    return result


def refuse_texts(reader: Reader) -> None:
    """Refuse texts that were not asked for by name: there are no tensors of texts."""
    named = reader.settings.get("columns") or ()
    texts = []
    for column in reader.columns:
        if column.dtype == object and column.name not in named:
            texts.append(column.name)
    if texts:
        others = [column.name for column in reader.columns if column.name not in texts]
        raise UnsupportedType(
            f"These columns hold texts or bytes, which PyTorch has no tensors for: "
            f"{listing(texts, limit=50)}.",
            hint=f"make codes of them: transformations={{{texts[0]!r}: t.vocabulary()}}; or read "
            f"the others: columns={others}. What columns= names comes as a list of bytes",
        )
