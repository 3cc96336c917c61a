"""A store that grows: copies of the rows of its registry, as if objects had been created many times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.registry import search_documents, tables
from featurestore.store import FeatureStore

# The first id of copied rows; each copy gets a range of ids.
_FIRST_ID = 1_000_000
_IDS_OF_COPY = 1_000
# Windows of an hour, long before those of the original.
_HOUR = 3_600_000_000
_SECOND = 1_000_000
_HOURS_BETWEEN = 1_000


@dataclass(frozen=True)
class Size:
    """The number of copies of each object."""

    groups: int
    datasets: int
    views: int
    monitors: int
    job_runs: int
    runs: int
    models: int

    def times(self, factor: int) -> Size:
        """Return a size that is a multiple."""
        return Size(**{name: factor * number for name, number in vars(self).items()})


def grow_registry(store: FeatureStore, size: Size, *, origin: Mapping[str, str]) -> None:
    """Copy the rows of an object of each kind so many times.

    A copy of ``name`` is ``name_1``, ``name_2`` and so on. Only the registry grows: pages of one
    object open the tables and files of the originals.

    Args:
        store: The store.
        size: The number of copies of each kind.
        origin: The name of the copied object by kind: "group", "dataset", "view", "monitor", "job"
            (its newest run is copied), "run" (an id) and "model".
    """
    with store.session.registry.transaction() as connection:
        copier = _Copier(connection)
        copier.copy_versions("featuregroup", tables.featuregroups, origin["group"], size.groups)
        copier.copy_versions(
            "training_dataset", tables.training_datasets, origin["dataset"], size.datasets
        )
        copier.copy_versions("feature_view", tables.feature_views, origin["view"], size.views)
        copier.copy_versions("model", tables.models, origin["model"], size.models)
        for column in (
            *[table.c.job for table in (tables.runs, tables.windows, tables.incidents)],
            *[table.c.monitor for table in (tables.monitor_results, tables.monitor_acceptances)],
            *[table.c.name for table in (tables.job_definitions, tables.job_states)],
        ):
            copier.copy(column, origin["monitor"], size.monitors)
        copier.copy_job_runs(origin["job"], size.job_runs)
        copier.copy(tables.experiment_runs.c.id, origin["run"], size.runs)
        search_documents.rebuild_index(connection)


@dataclass(frozen=True)
class _Copier:
    """Copies rows of a registry in its database."""

    connection: Connection

    def copy_versions(self, kind: str, table: sa.Table, name: str, count: int) -> None:
        """Copy all versions of an object and the rows that refer to them."""
        self.copy(table.c.name, name, count)
        for referring in (
            tables.tags,
            tables.lineage,
            tables.window_features,
            tables.validation_reports,
            tables.search_documents,
            tables.origins,
        ):
            self.copy(referring.c.name, name, count, referring.c.kind == kind)
        ids = sa.select(table.c.id).where(table.c.name == name) if "id" in table.c else None
        children = {
            "featuregroups": tables.features.c.featuregroup_id,
            "training_datasets": tables.training_dataset_pins.c.training_dataset_id,
        }
        if table.name in children and ids is not None:
            self._insert(children[table.name].table, count, children[table.name].in_(ids), {})

    def copy(
        self, column: sa.Column[str], name: str, count: int, *conditions: sa.ColumnElement[bool]
    ) -> None:
        """Copy the rows with a name, under other names, also in their definitions."""
        table, new_name = column.table, sa.literal(name) + _suffix(count)
        changed: dict[str, sa.ColumnElement[Any]] = {column.name: new_name}
        if "spec" in table.c:
            text = sa.literal('"')
            old, new = text + sa.literal(name) + text, text + new_name + text
            changed["spec"] = sa.func.replace(table.c.spec, old, new)
        if table is tables.models:
            # Each copy is the model of another run.
            changed |= {name: table.c[name] + _suffix(count) for name in ("run", "dataset")}
        self._insert(table, count, sa.and_(column == name, *conditions), changed)

    def copy_job_runs(self, job: str, count: int) -> None:
        """Copy the newest run and window of a job to earlier times."""
        numbers = _numbers(count)
        for table, times in (
            (tables.runs, ("started", "ended", "window_start", "window_end")),
            (tables.windows, ("window_start", "window_end", "updated")),
        ):
            last = sa.select(sa.func.max(table.c.window_start)).where(table.c.job == job)
            earlier = {
                name: table.c[name] - _HOUR * (numbers.c.n + _HOURS_BETWEEN) for name in times
            }
            if table is tables.runs:
                earlier["run_id"] = table.c.run_id + "-of" + _suffix(count)
            is_last = sa.and_(table.c.job == job, table.c.window_start == last.scalar_subquery())
            self._insert(table, count, is_last, earlier)

    def _insert(
        self,
        table: sa.Table,
        count: int,
        condition: sa.ColumnElement[bool],
        changed: Mapping[str, sa.ColumnElement[Any]],
    ) -> None:
        numbers = _numbers(count)
        values = {column.name: changed.get(column.name, column) for column in table.columns}
        for name in {"created", "changed"} & {column.name for column in table.columns}:
            # Copies are older than their originals, in the order of their numbers.
            values[name] = table.c[name] - _SECOND * numbers.c.n
        for name in ("id", "run_id", "featuregroup_id", "training_dataset_id"):
            if name not in table.primary_key.columns or name in changed:
                continue
            if isinstance(table.c[name].type, sa.String):
                values[name] = table.c[name] + _suffix(count)
            else:
                values[name] = _FIRST_ID + numbers.c.n * _IDS_OF_COPY + table.c[name]
        rows = sa.select(*values.values()).select_from(table).join(numbers, sa.true())
        self.connection.execute(table.insert().from_select(list(values), rows.where(condition)))


def _suffix(count: int) -> sa.ColumnElement[str]:
    return sa.literal("_") + sa.cast(_numbers(count).c.n, sa.String)


@cache
def _numbers(count: int) -> sa.CTE:
    """Return a table of the numbers from 1 to ``count`` in the column ``n``."""
    # Postgres computes times from these numbers, which need 64 bits.
    first = sa.select(sa.literal(1, sa.BigInteger).label("n")).where(sa.literal(count) > 0)
    numbers = first.cte("numbers", recursive=True)
    return numbers.union_all(sa.select(numbers.c.n + 1).where(numbers.c.n < count))
