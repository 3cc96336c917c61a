"""The log of served vectors: a sample of them, written to a feature group in the background.

Requests only append to a buffer. They neither wait for a write nor fail with it. If writes fail or
are slower than requests, vectors are missing in the group; so is a vector with a value that the type
of its column does not have. Missing vectors are counted, with a warning at most once a minute for
each reason.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # registers its exit function before that of logs
import logging
import math
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa

from featurestore.arrow.types import TIMESTAMP
from featurestore.arrow.values import ConversionError, to_array, value_converter
from featurestore.errors import (
    ColumnConflict,
    FeatureGroupNotFound,
    InvalidArgument,
    ThreadsUnavailable,
)
from featurestore.featuregroups import WriteRequest, get_or_create, insert
from featurestore.model.group_options import GroupOptions
from featurestore.model.names import check_name
from featurestore.model.paths import FEATUREVIEWS
from featurestore.model.runtime import ForkSafeLock, reset_in_children
from featurestore.model.threads import start_thread
from featurestore.model.times import from_micros
from featurestore.registry import origins
from featurestore.registry.origins import GROUP, Object
from featurestore.registry.stored_errors import text_for_readers
from featurestore.retrieval.catalog import RegisteredSpecs
from featurestore.retrieval.resolve import find_spec
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
# The vectors that this process has written and missed, by the location of the store and the group.
_written_vectors: Counter[tuple[str, str]] = Counter()
_missing_vectors: Counter[tuple[str, str]] = Counter()
_totals_lock = ForkSafeLock()


@dataclass(frozen=True)
class LogState:
    """The vectors of a log: written to the feature group, waiting for a write, and missing in it.

    ``last_error`` is the reason of the last missing vector; None if none is missing.
    """

    featuregroup: str
    written: int
    waiting: int
    missing: int
    last_error: str | None


def log_totals(location: str) -> dict[str, tuple[int, int]]:
    """Return the written and missing vectors of this process, by the feature group of their log."""
    with _totals_lock:
        groups = sorted(
            {group for store, group in (*_written_vectors, *_missing_vectors) if store == location}
        )
        return {
            group: (_written_vectors[location, group], _missing_vectors[location, group])
            for group in groups
        }


class VectorLog:
    """Writes a sample of vectors to a feature group; thread-safe.

    The group has the columns of the vectors, before the transformations of a training dataset, and
    ``served_at``, the time of the request by the clock of the online store.

    Args:
        session: The connection; it must be open until the log is closed.
        group: The name of the feature group, which is created if it does not exist.
        view: The feature view whose vectors are logged: the source of the group.
        sample: The fraction of vectors that are logged, more than 0 and at most 1.
    """

    def __init__(self, session: Session, group: str, *, view: Object, sample: float) -> None:
        check_name(group)
        is_number = isinstance(sample, int | float) and not isinstance(sample, bool)
        if not is_number or not 0 < sample <= 1:
            raise InvalidArgument(
                f"log_sample={sample!r} is not a fraction of vectors, more than 0 and at most 1.",
                hint="log_sample=0.01",
            )
        self._session, self._group, self._sample = session, group, sample
        self._view = view
        self._inputs = ({"source": f"{FEATUREVIEWS}/{view.name}", "version": view.version},)
        self._columns: pa.Schema | None = None
        self._version: int | None = None
        self._waiting: deque[tuple[pa.Schema, Sequence[Mapping[str, Any]]]] = deque()
        self._waiting_rows = 0
        # A repeated write of a batch has the same transaction.
        self._application, self._number = f"served vectors {uuid4()}", 1
        self._batch: list[Mapping[str, Any]] = []
        # The columns of the log according to the first vector of the batch.
        self._batch_columns: pa.Schema | None = None
        self._table: pa.Table | None = None
        self._failures, self._last_error = 0, "the last write takes too long"
        self._written_vectors, self._missing_vectors = 0, 0
        self._last_reason: str | None = None
        # By the subject of the warning: a column, or writes.
        self._next_warnings: dict[str | None, float] = {}
        self._lock, self._wake = ForkSafeLock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        reset_in_children(self)

    def reset_after_fork(self) -> None:
        """Start without vectors in a forked child: the parent writes those that wait."""
        self._waiting.clear()
        self._waiting_rows, self._batch, self._table = 0, [], None
        # The transactions of each process have their own numbers.
        self._application, self._number = f"served vectors {uuid4()}", 1
        self._written_vectors = self._missing_vectors = 0
        self._wake, self._thread = threading.Event(), None
        _open_logs.discard(self)

    @property
    def state(self) -> LogState:
        """The vectors that are written, waiting and missing."""
        with self._lock:
            return LogState(
                self._group,
                self._written_vectors,
                self._waiting_rows + len(self._batch),
                self._missing_vectors,
                self._last_reason,
            )

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
        request = WriteRequest(
            self._group,
            options=GroupOptions(event_time=SERVED_AT, compact="auto"),
            inputs=self._inputs,
        )
        spec = get_or_create(self._session, columns.empty_table(), request)
        # An existing group has this origin before it has the first vector.
        with self._session.registry.transaction() as connection:
            origins.record(connection, Object(GROUP, self._group, spec.version), [self._view])
        self._version, self._columns = spec.version, columns

    def _open_like(self, schema: pa.Schema) -> None:
        """Open the log of a view whose request values have no declared types.

        An existing group with these columns declares their types.
        """
        try:
            spec = find_spec(self._group, version=None, specs=RegisteredSpecs(self._session))
        except FeatureGroupNotFound:
            pass
        else:
            if spec.schema.names == [*schema.names, SERVED_AT]:
                schema = pa.schema(list(spec.schema)[:-1])
        self.open(schema)

    def add(self, schema: pa.Schema, rows: Sequence[Mapping[str, Any]], now: int) -> None:
        """Add a sample of vectors to the buffer.

        Args:
            schema: The columns of the log, which are used if it is not open.
            rows: The vectors, which may have more columns.
            now: The time of the request, in microseconds.
        """
        sampled = [row for row in rows if random.random() < self._sample]
        if sampled:
            served_at = from_micros(now)
            self._put(schema, [{**row, SERVED_AT: served_at} for row in sampled])

    def add_batch(self, batch: pa.RecordBatch, now: int) -> None:
        """Add a sample of the rows of a batch to the buffer."""
        numbers = [row for row in range(batch.num_rows) if random.random() < self._sample]
        if numbers:
            rows = batch.take(pa.array(numbers)).to_pylist()
            served_at = from_micros(now)
            self._put(batch.schema, [{**row, SERVED_AT: served_at} for row in rows])

    def close(self) -> None:
        """Write the vectors of the buffer, for at most 30 seconds."""
        _open_logs.discard(self)
        with self._lock:
            thread, self._is_closed = self._thread, True
        self._wake.set()
        if thread is not None:
            thread.join(_CLOSE_SECONDS)
        with self._lock:
            dropped = self._waiting_rows + len(self._batch)
            self._waiting_rows, self._batch, self._table = 0, [], None
        if dropped:
            self._miss(dropped, self._last_error)

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
                try:
                    self._thread = start_thread(self._run, name="featurestore-vector-log")
                except ThreadsUnavailable as error:
                    # The vectors are served, and wait for the thread of a later request.
                    self._last_error = error.message
                _open_logs.add(self)
        if is_full:
            self._miss(len(rows), "writes are slower than requests")
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
                if not self._batch:
                    self._batch_columns = schema
                self._batch.extend(rows)
            self._waiting_rows -= len(self._batch)
        return bool(self._batch)

    def _write_batch(self) -> bool:
        """Write the batch; return whether it is done: written, or dropped after repeated errors."""
        try:
            if self._columns is None and self._batch_columns is not None:
                self._open_like(self._batch_columns)
            if self._table is None:
                self._table = self._convert_batch()
            if self._table.num_rows:
                request = WriteRequest(
                    self._group,
                    version=self._version,
                    transaction=(self._application, self._number),
                    inputs=self._inputs,
                )
                insert(self._session, self._table, request)
        # The thread must survive errors of all libraries of a write.
        except Exception as error:
            self._failures += 1
            self._last_error = text_for_readers(self._session.registry, error).message
            if self._failures < _ATTEMPTS:
                return False
            self._miss(len(self._batch), self._last_error)
        else:
            with self._lock:
                self._written_vectors += len(self._batch)
            with _totals_lock:
                _written_vectors[self._session.location, self._group] += len(self._batch)
        with self._lock:
            self._failures, self._batch, self._table = 0, [], None
        self._number += 1
        return True

    def _convert_batch(self) -> pa.Table:
        """Convert the vectors of the batch, and remove those that the columns cannot hold."""
        assert self._columns is not None
        try:
            return _to_table(self._batch, self._columns)
        except ConversionError:
            self._remove_refused(self._columns)
        return _to_table(self._batch, self._columns)

    def _remove_refused(self, columns: pa.Schema) -> None:
        """Remove the vectors with a value that its column cannot hold, and count them."""
        refusals: dict[int, tuple[str, ConversionError]] = {}
        for column in columns:
            for row, error in _find_refusals(self._batch, column):
                refusals.setdefault(row, (column.name, error))
        errors_by_column: dict[str, list[ConversionError]] = {}
        for name, error in refusals.values():
            errors_by_column.setdefault(name, []).append(error)
        with self._lock:
            self._batch = [row for number, row in enumerate(self._batch) if number not in refusals]
        for name, errors in errors_by_column.items():
            self._miss(len(errors), f"column {name!r}: {errors[0]}", column=name)

    def _miss(self, count: int, reason: str, *, column: str | None = None) -> None:
        """Count missing vectors, and log the reason, at most once a minute for each column."""
        with self._lock:
            self._missing_vectors += count
            self._last_reason = reason
        with _totals_lock:
            _missing_vectors[self._session.location, self._group] += count
        if time.monotonic() >= self._next_warnings.get(column, -math.inf):
            self._next_warnings[column] = time.monotonic() + _WARNING_SECONDS
            _log.warning("%s vectors were not logged to %r: %s", f"{count:,}", self._group, reason)


def _to_table(rows: Sequence[Mapping[str, Any]], columns: pa.Schema) -> pa.Table:
    """Convert rows to columns; raise ConversionError for a value without an equal in its type."""
    arrays = [to_array([row[column.name] for row in rows], column.type) for column in columns]
    return pa.Table.from_arrays(arrays, schema=columns)


def _find_refusals(
    rows: Sequence[Mapping[str, Any]], column: pa.Field
) -> list[tuple[int, ConversionError]]:
    """Return the numbers of the rows whose values a column cannot hold, with the reasons."""
    values = [row[column.name] for row in rows]
    try:
        to_array(values, column.type)
        return []
    except ConversionError:
        pass
    convert = value_converter(column.type)
    refusals = []
    for row, value in enumerate(values):
        try:
            convert(value)
        except ConversionError as error:
            refusals.append((row, error))
    return refusals


def _close_logs() -> None:
    """Write the vectors of all open logs at process exit."""
    for log in list(_open_logs):
        log.close()


# A write uses thread pools, which accept no work in functions of ``atexit``. These functions run
# earlier, the last registered one first; the standard library has no public name for them.
threading._register_atexit(_close_logs)  # type: ignore[attr-defined]
