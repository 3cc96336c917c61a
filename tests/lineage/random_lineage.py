"""Random SQL queries over small tables, built together with the origins of their columns.

The origins follow from the construction of a query, not from its text: each step computes them with
``after``, an independent model of the composition of transformations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

DIRECT = ("IDENTITY", "TRANSFORMATION", "AGGREGATION")
# Table, column, subtype, masking.
Edge = tuple[str, str, str, bool]
Edges = frozenset[Edge]
NONE: Edges = frozenset()
# Names that differ from their lower case, contain spaces and points, or are equal in two tables.
TABLES = {
    "Trips": ("Id", "zone", "Fare", "tip total"),
    "zones": ("id", "Zone", "a.b"),
    "prices": ("Price", "fare", "ID"),
}
_ALIASES = ("fare", "Zone", "x", "Total", "ID", "new name", "y")


def after(edges: Iterable[Edge], subtype: str, *, masking: bool = False) -> Edges:
    """Return the origins after a transformation with an OpenLineage subtype."""
    result = set()
    for table, column, earlier, was_masked in edges:
        if subtype not in DIRECT:
            result.add((table, column, subtype, was_masked))
        elif earlier not in DIRECT:
            result.add((table, column, earlier, was_masked))
        else:
            later = DIRECT[max(DIRECT.index(earlier), DIRECT.index(subtype))]
            result.add((table, column, later, was_masked or masking))
    return frozenset(result)


@dataclass
class Query:
    """A query with the origins of its columns, by name in result order, and of its rows."""

    sql: str
    columns: dict[str, Edges]
    rows: Edges = NONE


@dataclass
class Value:
    """An SQL expression of an integer, with its origins."""

    sql: str
    edges: Edges


@dataclass
class Source:
    """A table or subquery in FROM, with the text and origins of the columns to select from it."""

    sql: str
    columns: list[tuple[str, Value]]
    rows: Edges
    alias: str = ""


class QueryBuilder:
    """Builds a random query."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._number = 0
        self._common_tables: list[tuple[str, Query]] = []

    def build(self) -> Query:
        """Return a query, which may have common table expressions."""
        definitions: list[str] = []
        for _ in range(self._random.choice([0, 0, 1, 2])):
            query = self._query(1)
            name = f"Common{len(definitions)}"
            definitions.append(f"{name} as ({query.sql})")
            self._common_tables.append((name, query))
        query = self._query(2)
        if definitions:
            query.sql = f"with {', '.join(definitions)} {query.sql}"
        return query

    def _flag(self, chance: float = 0.5) -> bool:
        return self._random.random() < chance

    def _spell(self, name: str) -> str:
        """Write a name in quotes or in any case."""
        if not name.isidentifier() or self._flag(0.2):
            return f'"{name}"'
        return self._random.choice([name, name.lower(), name.upper()])

    def _query(self, depth: int) -> Query:
        query = self._select(depth)
        if not self._flag(0.25):
            return query
        second = self._select(depth, width=len(query.columns))
        operator = self._random.choice(["union all", "union", "except", "intersect"])
        rows, columns = query.rows | second.rows, dict(query.columns)
        if operator.startswith("union"):
            for name, edges in zip(query.columns, second.columns.values(), strict=True):
                columns[name] |= edges
        else:
            rows |= after(_all(second.columns.values()), "FILTER")
        if operator != "union all":
            rows |= after(_all(columns.values()), "GROUP_BY")
        return Query(f"({query.sql}) {operator} ({second.sql})", columns, rows)

    # -- FROM -------------------------------------------------------------------------------------

    def _source(self, depth: int) -> Source:
        self._number += 1
        alias = f"S{self._number}"
        choice = self._random.random()
        if depth and choice < 0.4:
            query = self._query(depth - 1)
            name, columns, rows = f"({query.sql})", query.columns, query.rows
        elif self._common_tables and choice < 0.7:
            name, query = self._random.choice(self._common_tables)
            columns, rows = query.columns, query.rows
        else:
            name = self._random.choice(list(TABLES))
            columns = {
                column: frozenset({(name, column, "IDENTITY", False)}) for column in TABLES[name]
            }
            rows = NONE
            name = self._spell(name)
        values = [
            (column, Value(f"{alias}.{self._spell(column)}", edges))
            for column, edges in columns.items()
        ]
        return Source(f"{name} as {alias}", values, rows, alias)

    def _from(self, depth: int) -> Source:
        outer = self._source(depth)
        if not self._flag(0.45):
            return outer
        inner = self._source(depth)
        rows = outer.rows | inner.rows
        values = [*outer.columns, *inner.columns]
        right_names = {name.lower(): value for name, value in inner.columns}
        common = [name for name, _ in outer.columns if name.lower() in right_names]
        if common and self._flag():
            return self._join_using(outer, inner, self._random.choice(common))
        kind = self._random.choice(["join", "left join", "full join", "semi join", "anti join"])
        (_, first), (_, second) = (
            self._random.choice(outer.columns),
            self._random.choice(inner.columns),
        )
        rows |= after(first.edges | second.edges, "JOIN")
        condition = f"{first.sql} = {second.sql}"
        if kind in ("semi join", "anti join"):
            values = outer.columns
        return Source(f"{outer.sql} {kind} {inner.sql} on {condition}", values, rows)

    def _join_using(self, outer: Source, inner: Source, column: str) -> Source:
        (first,) = [value for name, value in outer.columns if name == column]
        (second,) = [value for name, value in inner.columns if name.lower() == column.lower()]
        side = self._random.choice(["", "left", "right", "full"])
        merged = {"right": second.edges, "full": first.edges | second.edges}.get(side, first.edges)
        spelling = self._spell(column)
        merged_value = Value(spelling, merged)
        values = [
            (name, merged_value if name == column else value) for name, value in outer.columns
        ]
        values += [pair for pair in inner.columns if pair[0].lower() != column.lower()]
        rows = outer.rows | inner.rows | after(first.edges | second.edges, "JOIN")
        return Source(f"{outer.sql} {side} join {inner.sql} using ({spelling})", values, rows)

    # -- SELECT -----------------------------------------------------------------------------------

    def _select(self, depth: int, width: int | None = None) -> Query:
        source = self._from(depth)
        names = [name.lower() for name, _ in source.columns]
        if width in (None, len(names)) and len(set(names)) == len(names) and self._flag(0.25):
            columns = {name: value.edges for name, value in source.columns}
            sql, rows = f"select * from {source.sql}", source.rows
            return self._filtered(Query(sql, columns, rows), source)
        width = width or self._random.randint(1, 3)
        aliases = self._random.sample(_ALIASES, 7)
        distinct_aliases = list({alias.lower(): alias for alias in aliases}.values())[:width]
        if self._flag(0.35):
            return self._grouped(source, distinct_aliases)
        return self._plain(source, distinct_aliases, depth)

    def _filtered(self, query: Query, source: Source) -> Query:
        if self._flag(0.4):
            value = self._value(source, 1)
            query.sql += f" where {value.sql} > {self._random.randint(0, 4)}"
            query.rows |= after(value.edges, "FILTER")
        return query

    def _plain(self, source: Source, aliases: Sequence[str], depth: int) -> Query:
        """Build a SELECT without groups, which may refer to its aliases and have windows."""
        projections, columns = [], dict[str, Edges]()
        # DuckDB does not replace the name of a subquery in second columns.
        lateral: list[str] = []
        lower_names = {name.lower() for name, _ in source.columns}
        for alias in aliases:
            if lateral and self._flag(0.3):
                name = self._random.choice(lateral)
                value = Value(f"{self._spell(name)} + 1", after(columns[name], "TRANSFORMATION"))
            elif self._flag(0.25):
                value = self._window(source)
            elif depth and self._flag(0.15) and any("." in v.sql for _, v in source.columns):
                value = self._scalar_subquery(source)
            else:
                value = self._value(source, 2)
            projections.append(f"{value.sql} as {self._spell(alias)}")
            columns[alias] = value.edges
            if alias.lower() not in lower_names and "(select" not in value.sql:
                lateral.append(alias)
        distinct = self._flag(0.15)
        word = "select distinct" if distinct else "select"
        query = Query(f"{word} {', '.join(projections)} from {source.sql}", columns, source.rows)
        query = self._filtered(query, source)
        if distinct:
            query.rows |= after(_all(columns.values()), "GROUP_BY")
        elif self._flag(0.15) and all("." in value.sql for _, value in source.columns):
            value = self._window(source)
            query.sql += f" qualify {value.sql} > {self._random.randint(0, 4)}"
            query.rows |= after(value.edges, "FILTER")
        elif self._flag(0.2):
            # In ORDER BY, a name without a table is a result column first.
            qualified = [value for _, value in source.columns if "." in value.sql]
            value = self._random.choice(qualified or [Value("1", _first(columns))])
            query.sql += f" order by {value.sql}"
            query.rows |= after(value.edges, "SORT")
        return query

    def _grouped(self, source: Source, aliases: Sequence[str]) -> Query:
        keys = [self._value(source, 1) for _ in aliases[1:]]
        columns, projections = {}, []
        for alias, value in zip(aliases[1:], keys, strict=True):
            columns[alias] = value.edges
            projections.append(f"{value.sql} as {self._spell(alias)}")
        value = self._aggregate(source)
        columns[aliases[0]] = value.edges
        projections.append(f"{value.sql} as {self._spell(aliases[0])}")
        query = Query(f"select {', '.join(projections)} from {source.sql}", columns, source.rows)
        query = self._filtered(query, source)
        if keys:
            group = self._random.choice(
                ["all", ", ".join(key.sql for key in keys), ", ".join(map(str, _positions(keys)))]
            )
            query.sql += f" group by {group}"
            query.rows |= after(_all(key.edges for key in keys), "GROUP_BY")
        if self._flag(0.3):
            condition = self._aggregate(source)
            query.sql += f" having {condition.sql} > {self._random.randint(0, 4)}"
            query.rows |= after(condition.edges, "FILTER")
        return query

    # -- expressions ------------------------------------------------------------------------------

    def _value(self, source: Source, depth: int) -> Value:
        choice = self._random.random()
        _, column = self._random.choice(source.columns)
        if not depth or choice < 0.4:
            return column
        first, second = self._value(source, depth - 1), self._value(source, depth - 1)
        both = first.edges | second.edges
        if choice < 0.55:
            return Value(f"({first.sql} + {second.sql})", after(both, "TRANSFORMATION"))
        if choice < 0.7:
            condition = after(column.edges, "CONDITIONAL")
            sql = f"case when {column.sql} > 2 then {first.sql} else {second.sql} end"
            return Value(sql, condition | after(both, "TRANSFORMATION"))
        if choice < 0.8:
            sql = f"coalesce({first.sql}, {second.sql})"
            return Value(sql, after(both, "CONDITIONAL") | after(both, "TRANSFORMATION"))
        if choice < 0.9:
            sql = f"(hash({first.sql}) % 7)::bigint"
            return Value(sql, after(first.edges, "TRANSFORMATION", masking=True))
        return Value(f"({first.sql})", first.edges)

    def _aggregate(self, source: Source) -> Value:
        value = self._value(source, 1)
        function = self._random.choice(["sum", "max", "count", "count_distinct"])
        sql = f"{function}({value.sql})"
        if function == "count_distinct":
            sql = f"count(distinct {value.sql})"
        edges = after(value.edges, "AGGREGATION", masking=function.startswith("count"))
        if self._flag(0.2):
            _, column = self._random.choice(source.columns)
            sql += f" filter (where {column.sql} < 4)"
            edges |= after(column.edges, "FILTER")
        return Value(f"({sql})::bigint", after(edges, "TRANSFORMATION"))

    def _window(self, source: Source) -> Value:
        partition, order = self._value(source, 1), self._value(source, 1)
        function = Value("rank()", NONE)
        if self._flag():
            value = self._value(source, 1)
            function = Value(f"sum({value.sql})", after(value.edges, "AGGREGATION"))
        sql = f"({function.sql} over (partition by {partition.sql} order by {order.sql}))::bigint"
        edges = function.edges | after(partition.edges | order.edges, "WINDOW")
        return Value(sql, after(edges, "TRANSFORMATION"))

    def _scalar_subquery(self, source: Source) -> Value:
        table = self._source(0)
        value, key = self._random.choice(table.columns)[1], self._random.choice(table.columns)[1]
        # A name without a table could be a column of the inner table.
        outer = self._random.choice([value for _, value in source.columns if "." in value.sql])
        sql = f"(select max({value.sql}) from {table.sql} where {key.sql} = {outer.sql})"
        edges = after(value.edges, "AGGREGATION") | after(key.edges | outer.edges, "FILTER")
        return Value(sql, edges | table.rows)


def _all(edges: Iterable[Edges]) -> Edges:
    return NONE.union(*edges)


def _first(columns: dict[str, Edges]) -> Edges:
    return next(iter(columns.values()))


def _positions(keys: Sequence[Value]) -> range:
    return range(1, len(keys) + 1)
