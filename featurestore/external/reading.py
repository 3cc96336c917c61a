"""Reads of registered sources: open a snapshot, read it in the background, record the read."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from queue import Full, Queue
from threading import Event, Thread
from typing import Any, Generic, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from featurestore.errors import SourceChanged, StorageError
from featurestore.external.renaming import RenamedSnapshot
from featurestore.model.names import ENVIRONMENT, RENAME
from featurestore.model.source import SourceRead, SourceSpec
from featurestore.plugins.engine import Relation
from featurestore.plugins.source import (
    NamedVersionsSource,
    PartitionedSnapshot,
    PartitionedSource,
    Source,
    SourceConfig,
    SourceQuery,
    find_source,
)
from featurestore.session import Session
from featurestore.storage import StorePaths, files, storage_for
from featurestore.storage.grants import acting_source, authorize, secret_reader

_log = logging.getLogger("featurestore.sources")
_KEY = re.compile(r"[0-9a-f]{1,64}")
BatchT = TypeVar("BatchT")
# Maximum number of queued items, which bounds memory.
_MAX_WAITING = 4
_PAUSE_SECONDS = 0.1


def open_source(session: Session, spec: SourceSpec) -> Source:
    """Create the source of a registration, without connecting to it or reading its secret.

    Raises:
        ConfigurationError: The source was not registered on this machine with this definition.
        InvalidArgument: The kind is not installed, or the URI or an option is invalid for it.
    """
    authorize(acting_source(session.location, spec))
    return build_source(session, spec)


def has_named_versions(session: Session, spec: SourceSpec) -> bool:
    """Return whether the tables of a source have branches or tags."""
    return isinstance(open_source(session, spec), NamedVersionsSource)


def build_source(session: Session, spec: SourceSpec) -> Source:
    """Create a source to check its definition, before it is granted; the caller does not connect.

    Raises:
        InvalidArgument: The kind is not installed, or the URI or an option is invalid for it.
    """
    config = SourceConfig(
        spec.name,
        spec.uri,
        {name: value for name, value in spec.options.items() if name != RENAME},
        secret_reader(acting_source(session.location, spec), spec.secret),
        StoredDecisions(session.location, spec.name),
        uses_environment=spec.secret == ENVIRONMENT,
    )
    return find_source(spec.kind)(config)


def open_snapshot(
    session: Session, spec: SourceSpec, version_or_time: int | datetime | str | None = None
) -> RenamedSnapshot:
    """Connect to a registered source, and return a snapshot with renamed columns.

    Raises:
        ConfigurationError: The source was not registered on this machine with this definition.
        SourceUnavailable: The source cannot be reached, or rejects the user.
    """
    source = open_source(session, spec)
    if isinstance(version_or_time, str):
        # ``build_query`` returns text for such sources only.
        snapshot = cast(NamedVersionsSource, source).named_snapshot(version_or_time)
    else:
        snapshot = source.snapshot(version_or_time)
    return RenamedSnapshot(spec.name, snapshot, spec.options.get(RENAME))


@dataclass(frozen=True)
class StoredDecisions:
    """The stored decisions of a source, one write-once file each (``plugins.source.Decisions``)."""

    location: str
    source: str

    def get(self, key: str) -> Mapping[str, Any] | None:
        """Return the decision for a key, or None if there is none yet."""
        path = self._path(key)
        if not storage_for(path).exists(path):
            return None
        decision = files.read_json(path)
        if not isinstance(decision, dict):
            raise StorageError(
                f"The file {path!r} is not a stored decision of source {self.source!r}.",
                hint="restore it from a copy; or remove it, and the source decides again",
            )
        return decision

    def decide(self, key: str, decision: Mapping[str, Any]) -> Mapping[str, Any]:
        """Store a decision and return it, or the decision that another process stored first."""
        path = self._path(key)
        try:
            storage_for(path).write_new(path, files.json_bytes(decision))
        except OSError as error:
            # Users with read-only access to the store may also read its sources.
            _log.warning("The decision for source %r was not stored: %s", self.source, error)
        # A file is never overwritten, so all processes use the decision that was stored first.
        existing = self.get(key)
        return decision if existing is None else existing

    def _path(self, key: str) -> str:
        if not _KEY.fullmatch(key):
            raise StorageError(f"{key!r} is not a key of a decision.")
        return os.path.join(StorePaths(self.location).source_decisions(self.source), f"{key}.json")


def has_parts(session: Session, spec: SourceSpec) -> bool:
    """Return whether the engine's tasks read a source in partitions."""
    source = open_source(session, spec)
    return isinstance(source, PartitionedSource) and source.has_parts(session.engine)


def read_batches(
    session: Session,
    spec: SourceSpec,
    query: SourceQuery,
    schema: pa.Schema,
    read: SourceRead,
    *,
    time: str | None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a query in a separate snapshot, and complete the record of the read.

    The rows are read in a background thread, while earlier rows are written.
    """

    def read_snapshot() -> Iterator[pa.RecordBatch]:
        snapshot = open_snapshot(session, spec, query.at)
        try:
            reader = snapshot.read(query)
            read.snapshot = snapshot.identity
            _check_unchanged_types(spec, reader.schema, schema)
            yield from record_batches(reader, read, time=time)
            read.quarantined = snapshot.bad_row_count
            read.bad_rows = tuple(snapshot.bad_rows)
        finally:
            snapshot.close()

    return read_in_background(read_snapshot)


def stage_partitions(
    session: Session,
    spec: SourceSpec,
    query: SourceQuery,
    schema: pa.Schema,
    read: SourceRead,
    directory: str,
    *,
    time: str | None,
) -> Relation:
    """Stage the rows of a query with the engine's tasks, in a separate snapshot."""
    snapshot = open_snapshot(session, spec, query.at)
    try:
        read.snapshot = snapshot.identity
        assert isinstance(snapshot, PartitionedSnapshot)
        _check_unchanged_types(spec, snapshot.schema(query), schema)
        return stage_and_record(session, snapshot, query, read, directory, time=time)
    finally:
        snapshot.close()


def stage_and_record(
    session: Session,
    snapshot: PartitionedSnapshot,
    query: SourceQuery,
    read: SourceRead,
    directory: str,
    *,
    time: str | None,
) -> Relation:
    """Stage the rows of a query with the engine's tasks, and complete the record of the read."""
    engine = session.engine
    rows = snapshot.stage(query, engine, directory)
    read.rows = engine.count(rows)
    if time is not None and time in rows.schema.names:
        times = engine.select(rows, {"instant": time})
        maximum = engine.sql(
            "SELECT max(instant) FROM times", tables={"times": times}, parameters={}
        )
        (latest,) = engine.stream(maximum).read_all().column(0).to_pylist()
        if latest is not None:
            read.high_water_mark = latest.isoformat()
    return rows


def record_batches(
    batches: Iterator[pa.RecordBatch], read: SourceRead, *, time: str | None
) -> Iterator[pa.RecordBatch]:
    """Yield batches, and record their row count and the latest time."""
    latest = None
    for batch in batches:
        read.rows += batch.num_rows
        if time is not None and time in batch.schema.names:
            batch_latest = pc.max(batch.column(batch.schema.get_field_index(time))).as_py()
            if batch_latest is not None and (latest is None or batch_latest > latest):
                latest = batch_latest
                read.high_water_mark = latest.isoformat()
        yield batch


def _check_unchanged_types(spec: SourceSpec, actual: pa.Schema, expected: pa.Schema) -> None:
    """Raise an error if a column type has changed at the source since the frame was created."""
    changed = [
        f"{field.name!r} is {actual.field(field.name).type}, was {field.type}"
        for field in expected
        if actual.field(field.name).type != field.type
    ]
    if changed:
        raise SourceChanged(
            f"Column types of source {spec.name!r} changed: {', '.join(changed)}.",
            hint="read it again, or cast the columns in sql=",
        )


def read_in_background(items: Callable[[], Iterator[BatchT]]) -> Iterator[BatchT]:
    """Yield the items of an iterator that runs in a background thread.

    An error in the iterator is raised after the preceding items. Closing the generator stops the
    thread and waits for it.
    """
    reader = _BackgroundReader(items)
    reader.start()
    try:
        while True:
            item, error = reader.ready.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        # The thread may be blocked by a full queue, which the event ends.
        reader.stopped.set()
        reader.join()


class _BackgroundReader(Thread, Generic[BatchT]):
    """A thread that consumes an iterator, and blocks while the queue is full."""

    def __init__(self, items: Callable[[], Iterator[BatchT]]) -> None:
        # A daemon thread does not block the exit of the process while a source does not respond.
        super().__init__(name="featurestore-source", daemon=True)
        self.items = items
        self.ready: Queue[tuple[BatchT | None, BaseException | None]] = Queue(_MAX_WAITING)
        self.stopped = Event()

    def run(self) -> None:
        error: BaseException | None = None
        iterator = self.items()
        try:
            for item in iterator:
                if not self._put((item, None)):
                    break
        except BaseException as reader_error:  # re-raised in the thread that takes the items
            error = reader_error
        finally:
            # A snapshot is used by one thread only, so this thread also closes it.
            getattr(iterator, "close", lambda: None)()
        self._put((None, error))

    def _put(self, item: tuple[BatchT | None, BaseException | None]) -> bool:
        """Queue an item; return False if the reader has stopped."""
        while not self.stopped.is_set():
            try:
                # Without a timeout the thread would not notice that the reader has stopped.
                self.ready.put(item, timeout=_PAUSE_SECONDS)
            except Full:
                continue
            return True
        return False
