"""The audit of an export: check its rows before the first shard is written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from featurestore.errors import InvalidArgument
from featurestore.model.featuregroup import VALIDATION_POLICIES
from featurestore.model.manifest import Manifest
from featurestore.model.requests import TrainingDatasetRequest
from featurestore.model.validation import ValidationReport
from featurestore.plugins.engine import Engine, Relation
from featurestore.plugins.validator import Validator, find_validator
from featurestore.registry import reports
from featurestore.registry.training_datasets import KIND
from featurestore.session import Session
from featurestore.training.export.request import ExportRequest
from featurestore.validation import Subject, audit, report_to_json

QUARANTINE = "_quarantine"


@dataclass(frozen=True)
class ExportChecks:
    """The expectations of the rows and the policy for failing rows.

    Without a validator the rows are not checked.
    """

    validation: str
    validator: Validator | None = None
    expectations: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class AuditedRows:
    """The rows to export, and the quarantined rows and the report if the rows were checked."""

    relation: Relation
    quarantined: Relation | None = None
    report: ValidationReport | None = None


def export_checks(options: TrainingDatasetRequest) -> ExportChecks:
    """Return the checks of a request.

    Raises:
        InvalidArgument: The policy does not exist.
        InvalidExpectation: An expectation does not exist, or lacks arguments.
    """
    if options.validation not in VALIDATION_POLICIES:
        raise InvalidArgument(
            f"Unknown validation policy {options.validation!r}.",
            hint=f"one of {', '.join(VALIDATION_POLICIES)}",
        )
    if not options.expectations:
        return ExportChecks(options.validation)
    validator = find_validator()
    return ExportChecks(options.validation, validator, validator.normalize(options.expectations))


def audit_rows(
    engine: Engine, rows: Relation, request: ExportRequest, checks: ExportChecks
) -> AuditedRows:
    """Return the rows to export.

    Raises:
        ValidationFailed: An expectation failed under "strict".
    """
    if not checks.expectations or checks.validation == "off":
        return AuditedRows(rows)
    outcome = audit(
        rows,
        spec=Subject(request.name, 0, request.schema),
        validation=checks.validation,
        engine=engine,
        expectations=checks.expectations,
        validator=checks.validator,
    )
    return AuditedRows(outcome.good, outcome.quarantined, outcome.report)


def write_quarantined(engine: Engine, rows: Relation, *, directory: str) -> None:
    """Write the quarantined rows as Parquet in the directory of the dataset."""
    names = [name for name in rows.schema.names if not name.startswith("__fs_")]
    columns = engine.select(rows, dict(zip(names, names, strict=True)))
    engine.stage(columns, os.path.join(directory, QUARANTINE))


def register_report(session: Session, report: ValidationReport | None, manifest: Manifest) -> None:
    """Register the report of a finished export."""
    if report is None:
        return
    report = replace(report, version=manifest.version, run_id=manifest.run_id)
    with session.registry.transaction() as connection:
        reports.add_validation(connection, KIND, report_to_json(report))
