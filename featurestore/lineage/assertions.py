"""Checks and findings as OpenLineage's assertions: what was expected, and whether it held."""

from __future__ import annotations

from openlineage.client.facet_v2 import data_quality_assertions_dataset

from featurestore.model.monitor_report import MonitorReport
from featurestore.model.validation import ExpectationResult, ValidationReport, describe

Assertion = data_quality_assertions_dataset.Assertion


def of_report(report: ValidationReport) -> list[Assertion]:
    """Return the expectations of a validation."""
    return [_of_result(each) for each in report.results]


def _of_result(result: ExpectationResult) -> Assertion:
    asked = result.expectation
    column = asked.get("kwargs", {}).get("column")
    return Assertion(
        assertion=str(asked["type"]),
        success=bool(result.success),
        column=column if isinstance(column, str) else None,
        severity="warn" if result.warning else "error",
        description=describe(asked),
        actual=f"{result.unexpected} of {result.rows} rows" if result.row_level else None,
    )


def of_findings(report: MonitorReport) -> list[Assertion]:
    """Return what a monitor looked at in its newest window; alarms did not hold."""
    found = []
    for each in report.findings:
        found.append(
            Assertion(
                assertion=f"{each.kind}.{each.measure}",
                success=not each.alarm,
                column=each.subject if each.kind in ("drift", "nulls", "values") else None,
                severity="error",
                description=str(each),
                actual=None if each.value is None else str(each.value),
                expected=_bounds(each.low, each.high),
            )
        )
    return found


def _bounds(low: float | None, high: float | None) -> str | None:
    told = []
    if low is not None:
        told.append(f">= {low:.6g}")
    if high is not None:
        told.append(f"<= {high:.6g}")
    return " and ".join(told) or None
