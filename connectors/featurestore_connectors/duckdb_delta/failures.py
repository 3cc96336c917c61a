"""DuckDB's errors in the store's words, and those of Python code that runs inside a query.

Of the latter DuckDB passes on the text only, so they are kept here: the text carries a number by
which the error itself is found again.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb
import pyarrow as pa

from featurestore.arrow.duckdb_columns import parse_refusal
from featurestore.delta.presence import vacuumed_file
from featurestore.errors import (
    MANY_FILES_HINT,
    EngineError,
    FeatureStoreError,
    InvalidSql,
    StorageError,
    TableDamaged,
)

_KEPT: dict[int, BaseException] = {}
_NUMBERS = itertools.count(1)
_MARK = re.compile(r"\[raised in Python #(\d+)\]")
_INNER_MESSAGE = re.compile(r'"exception_message":"((?:[^"\\]|\\.)*)"')
_DISK_FULL = ("no space left", "disk quota exceeded", "not enough disk space")
# How Ctrl-C shows: seen by DuckDB itself, or raised in Python code below a query.
_INTERRUPTED = re.compile(r"Query interrupted|INTERRUPT Error|(?:^|\n|failed: )KeyboardInterrupt\b")
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


def guarded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches.

    An error on the way is kept, and its number goes into the query's error.
    """
    with kept():
        yield from batches


@contextmanager
def kept() -> Iterator[None]:
    """Keep the error of a block that runs inside a query, and put its number into the text."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        # Whatever it is: it is raised again, unchanged, where the query was started.
        number = next(_NUMBERS)
        _KEPT[number] = error
        raise RuntimeError(f"{error} [raised in Python #{number}]") from error


def recall(message: str) -> BaseException | None:
    """Return the error whose number a message carries, or the interrupt that it tells of."""
    mark = _MARK.search(message)
    if mark is not None:
        return _KEPT.pop(int(mark[1]), None)
    if _INTERRUPTED.search(message):
        return KeyboardInterrupt()
    return None


@contextmanager
def translated() -> Iterator[None]:
    """Raise DuckDB's errors as errors of the feature store."""
    try:
        yield
    except (duckdb.Error, RuntimeError) as error:
        # What a Python function or stream below the query raised is the error, not DuckDB's account
        # of it.
        raised = recall(str(error))
        if raised is not None:
            raise raised from None
        if isinstance(error, duckdb.Error):
            raise _translation(error) from error
        raise


def error_of_stream(message: str) -> FeatureStoreError:
    """Return the error of a query that broke while its Arrow stream was read.

    Arrow passes on DuckDB's text only, which begins with the kind of error.
    """
    if message.startswith("Out of Memory Error"):
        return _translation(duckdb.OutOfMemoryException(message))
    if message.startswith("IO Error"):
        return _translation(duckdb.IOException(message))
    return _translation(duckdb.Error(message))


def _translation(error: duckdb.Error) -> FeatureStoreError:
    message = _plain(str(error))
    refused = parse_refusal(message)
    if refused is not None:
        return refused
    lowered = message.lower()
    if _mentions(lowered, _DISK_FULL):
        return StorageError(
            f"The disk is full: {message}",
            hint="free some space and repeat; the table is as it was before",
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
            hint="finish or close the Arrow reader that you took from a native relation",
        )
    if isinstance(error, duckdb.BinderException | duckdb.CatalogException | duckdb.ParserException):
        return InvalidSql(
            f"DuckDB refuses the query: {message}",
            hint="column and table names are case-insensitive in SQL",
        )
    named = _DATA_FILE.search(message)
    vacuumed = None if named is None else vacuumed_file(named[1])
    if vacuumed is not None:
        return vacuumed
    if _mentions(lowered, _DAMAGED) and ".parquet" in lowered:
        return TableDamaged(
            f"A data file cannot be read: {message}",
            hint="restore it, or read an older Delta version",
        )
    if isinstance(error, duckdb.IOException) or _mentions(lowered, _DAMAGED):
        return StorageError(f"DuckDB could not read or write: {message}")
    return EngineError(f"DuckDB failed: {message}")


def _mentions(message: str, signs: tuple[str, ...]) -> bool:
    return any(sign in message for sign in signs)


def _plain(message: str) -> str:
    """Return the message without the JSON that errors of background writes come in."""
    inner = _INNER_MESSAGE.search(message)
    if inner is None:
        return message
    return str(json.loads(f'"{inner[1]}"'))
