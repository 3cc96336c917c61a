"""Shards of a training dataset: each shard's rows in order to its writer, as many writers at a time as threads.

Rows that fit in memory are sorted shard by shard. More of them DuckDB sorts, which spills.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import chain
from typing import TypeVar

import pyarrow as pa
import pyarrow.types as pat

from featurestore.plugins.engine import Relation, ShardFunction
from featurestore_connectors.duckdb_delta import sqltext
from featurestore_connectors.duckdb_delta.held import HeldShards, pieces
from featurestore_connectors.duckdb_delta.relations import check_columns, from_arrow, relation
from featurestore_connectors.duckdb_delta.session import Database, building
from featurestore_connectors.duckdb_delta.streams import batches_of, stream

Result = TypeVar("Result")

# What may be sorted here: each writer holds a shard of it once more.
_HELD_BYTES = 512 << 20
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
    write: ShardFunction[Result],
    threads: int,
) -> list[Result]:
    """Call ``write`` for each shard with its rows in order; return the results by shard number."""
    check_columns(rows.schema, [shard, *order])
    whole = all(pat.is_integer(rows.schema.field(name).type) for name in order)
    found = (
        rows
        if database.limit_is_chosen or not whole
        else _hold(database, rows, shard=shard, order=order)
    )
    if isinstance(found, HeldShards):
        return _write_held(found, write, threads)
    with building():
        ordered = found.native.order(
            ", ".join(f"{sqltext.quote(name)} ASC NULLS FIRST" for name in (shard, *order))
        )
    batches = stream(database, relation(ordered, found.schema))
    with database.sparing(max(_SORT_BYTES, _SORT_BYTES_PER_THREAD * threads)):
        if threads <= 1:
            return [write(number, part) for number, part in _one_after_another(batches, shard)]
        return _beside_each_other(batches, shard, write, threads)


def _hold(
    database: Database, rows: Relation, *, shard: str, order: Sequence[str]
) -> HeldShards | Relation:
    """Return the rows of all shards in memory, or where there are too many the relation of all of them."""
    held = HeldShards(shard=shard, order=order)
    batches = batches_of(database, rows)
    for batch in batches:
        held.add(batch)
        if held.size > _HELD_BYTES:
            everything = pa.RecordBatchReader.from_batches(
                rows.schema, chain(held.drain(), batches)
            )
            return from_arrow(database, everything)
    return held


def _write_held(held: HeldShards, write: ShardFunction[Result], threads: int) -> list[Result]:
    stopped = threading.Event()

    def run(number: int) -> Result:
        if stopped.is_set():
            raise _StoppedError
        try:
            return write(number, iter([held.take(number)]))
        except BaseException:
            stopped.set()
            raise

    with ThreadPoolExecutor(max(threads, 1)) as pool:
        try:
            results = [pool.submit(run, number) for number in held.numbers()]
            wait(results)
        except BaseException:
            stopped.set()
            raise
    return _results_of(results)


def _pieces(batches: pa.RecordBatchReader, shard: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    for batch in batches:
        yield from pieces(batch, shard)


def _one_after_another(
    batches: pa.RecordBatchReader, shard: str
) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    pieces = _pieces(batches, shard)
    held = next(pieces, None)
    while held is not None:
        number = held[0]
        following: list[tuple[int, pa.RecordBatch] | None] = []

        def part(
            first: tuple[int, pa.RecordBatch], following: list[tuple[int, pa.RecordBatch] | None]
        ) -> Iterator[pa.RecordBatch]:
            yield first[1]
            for piece in pieces:
                if piece[0] != first[0]:
                    following.append(piece)
                    return
                yield piece[1]
            following.append(None)

        rows = part(held, following)
        yield number, rows
        for _ in rows:  # what the writer left
            pass
        held = following[0]


class _StoppedError(Exception):
    """Another shard failed, or the rows did: no writer begins, or takes what it has for a whole shard."""


class _Waiting:
    """Batches between the reader and the writers; the reader waits while there are too many bytes."""

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
    batches: pa.RecordBatchReader, shard: str, write: ShardFunction[Result], threads: int
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
            for number, piece in _pieces(batches, shard):
                if number != current:
                    waiting.put(queue, None)
                    queue, current = deque(), number
                    results.append(pool.submit(run, number, queue))
                if not waiting.put(queue, piece):
                    break
            waiting.put(queue, None)
        except BaseException:
            waiting.stop()
            raise
    return _results_of(results)


def _results_of(written: Sequence[Future[Result]]) -> list[Result]:
    errors = [error for error in (each.exception() for each in written) if error is not None]
    for error in errors:
        if not isinstance(error, _StoppedError):
            raise error
    return [each.result() for each in written]
