"""The rows of a dbt snapshot as rows of an event time: their values are those that dbt calls valid.

A point-in-time join selects the row with the latest event time. In the table of a snapshot that row
may have ended: its entity was deleted, or has returned with an earlier ``dbt_valid_from``. The query
of this module therefore adds a row at each end that no other version follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from featurestore.usersql.text import quote

if TYPE_CHECKING:
    from featurestore.dbt.expectations import DbtColumns

# Databases whose SQL quotes names with double quotes, and has DISTINCT ON.
SQL_KINDS = ("duckdb", "postgresql")


@dataclass(frozen=True)
class SnapshotConfig:
    """The configuration of a dbt snapshot: its key, and the names of the columns that dbt adds.

    ``is_chain``: each row of a key ends when the next one begins, and the last row does not end.
    ``has_current_marker``: the rows that are valid now have a time in the future instead of null.
    """

    unique_key: tuple[str, ...]
    columns: Mapping[str, str]
    is_chain: bool
    has_current_marker: bool


@dataclass(frozen=True)
class SnapshotTable:
    """The table of a snapshot, and the columns of its feature group.

    ``primary_key`` and ``created_time`` are among the ``selected`` columns, as is the event time,
    which is ``dbt_valid_from``.
    """

    table: str
    columns: DbtColumns
    snapshot: SnapshotConfig
    selected: Sequence[str]
    primary_key: Sequence[str]
    created_time: str | None

    def to_sql(self) -> str:
        """Return the query of the rows in the SQL that DuckDB and Postgres share.

        At every time the last row of an entity has the values of the version that is valid then, or
        nulls without such a version. A version is valid from ``dbt_valid_from`` until before ``dbt_valid_to``.
        If several are valid, the one with the latest ``dbt_valid_from`` counts, of equal ones the
        one that ends first, as dbt wrote it first.
        """
        valid_from, valid_to = self._quote("dbt_valid_from"), self._quote("dbt_valid_to")
        table = ".".join(map(quote, self.table.split(".", 1)))
        key = ", ".join(f"ended.{quote(name)}" for name in self.primary_key)
        # A deleted entity that returns with an earlier time leaves a version that ends before it
        # begins.
        is_valid = f"{valid_to} is null or {valid_to} > {valid_from}"
        is_over = f"{valid_to} is not null"
        if self.snapshot.has_current_marker:
            is_over = f"cast({valid_to} as timestamp) <= cast(current_timestamp as timestamp)"
        return (
            f"with versions as not materialized (select * from {table} where {is_valid}), "
            f"ended as not materialized (select * from versions as ended where {is_over} "
            f"and not exists (select 1 from versions as following "
            f"where {self._has_equal_key('following', 'ended')} "
            f"and following.{valid_from} = ended.{valid_to})) "
            f"select {self._values()} from versions where not exists (select 1 from versions as earlier "
            f"where {self._has_equal_key('earlier', 'versions')} "
            f"and earlier.{valid_from} = versions.{valid_from} "
            f"and (earlier.{valid_to} < versions.{valid_to} "
            f"or (earlier.{valid_to} is not null and versions.{valid_to} is null))) "
            f"union all select * from (select distinct on ({key}, ended.{valid_to}) "
            f"{self._values_after_end()} from ended left join versions "
            f"on {self._has_equal_key('versions', 'ended')} "
            f"and versions.{valid_from} < ended.{valid_to} "
            f"and (versions.{valid_to} is null or versions.{valid_to} > ended.{valid_to}) "
            f"order by {key}, ended.{valid_to}, versions.{valid_from} desc nulls last, "
            f"versions.{valid_to} nulls last) as resumed"
        )

    def _values(self) -> str:
        """Return the columns of a version, with null features if it marks a deletion."""
        return ", ".join(f"{self._value(name)} as {quote(name)}" for name in self.selected)

    def _values_after_end(self) -> str:
        """Return the columns of the version that is valid at an end: it begins there."""
        valid_from, valid_to = self._quote("dbt_valid_from"), self._quote("dbt_valid_to")
        expressions = []
        for name in self.selected:
            expression = self._value(name)
            if name in self.primary_key:
                expression = f"ended.{quote(name)}"
            elif quote(name) == valid_from:
                expression = f"ended.{valid_to}"
            elif name == self.created_time:
                # The absence of a version is known from the end on.
                expression = (
                    f"case when versions.{valid_from} is null then ended.{valid_to} "
                    f"else versions.{quote(name)} end"
                )
            expressions.append(f"{expression} as {quote(name)}")
        return ", ".join(expressions)

    def _value(self, name: str) -> str:
        column = f"versions.{quote(name)}"
        is_deleted = self.columns.find(self.snapshot.columns["dbt_is_deleted"])
        times = (self._quote("dbt_valid_from"), quote(self.created_time or ""))
        if is_deleted is None or name in self.primary_key or quote(name) in times:
            return column
        return f"case when versions.{quote(is_deleted)} = 'True' then null else {column} end"

    def _has_equal_key(self, table: str, other_table: str) -> str:
        return " and ".join(
            f"{table}.{quote(name)} = {other_table}.{quote(name)}" for name in self.primary_key
        )

    def _quote(self, name: str) -> str:
        """Return a column that dbt adds, which may have another name in the table."""
        return quote(self.columns.get(self.snapshot.columns[name]))
