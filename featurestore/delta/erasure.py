"""Removal of rows from the history of a Delta table: its data files, commits and checkpoints.

The log describes data files: their statistics contain values, and their paths contain the values of
partition columns. The log keeps an entry for each file that was removed, so that row counts and the
sequence of versions remain. Such an entry has only the number of rows as statistics; a path with an
erased value is replaced by a digest of the path. A version that needs a removed file is reported as
vacuumed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from featurestore.delta import log
from featurestore.delta.checksums import (
    CHECKSUMS,
    Action,
    CommitChecksums,
    checksums_of,
    digest_of,
    seal,
    to_commit,
)
from featurestore.delta.commits import META
from featurestore.delta.datafile import file_path, parse_statistics, rows_in_statistics
from featurestore.delta.log import LOG_FOLDER
from featurestore.errors import UnsupportedTable
from featurestore.storage import storage_for

_NESTED_TABLES = ("_key_versions",)
_ERASED_FOLDER = "erased"
# Parsed forms of values that a checkpoint also has as strings.
_PARSED = ("stats_parsed", "partitionValues_parsed")
# The actions with texts of writers.
_NOTES = ("commitInfo", "txn")
# The maps in a checkpoint.
_MAPS = ("partitionValues", "tags", "configuration")


@dataclass(frozen=True)
class LogScrubber:
    """The erased values of one table, for its log.

    Attributes:
        path: The table.
        has_value: Returns whether a text contains an erased value.
        remove_value: Returns a text without erased values.
        is_partition: Returns whether values by column are those of erased rows.
    """

    path: str
    has_value: Callable[[str], bool]
    remove_value: Callable[[str], str]
    is_partition: Callable[[Action], bool]

    def has_traces(self, action: Action) -> bool:
        """Return whether an action of a commit or a checkpoint contains an erased value.

        Actions of files that exist do not count: their rows are searched.
        """
        for action_name in ("add", "remove"):
            file = action.get(action_name)
            if file is not None and self._is_missing(file["path"]) and self._names_value(file):
                return True
        notes: list[Any] = [
            _without_checksums(action[name]) for name in _NOTES if action.get(name) is not None
        ]
        notes.append(_annotations(action).get(META))
        return any(self.has_value(text) for text in texts_of(notes))

    def has_other_traces(self, file: str) -> bool:
        """Return whether another file of the log than a commit or a checkpoint has a value."""
        if file.endswith((".json", ".parquet")):
            return False
        return self.has_value(storage_for(file).read_bytes(file).decode("utf-8", "surrogateescape"))

    def clean(self, action: Action) -> dict[str, Any]:
        """Return an action without erased values, and without statistics of missing files."""
        cleaned = dict(action)
        for action_name in _NOTES:
            if action.get(action_name) is not None:
                cleaned[action_name] = self._clean_note(action[action_name])
        annotations = _annotations(action)
        if META in annotations:
            # Descriptions and tags; the definition of the group is not changed.
            text = self._clean_texts(annotations[META])
            configuration = {**annotations, META: text}
            cleaned["metaData"] = {**action["metaData"], "configuration": configuration}
        for action_name in ("add", "remove"):
            file = action.get(action_name)
            # The path of an existing file must not change.
            if file is not None and self._is_missing(file["path"]):
                cleaned[action_name] = self._clean_file(file)
        return cleaned

    def _names_value(self, file: Action) -> bool:
        """Return whether the path, the partition or the statistics of a file have a value."""
        if self.is_partition(dict(file.get("partitionValues") or {})):
            return True
        statistics = parse_statistics(file.get("stats"))
        for bound in ("minValues", "maxValues"):
            values = statistics.get(bound)
            if isinstance(values, Mapping) and self.is_partition(values):
                return True
        return any(self.has_value(text) for text in texts_of([file["path"], file.get("stats")]))

    def _clean_file(self, file: Action) -> dict[str, Any]:
        partition = dict(file.get("partitionValues") or {})
        is_erased = self.is_partition(partition)
        cleaned = dict(file)
        if "stats" in cleaned:
            rows = rows_in_statistics(cleaned["stats"])
            cleaned["stats"] = None if rows is None else json.dumps({"numRecords": rows})
        for name in _PARSED:
            if name in cleaned:
                cleaned[name] = None
        path = file["path"]
        if (is_erased or self.has_value(path)) and not path.startswith(f"{_ERASED_FOLDER}/"):
            # Equal in all commits. Names of data files are random, so that the digest cannot be
            # computed from the value.
            digest = hashlib.sha256(path.encode()).hexdigest()
            cleaned["path"] = f"{_ERASED_FOLDER}/{digest}.parquet"
        if partition:
            cleaned["partitionValues"] = {
                name: None if is_erased or self.has_value(str(value)) else value
                for name, value in partition.items()
            }
        if cleaned.get("tags"):
            cleaned["tags"] = self._clean_texts(dict(cleaned["tags"]))
        return cleaned

    def _clean_note(self, note: Action) -> dict[str, Any]:
        cleaned: dict[str, Any] = self._clean_texts(_without_checksums(note))
        if CHECKSUMS in note:
            cleaned[CHECKSUMS] = note[CHECKSUMS]
        return cleaned

    def _is_missing(self, log_path: str) -> bool:
        try:
            return not storage_for(self.path).exists(file_path(self.path, log_path))
        except UnsupportedTable:  # another table's file, as in a shallow clone
            return False

    def _clean_texts(self, value: Any) -> Any:
        """Return a JSON value whose strings contain no erased values."""
        if isinstance(value, str):
            return self.remove_value(value) if self.has_value(value) else value
        if isinstance(value, Mapping):
            return {name: self._clean_texts(item) for name, item in value.items()}
        if isinstance(value, list):
            return list(map(self._clean_texts, value))
        return value


def _annotations(action: Action) -> Action:
    """Return the properties of a table in an action."""
    metadata = action.get("metaData")
    return {} if metadata is None else metadata.get("configuration") or {}


def _without_checksums(note: Action) -> dict[str, Any]:
    """Return a ``commitInfo`` without checksums, whose digits may look like an erased value."""
    return {name: item for name, item in note.items() if name != CHECKSUMS}


def texts_of(value: Any) -> Iterator[str]:
    """Yield all strings in a JSON value, and those in strings that are JSON themselves.

    >>> list(texts_of({"stats": '{"minValues": {"user": "a"}}'}))
    ['{"minValues": {"user": "a"}}', 'a', 'user', 'minValues', 'stats']
    """
    if isinstance(value, str):
        yield value
        if value[:1] in ("{", "["):
            try:
                nested = json.loads(value)
            except (ValueError, RecursionError):
                return
            yield from texts_of(nested)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from texts_of(item)
            yield str(name)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_of(item)


def data_files(path: str) -> Iterator[str]:
    """Yield the paths of all Parquet files of a table, including those that no commit names."""
    for file in storage_for(path).walk(
        path, enter=lambda name: name not in (LOG_FOLDER, *_NESTED_TABLES)
    ):
        if file.endswith(".parquet"):
            yield file


def unused_partitions(path: str) -> Iterator[str]:
    """Yield the folders of partitions without data files; their names are values."""
    storage = storage_for(path)
    for name in storage.list_directory(path):
        folder = os.path.join(path, name)
        if "=" in name and storage.is_directory(folder):
            if any(file.endswith(".parquet") for file in storage.walk(folder)):
                yield from unused_partitions(folder)
            else:
                yield folder


def partition_of(path: str, table_path: str) -> dict[str, str]:
    """Return the partition values in a path below a table."""
    partition = {}
    for folder in path.removeprefix(table_path).split("/"):
        name, mark, value = folder.partition("=")
        if mark:
            partition[unquote(name)] = unquote(value)
    return partition


def log_files(path: str) -> list[str]:
    """Return the commits, checkpoints and checksums in a log."""
    folder = os.path.join(path, LOG_FOLDER)
    return [
        file for file in storage_for(folder).walk(folder) if not file.endswith("_last_checkpoint")
    ]


def read_actions(file: str) -> list[dict[str, Any]]:
    """Return the actions in a commit or checkpoint; an empty list for other files."""
    if file.endswith(".parquet"):
        from pyarrow import parquet

        table = parquet.read_table(io.BytesIO(storage_for(file).read_bytes(file)))
        return [_with_mappings(row) for row in table.to_pylist()]
    if not file.endswith(".json"):
        return []
    # A damaged commit must not get a new checksum.
    return list(map(dict, log.read_commit(file)))


def _with_mappings(row: Action) -> dict[str, Any]:
    """Convert the maps of a checkpoint row, which are lists of pairs, to mappings."""
    actions: dict[str, Any] = {}
    for action_name, payload in row.items():
        if payload is None:
            continue
        actions[action_name] = {
            name: dict(item) if name in _MAPS and item is not None else item
            for name, item in payload.items()
        }
    return actions


def scrub_log(scrubber: LogScrubber) -> int:
    """Rewrite the commits and checkpoints of a table without erased values; return their number.

    Commits are replaced atomically and keep their versions. A killed call can be repeated.
    """
    storage = storage_for(scrubber.path)
    count = 0
    changed_checkpoints: dict[str, list[dict[str, Any]]] = {}
    commit_files = []
    for file in log_files(scrubber.path):
        # Checksum files of Spark repeat the statistics of files, and killed writers leave temporary
        # files. Readers need neither.
        if file.endswith(".crc") or scrubber.has_other_traces(file):
            storage.remove(file, below=scrubber.path)
        elif file.endswith(".parquet"):
            actions = read_actions(file)
            cleaned = [scrubber.clean(action) for action in actions]
            if cleaned != actions:
                changed_checkpoints[file] = cleaned
        else:
            commit_files.append(file)
    # The commits first: they contain checksums of checkpoints, which are removed before a
    # checkpoint changes.
    changed_names = set(map(os.path.basename, changed_checkpoints))
    for file in commit_files:
        actions = read_actions(file)
        cleaned = [scrubber.clean(action) for action in actions]
        checksums = checksums_of(log.commit_info(actions))
        has_record = checksums is not None and not changed_names.isdisjoint(checksums.checkpoints)
        if cleaned != actions or has_record:
            count += 1
            storage.write_atomically(file, _commit_bytes(file, cleaned, checksums, changed_names))
    for file, cleaned in changed_checkpoints.items():
        count += 1
        storage.write_atomically(file, _checkpoint_bytes(file, cleaned))
    return count


def _commit_bytes(
    file: str,
    actions: list[dict[str, Any]],
    checksums: CommitChecksums | None,
    changed_checkpoints: Collection[str],
) -> bytes:
    """Return a commit with other actions, which keeps its place in the chain of commits."""
    _keep_commit_time(actions, file)
    if checksums is None:
        return to_commit(actions)
    checkpoints = {
        name: checksum
        for name, checksum in checksums.checkpoints.items()
        if name not in changed_checkpoints
    }
    original = checksums.original or digest_of(storage_for(file).read_bytes(file))
    return seal(actions, replace(checksums, checkpoints=checkpoints, original=original))


def _checkpoint_bytes(file: str, actions: list[dict[str, Any]]) -> bytes:
    """Return a checkpoint with other actions, with the schema of the file."""
    from pyarrow import parquet

    schema = parquet.read_schema(io.BytesIO(storage_for(file).read_bytes(file)))
    columns = {
        field.name: [_to_arrow_value(action.get(field.name), field.type) for action in actions]
        for field in schema
    }
    table = pa.Table.from_pydict(columns, schema=schema)
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return buffer.getvalue()


def _to_arrow_value(value: Any, dtype: pa.DataType) -> Any:
    """Convert mappings to the pairs that pyarrow expects for a map."""
    if value is None:
        return None
    if pa.types.is_map(dtype):
        return list(value.items()) if isinstance(value, Mapping) else value
    if pa.types.is_struct(dtype):
        return {field.name: _to_arrow_value(value.get(field.name), field.type) for field in dtype}
    return value


def _keep_commit_time(actions: list[dict[str, Any]], file: str) -> None:
    """Record the time of a commit that has none: readers use the time of its file instead."""
    modified = storage_for(file).status(file).modified_ns // 1_000_000
    for action in actions:
        info = action.get("commitInfo")
        if info is not None and ("timestamp" in info or "inCommitTimestamp" in info):
            return
    for action in actions:
        if action.get("commitInfo") is not None:
            action["commitInfo"]["timestamp"] = modified
            return
    actions.insert(0, {"commitInfo": {"timestamp": modified}})
