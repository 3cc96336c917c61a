"""Audits: of staged rows before they are committed, and of what a group holds already."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from featurestore.delta.log import is_delta_table
from featurestore.delta.offsets import next_offsets
from featurestore.delta.snapshot import read_snapshot
from featurestore.featuregroups.definition import Declaration, plain_expectations
from featurestore.featuregroups.read import live_source, pinned, rows_of
from featurestore.featuregroups.table import OpenGroup, open_group, resolve
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.html import Listing
from featurestore.model.types import widened_schema
from featurestore.model.validation import ExpectationResult, ValidationReport
from featurestore.plugins.engine import Relation, TableWrite
from featurestore.plugins.observers import Work, observed
from featurestore.recovery.in_flight import InFlight
from featurestore.registry import featuregroups, reports
from featurestore.session import Session
from featurestore.statistics import StatisticsState
from featurestore.validation import audit, quarantine_schema, report_from_json, report_to_json
from featurestore.validation.checks import DUPLICATE_KEYS

if TYPE_CHECKING:
    from featurestore.featuregroups.write import Write

_NULL_KEYS = "no_null_keys"


@dataclass(frozen=True)
class AuditedRows:
    """Rows that may land.

    ``unique``: no key occurs twice among them and none has nulls; None: not known. ``counted`` are
    the statistics of the rows, where they were counted while the rows were staged. ``mode`` is how
    they have to be written, None for what the write says, and ``deletes`` the keys of rows of the
    table that go in the same commit.
    """

    relation: Relation
    report: ValidationReport | None = None
    quarantined: Relation | None = None
    unique: bool | None = None
    counted: StatisticsState | None = None
    mode: str | None = None
    deletes: Relation | None = None

    @property
    def outcome(self) -> str | None:
        """One word on the audit for the commit: passed, warned, quarantined.

        None when there was none.
        """
        if self.report is None:
            return None
        if self.quarantined is not None:
            return "quarantined"
        return "passed" if self.report.success else "warned"


@dataclass(frozen=True)
class LandedRows:
    """Rows that a commit has just made visible, for statistics and registration.

    ``group`` is the group as it was opened before the write, ``spec`` its definition with the
    columns that it gained, ``mode`` how the rows were written ("create" for the first ones).
    ``declared`` is what a creation declares beside the definition.
    """

    group: OpenGroup
    spec: FeatureGroupSpec
    delta_version: int
    mode: str
    audited: AuditedRows
    declared: Declaration | None = None


def audit_staged(
    session: Session,
    relation: Relation,
    spec: FeatureGroupSpec,
    *,
    validation: str,
    run: InFlight,
    mode: str,
    library: str,
) -> AuditedRows:
    """Audit staged rows; ValidationFailed when they may not land."""
    found = audit(
        relation,
        spec=spec,
        validation=validation,
        engine=session.engine,
        expectations=spec.expectations,
        mode=mode,
        event_time_tolerance=spec.event_time_tolerance,
        directory=os.path.join(run.rows, "parted"),
        run_id=run.run_id,
        library=library,
    )
    keys_present = all(
        each.success for each in found.report.results if each.expectation["type"] == _NULL_KEYS
    )
    unique = found.unique if keys_present or found.quarantined is not None else None
    return AuditedRows(found.good, found.report, found.quarantined, unique)


def transaction_of(audited: AuditedRows, write: Write, run: InFlight) -> tuple[str, int] | None:
    """Return the transaction of a write: the caller's.

    One of its own where two tables are written; offsets of a stream do as well.
    """
    given = write.transaction
    if given is not None or audited.quarantined is None or write.offsets:
        return given
    return f"write/{run.run_id}", 0


def quarantine(
    session: Session, audited: AuditedRows, spec: FeatureGroupSpec, how: TableWrite
) -> None:
    """Append rows that did not pass to the group's quarantine table, before the good ones land.

    Both commits carry the same transaction, or the same offsets of a stream, so a repeat of the
    write repeats neither.
    """
    if audited.quarantined is not None:
        add_to_quarantine(session, audited.quarantined, spec, how)


def add_to_quarantine(
    session: Session, rows: Relation, spec: FeatureGroupSpec, how: TableWrite
) -> None:
    """Append rows to the quarantine table of a group, which is made where it is absent.

    Raises:
        StreamOvertaken: Another process quarantined records of these partitions first.
    """
    path = session.quarantine_path(spec.name, spec.version)
    if not is_delta_table(path):
        with suppress(FileExistsError):  # another process was faster
            session.engine.create_table(
                path,
                schema=quarantine_schema(spec.schema),
                partition_by=(),
                properties={"featurestore.quarantine": f"{spec.name}@v{spec.version}"},
                note={"operation": "create"},
            )
    state = read_snapshot(path)
    offsets = next_offsets(state, how.offsets)
    if offsets is None:
        return
    if widened_schema(state.schema, rows.schema) != state.schema:
        # The decimals of the group have got more digits since the quarantine was made.
        session.engine.widen_columns(path, rows.schema)
    stored = set(state.schema.names)
    new = pa.schema([field for field in rows.schema if field.name not in stored])
    note = {"operation": "quarantine", "run": how.note["run"]}
    landing = TableWrite(
        mode="append",
        add_columns=new or None,
        note=note,
        transaction=how.transaction,
        offsets=offsets,
    )
    session.engine.write(path, rows, landing)


def validate(
    session: Session, name: str, *, version: int | None = None, expectations: object = None
) -> ValidationReport:
    """Return the report on the group's present rows, which is stored with those of its writes.

    Keys that occur twice are a warning here: appends may repeat the key of an earlier write, and a
    retrieval takes the latest.
    """
    group = open_group(session, name, version)
    rules = group.spec.expectations if expectations is None else plain_expectations(expectations)
    live = None
    if group.spec.external is not None:
        live = live_source(session, group)  # as long as this is known, its rows are there
    rows = rows_of(session, live or pinned(group))
    work = Work("validate", group.spec.name, uuid.uuid4().hex, session.location, group.spec.version)
    work.committed_version = group.delta_version
    with observed(work):
        found = audit(
            rows,
            spec=group.spec,
            validation="warn",
            engine=session.engine,
            expectations=rules,
            mode="check",
            event_time_tolerance=group.spec.event_time_tolerance,
        )
        work.report = found.report
    results = tuple(_with_duplicates_as_warning(each) for each in found.report.results)
    report = replace(found.report, results=results, delta_version=group.delta_version)
    with session.registry.transaction() as connection:
        reports.add_validation(connection, featuregroups.KIND, report_to_json(report))
    return report


def _with_duplicates_as_warning(result: ExpectationResult) -> ExpectationResult:
    if result.expectation["type"] == DUPLICATE_KEYS:
        return replace(result, warning=True)
    return result


def validation_history(
    session: Session, name: str, *, version: int | None = None, limit: int | None = None
) -> list[ValidationReport]:
    """Return the newest reports of a group's audits, refused writes among them, oldest first."""
    name, version = resolve(session, name, version)
    with session.registry.reading() as connection:
        stored = reports.validations(connection, featuregroups.KIND, name, version, limit=limit)
    return Listing(map(report_from_json, stored))
