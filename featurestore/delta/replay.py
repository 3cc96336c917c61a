"""Replay of a Delta log: the table state from a checkpoint and commits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from featurestore.delta import log
from featurestore.delta.datafile import DataFile, commit_order_key, data_file, file_path
from featurestore.delta.log import (
    LOG_FOLDER,
    Actions,
    FileState,
    actions_of_kind,
    damaged_file,
    parse_actions,
    unreadable_file,
)
from featurestore.storage import files

_SIDECARS = "_sidecars"
# Checkpoints may also contain parsed statistics, which are not read.
_ADD_FIELDS = (
    "path",
    "partitionValues",
    "size",
    "modificationTime",
    "stats",
    "tags",
    "deletionVector",
)
# The columns of Parquet checkpoints that are read.
_COLUMNS = ("protocol", "metaData", "txn", "sidecar", "add")


@dataclass
class Checkpoint:
    """The actions of a checkpoint, in the same form as commit actions."""

    protocol: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    transactions: list[Mapping[str, Any]] = field(default_factory=list)
    adds: list[Mapping[str, Any]] = field(default_factory=list)


def read_checkpoint(path: str, files: Sequence[str]) -> Checkpoint:
    """Read the actions of a checkpoint, including its sidecar files.

    Raises:
        TableDamaged: A file is missing or unreadable; the message names it.
    """
    checkpoint = Checkpoint()
    for file in files:
        try:
            add = _add_json_file if file.endswith(".json") else _add_parquet_file
            sidecars = add(checkpoint, file)
        except OSError as error:
            raise unreadable_file(file, error) from error
        except (ValueError, KeyError, TypeError, RecursionError, pa.ArrowException) as error:
            raise damaged_file(file, "is not a readable checkpoint") from error
        for name in sidecars:
            _read_sidecar(checkpoint, path, name)
    return checkpoint


def _read_sidecar(checkpoint: Checkpoint, path: str, name: str) -> None:
    # The log is untrusted. Other clients of Delta open the path, which may also be a URL.
    file = file_path(os.path.join(path, LOG_FOLDER, _SIDECARS), name)
    try:
        _add_parquet_file(checkpoint, file)
    except OSError as error:
        raise unreadable_file(file, error) from error
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise damaged_file(file, "is not a readable sidecar of a checkpoint") from error


def _add_json_file(checkpoint: Checkpoint, file: str) -> list[str]:
    """Add the actions of a JSON checkpoint; return the names of its sidecars."""
    actions = parse_actions(files.read_text(file))
    for protocol in actions_of_kind(actions, "protocol"):
        checkpoint.protocol = protocol
    for metadata in actions_of_kind(actions, "metaData"):
        checkpoint.metadata = metadata
    checkpoint.transactions += actions_of_kind(actions, "txn")
    checkpoint.adds += actions_of_kind(actions, "add")
    return [str(each["path"]) for each in actions_of_kind(actions, "sidecar")]


def _add_parquet_file(checkpoint: Checkpoint, path: str) -> list[str]:
    """Add the actions of a Parquet checkpoint; return the names of its sidecars."""
    # Most logs have no checkpoint; the import takes as long as the replay of a short log.
    from pyarrow import parquet

    file = parquet.ParquetFile(files.open_complete(path))
    names = set(file.schema_arrow.names)
    # Spark ignores the case of columns, so it would read actions that are not read below.
    readable_names = {name.lower() for name in _COLUMNS}
    if any(name.lower() in readable_names for name in names.difference(_COLUMNS)):
        raise ValueError("a column is an action in another case")
    kinds = [name for name in _COLUMNS if name in names and name != "add"]
    actions = file.read(columns=kinds)
    for protocol in _actions_of_kind(actions, "protocol"):
        checkpoint.protocol = protocol
    for metadata in _actions_of_kind(actions, "metaData"):
        checkpoint.metadata = {
            **metadata,
            # pyarrow returns a map as a list of pairs, or None.
            "configuration": dict(metadata.get("configuration") or []),
        }
    checkpoint.transactions += _actions_of_kind(actions, "txn")
    if "add" in names:
        add_type = file.schema_arrow.field("add").type
        add_columns = [f"add.{name}" for name in _ADD_FIELDS if add_type.get_field_index(name) >= 0]
        checkpoint.adds += _add_actions(file.read(columns=add_columns))
    return [str(each["path"]) for each in _actions_of_kind(actions, "sidecar")]


def _actions_of_kind(actions: pa.Table, kind: str) -> list[dict[str, Any]]:
    if kind not in actions.column_names:
        return []
    values = actions[kind].combine_chunks()
    return list(values.filter(values.is_valid()).to_pylist())


def _add_actions(actions: pa.Table) -> list[Mapping[str, Any]]:
    """Return the add actions, converted by column, since a checkpoint may have millions of files."""
    values = actions["add"].combine_chunks()
    values = values.filter(values.is_valid())
    columns = {}
    for index in range(values.type.num_fields):
        name = values.type.field(index).name
        columns[name] = values.field(name).to_pylist()
    adds: list[Mapping[str, Any]] = []
    for row in zip(*columns.values(), strict=True):
        add = dict(zip(columns, row, strict=True))
        add["partitionValues"] = dict(add.get("partitionValues") or [])
        add["tags"] = dict(add.get("tags") or [])
        adds.append(add)
    return adds


class Replay:
    """The state of a table during the replay of its log."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.protocol: Mapping[str, Any] | None = None
        self.metadata: Mapping[str, Any] | None = None
        self.transactions: dict[str, int] = {}
        self.adds: dict[str, Mapping[str, Any]] = {}
        self.removed: set[str] = set()

    def apply(self, actions: Actions, file: str) -> None:
        """Apply the actions of a commit.

        Raises:
            TableDamaged: The commit is invalid; the message names the file.
        """
        for payload in log.actions_of_kind(actions, "protocol"):
            self.protocol = payload
        for payload in log.actions_of_kind(actions, "metaData"):
            self.metadata = payload
        self._apply_transactions(log.actions_of_kind(actions, "txn"), file)
        # To change a deletion vector, a commit removes and adds the same file, in any order.
        for payload in log.actions_of_kind(actions, "remove"):
            self.adds.pop(payload["path"], None)
            self.removed.add(payload["path"])
        for payload in log.actions_of_kind(actions, "add"):
            # Adds come after removes, since the file remains in such a commit.
            self.adds[payload["path"]] = payload
            # If a file is added again, the new action replaces the earlier one.
            self.removed.add(payload["path"])

    def apply_commits(self, first: int, last: int) -> list[FileState]:
        """Apply the commits from ``first`` to ``last``, and return the states of their files."""
        sources = []
        for number in range(first, last + 1):
            file = log.commit_path(self.path, number)
            source, actions = log.read_commit_file(file)
            self.apply(actions, file)
            sources.append(source)
        return sources

    def apply_checkpoint(self, files: Iterable[str]) -> list[FileState]:
        """Apply a checkpoint, and return the states of its files."""
        names = list(files)
        try:
            # Read the states before the content: a file that is replaced in between makes the
            # cached snapshot outdated instead of wrong.
            sources = [FileState.from_path(file) for file in names]
        except OSError as error:
            raise unreadable_file(str(error.filename), error) from error
        checkpoint = read_checkpoint(self.path, names)
        self.protocol, self.metadata = checkpoint.protocol, checkpoint.metadata
        self._apply_transactions(checkpoint.transactions, names[0])
        self.adds = {str(add["path"]): add for add in checkpoint.adds}
        return sources

    def data_files(self) -> list[DataFile]:
        """Return the files that were added and not removed, in commit order."""
        files = [data_file(self.path, add) for add in self.adds.values()]
        return sorted(files, key=commit_order_key)

    def _apply_transactions(self, transactions: Iterable[Mapping[str, Any]], file: str) -> None:
        try:
            for transaction in transactions:
                self.transactions[str(transaction["appId"])] = int(transaction["version"])
        except (KeyError, TypeError, ValueError) as error:
            raise damaged_file(file, "has a transaction without application or number") from error
