"""Shard export: sort the rows and pass each shard to its writer, in parallel.

Rows that fit in memory are sorted shard by shard with numpy. Otherwise DuckDB sorts the rows and
spills.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.batches import concat_arrays, select_rows, take_values
from featurestore.arrow.types import columns_width, is_unbounded
from featurestore.model.threads import independent_tasks
from featurestore.plugins.engine import Relation, ShardFunction
from featurestore.storage.shards import ProcessorSlots
from featurestore_connectors.duckdb_delta import sqltext
from featurestore_connectors.duckdb_delta.large_columns import LargeColumns, is_large
from featurestore_connectors.duckdb_delta.relations import relation
from featurestore_connectors.duckdb_delta.session import Database, relation_lock
from featurestore_connectors.duckdb_delta.streams import (
    batches_of,
    check_columns,
    from_arrow,
    stream,
)

Result = TypeVar("Result")

# numpy uses radix sort for shard numbers below this limit (16 bits).
_RADIX_LIMIT = 2**16
# Writer threads for each thread that computes. The others wait for the disk.
_WRITERS_PER_THREAD = 3
# Maximum bytes of rows to sort in memory; each writer copies one shard. DuckDB's sort is slower.
_MEMORY_BYTES = 512 << 20
# The same limit as a fraction of DuckDB's memory limit; the larger one applies.
_MEMORY_FRACTION = 0.1
# Maximum bytes of queued batches over all shards; the reader blocks when it is reached.
_WAITING_BYTES = 256 << 20
# DuckDB's memory limit during the sort. More memory is hardly faster, and the user's process needs
# it.
_SORT_BYTES = 1 << 30
_SORT_BYTES_PER_THREAD = 128 << 20


def write_shards(
    database: Database,
    rows: Relation,
    *,
    shard: str,
    order: Sequence[str],
    row_count: int | None = None,
    write: ShardFunction[Result],
    threads: int,
) -> list[Result]:
    """Call ``write`` with the sorted rows of each shard; return the results by shard number."""
    check_columns(rows.schema, [shard, *order])
    memory = _available_memory(database, rows.schema, order, row_count)
    has_large = any(map(is_large, rows.schema.types))
    large = LargeColumns()
    try:
        if memory or has_large:
            loaded = InMemoryShards(large, shard=shard, order=order)
            with independent_tasks(max(threads, 1), "featurestore-shards") as pool:
                oversized = _load_rows(database, rows, loaded, pool, memory=memory)
            if oversized is None:
                return _write_in_memory(loaded, write, threads)
            rows = oversized
        sort_keys = [f"{sqltext.quote(name)} ASC NULLS FIRST" for name in (shard, *order)]
        with relation_lock():
            ordered = rows.native.order(", ".join(sort_keys))
        batches = stream(database, relation(ordered, rows.schema))
        # A generator, so that one batch is in memory at a time.
        runs = (
            run
            for batch in batches
            for complete_batch in large.reattach(batch)
            for run in _split_by_shard(complete_batch, shard)
        )
        with database.limit_memory(max(_SORT_BYTES, _SORT_BYTES_PER_THREAD * threads)):
            if threads <= 1:
                # Skip rows that ``write`` did not consume.
                return [
                    write(number, map(itemgetter(1), shard_runs))
                    for number, shard_runs in groupby(runs, key=itemgetter(0))
                ]
            return _write_in_parallel(runs, write, threads)
    finally:
        large.close()


def _available_memory(
    database: Database, schema: pa.Schema, order: Sequence[str], row_count: int | None
) -> int:
    """Return the maximum bytes of rows to sort in memory, or 0 if DuckDB must sort them.

    DuckDB must sort if the rows certainly exceed memory, if the order has non-integer columns, or
    if the user set a memory limit, which only DuckDB enforces.
    """
    if database.limit_is_chosen:
        return 0
    if not all(pat.is_integer(schema.field(name).type) for name in order):
        return 0
    memory = _max_memory(database)
    if row_count is None:
        return memory
    # A lower bound of the size: strings may be short, and large columns are spooled.
    fixed_width_columns = [
        field.name for field in schema if not (is_large(field.type) or is_unbounded(field.type))
    ]
    return memory if row_count * columns_width(schema, fixed_width_columns) <= memory else 0


def _max_memory(database: Database) -> int:
    return max(_MEMORY_BYTES, int(database.memory_limit * _MEMORY_FRACTION))


def _load_rows(
    database: Database,
    rows: Relation,
    loaded: InMemoryShards,
    pool: ThreadPoolExecutor,
    *,
    memory: int,
) -> Relation | None:
    """Load the rows of all shards, up to ``memory`` bytes.

    Returns:
        None if all rows are loaded. If they exceed the limit, a relation of all rows without large
        columns.
    """
    batches = batches_of(database, rows)
    for batch in batches:
        loaded.add(batch, pool)
        # Large columns are spooled first, since they are not part of the sort. If the remaining
        # columns are still too large, DuckDB sorts them.
        if loaded.size > memory:
            loaded.spool(database.scratch)
        if loaded.size > memory:
            later_batches = map(loaded.large.detach_large, batches)
            all_batches = chain(loaded.drain(), later_batches)
            return from_arrow(
                database, pa.RecordBatchReader.from_batches(loaded.schema, all_batches)
            )
    return None


def _write_in_memory(
    loaded: InMemoryShards, write: ShardFunction[Result], threads: int
) -> list[Result]:
    """Call ``write`` for each loaded shard, in parallel."""
    # After an error, shards that have not started are not written.
    stopped = threading.Event()
    threads = max(threads, 1)
    slots = ProcessorSlots(threads)

    def run(number: int) -> Result:
        # The writer releases the slot when only the sync of its file is left.
        with slots.slot():
            if stopped.is_set():
                raise _StoppedError
            try:
                return write(number, loaded.take(number))
            except BaseException:
                stopped.set()
                raise

    with independent_tasks(_WRITERS_PER_THREAD * threads, "featurestore-shards") as pool:
        try:
            results = [pool.submit(run, number) for number in loaded.numbers()]
            wait(results)
        except BaseException:
            stopped.set()
            raise
    return _collect_results(results)


class _StoppedError(Exception):
    """Another shard or the input failed. Raised in writers so that they do not truncate a shard."""


class _BoundedQueues:
    """Bounded queues between the reader and the writers; the reader blocks when they are full."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._bytes = 0
        self._stopped = False

    def put(self, queue: deque[pa.RecordBatch | None], batch: pa.RecordBatch | None) -> bool:
        """Add a batch to a shard's queue (None ends the queue); return False after ``stop``."""
        with self._condition:
            self._condition.wait_for(lambda: self._stopped or self._bytes < _WAITING_BYTES)
            if self._stopped:
                return False
            self._bytes += 0 if batch is None else batch.nbytes
            queue.append(batch)
            self._condition.notify_all()
            return True

    def take(self, queue: deque[pa.RecordBatch | None]) -> Iterator[pa.RecordBatch]:
        """Yield all batches of a shard's queue; raise _StoppedError after ``stop``."""
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._stopped or queue)
                if self._stopped:
                    raise _StoppedError
                batch = queue.popleft()
                self._bytes -= 0 if batch is None else batch.nbytes
                self._condition.notify_all()
            if batch is None:
                return
            yield batch

    def stop(self) -> None:
        """Wake the reader and the writers after an error."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()


def _write_in_parallel(
    runs: Iterator[tuple[int, pa.RecordBatch]], write: ShardFunction[Result], threads: int
) -> list[Result]:
    """Call ``write`` for each shard in its own thread, with batches that arrive shard by shard."""
    waiting = _BoundedQueues()
    results: list[Future[Result]] = []
    queue: deque[pa.RecordBatch | None] = deque()
    current: int | None = None

    def run(number: int, shard_queue: deque[pa.RecordBatch | None]) -> Result:
        try:
            rows = waiting.take(shard_queue)
            result = write(number, rows)
            for _ in rows:  # drain rows that the writer did not consume
                pass
            return result
        except BaseException:
            waiting.stop()
            raise

    # Each shard is complete before the next one begins, so fewer writers suffice.
    with independent_tasks(threads, "featurestore-shards") as pool:
        try:
            for number, batch in runs:
                # Rows arrive shard by shard, so a new number completes the previous shard.
                if number != current:
                    waiting.put(queue, None)
                    queue, current = deque(), number
                    results.append(pool.submit(run, number, queue))
                if not waiting.put(queue, batch):
                    break
            waiting.put(queue, None)
        except BaseException:
            # Also after Ctrl-C, since the writers wait for their queues and the pool waits for the
            # writers.
            waiting.stop()
            raise
    return _collect_results(results)


def _collect_results(futures: Sequence[Future[Result]]) -> list[Result]:
    """Return the results, or raise the first error that is not a consequence of another."""
    for future in futures:
        error = future.exception()
        # Raise the cause, and not the consequence in other shards.
        if error is not None and not isinstance(error, _StoppedError):
            raise error
    return [future.result() for future in futures]


class InMemoryShards:
    """The rows of all shards in memory, grouped by shard.

    Args:
        large: The store of large columns.
        shard: The column with the shard number.
        order: The sort columns within a shard.
    """

    def __init__(self, large: LargeColumns, *, shard: str, order: Sequence[str]) -> None:
        self.large = large
        self.schema = pa.schema([])
        self._shard, self._order = shard, order
        self._batches: list[Future[pa.RecordBatch]] = []
        self._shard_batches: dict[int, list[pa.RecordBatch]] = {}
        self._bytes = 0

    @property
    def size(self) -> int:
        """The size of the rows in memory, in bytes."""
        return self._bytes + self.large.size

    def add(self, batch: pa.RecordBatch, pool: ThreadPoolExecutor) -> None:
        """Add rows of any shards; a thread of the pool groups them by shard."""
        small_columns = self.large.detach_large(batch)
        self.schema = small_columns.schema
        self._bytes += small_columns.nbytes
        self._batches.append(pool.submit(_sort_by_shard, small_columns, self._shard))

    def spool(self, directory: str) -> None:
        """Move large columns, if any, from memory to a file."""
        if not self.large.is_empty and not self.large.is_spooled:
            self.large.spool(directory)

    def numbers(self) -> list[int]:
        """Return the numbers of the non-empty shards; call it after the last ``add``."""
        for grouped in self._batches:
            for number, batch in _split_by_shard(grouped.result(), self._shard):
                self._shard_batches.setdefault(number, []).append(batch)
        self._batches.clear()
        return sorted(self._shard_batches)

    def take(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the sorted rows of a shard and release their memory."""
        batches = self._shard_batches.pop(number)
        keys = [_concat_column(batches, self.schema.get_field_index(name)) for name in self._order]
        order = pa.array(_sorted_indices(keys))
        # Sort column by column, so that at most one column is in memory three times.
        arrays = [
            take_values(_concat_column(batches, index), order) for index in range(len(self.schema))
        ]
        yield from self.large.reattach(pa.RecordBatch.from_arrays(arrays, schema=self.schema))

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows without large columns and release their memory."""
        while self._batches:
            # In any order, since DuckDB sorts the rows.
            yield self._batches.pop().result()


def _split_by_shard(batch: pa.RecordBatch, shard: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split a batch at shard boundaries into pairs of shard number and rows."""
    numbers = _shard_numbers(batch, shard)
    boundaries = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for start, end in pairwise(boundaries):
        if end > start:
            yield int(numbers[start]), batch.slice(start, end - start)


def _shard_numbers(batch: pa.RecordBatch, shard: str) -> npt.NDArray[np.int32]:
    return np.asarray(batch.column(batch.schema.get_field_index(shard)), dtype=np.int32)


def _sort_by_shard(batch: pa.RecordBatch, shard: str) -> pa.RecordBatch:
    """Return the rows of a batch, stably sorted by shard number."""
    numbers = _shard_numbers(batch, shard)
    if len(numbers) == 0 or numbers.min() == numbers.max():
        return batch
    if numbers.max() < _RADIX_LIMIT:
        return select_rows(batch, np.argsort(numbers.astype(np.uint16), kind="stable"))
    return select_rows(batch, np.argsort(numbers, kind="stable"))


def _concat_column(batches: Sequence[pa.RecordBatch], index: int) -> pa.Array:
    return concat_arrays([batch.column(index) for batch in batches])


def _sorted_indices(keys: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """Return the indices that sort rows by integer keys in ascending order, nulls first."""
    if len(keys) == 1 and not keys[0].null_count:
        return np.argsort(keys[0].to_numpy())
    columns = []
    for key in keys:
        columns += [np.asarray(key.is_valid()), np.asarray(key.fill_null(0))]
    # The last key of lexsort is the primary key.
    return np.lexsort(columns[::-1])
