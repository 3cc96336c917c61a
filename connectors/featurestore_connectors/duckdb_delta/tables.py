"""Delta table writes: create, append and overwrite, and the data files that DuckDB writes.

The files have statistics for the log. ``rewrite`` has the writes that rewrite existing files.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.types import is_nested, storage_schema
from featurestore.delta.checksums import file_checksums
from featurestore.delta.commits import table_metadata
from featurestore.delta.snapshot import Snapshot
from featurestore.errors import InvalidArgument, StorageError
from featurestore.plugins.engine import (
    ADD_COLUMNS_HINT,
    TABLE_PROPERTIES,
    Relation,
    TableWrite,
    unknown_columns_error,
)
from featurestore.storage import storage_for
from featurestore.storage.publication import Publication
from featurestore.storage.temporary import remove_temporary, temporary_directory
from featurestore_connectors.duckdb_delta import commits, sqltext
from featurestore_connectors.duckdb_delta.relations import NewFile, StagedRows, scan_files
from featurestore_connectors.duckdb_delta.session import (
    Database,
    interrupt_on_signal,
    query_of,
    relation_lock,
)

# The subfolder of a table for uncommitted files of writers.
WRITING = "_writing"
_FILE_BYTES = "128MB"
# The maximum number of distinct values for which a row group (122,880 rows) is dictionary-encoded.
# With DuckDB's default, twice as high, writing keys, times and measurements took 1.4 times as long.
_DICTIONARY_VALUES = 12_288
# By default, Delta collects statistics of the first 32 columns.
_STATISTICS_COLUMNS = 32


def create(
    database: Database,
    path: str,
    *,
    schema: pa.Schema,
    partition_by: Sequence[str],
    properties: Mapping[str, str],
    commit_metadata: Mapping[str, Any],
) -> None:
    """Create an empty table; raise FileExistsError if the table exists."""
    for column in partition_by:
        dtype = schema.field(column).type
        # Partition values are strings in the log, in which floats and binaries have no unique form.
        if pat.is_binary(dtype) or pat.is_floating(dtype):
            raise InvalidArgument(
                f"Cannot partition a table by column {column!r} of type {dtype}.",
                hint="partition by a column of integers, strings, dates or booleans",
            )
    if len(partition_by) >= len(schema.names):
        raise InvalidArgument(
            "All columns are partition columns; at least one must be a data column."
        )
    metadata = table_metadata(
        table_id=str(uuid.uuid4()),
        schema_string=commits.schema_string(storage_schema(schema)),
        partition_by=partition_by,
        created_time=commits.now_millis(),
        properties={**TABLE_PROPERTIES, **properties},
    )
    commits.create(
        path, metadata=metadata, commit_metadata=commit_metadata, durable=database.durable
    )


def target_schema(state: Snapshot, relation: Relation, write: TableWrite) -> pa.Schema:
    """Return the table schema with the columns that this write adds."""
    schema = commits.add_missing_columns(state.schema, write.add_columns)
    present = set(schema.names)
    unknown = [name for name in relation.schema.names if name not in present]
    if unknown:
        raise unknown_columns_error(unknown, state.schema.names, hint=ADD_COLUMNS_HINT)
    return schema


def append_or_overwrite(
    database: Database, state: Snapshot, relation: Relation, write: TableWrite
) -> int | None:
    """Write the rows to new files once, and commit them with retries."""
    schema = target_schema(state, relation, write)
    with Publication(durable=database.durable) as publication:
        # The rows are written once; only the commit is retried. Staged files with the table's types
        # are linked instead of rewritten.
        if isinstance(relation, StagedRows) and can_link(relation, schema, state):
            new = move_into_table(relation.files, state.path, publication)
        else:
            query = storage_query(relation, schema)
            new = write_into_table(database, state, query, publication, schema=schema)

        def attempt(latest: Snapshot) -> int:
            current = commits.add_missing_columns(latest.schema, write.add_columns)
            if all(current.field(column.name).type == column.type for column in schema):
                return commits.commit(latest, commits.build_change(latest, new, write), publication)
            # Another writer has widened columns after the files were written.
            narrow_state = replace(latest, schema=schema)
            with Publication(durable=database.durable) as again:
                wider = []
                if new:
                    columns = sqltext.casts(current, sqltext.types_of(schema))
                    query = f"SELECT {columns} FROM {scan_files(narrow_state, new)}"
                    wider = write_into_table(database, narrow_state, query, again, schema=current)
                return commits.commit(latest, commits.build_change(latest, wider, write), again)

        return commits.retry_commits(state.path, attempt, state=state)


def can_link(staged: StagedRows, schema: pa.Schema, state: Snapshot) -> bool:
    """Return whether staged files can be linked into the table: same types, no partitions."""
    if state.partition_by:
        return False
    stored_schema = storage_schema(staged.schema)
    return all(field.type == schema.field(field.name).type for field in stored_schema)


def storage_query(relation: Relation, schema: pa.Schema) -> str:
    """Return the query of the rows in the storage types of a table."""
    projection = sqltext.casts(schema, sqltext.types_of(relation.schema))
    with relation_lock():
        return query_of(relation.native.project(projection))


def write_into_table(
    database: Database,
    state: Snapshot,
    query: str,
    publication: Publication,
    *,
    schema: pa.Schema,
) -> list[NewFile]:
    """Write the rows of a query to uncommitted files in the table folder."""
    with scratch_folder(state.path) as scratch:
        folder = os.path.join(scratch, "rows")
        new_files = write_files(
            database, query, folder, schema=schema, partition_by=state.partition_by
        )
        return move_into_table(new_files, state.path, publication, folder=folder)


def stage_files(database: Database, query: str, folder: str, *, schema: pa.Schema) -> list[NewFile]:
    """Write the rows of a query to a new staging folder, local or remote."""
    storage = storage_for(folder)
    if storage.is_local:
        return write_files(database, query, folder, schema=schema)
    with scratch_folder(folder) as local:
        local_files = write_files(database, query, os.path.join(local, "rows"), schema=schema)
        staged_files = []
        moves = []
        for file in local_files:
            target = os.path.join(folder, os.path.basename(file.path))
            staged_files.append(replace(file, path=target))
            moves.append((file.path, target))
        # Uploaded together, since closing one file on HDFS can take half a second.
        storage.upload_all(moves)
    return staged_files


def write_files(
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
            written_files = copy_result.fetchall()
    stored_columns = [column for column in schema if column.name not in partition_by]
    new_files = {}
    for path, rows, size, _, statistics, partition_values, *_ in written_files:
        if not rows:
            continue
        partition = {
            name: _partition_value((partition_values or {})[name], schema.field(name))
            for name in partition_by
        }
        # By number, since part-10 sorts before part-2 by name.
        number = int(os.path.basename(path).removeprefix("part-").removesuffix(".parquet"))
        new_files[os.path.dirname(path), number] = NewFile(
            path, size, rows, _statistics(rows, statistics, stored_columns), partition
        )
    return [new_files[position] for position in sorted(new_files)]


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


def _to_json_bound(text: str | None, dtype: pa.DataType) -> int | float | str | None:
    """Return a bound as in Delta's JSON, or None if the type or value has no bound."""
    if text is None or pat.is_binary(dtype) or pat.is_boolean(dtype):
        return None
    if pat.is_integer(dtype):
        return int(text)
    if pat.is_floating(dtype):
        number = float(text)
        # JSON has no infinity.
        return number if math.isfinite(number) else None
    if pat.is_decimal(dtype):
        # JSON numbers are portable only up to the precision of a double.
        digits = text.lstrip("-").replace(".", "")
        return float(text) if len(digits) <= 15 else None
    if not pat.is_temporal(dtype):
        return text
    try:
        time = datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:  # years before 1 and after 9999 have no portable form
        return None
    if pat.is_timestamp(dtype):
        return time.isoformat(timespec="microseconds") + "Z"
    return time.date().isoformat()


def move_into_table(
    new_files: Sequence[NewFile], path: str, publication: Publication, *, folder: str | None = None
) -> list[NewFile]:
    """Hard-link or copy files into a table; the original files remain.

    ``folder`` is the root of the partition folders.
    """
    storage = storage_for(path)
    run = uuid.uuid4()
    is_local = storage.is_local
    moves = []
    for number, file in enumerate(new_files):
        directory = path
        if folder is not None and file.partition:
            partition_folder = os.path.relpath(os.path.dirname(file.path), folder)
            directory = os.path.join(path, partition_folder)
        target = os.path.join(directory, f"part-{number:05d}-{run}-c000.snappy.parquet")
        # Registered before it exists, so that a failure in between leaves no file.
        publication.add(target)
        moves.append((file.path, target))
        if not is_local:
            continue
        try:
            storage_for(directory).make_directory(directory, durable=publication.durable)
            try:
                os.link(file.path, target)
            except OSError:  # another file system, or one without links
                shutil.copyfile(file.path, target)
            # Vacuum removes orphan files by age, and staged files may be old.
            os.utime(target)
        except OSError as error:
            raise StorageError(f"{file.path} could not be moved to {target}: {error}.") from error
    checksums: Sequence[str | None] = [file.checksum for file in new_files]
    if not is_local:
        storage.upload_all(moves)
        # Of the local files, which are read without requests.
        checksums = file_checksums([source for source, _ in moves])
    return [
        replace(file, path=target, checksum=checksum)
        for file, (_, target), checksum in zip(new_files, moves, checksums, strict=True)
    ]


@contextlib.contextmanager
def scratch_folder(path: str) -> Iterator[str]:
    """Yield an empty folder on the table's file system, and remove it on exit.

    For a table at a URI, the folder is local.
    """
    storage = storage_for(path)
    if not storage.is_local:
        temporary = temporary_directory()
        try:
            yield temporary
        finally:
            remove_temporary(temporary)
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
