"""Parquet files of others: folders to any depth, columns by name, times as other writers keep them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pat
from pyarrow import parquet

from featurestore.errors import ConfigurationError, StorageError, TableDamaged
from featurestore.plugins.engine import Relation
from featurestore.storage import files as storage
from featurestore_connectors.spark_delta.failures import translated
from featurestore_connectors.spark_delta.relations import cast_to, column, quoted, relation
from featurestore_connectors.spark_delta.types import spark_schema

_NANOSECONDS = "spark.sql.legacy.parquet.nanosAsLong"


def read_files(session: Any, paths: Sequence[str], *, schema: pa.Schema | None) -> Relation:
    """Return the rows of Parquet files and folders, columns matched by name.

    Raises:
        StorageError: A path does not exist.
        ConfigurationError: Files keep nanoseconds, and the session does not read them.
    """
    for path in paths:
        if not storage.exists(path):
            raise StorageError(
                f"{path} does not exist.", hint="give Parquet files or folders that hold some"
            )
    fine = _nanosecond_columns(paths)
    if fine and session.conf.get(_NANOSECONDS, "false") != "true":
        raise ConfigurationError(
            f"{paths[0]} keeps times in nanoseconds (as pandas writes them), which this Spark session refuses.",
            hint=f'spark.conf.set("{_NANOSECONDS}", "true")',
        )
    deep = any(_has_plain_folders(path) for path in paths)
    with translated():
        reader = session.read.option("mergeSchema", "true").option(
            "recursiveFileLookup", str(deep).lower()
        )
        frame = reader.parquet(*paths)
    for name in fine:
        frame = frame.withColumn(name, _whole_microseconds(name))
    if schema is None:
        return relation(frame)
    return relation(cast_to(frame, spark_schema(schema)), schema)


def _whole_microseconds(name: str) -> Any:
    from pyspark.sql import functions as sf

    text = f"Column {name} has times finer than a microsecond; round them first"
    given = column(name)
    whole = sf.timestamp_micros(sf.expr(f"{quoted(name)} div 1000"))
    return sf.when(given % 1000 == 0, whole).when(given.isNotNull(), sf.raise_error(text))


def _nanosecond_columns(paths: Sequence[str]) -> list[str]:
    """Return the columns of nanoseconds in the first file; Spark reads them as plain integers or not at all."""
    first = next((file for path in paths for file in _files(path)), None)
    if first is None:
        return []
    try:
        metadata = parquet.read_metadata(first)
    except (OSError, pa.ArrowInvalid) as error:
        raise TableDamaged(f"The file {first!r} is no readable Parquet file: {error}") from error
    # Spark's own older kind of times has 96 bits, which Arrow calls nanoseconds, too.
    stored = (metadata.schema.column(number) for number in range(metadata.num_columns))
    old = {each.path for each in stored if each.physical_type == "INT96"}
    found = metadata.schema.to_arrow_schema()
    fine = [each.name for each in found if pat.is_timestamp(each.type) and each.type.unit == "ns"]
    return [name for name in fine if name not in old]


def _files(path: str) -> Iterator[str]:
    if storage.is_file(path):
        yield path
        return
    for file in storage.walk(path, enter=_is_visible):
        if _is_visible(os.path.basename(file)) and file.endswith(".parquet"):
            yield file


def _has_plain_folders(path: str) -> bool:
    """Tell whether files lie in folders below ``path`` that are no partitions (``column=value``)."""
    if storage.is_file(path):
        return False
    for file in _files(path):
        folders = os.path.relpath(os.path.dirname(file), path).split(os.sep)
        if any("=" not in folder for folder in folders if folder != os.curdir):
            return True
    return False


def _is_visible(name: str) -> bool:
    return "=" in name or not name.startswith(("_", "."))
