"""Where the iterations over a PyTorch dataset stand, known to all processes of a ``DataLoader``.

Steps are counted from epoch 0 on. Iterations cut them at every ``steps`` from ``first`` on; one
that begins in the middle ends at the next cut, so that the one after it is whole.

The workers of a ``DataLoader`` are new processes in each iteration, or stay. Either way each begins
an iteration once, so a count of its own in shared memory tells it which one it begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from featurestore.errors import ManifestMismatch, ReaderConfigError
from featurestore.readers.order import ORDER_VERSION
from featurestore.readers.torch_library import torch

if TYPE_CHECKING:
    from featurestore.readers.reader import Reader

MOST_WORKERS = 128
# What a state has beside the settings of its reader.
_NO_SETTINGS = ("order_version", "dataset", "manifest", "epoch", "step", "workers", "yielded")


@dataclass
class Iteration:
    """Steps ``[begin, end)``, of which a worker makes every ``workers``-th, some of them already."""

    begin: int
    end: int
    worker: int
    workers: int
    yielded: int = 0


class Position:
    """The step at which the next iteration begins.

    Args:
        start: The step at which the first iteration begins.
        first: A step at which iterations are cut.
        steps: Steps of a whole iteration.
    """

    def __init__(self, start: int, *, first: int, steps: int) -> None:
        self._first, self._steps = first, steps
        self._start = torch.tensor([start], dtype=torch.int64).share_memory_()
        # Iterations begun, by the number of workers and the worker: a dataset may be read by
        # loaders with other numbers of workers, one after the other.
        cells = torch.zeros((MOST_WORKERS + 1, MOST_WORKERS), dtype=torch.int64)
        self._begun = cells.share_memory_()

    def begin(self, worker: int, workers: int) -> Iteration:
        """Return the iteration that a worker begins now."""
        iteration = self.following(worker, workers)
        self._begun[workers, worker] += 1
        return iteration

    def set(self, step: int) -> None:
        """Let the next iteration begin at a step."""
        self._start[0] = step
        self._begun.zero_()

    def resume(self, step: int, worker: int, workers: int, *, yielded: int) -> Iteration:
        """Return an iteration of a worker that began at a step, begun now; all workers call this."""
        self._start[0] = step
        self._begun[torch.arange(len(self._begun)) != workers] = 0
        self._begun[workers, worker] = 1
        return Iteration(step, self.end_from(step), worker, workers, yielded)

    def moved(self, step: int) -> Position:
        """Return a position of its own that begins at a step."""
        return Position(step, first=self._first, steps=self._steps)

    def end_from(self, step: int) -> int:
        """Return where an iteration ends that begins at a step."""
        if not self._steps:
            return step
        return step + self._steps - (step - self._first) % self._steps

    def following(self, worker: int, workers: int) -> Iteration:
        """Return the iteration that a worker would begin now."""
        if workers > MOST_WORKERS:
            raise ReaderConfigError(
                f"{workers} workers are more than the {MOST_WORKERS} that can share a rank's steps."
            )
        begun = int(self._begun[workers, worker])
        for others, counts in enumerate(self._begun):
            if others != workers:
                begun += int(counts.max())
        start = int(self._start[0])
        if begun:
            start = self.end_from(start) + (begun - 1) * self._steps
        return Iteration(start, self.end_from(start), worker, workers)


def step_of_state(reader: Reader, state: Mapping[str, Any]) -> int:
    """Return the step of a state, counted from epoch 0, after comparing it with a reader.

    Raises:
        ManifestMismatch: The state belongs to another dataset.
        ReaderConfigError: The state is of a reader with other settings, or no state.
    """
    if "epoch" not in state or "step" not in state or "manifest" not in state:
        raise ReaderConfigError("This is not the state of a reader or loader.")
    if state.get("order_version") != ORDER_VERSION:
        raise ReaderConfigError(
            f"The state has order version {state.get('order_version')}; this release reads order "
            f"version {ORDER_VERSION}.",
            hint="resume with the release that wrote the state",
        )
    if state["manifest"] != reader.manifest_hash:
        raise ManifestMismatch(
            f"The state belongs to the dataset with manifest {state['manifest']}; this reader has "
            f"manifest {reader.manifest_hash}.",
            hint="open the dataset that the run was started with, or start a new run",
        )
    here = reader.state(0, 0)
    other = []
    for name, value in here.items():
        if name not in _NO_SETTINGS and name in state and state[name] != value:
            other.append(f"{name}={state[name]!r} and not {value!r}")
    if other:
        raise ReaderConfigError(
            f"The state is that of a reader with {'; '.join(other)}.",
            hint="reader, epoch, step = dataset.resume(state) makes the reader of the state",
        )
    step = int(state["step"])
    reader.check_step(step)
    return int(state["epoch"]) * reader.steps_per_epoch + step
