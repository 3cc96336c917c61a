"""Data files.

Rows written as Parquet by DuckDB, with the statistics that the Delta log keeps of them.
"""

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

# A folder of this name in a table holds what a writer has not committed yet.
WRITING = "_writing"
_FILE_BYTES = "128MB"
# Values of a column in a row group (122,880 rows) up to which a dictionary is tried. DuckDB's own
# bound is twice as high; keys, times and measurements, which have none, took 1.4 times as long.
_DICTIONARY_VALUES = 12_288
# Delta keeps statistics of the first 32 columns only, by default.
_STATISTICS_COLUMNS = 32


@dataclass(frozen=True)
class NewFile:
    """A Parquet file that no commit names yet."""

    path: str
    bytes: int
    rows: int
    statistics: str
    partition: Mapping[str, str | None] = field(default_factory=dict)


@contextlib.contextmanager
def scratch(path: str) -> Iterator[str]:
    """Give an empty folder inside a table, on its disk, and remove what is left in it.

    Of a table below a URI it is a temporary folder of this machine.
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
        with contextlib.suppress(OSError):  # other writers are at work
            os.rmdir(os.path.join(path, WRITING))


def _make_folder(folder: str) -> None:
    for attempt in range(10):
        try:
            os.makedirs(folder)
            return
        except FileNotFoundError as error:
            # Another writer has just removed the empty folder around it.
            if attempt == 9:
                raise StorageError(f"{folder} cannot be made: {error}.") from error
        except OSError as error:
            raise StorageError(
                f"{folder} cannot be made: {error}.", hint="is the disk full or read-only?"
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

    Rows keep no order, as COPY into files of bounded size writes them from all threads. Files
    without rows are not kept.

    Raises:
        InvalidArgument: A partition value is "", which Delta cannot tell from null.
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
            copied = cursor.execute(f"COPY ({query}) TO {target} ({', '.join(options)})")
            written = copied.fetchall()
    found = []
    for row in written:
        if row[1]:
            found.append(_new_file(row, schema, partition_by))
    return sorted(found, key=lambda file: (os.path.dirname(file.path), _number(file.path)))


def move_into_table(
    files: Sequence[NewFile], path: str, publication: Publication, *, folder: str | None = None
) -> list[NewFile]:
    """Give files their place in a table, by link (the old name stays) or else by copy.

    ``folder`` is what their partition folders are relative to.
    """
    run = uuid.uuid4()
    is_local = storage_for(path).is_local
    placed = []
    moves = []
    for number, file in enumerate(files):
        directory = path
        if folder is not None and file.partition:
            inner = os.path.relpath(os.path.dirname(file.path), folder)
            directory = os.path.join(path, inner)
        target = os.path.join(directory, f"part-{number:05d}-{run}-c000.snappy.parquet")
        publication.add(target)
        placed.append(replace(file, path=target))
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
    return placed


def stage(database: Database, query: str, folder: str, *, schema: pa.Schema) -> list[NewFile]:
    """Write the rows of a query into a new folder of a stage, which may lie below a URI."""
    if storage_for(folder).is_local:
        return write(database, query, folder, schema=schema)
    with scratch(folder) as local:
        written = write(database, query, os.path.join(local, "rows"), schema=schema)
        staged = []
        moves = []
        for file in written:
            target = os.path.join(folder, os.path.basename(file.path))
            staged.append(replace(file, path=target))
            moves.append((file.path, target))
        storage.upload(moves)
    return staged


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
    # Vacuum takes unknown files by their age, and rows may have been staged long ago.
    os.utime(target)


def _number(path: str) -> int:
    return int(os.path.basename(path).removeprefix("part-").removesuffix(".parquet"))


def _new_file(row: Sequence[Any], schema: pa.Schema, partition_by: Sequence[str]) -> NewFile:
    path, rows, size, _footer, columns, keys = row[:6]
    partition = {}
    for name in partition_by:
        partition[name] = _partition_value((keys or {})[name], schema.field(name))
    stored = [field for field in schema if field.name not in partition]
    return NewFile(path, size, rows, _statistics(rows, columns, stored), partition)


def _partition_value(written: str | None, column: pa.Field) -> str | None:
    if written is None:
        return None
    if written == "":
        raise InvalidArgument(
            f"Column {column.name!r} partitions the table and holds an empty string, "
            "which Delta reads as null.",
            hint="replace '' by a word or by null",
        )
    if not pat.is_timestamp(column.type):
        return written
    try:
        time = datetime.fromisoformat(written).replace(tzinfo=None)
    except ValueError as error:
        raise InvalidArgument(
            f"Column {column.name!r} cannot partition by the time {written}: years are 1 to 9999."
        ) from error
    return time.isoformat(sep=" ", timespec="microseconds")


def _statistics(
    rows: int, columns: Mapping[str, Mapping[str, str]], schema: Sequence[pa.Field]
) -> str:
    minimum, maximum, nulls = {}, {}, {}
    for column in schema[:_STATISTICS_COLUMNS]:
        found = columns.get(sqltext.quote(column.name))
        if found is None or is_nested(column.type):
            continue
        nulls[column.name] = int(found["null_count"])
        if found.get("has_nan") == "true" or found.get("min_is_exact") != "true":
            continue
        low = _bound(found.get("min"), column.type)
        high = _bound(found.get("max"), column.type)
        if low is not None and high is not None:
            minimum[column.name], maximum[column.name] = low, high
    return json.dumps(
        {"numRecords": rows, "minValues": minimum, "maxValues": maximum, "nullCount": nulls}
    )


def _bound(written: str | None, kind: pa.DataType) -> Any:
    """Return a bound as Delta writes it in JSON, None where it has none for the type or value."""
    if written is None or pat.is_binary(kind) or pat.is_boolean(kind):
        return None
    if pat.is_integer(kind):
        return int(written)
    if pat.is_floating(kind):
        number = float(written)
        return number if math.isfinite(number) else None
    if pat.is_decimal(kind):
        # A JSON number has no precision to rely on beyond that of a double.
        digits = written.lstrip("-").replace(".", "")
        return float(written) if len(digits) <= 15 else None
    if pat.is_temporal(kind):
        return _time_bound(written, kind)
    return written


def _time_bound(written: str, kind: pa.DataType) -> str | None:
    try:
        time = datetime.fromisoformat(written).replace(tzinfo=None)
    except ValueError:  # years before 1 and after 9999 have no form that all readers know
        return None
    if pat.is_timestamp(kind):
        return time.isoformat(timespec="microseconds") + "Z"
    return time.date().isoformat()
