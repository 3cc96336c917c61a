"""Snapshots: the state of a Delta table at one version.

A snapshot is built from the latest checkpoint and the commits after it, or from an earlier cached
snapshot, so that reading the next version requires reading only one commit.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.delta import datafile, log
from featurestore.delta.checksums import Action
from featurestore.delta.datafile import MICROS_OF_DAY, ColumnBounds, DataFile
from featurestore.delta.deletions import deletion_error
from featurestore.delta.log import FileState
from featurestore.delta.table_state import (
    Protocol,
    Replay,
    UnknownTypeError,
    arrow_schema,
    check_readable,
)
from featurestore.errors import TableDamaged, UnsupportedTable, VersionNotFound
from featurestore.model.runtime import ForkSafeLock
from featurestore.storage import storage_for
from featurestore.storage.location import make_absolute

_log = logging.getLogger("featurestore.delta")
# The number of cached snapshots, and the maximum number of commits applied to a cached snapshot.
_CACHED_SNAPSHOTS = 64
_MAX_REPLAYED_VERSIONS = 1000
# The number of last commits whose files are checked before a cached snapshot is used.
_CHECKED_COMMITS = 16


@dataclass(frozen=True)
class Snapshot:
    """A table at one version.

    ``schema`` has storage types. ``files`` are in commit order. ``metadata`` is the metadata action
    in the log. ``transactions`` maps each application to its last transaction number. ``commit`` is
    the file of the version in the log, or None if the snapshot is from a checkpoint.
    """

    path: str
    version: int
    table_id: str
    schema: pa.Schema
    properties: Mapping[str, str]
    partition_by: tuple[str, ...]
    files: tuple[DataFile, ...]
    rows: int
    bytes: int
    protocol: Protocol = field(default_factory=Protocol)
    metadata: Action = field(default_factory=dict, repr=False)
    transactions: Mapping[str, int] = field(default_factory=dict, repr=False)
    commit: FileState | None = field(default=None, repr=False, compare=False)
    _bounds: dict[str, ColumnBounds] = field(default_factory=dict, repr=False, compare=False)

    def has_committed(self, transaction: tuple[str, int] | None) -> bool:
        """Return True if a transaction, or a later one of the same application, was committed."""
        if transaction is None:
            return False
        app, number = transaction
        last = self.transactions.get(app)
        return last is not None and number <= last

    def bounds(self, column: str) -> ColumnBounds | None:
        """Return the bounds of a column in each of ``files``, or None for types without bounds."""
        index = self.schema.get_field_index(column)
        if index < 0 or not datafile.has_bounds(self.schema.field(index).type):
            return None
        if column not in self._bounds:
            self._bounds[column] = _read_bounds(self, self.files, column)
        return self._bounds[column]

    def times(self, column: str) -> list[tuple[int, int] | None] | None:
        """Return the minimum and maximum time in each of ``files``, in microseconds since 1970.

        Dates are converted to midnight. Files without statistics have None instead of a pair.
        Return None if the column does not contain times.
        """
        bounds = self.bounds(column)
        if bounds is None:
            return None
        dtype = self.schema.field(column).type
        if pat.is_integer(dtype):
            return None
        return [_to_micros(pair, dtype) for pair in bounds.pairs()]

    def times_of_added(self, add: Action, column: str) -> tuple[int, int] | None:
        """Return the minimum and maximum time in the file of an add action, or None if unknown."""
        dtype = self.schema.field(column).type
        if column in self.partition_by:
            bounds = datafile.bounds_from_partition(
                add.get("partitionValues", {}).get(column), dtype
            )
        else:
            bounds = datafile.bounds_from_statistics(
                datafile.parse_statistics(add.get("stats")), column, dtype
            )
        return _to_micros(bounds, dtype)


def read_snapshot(path: str, version: int | None = None) -> Snapshot:
    """Read the snapshot of a table at a version, by default the latest.

    Raises:
        VersionNotFound: The version does not exist.
        TableDamaged: The log is missing or unreadable; the message names the file.
        UnsupportedTable: The table uses unsupported features; the message names them.
    """
    path = make_absolute(path)
    with log.cached_listing(path):
        if not log.is_delta_table(path):
            raise deletion_error(path) or TableDamaged(
                f"The Delta log {os.path.join(path, log.LOG_FOLDER)} is missing.",
                hint="featurestore registry rebuild",
            )
        latest = None
        if version is None:
            latest = version = log.latest_version(path)
        cached = _CACHE.find(path, version)
        if cached is not None:
            return cached.snapshot
        if latest is None:
            latest = log.latest_version(path)
        if not 0 <= version <= latest:
            raise _version_not_found_error(path, version, latest)
        base = _CACHE.find_base(path, version)
        # Replaying from a cached version makes a read after a write independent of the log length.
        if base is None:
            replay, sources = _replay_log(path, version)
            snapshot = _build_snapshot(replay, version, tuple(replay.data_files()))
            cached = _cached(snapshot, sources)
        else:
            cached = _replay_from(base, version)
        _CACHE.add(cached)
        return cached.snapshot


def transaction_version(path: str, app: str) -> int | None:
    """Return the last transaction number of an application, or None."""
    return read_snapshot(path).transactions.get(app)


@dataclass(frozen=True)
class _CachedSnapshot:
    """A snapshot, and the states of the log files from which it was built."""

    snapshot: Snapshot
    sources: tuple[FileState, ...]

    def is_current(self) -> bool:
        if storage_for(self.snapshot.path).prefers_listing:
            # Commits in object stores are not overwritten; a new table at this path has new
            # commits.
            return self.sources[-1].is_current()
        return all(source.is_current() for source in self.sources)


class _SnapshotCache:
    """LRU cache of the snapshots in this process."""

    def __init__(self) -> None:
        self._snapshots: OrderedDict[tuple[str, int], _CachedSnapshot] = OrderedDict()
        self._lock = ForkSafeLock()

    def find(self, path: str, version: int) -> _CachedSnapshot | None:
        """Return the cached snapshot of a version, or None if it is missing or the log changed."""
        with self._lock:
            cached = self._snapshots.get((path, version))
            if cached is not None:
                self._snapshots.move_to_end((path, version))
        # Not under the lock: in an object store, each file state is a request.
        if cached is None or not cached.is_current():
            return None
        return cached

    def find_base(self, path: str, version: int) -> _CachedSnapshot | None:
        """Return the nearest cached snapshot before a version, or None."""
        with self._lock:
            nearest = -1
            for table, number in self._snapshots:
                if table == path and number < version:
                    nearest = max(nearest, number)
            cached = self._snapshots.get((path, nearest))
        if cached is None or version - nearest > _MAX_REPLAYED_VERSIONS or not cached.is_current():
            return None
        return cached

    def add(self, cached_snapshot: _CachedSnapshot) -> None:
        """Cache a snapshot, and evict the least recently used snapshots."""
        with self._lock:
            self._snapshots[(cached_snapshot.snapshot.path, cached_snapshot.snapshot.version)] = (
                cached_snapshot
            )
            while len(self._snapshots) > _CACHED_SNAPSHOTS:
                self._snapshots.popitem(last=False)


_CACHE = _SnapshotCache()


def replay_log(path: str, version: int) -> Replay:
    """Return the actions of a table at a version, also of a table that ``read_snapshot`` refuses.

    Raises:
        VersionNotFound: The log no longer has the version.
        TableDamaged: The log is missing or unreadable; the message names the file.
    """
    return _replay_log(make_absolute(path), version)[0]


def _replay_log(path: str, version: int) -> tuple[Replay, list[FileState]]:
    """Replay the latest preceding checkpoint and later commits; return the files that were read."""
    # A new table needs no checkpoint, so that none is searched unless its commit is damaged.
    if version == 0 and log.has_commit(path, 0):
        new_table = Replay(path)
        with suppress(TableDamaged):
            return new_table, new_table.apply_commits(0, 0)
    replay, start, sources = _replay_checkpoint(path, version)
    sources += replay.apply_commits(start + 1, version)
    return replay, sources


def _replay_checkpoint(path: str, version: int) -> tuple[Replay, int, list[FileState]]:
    """Return the table state at the last readable checkpoint, its version, and its file states.

    A checkpoint may be truncated after a power failure, because other writers do not sync it. Then
    an earlier checkpoint or the commits are used, if they are still in the log. The version is -1
    if the log must be replayed from the start.
    """
    damaged: TableDamaged | None = None
    before = version
    while True:
        start, files = log.find_checkpoint_before(path, before)
        replay = Replay(path)
        if start < 0:
            break
        try:
            return replay, start, replay.apply_checkpoint(files)
        except TableDamaged as error:
            _log.warning("skipping a damaged checkpoint: %s", error.message)
            damaged, before = damaged or error, start - 1
    # Without a usable checkpoint, only a log that starts at commit 0 can be replayed.
    if not log.has_commit(path, 0):
        if damaged is not None:
            raise damaged
        listed = log.list_log(path)
        if version < listed.earliest:
            raise _version_not_found_error(path, version, listed.latest, earliest=listed.earliest)
    return replay, start, []


def _version_not_found_error(
    path: str, version: int, latest: int, *, earliest: int = 0
) -> VersionNotFound:
    return VersionNotFound(
        f"Unknown Delta version {version} of {path}. Available: {earliest} to {latest}.",
        hint=f"as_of={latest}",
    )


def _replay_from(base: _CachedSnapshot, version: int) -> _CachedSnapshot:
    """Build the snapshot at ``version`` from an earlier snapshot and the commits after it."""
    before = base.snapshot
    replay = Replay(before.path)
    replay.transactions = dict(before.transactions)
    sources = list(base.sources)
    sources += replay.apply_commits(before.version + 1, version)
    if replay.protocol is None and replay.metadata is None:
        snapshot = _next_snapshot(before, replay, version)
    else:
        files = [file for file in before.files if file.log_path not in replay.removed]
        files = sorted([*files, *replay.data_files()], key=datafile.commit_order_key)
        replay.metadata = replay.metadata or before.metadata
        known_protocol = before.protocol if replay.protocol is None else None
        snapshot = _build_snapshot(replay, version, tuple(files), known_protocol=known_protocol)
    return _cached(snapshot, sources)


def _cached(snapshot: Snapshot, sources: Sequence[FileState]) -> _CachedSnapshot:
    """Return a snapshot with the log files from which it was built, in the order of versions."""
    if sources[-1].path == log.commit_path(snapshot.path, snapshot.version):
        snapshot = replace(snapshot, commit=sources[-1])
    return _CachedSnapshot(snapshot, tuple(sources[-_CHECKED_COMMITS:]))


def _next_snapshot(before: Snapshot, replay: Replay, version: int) -> Snapshot:
    """Build the snapshot after commits that changed only files and transactions."""
    added_files = replay.data_files()
    # The mask also updates parsed bounds, so that the statistics of unchanged files are not parsed
    # again for each version.
    is_retained = np.ones(len(before.files), dtype=np.bool_)
    removed_files = []
    if replay.removed:
        for position, file in enumerate(before.files):
            if file.log_path in replay.removed:
                is_retained[position] = False
                removed_files.append(file)
    files = before.files
    if removed_files:
        files = tuple(before.files[position] for position in np.flatnonzero(is_retained))
    # Clocks of writers may differ, so a new file can have an earlier time than an old one.
    in_order = (
        not files
        or not added_files
        or datafile.commit_order_key(files[-1]) <= datafile.commit_order_key(added_files[0])
    )
    files = (*files, *added_files)
    if not in_order:
        files = tuple(sorted(files, key=datafile.commit_order_key))
    (rows_in, bytes_in), (rows_out, bytes_out) = (
        _total_size(added_files),
        _total_size(removed_files),
    )
    after = replace(
        before,
        version=version,
        files=files,
        rows=before.rows + rows_in - rows_out,
        bytes=before.bytes + bytes_in - bytes_out,
        transactions=replay.transactions,
        # A dict of its own; ``replace`` would share the dict of the earlier snapshot.
        _bounds={},
    )
    if in_order:
        # Copied, since other threads may add bounds to the cached snapshot.
        for column, bounds in list(before._bounds.items()):
            after._bounds[column] = bounds.select(is_retained).concat(
                _read_bounds(after, added_files, column)
            )
    return after


def _total_size(files: Iterable[DataFile]) -> tuple[int, int]:
    """Return the total number of rows and bytes of files."""
    rows = size = 0
    for file in files:
        rows += file.rows
        size += file.bytes
    return rows, size


def _build_snapshot(
    replay: Replay,
    version: int,
    files: tuple[DataFile, ...],
    *,
    known_protocol: Protocol | None = None,
) -> Snapshot:
    """Build a snapshot from a replayed log; ``known_protocol`` is that of an earlier snapshot."""
    path, metadata = replay.path, replay.metadata
    try:
        if metadata is None or (replay.protocol is None and known_protocol is None):
            raise ValueError("metadata or protocol is missing")
        table_protocol = known_protocol or Protocol()
        if replay.protocol is not None:
            table_protocol = Protocol.from_action(replay.protocol)
        configuration = metadata.get("configuration") or {}
        if not isinstance(configuration, Mapping):
            raise ValueError("the properties are not an object")
        # The log is untrusted: values may not be strings.
        properties = {str(name): str(value) for name, value in configuration.items()}
        check_readable(path, table_protocol, properties)
        rows, size = _total_size(files)
        return Snapshot(
            path=path,
            version=version,
            table_id=str(metadata["id"]),
            schema=arrow_schema(metadata["schemaString"]),
            properties=properties,
            partition_by=tuple(metadata.get("partitionColumns") or ()),
            files=files,
            rows=rows,
            bytes=size,
            protocol=table_protocol,
            metadata=metadata,
            transactions=replay.transactions,
        )
    except UnknownTypeError as error:
        raise datafile.unsupported_feature_error(
            path, f"the type {error.definition} (column {error.column!r})"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        # UnsupportedTable is also a ValueError.
        if isinstance(error, UnsupportedTable):
            raise
        raise TableDamaged(
            f"The Delta log of {path} cannot be read at version {version}: {error}.",
            hint="restore the folder from a copy, or move the table away and write it again",
        ) from error


def _to_micros(pair: tuple[int, int] | None, dtype: pa.DataType) -> tuple[int, int] | None:
    if pair is None or pat.is_integer(dtype):
        return None
    if pat.is_timestamp(dtype):
        return pair
    return pair[0] * MICROS_OF_DAY, pair[1] * MICROS_OF_DAY


def _read_bounds(snapshot: Snapshot, files: Iterable[DataFile], column: str) -> ColumnBounds:
    """Return the bounds of a column in some files, from partition values or statistics."""
    dtype = snapshot.schema.field(column).type
    if column in snapshot.partition_by:
        pairs = [
            datafile.bounds_from_partition(file.partition.get(column), dtype) for file in files
        ]
    else:
        pairs = [
            datafile.bounds_from_statistics(
                datafile.parse_statistics(file.statistics), column, dtype
            )
            for file in files
        ]
    return ColumnBounds.from_pairs(pairs)
