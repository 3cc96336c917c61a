"""The reader, whose batches depend only on the manifest, the settings, the epoch and the step."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from featurestore import _current
from featurestore.arrow.schemas import type_from_json
from featurestore.errors import ManifestMismatch, NotIterable, ReaderConfigError
from featurestore.model.arguments import suggest_arguments, with_suggestions
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.model.manifest import Manifest, ManifestSplit
from featurestore.model.runtime import usable_cores
from featurestore.plugins.format import RecordChecksums, find_format
from featurestore.readers.batches import Blocks, Iterations, StepRange, StepRanges, WorkerSteps
from featurestore.readers.blocks import PackedBlocks, RecordBlocks, WindowBlocks
from featurestore.readers.class_weights import (
    ClassWeighting,
    ClassWeights,
    build_class_weighting,
    weights_from_json,
    weights_to_json,
)
from featurestore.readers.columns import (
    PADDING_WEIGHT,
    SAMPLE_WEIGHT,
    Nulls,
    NumpyArray,
    NumpyDtype,
    SelectedColumn,
    select_columns,
    to_numpy,
    to_ragged,
    value_dtype_and_shape,
)
from featurestore.readers.fills import fills_from_json, fills_to_json
from featurestore.readers.order import (
    ORDER_VERSION,
    PADDING,
    ReaderOrder,
    check_at_least_one,
    default_lanes,
    is_integer,
)
from featurestore.readers.prefetch import BufferPool, RangedShardFiles, prefetch
from featurestore.readers.shardfiles import RowRanges, ShardFiles, check_shards
from featurestore.readers.transformed import (
    ArraysFunction,
    Transform,
    TransformedColumns,
    TransformedRecords,
    TransformedWindows,
    plan_transformed_columns,
    zero_based_label_codes,
)
from featurestore.storage import storage_for
from featurestore.storage.shards import ShardCache
from featurestore.storage.verified import VerifiedShards

if TYPE_CHECKING:
    import pyarrow as pa

    from featurestore.readers.checkpoint import ReaderCheckpoint
    from featurestore.readers.torch import ReaderDataset, ReaderLoader

# Arrays by column name. Columns with variable-length lists are ``Ragged``.
Batch = dict[str, Any]

# Default window size: this many rows over all lanes, or fewer if rows are wide. These numbers are
# part of order version 1.
DEFAULT_WINDOW_ROWS = 131_072
DEFAULT_WINDOW_BYTES = 128 * 1024 * 1024

# Size limits of a step range.
_RANGE_ROWS = 32_768
_RANGE_BYTES = 16 * 1024 * 1024
_WIDE_STEP_BYTES = 4 * 1024 * 1024
_WIDE_COLUMN_BYTES = 1024 * 1024
_PREFETCHED_RANGES = 3
# For records in object stores: the number of windows to cache, and the bytes to prefetch.
_CACHED_WINDOWS = 2
_PREFETCHED_BYTES = 256 * 1024 * 1024
_GATHER_THREADS = 2


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

    path: str
    manifest: Manifest = field(repr=False)
    split: ManifestSplit = field(repr=False)
    order: ReaderOrder
    columns: tuple[SelectedColumn, ...] = field(repr=False)
    settings: JsonMapping = field(repr=False)
    transform: TransformedColumns | None = field(default=None, repr=False)
    row_ranges: RowRanges | None = field(default=None, repr=False)
    cache: ShardCache | None = field(default=None, repr=False)
    weighing: ClassWeighting | None = field(default=None, repr=False)
    # The columns before ``weighing`` adds its weight column.
    file_columns: tuple[SelectedColumn, ...] = field(default=(), repr=False)
    verify: bool = field(default=False, repr=False)
    verified: VerifiedShards = field(default_factory=VerifiedShards, repr=False, compare=False)
    # Reusable buffers for object store blocks: allocating pages takes longer than reading a disk.
    memory: BufferPool = field(default_factory=partial(BufferPool, None), repr=False, compare=False)

    def __repr__(self) -> str:
        return (
            f"<Reader of split {self.split.name!r} of {self.manifest.name!r}, "
            f"{self.steps_per_epoch} steps of {self.global_batch_size} rows: {_USAGE}>"
        )

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
        return tuple(column.name for column in self.columns if column.label)

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
        return next((column.name for column in self.columns if column.weight), None)

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
        return self._batches(self.step_ranges(WorkerSteps(1, epoch, start_step, worker, workers)))

    def _batches(self, ranges: StepRanges) -> Iterator[Batch]:
        for steps, arrays in self.read(ranges):
            size = steps.worker_epoch.batch_rows
            for start in range(0, steps.row_count, size):
                yield self.finish_rows(
                    {name: array[start : start + size] for name, array in arrays.items()}
                )

    def finish_rows(self, arrays: Batch) -> Batch:
        """Apply the padding policy and convert variable-length lists, as ``batches`` yields them."""
        return self._convert_ragged_columns(self._apply_padding_policy(arrays))

    def _apply_padding_policy(self, batch: Batch) -> Batch:
        """Remove padding rows from a batch, or convert their weights to the weight column."""
        weight = batch.pop(PADDING_WEIGHT, None)
        if weight is None:
            return batch
        if self.order.remainder == "keep":
            if weight.all():
                return batch
            return {name: array[weight > 0] for name, array in batch.items()}
        # A weight column of the dataset is 0 in padding rows, because all their values are 0.
        if self.weight is None:
            batch[SAMPLE_WEIGHT] = weight
        return batch

    def _convert_ragged_columns(self, batch: Batch) -> Batch:
        """Convert the variable-length lists of a batch to values and row splits."""
        for name, items in self.ragged.items():
            batch[name] = to_ragged(batch[name], items)
        return batch

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

        return remove_padding(self, predictions, epoch=epoch)

    def keys(self, *, epoch: int = 0) -> pa.Table:
        """Return the key columns of all rows of an epoch, in reading order.

        Row i is the key of ``unpad(predictions)[i]``.

        >>> dataset = store.get_training_dataset("late_flights")
        >>> reader = dataset.reader("train", global_batch_size=3, shuffle=False, remainder="keep")
        >>> reader.keys().select(["tailnum", "origin"]).slice(0, 2).to_pylist()
        [{'tailnum': 'N10', 'origin': 'LGA'}, {'tailnum': 'N20', 'origin': 'LGA'}]
        """
        from featurestore.readers.evaluation import reading_keys

        return reading_keys(self, epoch=epoch)

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

        return evaluate(self, model, **options)

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
            return dataset_for_keras(self, WorkerSteps(epochs, start_epoch, start_step))
        workers = 1 if workers is None else workers
        return tf_dataset(self, WorkerSteps(epochs, start_epoch, start_step, worker or 0, workers))

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

        return distribute_for_keras(self, strategy, WorkerSteps(epochs, start_epoch, start_step))

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

        return ReaderDataset(self, WorkerSteps(epochs, start_epoch, start_step, rank, world_size))

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
            self,
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
            self,
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
        if not 0 <= step <= self.steps_per_epoch or epoch < 0:
            raise ReaderConfigError(
                f"Epoch {epoch} has no step {step}: an epoch has {self.steps_per_epoch} steps."
            )
        # The end of an epoch and the start of the next one are the same position.
        if step == self.steps_per_epoch:
            epoch, step = epoch + 1, 0
        return {
            "order_version": ORDER_VERSION,
            "dataset": {"name": self.manifest.name, "version": self.manifest.version},
            "manifest": self.manifest_hash,
            **self.settings,
            "epoch": epoch,
            "step": step,
        }

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
        if self.weighing is not None and self.weighing.labels:
            raise ReaderConfigError(
                "The reader already has class weights.", hint="omit class_weights= in fit"
            )
        transform = None if self.transform is None else self.transform.transform
        selected = self.file_columns or self.columns
        labels = _yielded_labels(self.files(), selected, self.row_ranges, transform)
        weighing = build_class_weighting(
            self.manifest, selected, class_weights, transform=transform, label_values=labels
        )
        if weighing is None:
            return self
        return replace(
            self, columns=weighing.columns(selected), weighing=weighing, file_columns=selected
        )

    @cached_property
    def manifest_hash(self) -> str:
        """The content hash of the manifest."""
        return self.manifest.content_hash

    def check_step(self, step: int) -> None:
        """Raise ReaderConfigError unless ``0 <= step <= steps_per_epoch``."""
        if not 0 <= step <= self.steps_per_epoch:
            raise ReaderConfigError(
                f"start_step={step} is not in an epoch of {self.steps_per_epoch} steps.",
                hint=f"0 to {self.steps_per_epoch}",
            )

    def iterations(self, worker_steps: WorkerSteps) -> Iterations:
        """Return the step ranges of each iteration over a dataset.

        The first iteration has the steps of the worker.
        """
        first, total = worker_steps, self.steps_per_epoch
        steps = max(0, first.epochs * total - first.start_step)

        def ranges_for_iteration(iteration: int) -> StepRanges:
            epoch, step = first.start_epoch, first.start_step
            if iteration and total:
                complete_epochs, step = divmod(step + iteration * steps, total)
                epoch += complete_epochs
            own_steps = WorkerSteps(first.epochs, epoch, step, first.worker, first.workers)
            return self.step_ranges(own_steps, steps=steps)

        return Iterations(ranges_for_iteration)

    def step_ranges(
        self, worker_steps: WorkerSteps, *, steps: int | None = None, max_bytes: int = _RANGE_BYTES
    ) -> StepRanges:
        """Divide the steps of several epochs into ranges that are read together.

        The first range has one step; later ranges grow up to ``max_bytes``. ``steps`` is the
        total number of steps; None reads to the end of the last epoch.

        Raises:
            ReaderConfigError: The workers cannot share the lanes, or the step does not exist.
        """
        self.order.check_workers(worker_steps.worker, worker_steps.workers)
        self.check_step(worker_steps.start_step)
        limit = self.steps_at_once(worker_steps.workers, max_bytes=max_bytes)
        return StepRanges(self.order, worker_steps, max_steps_per_range=limit, steps=steps)

    def steps_at_once(self, workers: int, *, max_bytes: int = _RANGE_BYTES) -> int:
        """Return the maximum number of steps per range.

        Steps with many bytes are read one at a time, because splitting a range into steps would
        cost more than it saves.
        """
        batch = self.order.worker_batch(workers)
        column_bytes = max([column.row_bytes for column in self.columns], default=0)
        is_wide = batch * self.row_bytes >= _WIDE_STEP_BYTES
        # The copy of one large array takes longer than reading a range of one step.
        if is_wide or batch * column_bytes >= _WIDE_COLUMN_BYTES:
            return 1
        rows = min(_RANGE_ROWS, max_bytes // max(1, self.row_bytes))
        return max(1, rows // batch)

    def read(self, ranges: Iterable[StepRange]) -> Iterator[tuple[StepRange, Batch]]:
        """Yield step ranges with columns of shape (steps * batch, ...), prefetched by threads."""
        source = self.blocks()
        # Windows must be read in order, but several threads may gather records.
        threads = 1
        if isinstance(source, PackedBlocks):
            threads = min(_GATHER_THREADS, usable_cores())

        def read(steps: StepRange) -> tuple[StepRange, Batch]:
            return steps, source.read(steps)

        return prefetch(read, ranges, threads=threads, limit=_PREFETCHED_RANGES)

    def files(self) -> ShardFiles:
        """Return the files of the split."""
        split_files = shard_files(
            self.path,
            self.manifest,
            self.split,
            row_ranges=self.row_ranges,
            cache=self.cache,
            verify=self.verify,
            verified=self.verified,
        )
        # Only fixed-width records can be read by ranges; shards of other layouts are cached as
        # files. Without checksums of records, only complete shards can be verified.
        is_cached = split_files.access is None or self.cache is not None
        if self.verify and not isinstance(split_files.access, RecordChecksums):
            is_cached = True
        if is_cached or storage_for(self.path).is_local:
            return split_files
        order = self.order
        # One more block per lane, because lanes may start within a block. One more per shard,
        # because a block that spans two shards is cached in two parts.
        window_blocks = order.lanes * (order.window_rows // order.block_rows + 1)
        return RangedShardFiles(
            self.path,
            self.manifest,
            self.split,
            split_files.format,
            split_files.access,
            row_ranges=self.row_ranges,
            verify=self.verify,
            read_blocks=_CACHED_WINDOWS * window_blocks + len(self.split.shards),
            ahead_bytes=_PREFETCHED_BYTES,
            memory=self.memory,
        )

    def blocks(self) -> Blocks:
        """Return the block reader for this layout."""
        files = self.files()
        file_columns = self.file_columns or self.columns
        finish: ArraysFunction | None = self.weighing
        if self.transform is not None:
            file_columns, finish = self.transform.file_columns, self.transform
            if self.weighing is not None:
                transform, weigh = self.transform, self.weighing
                finish = lambda arrays: weigh(transform(arrays))  # noqa: E731
        if files.access is not None:
            records = RecordBlocks(files, files.access, file_columns)
            return records if finish is None else TransformedRecords(records, finish)
        windows = WindowBlocks(files, file_columns)
        return windows if finish is None else TransformedWindows(windows, finish)

    @cached_property
    def ragged(self) -> dict[str, NumpyDtype]:
        """Item types of the columns that are yielded as variable-length lists."""
        return {column.name: column.items for column in self.columns if column.items is not None}

    @cached_property
    def row_bytes(self) -> int:
        """Size of a row in memory, in bytes."""
        return sum(column.row_bytes for column in self.columns)


def _yielded_labels(
    files: ShardFiles,
    selected: Sequence[SelectedColumn],
    rows: RowRanges | None,
    transform: Transform | None,
) -> dict[str, NumpyArray]:
    """Return the non-null labels of row ranges as readers yield them; {} if ``rows`` is None."""
    if rows is None:
        return {}
    names = [column.name for column in selected if column.label]
    starts, stops = (np.array(bounds, dtype=np.int64) for bounds in zip(*rows, strict=True))
    table = files.read(starts, stops, names)
    values = {}
    for name in names:
        array, present = to_numpy(table[name], name=name)
        if transform is not None and transform.form(name) is not None:
            codes = transform.apply_chain(name, array, present)
            array = zero_based_label_codes(transform, name, codes, real=present)
        values[name] = array if present is None else array[present]
    return values


@with_suggestions
def open_reader(
    path: str,
    manifest: Manifest,
    *,
    split: str,
    global_batch_size: int,
    seed: int = 0,
    shuffle: bool = True,
    remainder: str = "drop",
    columns: Sequence[str] | None = None,
    nulls: Nulls | str = "error",
    lanes: int | None = None,
    window_rows: int | None = None,
    transform: Transform | None = None,
    rows: RowRanges | None = None,
    cache: ShardCache | None = None,
    class_weights: ClassWeights | None = None,
    verify: bool = False,
) -> Reader:
    """Return the reader of a split after checking all settings and the shard files.

    Args:
        path: The dataset's directory.
        manifest: The dataset's manifest.
        split: Name of the split.
        global_batch_size: Number of rows per step over all workers.
        seed: Seed of the order; any integer.
        shuffle: False reads in canonical order.
        remainder: "drop", "keep" or "pad".
        columns: Columns to read; None is the inputs, the labels and the weight.
        nulls: "error", "mask" or ``{column: value}``.
        lanes: Streams of an epoch; None is the largest divisor of the global batch size up to 64.
        window_rows: Rows that are shuffled inside a lane; None is about 131,072 rows over all
            lanes.
        transform: Transformation of decoded columns, if any.
        rows: Ascending ranges of canonical rows to read; None reads all rows.
        cache: Local cache of shards. None reads fixed-width records of an object store by ranges,
            and other remote shards through the default cache of this machine.
        verify: Whether checksums of records or shards are compared when rows are read.
        class_weights: Weights of rows by label: "balanced", ``{class: weight}``, or ``{label:
            either of these}``, if any.

    Raises:
        ReaderConfigError: Settings contradict each other.
        DatasetDamaged: Shards are missing or have another size.
        NullsInColumns: Columns have nulls and no policy covers them.
    """
    _current.record_path_read(path)
    manifest_split = manifest.split(split)
    data_format = find_format(manifest.data_format)
    refusal = data_format.refuse_reading(manifest.layout)
    if refusal is not None:
        raise ReaderConfigError(refusal)
    null_handling: tuple[str, ...] = ()
    padded: tuple[str, ...] = ()
    if transform is not None:
        null_handling, padded = transform.null_handling, transform.padded
    selected = select_columns(
        manifest,
        manifest_split,
        columns=columns,
        nulls=nulls,  # type: ignore[arg-type]
        null_handling=null_handling,
        padded=padded,
    )
    transformed = None
    if transform is not None:
        transformed = plan_transformed_columns(selected, transform)
        selected = transformed.columns
    split_files = shard_files(path, manifest, manifest_split, verify=verify)
    file_columns, label_values = selected, {}
    if class_weights is not None:
        label_values = _yielded_labels(split_files, selected, rows, transform)
    weighing = build_class_weighting(
        manifest, selected, class_weights, transform=transform, label_values=label_values
    )
    if weighing is not None:
        selected = weighing.columns(selected)
    check_at_least_one("global_batch_size", global_batch_size)
    if lanes is None:
        lanes = default_lanes(global_batch_size)
    check_at_least_one("lanes", lanes)
    if window_rows is None:
        window_rows = default_window_rows(manifest, lanes=lanes)
    order = ReaderOrder(
        rows=_count_selected_rows(manifest_split, rows),
        block_rows=manifest.block_rows,
        window_rows=window_rows,
        global_batch_size=global_batch_size,
        lanes=lanes,
        seed=seed,
        shuffle=shuffle,
        remainder=remainder,  # type: ignore[arg-type]
    )
    _refuse_weight_name(selected, remainder)
    check_shards(path, manifest_split)
    split_files.check_rows()
    split_files.close()
    settings = {
        "split": split,
        "global_batch_size": global_batch_size,
        "seed": seed,
        "shuffle": shuffle,
        "remainder": remainder,
        "columns": None if columns is None else list(columns),
        "nulls": nulls if isinstance(nulls, str) else fills_to_json(nulls, manifest),
        "lanes": lanes,
        "window_rows": window_rows,
        "transformed": None if transform is None else transform.sha256,
    }
    if rows is not None:
        settings["rows"] = [list(row_range) for row_range in rows]
    if class_weights is not None:
        settings["class_weights"] = weights_to_json(class_weights)
    return Reader(
        path,
        manifest,
        manifest_split,
        order,
        selected,
        settings,
        transformed,
        rows,
        cache,
        weighing,
        file_columns,
        verify,
        split_files.verified,
    )


def _count_selected_rows(split: ManifestSplit, rows: RowRanges | None) -> int:
    """Return the number of rows to read, after checking the ranges."""
    if rows is None:
        return split.rows
    count, last = 0, 0
    for first, end in rows:
        if not last <= first <= end <= split.rows:
            raise ReaderConfigError(
                f"rows={rows!r} are not ascending ranges of the {split.rows} rows of {split.name!r}."
            )
        count, last = count + end - first, end
    return count


def shard_files(
    path: str,
    manifest: Manifest,
    split: ManifestSplit,
    *,
    row_ranges: RowRanges | None = None,
    cache: ShardCache | None = None,
    verify: bool = False,
    verified: VerifiedShards | None = None,
) -> ShardFiles:
    """Return the files of a split."""
    data_format = find_format(manifest.data_format)
    access = data_format.record_access(manifest.layout)
    verified = VerifiedShards() if verified is None else verified
    return ShardFiles(
        path, manifest, split, data_format, access, row_ranges, cache, verify, verified
    )


def resume(
    path: str,
    manifest: Manifest,
    state: JsonMapping,
    *,
    transform: Transform | None = None,
    cache: ShardCache | None = None,
    verify: bool = False,
) -> tuple[Reader, int, int]:
    """Return (reader, epoch, step) for a state that ``Reader.state`` returned.

    ``transform`` must have the hash that is in the state; ``cache`` is a local shard cache. The
    state does not contain ``verify``, which does not affect the batches.

    Raises:
        ManifestMismatch: The state belongs to another manifest; the message names both hashes.
        ReaderConfigError: The state has another order version, or is incomplete.
    """
    required_keys = (
        "order_version",
        "manifest",
        "epoch",
        "step",
        "split",
        "global_batch_size",
        "lanes",
        "window_rows",
    )
    missing_keys = [name for name in required_keys if name not in state]
    if missing_keys:
        raise ReaderConfigError(f"This is not a reader state: it lacks {', '.join(missing_keys)}.")
    epoch, step = state["epoch"], state["step"]
    if not is_integer(epoch) or not is_integer(step) or epoch < 0:
        raise ReaderConfigError(f"This is not a reader state: epoch={epoch!r}, step={step!r}.")
    if state["order_version"] != ORDER_VERSION:
        raise ReaderConfigError(
            f"The state has order version {state['order_version']}; this release reads order "
            f"version {ORDER_VERSION}.",
            hint="resume with the release that wrote the state",
        )
    if state["manifest"] != manifest.content_hash:
        raise ManifestMismatch(
            f"The state belongs to the dataset with manifest {state['manifest']}; "
            f"{manifest.name!r} version {manifest.version} has manifest {manifest.content_hash}.",
            hint="open the dataset that the run was started with, or start a new run",
        )
    setting_names = ("seed", "shuffle", "remainder", "columns", "nulls", "lanes", "window_rows")
    settings = {name: state[name] for name in setting_names if name in state}
    if isinstance(settings.get("nulls"), Mapping):
        settings["nulls"] = fills_from_json(settings["nulls"], manifest)
    if "class_weights" in state:
        settings["class_weights"] = weights_from_json(state["class_weights"])
    if "rows" in state:
        settings["rows"] = tuple((first, end) for first, end in state["rows"])
    reader = open_reader(
        path,
        manifest,
        split=state["split"],
        global_batch_size=state["global_batch_size"],
        transform=transform,
        cache=cache,
        verify=verify,
        **settings,
    )
    reader.check_step(step)
    return reader, epoch, step


def default_window_rows(manifest: Manifest, *, lanes: int) -> int:
    """Return the default number of rows per window.

    It is a multiple of the block size: about 131,072 rows or 128 MiB over all lanes, whichever is
    less. Sizes are computed from column types, so that the order does not depend on the file format.
    """
    row_bytes = 0
    for column in manifest.columns:
        dtype, shape = value_dtype_and_shape(type_from_json(column.type))
        row_bytes += dtype.itemsize * abs(int(np.prod(shape, dtype=np.int64)))
    rows = min(DEFAULT_WINDOW_ROWS, DEFAULT_WINDOW_BYTES // max(1, row_bytes))
    return max(1, rows // (lanes * manifest.block_rows)) * manifest.block_rows


def _refuse_weight_name(columns: Sequence[SelectedColumn], remainder: str) -> None:
    """Refuse a column that has the reserved name of the padding weights."""
    for column in columns:
        if column.name == SAMPLE_WEIGHT and remainder == "pad" and not column.weight:
            raise ReaderConfigError(
                f"Column {SAMPLE_WEIGHT!r} conflicts with the weight column that padding adds.",
                hint="create the dataset with weight='sample_weight', or read with remainder='drop'",
            )
