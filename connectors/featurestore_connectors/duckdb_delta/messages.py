"""Errors of the feature store for the messages of DuckDB."""

from __future__ import annotations

import json
import re

import duckdb

from featurestore.arrow.unstorable import parse_refusal
from featurestore.delta.scan import vacuumed_file_error
from featurestore.errors import (
    MANY_FILES_HINT,
    EngineError,
    FeatureStoreError,
    InvalidSql,
    StorageError,
    TableDamaged,
)

_INNER_MESSAGE = re.compile(r'"exception_message":"((?:[^"\\]|\\.)*)"')
_DISK_FULL = ("no space left", "disk quota exceeded", "not enough disk space")
_DATA_FILE = re.compile(r"\"(/[^\"]+\.parquet)\"")
_TOO_MANY_FILES = "too many open files"
_DAMAGED = (
    "no files found",
    "no such file",
    "magic bytes",
    "footer",
    "corrupt",
    "snappy",
    "invalid parquet",
    "too small to be",
)
# Of a Parquet page header; these messages name no file.
_DAMAGED_PAGE = ("tprotocolexception", "ttransportexception")
_FIND_DAMAGE = "featurestore fg verify NAME lists damaged files of a feature group"


def translate_error(error: duckdb.Error) -> FeatureStoreError:
    """Return the feature store error for a DuckDB error, by its class and message."""
    message = str(error)
    inner = _INNER_MESSAGE.search(message)
    if inner is not None:  # the JSON that wraps errors of background writes
        message = str(json.loads(f'"{inner[1]}"'))
    refusal = parse_refusal(message)
    if refusal is not None:
        return refusal
    lowered = message.lower()
    if _contains_any(lowered, _DISK_FULL):
        return StorageError(
            f"The disk is full: {message}",
            hint="free disk space and repeat; the table is unchanged",
        )
    if _TOO_MANY_FILES in lowered:
        return StorageError(f"DuckDB cannot open its files: {message}", hint=MANY_FILES_HINT)
    if isinstance(error, duckdb.OutOfMemoryException):
        return EngineError(
            f"DuckDB ran out of memory: {message}",
            hint="set FEATURESTORE_DUCKDB_MEMORY_LIMIT, or FEATURESTORE_DUCKDB_TEMP_DIRECTORY to a "
            "larger disk",
        )
    if isinstance(error, duckdb.ResourceInUseException):
        return EngineError(
            f"The engine's DuckDB connection is busy: {message}",
            hint="finish or close the Arrow reader of the native relation",
        )
    if isinstance(error, duckdb.BinderException | duckdb.CatalogException | duckdb.ParserException):
        return InvalidSql(
            f"DuckDB rejects the query: {message}",
            hint="column and table names are case-insensitive in SQL",
        )
    return _file_error(error, message)


def _file_error(error: duckdb.Error, message: str) -> FeatureStoreError:
    """Return the error for a data file that is removed, damaged or not accessible."""
    lowered = message.lower()
    # A file that a vacuum removed is not damage: the error names the versions that can still be
    # read.
    file_match = _DATA_FILE.search(message)
    vacuum_error = None if file_match is None else vacuumed_file_error(file_match[1])
    if vacuum_error is not None:
        return vacuum_error
    if _contains_any(lowered, _DAMAGED_PAGE):
        return TableDamaged(f"A data file cannot be read: {message}")
    if _contains_any(lowered, _DAMAGED) and ".parquet" in lowered:
        return TableDamaged(
            f"A data file cannot be read: {message}",
            hint="restore it, or read an older Delta version",
        )
    if isinstance(error, duckdb.IOException) or _contains_any(lowered, _DAMAGED):
        return StorageError(
            f"DuckDB could not read or write: {message}",
            hint=f"check permissions and the disk; {_FIND_DAMAGE}",
        )
    return EngineError(f"DuckDB failed: {message}", hint=f"repeat the call; {_FIND_DAMAGE}")


def _contains_any(message: str, signs: tuple[str, ...]) -> bool:
    return any(sign in message for sign in signs)


def translate_stream_error(message: str) -> FeatureStoreError:
    """Translate the error message of a query that failed while its Arrow stream was read.

    Arrow propagates only DuckDB's message, which starts with the kind of error.
    """
    if message.startswith("Out of Memory Error"):
        return translate_error(duckdb.OutOfMemoryException(message))
    if message.startswith("IO Error"):
        return translate_error(duckdb.IOException(message))
    return translate_error(duckdb.Error(message))
