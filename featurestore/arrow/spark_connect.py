"""DataFrames of Spark Connect sessions, whose Spark runs in another process.

Rows cross the connection as Arrow batches. This module imports no pyspark: a process with such a
DataFrame has imported it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

import pyarrow as pa

from featurestore.arrow.arrays import is_list_of_numbers
from featurestore.arrow.casts import cast_batch
from featurestore.arrow.types import shaped_type, storage_schema

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
