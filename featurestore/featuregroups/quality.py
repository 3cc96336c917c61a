"""Quality of the stored rows of a group: statistics and validation reports.

Statistics are counted at each write, merged for appends, and recounted after other changes; they are
stored next to the table, in files of ``featurestore.statistics.storage``.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import replace

from featurestore.delta import commits
from featurestore.delta.history import added_files
from featurestore.delta.log import latest_version
from featurestore.featuregroups.conform import Batch
from featurestore.featuregroups.definition import plain_expectations
from featurestore.featuregroups.table import (
    OpenGroup,
    TableVersion,
    live_source,
    open_group,
    pinned,
    resolve,
    rows_of,
)
from featurestore.model.display import Listing
from featurestore.model.featuregroup import Commit, FeatureGroupSpec
from featurestore.model.statistics import Statistics
from featurestore.model.validation import ValidationReport
from featurestore.plugins.engine import Relation
from featurestore.plugins.observers import Work, observed
from featurestore.registry import featuregroups, reports
from featurestore.session import Session
from featurestore.statistics import (
    StatisticsFiles,
    StatisticsState,
    count_statistics,
    finish,
    statistics_accumulator,
)
from featurestore.validation import audit
from featurestore.validation.checks import DUPLICATE_KEYS


def count_commit(session: Session, batch: Batch, group: OpenGroup, commit: Commit) -> None:
    """Count the rows of a commit, if this gives the statistics of the complete table.

    Appends store the state of their rows, which is merged on request; an upsert changes rows that
    were counted, so it stores nothing, and the next request recounts. ``group`` is the group before
    the commit.
    """
    files = _files(session, batch.spec)
    before = commits.latest_data_version(group.path, commit.delta_version - 1)
    replaces_table = batch.mode in ("create", "overwrite")
    is_complete = replaces_table or group.state.rows == 0
    stored_versions: Collection[int] = ()
    if not is_complete:
        stored_versions = files.state_versions() if batch.mode == "append" else ()
        if before not in stored_versions:
            return
    elif not replaces_table and before > group.delta_version:
        return  # another writer was first: the table has more rows than this batch
    state = batch.statistics_state
    if state is None:
        added_rows = _added_rows(session, batch, group.path, commit.delta_version)
        if added_rows is None:
            return
        state = count_statistics(session.engine, added_rows, batch.spec, rows=commit.rows_in)
    # The result takes about as long as the write, so it is computed from the state on request.
    if is_complete:
        files.write(commit.delta_version, state)
    else:
        files.append(commit.delta_version, state, base=before, state_versions=stored_versions)


def _added_rows(session: Session, batch: Batch, path: str, delta_version: int) -> Relation | None:
    """Return the rows that a commit added, read again if they came as a stream.

    None if the files do not have all their columns.
    """
    if not batch.relation.single_use:
        return batch.relation
    if batch.mode in ("create", "overwrite"):
        return session.engine.read_table(path, version=delta_version, schema=batch.spec.schema)
    if batch.spec.partition_by:
        return None  # partition values are not in the files
    added = added_files(path, delta_version)
    return session.engine.read_files(added, schema=batch.spec.schema) if added else None


def statistics_of(
    session: Session,
    name: str,
    *,
    version: int | None = None,
    delta_version: TableVersion | None = None,
    recount: bool = False,
) -> Statistics:
    """Return the statistics of a group at a Delta version; count and store missing ones."""
    group = open_group(session, name, version, as_of=delta_version)
    if group.spec.external is not None and delta_version is None:
        source = {"featuregroup": group.spec.name, "version": group.spec.version}
        return finish(_count_live(session, group), source=source)
    files = _files(session, group.spec)
    data_version = commits.latest_data_version(group.path, group.delta_version)
    if recount:
        return files.write_result(data_version, _count(session, group, data_version))
    stored_result = files.get(data_version)
    if (
        stored_result is not None
        and [each.name for each in stored_result.columns] == group.spec.schema.names
    ):
        return stored_result
    return files.result(data_version, _count(session, group, data_version))


def stored_statistics(
    session: Session,
    name: str,
    *,
    version: int | None = None,
    delta_version: TableVersion | None = None,
) -> Statistics | None:
    """Return the stored statistics of a group at a Delta version (None: the newest), or None."""
    group = open_group(session, name, version, as_of=delta_version)
    data_version = commits.latest_data_version(group.path, group.delta_version)
    return _files(session, group.spec).get(data_version)


def statistics_to_compare(
    session: Session, name: str, compare_with: int | str | None
) -> Statistics | None:
    """Return the statistics of another version of a group (a number), or of another group."""
    if compare_with is None:
        return None
    if isinstance(compare_with, int):
        return statistics_of(session, name.partition("@v")[0], version=compare_with)
    return statistics_of(session, compare_with)


def state_of(
    session: Session,
    name: str,
    *,
    version: int | None = None,
    delta_version: TableVersion | None = None,
) -> StatisticsState:
    """Return the state of the statistics, which contains the sample; count and store if missing."""
    group = open_group(session, name, version, as_of=delta_version)
    if group.spec.external is not None and delta_version is None:
        return _count_live(session, group)
    data_version = commits.latest_data_version(group.path, group.delta_version)
    state = _files(session, group.spec).state(data_version)
    if state is not None and state.columns == statistics_accumulator(group.spec).columns:
        return state
    return _count(session, group, data_version)


def _count_live(session: Session, group: OpenGroup) -> StatisticsState:
    """Count the rows of an external group, at its source."""
    live = live_source(session, group)
    return count_statistics(session.engine, rows_of(session, live), group.spec)


def _count(session: Session, group: OpenGroup, data_version: int) -> StatisticsState:
    rows = session.engine.read_table(
        group.path, version=group.delta_version, schema=group.spec.schema
    )
    state = count_statistics(session.engine, rows, group.spec, rows=group.state.rows)
    if data_version == commits.latest_data_version(group.path, latest_version(group.path)):
        _files(session, group.spec).write(data_version, state)
    return state


def _files(session: Session, spec: FeatureGroupSpec) -> StatisticsFiles:
    source = {"featuregroup": spec.name, "version": spec.version}
    return StatisticsFiles(session.featuregroup_path(spec.name, spec.version), source)


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
    results = tuple(
        replace(each, warning=each.warning or each.expectation["type"] == DUPLICATE_KEYS)
        for each in outcome.report.results
    )
    report = replace(outcome.report, results=results, delta_version=group.delta_version)
    with session.registry.transaction() as connection:
        reports.add_validation_report(connection, featuregroups.KIND, report.to_json())
    return report


def validation_history(
    session: Session, name: str, *, version: int | None = None, limit: int | None = None
) -> list[ValidationReport]:
    """Return the newest reports of a group's audits, including refused writes, oldest first."""
    name, version = resolve(session, name, version)
    with session.registry.reading() as connection:
        report_records = reports.validation_reports_of(
            connection, featuregroups.KIND, name, version, limit=limit
        )
    return Listing(map(ValidationReport.from_json, report_records))
