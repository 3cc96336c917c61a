"""Scans of Delta versions and external Parquet files, without starting Spark jobs.

``featurestore.delta`` reads and validates the log before Spark does: Spark ignores log lines that
are not JSON, and supports table features that other engines of the store do not support.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pat
from pyarrow import parquet

from featurestore.arrow.untyped import format_sql_casts, refuse_untyped
from featurestore.delta.datafile import DataFile
from featurestore.delta.scan import TableScan
from featurestore.delta.snapshot import Snapshot
from featurestore.errors import ConfigurationError, EngineError, StorageError, TableDamaged
from featurestore.plugins.engine import Relation
from featurestore.storage import storage_for
from featurestore_connectors.spark_delta import staged
from featurestore_connectors.spark_delta.failures import (
    first_line,
    spark_errors,
    to_store_error,
)
from featurestore_connectors.spark_delta.listed_files import check_listed_files
from featurestore_connectors.spark_delta.relations import cast_to, relation
from featurestore_connectors.spark_delta.sqltext import column, quote, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Spark lists more paths than this with a job
# (spark.sql.sources.parallelPartitionDiscovery.threshold).
_FEW_FILES = 32
# Characters of Hadoop's glob patterns, and characters that Hadoop parses as a scheme or an escape.
_NO_PLAIN_PATH = re.compile(r"[*?\[\]{}\\%,:]")
# Columns of a frame that contain the name and the partition values of the file of each row.
_FILE_NAME, _PARTITION = "__fs_file_name", "__fs_partition"
_NANOSECONDS = "spark.sql.legacy.parquet.nanosAsLong"


def read_scan(session: SparkSession, table_scan: TableScan) -> Relation:
    """Return the rows of a Delta version."""
    from pyspark.sql import functions as sf

    # The schema comes from the log, since Spark omits columns that have no type.
    snapshot = table_scan.snapshot
    try:
        # Delta would open all files of the version for a partial scan.
        if is_plain(snapshot) or (table_scan.is_partial and _has_plain_files(snapshot)):
            frame = plain_frame(session, snapshot, snapshot.files)
        else:
            check_listed_files(session, snapshot.path, snapshot.version)
            frame = session.read.format("delta").option("versionAsOf", snapshot.version)
            frame = frame.load(snapshot.path)
            if table_scan.is_partial:
                # File names contain unique identifiers.
                names = [os.path.basename(file.path) for file in snapshot.files]
                frame = frame.filter(sf.col("_metadata.file_name").isin(names))
    except spark_errors() as error:
        store_error = to_store_error(error, call="read_table")
        # Only an unknown failure is described by the version that was read; other errors name the
        # file.
        if isinstance(store_error, EngineError):
            store_error = EngineError(
                f"Spark cannot read version {snapshot.version} of {snapshot.path}: {first_line(error)}"
            )
        raise store_error from error
    # Columns that the version lacks are null.
    rows = relation(cast_to(frame, spark_schema(table_scan.schema)), table_scan.schema)
    return staged.with_table_files(rows, snapshot)


def is_plain(snapshot: Snapshot) -> bool:
    """Return whether Spark's Parquet reader can read a version from its files alone.

    Delta starts jobs to read its log and to select files, which take longer than reading few files.
    """
    if snapshot.partition_by or len(snapshot.files) > _FEW_FILES:
        return False
    return _has_plain_files(snapshot)


def _has_plain_files(snapshot: Snapshot) -> bool:
    if snapshot.protocol.reader > 1:  # files of other types than the table's, for one
        return False
    # Spark casts these partition values in the log as Delta does.
    is_exact = (pat.is_string, pat.is_integer, pat.is_date, pat.is_boolean)
    for name in snapshot.partition_by:
        if not any(check(snapshot.schema.field(name).type) for check in is_exact):
            return False
    for file in snapshot.files:
        # Spark silently skips hidden files and interprets some characters as patterns.
        hidden = os.path.basename(file.path).startswith(("_", "."))
        if hidden or _NO_PLAIN_PATH.search(file.path.rpartition("://")[2]):
            return False
    return True


def plain_frame(
    session: SparkSession, snapshot: Snapshot, data_files: Sequence[DataFile]
) -> DataFrame:
    """Return a frame over files of a plain version, with the table's columns and types.

    Partition values come from the log.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql.types import NullType, StringType, StructType

    columns = StructType()
    for field in StructType.fromJson(json.loads(snapshot.metadata["schemaString"])).fields:
        # Spark's Parquet reader does not support columns without a type; callers add them as nulls.
        if not isinstance(field.dataType, NullType):
            columns.add(field.name, field.dataType)
    if not data_files:
        return session.createDataFrame([], columns)
    # Do not interpret folder names as partition values.
    reader = session.read.schema(columns).option("recursiveFileLookup", "true")
    frame = reader.parquet(*[file.path for file in data_files])
    if not snapshot.partition_by:
        return frame
    # File names contain unique identifiers.
    rows = [
        (os.path.basename(file.path), *map(file.partition.get, snapshot.partition_by))
        for file in data_files
    ]
    texts = [f"{_PARTITION}{number}" for number, _ in enumerate(snapshot.partition_by)]
    schema = StructType()
    for name in (_FILE_NAME, *texts):
        schema.add(name, StringType())
    stored = [column(name) for name in columns.names if name not in snapshot.partition_by]
    frame = frame.select(sf.col("_metadata.file_name").alias(_FILE_NAME), *stored)
    partitions = [
        # Delta does not distinguish an empty string from null.
        sf.nullif(sf.col(text), sf.lit("")).cast(columns[name].dataType).alias(name)
        for name, text in zip(snapshot.partition_by, texts, strict=True)
    ]
    values = sf.broadcast(session.createDataFrame(rows, schema))
    return frame.join(values, _FILE_NAME).select(*stored, *partitions)


def read_files(
    session: SparkSession, paths: Sequence[str], *, schema: pa.Schema | None
) -> Relation:
    """Read Parquet files and, recursively, folders; columns are matched by name.

    Raises:
        StorageError: A path does not exist.
        ConfigurationError: Files have nanosecond times, which the session does not read.
    """
    for path in paths:
        if not storage_for(path).exists(path):
            raise StorageError(
                f"{path} does not exist.", hint="pass Parquet files, or folders with Parquet files"
            )
    first, int96_columns = _first_schema(paths)
    if schema is None:
        # Spark reads columns without a type as integers.
        refuse_untyped(
            first,
            subject=paths[0],
            hint=lambda columns: f"write the files with a type: {format_sql_casts(columns)}",
        )
    # Spark reads times in nanoseconds as plain integers or not at all.
    nanosecond_columns = [
        field.name
        for field in first
        if pat.is_timestamp(field.type)
        and field.type.unit == "ns"
        and field.name not in int96_columns
    ]
    if nanosecond_columns and session.conf.get(_NANOSECONDS, "false") != "true":
        raise ConfigurationError(
            f"{paths[0]} has times in nanoseconds (as pandas writes them), "
            "which this Spark session cannot read.",
            hint=f'spark.conf.set("{_NANOSECONDS}", "true")',
        )
    # Recursive lookup disables partition columns from folder names, so it is used only if
    # necessary.
    is_recursive = any(_has_plain_folders(path) for path in paths)
    reader = session.read.option("mergeSchema", "true").option("recursiveFileLookup", is_recursive)
    frame = reader.parquet(*paths)
    for name in nanosecond_columns:
        frame = frame.withColumn(name, _whole_microseconds(name))
    if schema is None:
        return relation(frame)
    return relation(cast_to(frame, spark_schema(schema)), schema)


def _whole_microseconds(name: str) -> Column:
    """Return a column of nanoseconds as timestamps; finer times fail in the query."""
    from pyspark.sql import functions as sf

    text = f"Column {name} has times finer than a microsecond; round them first"
    value = column(name)
    microseconds = sf.timestamp_micros(sf.expr(f"{quote(name)} div 1000"))
    return sf.when(value % 1000 == 0, microseconds).when(value.isNotNull(), sf.raise_error(text))


def _first_schema(paths: Sequence[str]) -> tuple[pa.Schema, set[str]]:
    """Return the Arrow schema of the first file, and the names of its INT96 columns.

    INT96 is an older format of Spark for times. Arrow also reads it as nanoseconds.
    """
    first = next((file for path in paths for file in _files(path)), None)
    if first is None:
        return pa.schema([]), set()
    try:
        metadata = parquet.read_metadata(storage_for(first).open_ranges(first))
    except pa.ArrowInvalid as error:
        raise TableDamaged(f"The file {first!r} is not a readable Parquet file: {error}") from error
    except OSError as error:
        raise StorageError(f"The file {first!r} cannot be read: {error}") from error
    int96_columns = set()
    for number in range(metadata.num_columns):
        column_schema = metadata.schema.column(number)
        if column_schema.physical_type == "INT96":
            int96_columns.add(column_schema.path)
    return metadata.schema.to_arrow_schema(), int96_columns


def _files(path: str) -> Iterator[str]:
    """Yield the Parquet files of a path, without hidden files and folders."""
    storage = storage_for(path)
    if storage.is_file(path):
        yield path
        return
    for file in storage.walk(path, enter=_is_visible):
        if _is_visible(os.path.basename(file)) and file.endswith(".parquet"):
            yield file


def _has_plain_folders(path: str) -> bool:
    """Return whether ``path`` has files in subfolders that are not partitions (``name=value``)."""
    if storage_for(path).is_file(path):
        return False
    for file in _files(path):
        folders = os.path.relpath(os.path.dirname(file), path).split(os.sep)
        if any("=" not in folder for folder in folders if folder != os.curdir):
            return True
    return False


def _is_visible(name: str) -> bool:
    return "=" in name or not name.startswith(("_", "."))
