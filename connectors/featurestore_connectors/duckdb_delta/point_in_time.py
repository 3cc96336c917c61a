"""Compilation of feature plans to DuckDB queries.

The semantics are defined in ``featurestore.retrieval.point_in_time``. If rows are eligible from
their event time, the query is an ASOF join with one inequality, in which the last row matches. If
rows are eligible from their created time, a late row may have an older event time than a row that
is already eligible. Then the keys and times of labels and rows are sorted together, and a running
maximum of (event time, created time) identifies the matching row of each label. Features are joined
afterwards and therefore not sorted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.types as pat

from featurestore.model.plan import ROW, FeaturePlan, Source
from featurestore.model.times import to_micros
from featurestore.plugins.engine import Engine, Relation
from featurestore.retrieval.point_in_time import (
    TIE,
    AddTieHash,
    FeatureSide,
    feature_sides,
    label_columns,
    label_time_column,
    require_labels,
)
from featurestore_connectors.duckdb_delta.relations import relation
from featurestore_connectors.duckdb_delta.sqltext import label_key, names, quote

LABELS = "fs_labels"
# The numbered and materialized labels, for queries that read them twice, since labels may be a
# stream.
_NUMBERED_LABELS = "fs_held_labels"
_NUMBER = "__fs_number"
# Minimum ratio of group rows to labels for which a semi-join on the labels' keys is worthwhile.
_SEMI_JOIN_RATIO = 20
# Added to microseconds to make them positive, so that two times can be packed into one ordered
# integer.
_SHIFT = 1 << 62
_HALF = 1 << 63


def retrieve(engine: Engine, plan: FeaturePlan, labels: Relation | None) -> Relation:
    """Return the rows of a feature plan as a lazy relation."""
    left = left_side(engine, plan, labels)
    tables = {LABELS: left}
    for side in map(_SideQuery, feature_sides(plan)):
        tables |= side.tables(engine)
    joined_rows = engine.sql(query_of_plan(plan), tables=tables, parameters={})
    # The query returns lists of variable size; rows are cast to the schema when they are streamed.
    return relation(joined_rows.native, plan.schema, single_use=left.single_use)


def query_of_plan(plan: FeaturePlan) -> str:
    """Return the SQL query of a plan over ``LABELS`` and the tables of its sides."""
    sides = list(map(_SideQuery, feature_sides(plan)))
    common_tables = []
    if _needs_numbered_labels(sides):
        numbered = f"SELECT *, row_number() OVER () AS {_NUMBER} FROM {LABELS}"
        common_tables.append(f"{_NUMBERED_LABELS} AS MATERIALIZED ({numbered})")
    for side in sides:
        common_tables.append(f"{side.name} AS ({side.query()})")
    query = _join_query(plan, sides)
    if common_tables:
        query = f"WITH {', '.join(common_tables)} {query}"
    return query


def table_of_side(side: FeatureSide) -> str:
    """Return the name of a side's table in the SQL query of a plan."""
    return f"fs_source_{side.number}"


def should_look_up_keys(side: FeatureSide) -> bool:
    """Return whether a semi-join on the labels' keys costs less than sorting all rows."""
    labels, rows = side.plan.left_rows, side.join.source.rows
    return labels is not None and rows is not None and labels * _SEMI_JOIN_RATIO <= rows


def left_side(engine: Engine, plan: FeaturePlan, labels: Relation | None) -> Relation:
    """Return the columns of the left side that a plan needs."""
    if plan.left_source is None:
        return require_labels(plan, labels)
    return read_source(engine, plan.left_source, label_columns(plan))


def read_source(engine: Engine, source: Source, columns: list[str]) -> Relation:
    """Read group columns, with fixed-size lists as variable-size lists.

    DuckDB may move the cast from list to array after a join, where it fails on nulls from the join.
    """
    schema = pa.schema(map(plain_field, source.spec.schema))
    return engine.read_table(
        source.path, version=source.delta_version, schema=schema, columns=columns
    )


def _plain_type(dtype: pa.DataType) -> pa.DataType:
    """Return a type with variable-size lists instead of fixed-size lists."""
    if pat.is_list(dtype) or pat.is_fixed_size_list(dtype):
        return pa.list_(pa.field("item", _plain_type(dtype.value_type)))
    if pat.is_struct(dtype):
        fields = map(dtype.field, range(dtype.num_fields))
        return pa.struct(list(map(plain_field, fields)))
    return dtype


def plain_field(field: pa.Field) -> pa.Field:
    """Return a field without fixed-size lists."""
    return field.with_type(_plain_type(field.type))


def _join_query(plan: FeaturePlan, sides: list[_SideQuery]) -> str:
    """Return the query that joins the prepared feature sides to the labels."""
    values = {}
    for output in plan.left_outputs:
        values[output.name] = f"l.{quote(output.column)}"
    conditions = []
    for side in sides:
        fresh = side.ttl_condition()
        for index, output in enumerate(side.rule.join.outputs):
            value = f"{side.name}.o{index}"
            if fresh is not None:
                value = f"CASE WHEN {fresh} THEN {value} END"
            values[output.name] = value
        if plan.how == "inner" and fresh is not None:
            conditions.append(fresh)
    columns = ", ".join([f"{values[name]} AS {quote(name)}" for name in plan.columns])
    labels = LABELS
    if _needs_numbered_labels(sides):
        labels = _NUMBERED_LABELS
    joins = " ".join([side.join_clause() for side in sides])
    query = f"SELECT {columns} FROM {labels} AS l {joins}"
    if conditions:
        query += f" WHERE {' AND '.join(conditions)}"
    if plan.keep_order:
        query += f" ORDER BY l.{quote(ROW)}"
    return query


def _needs_numbered_labels(sides: list[_SideQuery]) -> bool:
    """Return whether the query reads the labels before the final join."""
    return any(should_look_up_keys(side.rule) or side.rule.needs_running_maximum for side in sides)


@dataclass(frozen=True)
class _SideQuery:
    """Queries for the rows of one group before the join.

    Their columns are the keys ``k0, k1, ...``, ``event``, ``created`` and the outputs ``o0, o1,
    ...``.
    """

    rule: FeatureSide

    @property
    def plan(self) -> FeaturePlan:
        return self.rule.plan

    @property
    def name(self) -> str:
        return f"r{self.rule.number}"

    @property
    def source(self) -> str:
        return table_of_side(self.rule)

    @property
    def tied_table(self) -> str:
        """The table with the hashes of rows that tie on keys and times."""
        return f"fs_tied_{self.rule.number}"

    @property
    def tie_columns(self) -> list[str]:
        """The columns on which rows tie. Hashes break the tie."""
        columns = list(self.rule.keys)
        for role, _ in self.rule.times:
            columns.append(role)
        return columns

    def tables(self, engine: Engine) -> dict[str, Relation]:
        """Return the relations that the queries read."""
        source = self.rule.join.source
        read = read_source(engine, source, list(self.rule.columns))
        # Only groups with possible ties need all columns, which the tie hash covers.
        if self.rule.is_unique:
            return {self.source: read}
        all_rows = read_source(engine, source, list(source.spec.schema.names))
        return {self.source: read, self.tied_table: self._hash_tied_rows(engine, all_rows)}

    def query(self) -> str:
        """Return the query of candidate rows, at most one per key and time, or one per label."""
        rows = self._break_ties()
        keys = list(self.rule.keys)
        if self.rule.join.event_time is None:
            return rows
        created = []
        if self.rule.join.created_time is not None:
            created.append("created DESC NULLS LAST")
        if self.plan.fixed_time is not None:
            return _first_rows_query(rows, keys, ["event DESC", *created])
        if self.rule.needs_running_maximum:
            return self._latest_eligible_query(rows)
        if created:
            return _first_rows_query(rows, [*keys, "event"], created)
        return rows

    def join_clause(self) -> str:
        """Return the join of the candidate rows to the labels."""
        join = "LEFT JOIN"
        if self.plan.how == "inner":
            join = "JOIN"
        if self.rule.needs_running_maximum:
            # The query of this side already has the label number of each row.
            return f"{join} {self.name} ON l.{_NUMBER} = {self.name}.number"
        conditions = []
        for key, (label_column, column) in zip(self.rule.keys, self.rule.join.on, strict=True):
            label_value, row_value = self._label_key(label_column, column), f"{self.name}.{key}"
            is_binary = pat.is_binary(self.rule.spec.schema.field(column).type)
            if is_binary and self.rule.is_timed and len(self.rule.keys) > 1:
                # The ASOF join of DuckDB 2.0 loses rows if a binary key follows other keys. Strings
                # work.
                label_value, row_value = f"hex({label_value})", f"hex({row_value})"
            conditions.append(f"{label_value} = {row_value}")
        if self.rule.is_timed:
            conditions.append(f"{label_time(self.plan)} >= {self.name}.event")
            join = f"ASOF {join}"
        return f"{join} {self.name} ON {' AND '.join(conditions)}"

    def _label_key(self, label_column: str, key: str, *, table: str = "l") -> str:
        """Return a label key in the type of the group's key."""
        label_type = self.plan.left_schema.field(label_column).type
        return label_key(
            f"{table}.{quote(label_column)}", label_type, self.rule.spec.schema.field(key).type
        )

    def ttl_condition(self) -> str | None:
        """Return the condition that the matching row is within the TTL, or None without a TTL."""
        if self.rule.join.ttl is None:
            return None
        age = f"epoch_us({label_time(self.plan)}) - epoch_us({self.name}.event)"
        return f"{age} <= {self.rule.join.ttl // timedelta(microseconds=1)}"

    def _time_expression(self, column: str, *, table: str = "") -> str:
        return timestamp(f"{table}{quote(column)}", self.rule.spec.schema.field(column).type)

    def _candidate_query(self, table: str, *, more: str = "", every_key: bool = False) -> str:
        """Return the query of rows that can match a label, with short column names."""
        columns, conditions = [], []
        for name, (_, key) in zip(self.rule.keys, self.rule.join.on, strict=True):
            columns.append(f"{quote(key)} AS {name}")
            conditions.append(f"{quote(key)} IS NOT NULL")
        for role, column in self.rule.times:
            columns.append(f"{self._time_expression(column)} AS {role}")
            if role in self.rule.eligibility_times:
                conditions.append(f"{quote(column)} IS NOT NULL")
                conditions += self._time_limits(self._time_expression(column), role)
        for index, output in enumerate(self.rule.join.outputs):
            columns.append(f"{quote(output.column)} AS o{index}")
        origin = table
        if not every_key:
            origin = self._restrict_to_label_keys(table)
        where = " AND ".join(conditions)
        return f"SELECT {', '.join(columns)}{more} FROM {origin} WHERE {where}"

    def _restrict_to_label_keys(self, table: str) -> str:
        """Return the table, restricted to the labels' keys if the semi-join is worthwhile."""
        if table != self.source or not should_look_up_keys(self.rule):
            return table
        matches = [
            f"s.{quote(key)} = {self._label_key(label_column, key, table='f')}"
            for label_column, key in self.rule.join.on
        ]
        on = " AND ".join(matches)
        return f"(SELECT s.* FROM {table} s SEMI JOIN {_NUMBERED_LABELS} f ON {on})"

    def _time_limits(self, time: str, role: str) -> list[str]:
        """Return the conditions of a fixed label time: no future rows, no expired rows."""
        fixed, ttl = self.plan.fixed_time, self.rule.join.ttl
        if fixed is None:
            return []
        conditions = [f"{time} <= {_time_literal(fixed)}"]
        if role == "event" and ttl is not None:
            # A very long TTL would lead to a time before the year 1.
            oldest = fixed - min(ttl, fixed - datetime.min.replace(tzinfo=UTC))
            conditions.append(f"{time} >= {_time_literal(oldest)}")
        return conditions

    def _break_ties(self) -> str:
        """Return the query of the rows, with only the greatest hash among tied rows."""
        rows = self._candidate_query(self.source)
        if self.rule.is_unique:
            return rows
        # The tied table has all rows whose hash occurs more than once, so a hash collision does not
        # lose a row: it is only compared without need.
        tied = self._candidate_query(self.tied_table, more=f", {quote(TIE)} AS tie")
        greatest = _first_rows_query("SELECT * FROM tied", self.tie_columns, ["tie DESC"])
        row_columns = ", ".join([f"s.{column}" for column in self.tie_columns])
        tied_columns = ", ".join(self.tie_columns)
        return (
            f"WITH tied AS MATERIALIZED ({tied}) SELECT s.* FROM ({rows}) s "
            f"ANTI JOIN (SELECT hash({tied_columns}) AS shared FROM tied) t ON hash({row_columns}) = t.shared "
            f"UNION ALL SELECT * EXCLUDE (tie) FROM ({greatest})"
        )

    def _tied_hashes_query(self) -> str:
        """Return the query of DuckDB's hashes of keys and times that occur more than once.

        Hashes need less memory than keys and times. A collision only adds rows to the tie-break.
        """
        rows = self._candidate_query(self.source, every_key=True)
        shared = f"hash({', '.join(self.tie_columns)}) AS shared"
        return f"SELECT {shared} FROM ({rows}) GROUP BY shared HAVING count(*) > 1"

    def _latest_eligible_query(self, rows: str) -> str:
        """Return the query of the latest row that is eligible for each label, by label number.

        Rows precede labels with the same time, since the frame of the running maximum includes
        peers.
        """
        keys = ", ".join(self.rule.keys)
        latest_rows = (
            f"SELECT {keys}, number, make_timestamptz((best >> 63)::BIGINT - {_SHIFT}) AS event, "
            f"make_timestamptz((best & {_HALF - 1})::BIGINT - {_SHIFT}) AS created "
            f"FROM (SELECT {keys}, number, max(best) OVER (PARTITION BY {keys} ORDER BY since) AS "
            "best "
            f"FROM ({self._union_query()})) WHERE number IS NOT NULL AND best IS NOT NULL"
        )
        # Ties are broken before, so keys and times identify one row.
        is_same_row = " AND ".join([f"s.{column} = f.{column}" for column in self.tie_columns])
        return f"SELECT f.number, s.* FROM ({latest_rows}) f JOIN ({rows}) s ON {is_same_row}"

    def _union_query(self) -> str:
        """Return the union of rows and labels, with keys, time, and the rows' packed times."""
        keys = ", ".join(self.rule.keys)
        since = f"greatest({', '.join(self.rule.eligibility_times)})"
        # One integer of 128 bits: two maxima of 64 bits took 0.7 seconds more on 5.5 million rows
        # and a million labels (ADR 0011).
        best = f"(epoch_us(event) + {_SHIFT})::HUGEINT * {_HALF} + (epoch_us(created) + {_SHIFT})"
        time = label_time(self.plan)
        key_columns, present = [], []
        for key, (label_column, column) in zip(self.rule.keys, self.rule.join.on, strict=True):
            label_value = self._label_key(label_column, column)
            key_columns.append(f"{label_value} AS {key}")
            present.append(f"{label_value} IS NOT NULL")
        present.append(f"{time} IS NOT NULL")
        return (
            f"SELECT {keys}, {since} AS since, {best} AS best, NULL::BIGINT AS number "
            f"FROM ({self._candidate_query(self.source)}) UNION ALL "
            f"SELECT {', '.join(key_columns)}, {time}, NULL, l.{_NUMBER} FROM {_NUMBERED_LABELS} l "
            f"WHERE {' AND '.join(present)}"
        )

    def _hash_tied_rows(self, engine: Engine, all_rows: Relation) -> Relation:
        """Return the tied rows with their hashes; other rows are not hashed."""
        schema = self.rule.spec.schema
        values = [f"s.{quote(key)}" for _, key in self.rule.join.on]
        for _, time in self.rule.times:
            values.append(self._time_expression(time, table="s."))
        query = (
            f"SELECT {names(schema.names, table='s')} FROM {self.source} s "
            f"SEMI JOIN ({self._tied_hashes_query()}) t ON hash({', '.join(values)}) = t.shared"
        )
        tied_rows = engine.sql(query, tables={self.source: all_rows}, parameters={})
        fields = [plain_field(schema.field(name)) for name in self.rule.columns]
        hashed = pa.schema([*fields, pa.field(TIE, pa.int64())])
        tied = replace(tied_rows, schema=schema)
        return engine.map_batches(tied, AddTieHash(self.rule.columns), schema=hashed)


def label_time(plan: FeaturePlan) -> str:
    """Return the SQL of the label time: a column of the table ``l`` or a constant."""
    if plan.fixed_time is not None:
        return _time_literal(plan.fixed_time)
    column = label_time_column(plan)
    return timestamp(f"l.{quote(column)}", plan.left_schema.field(column).type)


def _first_rows_query(rows: str, columns: list[str], order: list[str]) -> str:
    """Return the query of the first row for each combination of values in ``columns``."""
    window = f"(PARTITION BY {', '.join(columns)} ORDER BY {', '.join(order)})"
    # Not row_number() = 1: DuckDB rewrites it to an aggregate over sort keys, where -0.0 equals
    # 0.0.
    return f"SELECT * FROM ({rows}) QUALIFY lag(true) OVER {window} IS NULL"


def timestamp(value: str, dtype: pa.DataType) -> str:
    """Return a time column as a timestamp; a date is converted to midnight in UTC."""
    if pat.is_date(dtype):
        return f"make_timestamptz(epoch_us(CAST({value} AS TIMESTAMP)))"
    return value


def _time_literal(time: datetime) -> str:
    return f"make_timestamptz({to_micros(time)}::BIGINT)"
