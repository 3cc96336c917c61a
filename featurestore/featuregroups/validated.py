"""Validation of what a group holds: its expectations checked again, and the reports of every audit."""

from __future__ import annotations

from dataclasses import replace

from featurestore.featuregroups.definition import plain_expectations
from featurestore.featuregroups.table import open_group, resolve
from featurestore.model.validation import ValidationReport
from featurestore.registry import featuregroups, reports
from featurestore.session import Session
from featurestore.validation import audit, report_from_json, report_to_json
from featurestore.validation.checks import DUPLICATE_KEYS


def validate(
    session: Session, name: str, *, version: int | None = None, expectations: object = None
) -> ValidationReport:
    """Return the report on the group's present rows, which is kept with those of its writes.

    Keys that occur twice are a warning here: appends may repeat the key of an earlier write, and a retrieval
    takes the latest.
    """
    group = open_group(session, name, version)
    rules = group.spec.expectations if expectations is None else plain_expectations(expectations)
    rows = session.engine.read_table(
        group.path, version=group.delta_version, schema=group.spec.schema
    )
    found = audit(
        rows,
        spec=group.spec,
        policy="warn",
        engine=session.engine,
        expectations=rules,
        mode="check",
        event_time_tolerance=group.spec.event_time_tolerance,
    )
    results = tuple(
        replace(each, warning=True) if each.expectation["type"] == DUPLICATE_KEYS else each
        for each in found.report.results
    )
    report = replace(found.report, results=results, delta_version=group.delta_version)
    with session.registry.transaction() as connection:
        reports.add_validation(connection, featuregroups.KIND, report_to_json(report))
    return report


def validation_history(
    session: Session, name: str, *, version: int | None = None
) -> list[ValidationReport]:
    """Return the reports of a group's audits, refused writes among them, oldest first."""
    name, version = resolve(session, name, version)
    with session.registry.reading() as connection:
        return [
            report_from_json(each)
            for each in reports.validations(connection, featuregroups.KIND, name, version)
        ]
