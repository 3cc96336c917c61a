"""The reader, whose batches depend only on the manifest, the settings, the epoch and the step."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from featurestore.errors import NotIterable
from featurestore.model.arguments import suggest_arguments
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.model.manifest import Manifest, ManifestSplit
from featurestore.readers.batches import WorkerSteps
from featurestore.readers.class_weights import ClassWeights
from featurestore.readers.columns import NumpyArray, SelectedColumn
from featurestore.readers.order import PADDING, ReaderOrder
from featurestore.readers.plan import Batch, ReadPlan

if TYPE_CHECKING:
    import pyarrow as pa

    from featurestore.readers.checkpoint import ReaderCheckpoint
    from featurestore.readers.torch import ReaderDataset, ReaderLoader

_USAGE = (
    "model.fit(reader.tf_dataset(epochs)) with Keras; with PyTorch "
    "for features, label in reader.torch_loader()"
)


@suggest_arguments
@dataclass(frozen=True)
class Reader:
    """A reader of one split, which yields the batches of each worker for every step.

    Every worker yields ``steps_per_epoch`` batches of the same static shape. A batch depends only
    on the manifest, the settings, the epoch and the step. Readers have no state, and workers do not
    communicate.

    >>> reader = store.get_training_dataset("late_flights").reader("train", global_batch_size=2)
    >>> reader.steps_per_epoch, reader.labels
    (2, ('late',))
    """

    plan: ReadPlan

    def __repr__(self) -> str:
        return (
            f"<Reader of split {self.split.name!r} of {self.manifest.name!r}, "
            f"{self.steps_per_epoch} steps of {self.global_batch_size} rows: {_USAGE}>"
        )

    @property
    def path(self) -> str:
        """The directory of the dataset."""
        return self.plan.path

    @property
    def manifest(self) -> Manifest:
        """The manifest of the dataset."""
        return self.plan.manifest

    @property
    def split(self) -> ManifestSplit:
        """The split that is read."""
        return self.plan.split

    @property
    def order(self) -> ReaderOrder:
        """The order of the rows."""
        return self.plan.order

    @property
    def columns(self) -> tuple[SelectedColumn, ...]:
        """The columns that are read."""
        return self.plan.columns

    @property
    def settings(self) -> JsonMapping:
        """The arguments of the reader, which its states contain."""
        return self.plan.settings

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps per epoch, equal on every worker."""
        return self.order.steps_per_epoch

    @property
    def global_batch_size(self) -> int:
        """Number of rows per step over all workers."""
        return self.order.global_batch_size

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the label columns that are read."""
        return self.plan.labels

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that are read and are neither label nor weight.

        >>> reader = store.get_training_dataset("late_flights").reader("train", global_batch_size=2)
        >>> reader.inputs
        ('temp', 'seats')
        """
        return tuple(
            column.name for column in self.columns if not column.label and not column.weight
        )

    @property
    def weight(self) -> str | None:
        """Name of the weight column, None if it is not read."""
        return self.plan.weight

    def batches(
        self, epoch: int = 0, *, worker: int = 0, workers: int = 1, start_step: int = 0
    ) -> Iterator[Batch]:
        """Yield the batches of one epoch, from ``start_step`` on.

        A batch is ``{column: array of (rows,) or (rows, n)}``. Variable-length lists that
        ``columns=`` names are pairs ``(values, row_splits)``.

        Args:
            epoch: Number of the epoch, from 0.
            worker: Number of this worker, from 0.
            workers: Number of workers; divides the number of lanes.
            start_step: The first step to yield; as fast as starting at 0.

        Raises:
            ReaderConfigError: The workers cannot share the lanes, or the step does not exist.

        >>> reader = store.get_training_dataset("late_flights").reader("train", global_batch_size=2)
        >>> for batch in reader.batches(epoch=1):
        ...     print(batch["temp"].tolist(), batch["late"].tolist())
        [36.0, 37.0] [True, False]
        [38.5, 39.0] [False, True]
        """
        # This method is not a generator, so that errors about arguments are raised immediately.
        steps = WorkerSteps(1, epoch, start_step, worker, workers)
        return self.plan.batches(self.plan.step_ranges(steps))

    def __iter__(self) -> Iterator[Batch]:
        raise self._not_iterable("iterated")

    def __next__(self) -> Batch:
        raise self._not_iterable("iterated")

    def __len__(self) -> int:
        raise self._not_iterable("used as a list")

    def __getitem__(self, _index: object) -> Batch:
        raise self._not_iterable("used as a list")

    # Without this method a truth test would call ``__len__``, which raises an error.
    def __bool__(self) -> bool:
        return True

    def _not_iterable(self, usage: str) -> NotIterable:
        return NotIterable(
            f"A reader cannot be {usage}: its batches belong to an epoch and a worker.",
            hint=f"for batch in reader.batches(epoch): ...; {_USAGE}",
        )

    def rows(
        self, epoch: int, step: int, *, worker: int = 0, workers: int = 1
    ) -> npt.NDArray[np.int64]:
        """Return the canonical row numbers of a batch, -1 for padding, without reading files.

        With ``remainder="keep"`` the last batch is shorter and not padded.

        >>> reader = store.get_training_dataset("late_flights").reader("train", global_batch_size=2)
        >>> reader.rows(1, 0)
        array([1, 3])
        >>> [reader.rows(1, 0, worker=worker, workers=2).tolist() for worker in range(2)]
        [[1], [3]]
        """
        rows = self.order.epoch(epoch).batch(step, worker=worker, workers=workers)
        if self.order.remainder == "keep":
            rows = rows[rows != PADDING]
        return rows

    def unpad(self, predictions: Any, *, epoch: int = 0) -> NumpyArray:
        """Remove the predictions of padding rows.

        Args:
            predictions: The output of ``model.predict`` for an epoch of one worker, (rows, ...).
            epoch: The epoch that was read; with ``shuffle=False``, all epochs have the same order.

        Raises:
            InvalidArgument: The number of predictions is not the number of rows of an epoch.

        >>> dataset = store.get_training_dataset("late_flights")
        >>> reader = dataset.reader("train", global_batch_size=3, shuffle=False, remainder="pad")
        >>> reader.unpad([0.1, 0.7, 0.2, 0.9, 0.5, 0.5])  # the last two are padding
        array([0.1, 0.7, 0.2, 0.9])
        """
        from featurestore.readers.evaluation import remove_padding

        return remove_padding(self.plan, predictions, epoch=epoch)

    def keys(self, *, epoch: int = 0) -> pa.Table:
        """Return the key columns of all rows of an epoch, in reading order.

        Row i is the key of ``unpad(predictions)[i]``.

        >>> dataset = store.get_training_dataset("late_flights")
        >>> reader = dataset.reader("train", global_batch_size=3, shuffle=False, remainder="keep")
        >>> reader.keys().select(["tailnum", "origin"]).slice(0, 2).to_pylist()
        [{'tailnum': 'N10', 'origin': 'LGA'}, {'tailnum': 'N20', 'origin': 'LGA'}]
        """
        from featurestore.readers.evaluation import reading_keys

        return reading_keys(self.plan, epoch=epoch)

    def evaluate(self, model: Any, **options: Any) -> dict[str, float]:
        """Return the loss and the metrics of a model over all rows, without padding.

        Each row counts once. The last batch is short for any ``remainder``, so that ``metrics=``
        and ``weighted_metrics=`` are both correct. Several workers share the rows: each worker must
        call this method, and all get the same metrics.

        Args:
            model: A compiled Keras model. For PyTorch, a function of the elements that
                ``torch_loader`` yields, ``(features, label)`` or ``(features, label, weight)``,
                which returns ``{name: tensor of (rows,)}``. Metrics are means, weighted by a weight
                column or class weights. It is called without gradients; call ``model.eval()``
                first.
            options: Further arguments of ``model.evaluate`` of Keras.

        Raises:
            InvalidArgument: ``model`` is neither a Keras model nor a function, or the function does
                not return a value per row.

        >>> reader = store.get_training_dataset("late_flights").reader("train", global_batch_size=3)
        >>> reader.evaluate(model)  # doctest: +SKIP
        {'AUC': 0.832, 'loss': 0.41}
        >>> def figures(features, label):
        ...     return {"right": model(features).argmax(dim=1) == label}
        >>> reader.evaluate(figures)  # doctest: +SKIP
        {'right': 0.75}
        """
        from featurestore.readers.evaluation import evaluate

        return evaluate(self.plan, model, **options)

    def tf_dataset(
        self,
        epochs: int = 1,
        *,
        worker: int | None = None,
        workers: int | None = None,
        start_epoch: int = 0,
        start_step: int = 0,
    ) -> Any:
        """Return a ``tf.data.Dataset`` of one worker's batches with static shapes.

        Elements are ``(features, label)``, or ``(features, label, sample_weight)`` with
        ``remainder="pad"`` or a weight column. Without label columns, they are ``features`` or
        ``(features, sample_weight)``. Features are a dict, as are several labels.

        Variable-length lists that ``columns=`` names are ``tf.RaggedTensor``.

        Iterating again reads the next epochs: ``model.fit(reader.tf_dataset(), epochs=3)`` sees
        epochs 0, 1 and 2, each in its own order. To continue later, pass ``start_epoch=3``.

        Padding rows have weight 0. Keras applies weights to the loss and to ``weighted_metrics=``,
        but it divides the loss by all rows, ``metrics=`` count padding, and ``predict`` returns
        predictions for it. Keras' ``evaluate``, and so the validation of ``fit``, gets the last
        batch without padding, unless the dataset was changed, as by ``map``. ``remainder="keep"``
        does not pad.

        Args:
            epochs: Number of epochs per iteration; the first may start at ``start_step``.
            worker: Number of this worker, from 0; None is 0.
            workers: Number of workers; divides the number of lanes. None is 1, which is refused in
                a process that is one of several workers of a ``tf.distribute`` strategy.
            start_epoch: The first epoch.
            start_step: The first step of the first epoch. An iteration has that many steps fewer,
                and the next iteration continues at its end.

        Raises:
            ReaderConfigError: The process is one of several workers and ``worker`` is missing.

        >>> reader = store.get_training_dataset("late_flights").reader("train", global_batch_size=2)
        >>> for features, late in reader.tf_dataset(epochs=1):
        ...     print(features["seats"].numpy(), late.numpy())
        [100 200] [False  True]
        [200 100] [ True False]
        >>> dataset = reader.tf_dataset()
        >>> for epoch in range(2):
        ...     print([features["seats"].numpy().tolist() for features, _ in dataset])
        [[100, 200], [200, 100]]
        [[200, 100], [100, 200]]
        """
        from featurestore.readers.keras import dataset_for_keras, refuse_undistributed
        from featurestore.readers.tensorflow import tf_dataset

        if worker is None and workers is None:
            refuse_undistributed(
                hint="model.fit(reader.distribute(strategy), "
                "steps_per_epoch=reader.steps_per_epoch), reader.evaluate(model), "
                "checkpoint.fit(model, epochs, validation=reader); "
                "reader.tf_dataset(worker=0, workers=1) reads all rows in each worker"
            )
            return dataset_for_keras(self.plan, WorkerSteps(epochs, start_epoch, start_step))
        workers = 1 if workers is None else workers
        return tf_dataset(
            self.plan, WorkerSteps(epochs, start_epoch, start_step, worker or 0, workers)
        )

    def distribute(
        self, strategy: Any, epochs: int = 1, *, start_epoch: int = 0, start_step: int = 0
    ) -> Any:
        """Return a distributed dataset of a ``tf.distribute`` strategy.

        Each worker reads its own lanes.

        Iterating again reads the next epochs on all workers, as with ``tf_dataset``. With
        ``remainder="pad"`` Keras' ``evaluate``, and so the validation of ``fit``, gets the last
        batch without padding.

        Args:
            strategy: The strategy; worker number and count come from its input context.
            epochs: Number of epochs to read; the first may start at ``start_step``.
            start_epoch: The first epoch.
            start_step: The first step of the first epoch.

        Raises:
            ReaderConfigError: The strategy has parameter servers.

        >>> reader = store.get_training_dataset("late_flights").reader("train", global_batch_size=2)
        >>> import tensorflow as tf
        >>> strategy = tf.distribute.get_strategy()  # on workers: MultiWorkerMirroredStrategy()
        >>> len(list(reader.distribute(strategy, epochs=3)))  # as many steps as tf_dataset gives
        6
        """
        from featurestore.readers.keras import distribute_for_keras

        return distribute_for_keras(
            self.plan, strategy, WorkerSteps(epochs, start_epoch, start_step)
        )

    def torch_dataset(
        self,
        *,
        rank: int = 0,
        world_size: int = 1,
        epochs: int = 1,
        start_epoch: int = 0,
        start_step: int = 0,
    ) -> ReaderDataset:
        """Return a PyTorch ``IterableDataset`` of one rank's batches of tensors.

        Use it with ``DataLoader(dataset, batch_size=None, num_workers=n)``: the workers share the
        rank's steps, and the loader yields them in order. Elements are ``(features, label)`` as in
        ``tf_dataset``; iterating again reads the next epochs. Tensors are views of the memory that
        was read. Strings are refused unless ``columns=`` names them; then they are lists of bytes.
        Variable-length lists in ``columns=`` are pairs ``(values, row_splits)``.

        Args:
            rank: Number of this process, from 0.
            world_size: Number of processes; divides the number of lanes.
            epochs: Number of epochs per iteration.
            start_epoch: The first epoch.
            start_step: The first step of the first epoch; the first iteration has that many steps
                fewer.

        >>> reader = store.get_training_dataset("late_flights").reader("train", global_batch_size=2)
        >>> for features, late in reader.torch_dataset():
        ...     print(features["seats"].tolist(), late.tolist())
        [100, 200] [False, True]
        [200, 100] [True, False]
        """
        from featurestore.readers.torch import ReaderDataset

        return ReaderDataset(
            self.plan, WorkerSteps(epochs, start_epoch, start_step, rank, world_size)
        )

    def torch_loader(
        self,
        epochs: int = 1,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        start_epoch: int = 0,
        start_step: int = 0,
        num_workers: int = 0,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        multiprocessing_context: Any = None,
    ) -> ReaderLoader:
        """Return a PyTorch ``DataLoader`` of one rank's batches that can be resumed at any step.

        ``loader.state_dict()`` between two batches is the reader's state at the next step.
        ``loader.load_state_dict(state)`` starts the next iteration there, with any number of
        workers. The reader prefetches in its own threads, so ``num_workers=0`` needs the least
        processor time. Workers send ranges of batches in shared memory, at most 32 MiB in
        total, without further copies.

        Args:
            epochs: Number of epochs per iteration.
            rank: Number of this process; None reads it from ``torch.distributed`` when an
                iteration starts.
            world_size: Number of processes, as ``rank``.
            start_epoch: The first epoch.
            start_step: The first step of the first epoch.
            num_workers: Number of worker processes. This and the following arguments are passed to
                ``DataLoader``.
            pin_memory: Whether batches are copied into page-locked memory.
            prefetch_factor: Number of ranges that each worker prefetches.
            persistent_workers: Whether workers survive the end of an iteration.
            multiprocessing_context: The start method of workers.

        >>> reader = store.get_training_dataset("late_flights").reader("train", global_batch_size=2)
        >>> loader = reader.torch_loader()
        >>> for features, late in loader:
        ...     state = loader.state_dict()
        >>> loader.load_state_dict(state)  # the first epoch is over: continue with the second
        >>> [features["seats"].tolist() for features, late in loader]
        [[200, 100], [100, 200]]
        """
        from featurestore.readers.torch import LoaderOptions, ReaderLoader

        options = LoaderOptions(
            num_workers, pin_memory, prefetch_factor, persistent_workers, multiprocessing_context
        )
        return ReaderLoader(
            self.plan,
            WorkerSteps(epochs, start_epoch, start_step),
            rank=rank,
            world_size=world_size,
            options=options,
        )

    def ray_dataset(
        self,
        epoch: int = 0,
        *,
        start_step: int = 0,
        override_num_blocks: int | None = None,
        concurrency: int | None = None,
    ) -> Any:
        """Return a ``ray.data.Dataset`` of the rows of one epoch, in reading order.

        The dataset is lazy. Its blocks are Arrow tables of consecutive steps, which Ray workers
        read as a stream; they need this package and access to the dataset's path. Blocks are
        yielded in order, so ``iter_batches(batch_size=reader.global_batch_size)`` yields the
        batches of ``batches(epoch)``. Vectors are tensors, and variable-length lists that
        ``columns=`` names are lists. With ``remainder="pad"``, padding rows have the
        ``sample_weight`` 0.

        Workers of Ray Train that must resume at the same step use ``torch_loader`` instead.

        Args:
            epoch: Number of the epoch, from 0.
            start_step: The first step to read; as fast as starting at 0.
            override_num_blocks: Number of read tasks; by default Ray decides.
            concurrency: Maximum number of read tasks that run at the same time.

        Raises:
            MissingExtra: Ray or pandas is not installed.
            ReaderConfigError: The epoch or the step does not exist.

        >>> reader = store.get_training_dataset("late_flights").reader("train", global_batch_size=2)
        >>> rows = reader.ray_dataset(epoch=1)  # doctest: +SKIP
        >>> [batch["temp"].tolist() for batch in rows.iter_batches(batch_size=2)]  # doctest: +SKIP
        [[36.0, 37.0], [38.5, 39.0]]
        """
        from featurestore.readers.ray import read_reader

        return read_reader(
            self.plan,
            epoch,
            start_step=start_step,
            override_num_blocks=override_num_blocks,
            concurrency=concurrency,
        )

    def state(self, epoch: int, step: int) -> JsonDict:
        """Return the reader settings and a position as a small JSON object.

        Args:
            epoch: The epoch to resume.
            step: The next step of that epoch.

        >>> dataset = store.get_training_dataset("late_flights")
        >>> state = dataset.reader("train", global_batch_size=2, seed=7).state(epoch=3, step=1)
        >>> reader, epoch, step = dataset.resume(state)
        >>> epoch, step, reader.settings["seed"]
        (3, 1, 7)
        """
        return self.plan.state(epoch, step)

    def checkpoint(
        self,
        directory: str | os.PathLike[str],
        *,
        objects: Mapping[str, Any],
        strategy: Any | None = None,
        keep: int = 2,
    ) -> ReaderCheckpoint:
        """Return checkpoints of the reader state and trained objects (see docs/training.md).

        Args:
            directory: Directory of the checkpoints, shared by all workers.
            objects: Trackable objects as for ``tf.train.Checkpoint``: ``{"model": model,
                "optimizer": optimizer}``.
            strategy: The ``tf.distribute`` strategy of the training, if any.
            keep: Number of checkpoints to keep.

        >>> reader = store.get_training_dataset("late_flights").reader("train", global_batch_size=2)
        >>> checkpoint = reader.checkpoint("run-1", objects={})
        >>> checkpoint.restore()  # no checkpoint yet: start at epoch 0, step 0
        (0, 0)
        """
        from featurestore.readers.checkpoint import ReaderCheckpoint

        return ReaderCheckpoint(os.fspath(directory), self, objects, strategy, keep)

    def weighed(self, class_weights: ClassWeights) -> Reader:
        """Return a copy of this reader with class weights and the same order.

        >>> reader = store.get_training_dataset("late_flights").reader("train", global_batch_size=2)
        >>> next(reader.weighed({0: 1.0, 1: 3.0}).batches())["sample_weight"].tolist()
        [1.0, 3.0]
        """
        return Reader(self.plan.weighed(class_weights))
