"""The state of a Delta table: its protocol and schema, and the replay of a checkpoint and commits.

The protocol of a table lists the features that readers must support. Tables with column mapping,
deletion vectors or features other than those below would be read incorrectly, so they are rejected
with the name of the feature
(https://github.com/delta-io/delta/blob/master/PROTOCOL.md, "Table Features").
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.delta import log
from featurestore.delta.checksums import Action
from featurestore.delta.datafile import (
    DataFile,
    commit_order_key,
    data_file,
    file_path,
    unsupported_feature_error,
)
from featurestore.delta.log import (
    LOG_FOLDER,
    Actions,
    FileState,
    actions_of_kind,
    damaged_file,
    parse_actions,
    unreadable_file,
)
from featurestore.errors import UnsupportedTable, listing
from featurestore.storage import storage_for

# Reader features that do not change the rows of listed files, or that are checked separately:
# deletion vectors for each file, and column mapping by its mode.
# An unknown feature may change how files are read, so everything not listed is refused.
_SUPPORTED_FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        # Readers cast files with narrower types to the table schema.
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
_COLUMN_MAPPING = "delta.columnMapping.mode"
_FEATURES_READER = 3
_WRITTEN_READER = 1
_WRITTEN_WRITER = 2
_PRIMITIVES = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")
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


def arrow_schema(text: str) -> pa.Schema:
    """Convert a ``schemaString`` to an Arrow schema.

    >>> arrow_schema('{"fields": [{"name": "id", "type": "long", "nullable": false}]}')
    id: int64 not null

    Raises:
        UnknownTypeError: The type of a column is unknown.
        ValueError: The text is not a schema.
    """
    fields = []
    try:
        for definition in json.loads(text)["fields"]:
            field = _parse_field(definition, definition["name"])
            metadata = definition.get("metadata") or {}
            # Strings (a comment, a shape) are retained when a new schema is written.
            texts = {key: value for key, value in metadata.items() if isinstance(value, str)}
            fields.append(field.with_metadata(texts or None))
        return pa.schema(fields)
    except (KeyError, TypeError, AttributeError, RecursionError, pa.ArrowInvalid) as error:
        raise ValueError(f"the schema of the table cannot be read: {error!r}") from error


def _parse_field(definition: Action, column: str) -> pa.Field:
    return pa.field(
        definition["name"],
        _parse_type(definition["type"], column),
        bool(definition.get("nullable", True)),
    )


def _parse_type(definition: Any, column: str) -> pa.DataType:
    if isinstance(definition, str):
        if definition in _PRIMITIVES:
            return _PRIMITIVES[definition]
        digits = decimal_digits(definition)
        if digits is None:
            raise UnknownTypeError(column, definition)
        return pa.decimal128(*digits)
    if not isinstance(definition, dict):
        raise UnknownTypeError(column, definition)
    if definition["type"] == "struct":
        return pa.struct([_parse_field(member, column) for member in definition["fields"]])
    if definition["type"] == "array":
        element = _parse_type(definition["elementType"], column)
        return pa.list_(pa.field("element", element, bool(definition.get("containsNull", True))))
    if definition["type"] == "map":
        return pa.map_(
            _parse_type(definition["keyType"], column), _parse_type(definition["valueType"], column)
        )
    raise UnknownTypeError(column, definition)


def type_name(dtype: pa.DataType) -> str | None:
    """Return the name of a primitive type in the log, or None for other types.

    >>> type_name(pa.decimal128(10, 2))
    'decimal(10,2)'
    """
    if pat.is_decimal(dtype):
        return f"decimal({dtype.precision},{dtype.scale})"
    return next((name for name, primitive in _PRIMITIVES.items() if primitive == dtype), None)


def decimal_digits(name: str) -> tuple[int, int] | None:
    """Return the precision and scale of a decimal type by its name in the log, or None.

    >>> decimal_digits("decimal(10,2)")
    (10, 2)
    """
    match = _DECIMAL.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


class UnknownTypeError(ValueError):
    """A column has an unknown type. Only for use within the package."""

    def __init__(self, column: str, type_definition: object) -> None:
        self.column = column
        self.definition = (
            type_definition if isinstance(type_definition, str) else json.dumps(type_definition)
        )
        super().__init__(f"{column}: {self.definition}")


@dataclass(frozen=True)
class Protocol:
    """The Delta versions and features that readers and writers of a table must support."""

    reader: int = _WRITTEN_READER
    writer: int = _WRITTEN_WRITER
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()

    @classmethod
    def from_action(cls, action: Action) -> Protocol:
        """Create the protocol from a log action.

        Raises:
            ValueError: The action is invalid.
        """
        reader, writer = action.get("minReaderVersion"), action.get("minWriterVersion")
        if not (isinstance(reader, int) and isinstance(writer, int)):
            raise ValueError(f"invalid protocol: {dict(action)}")
        reader_features = action.get("readerFeatures") or []
        writer_features = action.get("writerFeatures") or []
        for name in chain(reader_features, writer_features):
            if not isinstance(name, str):
                raise ValueError(f"invalid protocol: {dict(action)}")
        return cls(reader, writer, tuple(reader_features), tuple(writer_features))


def check_readable(path: str, protocol: Protocol, properties: Mapping[str, str]) -> None:
    """Raise an error if a table requires unsupported reader features.

    Raises:
        UnsupportedTable: The table is not supported; the message names the features.
    """
    if protocol.reader > _FEATURES_READER:
        raise unsupported_feature_error(
            path, f"reader version {protocol.reader} (this release reads up to {_FEATURES_READER})"
        )
    unknown = sorted(set(protocol.reader_features) - _SUPPORTED_FEATURES)
    if unknown:
        raise unsupported_feature_error(path, f"the table features {listing(unknown)}")
    # Reader version 2 allows column mapping without listing it as a feature.
    mode = properties.get(_COLUMN_MAPPING, "none")
    if mode != "none":
        raise unsupported_feature_error(path, f"column mapping ({_COLUMN_MAPPING}={mode!r})")


def check_writable(path: str, protocol: Protocol) -> None:
    """Raise an error if a table requires writer features that the embedded engine lacks.

    Raises:
        UnsupportedTable: The table is not supported; the message names the required versions.
    """
    # Higher writer versions may require constraints, generated columns or change data. A commit
    # that ignores them would damage the table.
    if protocol.reader > _WRITTEN_READER or protocol.writer > _WRITTEN_WRITER:
        raise UnsupportedTable(
            f"The Delta table at {path} needs reader version {protocol.reader} and writer version "
            f"{protocol.writer}; the store writes tables of reader version {_WRITTEN_READER} "
            f"and writer version {_WRITTEN_WRITER}.",
            hint="write it with the tool that upgraded it, or copy its rows into a new group",
        )


# -- replay -------------------------------------------------------------------------------


@dataclass
class Checkpoint:
    """The actions of a checkpoint, in the same form as commit actions."""

    protocol: Action | None = None
    metadata: Action | None = None
    transactions: list[Action] = field(default_factory=list)
    adds: list[Action] = field(default_factory=list)


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
    actions = parse_actions(storage_for(file).read_text(file))
    for protocol in actions_of_kind(actions, "protocol"):
        checkpoint.protocol = protocol
    for metadata in actions_of_kind(actions, "metaData"):
        checkpoint.metadata = metadata
    checkpoint.transactions += actions_of_kind(actions, "txn")
    checkpoint.adds += actions_of_kind(actions, "add")
    return [str(sidecar["path"]) for sidecar in actions_of_kind(actions, "sidecar")]


def _add_parquet_file(checkpoint: Checkpoint, path: str) -> list[str]:
    """Add the actions of a Parquet checkpoint; return the names of its sidecars."""
    # Most logs have no checkpoint; the import takes as long as the replay of a short log.
    from pyarrow import parquet

    file = parquet.ParquetFile(storage_for(path).open_complete(path))
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
    return [str(sidecar["path"]) for sidecar in _actions_of_kind(actions, "sidecar")]


def _actions_of_kind(actions: pa.Table, action_type: str) -> list[dict[str, Any]]:
    if action_type not in actions.column_names:
        return []
    values = actions[action_type].combine_chunks()
    return list(values.filter(values.is_valid()).to_pylist())


def _add_actions(actions: pa.Table) -> list[Action]:
    """Return the add actions, converted by column, since a checkpoint may have millions of files."""
    values = actions["add"].combine_chunks()
    values = values.filter(values.is_valid())
    columns = {}
    for index in range(values.type.num_fields):
        name = values.type.field(index).name
        columns[name] = values.field(name).to_pylist()
    adds: list[Action] = []
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
        self.protocol: Action | None = None
        self.metadata: Action | None = None
        self.transactions: dict[str, int] = {}
        self.adds: dict[str, Action] = {}
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

    def _apply_transactions(self, transactions: Iterable[Action], file: str) -> None:
        try:
            for transaction in transactions:
                self.transactions[str(transaction["appId"])] = int(transaction["version"])
        except (KeyError, TypeError, ValueError) as error:
            raise damaged_file(file, "has a transaction without application or number") from error
