"""Protocol checks: which Delta tables the store can read and write.

The protocol of a table lists the features that its readers must support. Tables with other features
than those below, with column mapping or with deletion vectors would be read wrongly, so they are
refused with the name of the feature
(https://github.com/delta-io/delta/blob/master/PROTOCOL.md, "Table Features").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from featurestore.errors import UnsupportedTable, listing

# Reader features that do not change the rows of listed files, or that have their own checks: a
# deletion vector by its file, a column mapping by its mode.
_SUPPORTED_FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        # Readers cast files with narrower types to the schema of the table.
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


@dataclass(frozen=True)
class Protocol:
    """The requirements of a table for its readers and writers: Delta versions and features."""

    reader: int = _WRITTEN_READER
    writer: int = _WRITTEN_WRITER
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()

    @classmethod
    def from_action(cls, action: Mapping[str, Any]) -> Protocol:
        """Return the protocol of a log action.

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
    """Refuse a table that requires unsupported reader features.

    Raises:
        UnsupportedTable: The table is not supported; the message names the features.
    """
    if protocol.reader > _FEATURES_READER:
        raise refusal(path, f"reader version {protocol.reader}")
    unknown = sorted(set(protocol.reader_features) - _SUPPORTED_FEATURES)
    if unknown:
        raise refusal(path, f"the table features {listing(unknown)}")
    mode = properties.get(_COLUMN_MAPPING, "none")
    if mode != "none":
        raise refusal(path, f"column mapping ({_COLUMN_MAPPING}={mode!r})")


def check_no_vector(path: str, file: str, add: Mapping[str, Any]) -> None:
    """Refuse a file with a deletion vector."""
    if add.get("deletionVector") is not None:
        raise refusal(path, f"deletion vectors (its file {file} has one)")


def check_writable(path: str, protocol: Protocol) -> None:
    """Refuse a table that requires writer features that the embedded engine does not support.

    Raises:
        UnsupportedTable: The table is not supported; the message names the required versions.
    """
    if protocol.reader > _WRITTEN_READER or protocol.writer > _WRITTEN_WRITER:
        raise UnsupportedTable(
            f"The Delta table at {path} needs reader version {protocol.reader} and writer version "
            f"{protocol.writer}; the store writes tables of reader version {_WRITTEN_READER} "
            f"and writer version {_WRITTEN_WRITER}.",
            hint="write it with the tool that upgraded it, or copy its rows into a new group",
        )


def refusal(path: str, feature: str) -> UnsupportedTable:
    """Return the error for a table that the store would read wrongly."""
    return UnsupportedTable(
        f"The Delta table at {path} uses {feature}, which the store does not support.",
        hint="copy its rows into a plain Delta table or Parquet files with the tool that wrote it",
    )
