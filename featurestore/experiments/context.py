"""What a training function is given: its reader, checkpoints, reports and directories.

What reads data is imported where a function asks for data: the start of a worker is most of what a
short trial costs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from featurestore.errors import InvalidArgument, Stopped
from featurestore.experiments import randomness
from featurestore.experiments.reports import TENSORBOARD, Reports, check_metrics, check_step
from featurestore.experiments.run_files import ARTIFACTS, checksums_below
from featurestore.experiments.saving import save_model
from featurestore.experiments.teams import PARAMETER_SERVER
from featurestore.storage import files

if TYPE_CHECKING:
    from featurestore.experiments.reading import RunReader
    from featurestore.experiments.tasks import Task
    from featurestore.readers.checkpoint import ReaderCheckpoint
    from featurestore.readers.class_weights import ClassWeights
    from featurestore.training.dataset import TrainingDataset

Listener = Callable[[int, Mapping[str, float]], bool]
CHECKPOINTS = "checkpoints"


@dataclass
class Context:
    """One worker's view of its run.

    ``listener`` is told of what is reported and answers whether to stop.
    """

    task: Task
    listener: Listener | None = None
    readers: list[RunReader] = field(default_factory=list)
    matrices: list[dict[str, Any]] = field(default_factory=list)
    saved: dict[str, str] = field(default_factory=dict)
    _restored: bool = field(default=False, init=False)

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the run."""
        return dict(self.task.params)

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return os.path.basename(self.task.run)

    @property
    def worker(self) -> int:
        """Number of this worker, from 0."""
        return self.task.worker

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.task.workers

    @property
    def seed(self) -> int:
        """The seed of the run, which Python, numpy and TensorFlow have got already."""
        return self.task.seed

    @property
    def attempt(self) -> int:
        """How often the run was started, from 1."""
        return self.task.attempt

    @property
    def directory(self) -> str:
        """The directory of the run, shared by all workers."""
        return self.task.run

    @property
    def checkpoint_dir(self) -> str:
        """Where checkpoints lie."""
        return os.path.join(self.task.run, CHECKPOINTS)

    @property
    def log_dir(self) -> str:
        """Where TensorBoard looks."""
        return os.path.join(self.task.run, TENSORBOARD)

    @property
    def artifact_dir(self) -> str:
        """The directory of files that stay with the run, made when it is first used.

        Each worker has one of its own; the run keeps that of the first worker, the others are
        removed when their workers end.
        """
        directory = self._artifacts_of(self.worker)
        files.make_directory(directory)
        return directory

    def _artifacts_of(self, worker: int) -> str:
        if worker == 0:
            return os.path.join(self.task.run, ARTIFACTS)
        return os.path.join(self.task.run, "work", f"worker-{worker:05d}", ARTIFACTS)

    @cached_property
    def dataset(self) -> TrainingDataset:
        """The training dataset of the run."""
        if self.task.dataset is None:
            raise InvalidArgument(
                "The run has no training dataset.", hint="experiments.launch(..., dataset=dataset)"
            )
        return replace(self.task.open_dataset(), matrices=self.matrices)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs of the model: those of the dataset without what an ablation leaves out."""
        left_out = self.task.without
        return tuple(name for name in self.dataset.roles.inputs if name not in left_out)

    def keeps(self, layer: str) -> bool:
        """Tell whether a named layer is part of the model; False in its ablation."""
        return layer not in self.task.without_layers

    @cached_property
    def strategy(self) -> Any:
        """The strategy of ``tf.distribute``; with several workers the first use of TensorFlow."""
        from featurestore.experiments.strategies import make_strategy

        made = make_strategy(self.task.strategy)
        randomness.seed_tensorflow(self.task.seed)
        return made

    def reader(
        self,
        split: str,
        *,
        global_batch_size: int,
        seed: int | None = None,
        shuffle: bool = True,
        remainder: str = "drop",
        columns: Sequence[str] | None = None,
        nulls: str | Mapping[str, Any] = "error",
        lanes: int | None = None,
        window_rows: int | None = None,
        transformed: Any = None,
        class_weights: ClassWeights | None = None,
    ) -> RunReader:
        """Return the reader of a split for this worker; arguments as of ``dataset.reader``."""
        from featurestore.experiments.reading import RunReader, columns_without
        from featurestore.readers import open_reader
        from featurestore.training.transformations import of_dataset

        dataset = self.dataset
        if columns is None:
            roles = {column.name: column.role for column in dataset.manifest.columns}
            columns = columns_without(roles, self.task.without)
        rows = None
        if self.task.fold is not None:
            count = dataset.num_rows(self.task.fold.split)
            split, rows = self.task.fold.rows(split, count)
        reader = open_reader(
            dataset.path,
            dataset.manifest,
            split=split,
            global_batch_size=global_batch_size,
            seed=self.task.seed if seed is None else seed,
            shuffle=shuffle,
            remainder=remainder,
            columns=columns,
            nulls=nulls,
            lanes=lanes,
            window_rows=window_rows,
            transform=of_dataset(dataset, transformed),
            rows=rows,
            class_weights=class_weights,
        )
        reader.order.check_workers(self.worker, self.workers)
        self.readers.append(RunReader(reader, self.worker, self.workers, lambda: self.strategy))
        return self.readers[-1]

    def checkpoint(
        self, objects: Mapping[str, Any] | None = None, *, reader: RunReader | None = None
    ) -> RunCheckpoint:
        """Restore the newest checkpoint, and return the object that saves the next ones.

        Args:
            objects: What is trained: numpy arrays, which are filled in place, or what
                ``tf.train.Checkpoint`` takes.
            reader: Whose position is kept; None: the first one that was asked for.
        """
        from featurestore.readers.checkpoint import ReaderCheckpoint

        chosen = reader or self._first_reader("context.checkpoint()")
        kept = ReaderCheckpoint(
            self.checkpoint_dir,
            chosen.reader,
            objects or {},
            vars(self).get("strategy"),  # where TensorFlow is not used there is none
            position=(self.worker, self.workers),
            begin=self._begin(),
        )
        chosen.epoch, chosen.step = kept.restore()
        return RunCheckpoint(kept, chosen)

    def fit(
        self,
        model: Any,
        *,
        epochs: int,
        reader: RunReader | None = None,
        save_every: int = 1000,
        timeout: float = 600.0,
        validation: RunReader | None = None,
        class_weights: ClassWeights | None = None,
        **options: Any,
    ) -> Any:
        """Fit a compiled Keras model up to ``epochs`` epochs, from the newest checkpoint on.

        What Keras tells of the steps since the last checkpoint is reported at each checkpoint, so
        that a run that was interrupted reports the same.

        Args:
            model: A compiled model; ``tf_keras`` where there are several workers.
            epochs: The epoch to stop before, counted from the first start.
            reader: What to read; None: the first one that was asked for.
            save_every: Steps between two checkpoints.
            timeout: Seconds without a step after which a worker ends.
            validation: A reader of another split: its loss and metrics over every row once are
                reported after each epoch, as ``val_loss`` and so on.
            class_weights: As of ``context.reader``.
            options: What ``model.fit`` takes beside data, epochs and steps.
        """
        from featurestore.experiments.strategies import report_callback
        from featurestore.readers.checkpoint import ReaderCheckpoint

        if self.task.strategy == PARAMETER_SERVER:
            raise InvalidArgument(
                "fit lets each worker of a parameter server run read every row.",
                hint="for step, loss in context.schedule(train_step, epochs=5): ...",
            )
        chosen = reader or self._first_reader("context.fit()")
        randomness.seed_tensorflow(self.task.seed)
        objects = {"model": model, "optimizer": model.optimizer}
        strategy = None
        if self.task.strategy != "none":
            strategy = self.strategy
        kept = ReaderCheckpoint(
            self.checkpoint_dir, chosen.reader, objects, strategy, begin=self._begin()
        )
        told = report_callback(self, model, chosen, save_every=save_every, start=kept.position_of())
        callbacks = [*(options.pop("callbacks", None) or ()), told]
        options.setdefault("verbose", 2 if self.worker == 0 else 0)
        history = kept.fit(
            model,
            epochs,
            validation=validation,
            class_weights=class_weights,
            save_every=save_every,
            timeout=timeout,
            callbacks=callbacks,
            **options,
        )
        chosen.epoch, chosen.step = epochs, 0
        return history

    def _begin(self) -> str | None:
        """Return what to restore: first what all workers begin with, then the newest."""
        first, self._restored = not self._restored, True
        return self.task.checkpoint if first else None

    def schedule(
        self,
        function: Callable[[Any], Any],
        *,
        epochs: int,
        reader: RunReader | None = None,
        checkpoint: RunCheckpoint | None = None,
        save_every: int = 1000,
    ) -> Iterator[tuple[int, Any]]:
        """Have the workers of a parameter server run call a function with each batch, once each.

        Yields (step, what it returned as numpy) in the order of steps, up to ``epochs`` epochs. A
        call whose worker dies is made again on another one: what it had added to variables before
        then counts twice.

        Args:
            function: Takes one batch, ``{column: tensor}``; runs as a ``tf.function``.
            epochs: The epoch to stop before, counted from the first start.
            reader: What to read; None: the first one that was asked for.
            checkpoint: Of ``context.checkpoint``; saved when no call is under way.
            save_every: Steps between two checkpoints.
        """
        if self.task.strategy != PARAMETER_SERVER:
            raise InvalidArgument(
                "context.schedule() is for runs with parameter servers.",
                hint="experiments.parameter_server(train_fn, workers=2), or reader.steps(epochs)",
            )
        from featurestore.experiments.parameter_servers import Schedule

        chosen = reader or self._first_reader("context.schedule()")
        calls = Schedule(self.strategy, function, chosen)
        return calls.results(epochs, checkpoint=checkpoint, save_every=save_every)

    def report(self, step: int, **metrics: Any) -> None:
        """Keep metrics of a step; the first worker's count.

        Raises:
            Stopped: The search gave this trial up.
            InvalidMetric: A value is no finite number.
        """
        number = check_step(step)
        found = check_metrics(metrics, where=f"at step {number}")
        if self.worker > 0:
            return
        self._reports.write(number, found)
        if self.listener is not None and self.listener(number, found):
            raise Stopped(f"The search gave this trial up at step {number}.")

    def save(self, model: Any, name: str = "model") -> str:
        """Save a model with the run, and return the path of its file.

        Every worker calls this after the same step: a model of several workers is saved by all of
        them. One file appears in the artifacts of the run, by a rename, and ``run.json`` contains
        its checksum when the run has ended.

        Args:
            model: A model of Keras (``.keras``), a module or state dict of PyTorch (``.pt``), a
                model of Spark ML (a folder), or an object with ``predict`` (``.joblib``).
            name: The name of the file; the ending is added.

        Raises:
            InvalidArgument: The model is of no known library, or the name is not one of a file.
        """
        directory = self._artifacts_of(0)
        path = save_model(model, directory=directory, name=name, worker=self.worker)
        if self.worker == 0:
            relative = os.path.relpath(path, self.task.run)
            stale = [each for each in self.saved if each.startswith(f"{relative}/")]
            for each in stale:
                del self.saved[each]
            self.saved.update(checksums_below(self.task.run, relative))
        return path

    def close(self) -> None:
        """Close what was reported to, and remove the artifacts of workers after the first."""
        if "_reports" in vars(self):
            self._reports.close()
        if self.worker > 0:
            files.remove(self._artifacts_of(self.worker), below=self.task.run)

    @cached_property
    def _reports(self) -> Reports:
        return Reports(self.task.run, self.task.params)

    def _first_reader(self, call: str) -> RunReader:
        if not self.readers:
            raise InvalidArgument(
                f"{call} needs a reader.", hint='context.reader("train", global_batch_size=...)'
            )
        return self.readers[0]


@dataclass(frozen=True)
class RunCheckpoint:
    """Saves what is trained with the position of a reader."""

    kept: ReaderCheckpoint
    reader: RunReader

    def save(self) -> None:
        """Save now; a run that is started again goes on at the reader's position.

        With several workers all must call this after the same step.
        """
        self.kept.save(self.reader.epoch, self.reader.step)
