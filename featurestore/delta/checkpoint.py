"""Checkpoints of a Delta log: all that a table was at a version.

In one file, in parts, or with sidecars.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from featurestore.delta.log import (
    LOG_FOLDER,
    actions_of,
    damaged_file,
    parse_actions,
    unreadable_file,
)
from featurestore.storage import files

_SIDECARS = "_sidecars"
_ADD_FIELDS = (
    "path",
    "partitionValues",
    "size",
    "modificationTime",
    "stats",
    "deletionVector",
)


@dataclass
class Checkpoint:
    """The actions of a checkpoint, as they would stand in commits."""

    protocol: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    transactions: list[Mapping[str, Any]] = field(default_factory=list)
    adds: list[Mapping[str, Any]] = field(default_factory=list)


def read_checkpoint(path: str, files: Sequence[str]) -> Checkpoint:
    """Return what the files of one checkpoint of a table say.

    Raises:
        TableDamaged: A file is missing or unreadable; names it.
    """
    found = Checkpoint()
    for file in files:
        try:
            add = _add_text if file.endswith(".json") else _add_table
            sidecars = add(found, file)
        except OSError as error:
            raise unreadable_file(file, error) from error
        except (ValueError, KeyError, TypeError, RecursionError, pa.ArrowException) as error:
            raise damaged_file(file, "is not a readable checkpoint") from error
        for name in sidecars:
            _read_sidecar(found, path, name)
    return found


def _read_sidecar(found: Checkpoint, path: str, name: str) -> None:
    # The name is a text of the log: only the file of that name among the sidecars is meant.
    file = os.path.join(path, LOG_FOLDER, _SIDECARS, os.path.basename(name))
    try:
        _add_table(found, file)
    except OSError as error:
        raise unreadable_file(file, error) from error
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise damaged_file(file, "is no readable part of a checkpoint") from error


def _add_text(found: Checkpoint, file: str) -> list[str]:
    actions = parse_actions(files.read_text(file))
    for protocol in actions_of(actions, "protocol"):
        found.protocol = protocol
    for metadata in actions_of(actions, "metaData"):
        found.metadata = metadata
    found.transactions += actions_of(actions, "txn")
    found.adds += actions_of(actions, "add")
    return [str(each["path"]) for each in actions_of(actions, "sidecar")]


def _add_table(found: Checkpoint, path: str) -> list[str]:
    file = parquet.ParquetFile(files.opened(path))
    names = set(file.schema_arrow.names)
    small = [name for name in ("protocol", "metaData", "txn", "sidecar") if name in names]
    actions = file.read(columns=small)
    for protocol in _present(actions, "protocol"):
        found.protocol = protocol
    for metadata in _present(actions, "metaData"):
        found.metadata = _plain_metadata(metadata)
    found.transactions += _present(actions, "txn")
    if "add" in names:
        stored = file.schema_arrow.field("add").type
        wanted = []
        for name in _ADD_FIELDS:
            if stored.get_field_index(name) >= 0:
                wanted.append(f"add.{name}")
        found.adds += _adds(file.read(columns=wanted))
    return [str(each["path"]) for each in _present(actions, "sidecar")]


def _present(actions: pa.Table, kind: str) -> list[dict[str, Any]]:
    if kind not in actions.column_names:
        return []
    values = actions[kind].combine_chunks()
    return list(values.filter(values.is_valid()).to_pylist())


def _plain_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata with its map as an object, as a commit has it."""
    return {**metadata, "configuration": dict(metadata.get("configuration") or [])}


def _adds(actions: pa.Table) -> list[Mapping[str, Any]]:
    """Return the added files; column by column, since a checkpoint may name very many."""
    values = actions["add"].combine_chunks()
    values = values.filter(pc.is_valid(values))
    columns = {}
    for index in range(values.type.num_fields):
        name = values.type.field(index).name
        columns[name] = values.field(name).to_pylist()
    found: list[Mapping[str, Any]] = []
    for row in zip(*columns.values(), strict=True):
        add = dict(zip(columns, row, strict=True))
        add["partitionValues"] = dict(add.get("partitionValues") or [])
        found.append(add)
    return found
