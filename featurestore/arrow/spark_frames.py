"""Casts of Spark DataFrames, on the Arrow batches of each partition.

This module imports no pyspark: a process with a DataFrame has imported it.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from featurestore.arrow.casts import cast_array
from featurestore.arrow.conversions import Target, cast_values
from featurestore.arrow.spark_connect import utc_argument
from featurestore.arrow.types import storage_type


@dataclass(frozen=True)
class _CastBatches:
    """The task of a partition. Spark pickles it by name, so executors need this package."""

    targets: tuple[tuple[int, str, Target], ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with cast columns, in storage types."""
        row = 0
        for batch in batches:
            columns = list(batch.columns)
            for index, name, target in self.targets:
                values = cast_values(columns[index], target, name=name, rows_before=row)
                columns[index] = cast_array(values, storage_type(target.dtype))
            row += batch.num_rows
            yield pa.RecordBatch.from_arrays(columns, batch.schema.names)


def cast_frame(frame: Any, targets: Mapping[str, Target]) -> Any:
    """Return a Spark DataFrame with cast columns; a value without an equal fails when it is read."""
    sql_types = importlib.import_module("pyspark.sql.types")
    types = importlib.import_module("pyspark.sql.pandas.types")
    frame = with_arrow_types(frame, targets)
    names = frame.columns
    fields = []
    for field in frame.schema.toNullable().fields:
        if field.name in targets:
            dtype = types.from_arrow_type(storage_type(targets[field.name].dtype))
            field = sql_types.StructField(field.name, dtype)
        fields.append(field)
    task = _CastBatches(
        tuple((names.index(name), name, target) for name, target in targets.items())
    )
    # Spark parses names as SQL, so the columns have numbers in the task.
    numbered = frame.toDF(*map(str, range(len(names))))
    numbered_fields = [
        sql_types.StructField(str(number), field.dataType) for number, field in enumerate(fields)
    ]
    return numbered.mapInArrow(task, sql_types.StructType(numbered_fields)).toDF(*names)


def with_arrow_types(frame: Any, names: Collection[str]) -> Any:
    """Return a DataFrame in which the named columns without an Arrow type are strings."""
    functions = importlib.import_module("pyspark.sql.functions")
    types = importlib.import_module("pyspark.sql.pandas.types")
    columns, is_changed = [], False
    for field in frame.schema.fields:
        column = functions.col(f"`{field.name.replace('`', '``')}`")
        if field.name in names and not _has_arrow_type(field.dataType, types):
            column, is_changed = column.cast("string").alias(field.name), True
        columns.append(column)
    return frame.select(*columns) if is_changed else frame


def _has_arrow_type(data_type: Any, types: Any) -> bool:
    if "variant" in data_type.simpleString():  # would pass for a struct of bytes
        return False
    try:
        types.to_arrow_type(data_type, **utc_argument(types.to_arrow_type))
    except Exception as error:  # the class depends on the release of Spark
        if "UNSUPPORTED" in str(error) or isinstance(error, TypeError):
            return False
        raise
    return True
