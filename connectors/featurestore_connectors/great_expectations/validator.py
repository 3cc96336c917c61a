"""Checks Arrow tables with Great Expectations on pandas, quietly.

No files, no progress bars, no network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.errors import InvalidExpectation
from featurestore.model.validation import ExpectationResult, ValidationReport, describe
from featurestore.plugins.validator import CheckOutcome, Measure
from featurestore_connectors.great_expectations import aggregates
from featurestore_connectors.great_expectations.conditions import Condition
from featurestore_connectors.great_expectations.forms import (
    build,
    columns_of,
    condition_of,
    is_row_level,
    plain_expectations,
)
from featurestore_connectors.great_expectations.frames import to_frame, with_times
from featurestore_connectors.great_expectations.library import frames, library, quiet

if TYPE_CHECKING:
    import pandas as pd

    from featurestore.plugins.validator import Validator

_WARNING_SEVERITIES = ("warning", "info")


class GreatExpectationsValidator:
    """Great Expectations behind the interface Validator. Has no state.

    Contexts are made once a process.
    """

    def __init__(self) -> None:
        import importlib.util

        if importlib.util.find_spec("great_expectations") is None:
            raise ImportError("great_expectations is not installed")

    @property
    def name(self) -> str:
        return "great_expectations"

    def normalize(self, expectations: object) -> tuple[Mapping[str, Any], ...]:
        return plain_expectations(expectations)

    def columns(self, expectation: Mapping[str, Any]) -> tuple[str, ...]:
        return columns_of(expectation)

    def is_row_level(self, expectation: Mapping[str, Any]) -> bool:
        return is_row_level(expectation)

    def holds(self, expectation: Mapping[str, Any], *, checked: int, unexpected: int) -> bool:
        mostly = float(expectation["kwargs"].get("mostly") or 1.0)
        return unexpected == 0 or (checked - unexpected) >= mostly * checked

    def check(
        self, table: pa.Table, expectations: Sequence[Mapping[str, Any]]
    ) -> list[CheckOutcome]:
        frame = to_frame(table)
        about: dict[Condition | None, list[int]] = {}
        for index, expectation in enumerate(expectations):
            about.setdefault(condition_of(expectation), []).append(index)
        outcomes: dict[int, CheckOutcome] = {}
        for condition, members in about.items():
            chosen = [expectations[index] for index in members]
            if condition is None:
                found = _check(frame, table.schema, chosen)
            else:
                met = np.flatnonzero(condition.rows(frame))
                part = frame.iloc[met].reset_index(drop=True)
                of_part = _check(part, table.schema, chosen)
                found = [_spread(outcome, met, len(frame)) for outcome in of_part]
            outcomes |= dict(zip(members, found, strict=True))
        return [outcomes[index] for index in range(len(expectations))]

    def measures(
        self, expectation: Mapping[str, Any], schema: pa.Schema
    ) -> tuple[Measure, ...] | None:
        return aggregates.measures(expectation, schema)

    def evaluate(
        self, expectation: Mapping[str, Any], schema: pa.Schema, *, found: Mapping[Measure, Any]
    ) -> ExpectationResult:
        return aggregates.evaluate(
            expectation, schema, found=found, warning=_is_warning(expectation)
        )

    def needs_copies(self, expectation: Mapping[str, Any]) -> bool:
        return aggregates.needs_copies(expectation)

    def to_html(self, report: ValidationReport) -> str:
        from featurestore_connectors.great_expectations.pages import to_html

        return to_html(report)


def _check(
    frame: pd.DataFrame, schema: pa.Schema, expectations: Sequence[Mapping[str, Any]]
) -> list[CheckOutcome]:
    """Return the outcomes of expectations about all rows of a frame."""
    given = [with_times(each, schema) for each in expectations]
    found = _validate(frame, given, {"result_format": "BASIC", "partial_unexpected_count": 0})
    # Rows are named in a second run, of the expectations alone that some row fails.
    failing, asked_again = [], []
    for index, each in enumerate(found):
        if _unexpected(each) and is_row_level(expectations[index]):
            failing.append(index)
            asked_again.append(given[index])
    masks = _failing_rows(frame, asked_again)
    rows_of = dict(zip(failing, masks, strict=True))
    outcomes = []
    for index, (expectation, each) in enumerate(zip(expectations, found, strict=True)):
        result = _result(expectation, each, len(frame))
        outcomes.append(CheckOutcome(result, _checked(each, len(frame)), rows_of.get(index)))
    return outcomes


def _spread(outcome: CheckOutcome, met: npt.NDArray[np.intp], rows: int) -> CheckOutcome:
    """Return a outcome on the rows that met a condition as one on all rows."""
    result = replace(outcome.result, rows=rows)
    if outcome.failing is None:
        return replace(outcome, result=result)
    failing = np.zeros(rows, dtype=np.bool_)
    failing[met] = outcome.failing
    return replace(outcome, result=result, failing=failing)


def _validate(
    frame: pd.DataFrame, expectations: Sequence[Mapping[str, Any]], result_format: Mapping[str, Any]
) -> list[Any]:
    """Return the results of Great Expectations in the order of the expectations."""
    gx = library()
    results: list[Any] = [None] * len(expectations)
    objects = []
    for number, each in enumerate(expectations):
        expectation = build(each)
        expectation.id = None
        expectation.meta = {**(expectation.meta or {}), "number": number}
        objects.append(expectation)
    with quiet():
        batch = frames().get_batch(batch_parameters={"dataframe": frame})
        suite = gx.ExpectationSuite(name="audit", expectations=objects)
        try:
            outcome = batch.validate(suite, result_format=dict(result_format))
        except _library_errors() as error:
            if len(expectations) == 1:
                raise _not_computed(expectations[0], error) from error
            # Arguments that the library cannot use stop it before it has looked at any expectation.
            for each in expectations:
                _validate(frame, [each], result_format)
            raise
    for each in outcome.results:
        _raise_failure(each)
        results[each.expectation_config.meta["number"]] = each
    return results


def _library_errors() -> tuple[type[Exception], ...]:
    """Return what Great Expectations raises for arguments that it took and cannot use."""
    from great_expectations.exceptions import GreatExpectationsError

    return (
        ArithmeticError,
        AttributeError,
        GreatExpectationsError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    )


def _not_computed(expectation: Mapping[str, Any], reason: object) -> InvalidExpectation:
    return InvalidExpectation(
        f"{describe(expectation)} cannot be computed: {reason}",
        hint="compare the expectation with the types of the columns",
    )


def _failing_rows(
    frame: pd.DataFrame, expectations: Sequence[Mapping[str, Any]]
) -> list[npt.NDArray[np.bool_]]:
    if not expectations:
        return []
    complete = {
        "result_format": "COMPLETE",
        "return_unexpected_index_query": False,
        "partial_unexpected_count": 0,
    }
    masks = []
    for each in _validate(frame, expectations, complete):
        mask = np.zeros(len(frame), dtype=np.bool_)
        mask[np.asarray(each.result.get("unexpected_index_list") or [], dtype=np.int64)] = True
        masks.append(mask)
    return masks


def _unexpected(found: Any) -> int:
    return int(found.result.get("unexpected_count") or 0)


def _checked(found: Any, rows: int) -> int:
    missing = int(found.result.get("missing_count") or 0)
    return int(found.result.get("element_count", rows)) - missing


def _result(expectation: Mapping[str, Any], found: Any, rows: int) -> ExpectationResult:
    return ExpectationResult(
        expectation=expectation,
        success=bool(found.success),
        rows=rows,
        unexpected=_unexpected(found),
        row_level=is_row_level(expectation),
        observed=found.result.get("observed_value"),
        warning=_is_warning(expectation),
    )


def _is_warning(expectation: Mapping[str, Any]) -> bool:
    return expectation.get("severity") in _WARNING_SEVERITIES


def _raise_failure(found: Any) -> None:
    """Raise what Great Expectations caught.

    An expectation that cannot be computed neither holds nor fails.
    """
    info = found.exception_info or {}
    # One exception, or one for each metric.
    infos = [info] if "raised_exception" in info else info.values()
    for each in infos:
        if isinstance(each, Mapping) and each.get("raised_exception"):
            config = found.expectation_config
            kwargs = dict(config.kwargs)
            kwargs.pop("batch_id", None)
            reason = str(each.get("exception_message")).strip()
            raise _not_computed({"type": config.type, "kwargs": kwargs}, reason)


if TYPE_CHECKING:
    _contract: Validator = GreatExpectationsValidator()
