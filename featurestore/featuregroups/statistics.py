"""Statistics of a group, stored beside its table.

They are counted at each write, merged by appends, and counted anew when they do not fit any more.
The files are those of ``featurestore.statistics.storage``.
"""

from __future__ import annotations

from collections.abc import Collection

from featurestore.delta import commits
from featurestore.delta.history import added_files
from featurestore.delta.log import latest_version
from featurestore.featuregroups.audit import LandedRows
from featurestore.featuregroups.read import live_source, rows_of
from featurestore.featuregroups.table import OpenGroup, TableVersion, open_group
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.statistics import Statistics
from featurestore.plugins.engine import Relation
from featurestore.session import Session
from featurestore.statistics import (
    StatisticsFiles,
    StatisticsState,
    count_statistics,
    finish,
    statistics_accumulator,
)


def count_commit(session: Session, landed: LandedRows, *, rows: int) -> None:
    """Count what a commit has just written, where that gives the statistics of the whole table.

    Appends store what they added, to be merged on request; an upsert changes rows that were
    counted, so it stores nothing, and the next request counts anew. ``rows`` is how many rows the
    commit added.
    """
    spec, group = landed.spec, landed.group
    files = _files(session, spec)
    before = commits.latest_data_version(group.path, landed.delta_version - 1)
    is_integer_column = _is_whole_table(landed) or group.state.rows == 0
    known: Collection[int] = ()
    if not is_integer_column:
        known = files.state_versions() if landed.mode == "append" else ()
        if before not in known:
            return
    elif not _is_whole_table(landed) and before > group.delta_version:
        return  # another writer came first: the table is not only this batch
    state = landed.audited.counted
    if state is None:
        written = _written(session, landed)
        if written is None:
            return
        state = count_statistics(session.engine, written, spec, rows=rows)
    # The result takes about as long as the write: it is made of the state when it is asked for.
    if is_integer_column:
        files.write(landed.delta_version, state)
    else:
        files.append(landed.delta_version, state, base=before, state_versions=known)


def _is_whole_table(landed: LandedRows) -> bool:
    return landed.mode in ("create", "overwrite")


def statistics_of(
    session: Session,
    name: str,
    *,
    version: int | None = None,
    delta_version: TableVersion | None = None,
    recount: bool = False,
) -> Statistics:
    """Return the statistics of a group at a Delta version.

    Those stored, or counted now and stored.
    """
    group = open_group(session, name, version, as_of=delta_version)
    if group.spec.external is not None and delta_version is None:
        told = {"featuregroup": group.spec.name, "version": group.spec.version}
        return finish(_count_live(session, group), source=told)
    files = _files(session, group.spec)
    counted = commits.latest_data_version(group.path, group.delta_version)
    if recount:
        return files.write_result(counted, _count(session, group, counted))
    found = files.get(counted)
    if found is not None and [each.name for each in found.columns] == group.spec.schema.names:
        return found
    return files.result(counted, _count(session, group, counted))


def stored_statistics(
    session: Session,
    name: str,
    *,
    version: int | None = None,
    delta_version: TableVersion | None = None,
) -> Statistics | None:
    """Return the statistics of a group where they are stored, and else None.

    ``delta_version``: those of its rows then; None: of the newest.
    """
    group = open_group(session, name, version, as_of=delta_version)
    counted = commits.latest_data_version(group.path, group.delta_version)
    return _files(session, group.spec).get(counted)


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
    """Return the state behind the statistics, which holds the sample.

    The stored one, or counted now and stored.
    """
    group = open_group(session, name, version, as_of=delta_version)
    if group.spec.external is not None and delta_version is None:
        return _count_live(session, group)
    counted = commits.latest_data_version(group.path, group.delta_version)
    state = _files(session, group.spec).state(counted)
    if state is not None and state.columns == statistics_accumulator(group.spec).columns:
        return state
    return _count(session, group, counted)


def _count_live(session: Session, group: OpenGroup) -> StatisticsState:
    """Count the rows of an external group, at its source."""
    live = live_source(session, group)
    return count_statistics(session.engine, rows_of(session, live), group.spec)


def _count(session: Session, group: OpenGroup, counted: int) -> StatisticsState:
    rows = session.engine.read_table(
        group.path, version=group.delta_version, schema=group.spec.schema
    )
    state = count_statistics(session.engine, rows, group.spec, rows=group.state.rows)
    if counted == commits.latest_data_version(group.path, latest_version(group.path)):
        _files(session, group.spec).write(counted, state)
    return state


def _files(session: Session, spec: FeatureGroupSpec) -> StatisticsFiles:
    source = {"featuregroup": spec.name, "version": spec.version}
    return StatisticsFiles(session.featuregroup_path(spec.name, spec.version), source)


def _written(session: Session, landed: LandedRows) -> Relation | None:
    """Return the rows that a commit added, read again where they came as a stream.

    None where they cannot be told.
    """
    if not landed.audited.relation.single_use:
        return landed.audited.relation
    engine, path, spec = session.engine, landed.group.path, landed.spec
    if _is_whole_table(landed):
        return engine.read_table(path, version=landed.delta_version, schema=spec.schema)
    if spec.partition_by:
        return None  # partition values are not in the files
    added = added_files(path, landed.delta_version)
    if not added:
        return None
    return engine.read_files(added, schema=spec.schema)
