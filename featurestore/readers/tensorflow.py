"""``tf.data`` datasets of readers, with static shapes, for one process or a distribution strategy.

This is the only module of the core that imports TensorFlow. Numpy decodes ranges of many steps, and
all columns of a range are passed to TensorFlow together. With 25 columns, this takes a fifth of the
processor time that slices and bitcasts in the graph take, and the transfer cost is spread over all
steps of the range.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeAlias
from weakref import finalize

import numpy as np

from featurestore.errors import ReaderConfigError, missing_extra
from featurestore.model.runtime import ForkSafeLock, usable_cores
from featurestore.readers.batches import Blocks, Iterations, Packing, WorkerSteps
from featurestore.readers.blocks import PackedBlocks
from featurestore.readers.columns import PADDING_WEIGHT, NumpyArray, NumpyDtype, Tensor, to_ragged
from featurestore.readers.heartbeat import await_at_exit
from featurestore.readers.plan import ReadPlan

_GATHER_THREADS = 4
# The low bits of a range number are its index within the iteration, the high bits the iteration.
_NUMBER_BITS = 40
_PADDING_ADVICE = (
    'remainder="pad": padding rows have weight 0, but Keras counts them in metrics= and predict, '
    "and in mean losses of other datasets, for instance after map(). Use checkpoint.fit(model, "
    "epochs, validation=reader), reader.evaluate(model) and weighted_metrics=, or read with "
    'remainder="keep".'
)
_log = logging.getLogger("featurestore.readers")


@cache
def _log_once(message: str) -> None:
    """Log a message once per process; not a Python warning, since the usage may be correct."""
    _log.warning(message)


# A compiled Keras model, a ``tf.distribute`` strategy, and a ``tf.data`` dataset.
KerasModel: TypeAlias = Any
Strategy: TypeAlias = Any
TfDataset: TypeAlias = Any


def import_tensorflow() -> Any:
    """Import and return ``tensorflow``; raise MissingExtra if it is not installed."""
    try:
        import tensorflow
    except ImportError as error:
        raise missing_extra("tensorflow", "tensorflow") from error
    return tensorflow


def tf_dataset(
    plan: ReadPlan, worker_steps: WorkerSteps, *, replicas: int = 1, unpadded: bool = False
) -> TfDataset:
    """Return the dataset of one worker.

    With several replicas, each step is split into one element per replica, in order. ``unpadded``
    removes the padding rows of ``remainder="pad"``; then the last elements are shorter or empty.
    """
    tf, workers = import_tensorflow(), worker_steps.workers
    batch = plan.order.worker_batch(workers) if workers > 0 else 0
    if replicas > 1 and batch % replicas:
        raise ReaderConfigError(
            f"A worker's batch of {batch} rows cannot be divided among its {replicas} replicas.",
            hint=f"a global_batch_size that is a multiple of {workers * replicas}",
        )
    if replicas > 1 and plan.order.remainder == "keep":
        raise ReaderConfigError(
            f'remainder="keep" cannot be split for {replicas} replicas: its last batch is short.',
            hint='remainder="pad", or "drop"',
        )
    if plan.order.remainder == "pad" and workers == 1 and not unpadded:
        _log_once(_PADDING_ADVICE)
    packing = Packing(plan.columns, plan.order.remainder != "drop", batch // replicas)
    single_step_ranges = replicas == 1 and plan.steps_at_once(workers) == 1
    removes_padding = unpadded or plan.order.remainder == "keep"
    builder = _DatasetBuilder(plan, tf, packing, single_step_ranges, removes_padding)
    dataset = builder.dataset(plan.iterations(worker_steps))
    steps = plan.steps_per_epoch * worker_steps.epochs - worker_steps.start_step
    options = tf.data.Options()
    # Each worker's dataset has only its own rows, so sharding it again would lose rows.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    options.deterministic = True
    # Disable autotuning: it has nothing to tune here, and the end of an epoch would wait up to a
    # second for its thread.
    options.autotune.enabled = False
    # TensorFlow cannot infer the number of elements, which Keras uses as the number of steps.
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(max(0, steps) * replicas))
    return dataset.prefetch(2 * replicas).with_options(options)


@dataclass(frozen=True)
class _DatasetBuilder:
    """A builder of datasets for a reader.

    Attributes:
        single_step_ranges: Whether each range has only one step.
        removes_padding: Whether padding rows are removed from batches.
    """

    plan: ReadPlan
    tf: Any
    packing: Packing
    single_step_ranges: bool
    removes_padding: bool

    def dataset(self, iterations: Iterations) -> TfDataset:
        """Return a dataset of batches; several threads read fixed-width records.

        Variable-length lists cannot be packed, so datasets with such columns are read in order.
        """
        source = _DroppableBlocks(self.plan.blocks)
        if isinstance(source.blocks(), PackedBlocks) and not self.plan.ragged:
            steps = self.numbered_ranges(iterations, source)
        else:
            finish = self._step_element if self.single_step_ranges else self._range_elements
            steps = self.sequential_ranges(iterations).map(self._without_autograph(finish))
        if self.single_step_ranges:
            return steps
        steps = steps.unbatch()
        if self.removes_padding:
            # The steps of a range need the same static size, so remove padding after the split.
            return steps.map(self._without_autograph(self.remove_padding))
        return steps

    def _without_autograph(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Mark a ``map`` function so that autograph does not convert it."""
        unconverted: Callable[..., Any] = self.tf.autograph.experimental.do_not_convert(function)
        return unconverted

    def _range_elements(self, columns: Mapping[str, Tensor]) -> Tensor:
        """Return the elements of a range before they are split into steps."""
        return dict(columns) if self.removes_padding else self.element(columns)

    def _step_element(self, columns: Mapping[str, Tensor]) -> Tensor:
        """Return the element of a single-step range without copying it."""
        step = self.tf.nest.map_structure(self._squeeze_step, self._range_elements(columns))
        return self.remove_padding(step) if self.removes_padding else step

    def _squeeze_step(self, steps: Tensor) -> Tensor:
        """Remove the step dimension of a single-step range."""
        if isinstance(steps, self.tf.RaggedTensor):
            return steps[0]
        return self.tf.squeeze(steps, 0)

    def _ragged_tensor(self, rows: Tensor, items: NumpyDtype) -> Tensor:
        """Convert variable-length lists to a ragged tensor of shape (steps, batch, items)."""
        values, splits = to_ragged(rows, items)
        values = self.tf.constant(values, self._spec((), items).dtype)
        lists = self.tf.RaggedTensor.from_row_splits(values, splits)
        return self.tf.RaggedTensor.from_uniform_row_length(lists, self.packing.batch)

    def numbered_ranges(self, iterations: Iterations, source: _DroppableBlocks) -> TfDataset:
        """Return a dataset of step ranges that several threads read by range number.

        Ranges are converted to dataset elements here and not by a separate ``map``, because each
        ``map`` adds about 10 ms of processor time to the start of an epoch.
        """
        tf, packing = self.tf, self.packing
        finish = self._range_elements
        if self.single_step_ranges and self.removes_padding:
            finish = self.remove_padding
        specs = self._packed_specs()
        transfer = _Transfer(packing, source.blocks().short_strings, self.single_step_ranges)

        @await_at_exit
        def begin() -> Any:
            iteration = iterations.start_iteration()
            first = iteration << _NUMBER_BITS
            return np.array([first, first + len(iterations[iteration])], np.int64)

        @await_at_exit
        def read(number: Tensor) -> list[Tensor]:
            iteration, index = divmod(int(number), 1 << _NUMBER_BITS)
            arrays = source.blocks().read_packed(iterations[iteration][index], packing)
            return transfer.prepare(arrays)

        def numbers(_: Any) -> Any:
            # TensorFlow calls this once per iteration over the dataset.
            bounds = tf.numpy_function(begin, [], tf.int64)
            bounds.set_shape((2,))
            return tf.data.Dataset.range(bounds[0], bounds[1])

        def load(number: Tensor) -> Tensor:
            dtypes = [spec.dtype for spec in specs]
            tensors = tf.numpy_function(read, [number], dtypes, stateful=False)
            for position in transfer.serialized_positions:
                tensors[position] = tf.io.parse_tensor(tensors[position], tf.string)
            for tensor, spec in zip(tensors, specs, strict=True):
                tensor.set_shape(spec.shape)
            return finish(packing.unpack(tensors, tf.unstack))

        ranges = tf.data.Dataset.from_tensors(0).flat_map(self._without_autograph(numbers))
        threads = min(_GATHER_THREADS, usable_cores())
        ranges = ranges.map(
            self._without_autograph(load), num_parallel_calls=threads, deterministic=True
        )
        # Iterators and the datasets of later transformations refer to this dataset.
        finalize(ranges, source.drop).atexit = False
        return ranges

    def sequential_ranges(self, iterations: Iterations) -> TfDataset:
        """Return a dataset of step ranges that are read in order."""
        batch = self.packing.batch

        def generate() -> Iterator[dict[str, Tensor]]:
            ranges = self.plan.read(iterations[iterations.start_iteration()])

            @await_at_exit
            def read_next() -> dict[str, Tensor]:
                _, arrays = next(ranges, (0, {}))
                batches = {}
                for name, array in arrays.items():
                    items = self.plan.ragged.get(name)
                    if items is None:
                        batches[name] = array.reshape(-1, batch, *array.shape[1:])
                    else:
                        batches[name] = self._ragged_tensor(array, items)
                return batches

            # ``read_next`` returns an empty dict after the last range.
            return iter(read_next, {})

        specs = {}
        for name, (dtype, shape) in self.packing.outputs.items():
            specs[name] = self._spec((None, batch, *shape), dtype)
        for name, items in self.plan.ragged.items():
            tf_dtype = self._spec((), items).dtype
            specs[name] = self.tf.RaggedTensorSpec((None, batch, None), tf_dtype, ragged_rank=2)
        return self.tf.data.Dataset.from_generator(generate, output_signature=specs)

    def remove_padding(self, columns: Mapping[str, Tensor]) -> Tensor:
        """Return a batch element without padding rows."""
        outputs = dict(columns)
        rows = self.tf.where(outputs.pop(PADDING_WEIGHT) > 0)[:, 0]
        return self.element(
            {name: self.tf.gather(tensor, rows) for name, tensor in outputs.items()}
        )

    def element(self, columns: Mapping[str, Tensor]) -> Tensor:
        """Return a batch element: features, label and weight."""
        features = dict(columns)
        weight = features.pop(PADDING_WEIGHT, None)
        is_padding = None if weight is None else weight == 0
        if self.plan.weight is not None:
            weight = self.tf.cast(features.pop(self.plan.weight), self.tf.float32)
            weight = self.tf.where(weight == 0, 0.0, weight)
        if is_padding is not None:
            # The sign of its weight distinguishes padding from real rows with weight 0.
            weight = self.tf.where(is_padding, -0.0, weight)
        labels = {name: features.pop(name) for name in self.plan.labels}
        element_parts: list[Tensor] = [features]
        # The null mask of a label stays among the features, so that a loss can use it.
        if len(labels) == 1:
            element_parts.extend(labels.values())
        elif labels:
            element_parts.append(labels)
        if weight is not None:
            element_parts.append(weight)
        return tuple(element_parts) if len(element_parts) > 1 else features

    def _packed_specs(self) -> list[Any]:
        """Return the tensor specs of a packed range."""
        packing = self.packing
        # A single step has no step dimension, since its removal would take an operation per column.
        rows: tuple[int | None, ...] = None, packing.batch
        if self.single_step_ranges:
            rows = (packing.batch,)
        specs = [self._spec((len(names), *rows), dtype) for dtype, names in packing.groups.items()]
        for name in packing.ungrouped:
            dtype, shape = packing.outputs[name]
            specs.append(self._spec((*rows, *shape), dtype))
        return specs

    def _spec(self, shape: tuple[int | None, ...], dtype: Any) -> Any:
        """Return the tensor spec for a shape and numpy type."""
        tf = self.tf
        tf_dtype = tf.string if dtype.kind == "O" else tf.as_dtype(dtype)
        return tf.TensorSpec(shape, tf_dtype)


@dataclass(frozen=True)
class _Transfer:
    """The form in which the packed arrays of a range are passed to TensorFlow.

    Attributes:
        short_strings: The columns of strings that are serialized, which copies them several times.
        single_step: Whether to remove the step dimension.
    """

    packing: Packing
    short_strings: frozenset[str]
    single_step: bool

    @cached_property
    def serialized_positions(self) -> list[int]:
        """The positions of serialized columns among the packed arrays."""
        groups = len(self.packing.groups)
        return [
            groups + position
            for position, name in enumerate(self.packing.ungrouped)
            if name in self.short_strings
        ]

    def prepare(self, arrays: list[NumpyArray]) -> list[NumpyArray]:
        """Return the arrays to pass to TensorFlow."""
        if self.single_step:
            groups = len(self.packing.groups)
            arrays = [array[:, 0] for array in arrays[:groups]] + [
                array[0] for array in arrays[groups:]
            ]
        for position in self.serialized_positions:
            arrays[position] = serialize_strings(arrays[position])
        return arrays


def serialize_strings(array: NumpyArray) -> NumpyArray:
    """Return an array of strings as a serialized ``TensorProto``, in an array of one object.

    TensorFlow parses it in half of the time that it takes to convert Python objects or numpy
    strings, and without the GIL. ``tensor_content`` has all lengths as varints, then all bytes.
    """
    values = array.reshape(-1)
    if values.dtype.kind == "S" and values.dtype.itemsize < 128:
        raw = values.view(np.uint8).reshape(len(values), -1)
        width = raw.shape[1]
        if raw[:, -1].all():
            content = [bytes([width]) * len(values), raw.tobytes()]
        else:
            lengths = np.char.str_len(values).astype(np.uint8)
            content = [lengths.tobytes(), raw[np.arange(width) < lengths[:, None]].tobytes()]
    else:
        strings = values.tolist()
        content = [b"".join(map(_varint, map(len, strings))), *strings]
    dimensions = [_field(2, b"\x08" + _varint(size)) for size in array.shape]
    shape = _field(2, b"".join(dimensions))
    # dtype: DT_STRING.
    serialized = b"\x08\x07" + shape + _field(4, b"".join(content))
    return np.array(serialized, dtype=object)


def _field(number: int, data: bytes) -> bytes:
    """Return a protobuf field of bytes."""
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """Return the protobuf varint of a number."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


class _DroppableBlocks:
    """The blocks of a reader, which are opened again if a range is read after they were dropped.

    TensorFlow keeps the functions of ``numpy_function`` until the process ends: it appends them to
    the default graph. Without ``drop``, each dataset of a process would keep its buffers, memory
    maps and prefetch threads.
    """

    def __init__(self, open_blocks: Callable[[], Blocks]) -> None:
        self._open_blocks = open_blocks
        self._blocks: Any = None
        self._lock = ForkSafeLock()

    def blocks(self) -> Any:
        """Return the open blocks."""
        with self._lock:
            if self._blocks is None:
                self._blocks = self._open_blocks()
            return self._blocks

    def drop(self) -> None:
        """Drop the blocks; calls that still read them keep them until they return."""
        self._blocks = None


def distribute(
    plan: ReadPlan, strategy: Strategy, steps: WorkerSteps, *, unpadded: bool = False
) -> TfDataset:
    """Return a distributed dataset in which each input pipeline reads its own lanes.

    ``unpadded`` removes padding rows, so that the last batches of an epoch are short. The reader's
    order must then be padded, and the numbers of workers and replicas must divide its global batch
    size.
    """
    import_tensorflow()

    def worker_dataset(context: Any) -> TfDataset:
        worker, workers = context.input_pipeline_id, context.num_input_pipelines
        return tf_dataset(
            plan,
            WorkerSteps(steps.epochs, steps.start_epoch, steps.start_step, worker, workers),
            replicas=context.num_replicas_in_sync // workers,
            unpadded=unpadded,
        )

    return strategy.distribute_datasets_from_function(worker_dataset)


def multi_replica_strategy(model: KerasModel) -> Any | None:
    """Return the multi-replica ``tf.distribute`` strategy of a Keras model, if any."""
    for attribute in ("distribute_strategy", "_distribute_strategy"):
        strategy = getattr(model, attribute, None)
        if getattr(strategy, "num_replicas_in_sync", 1) > 1:
            return strategy
    return None


@contextmanager
def average_replicas(model: KerasModel, strategy: Strategy) -> Iterator[None]:
    """Set per-replica variables to their mean over replicas, and restore them at exit.

    Such variables are the moving averages of BatchNormalization, whose means a saved model should
    contain. All workers must enter this context together.
    """
    tf = import_tensorflow()
    replica_values = []
    for variable in model.non_trainable_variables:
        if (
            getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ
            and getattr(variable, "aggregation", None) == tf.VariableAggregation.MEAN
        ):
            local_values = strategy.experimental_local_results(variable)
            replica_values.append((variable, [local.numpy() for local in local_values]))
    for variable, _ in replica_values:
        mean = variable.read_value()
        for local in strategy.experimental_local_results(variable):
            local.assign(mean)
    try:
        yield
    finally:
        for variable, values in replica_values:
            for local, value in zip(
                strategy.experimental_local_results(variable), values, strict=True
            ):
                local.assign(value)


def worker_position(strategy: Strategy | None) -> tuple[int, int]:
    """Return the worker number of this process and the worker count; (0, 1) without a strategy.

    A chief is worker 0, as in the strategy's own input contexts.
    """
    resolver = getattr(strategy, "cluster_resolver", None)
    if resolver is None:
        return 0, 1
    cluster = resolver.cluster_spec().as_dict()
    chiefs, workers = len(cluster.get("chief", ())), len(cluster.get("worker", ()))
    if chiefs + workers < 2:
        return 0, 1
    if resolver.task_type == "chief":
        return 0, chiefs + workers
    return chiefs + int(resolver.task_id), chiefs + workers


def write_objects(prefix: str, objects: Mapping[str, object]) -> None:
    """Write the variables of trackable objects.

    Under a strategy all workers must call this together.
    """
    import_tensorflow().train.Checkpoint(**objects).write(prefix)


def read_objects(prefix: str, objects: Mapping[str, object]) -> None:
    """Read the variables of trackable objects."""
    # Without the assertion, an object that is not in the checkpoint would keep its initial values.
    import_tensorflow().train.Checkpoint(**objects).read(prefix).assert_existing_objects_matched()


def keras_callback(
    model: KerasModel,
    *,
    on_fit_start: Callable[[], None],
    on_epoch_start: Callable[[], None],
    after_step: Callable[[int], None],
    after_epoch: Callable[[], None],
) -> Any:
    """Return a callback for the Keras package that ``model`` belongs to.

    Keras calls ``on_fit_start()`` at the start of a fit and ``on_epoch_start()`` at the start of
    each epoch. It calls ``after_step(n)`` after each step, with the number of steps in this epoch
    so far, and ``after_epoch()`` after the validation at the end of an epoch.
    """
    keras = keras_module(model)

    class ReaderCallback(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_begin(self, logs: object = None) -> None:
            on_fit_start()

        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            after_epoch()

        def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
            on_epoch_start()

        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            after_step(batch + 1)

    return ReaderCallback()


def keras_module(model: KerasModel) -> Any:
    """Return the package of a model: ``keras`` or ``tf_keras``."""
    import importlib

    # Both tf_keras (Keras 2) and keras (Keras 3) may be installed, and callbacks must come from the
    # same package as the model.
    packages = {base_class.__module__.split(".")[0] for base_class in type(model).__mro__}
    name = "tf_keras" if "tf_keras" in packages else "keras"
    return importlib.import_module(name)


def has_parameter_servers(strategy: Strategy) -> bool:
    """Return whether a strategy has parameter servers."""
    strategy_class = import_tensorflow().distribute.ParameterServerStrategy
    return isinstance(strategy, strategy_class)
