"""What a person reads when rows are refused."""

from __future__ import annotations

from collections.abc import Sequence

from featurestore.model.validation import (
    ExpectationResult,
    ValidationReport,
    describe,
    outcome_text,
    plain_json,
)
from featurestore.validation.checks import DUPLICATE_KEYS

_SHOWN_SAMPLES = 3


def failure_message(
    report: ValidationReport, refused: Sequence[ExpectationResult]
) -> tuple[str, str]:
    """Return the message, with counts and sample rows of each failed check, and the hint."""
    many = "1 check" if len(refused) == 1 else f"{len(refused)} checks"
    lines = [
        f"{report.name!r} version {report.version}: {many} of {len(report.results)} failed; nothing was written."
    ]
    for result in refused:
        lines.append(f"  {describe(result.expectation)}: {outcome_text(result)}")
        lines += [f"    {plain_json(sample)}" for sample in result.samples[:_SHOWN_SAMPLES]]
    return "\n".join(lines), _hint(report, refused)


def _hint(report: ValidationReport, refused: Sequence[ExpectationResult]) -> str:
    if all(each.expectation["type"] == DUPLICATE_KEYS for each in refused):
        return "remove the copies, or keep the last of each key with on_duplicates='last'"
    if report.policy == "quarantine":
        return "an expectation about the whole table cannot be met by leaving rows out; validation='warn' lands them all"
    return "fix the rows, or validation='quarantine' lands the good ones and keeps the others with their reasons"
