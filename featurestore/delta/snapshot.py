"""Snapshots: what a Delta table is at one version.

Replayed from the last checkpoint and the commits after it.

A snapshot that this process has read is the base of the next one, so that a version costs what its
own commit holds.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.delta import log, protocol
from featurestore.delta.bounds import (
    MICROS_OF_DAY,
    ColumnBounds,
    bounds_in,
    bounds_of_partition,
    has_bounds,
)
from featurestore.delta.datafile import DataFile, order_of_writing, parsed_statistics
from featurestore.delta.deleted import deletion_of
from featurestore.delta.log import FileState
from featurestore.delta.protocol import Protocol
from featurestore.delta.replay import Replay
from featurestore.delta.schema import UnknownTypeError, arrow_schema
from featurestore.errors import TableDamaged, UnsupportedTable, VersionNotFound
from featurestore.storage.location import absolute, is_uri

_log = logging.getLogger("featurestore.delta")
# Snapshots that are remembered, and how far behind one may be to be the base of another.
_REMEMBERED = 64
_NEAR = 1000
# So many commits before a version are looked at again before what was read of it is believed.
_LOOKED_AT = 16


@dataclass(frozen=True)
class Snapshot:
    """A table at one version. ``schema`` holds storage types.

    ``files`` are in the order of writing.

    ``metadata`` is the log's own action, ``transactions`` the last number of each application.
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
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)
    transactions: Mapping[str, int] = field(default_factory=dict, repr=False)
    _bounds: dict[str, ColumnBounds] = field(default_factory=dict, repr=False, compare=False)

    def holds(self, transaction: tuple[str, int] | None) -> bool:
        """Tell whether an application has committed a transaction, or a later one."""
        if transaction is None:
            return False
        app, number = transaction
        last = self.transactions.get(app)
        return last is not None and number <= last

    def bounds(self, column: str) -> ColumnBounds | None:
        """Return a column's bounds in each of ``files``, None for types without bounds."""
        index = self.schema.get_field_index(column)
        if index < 0 or not has_bounds(self.schema.field(index).type):
            return None
        if column not in self._bounds:
            self._bounds[column] = _bounds_of(self, self.files, column)
        return self._bounds[column]

    def times(self, column: str) -> list[tuple[int, int] | None] | None:
        """Return least and greatest time of each of ``files`` in microseconds since 1970.

        Days count as their beginning.

        None for a file of which the log does not tell, and as a whole for columns that hold no
        times.
        """
        bounds = self.bounds(column)
        if bounds is None:
            return None
        kind = self.schema.field(column).type
        if pat.is_integer(kind):
            return None
        return [_in_micros(pair, kind) for pair in bounds.pairs()]

    def times_of_added(self, add: Mapping[str, Any], column: str) -> tuple[int, int] | None:
        """Return least and greatest time of a file that a commit of this table adds.

        None where it does not tell.
        """
        kind = self.schema.field(column).type
        if column in self.partition_by:
            found = bounds_of_partition(add.get("partitionValues", {}).get(column), kind)
        else:
            found = bounds_in(parsed_statistics(add.get("stats")), column, kind)
        return _in_micros(found, kind)


def read_snapshot(path: str, version: int | None = None) -> Snapshot:
    """Return what a table is at a version (the latest when None).

    Raises:
        VersionNotFound: The table has no such version.
        TableDamaged: The log is missing or unreadable; names the file.
        UnsupportedTable: The table uses features that the store would read wrongly; names them.
    """
    path = absolute(path)
    with log.looked_at_once(path):
        return _read(path, version)


def _read(path: str, version: int | None) -> Snapshot:
    if not log.is_delta_table(path):
        deleted = deletion_of(path)
        if deleted is not None:
            raise deleted
        raise TableDamaged(
            f"There is no Delta log at {os.path.join(path, log.LOG_FOLDER)}.",
            hint="featurestore registry rebuild",
        )
    wanted = log.latest_version(path) if version is None else version
    held = _MEMORY.find(path, wanted)
    if held is not None:
        return held.snapshot
    latest = log.latest_version(path)
    if not 0 <= wanted <= latest:
        raise _no_version(path, wanted, latest)
    base = _MEMORY.base(path, wanted)
    if base is None:
        read = _replayed(path, wanted)
    else:
        read = _continued(base, wanted)
    _MEMORY.keep(read)
    return read.snapshot


def transaction_version(path: str, app: str) -> int | None:
    """Return the last transaction number of an application, None when it committed none."""
    return read_snapshot(path).transactions.get(app)


@dataclass(frozen=True)
class _Read:
    """A snapshot, and the files of the log that it was read from: checkpoint and last commits."""

    snapshot: Snapshot
    sources: tuple[FileState, ...]

    def is_current(self) -> bool:
        if is_uri(self.snapshot.path):
            # Nothing there takes the place of a commit; a table of the same name has others.
            return self.sources[-1].is_current()
        return all(source.is_current() for source in self.sources)


class _Memory:
    """The snapshots that this process read last."""

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[str, int], _Read] = OrderedDict()
        self._lock = Lock()

    def find(self, path: str, version: int) -> _Read | None:
        """Return a snapshot that was read, if its log is still the same."""
        with self._lock:
            held = self._held.get((path, version))
            if held is not None:
                self._held.move_to_end((path, version))
        if held is None or not held.is_current():
            return None
        return held

    def base(self, path: str, version: int) -> _Read | None:
        """Return the nearest snapshot before a version."""
        with self._lock:
            nearest = -1
            for table, number in self._held:
                if table == path and number < version:
                    nearest = max(nearest, number)
            held = self._held.get((path, nearest))
        if held is None or version - nearest > _NEAR or not held.is_current():
            return None
        return held

    def keep(self, read: _Read) -> None:
        """Remember a snapshot, and forget the one that was not asked for the longest."""
        with self._lock:
            self._held[(read.snapshot.path, read.snapshot.version)] = read
            while len(self._held) > _REMEMBERED:
                self._held.popitem(last=False)


_MEMORY = _Memory()


def _replayed(path: str, version: int) -> _Read:
    """Return a snapshot read from the last checkpoint up to a version and the commits after it."""
    replay, start, sources = _from_checkpoint(path, version)
    sources += replay.apply_commits(start + 1, version)
    return _Read(_first_snapshot(replay, version), tuple(sources[-_LOOKED_AT:]))


def _from_checkpoint(path: str, version: int) -> tuple[Replay, int, list[FileState]]:
    """Return the state at the last checkpoint that can be read, its version, and its files.

    A power loss may leave a checkpoint half written: those of other writers, and of the libraries,
    are not synced. What it says stands in the commits before it, too, as long as they are kept.
    The version is -1 where the log is read from its beginning.
    """
    damaged: TableDamaged | None = None
    before = version
    while True:
        start, files = log.checkpoint_before(path, before)
        replay = Replay(path)
        if start < 0:
            break
        try:
            return replay, start, replay.apply_checkpoint(files)
        except TableDamaged as error:
            _log.warning("a checkpoint is passed over: %s", error.message)
            damaged, before = damaged or error, start - 1
    if not log.has_commit(path, 0):
        if damaged is not None:
            raise damaged
        listed = log.list_log(path)
        if version < listed.earliest:
            raise _no_version(path, version, listed.latest, earliest=listed.earliest)
    return replay, start, []


def _no_version(path: str, version: int, latest: int, *, earliest: int = 0) -> VersionNotFound:
    return VersionNotFound(
        f"{path} has no Delta version {version}; it has {earliest} to {latest}.",
        hint=f"as_of={latest}",
    )


def _continued(base: _Read, version: int) -> _Read:
    """Return a snapshot from an earlier one and the commits after it."""
    before = base.snapshot
    replay = Replay(before.path)
    replay.transactions = dict(before.transactions)
    sources = list(base.sources)
    sources += replay.apply_commits(before.version + 1, version)
    if replay.protocol is None and replay.metadata is None:
        snapshot = _next_snapshot(before, replay, version)
    else:
        snapshot = _changed_table(before, replay, version)
    return _Read(snapshot, tuple(sources[-_LOOKED_AT:]))


def _first_snapshot(replay: Replay, version: int) -> Snapshot:
    files = replay.data_files()
    return _snapshot(replay, version, tuple(files))


def _changed_table(before: Snapshot, replay: Replay, version: int) -> Snapshot:
    """Return the snapshot after commits that changed what the table is."""
    files = [file for file in before.files if file.log_path not in replay.removed]
    files = sorted([*files, *replay.data_files()], key=order_of_writing)
    replay.metadata = replay.metadata or before.metadata
    if replay.protocol is None:
        return _snapshot(replay, version, tuple(files), asks=before.protocol)
    return _snapshot(replay, version, tuple(files))


def _next_snapshot(before: Snapshot, replay: Replay, version: int) -> Snapshot:
    """Return the snapshot after commits that changed files alone."""
    new = replay.data_files()
    stays = np.ones(len(before.files), dtype=np.bool_)
    gone = []
    if replay.removed:
        for position, file in enumerate(before.files):
            if file.log_path in replay.removed:
                stays[position] = False
                gone.append(file)
    files = before.files
    if gone:
        files = tuple(before.files[position] for position in np.flatnonzero(stays))
    in_order = not files or not new or order_of_writing(files[-1]) <= order_of_writing(new[0])
    files = (*files, *new)
    if not in_order:
        files = tuple(sorted(files, key=order_of_writing))
    (rows_in, bytes_in), (rows_out, bytes_out) = _sizes(new), _sizes(gone)
    after = replace(
        before,
        version=version,
        files=files,
        rows=before.rows + rows_in - rows_out,
        bytes=before.bytes + bytes_in - bytes_out,
        transactions=replay.transactions,
        _bounds={},
    )
    if in_order:
        for column, bounds in list(before._bounds.items()):
            after._bounds[column] = bounds.kept(stays).joined(_bounds_of(after, new, column))
    return after


def _sizes(files: Iterable[DataFile]) -> tuple[int, int]:
    """Return rows and bytes of files."""
    rows = size = 0
    for file in files:
        rows += file.rows
        size += file.bytes
    return rows, size


def _snapshot(
    replay: Replay, version: int, files: tuple[DataFile, ...], *, asks: Protocol | None = None
) -> Snapshot:
    path, metadata = replay.path, replay.metadata
    try:
        if metadata is None or (replay.protocol is None and asks is None):
            raise ValueError("it states no metadata or no protocol")
        asked = asks or Protocol()
        if replay.protocol is not None:
            asked = Protocol.of(replay.protocol)
        properties = _configuration(metadata)
        protocol.check_readable(path, asked, properties)
        rows, size = _sizes(files)
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
            protocol=asked,
            metadata=metadata,
            transactions=replay.transactions,
        )
    except UnknownTypeError as error:
        raise protocol.refusal(path, f"the type {error.kind} (column {error.column!r})") from error
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, UnsupportedTable):
            raise
        raise TableDamaged(
            f"The Delta log of {path} cannot be read at version {version}: {error}.",
            hint="restore the folder from a copy, or move the table away and write it again",
        ) from error


def _configuration(metadata: Mapping[str, Any]) -> dict[str, str]:
    found = metadata.get("configuration") or {}
    if not isinstance(found, Mapping):
        raise ValueError("its properties are no object")
    return {str(name): str(value) for name, value in found.items()}


def _in_micros(pair: tuple[int, int] | None, kind: pa.DataType) -> tuple[int, int] | None:
    if pair is None or pat.is_integer(kind):
        return None
    if pat.is_timestamp(kind):
        return pair
    return pair[0] * MICROS_OF_DAY, pair[1] * MICROS_OF_DAY


def _bounds_of(snapshot: Snapshot, files: Iterable[DataFile], column: str) -> ColumnBounds:
    kind = snapshot.schema.field(column).type
    found = []
    for file in files:
        if column in snapshot.partition_by:
            found.append(bounds_of_partition(file.partition.get(column), kind))
        else:
            found.append(bounds_in(parsed_statistics(file.statistics), column, kind))
    return ColumnBounds.of(found)
