"""The forms in which people give expectations, made plain: ``{"type": ..., "kwargs": {...}}``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from featurestore.errors import InvalidExpectation
from featurestore_connectors.great_expectations.library import library, quiet

# Map expectations whose outcome for one row depends on other rows: not to be checked chunk by chunk.
_NEED_ALL_ROWS = frozenset(
    {
        "expect_column_values_to_be_unique",
        "expect_compound_columns_to_be_unique",
        "expect_column_values_to_be_increasing",
        "expect_column_values_to_be_decreasing",
        "expect_column_value_z_scores_to_be_less_than",
        "expect_column_values_to_not_be_outliers",
        "expect_column_values_to_be_of_type",
        "expect_column_values_to_be_in_type_list",
    }
)
# Names and number of columns and rows: no values needed.
OUTLINE_ONLY = frozenset(
    {
        "expect_column_to_exist",
        "expect_table_column_count_to_be_between",
        "expect_table_column_count_to_equal",
        "expect_table_columns_to_match_ordered_list",
        "expect_table_columns_to_match_set",
        "expect_table_row_count_to_be_between",
        "expect_table_row_count_to_equal",
    }
)
_NEED_SQL = frozenset({"unexpected_rows_expectation", "expect_query_results_to_match_comparison"})
_SINGLE_COLUMN = ("column", "column_A", "column_B")
_KEPT = ("meta", "severity", "description", "notes")
_DEFAULTS: dict[str, Any] = {"severity": "critical"}


def plain_expectations(given: object) -> tuple[dict[str, Any], ...]:
    """Return plain dicts for expectations given as objects, a suite, dicts, or a list of these.

    Raises:
        InvalidExpectation: Names the one that cannot be read and why.
    """
    if given is None:
        return ()
    if isinstance(given, Mapping) and "expectations" in given:
        return plain_expectations(given["expectations"])
    if isinstance(given, Mapping):
        return (_checked(given),)
    if hasattr(given, "expectations"):  # a suite
        return plain_expectations(list(given.expectations))
    if hasattr(given, "configuration"):  # an expectation object
        return (_checked(given.configuration.to_json_dict()),)
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        return tuple(plain for each in given for plain in plain_expectations(each))
    raise InvalidExpectation(
        f"{given!r} is not an expectation.",
        hint="give a great_expectations object, a suite, or {'type': 'expect_...', 'kwargs': {'column': ...}}",
    )


def columns_of(expectation: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns whose values an expectation needs; () when names and number of rows are enough."""
    if expectation["type"] in OUTLINE_ONLY:
        return ()
    kwargs = expectation["kwargs"]
    named = [kwargs[key] for key in _SINGLE_COLUMN if kwargs.get(key)]
    named += kwargs.get("column_list") or ()
    return tuple(dict.fromkeys([*named, *_condition_columns(kwargs.get("row_condition"))]))


def is_row_level(expectation: Mapping[str, Any]) -> bool:
    """Tell whether each row passes or fails by itself."""
    kind = str(expectation["type"])
    return kind not in _NEED_ALL_ROWS and _is_map(kind)


def build(expectation: Mapping[str, Any]) -> Any:
    """Return the expectation object for a plain dict."""
    library()
    from great_expectations.expectations.registry import get_expectation_impl

    implementation = get_expectation_impl(expectation["type"])
    meta = {key: expectation[key] for key in _KEPT if key in expectation}
    with quiet():
        return implementation(**expectation["kwargs"], **meta)


@lru_cache(maxsize=256)
def _is_map(kind: str) -> bool:
    library()
    from great_expectations.expectations.expectation import (
        ColumnMapExpectation,
        ColumnPairMapExpectation,
        MulticolumnMapExpectation,
    )
    from great_expectations.expectations.registry import get_expectation_impl

    return issubclass(
        get_expectation_impl(kind),
        ColumnMapExpectation | ColumnPairMapExpectation | MulticolumnMapExpectation,
    )


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict as it is stored, read by Great Expectations once, so that it can be read again."""
    library()
    from great_expectations.exceptions import ExpectationNotFoundError, GreatExpectationsError

    kind = given.get("type") or given.get("expectation_type")
    kwargs = given.get("kwargs", {})
    if not isinstance(kind, str) or not isinstance(kwargs, Mapping):
        raise InvalidExpectation(
            f"{dict(given)!r} is not an expectation.",
            hint="write {'type': 'expect_column_values_to_not_be_null', 'kwargs': {'column': 'age'}}",
        )
    if kind in _NEED_SQL:
        raise InvalidExpectation(
            f"{kind} runs SQL, which has no table to run on here.", hint="use column expectations"
        )
    plain = {
        "type": kind,
        "kwargs": dict(kwargs),
        **{key: given[key] for key in _KEPT if given.get(key)},
    }
    try:
        configuration = build(plain).configuration.to_json_dict()
    except ExpectationNotFoundError as error:
        raise InvalidExpectation(
            f"There is no expectation {kind!r}.", hint=_nearest(kind)
        ) from error
    except (GreatExpectationsError, TypeError, ValueError) as error:
        raise InvalidExpectation(
            f"{kind}({dict(kwargs)!r}) cannot be read: {_first_line(error)}."
        ) from error
    # 3 is read as 3.0: what was written is kept.
    kept = {
        key: kwargs[key] if kwargs.get(key) == value else value
        for key, value in configuration["kwargs"].items()
    }
    result: dict[str, Any] = {"type": kind, "kwargs": kept}
    result |= {
        k: configuration[k]
        for k in _KEPT
        if configuration.get(k) and configuration[k] != _DEFAULTS.get(k)
    }
    return result


def _nearest(kind: str) -> str:
    from difflib import get_close_matches

    from great_expectations.expectations import core

    names = [
        re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        for name in dir(core)
        if name.startswith("Expect")
    ]
    near = get_close_matches(kind, names, n=1)
    return (
        f"did you mean {near[0]!r}?"
        if near
        else "types are named like 'expect_column_values_to_not_be_null'"
    )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:3]).rstrip(".")


def _condition_columns(condition: Any) -> list[str]:
    """Return the columns that a row condition names: a dict of conditions, or a text for pandas or GX itself."""
    if condition is None:
        return []
    if isinstance(condition, str):
        named = re.findall(r"col\(\s*[\"']([^\"']+)[\"']\s*\)", condition)
        return named or _names_in(condition)
    found: list[str] = []
    if isinstance(condition, Mapping):
        if "pass_through_filter" in condition:
            return _condition_columns(condition["pass_through_filter"])
        column = condition.get("column")
        found += [column["name"]] if isinstance(column, Mapping) else []
        found += [
            name
            for key, value in condition.items()
            if key != "column"
            for name in _condition_columns_in(value)
        ]
    return found


def _condition_columns_in(value: Any) -> list[str]:
    if isinstance(value, list):
        return [name for each in value for name in _condition_columns_in(each)]
    return _condition_columns(value) if isinstance(value, Mapping) else []


def _names_in(expression: str) -> list[str]:
    """Return the names in an expression of ``DataFrame.query``."""
    try:
        tree = ast.parse(expression.replace("`", ""), mode="eval")
    except SyntaxError as error:
        raise InvalidExpectation(
            f"row_condition={expression!r} cannot be read: {error.msg}."
        ) from error
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
