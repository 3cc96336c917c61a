"""Arrow streams on Spark: small streams are buffered in the driver, large ones sent as files.

Operations on a buffered relation do not start Spark jobs. It also has a Spark frame of the same
rows, with the same functions applied, for operations that this module does not implement.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet

from featurestore.arrow.types import feature_schema, storage_schema
from featurestore.errors import StorageError
from featurestore.plugins.engine import Accumulator, BatchFunction, Relation, Result, State
from featurestore.storage import storage_for
from featurestore.storage.protection import make_temporary_folder
from featurestore_connectors.spark_delta import relations, staged, streams
from featurestore_connectors.spark_delta.relations import relation
from featurestore_connectors.spark_delta.session import staging_directory
from featurestore_connectors.spark_delta.sqltext import spark_schema, to_features, to_storage
from featurestore_connectors.spark_delta.staged import staged_relation
from featurestore_connectors.spark_delta.tasks import first_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Rows up to this size are sent in the query plan, as a local relation.
_LOCAL_RELATION_BYTES = 8 * 2**20
_ROW_GROUP_BYTES = 32 * 2**20
_FILE = "part-00000.parquet"


class SpooledStreams:
    """Arrow streams that executors read: small streams in the query plan, large ones in a folder.

    A folder exists until its relation is released or the engine is closed: plans read it lazily, so
    only the caller knows when it is no longer needed. Thread-safe.
    """

    def __init__(self) -> None:
        self._folders: list[tuple[DataFrame, str]] = []

    def spool(self, session: SparkSession, reader: pa.RecordBatchReader) -> Relation:
        """Return a relation over the rows of a stream, in order.

        The stream is consumed batch by batch.

        Raises:
            UnsupportedType: A column has a type that cannot be stored.
            StorageError: The staging folder is full.
        """
        schema = feature_schema(reader.schema)
        batches = (to_features(batch, schema) for batch in reader)
        buffered, size = [], 0
        for batch in batches:
            # Copy the batches, since the caller may modify the arrays later.
            buffered.append(pa.ipc.read_record_batch(batch.serialize(), schema))
            size += batch.nbytes
            if size > _LOCAL_RELATION_BYTES:
                # The buffered rows come first, then the remaining stream, which preserves the order.
                stored_batches = map(to_storage, chain(buffered, batches))
                folder = _write_folder(session, stored_batches, storage_schema(schema))
                frame = session.read.schema(spark_schema(schema)).parquet(folder)
                self._folders.append((frame, folder))
                return relation(frame, schema)
        return buffer_rows(session, buffered, schema)

    def release(self, spooled_relation: Relation) -> None:
        """Remove the folder of a relation, if it has one."""
        for entry in list(self._folders):
            if entry[0] is spooled_relation.native:
                self._folders.remove(entry)
                shutil.rmtree(entry[1], ignore_errors=True)

    def release_all(self) -> None:
        """Remove all folders; their relations become invalid."""
        while self._folders:
            shutil.rmtree(self._folders.pop()[1], ignore_errors=True)


def _write_folder(
    session: SparkSession, batches: Iterator[pa.RecordBatch], schema: pa.Schema
) -> str:
    """Write a stream to a new folder; remove the folder if the stream fails."""
    # Executors that run as another user have access by the group of a staging folder with setgid.
    folder = make_temporary_folder(staging_directory(session), "featurestore-stream-")
    try:
        _write_file(os.path.join(folder, "stream.parquet"), batches, schema)
    except BaseException:
        # Also after Ctrl-C: no other code knows the folder.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _write_file(path: str, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
    """Write a file with many row groups: Spark splits it by row group and preserves row order."""
    try:
        with parquet.ParquetWriter(path, schema, compression="lz4") as writer:
            for table in _row_groups(batches, schema):
                writer.write_table(table, row_group_size=max(1, len(table)))
    except OSError as error:
        raise StorageError(
            f"Cannot write the stream to {os.path.dirname(path)!r}: {error}",
            hint="free disk space, or set TMPDIR to another directory",
        ) from error


def _row_groups(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield tables of about ``_ROW_GROUP_BYTES`` bytes."""
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


def stage_frame(source: Relation, directory: str, session: SparkSession) -> Relation:
    """Write the rows as Parquet and return a relation over the files.

    The relation belongs to ``session``. A micro-batch of a stream belongs to a session of the
    stream, in which the views of a query are not visible.
    """
    # Spark would create the parent with the modes of the umask.
    storage_for(directory).make_directory(os.path.dirname(directory))
    source.native.write.mode("overwrite").parquet(directory)
    reader = session.read.schema(spark_schema(source.schema))
    return staged_relation(relation(reader.parquet(directory), source.schema), directory)


@dataclass(frozen=True)
class BufferedRelation(Relation):
    """A relation with rows in this process; each call of ``batches`` iterates over them."""

    batches: Callable[[], Iterator[pa.RecordBatch]] = field(kw_only=True, repr=False, compare=False)

    def stored(self) -> pa.Table:
        """Return the rows in storage types."""
        return pa.Table.from_batches(map(to_storage, self.batches()), storage_schema(self.schema))


def buffer_rows(
    session: SparkSession, batches: Sequence[pa.RecordBatch], schema: pa.Schema
) -> BufferedRelation:
    """Return a relation over batches of feature types."""
    table = pa.Table.from_batches(map(to_storage, batches), storage_schema(schema))
    frame = session.createDataFrame(table if len(table) else [], spark_schema(schema))
    return BufferedRelation(relations.ENGINE, frame, schema, batches=partial(iter, batches))


def select_and_rename(source: BufferedRelation, columns: Mapping[str, str]) -> BufferedRelation:
    """Select and rename columns."""
    chosen = relations.select(source, columns)
    names = list(columns.values())

    def renamed_batches() -> Iterator[pa.RecordBatch]:
        for batch in source.batches():
            yield pa.RecordBatch.from_arrays(batch.select(names).columns, schema=chosen.schema)

    return BufferedRelation(chosen.engine, chosen.native, chosen.schema, batches=renamed_batches)


def map_batches(
    source: BufferedRelation, function: BatchFunction, *, schema: pa.Schema
) -> BufferedRelation:
    """Return a lazy relation that applies a function to each batch."""
    frame = streams.map_batches(source, function, schema=schema).native

    def mapped_batches() -> Iterator[pa.RecordBatch]:
        for batch in source.batches():
            yield to_features(function(batch).select(schema.names), schema)

    return BufferedRelation(source.engine, frame, schema, batches=mapped_batches)


def stage(source: BufferedRelation, directory: str) -> BufferedRelation:
    """Compute the rows, write them to a Parquet file, and return a relation of these rows."""
    storage = storage_for(directory)
    # Computed once: functions of mapped batches may be expensive.
    batches = list(source.batches())
    staged = buffer_rows(source.native.sparkSession, batches, source.schema)
    sink = pa.BufferOutputStream()
    parquet.write_table(staged.stored(), sink)
    # As ``stage_frame``, which overwrites the directory.
    storage.remove(directory, below=os.path.dirname(directory))
    storage.write_atomically(os.path.join(directory, _FILE), sink.getvalue().to_pybytes())
    return staged


def aggregate(source: BufferedRelation, accumulator: Accumulator[State, Result]) -> Result:
    """Return the result of an accumulator over all rows."""
    state = accumulator.start()
    for batch in source.batches():
        state = accumulator.update(state, batch)
    return accumulator.finish(state)


def count(source: BufferedRelation) -> int:
    """Count the rows."""
    return sum(batch.num_rows for batch in source.batches())


def stream(source: BufferedRelation, *, batch_rows: int, limit: int | None) -> pa.RecordBatchReader:
    """Stream the first ``limit`` rows (all if None) in batches of at most ``batch_rows``."""
    slices = (
        batch.slice(start, batch_rows)
        for batch in first_rows(source.batches(), limit)
        for start in range(0, batch.num_rows, batch_rows)
    )
    return pa.RecordBatchReader.from_batches(source.schema, slices)


def duplicates(
    source: Relation, key: Sequence[str], *, limit: int
) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of duplicate keys, and the first duplicate keys with their counts.

    The driver searches buffered rows and small staged files itself, if it compares keys as Spark.
    """
    if isinstance(source, BufferedRelation) and staged.can_compare(source.schema, key):
        keys = pa.Table.from_batches(source.batches(), source.schema).select(list(key))
        return staged.find_repeated_keys(keys, key, limit=limit)
    if isinstance(source, staged.StagedRelation):
        repeated = staged.duplicates(source, key, limit=limit)
        if repeated is not None:
            return repeated
    return streams.duplicates(source, key, limit=limit)
