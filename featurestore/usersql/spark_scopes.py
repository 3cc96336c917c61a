"""The names that an expression of a query may use: tables, their columns, and aliases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from featurestore.errors import InvalidSql
from featurestore.usersql.typed_values import TypedValue

if TYPE_CHECKING:
    from sqlglot import exp

# The columns of a query in order: name, and value on Spark.
Columns = tuple[tuple[str, TypedValue], ...]


@dataclass(frozen=True)
class ScopeTable:
    """A table or subquery of a FROM clause: its name and its columns in order."""

    name: str
    columns: tuple[tuple[str, TypedValue], ...]

    def find(self, name: str) -> TypedValue | None:
        """Return a column by its name without case."""
        for column, value in self.columns:
            if column.lower() == name.lower():
                return value
        return None


@dataclass
class Scope:
    """The names that an expression may use.

    Args:
        sources: The tables.
        parent: The scope of the outer query.
        merged: The columns of USING, which belong to no table.
        aliases: The columns of the SELECT list.
        has_alias_first: Whether an alias hides a column of a table, as in ORDER BY.
        keys: The Spark SQL of the GROUP BY expressions; None where columns need not be keys.
    """

    sources: list[ScopeTable] = field(default_factory=list)
    parent: Scope | None = None
    merged: dict[str, TypedValue] = field(default_factory=dict)
    aliases: dict[str, TypedValue] = field(default_factory=dict)
    has_alias_first: bool = False
    keys: frozenset[str] | None = None

    def find(self, name: str) -> TypedValue | None:
        """Return a column, or an alias, by its name."""
        alias = self.aliases.get(name.lower())
        column = self._find_column(name)
        is_hidden = self.has_alias_first or (
            column is not None and self.keys is not None and column.sql not in self.keys
        )
        value = alias if alias is not None and (column is None or is_hidden) else column
        if value is None and self.parent is not None:
            return self.parent.find(name)
        return value

    def find_source(self, name: str) -> ScopeTable | None:
        """Return a table by its name or alias."""
        for source in self.sources:
            if source.name.lower() == name.lower():
                return source
        return None if self.parent is None else self.parent.find_source(name)

    def _find_column(self, name: str) -> TypedValue | None:
        if name.lower() in self.merged:
            return self.merged[name.lower()]
        matches = [value for source in self.sources if (value := source.find(name)) is not None]
        if len(matches) > 1:
            raise InvalidSql(
                f"the column {name!r} is ambiguous.", hint="write the table: a.id instead of id"
            )
        return matches[0] if matches else None


def column_name(index: int) -> str:
    """Return the name of a column of a query on Spark.

    >>> column_name(0)
    '`c0`'
    """
    return f"`c{index}`"


def output_columns(items: Sequence[tuple[str, TypedValue]]) -> Columns:
    """Return the columns of a query by their names on Spark."""
    return tuple(
        (name, TypedValue(column_name(i), value.type)) for i, (name, value) in enumerate(items)
    )


def rename_columns(columns: Sequence[tuple[str, TypedValue]], alias: exp.Expr | None) -> Columns:
    """Return columns with the names of a table alias such as ``t(a, b)``."""
    names = [] if alias is None else [column.name for column in alias.args.get("columns") or ()]
    if len(names) > len(columns):
        raise InvalidSql(f"{len(names)} names for {len(columns)} columns.")
    renamed = list(columns)
    renamed[: len(names)] = [
        (name, value) for name, (_, value) in zip(names, columns, strict=False)
    ]
    return tuple(renamed)
