"""A resumable PyTorch ``DataLoader`` of a reader.

It counts the batches that it has yielded, so its state does not depend on the batches that workers
have prefetched: a run resumes at its next step with any number of workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from featurestore.errors import ReaderConfigError
from featurestore.readers.torch import ReaderDataset
from featurestore.readers.torch_library import DataLoader, distributed
from featurestore.readers.torch_position import step_from_state

if TYPE_CHECKING:
    from featurestore.readers.reader import Reader


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
                "rank= and world_size= must be passed together.",
                hint="torch_loader(rank=0, world_size=2), or neither, to use torch.distributed",
            )
        self._has_rank = rank is not None
        self._next = self._end = start_epoch * reader.steps_per_epoch + start_step
        dataset = ReaderDataset(
            reader,
            epochs,
            rank=rank or 0,
            world_size=world_size or 1,
            start_epoch=start_epoch,
            start_step=start_step,
        )
        super().__init__(dataset, batch_size=None, collate_fn=_identity, **vars(options))

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches up to the end of the iteration."""
        dataset = self.dataset
        if not self._has_rank:
            dataset.rank, dataset.world_size = distributed_rank()
            dataset.reader.order.check_workers(dataset.rank, dataset.world_size)
            self._has_rank = True
        # An abandoned iteration counts as complete.
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
        """Start the next iteration at the step of a state of this loader or of ``reader.state``.

        Raises:
            ManifestMismatch: The state belongs to another dataset.
            ReaderConfigError: The state is of a reader with other settings.
        """
        self._next = self._end = step_from_state(self.dataset.reader, state)


def distributed_rank() -> tuple[int, int]:
    """Return (rank, world size) of ``torch.distributed`` or ``torchrun``; (0, 1) without them."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return 0, 1


def _identity(element: Any) -> Any:
    """Return an element unchanged, since it is a batch already."""
    return element
