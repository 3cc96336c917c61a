"""Tasks of worker processes: run members, their JSON tasks and their seeds."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import numpy as np

from featurestore.errors import ManifestMismatch
from featurestore.model.json_object import JsonMapping, JsonObject
from featurestore.model.records import Range, Record

if TYPE_CHECKING:
    from featurestore.training.dataset import TrainingDataset

_seeded: set[int] = set()
PARAMETER_SERVER = "parameter_server"
CHIEF, WORKER, SERVER = "chief", "worker", "ps"


@dataclass(frozen=True)
class Member:
    """A process of a run: its role in the TensorFlow cluster and its index in that role."""

    role: str
    index: int

    def __str__(self) -> str:
        if self.role == CHIEF:
            return "the chief"
        return f"{'server' if self.role == SERVER else 'worker'} {self.index}"


def members(strategy: str, workers: int, servers: int) -> tuple[Member, ...]:
    """Return the processes of a run, in order.

    >>> [str(each) for each in members("parameter_server", 2, 1)]
    ['the chief', 'worker 0', 'worker 1', 'server 0']
    """
    team = [Member(WORKER, index) for index in range(workers)]
    if strategy == PARAMETER_SERVER:
        team.insert(0, Member(CHIEF, 0))
        team += [Member(SERVER, index) for index in range(servers)]
    return tuple(team)


def order_by_severity(team: Sequence[Member]) -> list[int]:
    """Return the indexes of members, ordered by the severity of their loss.

    >>> order_by_severity(members("parameter_server", 2, 1))
    [0, 3, 1, 2]
    """
    # The loss of a chief or server ends the run. The loss of a worker alone does not.
    order = (CHIEF, SERVER, WORKER)
    return sorted(range(len(team)), key=lambda index: order.index(team[index].role))


def has_ended(exits: Sequence[int | None], team: Sequence[Member]) -> bool:
    """Determine from exit statuses whether a run has ended or cannot continue.

    All workers of a run without a chief are required. A chief can continue without some of its
    workers, but not without all of them, and not without a server.

    >>> has_ended([None, -9], members("multiworker", 2, 0))
    True
    >>> has_ended([None, -9, None, None], members("parameter_server", 2, 1))
    False
    """
    if team[0].role != CHIEF:
        return None not in exits or any(exits)
    if exits[0] is not None:
        return True
    working = 0
    for member, status in zip(team, exits, strict=True):
        if member.role == SERVER and status is not None:
            return True
        if member.role == WORKER and status is None:
            working += 1
    return working == 0


@dataclass(frozen=True)
class Fold(Record):
    """A fold of a cross-validation: range ``number`` of ``folds`` equal ranges of the row hash.

    ``split`` reads the rows of the other folds, ``held_out`` the rows of this fold.
    """

    split: str
    held_out: str
    number: int
    folds: Annotated[int, Range(2)]

    @classmethod
    def of_run(cls, settings: JsonMapping) -> Fold | None:
        """Return the fold in the settings of a run, None if it has none."""
        if settings.get("fold") is None:
            return None
        return cls.from_json(JsonObject(settings).object("fold"))

    def check_json(self, data: JsonMapping) -> Fold:
        """Check that the fold is one of the ``folds``."""
        JsonObject(data).number("number", maximum=self.folds - 1)
        return self

    def rows(self, split: str, count: int) -> tuple[str, tuple[tuple[int, int], ...] | None]:
        """Return the stored split and the ranges of its canonical rows for a split name.

        The canonical order is that of the row hash, so a range of it is a range of the hash.

        >>> Fold("train", "validation", 1, 4).rows("train", 10)
        ('train', ((0, 2), (5, 10)))
        >>> Fold("train", "validation", 1, 4).rows("validation", 10)
        ('train', ((2, 5),))
        """
        first = self.number * count // self.folds
        end = (self.number + 1) * count // self.folds
        if split == self.held_out:
            return self.split, ((first, end),)
        if split == self.split:
            return self.split, ((0, first), (end, count))
        return split, None


@dataclass(frozen=True)
class Task(Record):
    """The task of one process in one attempt of a run.

    ``strategy`` is "none", "mirrored", "multiworker" or "parameter_server". ``number`` is the
    process number; ``worker`` and ``workers`` select the rows to read. ``without`` contains the
    features and ``without_layers`` the layers that an ablation removes. ``checkpoint`` is the
    common initial checkpoint of all workers: "" for none, None for the newest.
    """

    run: str
    params: JsonMapping = field(default_factory=dict)
    dataset: JsonMapping | None = None
    number: int = 0
    role: str = WORKER
    worker: int = 0
    workers: Annotated[int, Range(1)] = 1
    attempt: Annotated[int, Range(1)] = 1
    seed: int = 0
    strategy: str = "none"
    without: frozenset[str] = frozenset()
    without_layers: frozenset[str] = frozenset()
    fold: Fold | None = None
    checkpoint: str | None = None

    @property
    def serves(self) -> bool:
        """Whether the process only serves the chief."""
        return self.strategy == PARAMETER_SERVER and self.role != CHIEF

    def open_dataset(self) -> TrainingDataset:
        """Open the dataset of the run, and check that its content is unchanged."""
        from featurestore.training.dataset import TrainingDataset

        reference = JsonObject.from_value(self.dataset, "dataset")
        dataset = TrainingDataset.open(reference.text("path"))
        if dataset.manifest.content_hash != reference.text("manifest"):
            raise ManifestMismatch(
                f"The dataset at {dataset.path!r} is not the dataset that the run was launched with: "
                f"{dataset.manifest.content_hash}, not {reference.text('manifest')}.",
                hint="launch a new run on the current dataset",
            )
        return dataset


def seed_all(seed: int) -> None:
    """Seed Python, numpy and, if it is loaded, TensorFlow."""
    random.seed(seed)
    # numpy accepts only 32-bit seeds.
    np.random.seed(seed % 2**32)
    _seeded.clear()
    # A function that does not use TensorFlow should not wait for its import.
    if "tensorflow" in sys.modules:
        seed_tensorflow(seed)


def seed_tensorflow(seed: int) -> None:
    """Seed TensorFlow once per run, and make its operations deterministic."""
    # Another call would restart the sequence of operation seeds in the middle of the run.
    if seed in _seeded:
        return
    tf = importlib.import_module("tensorflow")
    _seeded.add(seed)
    tf.random.set_seed(seed)
    tf.config.experimental.enable_op_determinism()
