"""Tests of dbt and their expectations accept the same rows, or are not imported with a reason.

The SQL is what dbt 1.12 compiles for DuckDB.
"""

from __future__ import annotations

from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

pytest.importorskip("great_expectations")
from featurestore.dbt.expectations import (
    DbtColumns,
    NotConvertible,
    RelatedGroup,
    convert_relationship,
    differences,
    to_expectation,
)
from featurestore.dbt.manifest import DbtTest
from featurestore.errors import InvalidExpectation
from featurestore.plugins.validator import find_validator
from featurestore.validation.checks import Subject
from featurestore.validation.tables import check_table
from featurestore_connectors.duckdb_delta import DuckDBEngine

ROWS = pa.table(
    {
        "text": ["True", "true", "1", None],
        "flag": [True, True, False, None],
        "n": pa.array([1, 2, 2, None], pa.int32()),
        "money": pa.array([Decimal("0.10"), Decimal("3.30"), None, None], pa.decimal128(5, 2)),
        "x": [0.1, 3.3, None, None],
    }
)
COLUMNS = DbtColumns(ROWS.schema)
VALUE_SETS: list[list[Any]] = [
    [True, False], ["true", "True", "1"], ["t", "f"], [1, 2], [1.5, 2], ["1", "2"], [0.1, 3.3],
    ["0.10", "3.3"], [True], ["yes"],
]  # fmt: skip


def fails_in_dbt(condition: str) -> bool:
    """Return whether a row of the table meets the condition of failing rows."""
    with duckdb.connect() as connection:
        connection.register("checked", ROWS)
        query = f"select count(*) from checked where {condition}"
        return bool(connection.execute(query).fetchall()[0][0])


def test_accepted_values_have_verdict_of_dbt(subtests: pytest.Subtests) -> None:
    validator, imported = find_validator(), 0
    for column, values, quote in product(ROWS.column_names, VALUE_SETS, [True, False]):
        test = DbtTest("t", "accepted_values", None, {"values": values, "quote": quote}, column)
        with subtests.test(column=column, values=values, quote=quote):
            try:
                expectation = to_expectation(test, COLUMNS)
            except NotConvertible:
                continue
            imported += 1
            (plain,) = validator.normalize([expectation])
            (outcome,) = validator.check(ROWS, [plain])
            constants = ", ".join(f"'{value}'" if quote else str(value) for value in values)
            assert outcome.result.success != fails_in_dbt(f'"{column}" not in ({constants})')
    assert imported > 20


def test_unique_combination_counts_null_rows_as_dbt(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    engine, validator = DuckDBEngine(), find_validator()
    rows = engine.stage(engine.from_arrow(ROWS.to_reader()), str(tmp_path))
    for columns in (["money", "x"], ["text", "n"], ["flag", "n"]):
        with subtests.test(columns=columns):
            arguments = {"combination_of_columns": columns}
            kind = "unique_combination_of_columns"
            test = DbtTest("t", kind, "dbt_utils", arguments, None)
            (plain,) = validator.normalize([to_expectation(test, COLUMNS)])
            (result,) = check_table(
                rows,
                Subject("t", 1, ROWS.schema),
                engine=engine,
                expectations=[plain],
                validator=validator,
            )
            with duckdb.connect() as connection:
                connection.register("checked", ROWS)
                grouped = f"select 1 from checked group by {', '.join(columns)} having count(*) > 1"
                assert result.success != bool(connection.execute(grouped).fetchall())
    engine.close()


def test_regex_flags_and_types_of_relationships() -> None:
    arguments = {"regex": "^TRUE$", "flags": "i"}
    name = "expect_column_values_to_match_regex"
    ignores_case = DbtTest("t", name, "dbt_expectations", arguments, "text")
    (outcome,) = find_validator().check(ROWS, [to_expectation(ignores_case, COLUMNS)])
    assert outcome.result.unexpected == 1
    multiline = DbtTest("t", name, "dbt_expectations", {**arguments, "flags": "m"}, "text")
    with pytest.raises(NotConvertible, match="flags 'm'"):
        to_expectation(multiline, COLUMNS)
    relationship = DbtTest("t", "relationships", None, {"field": "n"}, "text", tables=("a", "b"))
    with pytest.raises(InvalidExpectation, match="cannot be compared"):
        convert_relationship(
            relationship, COLUMNS, tested_node="a", groups={"b": RelatedGroup("b", ROWS.schema)}
        )


def test_rows_with_other_verdict_are_noted() -> None:
    arguments = {"value_set": [0.1, 3.3]}
    name = "expect_column_values_to_be_in_set"
    test = DbtTest("t", name, "dbt_expectations", arguments, "x")
    nulls, nan = differences(to_expectation(test, COLUMNS), test, COLUMNS)
    assert "nulls in 'x' pass" in nulls
    assert "NaN in 'x'" in nan
    arguments = {"combination_of_columns": ["n"]}
    unique = DbtTest("t", "unique_combination_of_columns", "dbt_utils", arguments, None)
    (several,) = differences(to_expectation(unique, COLUMNS), unique, COLUMNS)
    assert "several nulls in 'n'" in several
