"""Row hashes that SQL functions compute and count, without transferring rows to Python.

``jvm/StoreExtensions.java`` registers the functions, in the jar of the log store. Python hashes the
rows if the executors do not have the jar, or if a type is not supported.
"""

from __future__ import annotations

import json
import math
import struct
from base64 import b64decode
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.spark_frames import is_connect_object
from featurestore.hashing import value_kind
from featurestore.plugins.engine import HashCounts, Relation
from featurestore.plugins.format import ColumnProfile
from featurestore_connectors.spark_delta.jars import JVM_JAR, has_class
from featurestore_connectors.spark_delta.relations import relation
from featurestore_connectors.spark_delta.session import STORE_EXTENSION
from featurestore_connectors.spark_delta.sqltext import column

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

_BITS = 16


def with_row_hash(
    source: Relation, columns: Sequence[str], *, seed: int, name: str
) -> Relation | None:
    """Return the rows with a row hash column, or None if Python must hash them."""
    from pyspark.sql import functions as sf

    session = source.native.sparkSession
    fields = list(map(source.schema.field, columns))
    all_supported = all(value_kind(field.type) is not None for field in fields)
    if not all_supported or not has_functions(session):
        return None
    # Spark has no unsigned integers. The signed number sorts like the unsigned hash.
    signed_seed = (seed + 2**63) % 2**64 - 2**63
    value = sf.call_function("featurestore_row_hash", sf.lit(signed_seed), *map(column, columns))
    return _with_column(source, name, value, pa.int64())


def with_tie_hash(source: Relation, *, name: str) -> Relation | None:
    """Return the rows with a tie hash column (int64), or None if Python must hash them."""
    from pyspark.sql import functions as sf

    session = source.native.sparkSession
    all_supported = all(value_kind(dtype) is not None for dtype in source.schema.types)
    if not all_supported or not has_functions(session):
        return None
    pairs = [part for key in source.schema.names for part in (sf.lit(key), column(key))]
    value = sf.call_function("featurestore_tie_hash", *pairs)
    return _with_column(source, name, value, pa.int64())


def with_range_number(
    source: Relation, values: str, *, starts: Sequence[int], numbers: Sequence[int], name: str
) -> Relation:
    """Return the rows with the range number of an int64 column."""
    from pyspark.sql import functions as sf

    number = sf.call_function(
        "featurestore_range_number",
        column(values),
        sf.lit(struct.pack(f">{len(starts)}q", *starts)),
        sf.lit(struct.pack(f">{len(numbers)}i", *numbers)),
    )
    return _with_column(source, name, number, pa.int32())


def count_hashes(
    source: Relation, *, hashes: str, group: str, columns: Sequence[str]
) -> HashCounts | None:
    """Count hashes by group and leading bits in one job; return None for unsupported types.

    Only the bins of each group are collected to the driver.
    """
    from pyspark.sql import functions as sf

    schema = source.schema
    for name in columns:
        dtype = schema.field(name).type
        if value_kind(dtype) is None and not pat.is_decimal(dtype):
            return None
    arguments = [sf.lit(_BITS), *map(column, [hashes, group, *columns])]
    doubles = {name: column(name) for name in columns if pat.is_float64(schema.field(name).type)}
    # NaN is greater than infinity in Spark, so numbers that are not finite have no magnitude.
    largest = [
        sf.max_by(number, sf.when(sf.abs(number) < math.inf, sf.abs(number)))
        for number in doubles.values()
    ]
    counts = source.native.agg(sf.call_function("featurestore_count_rows", *arguments), *largest)
    json_text, *largest_numbers = counts.collect()[0]
    counts_json = json.loads(json_text)
    largest_by_column = dict(zip(doubles, largest_numbers, strict=True))
    histograms, sums = {}, {}
    for number, bin_counts in counts_json["groups"].items():
        # Java writes big-endian numbers.
        bins = np.frombuffer(b64decode(bin_counts["bins"]), ">i8")
        histograms[int(number)] = bins.astype(np.int64)
        # Java's sum overflows like the unsigned sum modulo 2**64, but with a sign.
        sums[int(number)] = bin_counts["sum"] % 2**64
    profiles = [
        _profile(
            schema.field(name),
            measured,
            rows=counts_json["rows"],
            largest=largest_by_column.get(name),
        )
        for name, measured in zip(columns, counts_json["columns"], strict=True)
    ]
    return HashCounts(_BITS, histograms, sums, tuple(profiles))


def hashes_of_groups(
    source: Relation, *, hashes: str, group: str, bits: int
) -> dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Return the sorted leading bits of each group's hashes, with their row counts."""
    from pyspark.sql import functions as sf

    leading = column(hashes).bitwiseAND(sf.lit(-1 << (64 - bits)))
    groups_of_hashes = source.native.groupBy(column(group).alias("group"), leading.alias("hash"))
    table = groups_of_hashes.agg(sf.count(sf.lit(1)).alias("rows")).toArrow().sort_by("hash")
    groups, group_hashes, rows = (table[name].to_numpy() for name in ("group", "hash", "rows"))
    return {
        number: (group_hashes[groups == number], rows[groups == number])
        for number in np.unique(groups).tolist()
    }


# -- hashes -------------------------------------------------------------------------------


def has_functions(session: SparkSession) -> bool:
    """Return whether the session has the SQL functions, and the executors have their jar.

    A session that the user built without the setting ``spark.sql.extensions`` gets the functions
    here, if the jar is among its initial jars.
    """
    if is_connect_object(session):
        return True  # checked when the engine takes the session
    jars = session.conf.get("spark.jars", "")
    if JVM_JAR.name not in jars or not has_class(session, STORE_EXTENSION):
        return False
    session._jvm.featurestore.spark.StoreExtensions.register(session._jsparkSession)
    return True


def _with_column(source: Relation, name: str, value: Column, dtype: pa.DataType) -> Relation:
    native = source.native.select(*map(column, source.schema.names), value.alias(name))
    return relation(native, source.schema.append(pa.field(name, dtype)))


def _profile(
    field: pa.Field, measured: dict[str, int], *, rows: int, largest: float | None
) -> ColumnProfile:
    """Return the profile of a column; booleans have no extremes."""
    minimum, maximum = measured.get("minimum"), measured.get("maximum")
    if pat.is_boolean(field.type):
        minimum, maximum = None, None
    return ColumnProfile(
        field.name,
        rows,
        rows - measured["values"],
        minimum=minimum,
        maximum=maximum,
        longest=measured["longest"],
        total_length=measured["total"],
        largest=largest,
    )
