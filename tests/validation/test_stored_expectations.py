"""Stored expectations are untrusted: they are checked or refused with a store error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from featurestore.errors import InvalidExpectation
from featurestore.plugins.validator import find_validator
from featurestore.store import FeatureStore
from featurestore_connectors.great_expectations.forms import import_library

TABLE = pa.table({"n": [1, 2, None], "x": [1.0, None, 3.0], "word": ["a", None, "c"]})
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["n", "x", "1", "", "2020-01-01", "[", "int64", "%Y", "__name__"])
    | st.text(max_size=5)
)
KEYS = st.sampled_from(["$PARAMETER", "$ref", "type", "column", "quantiles", "values", "weights"])
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
COLUMNS = st.sampled_from(["n", "x", "word"])
FITTING: dict[str, st.SearchStrategy[Any]] = {
    "column": COLUMNS,
    "column_A": COLUMNS,
    "column_B": COLUMNS,
    "column_list": st.lists(COLUMNS, min_size=2, max_size=3, unique=True),
    "mostly": st.floats(0, 1),
    "quantile_ranges": st.just({"quantiles": [0.5], "value_ranges": [[0, 1]]}),
    "row_condition": st.sampled_from(["n > 1", "word == 'a'", "x"]),
    "value_set": st.lists(SCALARS, max_size=3),
}
NOT_DRAWN = {"id", "meta", "notes", "description", "severity", "rendered_content", "windows"}


@cache
def arguments() -> dict[str, dict[str, bool]]:
    """Return the arguments of each kind of expectation, and whether they are required."""
    result = {}
    for name in dir(import_library().expectations):
        expectation_class = getattr(import_library().expectations, name)
        if getattr(expectation_class, "expectation_type", ""):
            fields = expectation_class.__fields__.items()
            result[expectation_class.expectation_type] = {
                name: bool(field.required) for name, field in fields if name not in NOT_DRAWN
            }
    return result


@st.composite
def expectations(draw: st.DrawFn) -> dict[str, Any]:
    kinds = arguments()
    expectation_type = draw(st.sampled_from(sorted(kinds)))
    kwargs = {}
    for name, required in kinds[expectation_type].items():
        if required or draw(st.booleans()):
            kwargs[name] = draw(FITTING.get(name, JSON) if draw(st.integers(0, 9)) else JSON)
    return {"type": expectation_type, "kwargs": kwargs}


def check(definition: object) -> None:
    validator = find_validator()
    try:
        for plain in validator.normalize(definition):
            assert validator.normalize(json.loads(json.dumps(plain))) == (plain,)
            validator.measures(plain, TABLE.schema)
            if set(validator.columns(plain)) <= set(TABLE.column_names):
                validator.check(TABLE, [plain])
    except InvalidExpectation:
        pass


NOT_FINITE = {
    "NaN": float("nan"), "infinity": float("inf"), "minus infinity": -float("inf"),
    "numpy NaN": np.float32("nan"), "decimal NaN": Decimal("NaN"), "quiet NaN": Decimal("sNaN"),
    "NaT": pd.NaT, "text nan": "nan", "text inf": "-inf", "text beyond doubles": "1e999",
}  # fmt: skip
ARGUMENTS = {
    "column": "x", "column_A": "x", "column_B": "n", "column_list": ["n", "x"], "value": 1,
    "sum_total": 1, "threshold": 1, "double_sided": True, "method": "iqr", "multiplier": 1,
    "internal_weight_holdout": 0.1, "tail_weight_holdout": 0.1, "value_set": [1],
    "value_pairs_set": [(1, 2)], "partition_object": {"values": [1]},
    "quantile_ranges": {"quantiles": [0.5], "value_ranges": [[0, 1]]}, "type_": "int64",
    "regex": "a", "regex_list": ["a"], "like_pattern": "a", "like_pattern_list": ["a"],
    "strftime_format": "%Y", "json_schema": {}, "column_set": ["x"], "min_value": 0,
    "max_value": 1, "column_index": 0, "mostly": 0.5, "type_list": ["int64"],
}  # fmt: skip
SQL = {"base_query", "comparison_query", "other_table_name", "unexpected_rows_query"}


def numeric_arguments() -> Iterator[tuple[str, str]]:
    """Yield (kind of expectation, argument) for numeric arguments."""
    for name in dir(import_library().expectations):
        expectation_class = getattr(import_library().expectations, name)
        fields = (
            getattr(expectation_class, "__fields__", {})
            if getattr(expectation_class, "expectation_type", "")
            else {}
        )
        if SQL & set(fields):
            continue
        for argument, field in fields.items():
            words = str(field.outer_type_)
            if ("float" in words.lower() or "[int" in words) and "bool" not in words:
                yield expectation_class.expectation_type, argument


def with_argument(expectation_type: str, argument: str, value: Any) -> dict[str, Any]:
    """Return an expectation with valid required arguments and one given argument."""
    kwargs = {}
    for name, required in arguments()[expectation_type].items():
        if required or name == "min_value":
            kwargs[name] = ARGUMENTS[name]
    return {"type": expectation_type, "kwargs": {**kwargs, argument: value}}


@pytest.mark.parametrize("case", NOT_FINITE)
def test_normalize_non_finite_numbers_raise(case: str) -> None:
    pairs = list(numeric_arguments())
    assert len(pairs) > 50
    for expectation_type, argument in pairs:
        find_validator().normalize(with_argument(expectation_type, argument, ARGUMENTS[argument]))
        with pytest.raises(InvalidExpectation) as error:
            find_validator().normalize(with_argument(expectation_type, argument, NOT_FINITE[case]))
        assert argument in str(error.value)


def test_huge_integers_are_checked_or_refused() -> None:
    for expectation_type, argument in numeric_arguments():
        check(with_argument(expectation_type, argument, 10**400))
    check(with_argument("expect_column_values_to_be_in_set", "value_set", [10**400]))
    ranges = {"quantiles": [0.5], "value_ranges": [[0, 10**400]]}
    expectation_type = "expect_column_quantile_values_to_be_between"
    check(with_argument(expectation_type, "quantile_ranges", ranges))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float64("nan"), Decimal("NaN")])
def test_normalize_nested_non_finite_numbers_raise(value: Any) -> None:
    nested = {
        "value_set": ("expect_column_values_to_be_in_set", [[1, value], {1, value}]),
        "value_pairs_set": ("expect_column_pair_values_to_be_in_set", [[(1, value)]]),
        "quantile_ranges": (
            "expect_column_quantile_values_to_be_between",
            [
                {"quantiles": [0.5], "value_ranges": [[0, value]]},
                {"quantiles": [value], "value_ranges": [[0, 1]]},
            ],
        ),
        "partition_object": (
            "expect_column_kl_divergence_to_be_less_than",
            [{"values": [1, 2], "weights": [0.5, value]}],
        ),
        "json_schema": ("expect_column_values_to_match_json_schema", [{"maximum": value}]),
    }
    for argument, (expectation_type, examples) in nested.items():
        for example in examples:
            with pytest.raises(InvalidExpectation, match=f"'{argument}' contains .* not a finite"):
                find_validator().normalize(with_argument(expectation_type, argument, example))


def test_expectation_objects_with_nan_are_refused_before_storing(
    empty_store: FeatureStore,
) -> None:
    kinds = import_library().expectations
    inputs = [
        kinds.ExpectColumnMaxToBeBetween(column="x", max_value=float("nan")),
        kinds.ExpectColumnValuesToBeInSet(column="x", value_set=[1, float("inf")]),
        import_library().ExpectationSuite(
            "suite", [kinds.ExpectColumnMaxToBeBetween(column="x", min_value=float("-inf"))]
        ),
        {"type": "expect_column_max_to_be_between", "kwargs": {"column": "x", "max_value": "nan"}},
    ]
    for expectations in inputs:
        with pytest.raises(InvalidExpectation, match="not a finite number"):
            empty_store.create_featuregroup(TABLE, "numbers", expectations=expectations)
    assert empty_store.get_featuregroups() == []


def test_row_condition_non_finite_numbers_raise() -> None:
    for condition in ("x > 1e999", "x in [1, -1e999]", "1 < x < 1" + "0" * 400 + ".0"):
        with pytest.raises(InvalidExpectation):
            find_validator().normalize(
                with_argument(
                    "expect_column_values_to_be_between", "min_value", 0
                ) | {"kwargs": {"column": "x", "row_condition": condition}}
            )  # fmt: skip


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(expectations() | JSON)
def test_random_json_is_expectation_or_refused(definition: object) -> None:
    check(definition)


@pytest.mark.soak
@settings(max_examples=20_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(expectations() | JSON)
def test_many_random_json_are_expectations_or_refused(definition: object) -> None:
    check(definition)
