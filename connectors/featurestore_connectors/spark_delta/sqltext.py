"""Spark SQL: quoted identifiers, expressions, parameters, casts, types and schemas.

User strings are only passed as bound parameters. Spark uses the storage types of
``featurestore.arrow.types``: no unsigned integers, no fixed-size lists. ``to_features`` and
``to_storage`` run on the executors.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow import types
from featurestore.arrow.casts import cast_batch
from featurestore.arrow.spark_frames import utc_argument
from featurestore.arrow.types import TIMESTAMP
from featurestore.arrow.untyped import untyped_columns
from featurestore.errors import UnsupportedType, listing
from featurestore.model.arguments import warn_caller
from featurestore.model.times import NaiveTimeWarning, to_micros
from featurestore.plugins.engine import TimeRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_QUOTED_OR_PARAMETER = re.compile(
    r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|\$(?P<name>[A-Za-z_]\w*)"
)


def quote(name: str) -> str:
    """Quote an identifier.

    >>> quote("a`b")
    '`a``b`'
    """
    return "`" + name.replace("`", "``") + "`"


def column(name: str) -> Column:
    """Return a column by its exact name, which may contain dots and backticks."""
    from pyspark.sql import functions as sf

    return sf.col(quote(name))


def timestamp(time: datetime) -> Column:
    """Return a timezone-aware datetime as a constant column.

    This avoids java.sql, which uses another calendar for old dates.
    """
    from pyspark.sql import functions as sf

    return sf.timestamp_micros(sf.lit(to_micros(time)))


def range_condition(window: TimeRange) -> str:
    """Return the SQL condition that a time is in a range.

    >>> from datetime import UTC
    >>> start, end = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC)
    >>> for half in range_condition(TimeRange("t", start, end)).split(" AND "):
    ...     print(half)
    `t` >= TIMESTAMP '2024-01-01T00:00:00.000000+00:00'
    `t` < TIMESTAMP '2024-01-02T00:00:00.000000+00:00'
    """
    time = quote(window.column)
    start = f"TIMESTAMP '{window.start.isoformat(timespec='microseconds')}'"
    end = f"TIMESTAMP '{window.end.isoformat(timespec='microseconds')}'"
    if window.closed == "left":
        return f"{time} >= {start} AND {time} < {end}"
    return f"{time} > {start} AND {time} <= {end}"


def convert_parameters(query: str) -> str:
    """Convert the ``$name`` parameters of a query to Spark's syntax ``:name``.

    >>> convert_parameters("select '$a' where t < $end")
    "select '$a' where t < :end"
    """

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return match[0]  # a text in quotes
        return f":{name}"

    return _QUOTED_OR_PARAMETER.sub(replace, query)


def label_key(name: str, label_type: pa.DataType, key_type: pa.DataType) -> Column:
    """Cast a label key to the type of a group's key; null (no match) if out of range.

    ``name`` is the label column. The types are feature types.
    """
    from pyspark.sql import functions as F

    if label_type == key_type:
        return column(name)
    type_name = _type_name(key_type)
    if pat.is_null(label_type):
        return F.lit(None).cast(type_name)
    # try_cast returns null for values out of range, where cast would fail the query.
    cast = f"try_cast({quote(name)} AS {type_name})"
    if types.decimal_places(label_type) <= types.decimal_places(key_type):
        return F.expr(cast)
    # The cast rounds, so the result is compared with the original value.
    round_trip = f"try_cast({cast} AS {_type_name(label_type)})"
    return F.expr(f"CASE WHEN {round_trip} = {quote(name)} THEN {cast} END")


def _type_name(dtype: pa.DataType) -> str:
    """Return the Spark SQL of a feature type."""
    return type_sql(spark_schema(pa.schema([pa.field("key", dtype)])).fields[0].dataType)


def type_sql(data_type: DataType) -> str:
    """Return the SQL of a Spark type, with quoted field names.

    ``simpleString`` does not quote them, so a field name would be parsed as SQL.

    >>> from pyspark.sql.types import IntegerType, StructType
    >>> type_sql(StructType().add("a>", IntegerType()))
    'struct<`a>`:int>'
    """
    from pyspark.sql import types as spark

    if isinstance(data_type, spark.StructType):
        fields = [f"{quote(field.name)}:{type_sql(field.dataType)}" for field in data_type]
        return f"struct<{','.join(fields)}>"
    if isinstance(data_type, spark.ArrayType):
        return f"array<{type_sql(data_type.elementType)}>"
    return str(data_type.simpleString())


def spark_schema(features: pa.Schema) -> StructType:
    """Return the Spark schema (StructType) of a schema of feature types."""
    from pyspark.sql.types import StructType

    schema = StructType()
    for field in features:
        schema.add(field.name, _spark_type(types.storage_type(field.type)), True)
    return schema


def _spark_type(dtype: pa.DataType) -> DataType:
    """Return the Spark type of a storage type."""
    from pyspark.sql import types as spark

    if pat.is_list(dtype):
        return spark.ArrayType(_spark_type(dtype.value_type), True)
    if pat.is_struct(dtype):
        struct = spark.StructType()
        for index in range(dtype.num_fields):
            field = dtype.field(index)
            struct.add(field.name, _spark_type(field.type), True)
        return struct
    if pat.is_decimal(dtype):
        return spark.DecimalType(dtype.precision, dtype.scale)
    primitive_types = {
        pa.bool_(): spark.BooleanType,
        pa.int8(): spark.ByteType,
        pa.int16(): spark.ShortType,
        pa.int32(): spark.IntegerType,
        pa.int64(): spark.LongType,
        pa.float32(): spark.FloatType,
        pa.float64(): spark.DoubleType,
        pa.string(): spark.StringType,
        pa.binary(): spark.BinaryType,
        pa.date32(): spark.DateType,
        TIMESTAMP: spark.TimestampType,
    }
    if dtype not in primitive_types:
        raise UnsupportedType(
            f"Spark does not support the type {dtype}.", hint="convert the column before writing"
        )
    return primitive_types[dtype]()


def cast_to_features(frame: DataFrame) -> tuple[DataFrame, pa.Schema]:
    """Return a DataFrame cast to supported column types, and its schema in feature types.

    Naive times are interpreted as UTC.

    Raises:
        UnsupportedType: Columns cannot be stored. The message includes all such columns.
    """
    arrow_schema = _arrow_schema(frame)
    schema = types.feature_schema(arrow_schema)
    naive_columns = [field.name for field in arrow_schema if _has_naive_times(field.type)]
    if naive_columns:
        warn_caller(
            f"the times of {listing(naive_columns)} have no time zone and are interpreted as UTC",
            NaiveTimeWarning,
        )
    if naive_columns or untyped_columns(schema):
        casts = [
            column(field.name).cast(field.dataType).alias(field.name)
            for field in spark_schema(schema).fields
        ]
        frame = frame.select(*casts)
    return frame, schema


def _arrow_schema(frame: DataFrame) -> pa.Schema:
    """Return the Arrow schema of a DataFrame."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    fields, unsupported = [], []
    # Arrow has no non-nullable null type, as in the items of an empty array().
    for field in frame.schema.toNullable().fields:
        try:
            if "variant" in field.dataType.simpleString():  # would pass for a struct of bytes
                raise UnsupportedType("variant")
            dtype = to_arrow_type(field.dataType, **utc_argument(to_arrow_type))
            fields.append(pa.field(field.name, dtype, nullable=True))
        except (PySparkException, UnsupportedType):
            unsupported.append(f"{field.name}: {field.dataType.simpleString()}")
    if unsupported:
        raise UnsupportedType(
            f"These columns have types that cannot be stored: {'; '.join(unsupported)}.",
            hint="convert or drop them before writing",
        )
    return pa.schema(fields)


def _has_naive_times(dtype: pa.DataType) -> bool:
    if pat.is_timestamp(dtype):
        return dtype.tz is None
    return types.is_nested(dtype) and any(
        _has_naive_times(dtype.field(index).type) for index in range(dtype.num_fields)
    )


def rename_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rename the columns of a batch to the names in ``schema``, by position."""
    if batch.schema.names == schema.names:
        return batch
    return pa.RecordBatch.from_arrays(batch.columns, names=schema.names)


def to_features(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a batch of storage types to the feature types of ``schema``."""
    return cast_batch(batch, schema)


def to_storage(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert a batch of feature types to storage types."""
    return cast_batch(batch, types.storage_schema(batch.schema))
