"""Reader of a training function: the batches of one worker, from the current position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from featurestore.model.json_object import JsonDict
from featurestore.readers import Reader
from featurestore.readers.plan import Batch


@dataclass
class RunReader:
    """A reader bound to a worker, with the position of the run.

    ``epoch`` and ``step`` are the next position: a checkpoint restores it, ``steps`` advances it.
    """

    reader: Reader
    worker: int
    workers: int
    strategy_of: Callable[[], Any] = field(repr=False)
    epoch: int = 0
    step: int = 0

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps per epoch, the same on every worker."""
        return self.reader.steps_per_epoch

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that are neither labels nor weights."""
        return self.reader.inputs

    def batches(self, epoch: int = 0, *, start_step: int = 0) -> Iterator[Batch]:
        """Yield this worker's batches of one epoch."""
        return self.reader.batches(
            epoch, worker=self.worker, workers=self.workers, start_step=start_step
        )

    def steps(self, epochs: int) -> Iterator[tuple[int, Batch]]:
        """Yield (step, this worker's batch) from the current position, up to ``epochs`` epochs.

        Steps are counted from 0 over all epochs. While a batch is processed, the position already
        refers to the next step, so that a checkpoint saved during the step continues after it.
        """
        while self.epoch < epochs:
            epoch, first = self.epoch, self.step
            for batch in self.batches(epoch, start_step=first):
                number = self._number()
                self._advance()
                yield number, batch
            if self.epoch == epoch:  # no batch remained
                self.epoch, self.step = epoch + 1, 0

    def distributed(self, epochs: int) -> Iterator[tuple[int, Any]]:
        """Yield (step, distributed batch) of the strategy, up to ``epochs`` epochs."""
        dataset = self.distribute(epochs - self.epoch)
        for batch in dataset:
            number = self._number()
            self._advance()
            yield number, batch

    def distribute(self, epochs: int = 1) -> Any:
        """Return the strategy's dataset of ``epochs`` epochs from the current position."""
        return self.reader.distribute(
            self.strategy_of(), epochs, start_epoch=self.epoch, start_step=self.step
        )

    def tf_dataset(self, epochs: int = 1) -> Any:
        """Return this worker's ``tf.data.Dataset`` of ``epochs`` epochs from the current position.

        Raises:
            ReaderConfigError: Workers share a strategy, so Keras would distribute the data again.
        """
        from featurestore.readers.keras import refuse_undistributed

        refuse_undistributed(
            hint="context.fit(model, epochs=2, validation=checks), "
            "reader.distribute(epochs), reader.evaluate(model)"
        )
        return self.reader.tf_dataset(
            epochs,
            worker=self.worker,
            workers=self.workers,
            start_epoch=self.epoch,
            start_step=self.step,
        )

    def evaluate(self, model: Any, **options: Any) -> dict[str, float]:
        """Evaluate a model over all rows; see ``Reader.evaluate``."""
        return self.reader.evaluate(model, **options)

    def state(self) -> JsonDict:
        """Return the reader settings and the position, as a JSON object."""
        return self.reader.state(self.epoch, self.step)

    def _number(self) -> int:
        return self.epoch * self.steps_per_epoch + self.step

    def _advance(self) -> None:
        self.step += 1
        if self.step == self.steps_per_epoch:
            self.epoch, self.step = self.epoch + 1, 0


def columns_without(columns: Mapping[str, str], left_out: frozenset[str]) -> list[str] | None:
    """Return the columns to read from ``{column: role}``; None for the reader's default.

    >>> columns_without({"temp": "feature", "seats": "feature", "late": "label"}, {"temp"})
    ['seats', 'late']
    """
    if not left_out:
        return None
    roles = ("feature", "label", "weight")
    return [name for name, role in columns.items() if role in roles and name not in left_out]
