"""After the commit: registry row, lineage, report and statistics of the new Delta version."""

from __future__ import annotations

from featurestore.delta import commits, deltalog
from featurestore.featuregroups import statistics
from featurestore.featuregroups.audit import Gated, with_delta_version
from featurestore.featuregroups.table import OpenGroup
from featurestore.featuregroups.underway import Underway
from featurestore.model.featuregroup import Commit, FeatureGroupSpec
from featurestore.registry import featuregroups, heal, reports
from featurestore.session import Session


def record(
    session: Session,
    group: OpenGroup,
    spec: FeatureGroupSpec,
    delta_version: int,
    *,
    run: Underway,
    gated: Gated,
    mode: str,
) -> Commit:
    """Bring the registry up to a commit that has just landed, and return it."""
    commit = commits.commit_of(group.path, delta_version)
    if spec.statistics:
        statistics.count_commit(
            session,
            group,
            spec,
            delta_version,
            relation=gated.relation,
            mode=mode,
            rows=commit.rows_in,
        )
    latest, gained = delta_version, None
    if spec.schema.names != group.spec.schema.names:
        # Others may have added columns at the same time: what the table has now is what is recorded.
        state = deltalog.table_state(group.path)
        latest, gained = state.version, commits.spec_of(state)
    with session.registry.transaction() as connection:
        featuregroups.advance(
            connection, spec.name, spec.version, delta_version=latest, spec=gained
        )
        heal.add_lineage(connection, spec, commit)
        if gated.report is not None:
            report = with_delta_version(gated.report, delta_version)
            reports.add_validation(connection, featuregroups.KIND, report.to_json())
    run.registered = True
    return commit
