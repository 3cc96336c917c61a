"""A PyTorch ``DataLoader`` over a reader that knows where it stands.

It counts the batches that it has yielded, so its state has nothing to do with what workers have
read ahead: a run goes on at its next step with any number of workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from featurestore.errors import ReaderConfigError
from featurestore.readers.torch import ReaderDataset
from featurestore.readers.torch_library import DataLoader, distributed
from featurestore.readers.torch_position import step_of_state

if TYPE_CHECKING:
    from featurestore.readers.reader import Reader


@dataclass(frozen=True)
class LoaderOptions:
    """How a ``DataLoader`` works: the arguments of the same names."""

    num_workers: int = 0
    pin_memory: bool = False
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    multiprocessing_context: Any = None


class ReaderLoader(DataLoader):  # type: ignore[misc]
    """Yields the batches of one rank; iterating again reads the next epochs.

    ``state_dict()`` between two batches tells the next step, ``load_state_dict(state)`` lets the
    next iteration begin there.
    """

    def __init__(
        self,
        reader: Reader,
        epochs: int,
        *,
        rank: int | None,
        world_size: int | None,
        start_epoch: int,
        start_step: int,
        options: LoaderOptions,
    ) -> None:
        if (rank is None) != (world_size is None):
            raise ReaderConfigError(
                "Of rank and world_size one alone was given.",
                hint="torch_loader(rank=0, world_size=2), or neither: torch.distributed knows them",
            )
        self._is_placed = rank is not None
        self._next = self._end = start_epoch * reader.steps_per_epoch + start_step
        dataset = ReaderDataset(
            reader,
            epochs,
            rank=rank or 0,
            world_size=world_size or 1,
            start_epoch=start_epoch,
            start_step=start_step,
        )
        super().__init__(dataset, batch_size=None, collate_fn=_as_it_is, **vars(options))

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches up to the end of the iteration."""
        dataset = self.dataset
        if not self._is_placed:
            dataset.rank, dataset.world_size = place_of_process()
            dataset.reader.order.check_workers(dataset.rank, dataset.world_size)
            self._is_placed = True
        # An iteration that was left in the middle is over: this one is the next.
        start = self._end
        dataset.start_at(start, anew=self._iterator is None)
        self._next, self._end = start, dataset.end_from(start)
        for element in super().__iter__():
            self._next += 1
            yield element

    def state_dict(self) -> dict[str, Any]:
        """Return the reader's state at the next step: a small JSON object."""
        reader: Reader = self.dataset.reader
        epoch, step = divmod(self._next, max(1, reader.steps_per_epoch))
        return reader.state(epoch, step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration begin at the step of a state, that of ``reader.state`` as well.

        Raises:
            ManifestMismatch: The state belongs to another dataset.
            ReaderConfigError: The state is of a reader with other settings.
        """
        self._next = self._end = step_of_state(self.dataset.reader, state)


def place_of_process() -> tuple[int, int]:
    """Return (rank, world size) as ``torch.distributed`` or ``torchrun`` says; (0, 1) without."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return 0, 1


def _as_it_is(element: Any) -> Any:
    """Return an element: it is a batch already."""
    return element
