"""Delta data files, written by DuckDB with statistics for the log, and scanned as relations.

Partition values come from the log and never from file paths: a folder ``env=prod`` above the store
is not a partition.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.types import is_nested
from featurestore.delta.checksums import file_checksums
from featurestore.delta.datafile import DataFile
from featurestore.delta.scan import TableScan, plan_scan
from featurestore.delta.snapshot import Snapshot
from featurestore.errors import InvalidArgument, StorageError
from featurestore.plugins.engine import Relation
from featurestore.storage import files as storage
from featurestore.storage import storage_for
from featurestore.storage.publication import Publication, make_directory
from featurestore_connectors.duckdb_delta import sqltext
from featurestore_connectors.duckdb_delta.failures import interrupt_on_signal
from featurestore_connectors.duckdb_delta.relations import ENGINE, relation
from featurestore_connectors.duckdb_delta.session import Database
from featurestore_connectors.duckdb_delta.streams import LazyRelation

# The column with a row's file path. Feature names cannot start with this prefix.
FILE = "__fs_file"
# The row id: the ascending position of a row among all rows of a version.
POSITION = "__fs_position"
# DuckDB's virtual column with the index of a file in the list, and the alias of a user column with
# the same name.
_FILE_INDEX = "file_index"
_OWN_FILE_INDEX = "__fs_own_file_index"
# 40 bits for the row number in a file, the remaining bits for the index of the file: positions
# ascend in scan order.
_POSITION = f"({_FILE_INDEX}::BIGINT << 40) | file_row_number"
# User columns with these names hide DuckDB's virtual columns.
RESERVED_NAMES = (_FILE_INDEX, "file_row_number")
# The subfolder of a table for uncommitted files of writers.
WRITING = "_writing"
_FILE_BYTES = "128MB"
# The maximum number of distinct values for which a row group (122,880 rows) is dictionary-encoded.
# With DuckDB's default, twice as high, writing keys, times and measurements took 1.4 times as long.
_DICTIONARY_VALUES = 12_288
# By default, Delta collects statistics of the first 32 columns.
_STATISTICS_COLUMNS = 32


@dataclass(frozen=True)
class ScannedRelation(LazyRelation):
    """The rows of a table version, which can also be read from its files without DuckDB."""

    scan: TableScan | None = None


@dataclass(frozen=True)
class NewFile:
    """An uncommitted Parquet file; ``checksum``: None until it is computed."""

    path: str
    bytes: int
    rows: int
    statistics: str
    partition: Mapping[str, str | None] = field(default_factory=dict)
    checksum: str | None = None


@contextlib.contextmanager
def scratch_folder(path: str) -> Iterator[str]:
    """Yield an empty folder on the table's file system, and remove it on exit.

    For a table at a URI, the folder is local.
    """
    if not storage_for(path).is_local:
        temporary = storage.temporary_directory()
        try:
            yield temporary
        finally:
            storage.remove_temporary(temporary)
        return
    # Inside the table, since files get their final names by hard links, which cannot cross file
    # systems.
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
    """Create a folder and its parents, while other writers may remove the empty parent."""
    # The parent folder is shared by all writers, and the last one removes it.
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
                f"{folder} cannot be created: {error}.", hint="check free space and permissions"
            ) from error


def write(
    database: Database,
    query: str,
    folder: str,
    *,
    schema: pa.Schema,
    partition_by: Sequence[str] = (),
) -> list[NewFile]:
    """Write the rows of a query to new files in a folder; ``schema`` has their storage types.

    Row order is not preserved, since COPY writes files of bounded size from all threads. Files
    without rows are omitted.

    Raises:
        InvalidArgument: A partition value is "", which Delta cannot distinguish from null.
    """
    # RETURN_STATS returns bounds and null counts for the log, so that the files are not read again.
    options = ["FORMAT parquet", "RETURN_STATS", "FILENAME_PATTERN 'part-{i}'"]
    options.append(f"DICTIONARY_SIZE_LIMIT {_DICTIONARY_VALUES}")
    if partition_by:
        options.append(f"PARTITION_BY ({sqltext.names(partition_by)})")
    else:
        options.append(f"FILE_SIZE_BYTES '{_FILE_BYTES}'")
    with database.cursor() as cursor:
        target = sqltext.text(folder)
        with interrupt_on_signal(cursor):
            copy_result = cursor.execute(f"COPY ({query}) TO {target} ({', '.join(options)})")
            file_rows = copy_result.fetchall()
    new_files = [_new_file(row, schema, partition_by) for row in file_rows if row[1]]
    # By number, since part-10 sorts before part-2 by name.
    return sorted(new_files, key=lambda file: (os.path.dirname(file.path), _file_number(file.path)))


def _new_file(row: Sequence[Any], schema: pa.Schema, partition_by: Sequence[str]) -> NewFile:
    path, rows, size, _footer, columns, partition_values = row[:6]
    partition = {}
    for name in partition_by:
        partition[name] = _partition_value((partition_values or {})[name], schema.field(name))
    stored_fields = [field for field in schema if field.name not in partition]
    return NewFile(path, size, rows, _statistics(rows, columns, stored_fields), partition)


def _file_number(path: str) -> int:
    return int(os.path.basename(path).removeprefix("part-").removesuffix(".parquet"))


def _partition_value(text: str | None, column: pa.Field) -> str | None:
    """Return a partition value of DuckDB in the format of the Delta log."""
    if text is None:
        return None
    if text == "":
        raise InvalidArgument(
            f"Partition column {column.name!r} has an empty string, which Delta reads as null.",
            hint="replace '' with another string or null",
        )
    if not pat.is_timestamp(column.type):
        return text
    try:
        time = datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError as error:
        raise InvalidArgument(
            f"Partition column {column.name!r} has the time {text}; years must be 1 to 9999."
        ) from error
    # Delta's partition values have times in UTC without an offset.
    return time.isoformat(sep=" ", timespec="microseconds")


def _statistics(
    rows: int, columns: Mapping[str, Mapping[str, str]], schema: Sequence[pa.Field]
) -> str:
    """Return the file statistics for the log as JSON, from the statistics that COPY returned."""
    minimum, maximum, nulls = {}, {}, {}
    for column in schema[:_STATISTICS_COLUMNS]:
        column_statistics = columns.get(sqltext.quote(column.name))
        if column_statistics is None or is_nested(column.type):
            continue
        nulls[column.name] = int(column_statistics["null_count"])
        # Parquet bounds exclude NaN, which DuckDB and Spark order after all numbers: a filter could
        # skip a file with NaN. Truncated strings are not bounds for readers that compare exactly.
        if (
            column_statistics.get("has_nan") == "true"
            or column_statistics.get("min_is_exact") != "true"
        ):
            continue
        low = _to_json_bound(column_statistics.get("min"), column.type)
        high = _to_json_bound(column_statistics.get("max"), column.type)
        if low is not None and high is not None:
            minimum[column.name], maximum[column.name] = low, high
    return json.dumps(
        {"numRecords": rows, "minValues": minimum, "maxValues": maximum, "nullCount": nulls}
    )


def _to_json_bound(text: str | None, kind: pa.DataType) -> Any:
    """Return a bound as in Delta's JSON, or None if the type or value has no bound."""
    if text is None or pat.is_binary(kind) or pat.is_boolean(kind):
        return None
    if pat.is_integer(kind):
        return int(text)
    if pat.is_floating(kind):
        number = float(text)
        # JSON has no infinity.
        return number if math.isfinite(number) else None
    if pat.is_decimal(kind):
        # JSON numbers are portable only up to the precision of a double.
        digits = text.lstrip("-").replace(".", "")
        return float(text) if len(digits) <= 15 else None
    if pat.is_temporal(kind):
        return _time_bound(text, kind)
    return text


def _time_bound(text: str, kind: pa.DataType) -> str | None:
    """Return a time or date as in Delta's JSON, or None for years before 1 and after 9999."""
    try:
        time = datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:  # years before 1 and after 9999 have no portable form
        return None
    if pat.is_timestamp(kind):
        return time.isoformat(timespec="microseconds") + "Z"
    return time.date().isoformat()


def stage(database: Database, query: str, folder: str, *, schema: pa.Schema) -> list[NewFile]:
    """Write the rows of a query to a new staging folder, local or remote."""
    if storage_for(folder).is_local:
        return write(database, query, folder, schema=schema)
    with scratch_folder(folder) as local:
        local_files = write(database, query, os.path.join(local, "rows"), schema=schema)
        staged_files = []
        moves = []
        for file in local_files:
            target = os.path.join(folder, os.path.basename(file.path))
            staged_files.append(replace(file, path=target))
            moves.append((file.path, target))
        # Uploaded together, since closing one file on HDFS can take half a second.
        storage.upload(moves)
    return staged_files


def move_into_table(
    files: Sequence[NewFile], path: str, publication: Publication, *, folder: str | None = None
) -> list[NewFile]:
    """Hard-link or copy files into a table; the original files remain.

    ``folder`` is the root of the partition folders.
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
        # Registered before it exists, so that a failure in between leaves no file.
        publication.add(target)
        table_files.append(replace(file, path=target))
        moves.append((file.path, target))
        if not is_local:
            continue
        try:
            make_directory(directory, durable=publication.durable)
            _link_or_copy(file.path, target)
        except OSError as error:
            raise StorageError(f"{file.path} could not be moved to {target}: {error}.") from error
    if not is_local:
        storage.upload(moves)
        # Of the local files, which are read without requests.
        checksums = file_checksums([source for source, _ in moves])
        for number, checksum in enumerate(checksums):
            table_files[number] = replace(table_files[number], checksum=checksum)
    return table_files


def _link_or_copy(source: str, target: str) -> None:
    """Hard-link a file, or copy it if links are not possible."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
    # Vacuum removes orphan files by age, and staged files may be old.
    os.utime(target)


def read_scan(database: Database, scan: TableScan) -> Relation:
    """Return the rows of a table version in feature types; columns added later are null."""
    snapshot = scan.snapshot
    if not snapshot.files:
        return relation(database.bind(sqltext.empty(scan.schema)), scan.schema)
    # Only the requested columns, so that others may have types that DuckDB does not support.
    stored_schema = _select_fields(snapshot.schema, set(scan.schema.names))
    casts = sqltext.casts(scan.schema, sqltext.types_of(stored_schema))
    query = f"SELECT {casts} FROM {_scan_files(snapshot, snapshot.files, stored_schema)}"
    return ScannedRelation(
        ENGINE, lambda: database.bind(query), scan.schema, query=query, scan=scan
    )


def read_positions(
    database: Database, path: str, *, version: int, schema: pa.Schema, columns: Sequence[str]
) -> Relation:
    """Return columns of a version preceded by ``POSITION``, ordered by ``POSITION``.

    The table must not have columns named in ``RESERVED_NAMES``.
    """
    scan = plan_scan(path, version=version, schema=schema, columns=columns)
    snapshot = scan.snapshot
    schema_with_position = pa.schema([pa.field(POSITION, pa.int64()), *scan.schema])
    if not snapshot.files:
        return relation(database.bind(sqltext.empty(schema_with_position)), schema_with_position)
    stored_schema = _select_fields(snapshot.schema, set(scan.schema.names))
    source = _scan_files(
        snapshot, snapshot.files, stored_schema, more=[f"{_POSITION} AS {POSITION}"]
    )
    casts = sqltext.casts(
        schema_with_position, {POSITION: "BIGINT"} | sqltext.types_of(stored_schema)
    )
    return relation(database.bind(f"SELECT {casts} FROM {source}"), schema_with_position)


def scan_all(snapshot: Snapshot, files: Sequence[DataFile | NewFile]) -> str:
    """Return a FROM item with the stored columns of files, and ``FILE``."""
    return _scan_files(snapshot, files, snapshot.schema)


def parquet_scan(schema: pa.Schema, paths: Sequence[str]) -> str:
    """Return a FROM item with the columns of a schema from Parquet files, and ``FILE``."""
    return _read_parquet(dict(zip(schema.names, schema.names, strict=True)), schema, paths)


def _scan_files(
    snapshot: Snapshot,
    files: Sequence[DataFile | NewFile],
    stored_schema: pa.Schema,
    *,
    more: Sequence[str] = (),
) -> str:
    """Return a FROM item with columns of files; partition values are looked up by file index.

    ``more`` are additional expressions over DuckDB's virtual columns.
    """
    paths = [file.path for file in files]
    in_files = _select_fields(
        stored_schema, set(stored_schema.names).difference(snapshot.partition_by)
    )
    if len(in_files) == len(stored_schema) and not more:
        return parquet_scan(stored_schema, paths)
    aliases: dict[str, str] = {}
    projections = []
    for name in stored_schema.names:
        quoted = sqltext.quote(name)
        if name in snapshot.partition_by:
            # Literals from the log: DuckDB would derive partition values from folder names, also
            # from those above the table.
            values = _list_literal([file.partition.get(name) for file in files])
            value = _cast_partition_value(
                f"({values})[{_FILE_INDEX}::BIGINT + 1]", stored_schema.field(name).type
            )
            projections.append(f"{value} AS {quoted}")
            continue
        aliases[name] = name
        if name.lower() == _FILE_INDEX:
            aliases[name] = _OWN_FILE_INDEX
        projections.append(f"{sqltext.quote(aliases[name])} AS {quoted}")
    if not aliases:
        # DuckDB must read at least one column that is stored in the files.
        first = next(field for field in snapshot.schema if field.name not in snapshot.partition_by)
        aliases, in_files = {first.name: _OWN_FILE_INDEX}, pa.schema([first])
    source = _read_parquet(aliases, in_files, paths)
    return f"(SELECT {', '.join([*projections, *more])}, {FILE} FROM {source})"


def _select_fields(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    """Return the schema fields with these names, in schema order."""
    return pa.schema([field for field in schema if field.name in names])


def _read_parquet(aliases: dict[str, str], schema: pa.Schema, paths: Sequence[str]) -> str:
    """Return a ``read_parquet`` call; ``aliases`` maps columns to their names in the result."""
    # With an explicit schema, DuckDB does not open files before it reads their rows, and missing
    # columns are null.
    fields = []
    for name, alias in aliases.items():
        kind = sqltext.text(sqltext.column_type(schema.field(name).type))
        column = f"name: {sqltext.text(alias)}, type: {kind}, default_value: NULL"
        fields.append(f"{sqltext.text(name)}: {{{column}}}")
    options = f"filename='{FILE}', hive_partitioning=false, schema=MAP {{{', '.join(fields)}}}"
    return f"read_parquet({sqltext.file_list(paths)}, {options})"


def _list_literal(texts: Iterable[str | None]) -> str:
    """Return strings as a DuckDB list literal."""
    literals = []
    for text in texts:
        if text is None:
            literals.append("NULL")
        else:
            literals.append(sqltext.text(text))
    return f"[{', '.join(literals)}]::VARCHAR[]"


def _cast_partition_value(text: str, kind: pa.DataType) -> str:
    """Cast a partition value to the column type; binary values are stored as strings."""
    if pat.is_binary(kind):
        return f"encode({text})"
    return f"CAST({text} AS {sqltext.column_type(kind)})"
