"""Casts of label keys to the types of group keys."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.types import decimal_places
from featurestore_connectors.spark_delta.sqltext import column, quote
from featurestore_connectors.spark_delta.types import spark_schema


def label_key(name: str, label_type: pa.DataType, key_type: pa.DataType) -> Any:
    """Return a label's key cast to the type of a group's key; null (no match) if out of range.

    ``name`` is the column of the labels; the types are feature types.
    """
    from pyspark.sql import functions as F

    if label_type == key_type:
        return column(name)
    kind = _name_of(key_type)
    if pat.is_null(label_type):
        return F.lit(None).cast(kind)
    cast = f"try_cast({quote(name)} AS {kind})"
    if decimal_places(label_type) <= decimal_places(key_type):
        return F.expr(cast)
    # The cast rounds, so compare the result with the original value.
    round_trip = f"try_cast({cast} AS {_name_of(label_type)})"
    return F.expr(f"CASE WHEN {round_trip} = {quote(name)} THEN {cast} END")


def _name_of(kind: pa.DataType) -> str:
    """Return the name of the Spark type of a feature type."""
    return str(spark_schema(pa.schema([pa.field("key", kind)])).fields[0].dataType.simpleString())
