"""Registration: what follows a commit.

The registry's row, lineage, report and statistics of the new Delta version.

The rows are visible by then, so nothing here raises: what cannot be done is a warning, and recovery
does it later.
"""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy.engine import Connection

from featurestore.delta import commits
from featurestore.delta.log import cached_listing
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import FeatureStoreError
from featurestore.featuregroups.audit import LandedRows
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
from featurestore.storage.publication import after_publication, warn_published

# What ``Commit.rows`` is where the log could not be read after the commit.
UNKNOWN = -1


def write_rows(
    session: Session, group: OpenGroup, relation: Relation, how: TableWrite, run: InFlight
) -> int | None:
    """Write one commit and return its Delta version; None when its transaction is a repeat.

    An error that came when the commit was there already is a warning: the log says whether the
    write landed.
    """
    try:
        run.committed_version = session.engine.write(group.path, relation, how)
    except BaseException as error:
        run.committed_version = commits.version_of_run(
            group.path, run.run_id, after=group.delta_version
        )
        if run.committed_version is None or not isinstance(error, Exception):
            raise
        warn_published(_what(group.spec, run.committed_version), error)
    return run.committed_version


def register(session: Session, landed: LandedRows, *, run: InFlight) -> Commit:
    """Bring registry and statistics up to a commit that has just landed, and return it."""
    with cached_listing(landed.group.path):
        return _registered(session, landed, run)


def _registered(session: Session, landed: LandedRows, run: InFlight) -> Commit:
    spec, version = landed.spec, landed.delta_version
    what = _what(spec, version)
    try:
        commit = commits.commit_of(landed.group.path, version)
    except (FeatureStoreError, OSError, ValueError) as error:
        warn_published(what, error)
        return Commit(version, UNKNOWN, utc_now(), landed.mode, run_id=run.run_id)
    with after_publication(what):
        _register(session, landed, commit)
        run.registered = True
    if spec.statistics:
        with after_publication(what):
            count_commit(session, landed, rows=commit.rows_in)
    return commit


def advance(
    session: Session,
    spec: FeatureGroupSpec,
    delta_version: int,
    *,
    run: InFlight,
    meta: commits.Meta | None = None,
) -> None:
    """Register the Delta version of a commit without rows, and what it says of the group."""
    run.committed_version = delta_version
    with after_publication(_what(spec, delta_version)):
        with session.registry.transaction() as connection:
            featuregroups.advance(connection, spec.name, spec.version, delta_version=delta_version)
            if meta is not None:
                groups.describe(connection, spec.name, spec.version, meta)
        run.registered = True


def _register(session: Session, landed: LandedRows, commit: Commit) -> None:
    spec, report = landed.spec, landed.audited.report
    latest, gained = commit.delta_version, None
    if spec.schema != landed.group.spec.schema:
        # Others may have changed columns at the same time: what the table has now is what is
        # registered.
        state = read_snapshot(landed.group.path)
        latest, gained = state.version, commits.spec_of(state)
    with session.registry.transaction() as connection:
        if landed.declared is None:
            featuregroups.advance(
                connection, spec.name, spec.version, delta_version=latest, spec=gained
            )
        else:
            _add_definition(connection, landed.group, commit, landed.declared)
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


def _what(spec: FeatureGroupSpec, delta_version: int) -> str:
    return f"Delta version {delta_version} of feature group {spec.name!r} version {spec.version}"
