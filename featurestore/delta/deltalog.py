"""The Delta log as data: what a table is at a version, and what each commit did.

Read with delta-rs and from the commits themselves, for tables of every engine. Nothing here writes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from featurestore.errors import TableDamaged, VersionNotFound
from featurestore.model.times import from_micros, to_micros

if TYPE_CHECKING:
    from deltalake import DeltaTable

LOG_FOLDER = "_delta_log"
Fingerprint = tuple[tuple[str, int, int, int], ...]
_COMMIT_FILE = re.compile(r"(\d{20})\.json")
_CHECKPOINT_FILE = re.compile(r"(\d{20})\.checkpoint\..*parquet")
# Rows that a rewrite carried over unchanged: one key for each writer and operation.
_COPIED_ROWS = ("numCopiedRows", "numTargetRowsCopied", "num_copied_rows", "num_target_rows_copied")


@dataclass(frozen=True)
class DataFile:
    """One Parquet file of a table version; ``path`` is absolute, ``log_path`` as the log writes it.

    ``partition`` holds the partition values of all its rows, typed, by column.
    """

    path: str
    log_path: str
    bytes: int
    rows: int
    partition: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TableState:
    """A table at one version. ``schema`` holds storage types; ``files`` are in the order of writing.

    ``protocol`` is what the table asks of its readers and its writers, as Delta's two version numbers.
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
    statistics: pa.Table = field(repr=False, compare=False)
    protocol: tuple[int, int] = (1, 2)

    def bounds(self, column: str) -> list[tuple[Any, Any]] | None:
        """Return the least and greatest value of a column for each of ``files``, or None where the log has none.

        Both are None for a file that holds nulls only or no statistics; strings may be cut to bounds.
        """
        found = []
        for side in ("min", "max"):
            kind = (
                self.statistics.schema.field(side).type
                if side in self.statistics.column_names
                else None
            )
            if kind is None or kind.get_field_index(column) < 0:
                return None
            values = self.statistics[side].combine_chunks()
            try:
                found.append(values.field(column).to_pylist())
            except (OverflowError, ValueError):  # times that Python does not know
                return None
        return list(zip(*found, strict=True))


@dataclass(frozen=True)
class LogCommit:
    """One commit: ``timestamp`` in milliseconds since 1970 (never falling), ``rows`` in the table afterwards.

    ``operation`` is the name in the note where a writer of ours left one, else the log's, in lower case.
    """

    version: int
    timestamp: int
    operation: str
    note: Mapping[str, Any]
    rows_in: int
    rows_out: int
    rows: int

    @property
    def time(self) -> datetime:
        """The commit time as an aware UTC datetime."""
        return from_micros(self.timestamp * 1000)


def exists(path: str) -> bool:
    """Tell whether there is a Delta table at ``path``."""
    folder = Path(path) / LOG_FOLDER
    if not folder.is_dir():
        return False
    return any(
        _COMMIT_FILE.fullmatch(name) or ".checkpoint." in name for name in os.listdir(folder)
    )


def table_state(path: str, version: int | None = None) -> TableState:
    """Return what a table is at a version (the latest when None).

    Raises:
        VersionNotFound: The table has no such version.
        TableDamaged: The log is missing or unreadable; names the file.
    """
    return _state(os.path.abspath(path), version, _fingerprint(path, version))


# What a version is never changes, and one write asks for it several times; the fingerprint notices other files.
@lru_cache(maxsize=64)
def _state(path: str, version: int | None, fingerprint: Fingerprint) -> TableState:
    table = _opened(path, version, fingerprint)
    adds = pa.table(table.get_add_actions(flatten=False)).combine_chunks()
    # Files of one commit share their time, and writers number them: so this is the order of writing.
    adds = adds.sort_by([("modification_time", "ascending"), ("path", "ascending")])
    metadata, protocol = table.metadata(), table.protocol()
    schema = pa.schema(table.schema().to_arrow())
    files = tuple(_data_files(path, adds, tuple(metadata.partition_columns)))
    return TableState(
        path=path,
        version=table.version(),
        table_id=str(metadata.id),
        schema=pa.schema([pa.field(each.name, each.type, each.nullable) for each in schema]),
        properties=dict(metadata.configuration),
        partition_by=tuple(metadata.partition_columns),
        files=files,
        rows=sum(each.rows for each in files),
        bytes=sum(each.bytes for each in files),
        statistics=adds,
        protocol=(protocol.min_reader_version, protocol.min_writer_version),
    )


def open_table(path: str, version: int | None = None) -> DeltaTable:
    """Return the delta-rs handle of a table; errors as in ``table_state``."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    if not exists(path):
        raise TableDamaged(
            f"There is no Delta log at {Path(path) / LOG_FOLDER}.",
            hint="featurestore registry rebuild",
        )
    _check_log(path)
    try:
        return DeltaTable(path, version=version)
    except (DeltaError, OSError, ValueError) as error:
        latest = latest_version(path)
        if version is not None and not 0 <= version <= latest:
            raise VersionNotFound(
                f"{path} has no Delta version {version}; it has 0 to {latest}.",
                hint=f"as_of={latest}",
            ) from error
        raise TableDamaged(
            f"The Delta log of {path} cannot be read: {_damage(path) or str(error).splitlines()[0]}.",
            hint="restore the file from a copy, or move the table away and write it again",
        ) from error


@lru_cache(maxsize=16)
def _opened(path: str, version: int | None, _fingerprint: Fingerprint) -> DeltaTable:
    """Return a handle for reading only, which others use at the same time."""
    return open_table(path, version)


def _fingerprint(path: str, version: int | None) -> Fingerprint:
    """Return name, time, size and number of every file of the log that says what a version is (None: the latest)."""
    folder = os.path.join(path, LOG_FOLDER)
    try:
        names = os.listdir(folder)
        commits = {name: int(found[1]) for name in names if (found := _COMMIT_FILE.fullmatch(name))}
        checkpoints = {
            name: int(found[1]) for name in names if (found := _CHECKPOINT_FILE.fullmatch(name))
        }
        since, until = max(checkpoints.values(), default=-1), -1 if version is None else version
        wanted = [name for name, number in commits.items() if number > since or number <= until]
        wanted += [
            name for name, number in checkpoints.items() if number == since or number <= until
        ]
        stats = ((name, os.stat(os.path.join(folder, name))) for name in sorted(wanted))
        return tuple((name, stat.st_mtime_ns, stat.st_size, stat.st_ino) for name, stat in stats)
    except OSError:
        return ()  # whoever opens the table says what is wrong


def latest_version(path: str) -> int:
    """Return the number of the last commit in the log folder, -1 when there is none."""
    return max((version for version, _ in _commit_files(path)), default=-1)


def history(path: str) -> tuple[LogCommit, ...]:
    """Return every commit of the log, the first one first."""
    _check_log(path, since=0)
    rows_of: dict[str, int] = {}
    rows, moment = 0, 0
    commits = []
    for version, file in _commit_files(path):
        actions = read_commit(file)
        info = _first(actions, "commitInfo")
        moment = max(moment, _commit_time(info, file))
        data_change, rows_in, rows_out = False, 0, 0
        for remove in _each(actions, "remove"):
            data_change |= bool(remove.get("dataChange", True))
            rows_out += rows_of.pop(remove["path"], 0) or _rows_in_stats(remove) or 0
        for add in _each(actions, "add"):
            data_change |= bool(add.get("dataChange", True))
            rows_of[add["path"]] = _rows_of_add(path, add)
            rows_in += rows_of[add["path"]]
        rows += rows_in - rows_out
        kept = _copied_rows(info) if data_change else min(rows_in, rows_out)
        note = _note(info)
        commits.append(
            LogCommit(
                version=version,
                timestamp=moment,
                operation=str(note.get("operation") or info.get("operation", "unknown")).lower(),
                note=note,
                rows_in=max(rows_in - kept, 0),
                rows_out=max(rows_out - kept, 0),
                rows=rows,
            )
        )
    return tuple(commits)


def version_at(path: str, moment: datetime) -> int:
    """Return the last version whose commit time is at or before a moment.

    Commit times have milliseconds; of several commits in one millisecond the last one counts.

    Raises:
        VersionNotFound: The table began later.
    """
    millis = to_micros(moment) // 1000
    latest, found = 0, None
    first = None
    for version, file in _commit_files(path):
        latest = max(latest, _commit_time(_first(read_commit(file), "commitInfo"), file))
        first = latest if first is None else first
        if latest > millis:
            break
        found = version
    if found is None:
        began = "never" if first is None else from_micros(first * 1000).isoformat()
        raise VersionNotFound(
            f"{path} has no version at {moment.isoformat()}: its first commit is of {began}.",
            hint=f"as_of={began!r}",
        )
    return found


def transaction_version(path: str, app: str) -> int | None:
    """Return the last transaction number that an application committed, None when it committed none."""
    found = _opened(os.path.abspath(path), None, _fingerprint(path, None)).transaction_version(app)
    return None if found is None else int(found)


def added_files(path: str, version: int) -> tuple[str, ...]:
    """Return the absolute paths of the data files that one commit added."""
    commit = commit_path(path, version)
    if not os.path.exists(commit):
        raise VersionNotFound(
            f"{path} has no commit {version}; the last one is {latest_version(path)}."
        )
    return tuple(file_path(path, add["path"]) for add in _each(read_commit(commit), "add"))


def commit_path(path: str, version: int) -> str:
    """Return where the log keeps the commit of a version."""
    return os.path.join(path, LOG_FOLDER, f"{version:020d}.json")


def file_path(path: str, log_path: str) -> str:
    """Return the absolute path of a file as the log names it (relative and percent-encoded)."""
    return os.path.join(os.path.abspath(path), unquote(log_path))


def check_files(files: Iterable[DataFile]) -> None:
    """Raise TableDamaged when a data file is missing or of another size than the log says."""
    for file in files:
        try:
            size = os.stat(file.path).st_size
        except OSError as error:
            raise _damaged_file(file.path, "is missing") from error
        if size != file.bytes:
            raise _damaged_file(file.path, f"has {size} bytes where the log says {file.bytes}")


def read_commit(file: str) -> list[dict[str, Any]]:
    """Return the actions of one commit file.

    Raises:
        TableDamaged: The file is not what a commit looks like.
    """
    stat = os.stat(file)
    return _parsed_commit(file, stat.st_mtime_ns, stat.st_size)


# A commit never changes, and histories are asked for again and again.
@lru_cache(maxsize=4096)
def _parsed_commit(file: str, _modified: int, _size: int) -> list[dict[str, Any]]:
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
        actions = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise _damaged_file(file, "is not a readable commit") from error
    if not actions or not all(isinstance(action, dict) for action in actions):
        raise _damaged_file(file, "holds no actions")
    return actions


def _damaged_file(file: str, what: str) -> TableDamaged:
    return TableDamaged(
        f"The file {file} {what}.",
        hint="restore it from a copy, or read an older Delta version with as_of=",
    )


def _data_files(path: str, adds: pa.Table, partition_by: tuple[str, ...]) -> Iterator[DataFile]:
    names, sizes, counts = (
        adds[name].to_pylist() for name in ("path", "size_bytes", "num_records")
    )
    partitions = (
        adds["partition"].to_pylist() if partition_by and adds.num_rows else [{}] * adds.num_rows
    )
    for name, size, rows, partition in zip(names, sizes, counts, partitions, strict=True):
        absolute = file_path(path, name)
        yield DataFile(
            path=absolute,
            log_path=name,
            bytes=size,
            rows=_footer_rows(absolute) if rows is None else rows,
            partition=partition,
        )


def _rows_of_add(path: str, add: Mapping[str, Any]) -> int:
    rows = _rows_in_stats(add)
    return _footer_rows(file_path(path, add["path"])) if rows is None else rows


def _rows_in_stats(action: Mapping[str, Any]) -> int | None:
    stats = action.get("stats")
    rows = json.loads(stats).get("numRecords") if stats else None
    return None if rows is None else int(rows)


def _footer_rows(file: str) -> int:
    from pyarrow import parquet

    try:
        return int(parquet.read_metadata(file).num_rows)
    except (OSError, pa.ArrowInvalid) as error:
        raise _damaged_file(file, "is missing or no Parquet file") from error


def _copied_rows(info: Mapping[str, Any]) -> int:
    metrics = info.get("operationMetrics") or {}
    return next((int(metrics[key]) for key in _COPIED_ROWS if key in metrics), 0)


def _note(info: Mapping[str, Any]) -> dict[str, Any]:
    try:
        note = json.loads(info.get("userMetadata") or "{}")
    except ValueError:
        return {}  # another writer's text
    return note if isinstance(note, dict) else {}


def _commit_time(info: Mapping[str, Any], file: str) -> int:
    written = info.get("inCommitTimestamp") or info.get("timestamp")
    return int(written) if written is not None else os.stat(file).st_mtime_ns // 1_000_000


def _commit_files(path: str) -> list[tuple[int, str]]:
    folder = os.path.join(path, LOG_FOLDER)
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise _damaged_file(folder, "is missing") from error
    found = (
        (int(match[1]), os.path.join(folder, name))
        for name in names
        if (match := _COMMIT_FILE.fullmatch(name))
    )
    return sorted(found)


def _check_log(path: str, *, since: int | None = None) -> None:
    """Raise TableDamaged when a commit is missing or empty, which delta-rs would read as if nothing had happened."""
    commits = dict(_commit_files(path))
    if since is None:
        checkpoints = (
            _CHECKPOINT_FILE.fullmatch(name) for name in os.listdir(os.path.join(path, LOG_FOLDER))
        )
        since = max((int(found[1]) + 1 for found in checkpoints if found), default=0)
    for version in range(since, max(commits, default=-1) + 1):
        # A listing may overlook a commit that came while it was made.
        if version not in commits and not os.path.exists(commit_path(path, version)):
            raise _damaged_file(commit_path(path, version), "is missing")
        if os.stat(commit_path(path, version)).st_size == 0:
            raise _damaged_file(commit_path(path, version), "is empty")


def _damage(path: str) -> str | None:
    """Name the first commit that is unreadable, None when all look well."""
    for _, file in _commit_files(path):
        try:
            read_commit(file)
        except TableDamaged as error:
            return error.message.removeprefix("The ").rstrip(".").replace("file", "the file", 1)
    return None


def _first(actions: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(_each(actions, kind), {})


def _each(actions: list[dict[str, Any]], kind: str) -> Iterator[dict[str, Any]]:
    return (action[kind] for action in actions if action.get(kind) is not None)
