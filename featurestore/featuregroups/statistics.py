"""Statistics of a group, stored next to its table.

They are counted at each write, merged for appends, and recounted after other changes. The files are
those of ``featurestore.statistics.storage``.
"""

from __future__ import annotations

from collections.abc import Collection

from featurestore.delta import commits
from featurestore.delta.history import added_files
from featurestore.delta.log import latest_version
from featurestore.featuregroups.audit import CommittedRows
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


def count_commit(session: Session, committed_rows: CommittedRows, *, rows: int) -> None:
    """Count the rows of a commit, if this gives the statistics of the complete table.

    Appends store the state of their rows, which is merged on request; an upsert changes rows that
    were counted, so it stores nothing, and the next request recounts. ``rows`` is the number of
    rows that the commit added.
    """
    spec, group = committed_rows.spec, committed_rows.group
    files = _files(session, spec)
    before = commits.latest_data_version(group.path, committed_rows.delta_version - 1)
    is_integer_column = _is_whole_table(committed_rows) or group.state.rows == 0
    stored_versions: Collection[int] = ()
    if not is_integer_column:
        stored_versions = files.state_versions() if committed_rows.mode == "append" else ()
        if before not in stored_versions:
            return
    elif not _is_whole_table(committed_rows) and before > group.delta_version:
        return  # another writer was first: the table has more rows than this batch
    state = committed_rows.audited.statistics_state
    if state is None:
        added_rows = _added_rows(session, committed_rows)
        if added_rows is None:
            return
        state = count_statistics(session.engine, added_rows, spec, rows=rows)
    # The result takes about as long as the write, so it is computed from the state on request.
    if is_integer_column:
        files.write(committed_rows.delta_version, state)
    else:
        files.append(
            committed_rows.delta_version, state, base=before, state_versions=stored_versions
        )


def _is_whole_table(committed_rows: CommittedRows) -> bool:
    return committed_rows.mode in ("create", "overwrite")


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


def _added_rows(session: Session, committed_rows: CommittedRows) -> Relation | None:
    """Return the rows that a commit added, read again if they came as a stream.

    None if the files do not have all their columns.
    """
    if not committed_rows.audited.relation.single_use:
        return committed_rows.audited.relation
    engine, path, spec = session.engine, committed_rows.group.path, committed_rows.spec
    if _is_whole_table(committed_rows):
        return engine.read_table(path, version=committed_rows.delta_version, schema=spec.schema)
    if spec.partition_by:
        return None  # partition values are not in the files
    added = added_files(path, committed_rows.delta_version)
    if not added:
        return None
    return engine.read_files(added, schema=spec.schema)
