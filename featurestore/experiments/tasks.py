"""What a worker is told, as JSON: which run, which worker of how many, which data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from featurestore.errors import ManifestMismatch
from featurestore.model.json_object import JsonObject
from featurestore.training.dataset import TrainingDataset


@dataclass(frozen=True)
class Task:
    """One worker of one attempt of a run.

    ``strategy`` is "none", "mirrored" or "multiworker"; ``without`` are features and
    ``without_layers`` layers that an ablation leaves out.
    """

    run: str
    params: Mapping[str, Any] = field(default_factory=dict)
    dataset: Mapping[str, Any] | None = None
    worker: int = 0
    workers: int = 1
    attempt: int = 1
    seed: int = 0
    strategy: str = "none"
    without: frozenset[str] = frozenset()
    without_layers: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """Return the task as JSON."""
        lists = {name: sorted(getattr(self, name)) for name in ("without", "without_layers")}
        return {**vars(self), **lists}

    @classmethod
    def from_json(cls, data: JsonObject) -> Task:
        """Return the task of a JSON object."""
        return cls(
            run=data.text("run"),
            params=data.object("params").data,
            dataset=data.get("dataset"),
            worker=data.number("worker"),
            workers=data.number("workers", least=1),
            attempt=data.number("attempt", least=1),
            seed=data.number("seed"),
            strategy=data.text("strategy"),
            without=frozenset(data.texts("without")),
            without_layers=frozenset(data.texts("without_layers")),
        )

    def open_dataset(self) -> TrainingDataset:
        """Return the dataset, which has to be the one that the run was launched with."""
        told = JsonObject.of(self.dataset, "dataset")
        opened = TrainingDataset.open(told.text("path"))
        if opened.manifest.content_hash != told.text("manifest"):
            raise ManifestMismatch(
                f"The dataset at {opened.path!r} is another than the run was launched with: "
                f"{opened.manifest.content_hash}, not {told.text('manifest')}.",
                hint="launch a new run on the dataset of now",
            )
        return opened
