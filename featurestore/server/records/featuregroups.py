"""Feature groups: their definition, columns, rows, history, statistics and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from featurestore.errors import LimitExceeded, StatisticsNotFound
from featurestore.featuregroups import FeatureGroup
from featurestore.featuregroups.overview import details
from featurestore.featuregroups.statistics import stored_statistics
from featurestore.featuregroups.table import TableVersion
from featurestore.model.featuregroup import Commit
from featurestore.model.statistics import ColumnStatistics, Statistics
from featurestore.model.times import python_rows
from featurestore.registry import audit_log, featuregroups, overview
from featurestore.registry.cut import CutRegistry
from featurestore.registry.overview import GroupFilter, GroupLine
from featurestore.retrieval import FeatureFrame
from featurestore.server.query_time import at_most
from featurestore.server.records.jsonable import jsonable
from featurestore.store import FeatureStore

_ROWS_AT_ONCE = 16


@dataclass(frozen=True)
class GroupColumn:
    """A column of a group, with what its statistics say where there are some."""

    name: str
    type: str
    role: str
    description: str
    statistics: ColumnStatistics | None
    rows: int

    @property
    def missing(self) -> float | None:
        """The share of rows without a value."""
        if self.statistics is None or self.rows == 0:
            return None
        return self.statistics.missing / self.rows


def lines(
    store: FeatureStore, wanted: GroupFilter, *, limit: int, offset: int = 0
) -> list[GroupLine]:
    """Return the groups of a list, a page of them."""
    with store.session.registry.reading() as connection:
        return overview.groups(connection, wanted, limit=limit, offset=offset)


def versions(store: FeatureStore, name: str) -> list[int]:
    """Return the versions of a group, the newest first."""
    with store.session.registry.reading() as connection:
        return featuregroups.versions(connection, name)[::-1]


def definition(group: FeatureGroup) -> dict[str, Any]:
    """Return everything about a group except its rows."""
    return details(group)


def statistics(group: FeatureGroup, at: TableVersion | None = None) -> Statistics | None:
    """Return statistics where they are stored, of the newest data or of then; a page never counts."""
    return stored_statistics(group._session, group.name, version=group.version, delta_version=at)


def needed_statistics(group: FeatureGroup, at: TableVersion | None = None) -> Statistics:
    """Return the stored statistics of the newest data, or of then.

    Raises:
        StatisticsNotFound: Nothing counted this version of the data.
    """
    found = statistics(group, at)
    if found is not None:
        return found
    called = f"{group.name!r}, version={group.version}"
    if at is None:
        rows, hint = "the newest rows", f"store.update_featuregroup_statistics({called})"
    else:
        rows = f"the rows at {at}"
        hint = f"store.get_featuregroup_statistics({called}, delta_version={at!r})"
    raise StatisticsNotFound(
        f"Nothing counted {rows} of feature group {group.name!r} yet.", hint=hint
    )


def committers(
    whole: FeatureStore, group: FeatureGroup, commits: Sequence[Commit]
) -> dict[int, str]:
    """Return who made commits through a server, by Delta version; of others nobody is known."""
    with whole.session.registry.reading() as connection:
        entries = audit_log.commits(connection, group.name, group.version)
    made = {commit.delta_version: commit.timestamp for commit in commits}
    found: dict[int, str] = {}
    for delta_version, entry in entries:
        # What was said before the commit was made is of a table that is gone; what repeats a
        # transaction comes after who wrote it.
        if delta_version in made and entry.at >= made[delta_version]:
            found.setdefault(delta_version, entry.who)
    return found


def columns(found: Mapping[str, Any], counted: Statistics | None) -> list[GroupColumn]:
    """Return the columns of a definition, with their statistics."""
    known: dict[str, ColumnStatistics] = {}
    if counted is not None:
        known = {each.name: each for each in counted.columns}
    rows = 0 if counted is None else counted.rows
    shown = []
    for column in found["columns"]:
        shown.append(GroupColumn(statistics=known.get(column["name"]), rows=rows, **column))
    return shown


@dataclass(frozen=True)
class RowBounds:
    """How many rows are read of a group, of how many bytes in Arrow, and in how much time."""

    rows: int
    bytes: int
    seconds: float


def rows(
    group: FeatureGroup, bounds: RowBounds, *, as_of: TableVersion | None = None
) -> dict[str, Any]:
    """Return the first rows of a group: the names of columns, and a list of values for each row.

    Raises:
        LimitExceeded: They have more bytes than an answer may have.
        QueryEnded: It took more time.
    """
    return _every(group, group.read(as_of=as_of), bounds)


def leading_rows(
    group: FeatureGroup, bounds: RowBounds, *, as_of: TableVersion | None = None
) -> dict[str, Any]:
    """Return what ``rows`` does, without the rows that exceed the bound on bytes, but for the first.

    Raises:
        QueryEnded: It took more time.
    """
    return _values(_read_within(group, group.read(as_of=as_of), bounds)[0])


def quarantined_rows(group: FeatureGroup, bounds: RowBounds) -> dict[str, Any]:
    """Return the first rows of the quarantine, with the reasons of each before its values.

    Raises:
        LimitExceeded: They have more bytes than an answer may have.
        QueryEnded: It took more time.
    """
    return _every(group, _quarantine(group), bounds)


def leading_quarantined_rows(group: FeatureGroup, bounds: RowBounds) -> dict[str, Any]:
    """Return what ``quarantined_rows`` does, without rows that exceed the bound on bytes."""
    return _values(_read_within(group, _quarantine(group), bounds)[0])


def _quarantine(group: FeatureGroup) -> FeatureFrame:
    refused = group.quarantine()
    return refused.select(*sorted(refused.schema.names, key=lambda name: name != "reasons"))


def _every(group: FeatureGroup, frame: FeatureFrame, bounds: RowBounds) -> dict[str, Any]:
    table, has_more = _read_within(group, frame, bounds)
    if has_more:
        raise LimitExceeded(
            f"The first {bounds.rows:,} rows have more than {bounds.bytes:,} bytes, the most of an "
            f"answer; {table.num_rows:,} have fewer.",
            hint="ask for fewer rows with limit=, or read them with featurestore.connect(URL)",
        )
    return _values(table)


def _read_within(
    group: FeatureGroup, frame: FeatureFrame, bounds: RowBounds
) -> tuple[pa.Table, bool]:
    """Return the first rows up to a bound on their bytes, at least one, and whether some exceed it.

    No more rows are read then.
    """
    engine = group._session.engine
    batches: list[pa.RecordBatch] = []
    left = bounds.bytes
    with at_most(bounds.seconds, engine):
        reader = engine.stream(frame.relation, batch_rows=_ROWS_AT_ONCE, limit=bounds.rows)
        for batch in reader:
            fitting = batch
            while fitting.num_rows and fitting.nbytes > left:
                fitting = fitting.slice(0, fitting.num_rows - 1)
            batches.append(fitting)
            left -= fitting.nbytes
            if fitting.num_rows < batch.num_rows:
                if not any(each.num_rows for each in batches):
                    batches.append(batch.slice(0, 1))
                reader.close()  # a database takes no other query before
                return pa.Table.from_batches(batches, reader.schema), True
    return pa.Table.from_batches(batches, reader.schema), False


def _values(table: pa.Table) -> dict[str, Any]:
    values = []
    for row in python_rows(table):
        values.append(jsonable(list(row.values())))
    return {"columns": table.column_names, "rows": values}


def history(group: FeatureGroup, *, limit: int, before: int | None = None) -> list[dict[str, Any]]:
    """Return commits, the newest first."""
    found = []
    for commit in group.history(limit=limit, before=before):
        told = dict(vars(commit))
        if isinstance(group._session.registry, CutRegistry):
            told["inputs"] = {}  # the log of the table names groups that may be hidden
        found.append(told)
    return found


def validations(store: FeatureStore, group: FeatureGroup) -> list[dict[str, Any]]:
    """Return the reports of a group's audits, the newest first."""
    reports = store.get_validation_history(group.name, version=group.version)
    return [report.to_json() | {"success": report.success} for report in reversed(reports)]
