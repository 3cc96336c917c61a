"""Values fit into a column of another type only if they are exactly representable."""

from __future__ import annotations

import datetime
import decimal
import math
from decimal import Decimal, localcontext
from itertools import product
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from featurestore.arrow.cast_lines import cast_line, exact_cast_line
from featurestore.arrow.casts import cast_array
from featurestore.arrow.exact_casts import InexactValueError, cast_exactly, cast_label_keys
from featurestore.arrow.fitting import can_fit, can_widen
from featurestore.arrow.types import TIMESTAMP, integer_range, numpy_type, shaped_type
from featurestore.ingest import to_reader

INTEGERS = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
]
FLOATS = [pa.float32(), pa.float64()]
EDGES = [
    0,
    -1,
    1.5,
    -0.0,
    2**24,
    2**24 + 1,
    2**31 - 1,
    2**31,
    -(2**31) - 1,
    2**53,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**63),
    2**64 - 1,
    0.1,
    1e300,
    math.inf,
    math.nan,
]


EXACT = [*INTEGERS, pa.decimal128(3, 2), pa.decimal128(19, 0), pa.decimal128(38, 38)]
EXACT += [pa.decimal128(38, 30), pa.decimal128(38, 0), pa.decimal128(1, 0), pa.decimal128(20, 10)]
EXACT_VALUES = st.one_of(
    st.sampled_from([0, 1, -1, 9, 10, 127, 128, -128, 2**63, 2**64 - 1, -(2**63), 10**37]),
    st.integers(-(10**20), 10**20),
).flatmap(lambda unscaled: st.integers(0, 20).map(lambda scale: Decimal(unscaled).scaleb(-scale)))


def holds(dtype: pa.DataType, value: Decimal) -> bool:
    """Return by exact arithmetic whether an integer or decimal type can represent a value."""
    if pa.types.is_integer(dtype):
        low, high = integer_range(dtype)
        return value == int(value) and low <= value <= high
    with localcontext() as context:
        context.prec = 120
        unscaled = value.scaleb(dtype.scale)
        return unscaled == int(unscaled) and abs(unscaled) < 10**dtype.precision


@given(
    values=st.lists(EXACT_VALUES | st.none(), min_size=1, max_size=4),
    source=st.sampled_from(EXACT),
    target=st.sampled_from(EXACT),
    deep=st.booleans(),
)
def test_cast_label_keys_number_without_equal_becomes_null(
    values: list[Decimal | None], source: pa.DataType, target: pa.DataType, deep: bool
) -> None:
    values = [value for value in values if value is None or holds(source, value)]
    is_integer = pa.types.is_integer(source)
    numbers = [value if value is None or not is_integer else int(value) for value in values]
    array = pa.array(numbers, source)
    expected = [value if value is None or holds(target, value) else None for value in values]
    assert cast_label_keys(array, target).to_pylist() == expected
    misfits = [value for value in values if value is not None and not holds(target, value)]
    assert can_fit(source, target)
    if can_widen(source, target):
        assert not misfits
    if deep:
        array, target = pa.array([array.to_pylist()], pa.list_(source)), pa.list_(target)
    if misfits:
        with pytest.raises(InexactValueError) as refusal:
            cast_exactly(array, target)
        assert refusal.value.value == misfits[0]
    else:
        assert cast_exactly(array, target).to_pylist() == ([values] if deep else values)


def fits(value: Any, target: pa.DataType) -> bool:
    """Return by exact arithmetic whether all values fit."""
    if target in FLOATS:
        if isinstance(value, int):
            return abs(value) <= (2**53 if target == pa.float64() else 2**24)
        with np.errstate(over="ignore"):
            return math.isnan(value) or float(numpy_type(target).type(value)) == value
    low, high = integer_range(target)
    is_whole = math.isfinite(value) and value == int(value)
    return is_whole and low <= int(value) <= high


@st.composite
def columns(draw: Any) -> pa.Array:
    dtype = draw(st.sampled_from(INTEGERS + FLOATS))
    if dtype in FLOATS:
        values = st.floats(width=dtype.bit_width) | st.integers(-(2**24), 2**24).map(float)
        edges = [float(edge) for edge in EDGES if dtype == pa.float64() or fits(float(edge), dtype)]
    else:
        low, high = integer_range(dtype)
        values = st.integers(low, high)
        edges = [edge for edge in EDGES if isinstance(edge, int) and low <= edge <= high]
    items = draw(st.lists(st.none() | values | st.sampled_from(edges), max_size=6))
    return pa.array(items, dtype, from_pandas=False)


@given(columns(), st.sampled_from(INTEGERS + FLOATS), st.integers(0, 2))
@example(pa.array([None, float("nan")], pa.float64()), pa.int64(), 1)
def test_cast_exactly_value_without_equal_raises_misfit(
    column: pa.Array, target: pa.DataType, start: int
) -> None:
    column = column.slice(start)
    assert can_fit(column.type, target)
    values = column.to_pylist()
    wrong = [value for value in values if value is not None and not fits(value, target)]
    if wrong:
        with pytest.raises(InexactValueError) as raised:
            cast_exactly(column, target)
        assert repr(raised.value.value) == repr(wrong[0])
        return
    actual = cast_exactly(column, target)
    actual.validate(full=True)
    assert actual.type == target
    for before, after in zip(values, actual.to_pylist(), strict=True):
        assert before == after or (math.isnan(before) and math.isnan(after))


def test_cast_exactly_array_items_fit_like_numbers() -> None:
    pixels = pa.array([[[1.0, 2.0]], None, [[3.0, 4.0]]], shaped_type(pa.float64(), (1, 2)))
    assert cast_exactly(pixels, shaped_type(pa.uint8(), (1, 2))).to_pylist() == pixels.to_pylist()
    with pytest.raises(InexactValueError, match=r"300\.0 does not fit"):
        cast_exactly(pa.array([[[1.0, 300.0]]], pixels.type), shaped_type(pa.uint8(), (1, 2)))


def test_cast_exactly_lists_of_other_shape_raise_misfit() -> None:
    expected = pa.list_(pa.float32(), 2)
    lists = pa.array([[1, 2], None, [3, 4]])
    assert cast_exactly(lists, expected).to_pylist() == lists.to_pylist()
    assert (
        cast_exactly(cast_exactly(lists, expected), pa.list_(pa.int64())).to_pylist()
        == lists.to_pylist()
    )
    with pytest.raises(InexactValueError, match=r"shape \(3,\)"):
        cast_exactly(pa.array([[1, 2], [1, 2, 3]]), expected)
    assert not can_fit(pa.list_(pa.float32(), 3), expected)


def test_can_fit_other_kind_is_false(subtests: pytest.Subtests) -> None:
    for source, target in (
        (pa.string(), pa.int64()),
        (pa.int64(), pa.string()),
        (pa.int64(), TIMESTAMP),
        (pa.bool_(), pa.int64()),
        (pa.float64(), pa.bool_()),
        (pa.list_(pa.string()), pa.list_(pa.int64(), 2)),
    ):
        with subtests.test(source=source, target=target):
            assert not can_fit(source, target)


def frame_of(library: str, values: pa.Array) -> Any:
    table = pa.table({"n": values})
    if library == "polars":
        return pl.from_arrow(table)
    if library == "duckdb":
        return duckdb.connect().from_arrow(table)
    if library == "rows":
        return table.to_pylist()
    if library == "tuples":
        return [(value,) for value in values.to_pylist()]
    if library in ("columns", "pyarrow"):
        return table.to_pydict() if library == "columns" else table
    return table.to_pandas()


def pasted(library: str, values: pa.Array, line: str) -> pa.Array:
    """Return the column after a user has run the hint."""
    frame = frame_of(library, values)
    name = NAMES[library]
    namespace = {name: frame, "pd": pd, "pl": pl, "np": np, "pa": pa, "datetime": datetime}
    namespace["decimal"] = decimal
    exec(line, namespace)
    column = to_reader(namespace[name]).read_all().column(0)
    return pa.concat_arrays(column.chunks)


NAMES = {"duckdb": "rows", "rows": "rows", "columns": "columns", "pyarrow": "table"}
NAMES |= {"pandas": "df", "polars": "df", "tuples": "rows"}
INFINITE = float("inf")
NOON = datetime.datetime(2024, 1, 31, 12, tzinfo=datetime.UTC)
CASTS = {
    "rounds": (pa.array([1.0, 2.6, None]), pa.int64(), [1, 3, None]),
    "infinite": (pa.array([1.0, INFINITE, -INFINITE]), pa.int64(), [1, None, None]),
    "at the end": (pa.array([127.0, 127.6, 2.0**63]), pa.int8(), [127, None, None]),
    "above 64 bits": (pa.array([1.0, 2.0**63]), pa.int64(), [1, None]),
    "out of range": (pa.array([1, 2**40]), pa.int32(), [1, None]),
    "signs": (pa.array([1, -1]), pa.uint64(), [1, None]),
    "shorter floats": (pa.array([0.1]), pa.float32(), [np.float32(0.1).item()]),
    "texts to floats": (pa.array(["1.5", "x", None]), pa.float64(), [1.5, None, None]),
    "texts to integers": (pa.array(["15", "x"]), pa.int64(), [15, None]),
    "to text": (pa.array([1, 2]), pa.string(), ["1", "2"]),
    "flags to integers": (pa.array([True, None]), pa.int64(), [1, None]),
    "flags to floats": (pa.array([True, False]), pa.float64(), [1.0, 0.0]),
    "floats to flags": (pa.array([0.0, 1.0, 2.0]), pa.bool_(), [False, True, None]),
    "integers to flags": (pa.array([0, 1, 2]), pa.bool_(), [False, True, None]),
    "days to times": (pa.array([NOON.date(), None]), TIMESTAMP, [NOON.replace(hour=0), None]),
    "texts to times": (pa.array(["2024-01-31T12:00:00+00:00"]), TIMESTAMP, [NOON]),
}


def test_cast_line_returns_code_whose_values_fit(subtests: pytest.Subtests) -> None:
    for library, case in product(NAMES, CASTS):
        with subtests.test(library=library, case=case):
            values, target, expected = CASTS[case]
            column = "col_0" if library == "tuples" else "n"
            line = cast_line(library, column, values.type, target)
            assert line is not None
            assert cast_exactly(pasted(library, values, line), target).to_pylist() == expected


@pytest.mark.parametrize("library", NAMES)
@given(
    value=st.decimals(
        min_value=-(10**9), max_value=10**9, places=4, allow_nan=False, allow_infinity=False
    ),
    target=st.sampled_from([*EXACT, pa.string(), pa.decimal128(18, 6)]),
    as_text=st.booleans(),
)
def test_cast_line_decimals_keep_every_value(
    library: str, value: Decimal, target: pa.DataType, as_text: bool
) -> None:
    source = pa.array([str(value) if as_text else value, None])
    column = "col_0" if library == "tuples" else "n"
    line = cast_line(library, column, source.type, target)
    if line is None or (as_text and pa.types.is_integer(target)):
        return  # texts that are not integers become null
    assert [Decimal(str(cell)) for cell in pasted(library, source, line).to_pylist()[:1]] == [value]


# Values, the type of the column, and the values that the column has; None if one has no equal.
EXACT_CASTS: dict[str, tuple[pa.Array, pa.DataType, list[Any] | None]] = {
    "texts of integers": (
        pa.array(["15", None, "9007199254740993"]), pa.int64(), [15, None, 2**53 + 1]
    ),
    "words": (pa.array(["15", "x"]), pa.int64(), None),
    "fractions in texts": (pa.array(["15", "1.5"]), pa.int64(), None),
    "out of range": (pa.array(["300"]), pa.int8(), None),
    "texts of floats": (pa.array(["1.5", None, "1e300"]), pa.float64(), [1.5, None, 1e300]),
    "words for floats": (pa.array(["1.5", "x"]), pa.float64(), None),
    "flags": (pa.array([0, 1, None]), pa.bool_(), [False, True, None]),
    "integers that are no flags": (pa.array([0, 2]), pa.bool_(), None),
    "float flags": (pa.array([0.0, 1.0]), pa.bool_(), [False, True]),
    "floats that are no flags": (pa.array([0.5]), pa.bool_(), None),
    "numbers as text": (pa.array([1, 2]), pa.string(), ["1", "2"]),
}  # fmt: skip


def test_exact_cast_line_keeps_all_values_or_fails(subtests: pytest.Subtests) -> None:
    for library, case in product(NAMES, EXACT_CASTS):
        with subtests.test(library=library, case=case):
            values, target, expected = EXACT_CASTS[case]
            line = exact_cast_line(
                library, "col_0" if library == "tuples" else "n", values.type, target
            )
            assert line is not None
            try:
                result = cast_exactly(pasted(library, values, line), target).to_pylist()
            except Exception:  # each library has its own error
                result = None
            assert result == expected


def test_exact_cast_line_works_on_spark(spark: Any, subtests: pytest.Subtests) -> None:
    from pyspark.sql import functions

    for mode, (case, (values, target, expected)) in product(("true", "false"), EXACT_CASTS.items()):
        with subtests.test(ansi=mode, case=case):
            spark.conf.set("spark.sql.ansi.enabled", mode)
            line = exact_cast_line("pyspark", "n", values.type, target)
            names = {"df": spark.createDataFrame(pa.table({"n": values})), "F": functions}
            exec(str(line), names)
            try:
                result = [row.n for row in names["df"].collect()]
            except Exception:  # raised by one of several classes of Spark
                result = None
            finally:
                spark.conf.unset("spark.sql.ansi.enabled")
            assert result == expected


@given(st.sampled_from(list(NAMES)), st.sampled_from(INTEGERS + FLOATS), st.sampled_from(INTEGERS))
def test_exact_cast_line_never_converts_between_numbers(
    library: str, source: pa.DataType, target: pa.DataType
) -> None:
    assert exact_cast_line(library, "n", source, target) is None
    assert exact_cast_line(library, "n", pa.list_(source, 2), pa.list_(target, 2)) is None


def test_cast_line_arrays_casts_each_cell() -> None:
    line = cast_line("pandas", "n", pa.list_(pa.float64(), 2), pa.list_(pa.float32(), 2))
    actual = pasted("pandas", pa.array([[0.1, 0.2]]), str(line))
    assert actual.type == pa.list_(pa.float32(), 2)


def test_values_of_a_dictionary_without_rows_need_not_fit() -> None:
    encoded = pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int32()), pa.array([1, 300]))
    assert cast_array(encoded, pa.int8()).to_pylist() == [1, None]
