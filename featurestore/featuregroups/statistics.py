"""Statistics kept beside a group's table: counted at each write, merged by appends, recounted when stale.

The files are those of ``featurestore.statistics.storage``.
"""

from __future__ import annotations

from featurestore.delta import commits, deltalog
from featurestore.featuregroups.table import AsOf, OpenGroup, open_group
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.statistics import Statistics
from featurestore.plugins.engine import Relation
from featurestore.session import Session
from featurestore.statistics import (
    StatisticsFiles,
    StatisticsState,
    count_statistics,
    statistics_accumulator,
)

# Results of more columns take longer than the write: they are made from the kept state when they are asked for.
_EAGER_COLUMNS = 500


def count_commit(
    session: Session,
    group: OpenGroup,
    spec: FeatureGroupSpec,
    delta_version: int,
    *,
    relation: Relation,
    mode: str,
    rows: int,
) -> None:
    """Count what a commit has just written, where that gives the statistics of the whole table.

    Appends keep what they added and merge on request; an upsert changes rows that were counted, so it keeps
    nothing, and the next request counts anew. ``rows`` is how many rows the commit added.
    """
    kept = _files(session, spec)
    before = commits.latest_data_version(group.path, delta_version - 1)
    base = None
    if mode not in ("create", "overwrite") and group.state.rows > 0:
        if mode != "append" or not kept.knows(before):
            return
        base = before
    elif mode not in ("create", "overwrite") and before > group.delta_version:
        return  # another writer came first: the table is not only this batch
    written = (
        relation
        if not relation.single_use
        else _written(session, spec, group.path, delta_version, mode)
    )
    if written is None:
        return
    state = count_statistics(session.engine, written, spec, rows=rows)
    kept.write(delta_version, state, base=base)
    if base is None and len(spec.schema) <= _EAGER_COLUMNS:
        kept.write_result(delta_version, state)


def statistics_of(
    session: Session,
    name: str,
    *,
    version: int | None = None,
    delta_version: AsOf | None = None,
    recount: bool = False,
) -> Statistics:
    """Return the statistics of a group at a Delta version: those kept, or counted now and kept."""
    group = open_group(session, name, version, as_of=delta_version)
    kept = _files(session, group.spec)
    counted = commits.latest_data_version(group.path, group.delta_version)
    found = None if recount else kept.get(counted)
    if found is not None and [each.name for each in found.columns] == group.spec.schema.names:
        return found
    return kept.write_result(counted, _count(session, group, counted))


def state_of(
    session: Session, name: str, *, version: int | None = None, delta_version: AsOf | None = None
) -> StatisticsState:
    """Return the state behind the statistics, which holds the sample: the one kept, or counted now and kept."""
    group = open_group(session, name, version, as_of=delta_version)
    counted = commits.latest_data_version(group.path, group.delta_version)
    state = _files(session, group.spec).state(counted)
    if state is not None and state.columns == statistics_accumulator(group.spec).columns:
        return state
    return _count(session, group, counted)


def _count(session: Session, group: OpenGroup, counted: int) -> StatisticsState:
    rows = session.engine.read_table(
        group.path, version=group.delta_version, schema=group.spec.schema
    )
    state = count_statistics(session.engine, rows, group.spec, rows=group.state.rows)
    if counted == commits.latest_data_version(group.path, deltalog.latest_version(group.path)):
        _files(session, group.spec).write(counted, state)
    return state


def _files(session: Session, spec: FeatureGroupSpec) -> StatisticsFiles:
    source = {"featuregroup": spec.name, "version": spec.version}
    return StatisticsFiles(session.featuregroup_path(spec.name, spec.version), source)


def _written(
    session: Session, spec: FeatureGroupSpec, path: str, delta_version: int, mode: str
) -> Relation | None:
    if mode in ("create", "overwrite"):
        return session.engine.read_table(path, version=delta_version, schema=spec.schema)
    if spec.partition_by:
        return None  # partition values are not in the files
    added = deltalog.added_files(path, delta_version)
    return session.engine.read_files(added, schema=spec.schema) if added else None
