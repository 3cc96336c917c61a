"""Executor tasks: functions on the Arrow batches of one partition.

All tasks can be pickled and need no session. Spark pickles them by name, so executors need these
packages.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Generic

import numpy as np
import pyarrow as pa

from featurestore.plugins.engine import Accumulator, BatchFunction, ShardFunction, State
from featurestore.storage.connections import use_options
from featurestore_connectors.spark_delta.failures import encode_errors
from featurestore_connectors.spark_delta.parquet_rows import ParquetRows
from featurestore_connectors.spark_delta.sqltext import rename_columns, to_features, to_storage

Batches = Iterator[pa.RecordBatch]

STATE_FIELDS = "part int, state binary"
RESULT_FIELDS = "shard int, result binary"
MESSAGE_FIELDS = "message binary"

_MESSAGE_BYTES = 16 * 2**20


@dataclass(frozen=True)
class MapTask:
    """Applies a function of feature types to every batch."""

    function: BatchFunction
    input_schema: pa.Schema
    result: pa.Schema

    def __call__(self, batches: Batches) -> Batches:
        """Yield the function's results, converted to storage types."""
        with encode_errors():
            for batch in batches:
                result = self.function(_to_features(batch, self.input_schema))
                yield to_storage(to_features(result.select(self.result.names), self.result))


@dataclass(frozen=True)
class MapSortedTask:
    """Applies a function to the batches of a sorted partition, converted to feature types."""

    function: Callable[[Batches], Batches]
    input_schema: pa.Schema
    result: pa.Schema

    def __call__(self, batches: Batches) -> Batches:
        """Yield the function's results, converted to storage types."""
        with encode_errors():
            for result in self.function(
                _to_features(batch, self.input_schema) for batch in batches
            ):
                yield to_storage(to_features(result.select(self.result.names), self.result))


@dataclass(frozen=True)
class AccumulateTask(Generic[State]):
    """Accumulates the rows of a partition in one pickled state; empty partitions have no state."""

    accumulator: Accumulator[State, Any]
    input_schema: pa.Schema

    def __call__(self, batches: Batches) -> Batches:
        """Yield one row with the partition number and the pickled state."""
        with encode_errors():
            state = accumulate_batches(
                self.accumulator, (_to_features(batch, self.input_schema) for batch in batches)
            )
            if state is not None:
                yield state_batch(_partition_number(), state)


@dataclass(frozen=True)
class AccumulateFilesTask(Generic[State]):
    """Accumulates the rows of one file part per partition.

    ``buckets`` maps storage roots to storage options.
    """

    accumulator: Accumulator[State, Any]
    rows: ParquetRows
    parts: int
    buckets: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)

    def __call__(self, batches: Batches) -> Batches:
        """Yield one row with the partition number and the pickled state."""
        with encode_errors():
            for _ in batches:  # the input only defines the partitions
                pass
            # Worker processes are reused, also by tasks with other options.
            _use_buckets(self.buckets)
            number = _partition_number()
            state = accumulate_batches(self.accumulator, self.rows.part(number, self.parts))
            if state is not None:
                yield state_batch(number, state)


@dataclass(frozen=True)
class StreamTask:
    """Converts the (first ``limit``) rows of a partition to compressed Arrow messages.

    Each message has at most ``batch_rows`` rows.
    """

    input_schema: pa.Schema
    batch_rows: int
    limit: int | None = None

    def __call__(self, batches: Batches) -> Batches:
        """Yield one row per message."""
        with encode_errors():
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            for batch in first_rows(batches, self.limit):
                if batch.num_rows == 0:
                    continue
                # Measure the size of the converted rows, since Spark's batches may have lists of
                # nulls without offsets.
                features = _to_features(batch, self.input_schema)
                message_rows = features.num_rows * _MESSAGE_BYTES // max(1, features.nbytes)
                rows = min(self.batch_rows, max(1, message_rows))
                for start in range(0, features.num_rows, rows):
                    message = _encode_message(features.slice(start, rows), options)
                    yield pa.RecordBatch.from_arrays(
                        [pa.array([message], pa.binary())], ["message"]
                    )


@dataclass(frozen=True)
class ShardsTask:
    """Splits a partition that is sorted by shard, and writes each shard.

    ``buckets`` maps storage roots to storage options.
    """

    write: ShardFunction[Any]
    shard: str
    input_schema: pa.Schema
    buckets: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)

    def __call__(self, batches: Batches) -> Batches:
        """Yield one row per shard with the pickled result."""
        with encode_errors():
            _use_buckets(self.buckets)
            converted = (_to_features(batch, self.input_schema) for batch in batches)
            for number, rows in split_by_shard(converted, self.shard):
                result = self.write(number, rows)
                # Skip rows that the writer did not consume, so that the next shard starts
                # correctly.
                for _ in rows:
                    pass
                columns = [
                    pa.array([number], pa.int32()),
                    pa.array([pickle.dumps(result)], pa.binary()),
                ]
                yield pa.RecordBatch.from_arrays(columns, ["shard", "result"])


def accumulate_batches(accumulator: Accumulator[State, Any], batches: Batches) -> State | None:
    """Return the accumulator state over all batches, or None if there are no rows."""
    state, any_rows = accumulator.start(), False
    for batch in batches:
        if batch.num_rows:
            state = accumulator.update(state, batch)
            any_rows = True
    if any_rows:
        return state
    return None


def first_rows(batches: Batches, limit: int | None) -> Batches:
    """Yield the first ``limit`` rows without reading further batches."""
    if limit is None:
        yield from batches
        return
    remaining = limit
    while remaining > 0:
        batch = next(batches, None)
        if batch is None:
            return
        yield batch.slice(0, remaining)
        remaining -= batch.num_rows


def split_by_shard(batches: Batches, shard: str) -> Iterator[tuple[int, Batches]]:
    """Yield each shard number with an iterator over its batches, from batches sorted by shard.

    Only the current batch is in memory.
    """
    runs = _split_at_shards(batches, shard)
    next_run = next(runs, None)

    def rows(number: int) -> Batches:
        nonlocal next_run
        while next_run is not None and next_run[0] == number:
            yield next_run[1]
            next_run = next(runs, None)

    while next_run is not None:
        number = next_run[0]
        yield number, rows(number)


def merge_table(accumulator: Accumulator[State, Any], table: pa.Table) -> pa.Table:
    """Return one row with the merged state of several partitions, merged in partition order."""
    with encode_errors():
        # The shuffle does not preserve the order of partitions.
        table = table.sort_by("part")
        states = map(pickle.loads, table.column("state").to_pylist())
        merged = merge_states(accumulator, states)
        return pa.Table.from_batches([state_batch(table.column("part")[0].as_py(), merged)])


def merge_states(accumulator: Accumulator[State, Any], states: Iterator[State]) -> State:
    """Return the merged state, or the initial state if there are no states."""
    for first in states:
        return reduce(accumulator.merge, states, first)
    return accumulator.start()


def state_batch(part: int, state: object) -> pa.RecordBatch:
    """Return a batch with one row that contains a pickled state."""
    columns = [pa.array([part], pa.int32()), pa.array([pickle.dumps(state)], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, ["part", "state"])


def read_message(message: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Decode a message of ``StreamTask`` to a batch."""
    with pa.ipc.open_stream(pa.py_buffer(message)) as reader:
        return pa.RecordBatch.from_arrays(reader.read_next_batch().columns, schema=schema)


def _use_buckets(buckets: Mapping[str, Mapping[str, str]]) -> None:
    for root, options in buckets.items():
        use_options(root, options)


def _to_features(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return to_features(rename_columns(batch, schema), schema)


def _encode_message(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _split_at_shards(batches: Batches, shard: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each shard in each batch, from batches sorted by shard."""
    for batch in batches:
        numbers = batch.column(batch.schema.get_field_index(shard)).to_numpy(zero_copy_only=False)
        start = 0
        while start < len(numbers):
            stop = int(np.searchsorted(numbers, numbers[start], side="right"))
            yield int(numbers[start]), batch.slice(start, stop - start)
            start = stop


def _partition_number() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return 0
    return int(context.partitionId())
