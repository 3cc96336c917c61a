"""Validator for Great Expectations 1.x, running on pandas, without files or network access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.model.json_object import JsonMapping
from featurestore.model.validation import (
    IN_FEATURE,
    ExpectationResult,
    ValidationReport,
)
from featurestore.plugins.validator import CheckOutcome, Expectation, Measure
from featurestore_connectors.great_expectations import aggregates, forms
from featurestore_connectors.great_expectations.aggregates import to_frame
from featurestore_connectors.great_expectations.conditions import row_condition
from featurestore_connectors.great_expectations.forms import is_row_level
from featurestore_connectors.great_expectations.predicates import (
    evaluate,
    not_computed_error,
    typed_arguments,
)
from featurestore_connectors.great_expectations.rows import row_test

if TYPE_CHECKING:
    import pandas as pd

    from featurestore.plugins.validator import Validator

__all__ = ["GreatExpectationsValidator"]

_WARNING_SEVERITIES = ("warning", "info")


class GreatExpectationsValidator:
    """A stateless validator for Great Expectations. Its context is created once per process."""

    def __init__(self) -> None:
        import importlib.util

        # An import of the library takes seconds and is deferred to the first check.
        if importlib.util.find_spec("great_expectations") is None:
            raise ImportError("great_expectations is not installed")

    @property
    def name(self) -> str:
        return "great_expectations"

    def normalize(self, expectations: object) -> tuple[Expectation, ...]:
        return forms.normalize_expectations(expectations)

    def columns(self, expectation: Expectation) -> tuple[str, ...]:
        return forms.needed_columns(expectation)

    def is_row_level(self, expectation: Expectation) -> bool:
        return is_row_level(expectation)

    def holds(self, expectation: Expectation, *, checked: int, unexpected: int) -> bool:
        return aggregates.meets_fraction(expectation, checked=checked, unexpected=unexpected)

    def check(self, table: pa.Table, expectations: Sequence[Expectation]) -> list[CheckOutcome]:
        outcomes = self._check_rows(table, expectations)
        for index, expectation in enumerate(expectations):
            if index not in outcomes and aggregates.is_uniqueness(expectation, table.schema):
                outcomes[index] = aggregates.check_uniqueness(
                    table,
                    expectation,
                    condition=_condition_sql(expectation, table),
                    warning=_is_warning(expectation),
                )
        # The library checks the other expectations. Those with the same row condition share one
        # filtered data frame.
        by_condition: dict[str | None, list[int]] = {}
        for index, expectation in enumerate(expectations):
            if index not in outcomes:
                by_condition.setdefault(_condition_sql(expectation, table), []).append(index)
        if not by_condition:
            return [outcomes[index] for index in range(len(expectations))]
        frame = to_frame(table)
        for condition, members in by_condition.items():
            selected = [expectations[index] for index in members]
            if condition is None:
                condition_outcomes = _check_frame(frame, table.schema, selected)
            else:
                (mask,) = evaluate(table, [condition])
                matching_rows = np.flatnonzero(mask)
                # The library reports failing rows by index, which must be the row number.
                matching = frame.iloc[matching_rows].reset_index(drop=True)
                matching_outcomes = _check_frame(matching, table.schema, selected)
                condition_outcomes = [
                    _expand_outcome(outcome, matching_rows, len(frame))
                    for outcome in matching_outcomes
                ]
            outcomes |= dict(zip(members, condition_outcomes, strict=True))
        return [outcomes[index] for index in range(len(expectations))]

    def _check_rows(
        self, table: pa.Table, expectations: Sequence[Expectation]
    ) -> dict[int, CheckOutcome]:
        """Return the outcomes of row-level expectations that need no library, by index."""
        tests = {}
        for index, expectation in enumerate(expectations):
            is_marker = expectation["type"] == IN_FEATURE
            plain = forms.convert_to_marker(expectation) if is_marker else expectation
            # The arguments are untrusted.
            forms.build_expectation(plain)
            test = row_test(plain, table, computed=f"__fs_computed_{index}")
            if test is not None:
                tests[index] = test
        predicates = []
        checked_table = table
        for index, test in tests.items():
            if test.computed is not None:
                checked_table = checked_table.append_column(f"__fs_computed_{index}", test.computed)
            condition = _condition_sql(expectations[index], table)
            selected = f"({test.checked})" + (f" and ({condition})" if condition else "")
            predicates += [selected, f"{selected} and not coalesce({test.valid}, false)"]
        masks = evaluate(checked_table, predicates)
        outcomes = {}
        for number, index in enumerate(tests):
            checked, failing = masks[2 * number], masks[2 * number + 1]
            counts = {"checked": int(checked.sum()), "unexpected": int(failing.sum())}
            result = ExpectationResult(
                expectation=expectations[index],
                success=self.holds(expectations[index], **counts),
                rows=table.num_rows,
                unexpected=counts["unexpected"],
                row_level=True,
                warning=_is_warning(expectations[index]),
            )
            outcomes[index] = CheckOutcome(
                result, counts["checked"], failing if counts["unexpected"] else None
            )
        return outcomes

    def measures(self, expectation: Expectation, schema: pa.Schema) -> tuple[Measure, ...] | None:
        return aggregates.measures(expectation, schema)

    def evaluate(
        self, expectation: Expectation, schema: pa.Schema, *, measured: Mapping[Measure, Any]
    ) -> ExpectationResult:
        return aggregates.evaluate(
            expectation, schema, measured=measured, warning=_is_warning(expectation)
        )

    def needs_copies(self, expectation: Expectation) -> bool:
        return aggregates.needs_copies(expectation)

    def to_html(self, report: ValidationReport) -> str:
        from featurestore_connectors.great_expectations.pages import to_html

        return to_html(report)


def _condition_sql(expectation: Expectation, table: pa.Table) -> str | None:
    """Return the row condition of an expectation in SQL, or None if it applies to all rows."""
    condition = row_condition(expectation)
    return None if condition is None else condition.sql(table.schema)


def _check_frame(
    frame: pd.DataFrame, schema: pa.Schema, expectations: Sequence[Expectation]
) -> list[CheckOutcome]:
    """Return the outcomes of expectations without row conditions on a data frame."""
    converted = [typed_arguments(member, schema) for member in expectations]
    results = _validate(frame, converted, {"result_format": "BASIC", "partial_unexpected_count": 0})
    # A second run, of the failed expectations only, returns the failing rows.
    failing, rerun = [], []
    for index, outcome in enumerate(results):
        if _unexpected_count(outcome) and is_row_level(expectations[index]):
            failing.append(index)
            rerun.append(converted[index])
    masks = _failing_rows(frame, rerun)
    failing_rows = dict(zip(failing, masks, strict=True))
    outcomes = []
    for index, (expectation, outcome) in enumerate(zip(expectations, results, strict=True)):
        result = _convert_result(expectation, outcome, len(frame))
        # The library converts limits to floats, with which decimals are not compared.
        if isinstance(result.observed, Decimal) and not result.row_level:
            is_met = aggregates.is_between(converted[index], result.observed)
            result = replace(result, success=is_met)
        missing = int(outcome.result.get("missing_count") or 0)
        checked = int(outcome.result.get("element_count", len(frame))) - missing
        outcomes.append(CheckOutcome(result, checked, failing_rows.get(index)))
    return outcomes


def _expand_outcome(
    outcome: CheckOutcome, matching_rows: npt.NDArray[np.intp], rows: int
) -> CheckOutcome:
    """Map an outcome on the rows that satisfy a condition to all rows."""
    result = replace(outcome.result, rows=rows)
    if outcome.failing is None:
        return replace(outcome, result=result)
    failing = np.zeros(rows, dtype=np.bool_)
    failing[matching_rows] = outcome.failing
    return replace(outcome, result=result, failing=failing)


def _validate(
    frame: pd.DataFrame, expectations: Sequence[Expectation], result_format: JsonMapping
) -> list[Any]:
    """Run Great Expectations and return the results in the order of the expectations."""
    gx = forms.import_library()
    results: list[Any] = [None] * len(expectations)
    objects = []
    for index, member in enumerate(expectations):
        expectation = forms.build_expectation(member)
        expectation.id = None
        # The number assigns the results to the expectations, since the library may reorder them.
        expectation.meta = {**(expectation.meta or {}), "number": index}
        objects.append(expectation)
    with forms.suppress_output():
        batch = forms.data_frame_batch().get_batch(batch_parameters={"dataframe": frame})
        suite = gx.ExpectationSuite(name="audit", expectations=objects)
        try:
            outcome = batch.validate(suite, result_format=dict(result_format))
        except _library_errors() as error:
            if len(expectations) == 1:
                raise not_computed_error(expectations[0], error) from error
            # Invalid arguments abort the library before it evaluates any expectation.
            for member in expectations:
                _validate(frame, [member], result_format)
            raise
    for member in outcome.results:
        _raise_failure(member)
        results[member.expectation_config.meta["number"]] = member
    return results


def _library_errors() -> tuple[type[Exception], ...]:
    """Return the library's exceptions for arguments that it accepts but cannot use."""
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


def _failing_rows(
    frame: pd.DataFrame, expectations: Sequence[Expectation]
) -> list[npt.NDArray[np.bool_]]:
    """Return a mask of the failing rows for each expectation."""
    if not expectations:
        return []
    complete = {
        "result_format": "COMPLETE",
        "return_unexpected_index_query": False,
        "partial_unexpected_count": 0,
    }
    masks = []
    for result in _validate(frame, expectations, complete):
        mask = np.zeros(len(frame), dtype=np.bool_)
        mask[np.asarray(result.result.get("unexpected_index_list") or [], dtype=np.int64)] = True
        masks.append(mask)
    return masks


def _unexpected_count(result: Any) -> int:
    return int(result.result.get("unexpected_count") or 0)


def _convert_result(expectation: Expectation, result: Any, rows: int) -> ExpectationResult:
    """Convert a result of the library."""
    return ExpectationResult(
        expectation=expectation,
        success=bool(result.success),
        rows=rows,
        unexpected=_unexpected_count(result),
        row_level=is_row_level(expectation),
        observed=result.result.get("observed_value"),
        warning=_is_warning(expectation),
    )


def _is_warning(expectation: Expectation) -> bool:
    return expectation.get("severity") in _WARNING_SEVERITIES


def _raise_failure(result: Any) -> None:
    """Re-raise any exception that Great Expectations caught, since the check has no result."""
    exception_info = result.exception_info or {}
    # The result contains a single exception, or one exception per metric.
    exceptions = (
        [exception_info] if "raised_exception" in exception_info else exception_info.values()
    )
    for exception in exceptions:
        if isinstance(exception, Mapping) and exception.get("raised_exception"):
            config = result.expectation_config
            kwargs = dict(config.kwargs)
            kwargs.pop("batch_id", None)
            reason = str(exception.get("exception_message")).strip()
            raise not_computed_error({"type": config.type, "kwargs": kwargs}, reason)


if TYPE_CHECKING:
    _contract: Validator = GreatExpectationsValidator()
