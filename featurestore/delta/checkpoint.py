"""Checkpoints of a Delta log, in one file, in several files, or with sidecars."""

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
    """The actions of a checkpoint, in the form of commits."""

    protocol: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    transactions: list[Mapping[str, Any]] = field(default_factory=list)
    adds: list[Mapping[str, Any]] = field(default_factory=list)


def read_checkpoint(path: str, files: Sequence[str]) -> Checkpoint:
    """Return the actions of one checkpoint of a table.

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
    # The log is untrusted: use the base name, so that the path cannot leave the sidecar folder.
    file = os.path.join(path, LOG_FOLDER, _SIDECARS, os.path.basename(name))
    try:
        _add_parquet_file(checkpoint, file)
    except OSError as error:
        raise unreadable_file(file, error) from error
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise damaged_file(file, "is not a readable sidecar of a checkpoint") from error


def _add_json_file(checkpoint: Checkpoint, file: str) -> list[str]:
    actions = parse_actions(files.read_text(file))
    for protocol in actions_of(actions, "protocol"):
        checkpoint.protocol = protocol
    for metadata in actions_of(actions, "metaData"):
        checkpoint.metadata = metadata
    checkpoint.transactions += actions_of(actions, "txn")
    checkpoint.adds += actions_of(actions, "add")
    return [str(each["path"]) for each in actions_of(actions, "sidecar")]


def _add_parquet_file(checkpoint: Checkpoint, path: str) -> list[str]:
    file = parquet.ParquetFile(files.open_whole(path))
    names = set(file.schema_arrow.names)
    kinds = [name for name in ("protocol", "metaData", "txn", "sidecar") if name in names]
    actions = file.read(columns=kinds)
    for protocol in _actions_of_kind(actions, "protocol"):
        checkpoint.protocol = protocol
    for metadata in _actions_of_kind(actions, "metaData"):
        checkpoint.metadata = _normalize_metadata(metadata)
    checkpoint.transactions += _actions_of_kind(actions, "txn")
    if "add" in names:
        add_type = file.schema_arrow.field("add").type
        add_columns = [f"add.{name}" for name in _ADD_FIELDS if add_type.get_field_index(name) >= 0]
        checkpoint.adds += _added_files(file.read(columns=add_columns))
    return [str(each["path"]) for each in _actions_of_kind(actions, "sidecar")]


def _actions_of_kind(actions: pa.Table, kind: str) -> list[dict[str, Any]]:
    if kind not in actions.column_names:
        return []
    values = actions[kind].combine_chunks()
    return list(values.filter(values.is_valid()).to_pylist())


def _normalize_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata with its map as an object, as in commits."""
    return {**metadata, "configuration": dict(metadata.get("configuration") or [])}


def _added_files(actions: pa.Table) -> list[Mapping[str, Any]]:
    """Return the added files; converted column by column, since a checkpoint may have millions."""
    values = actions["add"].combine_chunks()
    values = values.filter(pc.is_valid(values))
    columns = {}
    for index in range(values.type.num_fields):
        name = values.type.field(index).name
        columns[name] = values.field(name).to_pylist()
    adds: list[Mapping[str, Any]] = []
    for row in zip(*columns.values(), strict=True):
        add = dict(zip(columns, row, strict=True))
        add["partitionValues"] = dict(add.get("partitionValues") or [])
        adds.append(add)
    return adds
