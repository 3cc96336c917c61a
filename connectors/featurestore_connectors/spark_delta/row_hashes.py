"""Row hashes that JVM functions compute and count, without transferring rows to Python.

The functions (``jvm/RowHash.java``) are in the jar of the log store. Python hashes the rows if the
executors do not have the jar, or if a type is not supported.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.hashing import row_hash_start, tie_hash_salt, value_kind
from featurestore.plugins.engine import Relation
from featurestore.plugins.format import ColumnProfile
from featurestore.plugins.native import HashCounts
from featurestore_connectors.spark_delta.failures import translate_errors
from featurestore_connectors.spark_delta.jars import JVM_JAR, has_class
from featurestore_connectors.spark_delta.relations import relation
from featurestore_connectors.spark_delta.sqltext import column

_CLASS = "featurestore.hashing.RowHash"
_SIGN = -(2**63)
_BITS = 16


def with_row_hash(
    source: Relation, columns: Sequence[str], *, seed: int, name: str
) -> Relation | None:
    """Return the rows with a row hash column, or None if Python must hash them."""
    from pyspark.sql import functions as sf

    session = source.native.sparkSession
    fields = [source.schema.field(each) for each in columns]
    all_supported = all(value_kind(field.type) is not None for field in fields)
    if not all_supported or not has_functions(session):
        return None
    functions = session._jvm.featurestore.hashing.RowHash
    state = sf.lit(_signed(row_hash_start(seed)))
    for field in fields:
        function, value = _hash_function(functions, field)
        state = _java_call(session, function, state, value)
    # Spark has no unsigned integers. With its sign bit flipped, a signed integer sorts like the
    # unsigned hash.
    return _with_column(source, name, state.bitwiseXOR(sf.lit(_SIGN)), pa.int64())


def with_tie_hash(source: Relation, *, name: str) -> Relation | None:
    """Return the rows with a tie hash column (int64), or None if Python must hash them."""
    from pyspark.sql import functions as sf

    session = source.native.sparkSession
    all_supported = all(value_kind(kind) is not None for kind in source.schema.types)
    if not all_supported or not has_functions(session):
        return None
    functions = session._jvm.featurestore.hashing.TieHash
    total = sf.lit(0).cast("bigint")
    for field in source.schema:
        salt = _signed(tie_hash_salt(field.name))
        function, value = _hash_function(functions, field, salt, exact=True)
        total = _java_call(session, function, total, value)
    return _with_column(source, name, _java_call(session, functions.finished(), total), pa.int64())


def with_range_number(
    source: Relation, values: str, *, starts: Sequence[int], numbers: Sequence[int], name: str
) -> Relation:
    """Return the rows with the range number of an int64 column."""
    session = source.native.sparkSession
    # Packed as bytes, since py4j transfers a list element by element.
    packed_starts = struct.pack(f">{len(starts)}q", *starts)
    packed_numbers = struct.pack(f">{len(numbers)}i", *numbers)
    ranges = session._jvm.featurestore.hashing.RowHash.ranges(packed_starts, packed_numbers)
    number = _java_call(session, ranges, column(values))
    return _with_column(source, name, number, pa.int32())


def count_hashes(
    source: Relation, *, hashes: str, group: str, columns: Sequence[str]
) -> HashCounts | None:
    """Count hashes by group and leading bits in one job; return None for unsupported types.

    Only the bins of each group are collected to the driver.
    """
    schema = source.schema
    for name in columns:
        kind = schema.field(name).type
        if value_kind(kind) is None and not pat.is_decimal(kind):
            return None
    rows = source.native.select(*map(column, [*columns, hashes, group]))
    counts = source.native.sparkSession._jvm.featurestore.hashing.RowCounts
    with translate_errors():
        counts_json = json.loads(counts.count(rows._jdf, hashes, group, list(columns), _BITS))
    histograms, sums = {}, {}
    for number, bin_counts in counts_json["groups"].items():
        # Java writes big-endian numbers.
        bins = np.frombuffer(b64decode(bin_counts["bins"]), ">i8")
        histograms[int(number)] = bins.astype(np.int64)
        # Java's sum overflows like the unsigned sum modulo 2**64, but with a sign.
        sums[int(number)] = bin_counts["sum"] % 2**64
    profiles = [
        _profile(schema.field(name), measured, rows=counts_json["rows"])
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
    with translate_errors():
        table = groups_of_hashes.agg(sf.count(sf.lit(1)).alias("rows")).toArrow().sort_by("hash")
    groups, group_hashes, rows = (table[name].to_numpy() for name in ("group", "hash", "rows"))
    return {
        number: (group_hashes[groups == number], rows[groups == number])
        for number in np.unique(groups).tolist()
    }


# -- hashes -------------------------------------------------------------------------------


def _hash_function(
    functions: Any, field: pa.Field, *salt: int, exact: bool = False
) -> tuple[Any, Any]:
    """Return the JVM function that hashes a column, and the column cast to its input type."""
    from pyspark.sql import functions as sf

    value, kind = column(field.name), field.type
    number = value_kind(kind)
    # A cast to double would change the bits of NaN.
    if pat.is_float32(kind) and exact:
        return functions.floats(number, *salt), value
    if pat.is_floating(kind):
        return functions.doubles(number, *salt), value.cast("double")
    if pat.is_string(kind):
        return functions.bytes(number, *salt), value.cast("binary")
    if pat.is_binary(kind):
        return functions.bytes(number, *salt), value
    if pat.is_date32(kind):
        value = sf.unix_date(value)
    elif pat.is_timestamp(kind):
        value = sf.unix_micros(value)
    return functions.words(number, *salt), value.cast("bigint")


def has_functions(session: Any) -> bool:
    """Return whether driver and executors have the jar, which must be among the initial jars."""
    jars = session.sparkContext.getConf().get("spark.jars", "")
    return JVM_JAR.name in jars and has_class(session, _CLASS)


def _java_call(session: Any, function: Any, *arguments: Any) -> Any:
    """Return a column that calls a Java function."""
    from pyspark.sql.classic.column import Column

    java_arguments = session._jvm.PythonUtils.toSeq([argument._jc for argument in arguments])
    return Column(function.apply(java_arguments))


def _with_column(source: Relation, name: str, value: Any, kind: pa.DataType) -> Relation:
    native = source.native.select(*map(column, source.schema.names), value.alias(name))
    return relation(native, source.schema.append(pa.field(name, kind)))


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def _profile(field: pa.Field, measured: dict[str, int], *, rows: int) -> ColumnProfile:
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
    )
