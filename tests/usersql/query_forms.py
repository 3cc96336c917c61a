"""The forms of queries: every function and operator, for every combination of column types.

A form is an expression over ``EDGES``. ``evaluate`` returns the values and types of forms on an
engine; ``docs/reference/sql.md`` lists whether both engines accept them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from itertools import product
from typing import Any

import pyarrow as pa

from featurestore.arrow.types import TIMESTAMP
from tests.usersql.edge_values import EDGES, plain_values

_BITS = (8, 16, 32, 64)
_SPECIAL = EDGES["number"][1]
_WIDE = ("0", "1.5", "-2.25", "1234567890123456.8901234567", "9" * 16)
_STRUCTS = [{"x": 1, "y": "a"}, {"x": 1, "y": None}, {"x": None, "y": "b"}]
# The values of each type, by the name of its columns.
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": EDGES["boolean"],
    **{
        f"i{bits}": (getattr(pa, f"int{bits}")(), [0, 1, -1, 2, 7, -7, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))])
        for bits in _BITS
    },
    **{
        f"u{bits}": (getattr(pa, f"uint{bits}")(), [0, 1, 2, 7, 2 ** (bits - 1), 2**bits - 1])
        for bits in _BITS
    },
    "f32": (pa.float32(), [*EDGES["float"][1], 3.0]),
    "f64": (pa.float64(), _SPECIAL),
    "dec": (pa.decimal128(10, 2), EDGES["decimal"][1]),
    "wide": (pa.decimal128(38, 10), [Decimal(text) for text in _WIDE]),
    "tiny": (pa.decimal128(4, 4), [Decimal(text) for text in ("0", "0.5", "-0.0001", "0.9999")]),
    "text": EDGES["string"],
    "blob": EDGES["binary"],
    "day": (pa.date32(), [*EDGES["date"][1], date(2024, 1, 31)]),
    "time": (TIMESTAMP, EDGES["timestamp"][1]),
    "list": EDGES["list"],
    "struct": (pa.struct([("x", pa.int64()), ("y", pa.string())]), _STRUCTS),
}  # fmt: skip
NUMBERS = (
    "i8",
    "i16",
    "i32",
    "i64",
    "u8",
    "u16",
    "u32",
    "u64",
    "f32",
    "f64",
    "dec",
    "wide",
    "tiny",
)
_SCALARS = (*NUMBERS, "bool", "text", "blob", "day", "time")
_LITERALS = {
    "1": "1", "300": "300", "-1": "-1", "0.5": "0.5", "0.1": "0.1", "1e0": "1e0", "null": "null",
    "3": "3", "3000000000": "3000000000",
}  # fmt: skip
_FIELDS = ("year", "quarter", "month", "week", "day", "dayofmonth", "dayofyear", "dayofweek",
           "isodow", "weekday", "weekofyear", "hour", "minute", "second", "epoch")  # fmt: skip
_UNITS = ("microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month",
          "quarter", "year", "decade", "century", "millennium")  # fmt: skip
_CASTS = ("tinyint", "smallint", "int", "bigint", "utinyint", "ubigint", "float", "double",
          "decimal(10,2)", "decimal(38,4)", "varchar", "boolean", "date", "timestamp",
          "timestamptz")  # fmt: skip


@dataclass(frozen=True)
class Form:
    """An expression of a function or operator over columns of some types."""

    name: str
    types: tuple[str, ...]
    sql: str
    is_aggregate: bool = False


def scalar_forms() -> Iterator[Form]:
    """Yield the forms that compute a value from one row."""
    for operator, first, second in product("+-*/%", NUMBERS, NUMBERS):
        yield Form(operator, (first, second), f"a_{first} {operator} b_{second}")
    for operator, dtype, constant in product("+-*/%", NUMBERS, _LITERALS):
        yield Form(operator, (dtype, constant), f"a_{dtype} {operator} {constant}")
    for sign, dtype in product(
        ("=", "<>", "<", ">=", "is distinct from"), (*_SCALARS, "list", "struct")
    ):
        yield Form(sign, (dtype, dtype), f"a_{dtype} {sign} b_{dtype}")
    for sign, first, second in product(("=", "<"), NUMBERS, NUMBERS):
        if first < second:
            yield Form(sign, (first, second), f"a_{first} {sign} b_{second}")
    for sign, dtype, constant in product(("=", "<"), NUMBERS, _LITERALS):
        yield Form(sign, (dtype, constant), f"a_{dtype} {sign} {constant}")
    for name in ("coalesce", "nullif", "greatest", "least"):
        for first, second in product((*_SCALARS, "list"), repeat=2):
            if first == second or (
                first in NUMBERS and second in ("i8", "u8", "u64", "f32", "dec")
            ):
                yield Form(name, (first, second), f"{name}(a_{first}, b_{second})")
    for dtype, target in product((*_SCALARS, "list", "struct"), _CASTS):
        yield Form(f"cast to {target}", (dtype,), f"cast(a_{dtype} as {target})")
    for dtype in NUMBERS:
        yield Form("-", (dtype,), f"-a_{dtype}")
        yield Form("abs", (dtype,), f"abs(a_{dtype})")
        yield Form("case", (dtype, "0.5"), f"case when a_bool then a_{dtype} else 0.5 end")
        yield Form("in", (dtype, "0.5"), f"a_{dtype} in (1, 0.5, b_{dtype})")
        yield Form("between", (dtype, "0.5"), f"a_{dtype} between 0 and 0.5")
    yield Form("ifnull", ("i8", "i8"), "ifnull(a_i8, 0)")
    for dtype in ("f32", "f64"):
        yield Form("isnan", (dtype,), f"isnan(a_{dtype})")
    yield from _text_forms()
    yield from _time_forms()


def _text_forms() -> Iterator[Form]:
    for name in ("starts_with", "prefix", "ends_with", "suffix", "contains", "strpos", "instr"):
        yield Form(name, ("text", "text"), f"{name}(a_text, b_text)")
    for name in (
        "length",
        "len",
        "char_length",
        "character_length",
        "strlen",
        "trim",
        "ltrim",
        "rtrim",
    ):
        yield Form(name, ("text",), f"{name}(a_text)")
    yield Form("length", ("list",), "length(a_list)")
    numbers = (-(2**31), -3, -1, 0, 1, 2, 2**31)
    for name, number in product(("left", "right", "substring", "substr"), numbers):
        yield Form(name, ("text", "i64"), f"{name}(a_text, {number})")
    for start, size in product(numbers[1:], (-2, -1, 0, 1, 2, 2**31)):
        yield Form("substring", ("text", "i64", "i64"), f"substring(a_text, {start}, {size})")
    yield Form("left", ("text", "i8"), "left(a_text, b_i8)")
    yield Form("right", ("text", "i8"), "right(a_text, b_i8)")
    yield Form("substring", ("text", "i8", "i8"), "substring(a_text, a_i8, b_i8)")
    yield Form("replace", ("text", "text", "text"), "replace(a_text, b_text, 'xy')")
    yield Form("||", ("text", "text"), "a_text || b_text")
    yield Form("||", ("text", "i64"), "a_text || b_i64")
    yield Form("||", ("blob", "blob"), "a_blob || b_blob")
    yield Form("like", ("text", "text"), "a_text like b_text")
    yield Form("like", ("text",), "a_text like '%a_\\'")
    yield Form("not like", ("text",), "a_text not like 'a%'")


def _time_forms() -> Iterator[Form]:
    for name, dtype in product(_FIELDS, ("day", "time")):
        yield Form(name, (dtype,), f"{name}(a_{dtype})")
        field = {"dayofweek": "dow", "dayofyear": "doy"}.get(name, name)
        if name not in ("dayofmonth", "weekday", "weekofyear"):
            yield Form("extract", (dtype,), f"extract({field} from a_{dtype})")
    yield Form("datetrunc", ("'day'", "time"), "datetrunc('day', a_time)")
    yield Form("epoch_us", ("time",), "epoch_us(a_time)")
    for unit, dtype in product(_UNITS, ("day", "time")):
        yield Form("date_trunc", (f"'{unit}'", dtype), f"date_trunc('{unit}', a_{dtype})")
    units = ("microsecond", "second", "hour", "day", "week", "month", "year")
    for unit, dtype in product(units, ("day", "time")):
        for amount in ("1", "'-13'"):
            yield Form("interval", (dtype, f"'{unit}'"), f"a_{dtype} + interval {amount} {unit}")
        yield Form("interval", (dtype, f"'{unit}'"), f"a_{dtype} - interval 3 {unit}")
    yield Form("+", ("day", "i32"), "a_day + b_i8")
    yield Form("-", ("day", "i32"), "a_day - 1")
    yield Form("-", ("day", "day"), "a_day - b_day")
    yield Form("-", ("time", "time"), "a_time - b_time")
    yield Form("<", ("day", "time"), "a_day < b_time")
    yield Form("=", ("day", "'2024-01-31'"), "a_day = '2024-01-31'")
    yield Form(">", ("time", "'2020-02-29'"), "a_time > '2020-02-29 12:30:30'")


def aggregate_forms() -> Iterator[Form]:
    """Yield the forms that aggregate rows."""
    for name, dtype in product(("count", "sum", "avg", "min", "max"), TYPES):
        yield Form(name, (dtype,), f"{name}(b_{dtype})", is_aggregate=True)
    for dtype in ("i8", "i64", "u64", "f32", "dec", "text", "day"):
        yield Form("count distinct", (dtype,), f"count(distinct b_{dtype})", is_aggregate=True)
    yield Form("count", ("*",), "count(*)", is_aggregate=True)
    yield Form("mean", ("i32",), "mean(b_i32)", is_aggregate=True)
    yield Form("sum distinct", ("i64",), "sum(distinct b_i8)", is_aggregate=True)
    yield Form("avg filter", ("i64",), "avg(b_i64) filter (where b_i64 > 0)", is_aggregate=True)
    yield Form("count filter", ("*",), "count(*) filter (where b_text > 'a')", is_aggregate=True)


def edge_table(size: int | None = None) -> pa.Table:
    """Return pairs of edge values of every type: ``id``, ``a_i8``, ``b_i8`` and so on.

    Args:
        size: The number of values of each type; None for all.
    """
    most = max(len(values) for _, values in TYPES.values()) + 1
    size = most if size is None else size
    rows = list(product(range(size), repeat=2))
    columns: dict[str, Any] = {"id": pa.array(range(len(rows)), pa.int64())}
    for name, (dtype, values) in TYPES.items():
        padded = [*values, None, *values * size][:size]
        columns[f"a_{name}"] = pa.array([padded[first] for first, _ in rows], dtype)
        columns[f"b_{name}"] = pa.array([padded[second] for _, second in rows], dtype)
    return pa.table(columns)


def batches(forms: Iterable[Form], size: int) -> Iterator[Sequence[Form]]:
    """Yield lists of at most ``size`` forms."""
    pending = list(forms)
    for start in range(0, len(pending), size):
        yield pending[start : start + size]


def results(
    forms: Sequence[Form], run: Callable[[str], pa.Table], ok: Mapping[Form, Sequence[bool]]
) -> dict[Form, tuple[pa.DataType, list[Any]]]:
    """Return the types and values of forms, in the order of ``id``; null in rows that are not ok.

    Args:
        forms: Scalar forms, or aggregates by ``a_bool``.
        run: Runs a query over ``edges``.
        ok: The rows in which DuckDB computes a form without an error, for forms that have some.
    """
    columns = []
    for number, form in enumerate(forms):
        sql = form.sql if form not in ok else f"case when ok_{number} then {form.sql} end"
        columns.append(f"{sql} as e{number}")
    if forms[0].is_aggregate:
        table = run(f"select a_i8 as id, {', '.join(columns)} from edges group by a_i8")
    else:
        table = run(f"select id, {', '.join(columns)} from edges")
    table = table.sort_by("id")
    return {
        form: (table.schema.field(f"e{n}").type, plain_values(table.column(f"e{n}")))
        for n, form in enumerate(forms)
    }
