"""Great Expectations behind the Validator interface.

Every form of expectation, counts and failing rows.
"""

from __future__ import annotations

import json
import math
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from importlib.resources import files
from itertools import product
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from featurestore.errors import InvalidExpectation
from featurestore.model.validation import ExpectationResult, ValidationReport
from featurestore.plugins.validator import Validator, find_validator

TABLE = pa.table(
    {
        "n": pa.array([1, 2, None, 400]),
        "x": [1.5, None, float("nan"), 9.0],
        "word": ["x", "y", None, "zz"],
        "at": pa.array([1, 2, 3, None], pa.timestamp("us", "UTC")),
        "day": pa.array([date(2020, 1, 1)] * 3 + [None]),
        "flag": [True, None, False, True],
        "big": pa.array([2**63 + 5, None, 1, 2], pa.uint64()),
        "money": pa.array([1, 2, 3, None]).cast(pa.decimal128(22, 2)),
        "list": [[1.0]] * 4,
    }
)


@pytest.fixture(scope="module")
def validator() -> Validator:
    return find_validator()


def rule(expectation: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": f"expect_{expectation}", "kwargs": kwargs}


# An expectation, the rows that fail, and the number of checked rows.
ROW_LEVEL: list[tuple[dict[str, Any], list[int], int]] = [
    (rule("column_values_to_be_between", column="n", max_value=100), [3], 3),
    (rule("column_values_to_not_be_null", column="x"), [1, 2], 4),
    (rule("column_values_to_be_in_set", column="word", value_set=["x", "y"]), [3], 3),
    (rule("column_values_to_match_regex", column="word", regex="^[xy]$"), [3], 3),
    (rule("column_value_lengths_to_be_between", column="word", max_value=1), [3], 3),
    (
        rule("column_values_to_be_between", column="at", min_value="2020-01-01T00:00:00Z"),
        [0, 1, 2],
        3,
    ),
    (rule("column_values_to_be_between", column="day", min_value="2021-01-01"), [0, 1, 2], 3),
    (rule("column_values_to_be_in_set", column="day", value_set=["2020-01-01"]), [], 3),
    (rule("column_values_to_be_in_set", column="flag", value_set=[True]), [2], 3),
    (rule("column_values_to_be_between", column="big", max_value=10), [0], 3),
    (rule("column_values_to_be_between", column="money", max_value=2), [2], 3),
    (rule("column_pair_values_a_to_be_greater_than_b", column_A="n", column_B="x"), [0, 1], 3),
    (rule("multicolumn_sum_to_equal", column_list=["n", "x"], sum_total=2.5), [1, 3], 3),
    (
        rule(
            "column_values_to_be_between",
            column="n",
            max_value=10,
            row_condition='col("x") > 2',
            condition_parser="great_expectations",
        ),
        [3],
        1,
    ),
    (
        rule(
            "column_values_to_be_between",
            column="n",
            max_value=10,
            row_condition="x > 2",
            condition_parser="pandas",
        ),
        [3],
        1,
    ),
]
# An expectation, whether it holds, and its columns.
TABLE_LEVEL: list[tuple[dict[str, Any], bool, tuple[str, ...]]] = [
    (rule("column_mean_to_be_between", column="x", max_value=2), False, ("x",)),
    (rule("column_values_to_be_unique", column="n"), True, ("n",)),
    (rule("compound_columns_to_be_unique", column_list=["n", "word"]), True, ("n", "word")),
    (rule("table_row_count_to_equal", value=4), True, ()),
    (rule("table_columns_to_match_set", column_set=["n"], exact_match=False), True, ()),
    (rule("column_to_exist", column="n"), True, ()),
    (rule("column_values_to_be_increasing", column="n"), True, ("n",)),
]


def test_validator_check_reports_failing_rows(
    validator: Validator, subtests: pytest.Subtests
) -> None:
    for expectation, failing, checked in ROW_LEVEL:
        with subtests.test(expectation["type"], **expectation["kwargs"]):
            (plain,) = validator.normalize(expectation)
            assert validator.is_row_level(plain)
            (outcome,) = validator.check(TABLE.select(list(validator.columns(plain))), [plain])
            assert outcome.result.success == (not failing)
            assert outcome.result.unexpected == len(failing)
            assert outcome.checked == checked
            assert (outcome.failing is None) == (not failing)
            if outcome.failing is not None:
                assert np.flatnonzero(outcome.failing).tolist() == failing
            assert validator.holds(plain, checked=checked, unexpected=len(failing)) == (not failing)


# Values of each numeric type, and constants as JSON has them.
NUMBERS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.decimal128(5, 2), [Decimal(text) for text in ("0.10", "3.30", "-999.99", "2.00")]),
    (pa.decimal128(38, 0), [Decimal("9" * 38), Decimal(2)]),
    (pa.int8(), [-128, 0, 2, 3]),
    (pa.int64(), [2**53, 2**53 + 1, -(2**63), 3]),
    (pa.uint64(), [0, 2**63, 2**64 - 1]),
    (pa.float64(), [0.1, 3.3, 2.0**53, float("inf")]),
]
CONSTANTS: list[Any] = [0.1, 3.3, 2, 2.0, 2.5, -999.99, 0.001, 2**53, 2**53 + 1, 2**64, 1e300, -1]


DECIMALS = ["0.10", "3.30", "12345678901234567890.12", "-7"]


def test_decimal_arguments_are_stored_without_loss(
    validator: Validator, subtests: pytest.Subtests
) -> None:
    numbers = list(map(Decimal, DECIMALS))
    table = pa.table({"c": pa.array(numbers, pa.decimal128(30, 2))})
    for number in numbers:
        with subtests.test(number=number):
            equal = rule(
                "column_values_to_be_between", column="c", min_value=number, max_value=number
            )
            member = rule("column_values_to_be_in_set", column="c", value_set=[number])
            normalized = json.loads(json.dumps(validator.normalize([equal, member])))
            for outcome in validator.check(table, normalized):
                assert outcome.failing.tolist() == [each != number for each in numbers]


def exact(value: Any) -> Any:
    """Return a number by value; a float of JSON is the decimal number that is written."""
    is_finite_float = isinstance(value, float) and math.isfinite(value)
    return Fraction(repr(value)) if is_finite_float else value


def test_limits_and_sets_compare_numbers_by_value(
    validator: Validator, subtests: pytest.Subtests
) -> None:
    for (dtype, values), constant in product(NUMBERS, CONSTANTS):
        table = pa.table({"c": pa.array([*map(str, values), None]).cast(dtype)})
        if pa.types.is_floating(dtype):
            table = pa.table({"c": pa.array([*values, None], dtype)})
        numbers, limit = list(map(exact, values)), exact(constant)
        for name, expected, arguments in (
            ("be_between", [n < limit for n in numbers], {"min_value": constant}),
            ("be_between", [n > limit for n in numbers], {"max_value": constant}),
            (
                "be_between",
                [n <= limit for n in numbers],
                {"min_value": constant, "strict_min": True},
            ),
            ("be_in_set", [n != limit for n in numbers], {"value_set": [constant]}),
            ("not_be_in_set", [n == limit for n in numbers], {"value_set": [constant]}),
        ):
            with subtests.test(name, dtype=str(dtype), **arguments):
                checked = rule(f"column_values_to_{name}", column="c", **arguments)
                (plain,) = validator.normalize(checked)
                (outcome,) = validator.check(table, [plain])
                failing = [] if outcome.failing is None else outcome.failing.tolist()
                assert (failing or [False] * len(table))[:-1] == expected
                assert outcome.checked == len(values)


def test_decimals_of_tables_compare_as_decimals(
    validator: Validator, subtests: pytest.Subtests
) -> None:
    money = pa.array([Decimal("0.10"), Decimal("3.30"), None], pa.decimal128(5, 2))
    table = pa.table({"c": money, "other": [1, 1, 2]})
    values = [0.1, 3.3]
    for name, arguments in (
        ("column_max_to_be_between", {"max_value": 3.3}),
        ("column_min_to_be_between", {"min_value": 0.1}),
        ("column_sum_to_be_between", {"min_value": 3.4, "max_value": 3.4}),
        ("column_distinct_values_to_be_in_set", {"value_set": values}),
        ("column_distinct_values_to_contain_set", {"value_set": values}),
        ("column_distinct_values_to_equal_set", {"value_set": values}),
        ("column_most_common_value_to_be_in_set", {"value_set": values, "ties_okay": True}),
    ):
        for condition in ({}, {"row_condition": "other > 0 and c <= 3.3 and c >= 0.1"}):
            with subtests.test(name, **condition):
                (plain,) = validator.normalize(rule(name, column="c", **arguments, **condition))
                measures = validator.measures(plain, table.schema)
                if measures is None:
                    (outcome,) = validator.check(table, [plain])
                    assert outcome.result.success
                    continue
                results = {"max": Decimal("3.30"), "min": Decimal("0.10"), "sum": Decimal("3.40")}
                measured = {each: results.get(each.kind, 3) for each in measures}
                assert validator.evaluate(plain, table.schema, measured=measured).success


def test_table_level_expectations_report_no_rows(
    validator: Validator, subtests: pytest.Subtests
) -> None:
    for expectation, success, columns in TABLE_LEVEL:
        with subtests.test(expectation["type"]):
            (plain,) = validator.normalize(expectation)
            assert not validator.is_row_level(plain)
            assert validator.columns(plain) == columns
            (outcome,) = validator.check(TABLE.select(["n", "x", "word"]), [plain])
            assert outcome.result.success == success
            assert outcome.failing is None


def test_normalize_accepts_objects_suites_dicts_and_lists(validator: Validator) -> None:
    from featurestore_connectors.great_expectations.forms import import_library

    gx = import_library()
    not_null = gx.expectations.ExpectColumnValuesToNotBeNull(column="n")
    suite = gx.ExpectationSuite(
        name="s", expectations=[gx.expectations.ExpectColumnToExist(column="n")]
    )
    plain = rule("column_values_to_be_between", column="n", min_value=0)
    older = {"expectation_type": plain["type"], "kwargs": plain["kwargs"]}
    actual = validator.normalize([not_null, suite, plain, older])
    assert actual == (
        rule("column_values_to_not_be_null", column="n"),
        rule("column_to_exist", column="n"),
        plain,
        plain,
    )
    assert validator.normalize(not_null) == actual[:1]
    assert validator.normalize(suite) == actual[1:2]
    assert validator.normalize(None) == ()
    assert validator.normalize(json.loads(json.dumps(actual))) == actual


def test_expectation_times_are_compared_as_times(validator: Validator) -> None:
    from featurestore_connectors.great_expectations.forms import import_library

    inputs = import_library().expectations.ExpectColumnValuesToBeBetween(
        column="at", min_value=datetime(2020, 1, 1, tzinfo=UTC)
    )
    (plain,) = json.loads(json.dumps(validator.normalize(inputs)))
    assert plain["kwargs"]["min_value"].startswith("2020-01-01T00:00:00")
    (outcome,) = validator.check(TABLE.select(["at"]), [plain])
    assert outcome.result.unexpected == 3


def test_noncritical_severity_is_warning(validator: Validator) -> None:
    (plain,) = validator.normalize(
        {**rule("column_values_to_be_between", column="n", max_value=5), "severity": "warning"}
    )
    (outcome,) = validator.check(TABLE.select(["n"]), [plain])
    assert (outcome.result.success, outcome.result.warning) == (False, True)


def test_normalize_invalid_expectation_raises(
    validator: Validator, subtests: pytest.Subtests
) -> None:
    for wrong, message in (
        (
            rule("colum_values_to_be_null", column="a"),
            "did you mean 'expect_column_values_to_be_null'",
        ),
        (
            rule("column_values_to_be_between", column="a", minimum=1),
            "unknown argument 'minimum'; available: 'column'",
        ),
        (rule("column_values_to_be_between", min_value=1), "missing arguments 'column'"),
        ({"kwargs": {}}, "is not an expectation"),
        ("expect_column_to_exist", "is not an expectation"),
        (
            {
                "type": "unexpected_rows_expectation",
                "kwargs": {"unexpected_rows_query": "select 1"},
            },
            "runs SQL",
        ),
    ):
        with subtests.test(message), pytest.raises(InvalidExpectation, match=message):
            validator.normalize(wrong)


def test_uncomputable_expectation_raises_invalid_expectation(validator: Validator) -> None:
    with pytest.raises(InvalidExpectation, match="cannot be computed"):
        validator.check(
            TABLE.select(["word"]),
            validator.normalize(rule("column_values_to_be_between", column="word", max_value=1)),
        )


def test_validator_check_prints_nothing(
    validator: Validator, capsys: pytest.CaptureFixture[str]
) -> None:
    validator.check(
        TABLE.select(["n"]),
        validator.normalize([rule("column_values_to_not_be_null", column="n")] * 5),
    )
    shown = capsys.readouterr()
    assert shown.out + shown.err == ""


def test_validator_check_uses_no_network(
    validator: Validator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    from featurestore_connectors.great_expectations.forms import data_frame_batch

    data_frame_batch.cache_clear()
    assert validator.check(
        TABLE.select(["n"]), validator.normalize(rule("column_to_exist", column="n"))
    )


def test_great_expectations_is_imported_lazily() -> None:
    code = (
        "import sys, tempfile, featurestore, pyarrow as pa\n"
        "store = featurestore.connect(tempfile.mkdtemp())\n"
        "store.create_featuregroup(pa.table({'id': [1]}), 'g', primary_key=['id'])\n"
        "assert 'great_expectations' not in sys.modules\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr


def test_validator_is_picklable(validator: Validator) -> None:
    assert pickle.loads(pickle.dumps(validator)).name == "great_expectations"


def report() -> ValidationReport:
    results = (
        ExpectationResult(
            rule("column_values_to_be_between", column="n", max_value=5),
            False,
            10,
            2,
            samples=({"n": 6},),
        ),
        ExpectationResult(
            rule("column_mean_to_be_between", column="n", max_value=5),
            True,
            10,
            row_level=False,
            observed=3.5,
        ),
        ExpectationResult({"type": "no_null_keys", "kwargs": {"columns": ["id", "at"]}}, True, 10),
        ExpectationResult(
            {"type": "no_duplicate_keys", "kwargs": {"columns": ["id"]}},
            False,
            10,
            1,
            samples=({"id": 1, "n": 2},),
        ),
        ExpectationResult(
            {"type": "no_future_event_times", "kwargs": {"column": "at", "tolerance": "0us"}},
            False,
            10,
            1,
            warning=True,
        ),
    )
    return ValidationReport(
        "people",
        1,
        "warn",
        datetime(2024, 1, 1, tzinfo=UTC),
        10,
        results,
        run_id="r",
        delta_version=3,
    )


def test_validation_report_json_matches_schema() -> None:
    data = json.loads(json.dumps(report().to_json(), allow_nan=False))
    schema = json.loads(
        files("featurestore_schemas").joinpath("validation_report.schema.json").read_text()
    )
    jsonschema.validate(data, schema)
    assert ValidationReport.from_json(data).to_json() == data
    assert ValidationReport.from_json(data).success is False


def test_expectations_show_no_progress_bars(
    validator: Validator, capfd: pytest.CaptureFixture[str]
) -> None:
    bare = rule("column_kl_divergence_to_be_less_than", column="x", threshold=0.1)
    assert len(validator.check(TABLE.select(["x"]), [bare])) == 1
    assert capfd.readouterr().err == ""


COLLECTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "generator": iter,
    "dict keys": lambda values: dict.fromkeys(values).keys(),
    "numpy": np.array,
    "numpy scalars": lambda values: list(np.array(values)),
    "pandas": pd.Series,
    "pandas Index": pd.Index,
    "polars": pl.Series,
    "arrow": pa.array,
}


# An expectation, its argument that is a list of values, and values.
LIST_ARGUMENTS: list[tuple[dict[str, Any], str, list[Any]]] = [
    (rule("column_values_to_be_in_set", column="word"), "value_set", ["x", "y"]),
    (rule("column_values_to_be_in_set", column="n"), "value_set", [1, 2]),
    (rule("column_distinct_values_to_equal_set", column="x"), "value_set", [0.5, 1.5]),
    (rule("column_values_to_match_regex_list", column="word"), "regex_list", ["x", "y"]),
    (rule("compound_columns_to_be_unique"), "column_list", ["n", "x"]),
    (rule("table_columns_to_match_set"), "column_set", ["n", "x"]),
]


def test_collections_of_any_library_are_lists_of_values(
    validator: Validator, subtests: pytest.Subtests
) -> None:
    def normalize(expectation: dict[str, Any], argument: str, collection: Any) -> Any:
        kwargs = {**expectation["kwargs"], argument: collection}
        return validator.normalize([{**expectation, "kwargs": kwargs}])

    for (expectation, argument, values), collection_type in product(LIST_ARGUMENTS, COLLECTIONS):
        with subtests.test(f"{expectation['type']} {collection_type}", values=values):
            collection = COLLECTIONS[collection_type](values)
            normalized = json.dumps(normalize(expectation, argument, collection))
            assert normalized == json.dumps(normalize(expectation, argument, values))


def test_table_as_value_set_raises(validator: Validator, subtests: pytest.Subtests) -> None:
    for values in (pd.DataFrame({"a": ["x"]}), np.array([["x"]]), pa.table({"a": ["x"]})):
        with subtests.test(type(values).__name__):
            wrong = rule("column_values_to_be_in_set", column="word", value_set=values)
            with pytest.raises(
                InvalidExpectation, match=r"value_set is a .*, not a list"
            ) as raised:
                validator.normalize([wrong])
            assert raised.value.hint is not None
            pasted = eval(f"dict({raised.value.hint})")
            validator.normalize([rule("column_values_to_be_in_set", column="word", **pasted)])
