"""Validation: policies, built-in checks, the audit before every commit, reports."""

from featurestore.model.validation import describe
from featurestore.validation.audit import AuditOutcome, audit, check_columns
from featurestore.validation.checks import Subject
from featurestore.validation.comparisons import OpenFeature
from featurestore.validation.quarantine import REASONS, quarantine_schema

__all__ = [
    "REASONS",
    "AuditOutcome",
    "OpenFeature",
    "Subject",
    "audit",
    "check_columns",
    "describe",
    "quarantine_schema",
]
