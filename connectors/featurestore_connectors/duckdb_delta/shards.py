"""Shards of a training dataset.

Each shard's rows in order to its writer, as many writers at a time as threads.

Rows that fit in memory are sorted shard by shard. More of them DuckDB sorts, which spills.
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

from featurestore.arrow.arrow_rows import concat_arrays, select_rows, take_values
from featurestore.arrow.widths import is_unbounded, width_of_columns
from featurestore.plugins.engine import Relation, ShardFunction
from featurestore_connectors.duckdb_delta import sqltext
from featurestore_connectors.duckdb_delta.large_columns import LargeColumns, is_large
from featurestore_connectors.duckdb_delta.relations import check_columns, from_arrow, relation
from featurestore_connectors.duckdb_delta.session import Database, building
from featurestore_connectors.duckdb_delta.streams import batches_of, stream

Result = TypeVar("Result")

# Below this numpy sorts shard numbers by radix.
_RADIX_LIMIT = 2**16
# Writers beyond the threads: one waits for the disk while the others work.
_MORE_WRITERS = 1
# What may be sorted here: each writer holds a shard of it once more. DuckDB takes longer to sort.
_MEMORY_BYTES = 512 << 20
# Of what DuckDB may take, where that is more.
_SHARE_OF_MEMORY = 0.1
# What may wait for writers, over all shards: the reader pauses beyond it.
_WAITING_BYTES = 256 << 20
# What the sort may take: more makes it hardly faster, and the process is the user's.
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
    """Call ``write`` for each shard with its rows in order; return the results by shard number."""
    check_columns(rows.schema, [shard, *order])
    memory = _memory(database, rows.schema, order, row_count)
    has_large = any(map(is_large, rows.schema.types))
    large = LargeColumns()
    try:
        if memory or has_large:
            loaded = InMemoryShards(large, shard=shard, order=order)
            with ThreadPoolExecutor(max(threads, 1)) as pool:
                too_many = _load(database, rows, loaded, pool, memory=memory)
            if too_many is None:
                return _write_in_memory(loaded, write, threads)
            rows = too_many
        sort_keys = [f"{sqltext.quote(name)} ASC NULLS FIRST" for name in (shard, *order)]
        with building():
            ordered = rows.native.order(", ".join(sort_keys))
        batches = stream(database, relation(ordered, rows.schema))
        runs = _all_runs(batches, shard, large)
        with database.sparing(max(_SORT_BYTES, _SORT_BYTES_PER_THREAD * threads)):
            if threads <= 1:
                results = []
                for number, part in _one_after_another(runs):
                    results.append(write(number, part))
                return results
            return _beside_each_other(runs, write, threads)
    finally:
        large.close()


def _memory(
    database: Database, schema: pa.Schema, order: Sequence[str], row_count: int | None
) -> int:
    """Return how many bytes of rows may be sorted here; 0 where they are sure to be more.

    0 also where the order is none of whole numbers. A limit that the user chose is DuckDB's to keep.
    """
    if database.limit_is_chosen:
        return 0
    if not all(pat.is_integer(schema.field(name).type) for name in order):
        return 0
    memory = _most_memory(database)
    if row_count is None:
        return memory
    # What has to be there at least: texts may be short, and large columns wait in a file.
    sure = [each.name for each in schema if not (is_large(each.type) or is_unbounded(each.type))]
    return memory if row_count * width_of_columns(schema, sure) <= memory else 0


def _most_memory(database: Database) -> int:
    return max(_MEMORY_BYTES, int(database.memory_limit * _SHARE_OF_MEMORY))


def _load(
    database: Database,
    rows: Relation,
    loaded: InMemoryShards,
    pool: ThreadPoolExecutor,
    *,
    memory: int,
) -> Relation | None:
    """Take in the rows of all shards, as far as memory reaches.

    Returns:
        None, or a relation of all rows, without their large columns, where there are too many.
    """
    batches = batches_of(database, rows)
    for batch in batches:
        loaded.add(batch, pool)
        if loaded.size > memory:
            loaded.move_to_file(database.scratch)
        if loaded.size > memory:
            rest = map(loaded.large.taken_from, batches)
            everything = chain(loaded.drain(), rest)
            return from_arrow(
                database, pa.RecordBatchReader.from_batches(loaded.schema, everything)
            )
    return None


def _write_in_memory(
    loaded: InMemoryShards, write: ShardFunction[Result], threads: int
) -> list[Result]:
    stopped = threading.Event()

    def run(number: int) -> Result:
        if stopped.is_set():
            raise _StoppedError
        try:
            return write(number, loaded.take(number))
        except BaseException:
            stopped.set()
            raise

    with ThreadPoolExecutor(max(threads, 1) + _MORE_WRITERS) as pool:
        try:
            results = []
            for number in loaded.numbers():
                results.append(pool.submit(run, number))
            wait(results)
        except BaseException:
            stopped.set()
            raise
    return _results_of(results)


def _all_runs(
    batches: pa.RecordBatchReader, shard: str, large: LargeColumns
) -> Iterator[tuple[int, pa.RecordBatch]]:
    for batch in batches:
        for whole in large.whole(batch):
            yield from _runs(whole, shard)


def _one_after_another(
    runs: Iterator[tuple[int, pa.RecordBatch]],
) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """Yield each shard with its rows; what the caller leaves of a shard is passed over."""
    for number, parts in groupby(runs, key=itemgetter(0)):
        yield number, map(itemgetter(1), parts)


class _StoppedError(Exception):
    """Another shard failed, or the rows did.

    No writer begins, or takes what it has for a whole shard.
    """


class _Waiting:
    """Batches between the reader and the writers.

    The reader waits while there are too many bytes.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._bytes = 0
        self._stopped = False

    def put(self, queue: deque[pa.RecordBatch | None], batch: pa.RecordBatch | None) -> bool:
        """Add a batch to a shard's queue (None ends it); False when the writers have stopped."""
        with self._condition:
            self._condition.wait_for(lambda: self._stopped or self._bytes < _WAITING_BYTES)
            if self._stopped:
                return False
            self._bytes += 0 if batch is None else batch.nbytes
            queue.append(batch)
            self._condition.notify_all()
            return True

    def take(self, queue: deque[pa.RecordBatch | None]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a shard's queue until it ends; _StoppedError when it never will."""
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
        """End all waiting, after an error."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()


def _beside_each_other(
    runs: Iterator[tuple[int, pa.RecordBatch]], write: ShardFunction[Result], threads: int
) -> list[Result]:
    waiting = _Waiting()
    results: list[Future[Result]] = []
    queue: deque[pa.RecordBatch | None] = deque()
    current: int | None = None

    def run(number: int, mine: deque[pa.RecordBatch | None]) -> Result:
        try:
            rows = waiting.take(mine)
            result = write(number, rows)
            for _ in rows:  # what the writer left
                pass
            return result
        except BaseException:
            waiting.stop()
            raise

    with ThreadPoolExecutor(threads) as pool:
        try:
            for number, part in runs:
                if number != current:
                    waiting.put(queue, None)
                    queue, current = deque(), number
                    results.append(pool.submit(run, number, queue))
                if not waiting.put(queue, part):
                    break
            waiting.put(queue, None)
        except BaseException:
            waiting.stop()
            raise
    return _results_of(results)


def _results_of(written: Sequence[Future[Result]]) -> list[Result]:
    for each in written:
        error = each.exception()
        if error is not None and not isinstance(error, _StoppedError):
            raise error
    return [each.result() for each in written]


class InMemoryShards:
    """The rows of all shards, by shard; ``size`` are their bytes in memory.

    Args:
        large: Keeps the columns of many bytes.
        shard: The column of the number of a row's shard.
        order: The columns by which the rows of a shard are sorted.
    """

    def __init__(self, large: LargeColumns, *, shard: str, order: Sequence[str]) -> None:
        self.large = large
        self.schema = pa.schema([])
        self._shard, self._order = shard, order
        self._batches: list[Future[pa.RecordBatch]] = []
        self._parts: dict[int, list[pa.RecordBatch]] = {}
        self._bytes = 0

    @property
    def size(self) -> int:
        """The bytes in memory."""
        return self._bytes + self.large.size

    def add(self, batch: pa.RecordBatch, pool: ThreadPoolExecutor) -> None:
        """Take in rows of any shards, which a thread puts by shard."""
        rest = self.large.taken_from(batch)
        self.schema = rest.schema
        self._bytes += rest.nbytes
        self._batches.append(pool.submit(_grouped, rest, self._shard))

    def move_to_file(self, directory: str) -> None:
        """Let the large columns wait in a file, where there are some in memory."""
        if not self.large.is_empty and not self.large.waits_in_file:
            self.large.move_to_file(directory)

    def numbers(self) -> list[int]:
        """Return the numbers of the shards that have rows, after the last ``add``."""
        for grouped in self._batches:
            for number, part in _runs(grouped.result(), self._shard):
                self._parts.setdefault(number, []).append(part)
        self._batches.clear()
        return sorted(self._parts)

    def take(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a shard in order; called once for each."""
        parts = self._parts.pop(number)
        keys = [_column(parts, self.schema.get_field_index(name)) for name in self._order]
        order = pa.array(_sorted_indices(keys))
        # Column by column, so that no more than one of them is there three times.
        arrays = []
        for index in range(len(self.schema)):
            arrays.append(take_values(_column(parts, index), order))
        yield from self.large.whole(pa.RecordBatch.from_arrays(arrays, schema=self.schema))

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows without their large columns, and let go of them."""
        while self._batches:
            yield self._batches.pop().result()


def _runs(batch: pa.RecordBatch, shard: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut a batch where the shard changes; yield the numbers of the shards with their rows."""
    numbers = _numbers(batch, shard)
    cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for start, end in pairwise(cuts):
        if end > start:
            yield int(numbers[start]), batch.slice(start, end - start)


def _numbers(batch: pa.RecordBatch, shard: str) -> npt.NDArray[np.int32]:
    return np.asarray(batch.column(batch.schema.get_field_index(shard)), dtype=np.int32)


def _grouped(batch: pa.RecordBatch, shard: str) -> pa.RecordBatch:
    """Return the rows with those of each shard side by side."""
    numbers = _numbers(batch, shard)
    if len(numbers) == 0 or numbers.min() == numbers.max():
        return batch
    if numbers.max() < _RADIX_LIMIT:
        return select_rows(batch, np.argsort(numbers.astype(np.uint16), kind="stable"))
    return select_rows(batch, np.argsort(numbers, kind="stable"))


def _column(parts: Sequence[pa.RecordBatch], index: int) -> pa.Array:
    return concat_arrays([part.column(index) for part in parts])


def _sorted_indices(keys: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """Return the indices of the rows in order: ascending by whole numbers, nulls first."""
    if len(keys) == 1 and not keys[0].null_count:
        return np.argsort(keys[0].to_numpy())
    columns = []
    for key in keys:
        columns += [np.asarray(key.is_valid()), np.asarray(key.fill_null(0))]
    # The last column counts most.
    return np.lexsort(columns[::-1])
