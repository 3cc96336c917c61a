"""Snapshots: what a Delta table is at one version, replayed from the last checkpoint and the commits after it.

A snapshot that this process has read is the base of the next one, so that a version costs what its own commit holds.
"""

from __future__ import annotations

import json
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import unquote, urlsplit

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
from featurestore.delta.checkpoint import read_checkpoint
from featurestore.delta.log import Actions, FileState, damaged_file, unreadable_file
from featurestore.delta.protocol import Protocol
from featurestore.delta.schema import UnknownTypeError, arrow_schema
from featurestore.errors import TableDamaged, UnsupportedTable, VersionNotFound

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:/")
_ROWS_FIRST = re.compile(r'\{\s*"numRecords"\s*:\s*(\d+)\s*[,}]')
# Snapshots that are remembered, and how far behind one may be to be the base of another.
_REMEMBERED = 64
_NEAR = 1000
# So many commits before a version are looked at again before what was read of it is believed.
_LOOKED_AT = 16


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file of a table version; ``path`` is absolute, ``log_path`` as the log writes it.

    ``partition`` holds the values of all its rows by column, as texts of the log; ``statistics`` is JSON of the log.
    """

    path: str
    log_path: str
    bytes: int
    rows: int
    modified: int = 0
    partition: Mapping[str, str | None] = field(default_factory=dict)
    statistics: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Snapshot:
    """A table at one version. ``schema`` holds storage types; ``files`` are in the order of writing.

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

    def bounds(self, column: str) -> ColumnBounds | None:
        """Return the bounds of a column in each of ``files``, None for types that the log does not bound."""
        index = self.schema.get_field_index(column)
        if index < 0 or not has_bounds(self.schema.field(index).type):
            return None
        if column not in self._bounds:
            self._bounds[column] = _bounds_of(self, self.files, column)
        return self._bounds[column]

    def times(self, column: str) -> list[tuple[int, int] | None] | None:
        """Return least and greatest time of each of ``files`` in microseconds since 1970, days as their beginning.

        None for a file of which the log does not tell, and as a whole for columns that hold no times.
        """
        bounds = self.bounds(column)
        kind = None if bounds is None else self.schema.field(column).type
        if bounds is None or pat.is_integer(kind):
            return None
        return [_in_micros(pair, kind) for pair in bounds.pairs()]

    def times_of_added(self, add: Mapping[str, Any], column: str) -> tuple[int, int] | None:
        """Return least and greatest time of a file that a commit of this table adds; None where it does not tell."""
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
    path = os.path.abspath(path)
    if not log.is_delta_table(path):
        raise TableDamaged(
            f"There is no Delta log at {Path(path) / log.LOG_FOLDER}.",
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
    read = _replayed(path, wanted) if base is None else _continued(base, wanted)
    _MEMORY.keep(read)
    return read.snapshot


def transaction_version(path: str, app: str) -> int | None:
    """Return the last transaction number that an application committed, None when it committed none."""
    return read_snapshot(path).transactions.get(app)


def check_files(files: Iterable[DataFile]) -> None:
    """Raise TableDamaged when a data file is missing or of another size than the log says."""
    for file in files:
        try:
            size = FileState.of(file.path).size
        except OSError as error:
            raise unreadable_file(file.path, error) from error
        if size != file.bytes:
            raise damaged_file(file.path, f"has {size} bytes where the log says {file.bytes}")


def file_path(path: str, log_path: str) -> str:
    """Return the absolute path of a data file as the log names it: relative or a URL, percent-encoded.

    Raises:
        UnsupportedTable: The file lies outside the table, as those of a shallow clone do.
    """
    path = os.path.abspath(path)
    if not log_path.startswith("/") and ".." not in log_path and not _SCHEME.match(log_path):
        return os.path.join(path, unquote(log_path))
    text = log_path
    if _SCHEME.match(log_path):
        url = urlsplit(log_path)
        if url.scheme != "file":
            raise protocol.refusal(path, f"files outside its folder ({log_path})")
        text = url.path
    found = os.path.normpath(os.path.join(path, unquote(text)))
    if not found.startswith(os.path.join(path, "")):
        raise protocol.refusal(path, f"files outside its folder ({log_path})")
    return found


def rows_of(path: str, add: Mapping[str, Any]) -> int:
    """Return how many rows an added file has: by the log, else by the file itself."""
    rows = rows_in_statistics(add.get("stats"))
    return _footer_rows(file_path(path, add["path"])) if rows is None else rows


def rows_in_statistics(text: str | None) -> int | None:
    """Return how many rows the statistics of a file state, None where they do not.

    >>> rows_in_statistics('{"numRecords":3,"minValues":{}}')
    3
    """
    if not isinstance(text, str):
        return None
    quick = _ROWS_FIRST.match(text)
    if quick is not None:
        return int(quick[1])
    rows = parsed_statistics(text).get("numRecords")
    return rows if isinstance(rows, int) else None


def parsed_statistics(text: str | None) -> Mapping[str, Any]:
    """Return the statistics of a file; empty where there are none that can be read."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class _Read:
    """A snapshot, and the files of the log that it was read from: checkpoint and last commits."""

    snapshot: Snapshot
    sources: tuple[FileState, ...]

    def is_current(self) -> bool:
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
        return held if held is not None and held.is_current() else None

    def base(self, path: str, version: int) -> _Read | None:
        """Return the nearest snapshot before a version."""
        with self._lock:
            known = [number for held, number in self._held if held == path and number < version]
            nearest = max(known, default=-1)
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


class _Replay:
    """The state of a table while its log is replayed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.protocol: Mapping[str, Any] | None = None
        self.metadata: Mapping[str, Any] | None = None
        self.transactions: dict[str, int] = {}
        self.adds: dict[str, Mapping[str, Any]] = {}
        self.removed: set[str] = set()

    def apply(self, actions: Actions, file: str) -> None:
        """Take in a commit; TableDamaged names its file when it makes no sense."""
        for found in log.actions_of(actions, "protocol"):
            self.protocol = found
        for found in log.actions_of(actions, "metaData"):
            self.metadata = found
        try:
            for found in log.actions_of(actions, "txn"):
                self.transactions[str(found["appId"])] = int(found["version"])
        except (KeyError, TypeError, ValueError) as error:
            raise damaged_file(file, "holds a transaction without application or number") from error
        # A commit may name a file twice: with another deletion vector it goes and comes, in any order.
        for found in log.actions_of(actions, "remove"):
            self.adds.pop(found["path"], None)
            self.removed.add(found["path"])
        for found in log.actions_of(actions, "add"):
            self.adds[found["path"]] = found
            # A file that is added again takes the place of the one before it.
            self.removed.add(found["path"])


def _replayed(path: str, version: int) -> _Read:
    """Return a snapshot read from the last checkpoint at or before a version, and the commits after it."""
    replay = _Replay(path)
    sources: list[FileState] = []
    start, files = log.checkpoint_before(path, version)
    if start < 0 and not log.has_commit(path, 0):
        listed = log.list_log(path)
        if version < listed.earliest:
            raise _no_version(path, version, listed.latest, earliest=listed.earliest)
    if files:
        sources += _states(files)
        checkpoint = read_checkpoint(path, files)
        replay.protocol, replay.metadata = checkpoint.protocol, checkpoint.metadata
        for found in checkpoint.transactions:
            replay.transactions[str(found["appId"])] = int(found["version"])
        replay.adds = {str(add["path"]): add for add in checkpoint.adds}
    sources += _apply_commits(replay, start + 1, version)
    return _Read(_first_snapshot(replay, version), tuple(sources[-_LOOKED_AT:]))


def _no_version(path: str, version: int, latest: int, *, earliest: int = 0) -> VersionNotFound:
    return VersionNotFound(
        f"{path} has no Delta version {version}; it has {earliest} to {latest}.",
        hint=f"as_of={latest}",
    )


def _continued(base: _Read, version: int) -> _Read:
    """Return a snapshot from an earlier one and the commits after it."""
    before = base.snapshot
    replay = _Replay(before.path)
    replay.transactions = dict(before.transactions)
    sources = list(base.sources)
    sources += _apply_commits(replay, before.version + 1, version)
    if replay.protocol is None and replay.metadata is None:
        snapshot = _next_snapshot(before, replay, version)
    else:
        snapshot = _changed_table(before, replay, version)
    return _Read(snapshot, tuple(sources[-_LOOKED_AT:]))


def _apply_commits(replay: _Replay, first: int, last: int) -> list[FileState]:
    sources = []
    for number in range(first, last + 1):
        file = log.commit_path(replay.path, number)
        source, actions = log.read_commit_file(file)
        replay.apply(actions, file)
        sources.append(source)
    return sources


def _states(files: Iterable[str]) -> list[FileState]:
    try:
        return [FileState.of(file) for file in files]
    except OSError as error:
        raise unreadable_file(str(error.filename), error) from error


def _first_snapshot(replay: _Replay, version: int) -> Snapshot:
    files = sorted(_data_files(replay), key=_order_of_writing)
    return _snapshot(replay, version, tuple(files))


def _changed_table(before: Snapshot, replay: _Replay, version: int) -> Snapshot:
    """Return the snapshot after commits that changed what the table is."""
    files = [file for file in before.files if file.log_path not in replay.removed]
    files = sorted([*files, *_data_files(replay)], key=_order_of_writing)
    replay.metadata = replay.metadata or before.metadata
    if replay.protocol is None:
        return _snapshot(replay, version, tuple(files), asks=before.protocol)
    return _snapshot(replay, version, tuple(files))


def _next_snapshot(before: Snapshot, replay: _Replay, version: int) -> Snapshot:
    """Return the snapshot after commits that changed files alone."""
    new = sorted(_data_files(replay), key=_order_of_writing)
    files = before.files
    stays = np.ones(len(files), dtype=np.bool_)
    gone = []
    if replay.removed:
        for position, file in enumerate(files):
            if file.log_path in replay.removed:
                stays[position] = False
                gone.append(file)
        files = tuple(file for file in files if file.log_path not in replay.removed)
    in_order = not files or not new or _order_of_writing(files[-1]) <= _order_of_writing(new[0])
    files = (*files, *new)
    after = Snapshot(
        path=before.path,
        version=version,
        table_id=before.table_id,
        schema=before.schema,
        properties=before.properties,
        partition_by=before.partition_by,
        files=files if in_order else tuple(sorted(files, key=_order_of_writing)),
        rows=before.rows + sum(file.rows for file in new) - sum(file.rows for file in gone),
        bytes=before.bytes + sum(file.bytes for file in new) - sum(file.bytes for file in gone),
        protocol=before.protocol,
        metadata=before.metadata,
        transactions=replay.transactions,
    )
    if in_order:
        for column, bounds in list(before._bounds.items()):
            after._bounds[column] = bounds.kept(stays).joined(_bounds_of(after, new, column))
    return after


def _snapshot(
    replay: _Replay, version: int, files: tuple[DataFile, ...], *, asks: Protocol | None = None
) -> Snapshot:
    path, metadata = replay.path, replay.metadata
    try:
        if metadata is None or (replay.protocol is None and asks is None):
            raise ValueError("it states no metadata or no protocol")
        asked = asks if replay.protocol is None else Protocol.of(replay.protocol)
        properties = {str(name): str(value) for name, value in _configuration(metadata).items()}
        protocol.check_readable(path, asked or Protocol(), properties)
        return Snapshot(
            path=path,
            version=version,
            table_id=str(metadata["id"]),
            schema=arrow_schema(metadata["schemaString"]),
            properties=properties,
            partition_by=tuple(metadata.get("partitionColumns") or ()),
            files=files,
            rows=sum(file.rows for file in files),
            bytes=sum(file.bytes for file in files),
            protocol=asked or Protocol(),
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


def _configuration(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    found = metadata.get("configuration") or {}
    if not isinstance(found, Mapping):
        raise ValueError("its properties are no object")
    return found


def _data_files(replay: _Replay) -> list[DataFile]:
    found = []
    for log_path, add in replay.adds.items():
        protocol.check_no_vector(replay.path, log_path, add)
        try:
            file = DataFile(
                path=file_path(replay.path, log_path),
                log_path=log_path,
                bytes=int(add["size"]),
                rows=rows_of(replay.path, add),
                modified=int(add.get("modificationTime") or 0),
                partition=dict(add.get("partitionValues") or {}),
                statistics=add.get("stats"),
            )
        except (KeyError, TypeError) as error:
            raise TableDamaged(
                f"The Delta log of {replay.path} tells too little of the file {log_path}.",
                hint="restore the folder from a copy",
            ) from error
        found.append(file)
    return found


def _order_of_writing(file: DataFile) -> tuple[int, str]:
    # Files of one commit share their time, and writers number them.
    return file.modified, file.log_path


def _in_micros(pair: tuple[int, int] | None, kind: pa.DataType) -> tuple[int, int] | None:
    if pair is None or pat.is_integer(kind):
        return None
    scale = 1 if pat.is_timestamp(kind) else MICROS_OF_DAY
    return pair[0] * scale, pair[1] * scale


def _bounds_of(snapshot: Snapshot, files: Iterable[DataFile], column: str) -> ColumnBounds:
    kind = snapshot.schema.field(column).type
    found = []
    for file in files:
        if column in snapshot.partition_by:
            found.append(bounds_of_partition(file.partition.get(column), kind))
        else:
            found.append(bounds_in(parsed_statistics(file.statistics), column, kind))
    return ColumnBounds.of(found)


def _footer_rows(file: str) -> int:
    from pyarrow import parquet

    try:
        return int(parquet.read_metadata(file).num_rows)
    except (OSError, pa.ArrowInvalid) as error:
        raise damaged_file(file, "is missing or no Parquet file") from error
