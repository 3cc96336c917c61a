"""Parameter servers: variables lie on servers, workers compute what a chief schedules.

The chief reads: each batch travels as the argument of one call of a function, which runs on
whichever worker is free. A ``tf.data`` dataset on the workers would be read by each of them whole,
since under this strategy they are told nothing of one another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from featurestore.errors import InvalidArgument
from featurestore.readers.tensorflow import import_tensorflow

if TYPE_CHECKING:
    from featurestore.experiments.context import RunCheckpoint
    from featurestore.experiments.reading import RunReader
    from featurestore.readers.reader import Batch

# A variable is cut in parts of at least this size, at most one for each server.
PART_BYTES = 256 * 1024
# Calls under way at once; so many are made again at most when a worker is lost.
CALLS_PER_WORKER = 4


def make_strategy() -> Any:
    """Return the strategy of the chief; it waits until workers and servers answer."""
    tf = import_tensorflow()
    resolver = _resolver(tf)
    servers = resolver.cluster_spec().num_tasks("ps")
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=PART_BYTES, max_shards=servers
    )
    return tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)


def serve() -> None:
    """Do what the chief asks for, as a worker or a parameter server, until this process is ended."""
    tf = import_tensorflow()
    resolver = _resolver(tf)
    cluster = resolver.cluster_spec()
    # Calls wait for one another; with fewer threads than members they would wait for ever.
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
    """A call of the function with the batch of a step; its result stays where it was computed."""

    step: int
    batch: dict[str, Any]
    result: Any


@dataclass
class Schedule:
    """The calls of one function, a batch each, that workers are at or have ahead of them."""

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
                f"Each worker has {replicas} devices, and each of them would compute the whole "
                "batch.",
                hint="as many workers as there are devices",
            )
        tf = import_tensorflow()
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        strategy, function = self.strategy, self.function
        self.call = tf.function(lambda batch: strategy.run(function, args=(batch,)))

    def results(
        self, epochs: int, *, checkpoint: RunCheckpoint | None, save_every: int
    ) -> Iterator[tuple[int, Any]]:
        """Yield (step, what the function returned) in the order of steps."""
        workers = _resolver(import_tensorflow()).cluster_spec().num_tasks("worker")
        most = CALLS_PER_WORKER * workers
        saved = True
        for step, batch in self.reader.steps(epochs):
            self._add(step, batch)
            saved = False
            if len(self.waiting) >= most:
                yield self._oldest()
            if checkpoint is not None and (step + 1) % save_every == 0:
                yield from self._rest()
                checkpoint.save()
                saved = True
        yield from self._rest()
        if checkpoint is not None and not saved:
            checkpoint.save()

    def _add(self, step: int, batch: Batch) -> None:
        tf = import_tensorflow()
        tensors = {name: tf.convert_to_tensor(values) for name, values in batch.items()}
        self.waiting.append(ScheduledCall(step, tensors, self._scheduled(tensors)))

    def _scheduled(self, tensors: dict[str, Any]) -> Any:
        return self.coordinator.schedule(self.call, args=(tensors,))

    def _rest(self) -> Iterator[tuple[int, Any]]:
        while self.waiting:
            yield self._oldest()

    def _oldest(self) -> tuple[int, Any]:
        errors = import_tensorflow().errors
        oldest = self.waiting.popleft()
        try:
            return oldest.step, oldest.result.fetch()
        except errors.CancelledError:
            self.coordinator.join()  # raises the error of the call for which this one was cancelled
            raise
        except errors.UnavailableError:
            # TensorFlow computes anew what a lost worker was at, not what it had computed and still
            # held. Where a server is lost instead, this raises.
            return oldest.step, self._scheduled(oldest.batch).fetch()


def _resolver(tf: Any) -> Any:
    return tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc")
