"""Task of a worker process, as JSON: the run, the member of the team, the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from featurestore.errors import ManifestMismatch
from featurestore.experiments.teams import CHIEF, PARAMETER_SERVER, WORKER
from featurestore.model.json_object import JsonObject

if TYPE_CHECKING:
    from featurestore.training.dataset import TrainingDataset


@dataclass(frozen=True)
class Fold:
    """One fold of a cross-validation: the ``number``-th of ``folds`` equal ranges of the row hash.

    ``split`` reads the rows of the other folds, ``held_out`` those of this one.
    """

    split: str
    held_out: str
    number: int
    folds: int

    @classmethod
    def from_json(cls, payload: object) -> Fold | None:
        """Return the fold of a JSON object, None for null."""
        if payload is None:
            return None
        data = JsonObject.from_value(payload, "fold")
        folds = data.number("folds", minimum=2)
        number = data.number("number", maximum=folds - 1)
        return cls(data.text("split"), data.text("held_out"), number, folds)

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
class Task:
    """One process of one attempt of a run.

    ``strategy`` is "none", "mirrored", "multiworker" or "parameter_server"; ``number`` is the
    number of the process, ``worker`` of ``workers`` selects the rows that it reads. ``without`` are
    the features and ``without_layers`` the layers that an ablation leaves out; ``checkpoint`` is
    the initial one of all workers, "" for none, None for the newest.
    """

    run: str
    params: Mapping[str, Any] = field(default_factory=dict)
    dataset: Mapping[str, Any] | None = None
    number: int = 0
    role: str = WORKER
    worker: int = 0
    workers: int = 1
    attempt: int = 1
    seed: int = 0
    strategy: str = "none"
    without: frozenset[str] = frozenset()
    without_layers: frozenset[str] = frozenset()
    fold: Fold | None = None
    checkpoint: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the task as JSON."""
        lists = {name: sorted(getattr(self, name)) for name in ("without", "without_layers")}
        fold = None if self.fold is None else vars(self.fold)
        return {**vars(self), **lists, "fold": fold}

    @classmethod
    def from_json(cls, data: JsonObject) -> Task:
        """Return the task of a JSON object."""
        return cls(
            run=data.text("run"),
            params=data.object("params").data,
            dataset=data.get("dataset"),
            number=data.number("number"),
            role=data.text("role"),
            worker=data.number("worker"),
            workers=data.number("workers", minimum=1),
            attempt=data.number("attempt", minimum=1),
            seed=data.number("seed"),
            strategy=data.text("strategy"),
            without=frozenset(data.texts("without")),
            without_layers=frozenset(data.texts("without_layers")),
            fold=Fold.from_json(data.get("fold")),
            checkpoint=data.optional_text("checkpoint"),
        )

    @property
    def serves(self) -> bool:
        """Whether the process only serves a chief."""
        return self.strategy == PARAMETER_SERVER and self.role != CHIEF

    def open_dataset(self) -> TrainingDataset:
        """Return the dataset of the run, after checking that its content is unchanged."""
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
