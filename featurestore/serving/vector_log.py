"""The log of served vectors: a sample of them, written to a feature group in the background.

Requests only append to a buffer. They neither wait for a write nor fail with it: if writes fail or
are slower than requests, vectors are dropped, with one warning until a write succeeds again.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # registers its exit function before that of logs
import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa

from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import ColumnConflict, InvalidArgument
from featurestore.featuregroups import Declaration, Write, get_or_create, insert
from featurestore.model.names import check_name
from featurestore.session import Session

SERVED_AT = "served_at"
# Vectors that wait for a write; about 100 MB with 30 columns.
_MAX_WAITING = 100_000
_BATCH = 10_000
_FLUSH_SECONDS = 10.0
# The maximum wait for the last write, also at process exit.
_CLOSE_SECONDS = 30.0
_WARNING_SECONDS = 60.0
# A batch is dropped after this number of failed writes.
_ATTEMPTS = 5
_log = logging.getLogger("featurestore.serving")
_open_logs: set[VectorLog] = set()


class VectorLog:
    """Writes a sample of vectors to a feature group; thread-safe.

    The group has the columns of the vectors, before the transformations of a training dataset, and
    ``served_at``, the time of the request by the clock of the online store.

    Args:
        session: The connection; it must be open until the log is closed.
        group: The name of the feature group, which is created if it does not exist.
        sample: The fraction of vectors that are logged, more than 0 and at most 1.
    """

    def __init__(self, session: Session, group: str, *, sample: float) -> None:
        check_name(group)
        is_number = isinstance(sample, int | float) and not isinstance(sample, bool)
        if not is_number or not 0 < sample <= 1:
            raise InvalidArgument(
                f"log_sample={sample!r} is not a fraction of vectors, more than 0 and at most 1.",
                hint="log_sample=0.01",
            )
        self._session, self._group, self._sample = session, group, sample
        self._columns: pa.Schema | None = None
        # The types of some request values are known only after the first request.
        self._first_schema: pa.Schema | None = None
        self._version: int | None = None
        self._waiting: deque[tuple[pa.Schema, Sequence[Mapping[str, Any]]]] = deque()
        self._waiting_rows = 0
        # A repeated write of a batch has the same transaction.
        self._application, self._number = f"served vectors {uuid4()}", 1
        self._batch: list[Mapping[str, Any]] = []
        self._failures, self._last_error = 0, "the last write takes too long"
        self._next_warning = -math.inf
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def open(self, schema: pa.Schema) -> None:
        """Create the feature group for vectors with these columns, unless it exists.

        Raises:
            ColumnConflict: The vectors have a column ``served_at``.
            DefinitionMismatch: The feature group has other columns.
        """
        if SERVED_AT in schema.names:
            raise ColumnConflict(
                f"The vectors have a column {SERVED_AT!r}, which log_vectors= adds.",
                hint=f"features=['group.{SERVED_AT} as group_{SERVED_AT}'] in the feature view",
            )
        columns = pa.schema([*schema, pa.field(SERVED_AT, TIMESTAMP)])
        declared = Declaration(event_time=SERVED_AT, compact="auto")
        spec = get_or_create(self._session, columns.empty_table(), self._group, declared=declared)
        self._version, self._columns = spec.version, columns

    def add(self, schema: pa.Schema, rows: Sequence[Mapping[str, Any]], now: int) -> None:
        """Add a sample of vectors to the buffer.

        Args:
            schema: The columns of the vectors.
            rows: The vectors, which may have more columns.
            now: The time of the request, in microseconds.
        """
        sampled = [row for row in rows if random.random() < self._sample]
        if sampled:
            self._put(schema, [{**row, SERVED_AT: now} for row in sampled])

    def add_batch(self, batch: pa.RecordBatch, now: int) -> None:
        """Add a sample of the rows of a batch to the buffer."""
        numbers = [row for row in range(batch.num_rows) if random.random() < self._sample]
        if numbers:
            rows = batch.take(pa.array(numbers)).to_pylist()
            self._put(batch.schema, [{**row, SERVED_AT: now} for row in rows])

    def close(self) -> None:
        """Write the vectors of the buffer, for at most 30 seconds."""
        _open_logs.discard(self)
        with self._lock:
            thread, self._is_closed = self._thread, True
        self._wake.set()
        if thread is not None:
            thread.join(_CLOSE_SECONDS)
        dropped = self._waiting_rows + len(self._batch)
        if dropped:
            self._warn(dropped, self._last_error)
            self._waiting_rows, self._batch = 0, []

    def _put(self, schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> None:
        with self._lock:
            if self._is_closed:
                return
            is_full = self._waiting_rows + len(rows) > _MAX_WAITING
            if not is_full:
                self._waiting.append((schema, rows))
                self._waiting_rows += len(rows)
            # A forked process starts its own thread.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="featurestore-vector-log", daemon=True
                )
                self._thread.start()
                _open_logs.add(self)
        if is_full:
            self._warn(len(rows), "writes are slower than requests")
        if self._waiting_rows >= _BATCH:
            self._wake.set()

    def _run(self) -> None:
        """Write batches until the log is closed."""
        is_closed = False
        while not is_closed:
            self._wake.wait(_FLUSH_SECONDS)
            self._wake.clear()
            is_closed = self._is_closed
            # If a write fails, the vectors wait for the next one.
            while self._take_batch() and self._write_batch():
                pass

    def _take_batch(self) -> bool:
        """Move waiting vectors to the batch, unless it has some; return whether it has some."""
        if self._batch:
            return True
        with self._lock:
            while self._waiting and len(self._batch) < _BATCH:
                schema, rows = self._waiting.popleft()
                self._first_schema = self._first_schema or schema
                self._batch.extend(rows)
            self._waiting_rows -= len(self._batch)
        return bool(self._batch)

    def _write_batch(self) -> bool:
        """Write the batch; return whether it is done: written, or dropped after repeated errors."""
        try:
            if self._columns is None and self._first_schema is not None:
                self.open(self._first_schema)
            rows = pa.Table.from_pylist(self._batch, schema=self._columns)
            write = Write(transaction=(self._application, self._number))
            insert(self._session, rows, self._group, version=self._version, write=write)
        # The thread must survive errors of all libraries of a write.
        except Exception as error:
            self._failures += 1
            self._last_error = f"{type(error).__name__}: {error}"
            if self._failures < _ATTEMPTS:
                return False
            self._warn(len(self._batch), self._last_error)
        self._failures, self._batch = 0, []
        self._number += 1
        return True

    def _warn(self, count: int, reason: str) -> None:
        """Log that vectors were dropped, at most once a minute."""
        if time.monotonic() >= self._next_warning:
            self._next_warning = time.monotonic() + _WARNING_SECONDS
            _log.warning("%s vectors were not logged to %r: %s", f"{count:,}", self._group, reason)


def _close_logs() -> None:
    """Write the vectors of all open logs at process exit."""
    for log in list(_open_logs):
        log.close()


# A write uses thread pools, which accept no work in functions of ``atexit``. These functions run
# earlier, the last registered one first; the standard library has no public name for them.
threading._register_atexit(_close_logs)  # type: ignore[attr-defined]
