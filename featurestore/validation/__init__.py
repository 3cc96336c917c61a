"""Validation: policies, built-in checks, the audit before every commit, reports."""

from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.model.validation import ValidationReport, describe
from featurestore.validation.audit import AuditOutcome, audit, check_columns
from featurestore.validation.checks import Subject
from featurestore.validation.comparisons import OpenFeature
from featurestore.validation.quarantine import REASONS, quarantine_schema


def report_to_json(report: ValidationReport) -> JsonDict:
    """Convert a report to the JSON object that is stored."""
    return report.to_json()


def report_from_json(data: JsonMapping) -> ValidationReport:
    """Create a report from its stored JSON object."""
    return ValidationReport.from_json(data)


__all__ = [
    "REASONS",
    "AuditOutcome",
    "OpenFeature",
    "Subject",
    "audit",
    "check_columns",
    "describe",
    "quarantine_schema",
    "report_from_json",
    "report_to_json",
]
