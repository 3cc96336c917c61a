"""Expectations about whole tables.

The engine's numbers give what Great Expectations gives on the loaded columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from featurestore.model.validation import ExpectationResult
from featurestore.plugins.engine import Engine, Relation
from featurestore.plugins.validator import Validator, find_validator
from featurestore.validation import Subject
from featurestore.validation.tables import check_table

if TYPE_CHECKING:
    from featurestore.store import FeatureStore

pytestmark = pytest.mark.slow

TIMESTAMP = pa.timestamp("us", "UTC")


def rule(expectation: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": f"expect_{expectation}", "kwargs": kwargs}


def varied() -> pa.Table:
    random = np.random.default_rng(3)
    floats = random.normal(5, 2, 60)
    floats[7] = np.nan
    return pa.table(
        {
            "x": pa.array(floats, mask=random.random(60) < 0.2),
            "endless": [float("inf"), *floats[:6], *floats[8:61], 1.0][:60],
            "n": pa.array(random.integers(0, 9, 60), mask=random.random(60) < 0.1),
            "once": pa.array(range(60)),
            "big": pa.array(random.integers(0, 2**63, 60, dtype=np.uint64), pa.uint64()),
            "money": pa.array([Decimal(number) / 4 for number in range(60)], pa.decimal128(12, 2)),
            "word": pa.array([["ash", "birch", None, "cedar"][number % 4] for number in range(60)]),
            "flag": pa.array([True, False] * 30),
            "at": pa.array(range(10**15, 10**15 + 60), TIMESTAMP),
            "day": pa.array([date(2024, 1, 1 + number % 28) for number in range(60)]),
            "empty": pa.nulls(60, pa.float64()),
        }
    )


def bounds(*columns: str) -> Iterator[dict[str, Any]]:
    """Yield expectations of every kind with a bound that passes, fails, or just passes."""
    measures = ("mean", "median", "stdev", "sum", "min", "max", "unique_value_count", "proportion_of_unique_values",
             "proportion_of_non_null_values")  # fmt: skip
    for column in columns:
        for measure in measures:
            for least in (0.5, 5):
                yield rule(
                    f"column_{measure}_to_be_between",
                    column=column,
                    min_value=least,
                    max_value=1e40,
                )
                yield rule(
                    f"column_{measure}_to_be_between",
                    column=column,
                    max_value=least,
                    strict_max=True,
                )


TABLES = [
    *bounds("x", "n", "empty"),
    rule("column_max_to_be_between", column="big", max_value=2**62),
    rule("column_unique_value_count_to_be_between", column="big", min_value=60),
    rule("column_sum_to_be_between", column="money", min_value=442.5, max_value=442.5),
    rule("column_stdev_to_be_between", column="endless", max_value=1e9),
    rule("column_min_to_be_between", column="at", min_value="2001-09-09T01:46:40Z"),
    rule("column_max_to_be_between", column="at", max_value="2001-09-09T01:46:40Z"),
    rule("column_min_to_be_between", column="day", min_value="2024-01-01", max_value="2024-01-01"),
    rule("column_max_to_be_between", column="day", max_value="2024-01-28", strict_max=True),
    rule("column_unique_value_count_to_be_between", column="word", max_value=2),
    rule("column_proportion_of_unique_values_to_be_between", column="word", max_value=0.1),
    rule("column_values_to_be_unique", column="once"),
    rule("column_values_to_be_unique", column="n"),
    rule("column_values_to_be_unique", column="empty"),
    rule("column_values_to_be_unique", column="x", mostly=0.5),
    rule("compound_columns_to_be_unique", column_list=["n", "word"]),
    rule("compound_columns_to_be_unique", column_list=["n", "once"]),
    rule("compound_columns_to_be_unique", column_list=["n", "word"], ignore_row_if="never"),
    rule("column_distinct_values_to_be_in_set", column="word", value_set=["ash", "birch", "cedar"]),
    rule("column_distinct_values_to_be_in_set", column="word", value_set=["ash"]),
    rule("column_distinct_values_to_contain_set", column="n", value_set=[0, 1]),
    rule("column_distinct_values_to_equal_set", column="flag", value_set=[True, False]),
    rule("column_most_common_value_to_be_in_set", column="word", value_set=["ash"], ties_okay=True),
    rule(
        "column_quantile_values_to_be_between",
        column="once",
        quantile_ranges={"quantiles": [0.5], "value_ranges": [[20, 40]]},
    ),
    rule(
        "column_mean_to_be_between",
        column="n",
        max_value=3,
        row_condition="once < 10",
        condition_parser="pandas",
    ),
    rule("table_row_count_to_equal", value=60),
    rule("table_row_count_to_be_between", max_value=59),
    rule("table_column_count_to_equal", value=11),
    rule("column_to_exist", column="absent"),
]


def staged(store: FeatureStore, table: pa.Table) -> tuple[Engine, Relation]:
    engine = store.session.engine
    return engine, engine.stage(
        engine.from_arrow(table.to_reader(max_chunksize=25)), f"{store.location}/_staged"
    )


def assert_same_result(result: ExpectationResult, expected: ExpectationResult) -> None:
    actual = [
        (outcome.expectation, outcome.success, outcome.unexpected, outcome.row_level)
        for outcome in (result, expected)
    ]
    assert actual[0] == actual[1]
    if isinstance(expected.observed, float) and expected.observed == expected.observed:
        assert float(result.observed) == pytest.approx(expected.observed, rel=1e-12)


@pytest.fixture(scope="module")
def on_loaded_columns() -> tuple[tuple[Any, ...], list[ExpectationResult]]:
    """The expectations, and the library's results."""
    validator = find_validator()
    rules = validator.normalize(TABLES)
    return rules, [outcome.result for outcome in validator.check(varied(), rules)]


def test_check_table_engine_equals_library_results(
    store: FeatureStore, on_loaded_columns: tuple[tuple[Any, ...], list[ExpectationResult]]
) -> None:
    rules, expected_results = on_loaded_columns
    engine, relation = staged(store, varied())
    subject = Subject("t", 1, relation.schema)
    matches = check_table(
        relation, subject, engine=engine, expectations=rules, validator=find_validator()
    )
    for result, expected in zip(matches, expected_results, strict=True):
        assert_same_result(result, expected)


@pytest.mark.parametrize("rows", [0, 1])
def test_check_table_few_rows_equals_library_results(empty_store: FeatureStore, rows: int) -> None:
    validator = find_validator()
    table = varied().slice(0, rows).select(["x", "n"])
    engine, relation = staged(empty_store, table)
    rules = validator.normalize([*bounds("x", "n"), rule("column_values_to_be_unique", column="n")])
    actual = check_table(
        relation,
        Subject("t", 1, relation.schema),
        engine=engine,
        expectations=rules,
        validator=validator,
    )
    for result, outcome in zip(actual, validator.check(table, rules), strict=True):
        assert_same_result(result, outcome.result)


class Loads:
    """An engine that records the loaded columns."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.rows = engine, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def stream(self, relation: Relation, **options: Any) -> Any:
        table = self.engine.stream(relation, **options).read_all()
        self.rows += table.num_rows
        return table.to_reader()


@pytest.fixture
def thousands(empty_store: FeatureStore) -> tuple[Any, Relation, Validator]:
    random = np.random.default_rng(1)
    engine, relation = staged(
        empty_store,
        pa.table(
            {
                "x": random.normal(size=50_000),
                "n": random.integers(0, 5, 50_000),
                "id": np.arange(50_000),
            }
        ),
    )
    return Loads(engine), relation, find_validator()


MEASURED = [
    rule("column_mean_to_be_between", column="x", min_value=-1, max_value=1),
    rule("column_stdev_to_be_between", column="x", min_value=0, max_value=2),
    rule("column_median_to_be_between", column="x", min_value=-1, max_value=1),
    rule("column_sum_to_be_between", column="n", min_value=0),
    rule("column_values_to_be_unique", column="id"),
    rule("compound_columns_to_be_unique", column_list=["id", "n"]),
    rule("column_unique_value_count_to_be_between", column="n", max_value=5),
    rule("column_distinct_values_to_be_in_set", column="n", value_set=[0, 1, 2, 3, 4]),
    rule("table_row_count_to_equal", value=50_000),
]


def test_check_table_large_columns_are_aggregated_by_engine(
    thousands: tuple[Any, Relation, Validator],
) -> None:
    engine, relation, validator = thousands
    actual = check_table(
        relation,
        Subject("t", 1, relation.schema),
        engine=engine,
        expectations=validator.normalize(MEASURED),
        validator=validator,
        max_bytes=1_000,
    )
    assert all(result.success for result in actual)
    assert engine.rows < 20, "rows were loaded"


def test_check_table_unsupported_aggregate_over_bound_is_error(
    thousands: tuple[Any, Relation, Validator],
) -> None:
    engine, relation, validator = thousands
    ranges = {"quantiles": [0.5], "value_ranges": [[-1, 1]]}
    rules = validator.normalize(
        rule("column_quantile_values_to_be_between", column="x", quantile_ranges=ranges)
    )
    subject = Subject("t", 1, relation.schema)
    (refused,) = check_table(
        relation,
        subject,
        engine=engine,
        expectations=rules,
        validator=validator,
        max_bytes=1_000,
    )
    assert (refused.is_error, refused.success) == (True, False)
    assert refused.message == (
        "needs all values of x in memory, and they need more than 0 MiB. The engine computes mean, "
        "sum, standard deviation, median, minimum, maximum, uniqueness and numbers of values, and "
        "row-level expectations are checked in chunks"
    )
    assert check_table(relation, subject, engine=engine, expectations=rules, validator=validator)[
        0
    ].success


def test_check_table_bound_of_wrong_type_is_error(
    thousands: tuple[Any, Relation, Validator],
) -> None:
    engine, relation, validator = thousands
    rules = validator.normalize(
        rule("column_max_to_be_between", column="x", max_value="2024-01-01")
    )
    (result,) = check_table(
        relation,
        Subject("t", 1, relation.schema),
        engine=engine,
        expectations=rules,
        validator=validator,
    )
    assert result.is_error
    assert result.message.startswith("cannot be computed")


def test_overflow_of_one_measure_prevents_no_other(store: FeatureStore) -> None:
    validator = find_validator()
    numbers = pa.array([Decimal("9" * 38)] * 2, pa.decimal128(38, 0))
    table = pa.table({"d": numbers, "n": [1, 2]})
    engine, relation = staged(store, table)
    rules = validator.normalize(
        [
            rule("column_sum_to_be_between", column="d", max_value=1),
            rule("column_max_to_be_between", column="n", max_value=1),
            rule("column_values_to_be_unique", column="n"),
        ]
    )
    results = check_table(
        relation,
        Subject("t", 1, table.schema),
        engine=engine,
        expectations=rules,
        validator=validator,
    )
    assert [result.success for result in results] == [False, False, True]
    assert [result.is_error for result in results][1:] == [False, False]
