"""Audits of staged rows before a commit, and of the rows of a group."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from featurestore.arrow.fitting import widened_schema
from featurestore.delta.log import is_delta_table
from featurestore.delta.offsets import next_offsets
from featurestore.delta.snapshot import read_snapshot
from featurestore.featuregroups.definition import Declaration, plain_expectations
from featurestore.featuregroups.read import live_source, pinned, rows_of
from featurestore.featuregroups.table import OpenGroup, open_group, resolve
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.html import Listing
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
    """Rows that may be committed.

    ``unique``: no key occurs twice among them and none has nulls; None: not known.
    ``statistics_state`` has the statistics of the rows, if they were counted during staging.
    ``mode`` replaces the mode of the write, None keeps it, and ``deletes`` has the keys of stored
    rows that the same commit deletes.
    """

    relation: Relation
    report: ValidationReport | None = None
    quarantined: Relation | None = None
    unique: bool | None = None
    statistics_state: StatisticsState | None = None
    mode: str | None = None
    deletes: Relation | None = None

    @property
    def outcome(self) -> str | None:
        """The outcome for the commit: "passed", "warned" or "quarantined"; None without an audit."""
        if self.report is None:
            return None
        if self.quarantined is not None:
            return "quarantined"
        return "passed" if self.report.success else "warned"


@dataclass(frozen=True)
class CommittedRows:
    """Rows of a new commit, for statistics and registration.

    ``group`` is the group before the write, ``spec`` its definition with the new columns, ``mode``
    that of the write ("create" for the first one). ``declared`` is the declaration of a creation.
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
    """Audit staged rows.

    Raises:
        ValidationFailed: The rows break a rule under "strict".
    """
    outcome = audit(
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
        each.success for each in outcome.report.results if each.expectation["type"] == _NULL_KEYS
    )
    unique = outcome.unique if keys_present or outcome.quarantined is not None else None
    return AuditedRows(outcome.good, outcome.report, outcome.quarantined, unique)


def transaction_of(audited: AuditedRows, write: Write, run: InFlight) -> tuple[str, int] | None:
    """Return the caller's transaction, or a new one if two tables are written.

    Offsets of a stream make a new one unnecessary.
    """
    transaction = write.transaction
    if transaction is not None or audited.quarantined is None or write.offsets:
        return transaction
    return f"write/{run.run_id}", 0


def quarantine(
    session: Session, audited: AuditedRows, spec: FeatureGroupSpec, table_write: TableWrite
) -> None:
    """Append failed rows to the group's quarantine table, before the good ones are committed.

    Both commits have the same transaction, or the same offsets of a stream, so a repeated write
    appends to neither.
    """
    if audited.quarantined is not None:
        add_to_quarantine(session, audited.quarantined, spec, table_write)


def add_to_quarantine(
    session: Session, rows: Relation, spec: FeatureGroupSpec, table_write: TableWrite
) -> None:
    """Append rows to the quarantine table of a group; create the table if it is missing.

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
                commit_metadata={"operation": "create"},
            )
    state = read_snapshot(path)
    offsets = next_offsets(state, table_write.offsets)
    if offsets is None:
        return
    if widened_schema(state.schema, rows.schema) != state.schema:
        # The decimals of the group have got more digits since the quarantine was made.
        session.engine.widen_columns(path, rows.schema)
    stored_columns = set(state.schema.names)
    new_columns = pa.schema([field for field in rows.schema if field.name not in stored_columns])
    note = {"operation": "quarantine", "run": table_write.commit_metadata["run"]}
    quarantine_write = TableWrite(
        mode="append",
        add_columns=new_columns or None,
        commit_metadata=note,
        transaction=table_write.transaction,
        offsets=offsets,
    )
    session.engine.write(path, rows, quarantine_write)


def validate(
    session: Session, name: str, *, version: int | None = None, expectations: object = None
) -> ValidationReport:
    """Audit the rows of a group, store the report with those of its writes, and return it.

    Duplicate keys are a warning here: appends may repeat the key of an earlier write, and a
    retrieval takes the latest.
    """
    group = open_group(session, name, version)
    rules = group.spec.expectations if expectations is None else plain_expectations(expectations)
    live = None
    if group.spec.external is not None:
        live = live_source(session, group)  # this reference keeps its rows available
    rows = rows_of(session, live or pinned(group))
    work = Work("validate", group.spec.name, uuid.uuid4().hex, session.location, group.spec.version)
    work.committed_version = group.delta_version
    with observed(work):
        outcome = audit(
            rows,
            spec=group.spec,
            validation="warn",
            engine=session.engine,
            expectations=rules,
            mode="check",
            event_time_tolerance=group.spec.event_time_tolerance,
        )
        work.report = outcome.report
    results = tuple(_with_duplicates_as_warning(each) for each in outcome.report.results)
    report = replace(outcome.report, results=results, delta_version=group.delta_version)
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
    """Return the newest reports of a group's audits, including refused writes, oldest first."""
    name, version = resolve(session, name, version)
    with session.registry.reading() as connection:
        report_records = reports.validations(
            connection, featuregroups.KIND, name, version, limit=limit
        )
    return Listing(map(report_from_json, report_records))
