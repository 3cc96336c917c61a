"""Data files: Parquet files written by DuckDB, with their statistics for the Delta log."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.types import is_nested
from featurestore.errors import InvalidArgument, StorageError
from featurestore.storage import files as storage
from featurestore.storage.publication import Publication, make_directory
from featurestore.storage.selection import storage_for
from featurestore_connectors.duckdb_delta import sqltext
from featurestore_connectors.duckdb_delta.interrupts import interruptible
from featurestore_connectors.duckdb_delta.session import Database

# The folder inside a table for uncommitted files of writers.
WRITING = "_writing"
_FILE_BYTES = "128MB"
# Maximum number of distinct values in a row group (122,880 rows) for dictionary encoding. DuckDB's
# default is twice as high, with which keys, times and measurements took 1.4 times as long to write.
_DICTIONARY_VALUES = 12_288
# By default Delta collects statistics of the first 32 columns.
_STATISTICS_COLUMNS = 32


@dataclass(frozen=True)
class NewFile:
    """A Parquet file that is not committed yet."""

    path: str
    bytes: int
    rows: int
    statistics: str
    partition: Mapping[str, str | None] = field(default_factory=dict)


@contextlib.contextmanager
def scratch(path: str) -> Iterator[str]:
    """Yield an empty folder on the table's file system; remove it with its contents on exit.

    For a table at a URI it is a local temporary folder.
    """
    if not storage_for(path).is_local:
        temporary = storage.temporary_directory()
        try:
            yield temporary
        finally:
            storage.remove_temporary(temporary)
        return
    folder = os.path.join(path, WRITING, uuid.uuid4().hex)
    _make_folder(folder)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            storage.remove(folder, below=path)
        with contextlib.suppress(OSError):  # not empty: other writers are active
            os.rmdir(os.path.join(path, WRITING))


def _make_folder(folder: str) -> None:
    for attempt in range(10):
        try:
            os.makedirs(folder)
            return
        except FileNotFoundError as error:
            # Another writer has just removed the empty parent folder.
            if attempt == 9:
                raise StorageError(f"{folder} cannot be created: {error}.") from error
        except OSError as error:
            raise StorageError(
                f"{folder} cannot be created: {error}.", hint="is the disk full or read-only?"
            ) from error


def write(
    database: Database,
    query: str,
    folder: str,
    *,
    schema: pa.Schema,
    partition_by: Sequence[str] = (),
) -> list[NewFile]:
    """Write the rows of a query with the columns of ``schema`` (storage types) into a new folder.

    Row order is not preserved, since COPY into files of bounded size writes from all threads. Files
    without rows are omitted.

    Raises:
        InvalidArgument: A partition value is "", which Delta cannot distinguish from null.
    """
    options = ["FORMAT parquet", "RETURN_STATS", "FILENAME_PATTERN 'part-{i}'"]
    options.append(f"DICTIONARY_SIZE_LIMIT {_DICTIONARY_VALUES}")
    if partition_by:
        options.append(f"PARTITION_BY ({sqltext.names(partition_by)})")
    else:
        options.append(f"FILE_SIZE_BYTES '{_FILE_BYTES}'")
    with database.cursor() as cursor:
        target = sqltext.text(folder)
        with interruptible(cursor):
            copy_result = cursor.execute(f"COPY ({query}) TO {target} ({', '.join(options)})")
            file_rows = copy_result.fetchall()
    new_files = [_new_file(row, schema, partition_by) for row in file_rows if row[1]]
    return sorted(new_files, key=lambda file: (os.path.dirname(file.path), _number(file.path)))


def move_into_table(
    files: Sequence[NewFile], path: str, publication: Publication, *, folder: str | None = None
) -> list[NewFile]:
    """Hard-link (or else copy) files into a table; the original names remain.

    ``folder`` is the base of their partition folders.
    """
    run = uuid.uuid4()
    is_local = storage_for(path).is_local
    table_files = []
    moves = []
    for number, file in enumerate(files):
        directory = path
        if folder is not None and file.partition:
            partition_folder = os.path.relpath(os.path.dirname(file.path), folder)
            directory = os.path.join(path, partition_folder)
        target = os.path.join(directory, f"part-{number:05d}-{run}-c000.snappy.parquet")
        publication.add(target)
        table_files.append(replace(file, path=target))
        moves.append((file.path, target))
        if not is_local:
            continue
        try:
            make_directory(directory, durable=publication.durable)
            _link(file.path, target)
        except OSError as error:
            raise StorageError(f"{file.path} could not be moved to {target}: {error}.") from error
    if not is_local:
        storage.upload(moves)
    return table_files


def stage(database: Database, query: str, folder: str, *, schema: pa.Schema) -> list[NewFile]:
    """Write the rows of a query into a new staging folder, local or remote."""
    if storage_for(folder).is_local:
        return write(database, query, folder, schema=schema)
    with scratch(folder) as local:
        local_files = write(database, query, os.path.join(local, "rows"), schema=schema)
        staged_files = []
        moves = []
        for file in local_files:
            target = os.path.join(folder, os.path.basename(file.path))
            staged_files.append(replace(file, path=target))
            moves.append((file.path, target))
        storage.upload(moves)
    return staged_files


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
    # Vacuum removes orphan files by age, and the rows may have been staged long ago.
    os.utime(target)


def _number(path: str) -> int:
    return int(os.path.basename(path).removeprefix("part-").removesuffix(".parquet"))


def _new_file(row: Sequence[Any], schema: pa.Schema, partition_by: Sequence[str]) -> NewFile:
    path, rows, size, _footer, columns, partition_values = row[:6]
    partition = {}
    for name in partition_by:
        partition[name] = _partition_value((partition_values or {})[name], schema.field(name))
    stored_fields = [field for field in schema if field.name not in partition]
    return NewFile(path, size, rows, _statistics(rows, columns, stored_fields), partition)


def _partition_value(text: str | None, column: pa.Field) -> str | None:
    if text is None:
        return None
    if text == "":
        raise InvalidArgument(
            f"Partition column {column.name!r} has an empty string, which Delta reads as null.",
            hint="replace '' by another string or by null",
        )
    if not pat.is_timestamp(column.type):
        return text
    try:
        time = datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError as error:
        raise InvalidArgument(
            f"Column {column.name!r} cannot partition by the time {text}: years are 1 to 9999."
        ) from error
    return time.isoformat(sep=" ", timespec="microseconds")


def _statistics(
    rows: int, columns: Mapping[str, Mapping[str, str]], schema: Sequence[pa.Field]
) -> str:
    minimum, maximum, nulls = {}, {}, {}
    for column in schema[:_STATISTICS_COLUMNS]:
        column_statistics = columns.get(sqltext.quote(column.name))
        if column_statistics is None or is_nested(column.type):
            continue
        nulls[column.name] = int(column_statistics["null_count"])
        if (
            column_statistics.get("has_nan") == "true"
            or column_statistics.get("min_is_exact") != "true"
        ):
            continue
        low = _bound(column_statistics.get("min"), column.type)
        high = _bound(column_statistics.get("max"), column.type)
        if low is not None and high is not None:
            minimum[column.name], maximum[column.name] = low, high
    return json.dumps(
        {"numRecords": rows, "minValues": minimum, "maxValues": maximum, "nullCount": nulls}
    )


def _bound(text: str | None, kind: pa.DataType) -> Any:
    """Return a bound in Delta's JSON form, None if the type or value has no bound."""
    if text is None or pat.is_binary(kind) or pat.is_boolean(kind):
        return None
    if pat.is_integer(kind):
        return int(text)
    if pat.is_floating(kind):
        number = float(text)
        return number if math.isfinite(number) else None
    if pat.is_decimal(kind):
        # JSON numbers are portable only up to the precision of a double.
        digits = text.lstrip("-").replace(".", "")
        return float(text) if len(digits) <= 15 else None
    if pat.is_temporal(kind):
        return _time_bound(text, kind)
    return text


def _time_bound(text: str, kind: pa.DataType) -> str | None:
    try:
        time = datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:  # years before 1 and after 9999 have no portable form
        return None
    if pat.is_timestamp(kind):
        return time.isoformat(timespec="microseconds") + "Z"
    return time.date().isoformat()
