"""Feature groups: records of definition, rows, history and statistics, and REST routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any

import pyarrow as pa
from fastapi import Query

from featurestore.errors import LimitExceeded, StatisticsNotFound
from featurestore.featuregroups import FeatureGroup
from featurestore.featuregroups.handle import group_details
from featurestore.featuregroups.quality import find_stored_statistics
from featurestore.featuregroups.table import TableVersion
from featurestore.model.featuregroup import Commit
from featurestore.model.statistics import ColumnStatistics, Statistics
from featurestore.model.times import to_python_rows
from featurestore.registry import audit_log, featuregroups, overview
from featurestore.registry.filtered import FilteredRegistry
from featurestore.registry.overview import GroupFilter, GroupLine
from featurestore.retrieval import FeatureFrame
from featurestore.server.guard import Settings, Store
from featurestore.server.rest import (
    REFUSALS,
    Items,
    Limit,
    Name,
    Offset,
    Record,
    Version,
    items,
    record,
    to_json_value,
)
from featurestore.server.routes import Router
from featurestore.store import FeatureStore

# Batches are small because a complete batch is in memory before its size is checked, and a single
# cell may have 64 MiB.
_ROWS_AT_ONCE = 16
api = Router(prefix="/featuregroups", tags=["feature groups"], responses=REFUSALS)


@dataclass(frozen=True)
class GroupColumn:
    """A group column with its statistics, if available."""

    name: str
    type: str
    role: str
    description: str
    statistics: ColumnStatistics | None
    rows: int

    @property
    def missing(self) -> float | None:
        """The fraction of rows with a null value."""
        if self.statistics is None or self.rows == 0:
            return None
        return self.statistics.missing / self.rows


def lines(
    store: FeatureStore, group_filter: GroupFilter, *, limit: int, offset: int = 0
) -> list[GroupLine]:
    """Return one page of the group list."""
    with store.session.registry.reading() as connection:
        return overview.groups(connection, group_filter, limit=limit, offset=offset)


def versions(store: FeatureStore, name: str) -> list[int]:
    """Return the versions of a group, newest first."""
    with store.session.registry.reading() as connection:
        return featuregroups.versions(connection, name)[::-1]


def definition(group: FeatureGroup) -> Record:
    """Return the definition of a group."""
    return group_details(group)


def statistics(group: FeatureGroup, table_version: TableVersion | None = None) -> Statistics | None:
    """Return the stored statistics of a table version, or None; they are never computed here."""
    return find_stored_statistics(
        group._session, group.name, version=group.version, delta_version=table_version
    )


def require_statistics(
    group: FeatureGroup, table_version: TableVersion | None = None
) -> Statistics:
    """Return the stored statistics of a table version, by default the newest one.

    Raises:
        StatisticsNotFound: The table version has no statistics.
    """
    stored = statistics(group, table_version)
    if stored is not None:
        return stored
    arguments = f"{group.name!r}, version={group.version}"
    if table_version is None:
        rows, hint = "The newest rows", f"store.update_featuregroup_statistics({arguments})"
    else:
        rows = f"The rows at {table_version}"
        hint = f"store.get_featuregroup_statistics({arguments}, delta_version={table_version!r})"
    raise StatisticsNotFound(
        f"{rows} of feature group {group.name!r} have no statistics yet.", hint=hint
    )


def commit_authors(
    full_store: FeatureStore, group: FeatureGroup, commits: Sequence[Commit]
) -> dict[int, str]:
    """Return the authors of commits made through a server, by Delta version."""
    with full_store.session.registry.reading() as connection:
        entries = audit_log.commits(connection, group.name, group.version)
    commit_times = {commit.delta_version: commit.timestamp for commit in commits}
    authors: dict[int, str] = {}
    for delta_version, entry in entries:
        # Entries before the commit belong to a deleted table. A repeated transaction adds another
        # entry for the same commit, so the first entry contains the author.
        if delta_version in commit_times and entry.at >= commit_times[delta_version]:
            authors.setdefault(delta_version, entry.who)
    return authors


def columns(
    group_definition: Mapping[str, Any], table_statistics: Statistics | None
) -> list[GroupColumn]:
    """Return the columns in a definition with their statistics."""
    by_name: dict[str, ColumnStatistics] = {}
    if table_statistics is not None:
        by_name = {
            column_statistics.name: column_statistics
            for column_statistics in table_statistics.columns
        }
    rows = 0 if table_statistics is None else table_statistics.rows
    return [
        GroupColumn(statistics=by_name.get(column["name"]), rows=rows, **column)
        for column in group_definition["columns"]
    ]


@dataclass(frozen=True)
class RowBounds:
    """Limits for reading rows: number of rows and Arrow bytes."""

    rows: int
    bytes: int


def quarantine(group: FeatureGroup) -> FeatureFrame:
    """Return the quarantined rows, with the reasons as the first column."""
    quarantined = group.quarantine()
    return quarantined.select(*sorted(quarantined.schema.names, key=lambda name: name != "reasons"))


def first_rows(group: FeatureGroup, frame: FeatureFrame, bounds: RowBounds) -> Record:
    """Return the first rows of a frame: column names, and a list of values per row.

    Raises:
        LimitExceeded: The rows exceed the byte limit.
        QueryEnded: The query exceeded the time limit.
    """
    table, has_more = _read_within(group, frame, bounds)
    if has_more:
        raise LimitExceeded(
            f"The first {bounds.rows:,} rows exceed the limit of {bounds.bytes:,} bytes; "
            f"{table.num_rows:,} rows fit.",
            hint="request fewer rows with limit=, or read them with featurestore.connect(URL)",
        )
    return _values(table)


def leading_rows(group: FeatureGroup, frame: FeatureFrame, bounds: RowBounds) -> Record:
    """Return as many rows of ``first_rows`` as fit into the byte limit, at least one.

    Raises:
        QueryEnded: The query exceeded the time limit.
    """
    return _values(_read_within(group, frame, bounds)[0])


def _read_within(
    group: FeatureGroup, frame: FeatureFrame, bounds: RowBounds
) -> tuple[pa.Table, bool]:
    """Return the first rows within the limits, at least one, and whether the byte limit was hit.

    Reading stops as soon as the limit is reached.
    """
    engine = group._session.engine
    batches: list[pa.RecordBatch] = []
    remaining = bounds.bytes
    reader = engine.stream(frame.relation, batch_rows=_ROWS_AT_ONCE, limit=bounds.rows)
    for batch in reader:
        fitting_rows = batch
        # nbytes counts only the slice, so rows are removed until the rest fits.
        while fitting_rows.num_rows and fitting_rows.nbytes > remaining:
            fitting_rows = fitting_rows.slice(0, fitting_rows.num_rows - 1)
        batches.append(fitting_rows)
        remaining -= fitting_rows.nbytes
        if fitting_rows.num_rows < batch.num_rows:
            if not any(earlier_batch.num_rows for earlier_batch in batches):
                batches.append(batch.slice(0, 1))
            reader.close()  # the connection accepts no other query before
            return pa.Table.from_batches(batches, reader.schema), True
    return pa.Table.from_batches(batches, reader.schema), False


def _values(table: pa.Table) -> Record:
    json_rows = [to_json_value(list(row.values())) for row in to_python_rows(table)]
    return {"columns": table.column_names, "rows": json_rows}


def history(group: FeatureGroup, *, limit: int, before: int | None = None) -> list[Record]:
    """Return the commits to a group, newest first."""
    records = [dict(vars(commit)) for commit in group.history(limit=limit, before=before)]
    if isinstance(group._session.registry, FilteredRegistry):
        for record in records:
            record["inputs"] = {}  # the Delta log may contain names of hidden groups
    return records


def validations(store: FeatureStore, group: FeatureGroup) -> list[Record]:
    """Return the validation reports of a group, newest first."""
    reports = store.get_validation_history(group.name, version=group.version)
    return [report.to_json() | {"success": report.success} for report in reversed(reports)]


@api.get("")
def list_groups(
    store: Store,
    q: Annotated[str, Query(max_length=200, description="Substring of the name.")] = "",
    tag: Annotated[str, Query(max_length=600, description="key or key=value.")] = "",
    limit: Limit = 100,
    offset: Offset = 0,
) -> Items:
    """List the latest version of each group."""
    group_filter = GroupFilter(text=q, tag=tag)
    return items(partial(lines, store, group_filter), asdict, limit=limit, offset=offset)


@api.get("/{name}")
def get_latest(store: Store, name: Name) -> Record:
    """Return the latest version of a group and the list of all versions."""
    group = store.featuregroup(name)
    return record({**definition(group), "versions": versions(store, name)})


@api.get("/{name}/{version}")
def get_version(store: Store, name: Name, version: Version) -> Record:
    """Return the definition of a version."""
    return record(definition(store.featuregroup(name, version=version)))


@api.get("/{name}/{version}/commits")
def list_commits(
    store: Store,
    name: Name,
    version: Version,
    limit: Limit = 100,
    before: Annotated[
        int | None, Query(ge=0, description="Only commits before this Delta version.")
    ] = None,
) -> Items:
    """List commits, newest first."""
    group = store.featuregroup(name, version=version)
    commits = history(group, limit=limit, before=before)
    return Items(items=[record(commit) for commit in commits], next=None)


@api.post("/{name}/{version}/verify")
def verify(
    store: Store,
    name: Name,
    version: Version,
    sample: Annotated[
        int | None,
        Query(ge=1, le=2**53, description="The number of data files to check; all by default."),
    ] = None,
) -> Record:
    """Verify the files of a version against their checksums and return the differences."""
    return record(store.verify_featuregroup(name, version=version, sample=sample).to_json())


@api.get("/{name}/{version}/statistics")
def get_statistics(store: Store, name: Name, version: Version) -> Record:
    """Return the stored statistics of the current table version (statistics.schema.json)."""
    group = store.featuregroup(name, version=version)
    return record(require_statistics(group).to_json())


@api.get("/{name}/{version}/validations")
def list_validations(
    store: Store, name: Name, version: Version, limit: Limit = 100, offset: Offset = 0
) -> Items:
    """List validation reports, newest first (validation_report.schema.json)."""
    group = store.featuregroup(name, version=version)
    reports = validations(store, group)

    def read(*, limit: int, offset: int) -> list[Any]:
        return reports[offset : offset + limit]

    return items(read, dict, limit=limit, offset=offset)


@api.get("/{name}/{version}/rows")
def get_rows(
    store: Store,
    settings: Settings,
    name: Name,
    version: Version,
    limit: Limit = 20,
    delta_version: Annotated[
        # JSON numbers are exact up to 2**53.
        int | None, Query(ge=0, le=2**53, description="As of this Delta version.")
    ] = None,
    at: Annotated[
        datetime | None, Query(description="As of this time; ignored with delta_version.")
    ] = None,
) -> Record:
    """Return the first rows: column names, and a list of values per row."""
    group = store.featuregroup(name, version=version)
    as_of = at if delta_version is None else delta_version
    max_rows = min(limit, settings.rows)
    bounds = RowBounds(max_rows, settings.answer)
    return first_rows(group, group.read(as_of=as_of), bounds)
