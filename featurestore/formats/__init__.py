"""The door to file formats of training datasets, and what writers of formats need beside it.

A format is looked up by name among the entry points ``featurestore.formats``. Every implementation of
``DatasetFormat`` passes ``featurestore.testing.FormatConformance``.
"""

from __future__ import annotations

from featurestore.formats.door import (
    ColumnEncoding,
    ColumnProfile,
    DatasetFormat,
    Layout,
    NarrowProfile,
    NativeReading,
    Plane,
    PlaneReader,
    RecordAccess,
    ShardFitting,
    ShardProblem,
    ShardReader,
    WrittenFile,
    WrittenShard,
)
from featurestore.formats.lookup import find_format
from featurestore.formats.plain import PlainFormat, columns_of_any_length, plain_bytes_per_row, plain_encodings, rebatch
from featurestore.formats.shardfile import PIECE_BYTES, ShardFile, digest_of, is_temporary

__all__ = [
    "DatasetFormat",
    "ShardReader",
    "RecordAccess",
    "Plane",
    "PlaneReader",
    "NativeReading",
    "NarrowProfile",
    "ShardFitting",
    "Layout",
    "ColumnProfile",
    "ColumnEncoding",
    "WrittenFile",
    "WrittenShard",
    "ShardProblem",
    "find_format",
    "PlainFormat",
    "ShardFile",
    "PIECE_BYTES",
    "digest_of",
    "is_temporary",
    "rebatch",
    "plain_encodings",
    "plain_bytes_per_row",
    "columns_of_any_length",
]
