"""Context of a training function: readers, checkpoints, reports and directories.

Modules that read data are imported on first use, because worker startup dominates the cost of a
short trial.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from featurestore.errors import InvalidArgument, Stopped
from featurestore.experiments.run_files import (
    ARTIFACTS,
    TENSORBOARD,
    Reports,
    check_metrics,
    check_step,
    checksums_below,
    save_model,
)
from featurestore.experiments.tasks import PARAMETER_SERVER, seed_tensorflow
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.storage import storage_for

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
    """The view that one worker has of its run.

    ``listener`` receives each report and returns True to stop the trial.
    """

    task: Task
    listener: Listener | None = None
    readers: list[RunReader] = field(default_factory=list)
    matrices: list[JsonDict] = field(default_factory=list)
    saved: dict[str, str] = field(default_factory=dict)
    _restored: bool = field(default=False, init=False)

    @property
    def params(self) -> JsonDict:
        """The parameters of the run."""
        return dict(self.task.params)

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return os.path.basename(self.task.run)

    @property
    def worker(self) -> int:
        """The zero-based index of this worker."""
        return self.task.worker

    @property
    def workers(self) -> int:
        """The number of workers."""
        return self.task.workers

    @property
    def seed(self) -> int:
        """The seed of the run; Python, numpy and TensorFlow are already seeded with it."""
        return self.task.seed

    @property
    def attempt(self) -> int:
        """The number of times that the run has been started, from 1."""
        return self.task.attempt

    @property
    def directory(self) -> str:
        """The directory of the run, shared by all workers."""
        return self.task.run

    @property
    def checkpoint_dir(self) -> str:
        """The checkpoint directory."""
        return os.path.join(self.task.run, CHECKPOINTS)

    @property
    def log_dir(self) -> str:
        """The directory of TensorBoard events."""
        return os.path.join(self.task.run, TENSORBOARD)

    @property
    def artifact_dir(self) -> str:
        """The directory of the run's artifacts, created on first use.

        Each worker has its own directory. The run keeps the first worker's directory; the others
        are removed when their workers end.
        """
        directory = self._artifact_dir_of(self.worker)
        storage_for(directory).make_directory(directory)
        return directory

    def _artifact_dir_of(self, worker: int) -> str:
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
        """The model inputs: the inputs of the dataset without the ablated ones."""
        left_out = self.task.without
        return tuple(name for name in self.dataset.roles.inputs if name not in left_out)

    def keeps(self, layer: str) -> bool:
        """Return whether the model includes a layer; False if an ablation removes it."""
        return layer not in self.task.without_layers

    @cached_property
    def strategy(self) -> Any:
        """The ``tf.distribute`` strategy; with several workers, access it before any TensorFlow."""
        from featurestore.experiments.strategies import make_strategy
        from featurestore.readers.checkpoint import HEARTBEATS
        from featurestore.readers.heartbeat import Heartbeat

        with ExitStack() as stack:
            # The strategies of several workers wait for each other at the start.
            if self.workers > 1:
                directory = os.path.join(self.checkpoint_dir, HEARTBEATS)
                stack.enter_context(Heartbeat(directory, worker=self.worker, workers=self.workers))
            tf_strategy = make_strategy(self.task.strategy)
        # Worker processes seed TensorFlow at their start only if it is already imported.
        seed_tensorflow(self.task.seed)
        return tf_strategy

    def reader(
        self,
        split: str,
        *,
        global_batch_size: int,
        seed: int | None = None,
        shuffle: bool = True,
        remainder: str = "drop",
        columns: Sequence[str] | None = None,
        nulls: str | JsonMapping = "error",
        lanes: int | None = None,
        window_rows: int | None = None,
        transformed: Any = None,
        class_weights: ClassWeights | None = None,
        verify: bool = False,
    ) -> RunReader:
        """Create a reader of a split for this worker; see ``dataset.reader`` for the arguments."""
        from featurestore.experiments.reading import RunReader, columns_without
        from featurestore.readers import open_reader
        from featurestore.training.transformations import resolve_transformations

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
            transform=resolve_transformations(dataset, transformed),
            rows=rows,
            class_weights=class_weights,
            verify=verify,
        )
        # Raise errors here rather than at the first batch.
        reader.order.check_workers(self.worker, self.workers)
        # The strategy is created on first use, so that functions without TensorFlow never import
        # it.
        self.readers.append(RunReader(reader, self.worker, self.workers, lambda: self.strategy))
        return self.readers[-1]

    def checkpoint(
        self, objects: Mapping[str, Any] | None = None, *, reader: RunReader | None = None
    ) -> RunCheckpoint:
        """Restore the newest checkpoint, and return an object that saves further checkpoints.

        Args:
            objects: The objects to train: numpy arrays, which are restored in place, or objects
                for ``tf.train.Checkpoint``.
            reader: The reader whose position is saved; None for the first reader of the run.
        """
        from featurestore.readers.checkpoint import ReaderCheckpoint

        run_reader = reader or self._first_reader("context.checkpoint()")
        reader_checkpoint = ReaderCheckpoint(
            self.checkpoint_dir,
            run_reader.reader,
            objects or {},
            vars(self).get("strategy"),  # absent if TensorFlow is not used
            position=(self.worker, self.workers),
            begin=self._take_initial_checkpoint(),
        )
        run_reader.epoch, run_reader.step = reader_checkpoint.restore()
        return RunCheckpoint(reader_checkpoint, run_reader)

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
        """Fit a compiled Keras model up to ``epochs`` epochs, starting at the newest checkpoint.

        Metrics over the steps since the last checkpoint are reported at each checkpoint, so that an
        interrupted run reports the same values.

        Args:
            model: A compiled model; a ``tf_keras`` model with several workers.
            epochs: The epoch to stop before, counted from the first start.
            reader: The reader; None for the first reader of the run.
            save_every: Number of steps between checkpoints.
            timeout: Number of seconds without a step after which a worker ends.
            validation: A reader of another split. Loss and metrics over all of its rows are
                reported after each epoch as ``val_loss`` and so on.
            class_weights: See ``context.reader``.
            options: Further arguments of ``model.fit``, except data, epochs and steps.
        """
        from featurestore.experiments.strategies import report_callback
        from featurestore.readers.checkpoint import ReaderCheckpoint

        # The input contexts of this strategy are (0, 1) for every worker.
        if self.task.strategy == PARAMETER_SERVER:
            raise InvalidArgument(
                "fit does not support parameter servers: each worker would read every row.",
                hint="for step, loss in context.schedule(train_step, epochs=5): ...",
            )
        run_reader = reader or self._first_reader("context.fit()")
        seed_tensorflow(self.task.seed)
        objects = {"model": model, "optimizer": model.optimizer}
        strategy = None
        if self.task.strategy != "none":
            strategy = self.strategy
        reader_checkpoint = ReaderCheckpoint(
            self.checkpoint_dir,
            run_reader.reader,
            objects,
            strategy,
            begin=self._take_initial_checkpoint(),
        )
        callback = report_callback(
            self, model, run_reader, save_every=save_every, start=reader_checkpoint.position_of()
        )
        callbacks = [*(options.pop("callbacks", None) or ()), callback]
        # The output is a log file, so print one line per epoch and no progress bar.
        options.setdefault("verbose", 2 if self.worker == 0 else 0)
        history = reader_checkpoint.fit(
            model,
            epochs,
            validation=validation,
            class_weights=class_weights,
            save_every=save_every,
            timeout=timeout,
            callbacks=callbacks,
            **options,
        )
        # Keras iterates the dataset of the underlying reader, which does not move this position.
        run_reader.epoch, run_reader.step = epochs, 0
        return history

    def _take_initial_checkpoint(self) -> str | None:
        """Return the common checkpoint of all workers on the first call, then None (the newest)."""
        # Workers start at different times: the first one may save a newer checkpoint before the
        # last one restores.
        is_first_call, self._restored = not self._restored, True
        return self.task.checkpoint if is_first_call else None

    def schedule(
        self,
        function: Callable[[Any], Any],
        *,
        epochs: int,
        reader: RunReader | None = None,
        checkpoint: RunCheckpoint | None = None,
        save_every: int = 1000,
    ) -> Iterator[tuple[int, Any]]:
        """Schedule a function call for each batch on the workers of a parameter server run.

        Yields (step, return value as numpy) in the order of steps, up to ``epochs`` epochs. A call
        whose worker dies is repeated on another one, so its earlier updates of variables count
        twice.

        Args:
            function: Takes one batch, ``{column: tensor}``; runs as a ``tf.function``.
            epochs: The epoch to stop before, counted from the first start.
            reader: The reader; None for the first reader of the run.
            checkpoint: A checkpoint from ``context.checkpoint``; saved while no call is running.
            save_every: Number of steps between checkpoints.
        """
        if self.task.strategy != PARAMETER_SERVER:
            raise InvalidArgument(
                "context.schedule() is for runs with parameter servers.",
                hint="experiments.parameter_server(train_fn, workers=2), or reader.steps(epochs)",
            )
        from featurestore.experiments.strategies import CallQueue

        run_reader = reader or self._first_reader("context.schedule()")
        calls = CallQueue(self.strategy, function, run_reader)
        return calls.results(epochs, checkpoint=checkpoint, save_every=save_every)

    def report(self, step: int, **metrics: Any) -> None:
        """Report the metrics of a step. Only the first worker's metrics are recorded.

        Raises:
            Stopped: The search stopped this trial.
            InvalidMetric: A value is not a finite number.
        """
        # Check before the early return, so that invalid metrics fail on every worker.
        number = check_step(step)
        values = check_metrics(metrics, location=f"at step {number}")
        if self.worker > 0:
            return
        # Write before the listener decides, so that the report that stops a trial is recorded.
        self._reports.write(number, values)
        if self.listener is not None and self.listener(number, values):
            raise Stopped(f"The search stopped this trial at step {number}.")

    def save(self, model: Any, name: str = "model", *, inputs: Any = None) -> str:
        """Save a model with the run, and return the path of its file.

        Every worker must call this after the same step, because saving a distributed model involves
        all workers. One file is published in the run's artifacts by a rename, and ``run.json``
        contains its checksum once the run has ended.

        Args:
            model: A Keras model (``.keras``), a program of ``torch.export`` (``.pt2``), a function
                of ``jax.export`` (``.jax``), a booster of XGBoost (``.ubj``) or LightGBM (``.txt``),
                a PyTorch module or state dict (``.pt``), a Spark ML model (a folder), or an object
                with ``predict`` (``.joblib``).
            name: The file name; the extension is added.
            inputs: The first rows of the first split, in the order of ``dataset.matrix`` and
                ``dataset.read``, as the model takes them: an array of (rows, columns),
                ``{column: array}``, or a DataFrame of pandas or polars. The run records the names
                and dtypes of the columns, and with one worker what the model predicts for a few of
                the rows. ``register_model`` predicts them again and compares.

        Raises:
            InvalidArgument: The library of the model is unknown, the file name is invalid, or
                ``inputs`` has another form.
        """
        directory = self._artifact_dir_of(0)
        path = save_model(model, directory=directory, name=name, worker=self.worker)
        if self.worker == 0:
            relative = os.path.relpath(path, self.task.run)
            # A Spark model is a folder: files of an earlier save with this name were removed.
            stale_paths = [saved for saved in self.saved if saved.startswith(f"{relative}/")]
            for stale_path in stale_paths:
                del self.saved[stale_path]
            self.saved.update(checksums_below(self.task.run, relative))
            if inputs is not None:
                from featurestore.experiments.models.recorded_inputs import record_inputs

                # The predictions of a distributed model involve all workers.
                state = record_inputs(
                    model,
                    inputs,
                    path=path,
                    artifact=relative,
                    dataset=self.dataset,
                    predicts=self.workers == 1,
                )
                self.matrices.append(state)
        return path

    def close(self) -> None:
        """Close the reports, and remove the artifacts of all workers except the first."""
        # Accessing the cached property would create the files of a run without reports.
        if "_reports" in vars(self):
            self._reports.close()
        if self.worker > 0:
            directory = self._artifact_dir_of(self.worker)
            storage_for(directory).remove(directory, below=self.task.run)

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
    """Saves the objects being trained together with the reader's position."""

    checkpoint: ReaderCheckpoint
    reader: RunReader

    def save(self) -> None:
        """Save the current state; a restarted run continues from the reader's position.

        All workers must call this after the same step.
        """
        self.checkpoint.save(self.reader.epoch, self.reader.step)
