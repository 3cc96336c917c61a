"""Spark DataFrames: casts on the Arrow batches of each partition, and frames of Spark Connect.

A Spark Connect session has its Spark in another process, and rows cross the connection as Arrow
batches. This module imports no pyspark: a process with such a DataFrame has imported it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import pyarrow as pa

from featurestore.arrow.arrays import is_list_of_numbers
from featurestore.arrow.casts import cast_array, cast_batch
from featurestore.arrow.cell_casts import Target
from featurestore.arrow.conversions import cast_values
from featurestore.arrow.types import shaped_type, storage_schema, storage_type


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


_PACKAGE = "pyspark.sql.connect."
_SESSIONS = "pyspark.sql.connect.session"


def is_connect_object(candidate: object) -> bool:
    """Return whether a value is a DataFrame or a session of Spark Connect.

    >>> is_connect_object([1])
    False
    """
    return type(candidate).__module__.startswith(_PACKAGE)


def find_connect_session() -> Any:
    """Return the active Spark Connect session of this thread or process, or None."""
    sessions = getattr(sys.modules.get(_SESSIONS), "SparkSession", None)
    if sessions is None:
        return None
    # The session is active in the thread that created it, and the default in other threads.
    return sessions.getActiveSession() or sessions._get_default_session()


def open_frame(frame: Any) -> pa.RecordBatchReader:
    """Return the rows of a Spark Connect DataFrame as a stream.

    The server sends batches as the stream is read. A frame with lists of numbers is first
    aggregated on the server, since the types of Spark have no list lengths.
    """
    types = importlib.import_module("pyspark.sql.pandas.types")
    schema = types.to_arrow_schema(frame.schema, **utc_argument(types.to_arrow_schema))
    shaped_schema = _add_shapes(frame, schema)

    def read_batches() -> Iterator[pa.RecordBatch]:
        client, plan = frame._session.client, frame._plan
        for response in client.to_table_as_iterator(plan.to_proto(client), plan.observations):
            if not isinstance(response, pa.Table):
                continue  # the schema in Spark's types
            for batch in response.cast(schema).to_batches():
                yield cast_batch(batch, shaped_schema)

    return pa.RecordBatchReader.from_batches(shaped_schema, read_batches())


def utc_argument(function: Callable[..., Any]) -> dict[str, str]:
    """Return the time zone argument of a type conversion of pyspark, which Spark 4.2 requires."""
    return {"timezone": "UTC"} if "timezone" in signature(function).parameters else {}


def create_frame(session: Any, rows: pa.Table) -> Any:
    """Return a DataFrame of a Spark Connect session with the rows of a table.

    Types that Spark lacks become wider types, as in a Delta table.
    """
    storage = storage_schema(rows.schema).remove_metadata()
    plain = pa.schema([field.remove_metadata() for field in storage])
    batches = [cast_batch(batch, plain) for batch in rows.to_batches()]
    return session.createDataFrame(pa.Table.from_batches(batches, plain))


def _add_shapes(frame: Any, schema: pa.Schema) -> pa.Schema:
    """Return a schema in which lists of numbers of equal lengths have fixed-size types."""
    lists = [field for field in schema if is_list_of_numbers(field.type)]
    if not lists:
        return schema
    expressions: list[str] = []
    for field in lists:
        expressions.extend(_length_expressions(field))
    lengths = iter(frame.selectExpr(*expressions).collect()[0])
    for field in lists:
        list_type, shape = field.type, list[int]()
        while pa.types.is_list(list_type):
            shortest, longest, has_null = next(lengths), next(lengths), next(lengths)
            shape.append(longest if shortest == longest and not has_null else 0)
            list_type = list_type.value_type
        if all(shape):
            index = schema.get_field_index(field.name)
            schema = schema.set(index, field.with_type(shaped_type(list_type, shape)))
    return schema


def _length_expressions(field: pa.Field) -> Iterator[str]:
    """Yield the smallest and largest length, and whether items are null, at each depth of lists."""
    lists = f"`{field.name.replace('`', '``')}`"
    sizes, list_type = f"array(array_size({lists}))", field.type
    while pa.types.is_list(list_type):
        yield f"min(array_min({sizes}))"
        yield f"max(array_max({sizes}))"
        yield f"bool_or(exists({lists}, number -> number IS NULL))"
        sizes = f"transform({lists}, row -> array_size(row))"
        list_type = list_type.value_type
        lists = f"flatten({lists})"
