"""Row hashes by functions of the JVM: rows need not leave it to be hashed and counted.

The functions (``logstore/RowHash.java``) come with the jar of the log store. A session that has not
brought the jar to its executors, and types that they do not know, are left to Python.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.hashing import row_hash_start, value_kind
from featurestore.plugins.engine import Relation
from featurestore.plugins.format import ColumnProfile
from featurestore.plugins.row_hashes import HashCounts
from featurestore_connectors.spark_delta.failures import translated
from featurestore_connectors.spark_delta.relations import relation
from featurestore_connectors.spark_delta.session import LOG_STORE_JAR, has_class
from featurestore_connectors.spark_delta.sqltext import column

_CLASS = "featurestore.hashing.RowHash"
_SIGN = -(2**63)
_BITS = 12
# Spark compiles no plan of more than a hundred columns.
_MOST_AGGREGATES = 80
_LOW, _HIGH_BITS = 0xFFFFFFFF, 32


def with_row_hash(
    given: Relation, columns: Sequence[str], *, seed: int, name: str
) -> Relation | None:
    """Return the rows with their row hash; None where Python has to hash them."""
    from pyspark.sql import functions as sf

    session = given.native.sparkSession
    fields = [given.schema.field(each) for each in columns]
    known = all(value_kind(field.type) is not None for field in fields)
    if not known or not _has_functions(session):
        return None
    functions = session._jvm.featurestore.hashing.RowHash
    state = sf.lit(_signed(row_hash_start(seed)))
    for field in fields:
        function, value = _value(functions, field)
        state = _call(session, function, state, value)
    return _with_column(given, name, state.bitwiseXOR(sf.lit(_SIGN)), pa.int64())


def with_range_number(
    given: Relation, of: str, *, starts: Sequence[int], numbers: Sequence[int], name: str
) -> Relation:
    """Return the rows with the number of the range in which an int64 column lies."""
    session = given.native.sparkSession
    packed_starts = struct.pack(f">{len(starts)}q", *starts)
    packed_numbers = struct.pack(f">{len(numbers)}i", *numbers)
    ranges = session._jvm.featurestore.hashing.RowHash.ranges(packed_starts, packed_numbers)
    number = _call(session, ranges, column(of))
    return _with_column(given, name, number, pa.int32())


def count_hashes(
    given: Relation, *, hashes: str, group: str, columns: Sequence[str]
) -> HashCounts | None:
    """Return counts by group and leading bits in one job; None where a column has to be looked into.

    The bins of a group come to the driver, and nothing of the rows.
    """
    from pyspark.sql import functions as sf

    profiled = []
    for index, name in enumerate(columns):
        measures = _measures(given.schema.field(name), index)
        if measures is None:
            return None
        profiled.extend(measures)
    if len(profiled) > _MOST_AGGREGATES:
        return None
    hashed = column(hashes)
    unsigned = hashed.bitwiseXOR(sf.lit(_SIGN))
    number = sf.shiftrightunsigned(unsigned, 64 - _BITS).cast("int")
    counts = given.native.groupBy(column(group).alias("group"), number.alias("bin")).agg(
        sf.count(sf.lit(1)).alias("rows"),
        sf.sum(unsigned.bitwiseAND(sf.lit(_LOW))).alias("low"),
        sf.sum(sf.shiftrightunsigned(unsigned, _HIGH_BITS)).alias("high"),
        *profiled,
    )
    with translated():
        table = counts.toArrow()
    histograms, sums = _by_group(table)
    rows = int(np.sum(_integers(table, "rows")))
    profiles = []
    for index, name in enumerate(columns):
        profiles.append(_profile(table, index, name, rows=rows))
    return HashCounts(_BITS, histograms, sums, tuple(profiles))


def _by_group(table: pa.Table) -> tuple[dict[int, npt.NDArray[np.int64]], dict[int, int]]:
    """Return the bins of each group, and the sum of its hashes modulo 2**64."""
    groups, bins, rows = (_integers(table, name) for name in ("group", "bin", "rows"))
    low, high = _integers(table, "low"), _integers(table, "high")
    histograms, sums = {}, {}
    for group in np.unique(groups).tolist():
        mine = groups == group
        histogram = np.zeros(1 << _BITS, dtype=np.int64)
        histogram[bins[mine]] = rows[mine]
        histograms[group] = histogram
        total = sum(low[mine].tolist()) + (sum(high[mine].tolist()) << _HIGH_BITS)
        sums[group] = total % 2**64
    return histograms, sums


def _integers(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = table.column(name).to_numpy().astype(np.int64)
    return numbers


# -- hashes -------------------------------------------------------------------------------


def _value(functions: Any, field: pa.Field) -> tuple[Any, Any]:
    """Return the function that folds the values of a column, and what it is given of them."""
    from pyspark.sql import functions as sf

    value, kind = column(field.name), field.type
    number = value_kind(kind)
    if pat.is_floating(kind):
        return functions.doubles(number), value.cast("double")
    if pat.is_string(kind):
        return functions.bytes(number), value.cast("binary")
    if pat.is_binary(kind):
        return functions.bytes(number), value
    if pat.is_date32(kind):
        value = sf.unix_date(value)
    elif pat.is_timestamp(kind):
        value = sf.unix_micros(value)
    return functions.words(number), value.cast("bigint")


def _has_functions(session: Any) -> bool:
    """Tell whether driver and executors have the jar: they have those that a session began with."""
    brought = session.sparkContext.getConf().get("spark.jars", "")
    return LOG_STORE_JAR.name in brought and has_class(session, _CLASS)


def _call(session: Any, function: Any, *arguments: Any) -> Any:
    """Return a call of a Java function as a column."""
    from pyspark.sql.classic.column import Column

    given = session._jvm.PythonUtils.toSeq([argument._jc for argument in arguments])
    return Column(function.apply(given))


def _with_column(given: Relation, name: str, value: Any, kind: pa.DataType) -> Relation:
    native = given.native.select(*map(column, given.schema.names), value.alias(name))
    return relation(native, given.schema.append(pa.field(name, kind)))


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


# -- profiles -----------------------------------------------------------------------------


def _measures(field: pa.Field, index: int) -> list[Any] | None:
    """Return what is counted of a column; None where its type is looked into by Python."""
    from pyspark.sql import functions as sf

    value, kind = column(field.name), field.type
    if value_kind(kind) is None and not pat.is_decimal(kind):
        return None
    found = [sf.count(value).alias(f"values_{index}")]
    if pat.is_string(kind) or pat.is_binary(kind):
        length = sf.octet_length(value)
        found.append(sf.max(length).alias(f"longest_{index}"))
        found.append(sf.sum(length).alias(f"total_{index}"))
    elif pat.is_integer(kind) or pat.is_date32(kind) or pat.is_timestamp(kind):
        number = value
        if pat.is_date32(kind):
            number = sf.unix_date(value)
        elif pat.is_timestamp(kind):
            number = sf.unix_micros(value)
        found.append(sf.min(number).alias(f"minimum_{index}"))
        found.append(sf.max(number).alias(f"maximum_{index}"))
    return found


def _profile(table: pa.Table, index: int, name: str, *, rows: int) -> ColumnProfile:
    """Return the profile of a column from those of all bins."""
    import pyarrow.compute as pc

    def overall(measure: str, function: Any) -> Any:
        if f"{measure}_{index}" not in table.schema.names:
            return None
        return function(table.column(f"{measure}_{index}")).as_py()

    return ColumnProfile(
        name,
        rows,
        rows - (overall("values", pc.sum) or 0),
        minimum=overall("minimum", pc.min),
        maximum=overall("maximum", pc.max),
        longest=overall("longest", pc.max) or 0,
        total_length=overall("total", pc.sum) or 0,
    )
