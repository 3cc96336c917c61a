"""The condition ``where`` of dbt tests selects the same rows as row condition of an expectation."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import duckdb
import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

pytest.importorskip("great_expectations")
from featurestore.dbt.expectations import (
    DbtColumns,
    NotConvertible,
    UnsupportedCondition,
    to_expectation,
    to_row_condition,
)
from featurestore.dbt.manifest import DbtTest
from featurestore_connectors.great_expectations.conditions import parse_condition
from featurestore_connectors.great_expectations.predicates import evaluate

START = datetime(2024, 1, 1, tzinfo=UTC)
NUMBERS = [None, -2, 0, 1, 3]
FLOATS = [None, float("nan"), -0.0, 0.1, 2.5, float("inf")]
CENTS = [None, Decimal("0.10"), Decimal("2.50"), Decimal("-1")]
TEXTS = [None, "", "paid", "it's", "back\\slash"]
ROWS = pa.table(
    {
        "row": pa.array(range(125), pa.int64()),
        "n": pa.array([NUMBERS[row % 5] for row in range(125)], pa.int64()),
        "m": pa.array([NUMBERS[row // 5 % 5] for row in range(125)], pa.int64()),
        "status": pa.array([TEXTS[row // 25] for row in range(125)]),
        "flag": pa.array([[None, True, False][row % 3] for row in range(125)]),
        "placed": pa.array(
            [None if row % 7 == 0 else START + timedelta(hours=row) for row in range(125)],
            pa.timestamp("us", tz="UTC"),
        ),
        "x": [FLOATS[row % 6] for row in range(125)],
        "money": pa.array([CENTS[row % 4] for row in range(125)], pa.decimal128(5, 2)),
        "day": pa.array([None, *[date(2024, 1, 1 + row % 4) for row in range(124)]]),
    }
)
COLUMNS = DbtColumns(ROWS.schema)
NUMBER = st.sampled_from(["-2", "0", "1", "2.5"])
SIGN = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="])


def quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


TEXT = st.sampled_from([quote(text) for text in TEXTS if text is not None])
TIME = st.sampled_from(["'2024-01-02T00:00:00Z'", "'2024-01-03'"])
TESTS = st.one_of(
    st.builds("{} {} {}".format, st.sampled_from(["n", '"m"', "N"]), SIGN, NUMBER),
    st.builds(
        "{} {} {}".format,
        st.sampled_from(["x", "money"]),
        SIGN,
        st.sampled_from(["0.1", "0", "-1"]),
    ),
    st.builds("day {} '2024-01-0{}'".format, SIGN, st.integers(1, 4)),
    st.builds("{} {} n".format, NUMBER, SIGN),
    st.builds("n {} m".format, SIGN),
    st.builds("status {} {}".format, SIGN, TEXT),
    st.builds("placed {} {}".format, SIGN, TIME),
    st.builds("n {} in ({}, {})".format, st.sampled_from(["", "not"]), NUMBER, NUMBER),
    st.builds("status in ({}, {})".format, TEXT, TEXT),
    st.builds("m {} between {} and {}".format, st.sampled_from(["", "not"]), NUMBER, NUMBER),
    st.builds(
        "{} is {} null".format,
        st.sampled_from(["n", "status", "flag"]),
        st.sampled_from(["", "not"]),
    ),
    st.sampled_from(["flag", "flag = true", "flag <> false"]),
)
CONDITIONS = st.recursive(
    TESTS,
    lambda conditions: st.one_of(
        st.builds("({}) {} ({})".format, conditions, st.sampled_from(["and", "or"]), conditions),
        st.builds("not ({})".format, conditions),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(sql_condition=CONDITIONS)
def test_row_condition_selects_the_rows_of_where(sql_condition: str) -> None:
    with duckdb.connect() as database:
        database.execute("set timezone = 'UTC'")
        database.register("rows", ROWS)
        selected = database.execute(
            f"select row from rows where {sql_condition} order by row"
        ).fetchall()
    condition = parse_condition(to_row_condition(sql_condition, COLUMNS), "sql")
    assert condition is not None
    assert set(condition.columns()) <= set(ROWS.column_names)
    (mask,) = evaluate(ROWS, [condition.sql(ROWS.schema)])
    assert ROWS["row"].filter(mask).to_pylist() == [row for (row,) in selected]


def test_other_conditions_are_not_converted(subtests: pytest.Subtests) -> None:
    for sql_condition in (
        "n > (select max(n) from other)",
        "placed > current_date - 3",
        "n + 1 > 2",
        "n = 'paid'",
        "status = 1",
        "missing = 1",
        "status like 'p%'",
        "n in (select 1)",
        "n in (1, null)",
        "n = null",
        "placed > 'yesterday'",
        "n = m and",
        "n = 1; drop table orders",
        "{{ var('x') }}",
        "n = status",
    ):
        with subtests.test(sql_condition=sql_condition):
            with pytest.raises(UnsupportedCondition):
                to_row_condition(sql_condition, COLUMNS)
            test = DbtTest("t", "not_null", None, {}, "n", where=sql_condition)
            with pytest.raises(NotConvertible, match="in its where is not a comparison"):
                to_expectation(test, COLUMNS)


def test_where_of_expectation_of_whole_table_is_not_converted() -> None:
    test = DbtTest(
        "t",
        "expect_table_column_count_to_equal",
        "dbt_expectations",
        {"value": 3},
        None,
        where="n = 1",
    )
    with pytest.raises(NotConvertible, match="of the whole table"):
        to_expectation(test, COLUMNS)
