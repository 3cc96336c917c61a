"""Quality of stored rows: statistics and validation reports of a group.

Statistics are updated at each append and recomputed after other changes. They are stored next to
the table (``featurestore.statistics.storage``).
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import replace

from featurestore.delta import commits
from featurestore.delta.history import added_files
from featurestore.delta.log import latest_version
from featurestore.featuregroups.conform import Batch
from featurestore.featuregroups.definition import normalize_expectations
from featurestore.featuregroups.frames import live_source, plan_source, read_plan_source
from featurestore.featuregroups.table import OpenGroup, TableVersion, open_group, resolve
from featurestore.model.display import Listing
from featurestore.model.featuregroup import Commit, FeatureGroupSpec
from featurestore.model.statistics import Statistics
from featurestore.model.validation import ValidationReport
from featurestore.plugins.engine import Relation
from featurestore.plugins.observers import Work, observed
from featurestore.registry import artifacts, featuregroups
from featurestore.retrieval.compared_features import ComparedFeatures
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


def store_commit_statistics(
    session: Session, batch: Batch, group: OpenGroup, commit: Commit
) -> None:
    """Store the statistics of a commit if they can extend the stored statistics of the table.

    An append stores the state of the appended rows; a request for statistics merges the states. An
    upsert stores nothing, because it changes rows that were counted before; the next request
    recomputes the statistics. ``group`` is the group before the commit.
    """
    files = _statistics_files(session, batch.spec)
    before = commits.latest_data_version(group.path, commit.delta_version - 1)
    replaces_table = batch.mode in ("create", "overwrite")
    is_complete = replaces_table or group.state.rows == 0
    stored_versions: Collection[int] = ()
    if not is_complete:
        stored_versions = files.state_versions() if batch.mode == "append" else ()
        # Without a state of the previous version, for example after a commit of another program,
        # the chain would be incomplete.
        if before not in stored_versions:
            return
    elif not replaces_table and before > group.delta_version:
        return  # another writer was first: the table has more rows than this batch
    state = batch.statistics_state
    if state is None:
        added_rows = _read_added_rows(session, batch, group.path, commit.delta_version)
        if added_rows is None:
            return
        state = count_statistics(session.engine, added_rows, batch.spec, rows=commit.rows_in)
    # Only the state is stored: computing the statistics from it takes as long as the write.
    if is_complete:
        files.write(commit.delta_version, state)
    else:
        files.append(commit.delta_version, state, base=before, state_versions=stored_versions)


def _read_added_rows(
    session: Session, batch: Batch, path: str, delta_version: int
) -> Relation | None:
    """Return the rows that a commit added; rows of a stream are read from the table.

    Return None if the files of the commit lack columns.
    """
    # A write consumes a stream, so its rows are read from the new files.
    if not batch.relation.single_use:
        return batch.relation
    if batch.mode in ("create", "overwrite"):
        return session.engine.read_table(path, version=delta_version, schema=batch.spec.schema)
    if batch.spec.partition_by:
        return None  # partition values are not in the files
    added = added_files(path, delta_version)
    return session.engine.read_files(added, schema=batch.spec.schema) if added else None


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
        and [each.name for each in stored_result.columns] == group.spec.schema.names
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
        replace(each, warning=each.warning or each.expectation["type"] == DUPLICATE_KEYS)
        for each in outcome.report.results
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
