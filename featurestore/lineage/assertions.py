"""Expectations and monitor findings as OpenLineage assertions."""

from __future__ import annotations

from openlineage.client.facet_v2 import data_quality_assertions_dataset

from featurestore.model.monitor_report import MonitorReport
from featurestore.model.validation import ExpectationResult, ValidationReport, describe

Assertion = data_quality_assertions_dataset.Assertion


def assertions_of_report(report: ValidationReport) -> list[Assertion]:
    """Return the expectations of a validation."""
    return [_assertion_of_result(each) for each in report.results]


def _assertion_of_result(result: ExpectationResult) -> Assertion:
    expectation = result.expectation
    column = expectation.get("kwargs", {}).get("column")
    return Assertion(
        assertion=str(expectation["type"]),
        success=bool(result.success),
        column=column if isinstance(column, str) else None,
        severity="warn" if result.warning else "error",
        description=describe(expectation),
        actual=f"{result.unexpected} of {result.rows} rows" if result.row_level else None,
    )


def assertions_of_findings(report: MonitorReport) -> list[Assertion]:
    """Return the findings of a monitor's latest window; alarms are failed assertions."""
    return [
        Assertion(
            assertion=f"{each.kind}.{each.measure}",
            success=not each.alarm,
            column=each.subject if each.kind in ("drift", "nulls", "values") else None,
            severity="error",
            description=str(each),
            actual=None if each.value is None else str(each.value),
            expected=_bounds(each.low, each.high),
        )
        for each in report.findings
    ]


def _bounds(low: float | None, high: float | None) -> str | None:
    conditions = []
    if low is not None:
        conditions.append(f">= {low:.6g}")
    if high is not None:
        conditions.append(f"<= {high:.6g}")
    return " and ".join(conditions) or None
