"""Conversion of expectations between dicts (``{"type": ..., "kwargs": {...}}``) and objects.

The library runs with its warnings, log messages and progress bars suppressed.
"""

from __future__ import annotations

import logging
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.arrow.lists import to_plain_lists
from featurestore.arrow.types import TIMESTAMP
from featurestore.arrow.values import ConversionError, to_value
from featurestore.errors import (
    InvalidExpectation,
    InvalidReference,
    did_you_mean,
)
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.model.names import parse_reference
from featurestore.model.times import is_finer_than_microseconds
from featurestore.model.validation import IN_FEATURE, FeatureComparison
from featurestore.plugins.validator import Expectation
from featurestore_connectors.great_expectations.conditions import (
    NAMES_ONLY,
    SQL,
    row_condition,
)

_is_quiet = ContextVar("is_quiet", default=False)
# Map expectations whose outcome for a row depends on other rows. They cannot be checked in chunks.
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
_NEED_SQL = frozenset(
    {
        "expect_query_results_to_match_comparison",
        "expect_table_row_count_to_equal_other_table",
        "unexpected_rows_expectation",
    }
)
# Arguments that are not passed to the library, since execution, reporting and row conditions are
# implemented in this package.
_OWN_ARGUMENTS = (
    "batch_id",
    "catch_exceptions",
    "condition_parser",
    "rendered_content",
    "result_format",
    "row_condition",
    "windows",
)
_ROW_COUNT = "expect_table_row_count_to_be_between"
# The library's expectation for the marker of a comparison with a feature.
_IN_SET = "expect_column_values_to_be_in_set"
_MAX_DEPTH = 50
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_SINGLE_COLUMN = ("column", "column_A", "column_B")
_STORED_KEYS = ("meta", "severity", "description", "notes")
_DEFAULTS: JsonDict = {"severity": "critical"}
# Fields of all expectations that are not user arguments.
_COMMON_FIELDS = {
    "id", "meta", "notes", "result_format", "description", "catch_exceptions", "rendered_content",
    "windows", "batch_id", "severity", "strict_min", "strict_max",
}  # fmt: skip


def normalize_expectations(expectations: object) -> tuple[JsonDict, ...]:
    """Convert expectation objects, a suite, dicts, or a list of these to plain dicts.

    Raises:
        InvalidExpectation: An expectation is invalid.
    """
    if expectations is None:
        return ()
    if isinstance(expectations, Mapping) and "expectations" in expectations:
        return normalize_expectations(expectations["expectations"])
    if isinstance(expectations, Mapping):
        return (_normalize(expectations),)
    if hasattr(expectations, "expectations"):  # a suite
        return normalize_expectations(list(expectations.expectations))
    if hasattr(expectations, "configuration"):  # an expectation object
        # The JSON has null instead of NaN.
        _reject_infinite(expectations.configuration.type, expectations.configuration.kwargs)
        return (_normalize(expectations.configuration.to_json_dict()),)
    if isinstance(expectations, Iterable) and not isinstance(expectations, str | bytes):
        return tuple(
            plain for expectation in expectations for plain in normalize_expectations(expectation)
        )
    raise InvalidExpectation(
        f"{expectations!r} is not an expectation.",
        hint="pass a great_expectations object, a suite, or "
        "{'type': 'expect_...', 'kwargs': {'column': ...}}",
    )


def needed_columns(expectation: Expectation) -> tuple[str, ...]:
    """Return the columns whose values an expectation needs, () if it needs none."""
    if expectation["type"] in NAMES_ONLY:
        return ()
    kwargs = expectation["kwargs"]
    names = [kwargs[key] for key in _SINGLE_COLUMN if kwargs.get(key)]
    names += kwargs.get("column_list") or ()
    condition = row_condition(expectation)
    if condition is not None:
        names += condition.columns()
    return tuple(dict.fromkeys(names))


def is_row_level(expectation: Expectation) -> bool:
    """Return whether each row passes or fails independently of other rows."""
    expectation_type = str(expectation["type"])
    if expectation_type == IN_FEATURE:
        return True
    return expectation_type not in _NEED_ALL_ROWS and _is_map(expectation_type)


def build_expectation(expectation: Expectation) -> Any:
    """Build a library object from a plain dict, without its row condition.

    The dict may come from a stored table and is untrusted. Arguments that the library would
    execute, look up or evaluate are rejected.

    Raises:
        InvalidExpectation: The type is unknown, or arguments are invalid or contain SQL, a suite
            parameter, a reference to another document, or a non-finite number.
    """
    import_library()
    from great_expectations.exceptions import ExpectationNotFoundError, GreatExpectationsError
    from great_expectations.expectations.registry import get_expectation_impl

    if expectation["type"] == IN_FEATURE:
        expectation = convert_to_marker(expectation)
    expectation_type, kwargs = expectation["type"], expectation["kwargs"]
    _reject_code(expectation_type, kwargs)
    _reject_infinite(expectation_type, kwargs)
    arguments = {key: value for key, value in kwargs.items() if key not in _OWN_ARGUMENTS}
    meta = {key: expectation[key] for key in _STORED_KEYS if key in expectation}
    try:
        implementation = get_expectation_impl(expectation_type)
        if kwargs.get("row_condition") and "row_condition" not in implementation.__fields__:
            raise InvalidExpectation(
                f"{expectation_type} applies to all rows and has no row_condition."
            )
        with suppress_output():
            built = implementation(**arguments, **meta)
    except InvalidExpectation:
        raise
    except ExpectationNotFoundError as error:
        raise InvalidExpectation(
            f"Unknown expectation {expectation_type!r}.", hint=_suggest_type(expectation_type)
        ) from error
    except (GreatExpectationsError, OverflowError, TypeError, ValueError) as error:
        raise _argument_error(expectation_type, kwargs, error) from error
    # The library also parses the strings 'nan' and 'inf' as numbers.
    _reject_infinite(expectation_type, built.configuration.kwargs)
    return built


def convert_to_marker(expectation: Expectation) -> JsonDict:
    """Return the library's expectation for the marker of a comparison with a feature.

    Raises:
        InvalidExpectation: The column or the feature is missing, or the feature is not a reference
            with a group.
    """
    kwargs = dict(expectation["kwargs"])
    accepted = ("column", "feature", "mostly", *_OWN_ARGUMENTS)
    for name in kwargs:
        if name not in accepted:
            raise InvalidExpectation(
                f"{IN_FEATURE}({kwargs!r}): unknown argument {name!r}; available: 'column', "
                "'feature', 'mostly', 'row_condition'.",
                hint=did_you_mean(name, accepted, write="{!r}"),
            )
    example = {"type": IN_FEATURE, "kwargs": {"column": "customer", "feature": "customers.id"}}
    for name in ("column", "feature"):
        if not isinstance(kwargs.get(name), str) or not kwargs[name]:
            raise InvalidExpectation(
                f"{IN_FEATURE}({kwargs!r}): {name!r} is not a string.", hint=repr(example)
            )
    try:
        reference = parse_reference(kwargs["feature"])
    except InvalidReference as error:
        raise InvalidExpectation(f"{IN_FEATURE}: {error.message}", hint=repr(example)) from error
    if reference.group is None or reference.alias is not None or reference.feature == "*":
        raise InvalidExpectation(
            f"{IN_FEATURE}: {kwargs['feature']!r} is not a feature of a group.", hint=repr(example)
        )
    comparison = FeatureComparison(kwargs.pop("column"), kwargs.pop("feature"))
    arguments = {"column": comparison.marker, "value_set": [True], **kwargs}
    return {**expectation, "type": _IN_SET, "kwargs": arguments}


def _argument_error(
    expectation_type: str, kwargs: JsonMapping, error: Exception
) -> InvalidExpectation:
    """Return the error for unknown, missing or invalid arguments of an expectation."""
    from great_expectations.expectations.registry import get_expectation_impl

    fields = getattr(get_expectation_impl(expectation_type), "__fields__", {})
    arguments = [name for name in fields if name not in _COMMON_FIELDS]
    unknown = [name for name in kwargs if name not in fields]
    missing = [name for name in arguments if fields[name].required and name not in kwargs]
    call = f"{expectation_type}({dict(kwargs)!r})"
    available = f"available: {', '.join(map(repr, arguments))}"
    if unknown:
        suggestion = did_you_mean(unknown[0], arguments, write="{!r}")
        return InvalidExpectation(
            f"{call}: unknown argument {unknown[0]!r}; {available}.", hint=suggestion
        )
    if missing:
        example = dict.fromkeys(missing, "...")
        return InvalidExpectation(
            f"{call}: missing arguments {', '.join(map(repr, missing))}; {available}.",
            hint=repr({"type": expectation_type, "kwargs": example}),
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    problem = "; ".join(lines[:3]).rstrip(".")
    return InvalidExpectation(f"{call} cannot be read: {problem}.", hint=available)


# The arguments that are dicts.
_DICT_ARGUMENTS = frozenset(
    {
        *("json_schema", "library_metadata", "meta", "partition_object", "quantile_ranges"),
        *("result_format", "row_condition"),
    }
)


def _reject_code(expectation_type: str, kwargs: JsonMapping) -> None:
    """Reject arguments that the library would execute, evaluate or fetch."""
    if expectation_type in _NEED_SQL:
        raise InvalidExpectation(
            f"{expectation_type} runs SQL, which is not supported.", hint="use column expectations"
        )
    # The library takes any other dict for a parameter of the suite.
    parameters = [
        value
        for key, value in kwargs.items()
        if isinstance(value, Mapping) and key not in _DICT_ARGUMENTS
    ]
    parameters += [value for key, value in _nested_entries(kwargs) if key == "$PARAMETER"]
    if parameters:
        raise InvalidExpectation(
            f"{expectation_type} has a suite parameter, {parameters[0]!r}, which is evaluated at each run.",
            hint="write the value itself",
        )
    for key, value in _nested_entries(kwargs):
        # The library fetches documents referenced by a JSON schema, from the web or from disk.
        if key in _REFERENCES and isinstance(value, str) and not value.startswith("#"):
            raise InvalidExpectation(
                f"{expectation_type} refers to another document, {value!r}.",
                hint="put the definitions into the schema's '$defs' and refer to '#/$defs/...'",
            )


def _reject_infinite(expectation_type: str, kwargs: JsonMapping) -> None:
    """Reject NaN and infinity, which JSON lacks: the library stores NaN as null, an open bound.

    As bounds of a row count, the library converts '-inf' and '1e999' to times.
    """
    for name, argument in kwargs.items():
        if expectation_type == _ROW_COUNT and isinstance(argument, date):
            raise InvalidExpectation(
                f"{expectation_type}: {name!r} is the time {argument}, not a whole number.",
                hint=f"{name}=1",
            )
        for _, value in _nested_entries({name: argument}):
            if not _is_finite(value):
                raise InvalidExpectation(
                    f"{expectation_type}: {name!r} contains {value!r}, which is not a finite number.",
                    hint=f"omit {name!r} for an open bound; "
                    "expect_column_values_to_not_be_null detects NaN",
                )


def _is_finite(value: object) -> bool:
    if isinstance(value, Decimal):
        return value.is_finite()
    if isinstance(value, Real) and not isinstance(value, int):
        return math.isfinite(value)
    # NaT is a time that is not equal to itself.
    return not isinstance(value, date) or value == value


def _nested_entries(value: Any) -> Iterator[tuple[str | None, Any]]:
    """Yield the (key, value) pairs of mappings and the (None, item) pairs of lists, at all levels.

    Raises:
        InvalidExpectation: The value is nested too deeply.
    """
    # The traversal is iterative, since deeply nested values would exceed the recursion limit.
    level = [value]
    for _ in range(_MAX_DEPTH):
        next_level: list[Any] = []
        for nested in level:
            if isinstance(nested, Mapping):
                yield from nested.items()
                next_level.extend(nested.values())
            elif isinstance(nested, list | tuple | set | frozenset):
                yield from ((None, item) for item in nested)
                next_level.extend(nested)
        level = next_level
    if level:
        raise InvalidExpectation(f"An expectation is nested more than {_MAX_DEPTH} levels deep.")


@lru_cache(maxsize=256)
def _is_map(expectation_type: str) -> bool:
    """Return whether an expectation type has an outcome for each row."""
    import_library()
    from great_expectations.expectations.expectation import (
        ColumnMapExpectation,
        ColumnPairMapExpectation,
        MulticolumnMapExpectation,
    )
    from great_expectations.expectations.registry import get_expectation_impl

    return issubclass(
        get_expectation_impl(expectation_type),
        ColumnMapExpectation | ColumnPairMapExpectation | MulticolumnMapExpectation,
    )


def _normalize(expectation: Expectation) -> JsonDict:
    """Return an expectation in its stored form, after a round trip through Great Expectations."""
    expectation_type = expectation.get("type") or expectation.get("expectation_type")
    kwargs = expectation.get("kwargs", {})
    if not isinstance(expectation_type, str) or not isinstance(kwargs, Mapping):
        raise InvalidExpectation(
            f"{dict(expectation)!r} is not an expectation.",
            hint="write "
            "{'type': 'expect_column_values_to_not_be_null', 'kwargs': {'column': 'age'}}",
        )
    kwargs = parse_lists(expectation_type, kwargs)
    plain: JsonDict = {"type": expectation_type, "kwargs": dict(kwargs)}
    for key in _STORED_KEYS:
        if expectation.get(key):
            plain[key] = expectation[key]
    parsed = build_expectation(plain).configuration.to_json_dict()
    normalized: JsonDict = {"type": expectation_type, "kwargs": {}}
    if expectation_type == IN_FEATURE:
        # The library knows the expectation of the marker instead.
        normalized["kwargs"] = {name: kwargs[name] for name in ("column", "feature")}
        del parsed["kwargs"]["column"], parsed["kwargs"]["value_set"]
    for key, value in parsed["kwargs"].items():
        normalized["kwargs"][key] = _keep_type(kwargs.get(key), value)
    if row_condition(plain) is not None:
        normalized["kwargs"]["row_condition"] = kwargs["row_condition"]
        if kwargs.get("condition_parser") == SQL:
            normalized["kwargs"]["condition_parser"] = SQL
    for key in _STORED_KEYS:
        if parsed.get(key) and parsed[key] != _DEFAULTS.get(key):
            normalized[key] = parsed[key]
    return normalized


def parse_lists(expectation_type: str, kwargs: JsonMapping) -> JsonDict:
    """Return the arguments of an expectation with plain lists for the collections in them."""
    try:
        arguments: JsonDict = _to_json_values(to_plain_lists(kwargs))
    except ConversionError as error:
        raise InvalidExpectation(
            f"{expectation_type}: {error}.",
            hint="expectations have booleans, numbers, text, dates and times in microseconds",
        ) from error
    for name, value in arguments.items():
        # The library reads times in text, and ignores these digits.
        is_limit = name in ("min_value", "max_value") and isinstance(value, str)
        if is_limit and is_finer_than_microseconds(value):
            raise InvalidExpectation(
                f"{expectation_type}: {name}={value!r} is finer than a microsecond.",
                hint=f"{name}='2024-01-31T12:00:00.123456Z'",
            )
        # Great Expectations would compare the values of a table or matrix as one value.
        if isinstance(value, Sized) and not isinstance(value, list | str | bytes | Mapping):
            raise InvalidExpectation(
                f"{expectation_type}: {name} is a {type(value).__name__}, not a list of values.",
                hint=f"{name}=['first', 'second']",
            )
    column_list = arguments.get("column_list")
    if column_list is not None and not (
        isinstance(column_list, list) and all(isinstance(name, str) for name in column_list)
    ):
        raise InvalidExpectation(
            f"{expectation_type}: column_list={column_list!r} is not a list of names.",
            hint="column_list=['first', 'second']",
        )
    return arguments


def _to_json_values(value: Any) -> Any:
    """Return arguments with values that JSON has, or times.

    Decimals become numbers, or text if floats round them.

    Raises:
        ConversionError: JSON has no such value, or a time is finer than a microsecond.
    """
    if isinstance(value, Mapping):
        return {name: _to_json_values(item) for name, item in value.items()}
    if isinstance(value, list):
        return list(map(_to_json_values, value))
    if isinstance(value, np.datetime64 | datetime) and value == value:
        is_day = isinstance(value, np.datetime64) and np.datetime_data(value.dtype)[0] == "D"
        has_zone = isinstance(value, np.datetime64) or value.tzinfo is not None
        converted = to_value(value, pa.date32() if is_day else TIMESTAMP)
        return converted if has_zone else converted.replace(tzinfo=None)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bytes | bytearray | complex | time | timedelta):
        raise ConversionError(value, pa.string(), f"of type {type(value).__name__} is not JSON")
    if not isinstance(value, Decimal) or not value.is_finite():
        return value
    if value == int(value):
        return int(value)
    return float(value) if Decimal(repr(float(value))) == value else str(value)


def _keep_type(argument: object, parsed: object) -> object:
    """Return an argument if it equals that of the library, which has floats for numbers."""
    if isinstance(argument, int | str) and isinstance(parsed, float):
        return argument
    return argument if argument == parsed else parsed


def _suggest_type(expectation_type: str) -> str:
    """Return a hint with similar expectation types."""
    from great_expectations.expectations import core

    names = [
        re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        for name in dir(core)
        if name.startswith("Expect")
    ]
    return did_you_mean(expectation_type, names, write="{!r}") or (
        "types have names like 'expect_column_values_to_not_be_null'"
    )


@contextmanager
def suppress_output() -> Iterator[None]:
    """Suppress warnings, log messages and progress bars, which repeat the library's results."""
    token = _is_quiet.set(True)
    logger = logging.getLogger("great_expectations")
    level = logger.level
    # The level is restored afterwards, since the application may use the library itself.
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        _is_quiet.reset(token)


@lru_cache(maxsize=1)
def import_library() -> Any:
    """Import and return ``great_expectations``; the first call takes seconds."""
    with suppress_output():
        import great_expectations
        from great_expectations.validator import validation_graph

        # Some expectations show progress bars even if the context disables them.
        draw_bar: Any = validation_graph.tqdm

        def bar_unless_quiet(*values: object, **options: object) -> object:
            if _is_quiet.get():
                options["disable"] = True
            return draw_bar(*values, **options)

        validation_graph.tqdm = bar_unless_quiet
    return great_expectations


@lru_cache(maxsize=1)
def data_frame_batch() -> Any:
    """Return a batch definition for data frames, in a context without files or network access."""
    gx = import_library()
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    with suppress_output():
        config = DataContextConfig(
            store_backend_defaults=InMemoryStoreBackendDefaults(),
            progress_bars=ProgressBarsConfig(globally=False),
            # The library would otherwise send usage data over the network.
            analytics_enabled=False,
        )
        context = gx.get_context(mode="ephemeral", project_config=config)
        asset = context.data_sources.add_pandas("rows").add_dataframe_asset("rows")
        return asset.add_batch_definition_whole_dataframe("all")
