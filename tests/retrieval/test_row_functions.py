"""Narwhals functions with constants equal plain Python on every engine and in the vector server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import narwhals as nw
import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import InvalidArgument
from featurestore.usersql.row_functions import METHODS, feature

NEW_YEAR = datetime(2024, 1, 1, tzinfo=UTC)
INPUTS = {
    "f": "float64", "n": "int64", "s": "string", "b": "bool", "d": "date", "at": "timestamp",
}  # fmt: skip
COLUMNS = ["id", *INPUTS]
ROWS: list[tuple[Any, ...]] = [
    ("a", 0.1, 3, "a", True, date(2024, 1, 1), NEW_YEAR),
    ("b", 0.5, -7, "b's", False, date(1969, 12, 31), datetime(1969, 12, 31, 23, 59, 59, 5, tzinfo=UTC)),
    ("c", -0.0, 2**53 + 1, "", True, date(2024, 2, 29), NEW_YEAR + timedelta(hours=25, seconds=61)),
    ("d", 1e300, 0, "a%b\\", False, date(9999, 12, 30), datetime(9998, 12, 31, tzinfo=UTC)),
    ("e", math.inf, -(2**62), "ä", True, date(1, 1, 3), datetime(1, 1, 3, tzinfo=UTC)),
    ("f", -math.inf, 1, "abcab", False, date(2024, 12, 31), NEW_YEAR - timedelta(microseconds=1)),
    ("g", math.nan, -1, "NaN", True, date(2000, 3, 1), datetime(2000, 3, 1, 12, 30, tzinfo=UTC)),
    ("h", None, None, None, None, None, None),
]  # fmt: skip
TABLE = pa.Table.from_pylist(
    [dict(zip(COLUMNS, row, strict=True)) for row in ROWS],
    schema=pa.schema(
        [
            ("id", pa.string()), ("f", pa.float64()), ("n", pa.int64()), ("s", pa.string()),
            ("b", pa.bool_()), ("d", pa.date32()), ("at", pa.timestamp("us", tz="UTC")),
        ]
    ),
)  # fmt: skip
Reference = Callable[[Any], Any]


class Row:
    """The values of a row as attributes."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.id, self.f, self.n, self.s, self.b, self.d, self.at = values


def null_if(name: str, reference: Reference) -> Reference:
    """Return the reference of a row for one of a value, with null for null."""
    return lambda row: None if getattr(row, name) is None else reference(getattr(row, name))


def sort_key(number: float) -> tuple[bool, float]:
    """Return a key by which NaN is the greatest number, as in SQL."""
    return (math.isnan(number), 0.0 if math.isnan(number) else number)


def int64(number: int) -> int | None:
    """Return a result of integer arithmetic; out of range it is null."""
    return number if -(2**63) <= number < 2**63 else None


# For each feature: the function of Narwhals, and its value in plain Python. fmt: off
CASES: dict[str, tuple[Callable[[Any], Any], Reference]] = {
    "times": (lambda row: row["f"] * 1.25, null_if("f", lambda f: f * 1.25)),
    "times_int": (lambda row: row["n"] * 0.1, null_if("n", lambda n: float(n) * 0.1)),
    "tiny": (lambda row: row["f"] * 5e-324, null_if("f", lambda f: f * 5e-324)),
    "plus_large": (lambda row: row["f"] + 1.2345678901234568e17, null_if("f", lambda f: f + 1.2345678901234568e17)),
    "plus_negative": (lambda row: -1.5 + row["f"], null_if("f", lambda f: f + -1.5)),
    "minus": (lambda row: row["n"] - 2**62, null_if("n", lambda n: int64(n - 2**62))),
    "divided": (lambda row: row["n"] / 4, null_if("n", lambda n: n / 4)),
    "remainder": (lambda row: row["n"] % 3, null_if("n", lambda n: n % 3)),
    "remainder_negative": (lambda row: row["n"] % -3, null_if("n", lambda n: n % -3)),
    "negated": (lambda row: -row["f"], null_if("f", lambda f: -f)),
    "absolute": (lambda row: (row["n"] - 1).abs(), null_if("n", lambda n: abs(n - 1))),
    "above": (lambda row: row["f"] > 0.5, null_if("f", lambda f: sort_key(f) > sort_key(0.5))),
    "above_negative": (lambda row: row["f"] >= -0.5, null_if("f", lambda f: sort_key(f) >= sort_key(-0.5))),
    "below_infinity": (lambda row: row["f"] < float("inf"), null_if("f", lambda f: sort_key(f) < sort_key(math.inf))),
    "int_above": (lambda row: row["n"] > float(2**53), null_if("n", lambda n: n > 2**53)),
    "smallest": (lambda row: row["n"] != -(2**63), null_if("n", lambda n: n != -(2**63))),
    "equal_text": (lambda row: row["s"] == "b's", null_if("s", lambda s: s == "b's")),
    "unequal_text": (lambda row: row["s"] != "a%b\\", null_if("s", lambda s: s != "a%b\\")),
    "equal_bool": (lambda row: row["b"] == True, lambda row: row.b),  # noqa: E712
    "exclusive": (lambda row: row["b"] ^ True, null_if("b", lambda b: not b)),
    "equal_date": (lambda row: row["d"] == date(2024, 2, 29), null_if("d", lambda d: d == date(2024, 2, 29))),
    "since": (lambda row: row["at"] >= NEW_YEAR, null_if("at", lambda time: time >= NEW_YEAR)),
    "since_naive": (lambda row: row["at"] >= datetime(2024, 1, 1), null_if("at", lambda time: time >= NEW_YEAR)),
    "later": (
        lambda row: row["at"] + timedelta(days=40, hours=-1, microseconds=5),
        null_if("at", lambda time: time + timedelta(days=40, hours=-1, microseconds=5)),
    ),
    "earlier": (lambda row: row["at"] - timedelta(hours=1), null_if("at", lambda time: time - timedelta(hours=1))),
    "offset": (lambda row: row["at"].dt.offset_by("1d"), null_if("at", lambda time: time + timedelta(days=1))),
    "fill": (lambda row: row["f"].fill_null(0.5), lambda row: 0.5 if row.f is None else row.f),
    "fill_infinite": (lambda row: row["f"].fill_null(float("-inf")), lambda row: -math.inf if row.f is None else row.f),
    "fill_with_nan": (lambda row: row["f"].fill_null(float("nan")), lambda row: math.nan if row.f is None else row.f),
    "fill_int": (lambda row: row["n"].fill_null(-1), lambda row: -1 if row.n is None else row.n),
    "fill_text": (lambda row: row["s"].fill_null("it's"), lambda row: "it's" if row.s is None else row.s),
    "fill_bool": (lambda row: row["b"].fill_null(False), lambda row: bool(row.b)),
    "fill_nan": (lambda row: row["f"].fill_nan(0.25), null_if("f", lambda f: 0.25 if math.isnan(f) else f)),
    "in_ints": (lambda row: row["n"].is_in([-7, 2**53 + 1]), null_if("n", lambda n: n in [-7, 2**53 + 1])),
    "in_floats": (lambda row: row["f"].is_in([0.1, 0, float("inf")]), null_if("f", lambda f: f in [0.1, 0, math.inf])),
    "in_texts": (lambda row: row["s"].is_in(["b's", "a"]), null_if("s", lambda s: s in ["b's", "a"])),
    "in_dates": (lambda row: row["d"].is_in([date(2024, 1, 1)]), null_if("d", lambda d: d == date(2024, 1, 1))),
    "in_times": (lambda row: row["at"].is_in([NEW_YEAR]), null_if("at", lambda time: time == NEW_YEAR)),
    "in_with_null": (lambda row: row["n"].is_in([1, None]), null_if("n", lambda n: n == 1)),
    "not_in": (lambda row: ~row["n"].is_in([1]), null_if("n", lambda n: n != 1)),
    "in_nothing": (lambda row: row["n"].is_in([]), lambda _: False),
    "between": (lambda row: row["f"].is_between(0.1, 0.5), null_if("f", lambda f: 0.1 <= f <= 0.5)),
    "inside": (lambda row: row["n"].is_between(-7, 3, closed="none"), null_if("n", lambda n: -7 < n < 3)),
    "clip": (
        lambda row: row["f"].clip(-0.5, 0.5),
        null_if("f", lambda f: max(min(f, 0.5, key=sort_key), -0.5, key=sort_key)),
    ),
    "clip_int": (lambda row: row["n"].clip(lower_bound=0), null_if("n", lambda n: max(n, 0))),
    "when_text": (
        lambda row: nw.when(row["n"] > 0).then(nw.lit("yes")).otherwise(nw.lit("no")),
        lambda row: "yes" if row.n is not None and row.n > 0 else "no",
    ),
    "when_float": (lambda row: nw.when(row["b"]).then(1.5).otherwise(row["f"]), lambda row: 1.5 if row.b else row.f),
    "when_null": (
        lambda row: nw.when(row["n"] > 0).then(None).otherwise(row["n"]),
        lambda row: None if row.n is None or row.n > 0 else row.n,
    ),
    "first": (lambda row: nw.coalesce(row["f"], nw.lit(0.5)), lambda row: 0.5 if row.f is None else row.f),
    "smaller": (
        lambda row: nw.min_horizontal(row["f"], nw.lit(0.5)),
        lambda row: 0.5 if row.f is None else min(row.f, 0.5, key=sort_key),
    ),
    "larger": (lambda row: nw.max_horizontal(row["n"], nw.lit(2)), lambda row: 2 if row.n is None else max(row.n, 2)),
    "total": (lambda row: nw.sum_horizontal(row["f"], nw.lit(0.5)), lambda row: (row.f or 0.0) + 0.5),
    "any_of": (
        lambda row: nw.any_horizontal(row["b"], row["n"] > 1, ignore_nulls=True),
        lambda row: bool(row.b or (row.n is not None and row.n > 1)),
    ),
    "all_of": (
        lambda row: nw.all_horizontal(row["b"], row["n"] > 1, ignore_nulls=True),
        lambda row: row.b is not False and (row.n is None or row.n > 1),
    ),
    "finite": (lambda row: row["f"].is_finite(), null_if("f", lambda f: math.isfinite(f))),
    "is_nan": (lambda row: row["f"].is_nan(), null_if("f", lambda f: math.isnan(f))),
    "present": (lambda row: ~row["f"].is_null(), lambda row: row.f is not None),
    "starts": (lambda row: row["s"].str.starts_with("a%"), null_if("s", lambda s: s.startswith("a%"))),
    "ends": (lambda row: row["s"].str.ends_with("'s"), null_if("s", lambda s: s.endswith("'s"))),
    "has": (lambda row: row["s"].str.contains("ab", literal=True), null_if("s", lambda s: "ab" in s)),
    "replaced": (
        lambda row: row["s"].str.replace_all("a", "\\1", literal=True),
        null_if("s", lambda s: s.replace("a", "\\1")),
    ),
    "slice": (lambda row: row["s"].str.slice(1, 2), null_if("s", lambda s: s[1:3])),
    "head": (lambda row: row["s"].str.head(2), null_if("s", lambda s: s[:2])),
    "length": (lambda row: row["s"].str.len_chars(), null_if("s", lambda s: len(s))),
    "to_float": (lambda row: row["n"].cast(nw.Float64) * 0.5, null_if("n", lambda n: n * 0.5)),
    "to_int": (lambda row: row["b"].cast(nw.Int64) + 1, null_if("b", lambda b: b + 1)),
    "year": (lambda row: row["at"].dt.year() - 2000, null_if("at", lambda time: time.year - 2000)),
    "month": (lambda row: row["d"].dt.month() * 0.5, null_if("d", lambda d: d.month * 0.5)),
    "day": (lambda row: row["d"].dt.day() > 30, null_if("d", lambda d: d.day > 30)),
    "hour": (lambda row: row["at"].dt.hour() == 23, null_if("at", lambda time: time.hour == 23)),
    "minute": (lambda row: row["at"].dt.minute(), null_if("at", lambda time: time.minute)),
    "second": (lambda row: row["at"].dt.second(), null_if("at", lambda time: time.second)),
    "weekday": (lambda row: row["at"].dt.weekday() > 5, null_if("at", lambda time: time.isoweekday() > 5)),
    "ordinal_day": (lambda row: row["d"].dt.ordinal_day(), null_if("d", lambda d: d.timetuple().tm_yday)),
    "whole_hour": (
        lambda row: row["at"].dt.truncate("1h"),
        null_if("at", lambda time: time.replace(minute=0, second=0, microsecond=0)),
    ),
    "date": (
        lambda row: row["at"].dt.date() == date(2024, 1, 1),
        null_if("at", lambda time: time.date() == date(2024, 1, 1)),
    ),
}  # fmt: skip
FEATURES = [feature(name, function, inputs=INPUTS) for name, (function, _) in CASES.items()]


def values_by_hand() -> dict[str, list[Any]]:
    """Return the values of each feature in plain Python, as compared text, by row."""
    rows = list(map(Row, ROWS))
    return {
        name: [comparable(reference(row)) for row in rows] for name, (_, reference) in CASES.items()
    }


def comparable(value: Any) -> Any:
    """Return a value that equals itself, with its type; NaN is a text."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return (type(value).__name__, value)


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
def test_functions_with_constants_equal_python(
    tmp_path: Path, engine: str, request: pytest.FixtureRequest, subtests: pytest.Subtests
) -> None:
    if engine == "spark":
        request.getfixturevalue("spark")
    with featurestore.connect(tmp_path / "store", engine=engine) as store:
        computed = store.get_features(FEATURES, labels=TABLE).to_arrow()
    for name, expected in values_by_hand().items():
        with subtests.test(name):
            assert [comparable(value) for value in computed.column(name).to_pylist()] == expected


def test_functions_with_constants_equal_python_in_vectors(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    with featurestore.connect(tmp_path / "store") as store:
        store.create_featuregroup(TABLE, "rows", primary_key="id")
        group_features = [f"rows.{name}" for name in INPUTS]
        view = store.create_feature_view("v", features=[*group_features, *FEATURES])
        store.publish("v")
        with view.server() as server:
            vectors = server.get_vectors([{"id": row[0]} for row in ROWS])
    for name, expected in values_by_hand().items():
        with subtests.test(name):
            assert [comparable(vector[name]) for vector in vectors] == expected


def test_every_listed_method_is_compared() -> None:
    def methods(expression: Any) -> Iterator[str]:
        for position, node in enumerate(expression._nodes):
            for operand in node.exprs:
                if isinstance(operand, nw.Expr):
                    yield from methods(operand)
            name = node.name.replace("when_then", "when")
            if not name.startswith("__") and name != "col":
                yield f"nw.{name}" if position == 0 else name

    compared: set[str] = set()
    for function, _ in CASES.values():
        compared.update(methods(function({column: nw.col(column) for column in INPUTS})))
    assert set(METHODS) - compared == set()


def test_function_that_differs_between_engines_is_refused_by_name(
    subtests: pytest.Subtests,
) -> None:
    cases: list[tuple[str, Callable[[Any], Any]]] = [
        ("// with 2", lambda row: row["n"] // 2),
        ("% with 2.0", lambda row: row["f"] % 2.0),
        ("** with 2", lambda row: 1.5 + row["f"] ** 2),
        ("round() with 1", lambda row: row["f"].round(1) > 0.5),
        ("floor()", lambda row: nw.when(row["b"]).then(row["f"].floor()).otherwise(0.0)),
        ("exp()", lambda row: row["f"].exp()),
        ("log()", lambda row: row["f"].clip(0.5, 1.5).log()),
        ("+ with 9223372036854775808", lambda row: row["n"] + 2**63),
        ("* with Decimal('1.5')", lambda row: row["f"] * __import__("decimal").Decimal("1.5")),
        ("== with b'x'", lambda row: row["s"] == b"x"),
        ("+ with 'x'", lambda row: row["s"] + "x"),
        ("str.to_uppercase()", lambda row: row["s"].str.to_uppercase() == "A"),
        ("str.contains() with 'a'", lambda row: row["s"].str.contains("a")),
        ("str.slice() with -2", lambda row: row["s"].str.tail(2)),
        ("nw.concat_str() with '-'", lambda row: nw.concat_str(row["s"], nw.lit("x"), separator="-")),
        ("cast() with Int64", lambda row: row["f"].cast(nw.Int64)),
        ("dt.to_string() with '%Y'", lambda row: row["at"].dt.to_string("%Y")),
        ("dt.timestamp() with 'us'", lambda row: row["at"].dt.timestamp("us")),
        ("shift() with 1", lambda row: row["f"].shift(1)),
    ]  # fmt: skip
    for method, function in cases:
        with subtests.test(method), pytest.raises(InvalidArgument) as error:
            feature("x", function, inputs=INPUTS)
        assert f"'x' uses {method}" in str(error.value)
        # The SQL of the function is not the user's.
        assert "::" not in str(error.value)
        assert error.value.hint
