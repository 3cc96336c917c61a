"""Strategies of ``tf.distribute`` by run kind, and scheduled calls on parameter servers.

The chief reads the data: each batch is the argument of one function call, which runs on any free
worker. If the workers read a ``tf.data`` dataset instead, each of them would read all rows, since
the parameter server strategy does not shard datasets.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from featurestore.errors import InvalidArgument
from featurestore.experiments.tasks import PARAMETER_SERVER
from featurestore.readers.evaluation import MetricSums
from featurestore.readers.keras import count_steps
from featurestore.readers.tensorflow import import_tensorflow

if TYPE_CHECKING:
    from featurestore.experiments.context import Context, RunCheckpoint
    from featurestore.experiments.reading import RunReader
    from featurestore.readers.plan import Batch

# Minimum size of a variable's shards; there is at most one shard per server.
SHARD_BYTES = 256 * 1024
# Concurrent calls per worker; when a worker is lost, at most this many calls are repeated.
CALLS_PER_WORKER = 4


def make_strategy(strategy_name: str) -> Any:
    """Create the strategy for a kind of run; see ``LaunchRequest.strategy``."""
    if strategy_name == PARAMETER_SERVER:
        return _parameter_server_strategy()
    tf = importlib.import_module("tensorflow")
    if strategy_name == "multiworker":
        return tf.distribute.MultiWorkerMirroredStrategy()
    if strategy_name == "mirrored":
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()


def report_callback(
    context: Context, model: Any, reader: RunReader, *, save_every: int, start: tuple[int, int]
) -> Any:
    """Create a Keras callback that reports metric means since the last checkpoint."""
    name = "keras"
    # A callback must belong to the same Keras package as the model.
    if any(cls.__module__.split(".")[0] == "tf_keras" for cls in type(model).__mro__):
        name = "tf_keras"
    keras = importlib.import_module(name)
    steps_per_epoch = reader.steps_per_epoch
    earlier = MetricSums(model)

    class ReportCallback(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.completed_steps = self.epoch_start = start[0] * steps_per_epoch + start[1]

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch_start = self.completed_steps

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            previous_steps = self.completed_steps
            self.completed_steps = count_steps(self.epoch_start, batch + 1, steps_per_epoch)
            epoch_ends = self.completed_steps % steps_per_epoch == 0
            # As for checkpoints, an execution of several steps may skip a multiple.
            if (
                not epoch_ends
                and self.completed_steps // save_every == previous_steps // save_every
            ):
                return
            # ``logs`` contains sums over all replicas; the metrics themselves are means.
            metric_values = self.model.get_metrics_result()
            means = {key: float(value) for key, value in metric_values.items()}
            # A run resumed from this checkpoint counts from here, so the sums restart. The epoch
            # metrics of Keras cover all steps of the epoch.
            if epoch_ends:
                earlier.restore()
            else:
                earlier.accumulate()
            context.report(self.completed_steps, **means)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            values = dict(logs or {}).items()
            validation = {key: float(value) for key, value in values if key.startswith("val_")}
            if validation:
                context.report(self.completed_steps, **validation)

    return ReportCallback()


def _parameter_server_strategy() -> Any:
    """Create the chief's strategy after waiting for the workers and servers."""
    tf = import_tensorflow()
    resolver = _make_cluster_resolver(tf)
    servers = resolver.cluster_spec().num_tasks("ps")
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=SHARD_BYTES, max_shards=servers
    )
    return tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)


def serve() -> None:
    """Serve the chief as a worker or parameter server until this process is stopped."""
    tf = import_tensorflow()
    resolver = _make_cluster_resolver(tf)
    cluster = resolver.cluster_spec()
    # Calls wait for each other; with fewer threads than members they would deadlock.
    threads = cluster.num_tasks("worker") + cluster.num_tasks("ps") + 1
    server = tf.distribute.Server(
        cluster,
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
        config=tf.compat.v1.ConfigProto(inter_op_parallelism_threads=max(threads, 4)),
    )
    server.join()


@dataclass
class ScheduledCall:
    """A call for the batch of one step; its result remains on the worker until fetched."""

    step: int
    batch: Batch
    result: Any


@dataclass
class CallQueue:
    """The queue of scheduled calls of one function, one call per batch."""

    strategy: Any
    function: Callable[[Any], Any]
    reader: RunReader
    coordinator: Any = field(init=False)
    call: Any = field(init=False)
    waiting: deque[ScheduledCall] = field(default_factory=deque)

    def __post_init__(self) -> None:
        replicas = self.strategy.num_replicas_in_sync
        if replicas != 1:
            raise InvalidArgument(
                f"Each worker has {replicas} devices, and each device would process every "
                "row of the batch.",
                hint="start one worker per device",
            )
        tf = import_tensorflow()
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        strategy, function = self.strategy, self.function
        self.call = tf.function(lambda batch: strategy.run(function, args=(batch,)))

    def results(
        self, epochs: int, *, checkpoint: RunCheckpoint | None, save_every: int
    ) -> Iterator[tuple[int, Any]]:
        """Yield (step, return value) in step order."""
        workers = _make_cluster_resolver(import_tensorflow()).cluster_spec().num_tasks("worker")
        max_calls = CALLS_PER_WORKER * workers
        saved = True
        for step, batch in self.reader.steps(epochs):
            self._enqueue(step, batch)
            saved = False
            if len(self.waiting) >= max_calls:
                yield self._pop_oldest()
            # A checkpoint must not contain half of the updates of a running call, so all calls end
            # first.
            if checkpoint is not None and (step + 1) % save_every == 0:
                yield from self._drain()
                checkpoint.save()
                saved = True
        yield from self._drain()
        if checkpoint is not None and not saved:
            checkpoint.save()

    def _enqueue(self, step: int, batch: Batch) -> None:
        tf = import_tensorflow()
        tensors = {name: tf.convert_to_tensor(values) for name, values in batch.items()}
        self.waiting.append(ScheduledCall(step, tensors, self._schedule_call(tensors)))

    def _schedule_call(self, tensors: Batch) -> Any:
        return self.coordinator.schedule(self.call, args=(tensors,))

    def _drain(self) -> Iterator[tuple[int, Any]]:
        while self.waiting:
            yield self._pop_oldest()

    def _pop_oldest(self) -> tuple[int, Any]:
        """Wait for the oldest call and return (step, return value)."""
        errors = import_tensorflow().errors
        oldest = self.waiting.popleft()
        try:
            return oldest.step, oldest.result.fetch()
        except errors.CancelledError:
            self.coordinator.join()  # raises the error of the call for which this one was cancelled
            raise
        except errors.UnavailableError:
            # TensorFlow repeats the running call of a lost worker, but not finished calls whose
            # results were not fetched yet. If a server is lost instead, this raises.
            return oldest.step, self._schedule_call(oldest.batch).fetch()


def _make_cluster_resolver(tf: Any) -> Any:
    return tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc")
