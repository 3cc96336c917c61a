"""Which Delta tables the store reads and writes: the one judge, asked before any read.

A table says in its protocol which features its readers must know. Those below are known; a table
that asks for another one, maps its columns, or hides rows by deletion vectors would be read
wrongly, so it is refused by name (https://github.com/delta-io/delta/blob/master/PROTOCOL.md, "Table
Features").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from featurestore.errors import UnsupportedTable, listing

# Features of readers that change nothing about the rows of the files that the log lists, or that
# are judged apart: a deletion vector by its file, a column mapping by its mode.
_HARMLESS_FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        # Files of narrower types are cast by whoever reads them with the schema of the table.
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
    """What a table asks of its readers and writers.

    Delta's two version numbers, and features by name.
    """

    reader: int = _WRITTEN_READER
    writer: int = _WRITTEN_WRITER
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()

    @classmethod
    def of(cls, action: Mapping[str, Any]) -> Protocol:
        """Return the protocol that an action of the log states; ValueError when it states none."""
        reader, writer = action.get("minReaderVersion"), action.get("minWriterVersion")
        if not (isinstance(reader, int) and isinstance(writer, int)):
            raise ValueError(f"no protocol: {dict(action)}")
        of_readers = action.get("readerFeatures") or []
        of_writers = action.get("writerFeatures") or []
        for name in chain(of_readers, of_writers):
            if not isinstance(name, str):
                raise ValueError(f"no protocol: {dict(action)}")
        return cls(reader, writer, tuple(of_readers), tuple(of_writers))


def check_readable(path: str, protocol: Protocol, properties: Mapping[str, str]) -> None:
    """Refuse a table that asks its readers for something that the store does not know.

    Raises:
        UnsupportedTable: Names the features.
    """
    if protocol.reader > _FEATURES_READER:
        raise refusal(path, f"reader version {protocol.reader}")
    unknown = sorted(set(protocol.reader_features) - _HARMLESS_FEATURES)
    if unknown:
        raise refusal(path, f"the table features {listing(unknown)}")
    mode = properties.get(_COLUMN_MAPPING, "none")
    if mode != "none":
        raise refusal(path, f"column mapping ({_COLUMN_MAPPING}={mode!r})")


def check_no_vector(path: str, file: str, add: Mapping[str, Any]) -> None:
    """Refuse a file of which a deletion vector hides rows."""
    if add.get("deletionVector") is not None:
        raise refusal(path, f"deletion vectors (its file {file} has one)")


def check_writable(path: str, protocol: Protocol) -> None:
    """Refuse a table that asks its writers for features that the embedded engine does not know.

    Raises:
        UnsupportedTable: Names the versions that it asks for.
    """
    if protocol.reader > _WRITTEN_READER or protocol.writer > _WRITTEN_WRITER:
        raise UnsupportedTable(
            f"The Delta table at {path} needs reader version {protocol.reader} and writer version "
            f"{protocol.writer}; the store writes tables of reader version {_WRITTEN_READER} "
            f"and writer version {_WRITTEN_WRITER}.",
            hint="write it with the tool that upgraded it, or copy its rows into a new group",
        )


def refusal(path: str, what: str) -> UnsupportedTable:
    """Return the error for a table that the store would read wrongly."""
    return UnsupportedTable(
        f"The Delta table at {path} uses {what}, which the store does not read.",
        hint="copy its rows into a plain Delta table or Parquet files with the tool that wrote it",
    )
