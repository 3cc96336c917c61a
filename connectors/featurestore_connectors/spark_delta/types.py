"""Column types of Spark beside Arrow's.

What holds a feature type, and what a DataFrame's types mean.

Spark holds the storage types of ``featurestore.arrow.types``: no unsigned integers, no fixed-size
lists. ``to_features`` and ``to_storage`` run where the rows are.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.arrow_cast import cast_batch
from featurestore.arrow.types import (
    TIMESTAMP,
    feature_schema,
    is_nested,
    storage_schema,
    storage_type,
)
from featurestore.arrow.untyped import untyped_columns
from featurestore.errors import UnsupportedType, listing
from featurestore.model.callers import warn_caller
from featurestore.model.times import NaiveTimeWarning
from featurestore_connectors.spark_delta.sqltext import column


def spark_schema(features: pa.Schema) -> Any:
    """Return the Spark schema (StructType) that holds a schema of feature types."""
    from pyspark.sql.types import StructType

    schema = StructType()
    for field in features:
        schema.add(field.name, _spark_type(storage_type(field.type)), True)
    return schema


def of_feature_types(frame: Any) -> tuple[Any, pa.Schema]:
    """Return a DataFrame whose columns hold feature types, and these.

    Times without zone are taken as UTC.

    Raises:
        UnsupportedType: Lists every column that cannot be stored.
    """
    given = _arrow_schema(frame)
    schema = feature_schema(given, language="pyspark")
    naive = [field.name for field in given if _has_naive(field.type)]
    if naive:
        warn_caller(
            f"the times of {listing(naive)} have no time zone and are taken as UTC",
            NaiveTimeWarning,
        )
    if naive or untyped_columns(schema):
        held = []
        for field in spark_schema(schema).fields:
            held.append(column(field.name).cast(field.dataType).alias(field.name))
        frame = frame.select(*held)
    return frame, schema


def to_features(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of storage types as the feature types of ``schema``."""
    return cast_batch(batch, schema)


def named(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch whose columns are those of ``schema`` by position, under their names."""
    if batch.schema.names == schema.names:
        return batch
    return pa.RecordBatch.from_arrays(batch.columns, names=schema.names)


def to_storage(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of feature types as storage types."""
    return cast_batch(batch, storage_schema(batch.schema))


def _arrow_schema(frame: Any) -> pa.Schema:
    """Return the Arrow types of a DataFrame as it is."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    fields, refused = [], []
    # Arrow has no column of nulls alone that may hold none, as the items of an empty array().
    for field in frame.schema.toNullable().fields:
        try:
            if "variant" in field.dataType.simpleString():  # would pass for a struct of bytes
                raise UnsupportedType("variant")
            fields.append(pa.field(field.name, to_arrow_type(field.dataType), nullable=True))
        except (PySparkException, UnsupportedType):
            refused.append(f"{field.name}: {field.dataType.simpleString()}")
    if refused:
        raise UnsupportedType(
            f"These columns have types that a feature group cannot hold: {'; '.join(refused)}.",
            hint="convert or drop them before writing",
        )
    return pa.schema(fields)


def _has_naive(kind: pa.DataType) -> bool:
    if pat.is_timestamp(kind):
        return kind.tz is None
    return is_nested(kind) and any(
        _has_naive(kind.field(index).type) for index in range(kind.num_fields)
    )


def _spark_type(stored: pa.DataType) -> Any:
    from pyspark.sql import types as spark

    if pat.is_list(stored):
        return spark.ArrayType(_spark_type(stored.value_type), True)
    if pat.is_struct(stored):
        struct = spark.StructType()
        for index in range(stored.num_fields):
            field = stored.field(index)
            struct.add(field.name, _spark_type(field.type), True)
        return struct
    if pat.is_decimal(stored):
        return spark.DecimalType(stored.precision, stored.scale)
    plain = {
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
    if stored not in plain:
        raise UnsupportedType(
            f"Spark cannot hold {stored}.", hint="convert the column before writing"
        )
    return plain[stored]()
