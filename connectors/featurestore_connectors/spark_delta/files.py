"""Rows in Parquet files: Arrow streams that are shipped to executors, and staged writes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from featurestore.arrow.types import feature_schema, storage_schema
from featurestore.errors import StorageError
from featurestore.plugins.engine import Relation
from featurestore_connectors.spark_delta.failures import translated
from featurestore_connectors.spark_delta.relations import relation
from featurestore_connectors.spark_delta.row_buffer import buffer_rows
from featurestore_connectors.spark_delta.session import staging_directory
from featurestore_connectors.spark_delta.staged import staged
from featurestore_connectors.spark_delta.types import spark_schema, to_features, to_storage

# Rows up to this size are sent inside the query plan, as a local relation.
_LOCAL_RELATION_BYTES = 8 * 2**20
_ROW_GROUP_BYTES = 32 * 2**20


class ParkedStreams:
    """Arrow streams that are shipped to executors: small ones in the plan, large ones in a folder.

    A folder is kept until its relation is released or the engine is closed: plans read it lazily,
    so only the caller knows when it is no longer needed. Thread-safe.
    """

    def __init__(self) -> None:
        self._folders: list[tuple[Any, str]] = []

    def park(self, session: Any, reader: pa.RecordBatchReader) -> Relation:
        """Return a relation with the rows of a stream, in order.

        The stream is consumed batch by batch.

        Raises:
            UnsupportedType: A column has a type that cannot be stored.
            StorageError: The staging folder is full.
        """
        schema = feature_schema(reader.schema)
        batches = (to_features(batch, schema) for batch in reader)
        buffered, size = [], 0
        for batch in batches:
            # Copy, since the caller may modify the arrays later.
            buffered.append(pa.ipc.read_record_batch(batch.serialize(), schema))
            size += batch.nbytes
            if size > _LOCAL_RELATION_BYTES:
                stored_batches = map(to_storage, chain(buffered, batches))
                folder = _write_folder(session, stored_batches, storage_schema(schema))
                frame = session.read.schema(spark_schema(schema)).parquet(folder)
                self._folders.append((frame, folder))
                return relation(frame, schema)
        return buffer_rows(session, buffered, schema)

    def release(self, parked_relation: Relation) -> None:
        """Remove the folder that a relation reads, if it reads one."""
        for entry in list(self._folders):
            if entry[0] is parked_relation.native:
                self._folders.remove(entry)
                shutil.rmtree(entry[1], ignore_errors=True)

    def release_all(self) -> None:
        """Remove all folders; their relations become invalid."""
        while self._folders:
            shutil.rmtree(self._folders.pop()[1], ignore_errors=True)


def stage(source: Relation, directory: str) -> Relation:
    """Write the rows as Parquet and return a relation over the files."""
    with translated():
        source.native.write.mode("overwrite").parquet(directory)
    reader = source.native.sparkSession.read.schema(spark_schema(source.schema))
    return staged(relation(reader.parquet(directory), source.schema), directory)


def _write_folder(session: Any, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> str:
    """Write a stream to a new folder; remove the folder if the stream fails."""
    folder = tempfile.mkdtemp(prefix="featurestore-stream-", dir=staging_directory(session))
    try:
        os.chmod(folder, 0o755)  # executors may run as another user
        _write_file(os.path.join(folder, "stream.parquet"), batches, schema)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _write_file(path: str, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
    """Write one file with many row groups: Spark splits it by row group and keeps the row order."""
    try:
        with parquet.ParquetWriter(path, schema, compression="lz4") as writer:
            for table in _row_groups(batches, schema):
                writer.write_table(table, row_group_size=max(1, len(table)))
    except OSError as error:
        raise StorageError(
            f"Cannot park the stream in {os.path.dirname(path)!r}: {error}",
            hint="free space, or choose another TMPDIR",
        ) from error


def _row_groups(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    buffered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        buffered.append(batch)
        size += batch.nbytes
        if size >= _ROW_GROUP_BYTES:
            yield pa.Table.from_batches(buffered, schema)
            buffered, size = [], 0
    if buffered:
        yield pa.Table.from_batches(buffered, schema)
