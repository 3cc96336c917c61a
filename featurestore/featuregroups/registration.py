"""Registration of a commit: registry row, lineage, report and statistics of its Delta version.

The rows are visible by then, so nothing here raises: failures are warnings, and recovery registers
the commit later.
"""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy.engine import Connection

from featurestore.delta import commits
from featurestore.delta.log import cached_listing
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import FeatureStoreError
from featurestore.featuregroups.audit import CommittedRows
from featurestore.featuregroups.definition import Declaration
from featurestore.featuregroups.statistics import count_commit
from featurestore.featuregroups.table import OpenGroup
from featurestore.model.featuregroup import Commit, FeatureGroupSpec
from featurestore.model.times import utc_now
from featurestore.plugins.engine import Relation, TableWrite
from featurestore.recovery import groups
from featurestore.recovery.in_flight import InFlight
from featurestore.registry import featuregroups, reports
from featurestore.session import Session
from featurestore.storage.failures import after_publication, warn_published

# ``Commit.rows`` if the log cannot be read after the commit.
UNKNOWN = -1


def write_rows(
    session: Session, group: OpenGroup, relation: Relation, table_write: TableWrite, run: InFlight
) -> int | None:
    """Write one commit and return its Delta version; None when its transaction is a repeat.

    An error after the commit is a warning: the log shows whether the write was committed.
    """
    try:
        run.committed_version = session.engine.write(group.path, relation, table_write)
    except BaseException as error:
        run.committed_version = commits.version_of_run(
            group.path, run.run_id, after=group.delta_version
        )
        if run.committed_version is None or not isinstance(error, Exception):
            raise
        warn_published(_version_title(group.spec, run.committed_version), error)
    return run.committed_version


def register(session: Session, committed_rows: CommittedRows, *, run: InFlight) -> Commit:
    """Update registry and statistics after a commit, and return it."""
    with cached_listing(committed_rows.group.path):
        return _registered(session, committed_rows, run)


def _registered(session: Session, committed_rows: CommittedRows, run: InFlight) -> Commit:
    spec, version = committed_rows.spec, committed_rows.delta_version
    title = _version_title(spec, version)
    try:
        commit = commits.commit_of(committed_rows.group.path, version)
    except (FeatureStoreError, OSError, ValueError) as error:
        warn_published(title, error)
        return Commit(version, UNKNOWN, utc_now(), committed_rows.mode, run_id=run.run_id)
    with after_publication(title):
        _update_registry(session, committed_rows, commit)
        run.registered = True
    if spec.statistics:
        with after_publication(title):
            count_commit(session, committed_rows, rows=commit.rows_in)
    return commit


def advance(
    session: Session,
    spec: FeatureGroupSpec,
    delta_version: int,
    *,
    run: InFlight,
    meta: commits.Meta | None = None,
) -> None:
    """Register the Delta version of a commit without rows, and the metadata of the group."""
    run.committed_version = delta_version
    with after_publication(_version_title(spec, delta_version)):
        with session.registry.transaction() as connection:
            featuregroups.advance(connection, spec.name, spec.version, delta_version=delta_version)
            if meta is not None:
                groups.describe(connection, spec.name, spec.version, meta)
        run.registered = True


def _update_registry(session: Session, committed_rows: CommittedRows, commit: Commit) -> None:
    spec, report = committed_rows.spec, committed_rows.audited.report
    latest, changed_spec = commit.delta_version, None
    if spec.schema != committed_rows.group.spec.schema:
        # Other writers may have changed columns at the same time, so the current columns of the
        # table are registered.
        state = read_snapshot(committed_rows.group.path)
        latest, changed_spec = state.version, commits.spec_of(state)
    with session.registry.transaction() as connection:
        if committed_rows.declared is None:
            featuregroups.advance(
                connection, spec.name, spec.version, delta_version=latest, spec=changed_spec
            )
        else:
            _add_definition(connection, committed_rows.group, commit, committed_rows.declared)
        groups.add_lineage(connection, spec, commit)
        if report is not None:
            report = replace(report, delta_version=commit.delta_version)
            reports.add_validation(connection, featuregroups.KIND, report.to_json())


def _add_definition(
    connection: Connection, group: OpenGroup, commit: Commit, declared: Declaration
) -> None:
    spec = group.spec
    featuregroups.add(
        connection,
        spec,
        table_id=group.state.table_id,
        delta_version=commit.delta_version,
        description=declared.description,
        created=commit.timestamp,
    )
    meta = commits.Meta(declared.description, declared.tags, declared.descriptions or {})
    groups.describe(connection, spec.name, spec.version, meta)


def _version_title(spec: FeatureGroupSpec, delta_version: int) -> str:
    return f"Delta version {delta_version} of feature group {spec.name!r} version {spec.version}"
