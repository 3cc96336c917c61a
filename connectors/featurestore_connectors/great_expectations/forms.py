"""The forms in which people give expectations, made plain: ``{"type": ..., "kwargs": {...}}``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from functools import lru_cache
from numbers import Real
from typing import Any

from featurestore.errors import (
    InvalidExpectation,
    did_you_mean,
)
from featurestore_connectors.great_expectations.conditions import Condition, parse_condition
from featurestore_connectors.great_expectations.library import library, quiet

# Map expectations whose outcome for one row depends on other rows: not to be checked chunk by
# chunk.
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
# Names and number of columns: no values needed.
_NAMES_ONLY = frozenset(
    {
        "expect_column_to_exist",
        "expect_table_column_count_to_be_between",
        "expect_table_column_count_to_equal",
        "expect_table_columns_to_match_ordered_list",
        "expect_table_columns_to_match_set",
    }
)
_NEED_SQL = frozenset(
    {
        "expect_query_results_to_match_comparison",
        "expect_table_row_count_to_equal_other_table",
        "unexpected_rows_expectation",
    }
)
# How the library runs and reports is decided here, and conditions are compiled here: none of these
# reaches it.
_NOT_PASSED_ON = (
    "batch_id",
    "catch_exceptions",
    "condition_parser",
    "rendered_content",
    "result_format",
    "row_condition",
    "windows",
)
_ROW_COUNT = "expect_table_row_count_to_be_between"
_DEEPEST = 50
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
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
        # Its JSON has null in place of NaN.
        _refuse_infinite(given.configuration.type, given.configuration.kwargs)
        return (_checked(given.configuration.to_json_dict()),)
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        return tuple(plain for each in given for plain in plain_expectations(each))
    raise InvalidExpectation(
        f"{given!r} is not an expectation.",
        hint="give a great_expectations object, a suite, or "
        "{'type': 'expect_...', 'kwargs': {'column': ...}}",
    )


def columns_of(expectation: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns whose values an expectation needs.

    () when names and number of rows are enough.
    """
    if expectation["type"] in _NAMES_ONLY:
        return ()
    kwargs = expectation["kwargs"]
    named = [kwargs[key] for key in _SINGLE_COLUMN if kwargs.get(key)]
    named += kwargs.get("column_list") or ()
    condition = condition_of(expectation)
    if condition is not None:
        named += condition.columns()
    return tuple(dict.fromkeys(named))


def condition_of(expectation: Mapping[str, Any]) -> Condition | None:
    """Return the condition that rows meet which an expectation is about.

    None: it is about all rows.
    """
    if expectation["type"] in _NAMES_ONLY:
        return None
    return parse_condition(expectation["kwargs"].get("row_condition"))


def is_row_level(expectation: Mapping[str, Any]) -> bool:
    """Tell whether each row passes or fails by itself."""
    kind = str(expectation["type"])
    return kind not in _NEED_ALL_ROWS and _is_map(kind)


def build(expectation: Mapping[str, Any]) -> Any:
    """Return the library's object for a plain dict, without its row condition.

    The dict may come from a stored table: it is data. Whatever the library would run, look up or
    evaluate is refused.

    Raises:
        InvalidExpectation: There is no such expectation, its arguments are wrong or contain a
            number that is not finite, or it holds SQL, a suite parameter or a reference to another
            document.
    """
    library()
    from great_expectations.exceptions import ExpectationNotFoundError, GreatExpectationsError
    from great_expectations.expectations.registry import get_expectation_impl

    kind, kwargs = expectation["type"], expectation["kwargs"]
    _refuse_code(kind, kwargs)
    _refuse_infinite(kind, kwargs)
    passed_on = {key: value for key, value in kwargs.items() if key not in _NOT_PASSED_ON}
    meta = {key: expectation[key] for key in _KEPT if key in expectation}
    try:
        implementation = get_expectation_impl(kind)
        if kwargs.get("row_condition") and "row_condition" not in implementation.__fields__:
            raise InvalidExpectation(f"{kind} is about all rows: it has no row_condition.")
        with quiet():
            built = implementation(**passed_on, **meta)
    except InvalidExpectation:
        raise
    except ExpectationNotFoundError as error:
        raise InvalidExpectation(
            f"There is no expectation {kind!r}.", hint=_nearest(kind)
        ) from error
    except (GreatExpectationsError, OverflowError, TypeError, ValueError) as error:
        raise _unreadable(kind, kwargs, error) from error
    # The library reads the texts 'nan' and 'inf' as numbers, too.
    _refuse_infinite(kind, built.configuration.kwargs)
    return built


# What every expectation has, and what is no argument of people.
_COMMON = {
    "id", "meta", "notes", "result_format", "description", "catch_exceptions", "rendered_content",
    "windows", "batch_id", "severity", "strict_min", "strict_max",
}  # fmt: skip


def _unreadable(kind: str, kwargs: Mapping[str, Any], error: Exception) -> InvalidExpectation:
    """Return the error for kwargs that an expectation does not take: which, and those it has."""
    from great_expectations.expectations.registry import get_expectation_impl

    fields = getattr(get_expectation_impl(kind), "__fields__", {})
    known = [name for name in fields if name not in _COMMON]
    unknown = [name for name in kwargs if name not in fields]
    missing = []
    for name in known:
        if fields[name].required and name not in kwargs:
            missing.append(name)
    told = f"{kind}({dict(kwargs)!r})"
    there = f"it has {', '.join(map(repr, known))}"
    if unknown:
        near = did_you_mean(unknown[0], known, write="{!r}")
        return InvalidExpectation(f"{told}: there is no {unknown[0]!r}; {there}.", hint=near)
    if missing:
        example = dict.fromkeys(missing, "...")
        return InvalidExpectation(
            f"{told} lacks {', '.join(map(repr, missing))}; {there}.",
            hint=repr({"type": kind, "kwargs": example}),
        )
    return InvalidExpectation(f"{told} cannot be read: {_first_line(error)}.", hint=there)


def _refuse_code(kind: str, kwargs: Mapping[str, Any]) -> None:
    if kind in _NEED_SQL:
        raise InvalidExpectation(
            f"{kind} runs SQL, which has no table to run on here.", hint="use column expectations"
        )
    for key, value in _entries(kwargs):
        if key == "$PARAMETER":
            raise InvalidExpectation(
                f"{kind} has a suite parameter, {value!r}, which is evaluated at each run.",
                hint="write the value itself",
            )
        # A schema's reference to another document is fetched when the schema is used: from the web,
        # from disk.
        if key in _REFERENCES and isinstance(value, str) and not value.startswith("#"):
            raise InvalidExpectation(
                f"{kind} refers to another document, {value!r}.",
                hint="put the definitions into the schema's '$defs' and refer to '#/$defs/...'",
            )


def _refuse_infinite(kind: str, kwargs: Mapping[str, Any]) -> None:
    """Refuse NaN and infinity, which JSON lacks: the library stores NaN as null, an absent bound.

    As a bound of a row count it reads '-inf' and '1e999' as times.
    """
    for name, argument in kwargs.items():
        if kind == _ROW_COUNT and isinstance(argument, date):
            raise InvalidExpectation(
                f"{kind}: {name!r} is the time {argument}, not a whole number.", hint=f"{name}=1"
            )
        for _, value in _entries({name: argument}):
            if not _is_finite(value):
                raise InvalidExpectation(
                    f"{kind}: {name!r} contains {value!r}, which is not a finite number.",
                    hint=f"leave {name!r} out for an open bound; "
                    "expect_column_values_to_not_be_null finds NaN",
                )


def _is_finite(value: object) -> bool:
    if isinstance(value, Decimal):
        return value.is_finite()
    if isinstance(value, Real) and not isinstance(value, int):
        return math.isfinite(value)
    # NaT is a time that differs from itself.
    return not isinstance(value, date) or value == value


def _entries(value: Any) -> Iterator[tuple[str | None, Any]]:
    """Yield the keys and values of mappings and the items of lists, without keys, at any depth.

    What is nested too deeply is refused.
    """
    level = [value]
    for _ in range(_DEEPEST):
        below: list[Any] = []
        for each in level:
            if isinstance(each, Mapping):
                yield from each.items()
                below.extend(each.values())
            elif isinstance(each, list | tuple | set | frozenset):
                yield from ((None, item) for item in each)
                below.extend(each)
        level = below
    if level:
        raise InvalidExpectation(f"An expectation is nested more than {_DEEPEST} levels deep.")


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
    """Return a dict as it is stored: Great Expectations has read it once, and can again."""
    kind = given.get("type") or given.get("expectation_type")
    kwargs = given.get("kwargs", {})
    if not isinstance(kind, str) or not isinstance(kwargs, Mapping):
        raise InvalidExpectation(
            f"{dict(given)!r} is not an expectation.",
            hint="write "
            "{'type': 'expect_column_values_to_not_be_null', 'kwargs': {'column': 'age'}}",
        )
    listed = kwargs.get("column_list")
    if listed is not None and not _are_names(listed):
        raise InvalidExpectation(
            f"{kind}: column_list={listed!r} is no list of names.",
            hint="column_list=['first', 'second']",
        )
    plain: dict[str, Any] = {"type": kind, "kwargs": dict(kwargs)}
    for key in _KEPT:
        if given.get(key):
            plain[key] = given[key]
    read = build(plain).configuration.to_json_dict()
    stored: dict[str, Any] = {"type": kind, "kwargs": {}}
    for key, value in read["kwargs"].items():
        # 3 is read as 3.0: what was written is kept.
        stored["kwargs"][key] = kwargs[key] if kwargs.get(key) == value else value
    if condition_of(plain) is not None:
        stored["kwargs"]["row_condition"] = kwargs["row_condition"]
    for key in _KEPT:
        if read.get(key) and read[key] != _DEFAULTS.get(key):
            stored[key] = read[key]
    return stored


def _are_names(listed: object) -> bool:
    """Tell whether an argument is a list of texts."""
    return isinstance(listed, list | tuple) and all(isinstance(name, str) for name in listed)


def _nearest(kind: str) -> str:
    from great_expectations.expectations import core

    names = [
        re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        for name in dir(core)
        if name.startswith("Expect")
    ]
    return did_you_mean(kind, names, write="{!r}") or (
        "types are named like 'expect_column_values_to_not_be_null'"
    )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:3]).rstrip(".")
