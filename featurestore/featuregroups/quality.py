"""Quality of the rows of a group: statistics, validation reports, and the quarantine.

Statistics are updated at each append and recomputed after other changes. They are stored next to
the table (``featurestore.statistics.storage``).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from featurestore.arrow.fitting import widened_schema
from featurestore.delta import commits
from featurestore.delta.commits import next_offsets
from featurestore.delta.history import added_files
from featurestore.delta.log import is_delta_table, latest_version
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import DuplicateKeys, RegistryError, ValidationFailed
from featurestore.featuregroups.checks import warn_about_implausible_times
from featurestore.featuregroups.definition import normalize_expectations
from featurestore.featuregroups.frames import live_source, plan_source, read_plan_source
from featurestore.featuregroups.table import OpenGroup, TableVersion, open_group, resolve
from featurestore.model.display import Listing
from featurestore.model.featuregroup import Commit, FeatureGroupSpec
from featurestore.model.statistics import Statistics
from featurestore.model.validation import ValidationReport
from featurestore.plugins.engine import Engine, Relation, TableWrite
from featurestore.plugins.observers import Work, observed
from featurestore.registry import artifacts, featuregroups
from featurestore.retrieval.compared_features import ComparedFeatures
from featurestore.session import Session
from featurestore.statistics import (
    StatisticsFiles,
    StatisticsState,
    count_statistics,
    finish,
    is_sample_short,
    statistics_accumulator,
)
from featurestore.validation import AuditOutcome, Subject, audit, quarantine_schema
from featurestore.validation.checks import DUPLICATE_KEYS, NULL_KEYS


def store_commit_statistics(
    session: Session,
    group: OpenGroup,
    commit: Commit,
    *,
    rows: Relation,
    spec: FeatureGroupSpec,
    mode: str,
    state: StatisticsState | None,
) -> None:
    """Store the statistics of a commit if they can extend the stored statistics of the table.

    An append stores the state of the appended rows; a request for statistics merges the states. An
    upsert stores nothing, because it changes rows that were counted before; the next request
    recomputes the statistics. ``group`` is the group before the commit, and ``spec`` its definition
    with the columns of ``rows``; ``state`` are their statistics, if staging has computed them.
    """
    files = _statistics_files(session, spec)
    before = commits.latest_data_version(group.path, commit.delta_version - 1)
    replaces_table = mode in ("create", "overwrite")
    is_complete = replaces_table or group.state.rows == 0
    stored_versions: Collection[int] = ()
    if not is_complete:
        stored_versions = files.state_versions() if mode == "append" else ()
        # Without a state of the previous version, for example after a commit of another program,
        # the chain would be incomplete.
        if before not in stored_versions:
            return
    elif not replaces_table and before > group.delta_version:
        return  # another writer was first: the table has more rows than this batch
    if state is None:
        added_rows: Relation | None = rows
        if rows.single_use:
            # A write consumes a stream, so its rows are read from the new files.
            added_rows = _read_added_rows(
                session, group.path, commit.delta_version, spec, is_table=replaces_table
            )
        if added_rows is None:
            return
        state = count_statistics(session.engine, added_rows, spec, rows=commit.rows_in)
    # Only the state is stored: computing the statistics from it takes as long as the write.
    if is_complete:
        files.write(commit.delta_version, state)
    else:
        files.append(commit.delta_version, state, base=before, state_versions=stored_versions)


def _read_added_rows(
    session: Session, path: str, delta_version: int, spec: FeatureGroupSpec, *, is_table: bool
) -> Relation | None:
    """Return the rows that a commit added: of the table, or of its new files.

    Return None if the files of the commit lack columns.
    """
    if is_table:
        return session.engine.read_table(path, version=delta_version, schema=spec.schema)
    if spec.partition_by:
        return None  # partition values are not in the files
    added = added_files(path, delta_version)
    return session.engine.read_files(added, schema=spec.schema) if added else None


def stage_rows(
    engine: Engine,
    rows: Relation,
    spec: FeatureGroupSpec,
    *,
    directory: str,
    row_count: int | None,
    has_statistics: bool,
) -> tuple[Relation, StatisticsState | None]:
    """Return staged rows, and their statistics if the engine counts them in the same pass.

    After the commit the statistics are merged with the stored ones if possible. ``row_count`` is
    the number of rows, if it is known.
    """
    if not has_statistics:
        return engine.stage(rows, directory), None
    accumulator = statistics_accumulator(spec, rows=row_count)
    staged, state = engine.stage_and_aggregate(rows, directory, accumulator)
    # If duplicates make the sample too small, the statistics are recomputed after the commit.
    if state is not None and is_sample_short(accumulator, state):
        state = None
    return staged, state


def load_statistics(
    session: Session,
    name: str,
    *,
    version: int | None = None,
    delta_version: TableVersion | None = None,
    recount: bool = False,
) -> Statistics:
    """Return the statistics of a group at a Delta version; compute and store them if missing."""
    group = open_group(session, name, version, as_of=delta_version)
    if group.spec.external is not None and delta_version is None:
        source = {"featuregroup": group.spec.name, "version": group.spec.version}
        return finish(_count_external_rows(session, group), source=source)
    files = _statistics_files(session, group.spec)
    data_version = commits.latest_data_version(group.path, group.delta_version)
    if recount:
        return files.write_result(data_version, _count_rows(session, group, data_version))
    stored_result = files.get(data_version)
    # Statistics from before a schema change lack the new columns.
    if (
        stored_result is not None
        and [column.name for column in stored_result.columns] == group.spec.schema.names
    ):
        return stored_result
    return files.result(data_version, _count_rows(session, group, data_version))


def find_stored_statistics(
    session: Session,
    name: str,
    *,
    version: int | None = None,
    delta_version: TableVersion | None = None,
) -> Statistics | None:
    """Return the stored statistics at a Delta version (default: latest), or None if missing."""
    group = open_group(session, name, version, as_of=delta_version)
    data_version = commits.latest_data_version(group.path, group.delta_version)
    return _statistics_files(session, group.spec).get(data_version)


def load_statistics_to_compare(
    session: Session, name: str, compare_with: int | str | None
) -> Statistics | None:
    """Return the statistics of another version (an integer) or of another group (a name)."""
    if compare_with is None:
        return None
    if isinstance(compare_with, int):
        return load_statistics(session, name.partition("@v")[0], version=compare_with)
    return load_statistics(session, compare_with)


def load_statistics_state(
    session: Session,
    name: str,
    *,
    version: int | None = None,
    delta_version: TableVersion | None = None,
) -> StatisticsState:
    """Return the state of the statistics, including the sample; compute it if missing."""
    group = open_group(session, name, version, as_of=delta_version)
    if group.spec.external is not None and delta_version is None:
        return _count_external_rows(session, group)
    data_version = commits.latest_data_version(group.path, group.delta_version)
    state = _statistics_files(session, group.spec).state(data_version)
    if state is not None and state.columns == statistics_accumulator(group.spec).columns:
        return state
    return _count_rows(session, group, data_version)


def _count_external_rows(session: Session, group: OpenGroup) -> StatisticsState:
    """Compute the statistics of an external group from its source."""
    live = live_source(session, group)
    return count_statistics(session.engine, read_plan_source(session, live), group.spec)


def _count_rows(session: Session, group: OpenGroup, data_version: int) -> StatisticsState:
    """Compute the statistics of a table version, and store them for the latest version."""
    rows = session.engine.read_table(
        group.path, version=group.delta_version, schema=group.spec.schema
    )
    state = count_statistics(session.engine, rows, group.spec, rows=group.state.rows)
    # Only the state of the latest version can be extended by later appends.
    if data_version == commits.latest_data_version(group.path, latest_version(group.path)):
        _statistics_files(session, group.spec).write(data_version, state)
    return state


def _statistics_files(session: Session, spec: FeatureGroupSpec) -> StatisticsFiles:
    source = {"featuregroup": spec.name, "version": spec.version}
    return StatisticsFiles(session.featuregroup_path(spec.name, spec.version), source)


def audit_rows(
    session: Session,
    rows: Relation,
    spec: FeatureGroupSpec,
    *,
    subject: FeatureGroupSpec | Subject,
    validation: str,
    mode: str,
    directory: str,
    run_id: str,
) -> AuditOutcome:
    """Audit the staged rows of a write, warn about implausible times, and return the outcome.

    ``subject`` has the key that the audit checks. The outcome states ``unique`` only if it is known
    for all rows.
    """
    outcome = audit(
        rows,
        spec=subject,
        validation=validation,
        engine=session.engine,
        expectations=spec.expectations,
        mode=mode,
        event_time_tolerance=spec.event_time_tolerance,
        directory=os.path.join(directory, "parted"),
        run_id=run_id,
        open_feature=ComparedFeatures(
            session, spec, with_stored_rows=mode not in ("create", "overwrite")
        ),
    )
    warn_about_implausible_times(outcome.report, spec)
    # Keys with nulls are not compared with each other, so their uniqueness is unknown.
    has_null_keys = any(
        result.expectation["type"] == NULL_KEYS and not result.success
        for result in outcome.report.results
    )
    if has_null_keys and outcome.quarantined is None:
        return replace(outcome, unique=None)
    return outcome


def validate(
    session: Session, name: str, *, version: int | None = None, expectations: object = None
) -> ValidationReport:
    """Audit the stored rows of a group, store the validation report, and return it.

    Duplicate keys are only a warning: an append may repeat the key of an earlier write, and a
    retrieval uses the latest row.
    """
    group = open_group(session, name, version)
    rules = (
        group.spec.expectations if expectations is None else normalize_expectations(expectations)
    )
    live = None
    if group.spec.external is not None:
        live = live_source(session, group)  # this reference keeps its rows available
    rows = read_plan_source(session, live or plan_source(group))
    # Observers are notified as for the audit of a write, so that lineage events contain the report.
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
            open_feature=ComparedFeatures(session, group.spec),
        )
        work.report = outcome.report
    results = tuple(
        replace(result, warning=result.warning or result.expectation["type"] == DUPLICATE_KEYS)
        for result in outcome.report.results
    )
    report = replace(outcome.report, results=results, delta_version=group.delta_version)
    with session.registry.transaction() as connection:
        artifacts.add_validation_report(connection, featuregroups.KIND, report.to_json())
    return report


def validation_history(
    session: Session, name: str, *, version: int | None = None, limit: int | None = None
) -> list[ValidationReport]:
    """Return the latest validation reports of a group, oldest first; failed writes are included."""
    name, version = resolve(session, name, version)
    with session.registry.reading() as connection:
        report_records = artifacts.validation_reports_of(
            connection, featuregroups.KIND, name, version, limit=limit
        )
    return Listing(map(ValidationReport.from_json, report_records))


def record_failed_validation(session: Session, error: ValidationFailed | DuplicateKeys) -> None:
    """Store the validation report of a failed write, if it has one."""
    report = getattr(error, "report", None)
    if isinstance(report, ValidationReport):
        # The caller needs the validation error, not an error about storing the report.
        with suppress(RegistryError), session.registry.transaction() as connection:
            artifacts.add_validation_report(connection, featuregroups.KIND, report.to_json())


def add_to_quarantine(
    session: Session, rows: Relation, spec: FeatureGroupSpec, table_write: TableWrite
) -> None:
    """Append rows to the quarantine table of a group, and create the table if it is missing.

    Raises:
        StreamOvertaken: Another process has already quarantined records of these partitions.
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
        # Decimal columns of the group may have been widened since the quarantine table was created.
        session.engine.widen_columns(path, rows.schema)
    stored_columns = set(state.schema.names)
    new_columns = pa.schema([field for field in rows.schema if field.name not in stored_columns])
    quarantine_write = TableWrite(
        mode="append",
        add_columns=new_columns or None,
        commit_metadata={
            "operation": "quarantine",
            "run": table_write.commit_metadata["run"],
        },
        transaction=table_write.transaction,
        offsets=offsets,
    )
    session.engine.write(path, rows, quarantine_write)
