"""Expectations that cannot be evaluated: each has a result of its own, and the others are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from featurestore.errors import FeatureStoreError, InvalidExpectation
from featurestore.model.validation import ExpectationResult, describe
from featurestore.plugins.validator import CheckOutcome, Validator

if TYPE_CHECKING:
    import pyarrow as pa


def check_separately(
    validator: Validator, table: pa.Table, expectations: Sequence[Mapping[str, Any]]
) -> list[CheckOutcome]:
    """Return an outcome for each expectation, also for those that cannot be evaluated."""
    try:
        return validator.check(table, expectations) if expectations else []
    except InvalidExpectation as error:
        if len(expectations) == 1:
            return [CheckOutcome(error_result(expectations[0], error, rows=table.num_rows))]
    return [
        outcome
        for expectation in expectations
        for outcome in check_separately(validator, table, [expectation])
    ]


def error_result(
    expectation: Mapping[str, Any], error: FeatureStoreError, *, rows: int
) -> ExpectationResult:
    """Return the result of an expectation that cannot be evaluated, with the text of the error."""
    reason = error.message.removeprefix(describe(expectation)).strip()
    return ExpectationResult(
        expectation, False, rows, row_level=False, message=reason, is_error=True
    )


def refusal(name: str, results: Sequence[ExpectationResult]) -> InvalidExpectation | None:
    """Return the error of a write whose rows cannot be checked; None if no result is an error."""
    errors = [result for result in results if result.is_error]
    if not errors:
        return None
    lines = [f"  {describe(result.expectation)}: {result.message}" for result in errors]
    return InvalidExpectation(
        f"{len(errors)} of {len(results)} checks of {name!r} cannot be evaluated; nothing was "
        "written.\n" + "\n".join(lines),
        hint="compare the expectation with the types of the columns, or remove it with "
        f"store.update_featuregroup({name!r}, expectations=[...])",
    )
