"""Feature plans as DuckDB queries: an ASOF join where one time decides, a running maximum where two do.

The rule (docs/point-in-time.md): of the rows with equal keys whose event time, and created time where the group
declares it, are at or before the label's time, the greatest by (event time, created time, tie hash). An ASOF join
takes one inequality and its last row is the answer, which is the rule as long as rows are known when they are true.
Rows with a created time are *eligible* from the later of their two times, and a late one may be older than one that
is eligible already. So keys and times of labels and rows are sorted together, the running maximum of (event time,
created time) names the row of each label, and its features are then fetched: they pass through no sort.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import EngineError
from featurestore.hashing import tie_hash
from featurestore.model.plan import ROW, FeaturePlan, Join, Source
from featurestore.model.times import to_micros
from featurestore.plugins.engine import Engine, Relation
from featurestore_connectors.duckdb_delta.sqltext import names, quote

if TYPE_CHECKING:
    import numpy.typing as npt

_LEFT = "fs_left"
# The labels once more, numbered and held for the query where it reads them twice: they may be a stream.
_HELD = "fs_held"
_NUMBER = "__fs_number"
_FEW_SHARE = 20
# Makes the microseconds of any date positive, so that two times pack into one integer of their order.
_SHIFT = 1 << 62
_HALF = 1 << 63
_TIE = "__fs_tie"
_SIGN = np.uint64(1 << 63)


def retrieve(engine: Engine, plan: FeaturePlan, labels: Relation | None) -> Relation:
    """Return the rows of a feature plan as a lazy relation."""
    left = _left_side(engine, plan, labels)
    tables = {_LEFT: left}
    rows = []
    for number, join in enumerate(plan.joins):
        side = _RightSide(number, join, plan)
        tables |= side.tables(engine)
        rows.append(f"r{number} AS ({side.query()})")
    if _holds_labels(plan):
        rows.insert(
            0, f"{_HELD} AS MATERIALIZED (SELECT *, row_number() OVER () AS {_NUMBER} FROM {_LEFT})"
        )
    query = f"{'WITH ' if rows else ''}{', '.join(rows)} {_select(plan)}"
    found = engine.sql(query, tables=tables, parameters={})
    return replace(found, schema=plan.schema, single_use=left.single_use)


def _left_side(engine: Engine, plan: FeaturePlan, labels: Relation | None) -> Relation:
    if plan.left_source is None:
        if labels is None:
            raise EngineError(
                "The plan needs labels and got none.",
                hint="pass the labels that it was planned for",
            )
        return labels
    needed = [output.column for output in plan.left_outputs]
    needed += [column for join in plan.joins for column, _ in join.on]
    needed += [plan.left_time] if plan.left_time is not None else []
    if not needed:
        needed = [plan.left_schema.names[0]]
    source = plan.left_source
    return _read(engine, source, list(dict.fromkeys(needed)))


def _read(engine: Engine, source: Source, columns: list[str]) -> Relation:
    """Return columns of a group; lists of a fixed size stay plain lists until the result is streamed.

    DuckDB casts lists to arrays after a join, too, and fails at the nulls that the join brings.
    """
    schema = pa.schema([field.with_type(_plain(field.type)) for field in source.spec.schema])
    return engine.read_table(
        source.path, version=source.delta_version, schema=schema, columns=columns
    )


def _plain(kind: pa.DataType) -> pa.DataType:
    if pat.is_list(kind) or pat.is_fixed_size_list(kind):
        return pa.list_(pa.field("item", _plain(kind.value_type)))
    if pat.is_struct(kind):
        fields = (kind.field(index) for index in range(kind.num_fields))
        return pa.struct([field.with_type(_plain(field.type)) for field in fields])
    return kind


def _select(plan: FeaturePlan) -> str:
    """Return the query that joins the prepared right sides to the labels."""
    values = {output.name: f"l.{quote(output.column)}" for output in plan.left_outputs}
    joins, dropped = [], []
    for number, join in enumerate(plan.joins):
        fresh = None if join.ttl is None else _is_fresh(plan, join.ttl, number)
        for index, output in enumerate(join.outputs):
            value = f"r{number}.o{index}"
            values[output.name] = value if fresh is None else f"CASE WHEN {fresh} THEN {value} END"
        joins.append(_join(plan, join, number))
        if plan.how == "inner" and fresh is not None:
            dropped.append(fresh)
    columns = ", ".join(f"{values[name]} AS {quote(name)}" for name in plan.columns)
    where = f" WHERE {' AND '.join(dropped)}" if dropped else ""
    order = f" ORDER BY l.{quote(ROW)}" if plan.keep_order else ""
    left = _HELD if _holds_labels(plan) else _LEFT
    return f"SELECT {columns} FROM {left} AS l {' '.join(joins)}{where}{order}"


def _holds_labels(plan: FeaturePlan) -> bool:
    """Tell whether the query needs the labels before the join that answers it."""
    return any(_are_few(plan, join) or _waits(plan, join) for join in plan.joins)


def _waits(plan: FeaturePlan, join: Join) -> bool:
    """Tell whether rows become known later than they are true, which differs between labels."""
    return _looks_at_created(plan, join) and join.event_time is not None and plan.fixed_time is None


def _looks_at_created(plan: FeaturePlan, join: Join) -> bool:
    return join.created_time is not None and plan.created_time_filter


def _are_few(plan: FeaturePlan, join: Join) -> bool:
    """Tell whether looking up the labels' keys first costs less than sorting all rows of the group."""
    labels, rows = plan.left_rows, join.source.rows
    return labels is not None and rows is not None and labels * _FEW_SHARE <= rows


def _join(plan: FeaturePlan, join: Join, number: int) -> str:
    kind = "JOIN" if plan.how == "inner" else "LEFT JOIN"
    if _waits(plan, join):
        return f"{kind} r{number} ON l.{_NUMBER} = r{number}.number"
    as_of = join.event_time is not None and plan.fixed_time is None
    schema = join.source.spec.schema
    conditions = []
    for index, (left, key) in enumerate(join.on):
        mine, theirs = f"l.{quote(left)}", f"r{number}.k{index}"
        if as_of and len(join.on) > 1 and pat.is_binary(schema.field(key).type):
            # DuckDB 2.0's ASOF join loses the rows of binary keys behind others; texts it finds.
            mine, theirs = f"hex({mine})", f"hex({theirs})"
        conditions.append(f"{mine} = {theirs}")
    if as_of:
        conditions.append(f"{_label_time(plan)} >= r{number}.event")
        kind = f"ASOF {kind}"
    return f"{kind} r{number} ON {' AND '.join(conditions)}"


def _is_fresh(plan: FeaturePlan, ttl: timedelta, number: int) -> str:
    age = f"epoch_us({_label_time(plan)}) - epoch_us(r{number}.event)"
    return f"{age} <= {ttl // timedelta(microseconds=1)}"


def _label_time(plan: FeaturePlan) -> str:
    if plan.fixed_time is not None:
        return _constant(plan.fixed_time)
    if plan.left_time is None:
        raise EngineError("The plan joins as of a time and names none.", hint="label_time=")
    return _moment(f"l.{quote(plan.left_time)}", plan.left_schema.field(plan.left_time).type)


@dataclass(frozen=True)
class _RightSide:
    """One group on its way to a join: ``k0, k1, ...``, ``event`` and the outputs ``o0, o1, ...``."""

    number: int
    join: Join
    plan: FeaturePlan

    @property
    def source(self) -> str:
        return f"fs_source_{self.number}"

    @property
    def torn(self) -> str:
        return f"fs_torn_{self.number}"

    @property
    def is_unique(self) -> bool:
        """Whether no two rows can tie: the log says so, and the join is on the whole primary key."""
        # What the log claims leaves nulls out, and without the filter rows of unknown created time count.
        nulls_count = self.join.created_time is not None and not self.waits
        return (
            self.join.source.unique and bool(self.join.source.spec.primary_key) and not nulls_count
        )

    @property
    def waits(self) -> bool:
        """Whether rows become known later than they are true."""
        return _looks_at_created(self.plan, self.join)

    @property
    def keys(self) -> list[str]:
        return [f"k{index}" for index in range(len(self.join.on))]

    @property
    def places(self) -> list[str]:
        """The columns that two rows share when only their hashes can decide between them."""
        event = ["event"] if self.join.event_time is not None else []
        return [*self.keys, *event, *(["created"] if self.join.created_time is not None else [])]

    def tables(self, engine: Engine) -> dict[str, Relation]:
        """Return the relations that the query reads."""
        source, needed = self.join.source, self._needed()
        read = _read(engine, source, needed)
        if self.is_unique:
            return {self.source: read}
        everything = _read(engine, source, list(source.spec.schema.names))
        return {self.source: read, self.torn: self._hashed(engine, everything, needed)}

    def query(self) -> str:
        """Return the query of the rows that can win, at most one for each key and time, or label."""
        rows = self._untied()
        if self.join.event_time is None:
            return rows
        created = ["created DESC NULLS LAST"] if self.join.created_time is not None else []
        if self.plan.fixed_time is not None:
            return _first(rows, self.keys, ["event DESC", *created])
        if self.waits:
            return self._known(rows)
        return _first(rows, [*self.keys, "event"], created) if created else rows

    def _needed(self) -> list[str]:
        times = [
            time for time in (self.join.event_time, self.join.created_time) if time is not None
        ]
        columns = [
            *(key for _, key in self.join.on),
            *times,
            *(output.column for output in self.join.outputs),
        ]
        return list(dict.fromkeys(columns))

    def _rows(self, table: str, *, more: str = "", every_key: bool = False) -> str:
        """Return the query of rows that can match some label, under the short names."""
        schema = self.join.source.spec.schema
        columns = [f"{quote(key)} AS k{index}" for index, (_, key) in enumerate(self.join.on)]
        known = [f"{quote(key)} IS NOT NULL" for _, key in self.join.on]
        for name, role in ((self.join.event_time, "event"), (self.join.created_time, "created")):
            if name is None:
                continue
            time = _moment(quote(name), schema.field(name).type)
            columns.append(f"{time} AS {role}")
            if role == "event" or self.waits:
                known.append(f"{quote(name)} IS NOT NULL")
                known += self._within_reach(time, role)
        columns += [
            f"{quote(output.column)} AS o{index}" for index, output in enumerate(self.join.outputs)
        ]
        origin = table if every_key else self._met(table)
        return f"SELECT {', '.join(columns)}{more} FROM {origin} WHERE {' AND '.join(known)}"

    def _met(self, table: str) -> str:
        if table != self.source or not _are_few(self.plan, self.join):
            return table
        meets = " AND ".join(f"s.{quote(key)} = f.{quote(left)}" for left, key in self.join.on)
        return f"(SELECT s.* FROM {table} s SEMI JOIN {_HELD} f ON {meets})"

    def _within_reach(self, time: str, role: str) -> list[str]:
        """Return what one moment for all labels rules out: rows of its future, rows too old."""
        moment = self.plan.fixed_time
        if moment is None:
            return []
        reach = [f"{time} <= {_constant(moment)}"]
        if role == "event" and self.join.ttl is not None:
            oldest = moment - min(self.join.ttl, moment - datetime.min.replace(tzinfo=UTC))
            reach.append(f"{time} >= {_constant(oldest)}")
        return reach

    def _untied(self) -> str:
        """Return the rows, of those that share keys and times only the one with the greatest hash."""
        rows = self._rows(self.source)
        if self.is_unique:
            return rows
        torn = self._rows(self.torn, more=f", {quote(_TIE)} AS tie")
        greatest = _first("SELECT * FROM torn", self.places, ["tie DESC"])
        mine = ", ".join(f"s.{place}" for place in self.places)
        return (
            f"WITH torn AS MATERIALIZED ({torn}) SELECT s.* FROM ({rows}) s "
            f"ANTI JOIN (SELECT hash({', '.join(self.places)}) AS place FROM torn) t ON hash({mine}) = t.place "
            f"UNION ALL SELECT * EXCLUDE (tie) FROM ({greatest})"
        )

    def _shared(self) -> str:
        """Return the query of DuckDB's hashes of keys and times that rows share: less to hold than keys and times.

        Rows that share no more than such a hash are only looked at once more.
        """
        rows = self._rows(self.source, every_key=True)
        return f"SELECT hash({', '.join(self.places)}) AS place FROM ({rows}) GROUP BY place HAVING count(*) > 1"

    def _known(self, rows: str) -> str:
        """Return for each label's number the row that was the greatest of its key, of those known at its time.

        At equal times rows come before labels: the frame of the running maximum ends with the label's peers.
        """
        keys = ", ".join(self.keys)
        found = (
            f"SELECT {keys}, number, make_timestamptz((best >> 63)::BIGINT - {_SHIFT}) AS event, "
            f"make_timestamptz((best & {_HALF - 1})::BIGINT - {_SHIFT}) AS created "
            f"FROM (SELECT {keys}, number, max(best) OVER (PARTITION BY {keys} ORDER BY moment) AS best "
            f"FROM ({self._rows_and_labels()})) WHERE number IS NOT NULL AND best IS NOT NULL"
        )
        same = " AND ".join(f"s.{place} = f.{place}" for place in self.places)
        return f"SELECT f.number, s.* FROM ({found}) f JOIN ({rows}) s ON {same}"

    def _rows_and_labels(self) -> str:
        """Return the query of keys and times of rows, their two times as one integer, and of numbered labels."""
        keys = ", ".join(self.keys)
        best = f"(epoch_us(event) + {_SHIFT})::HUGEINT * {_HALF} + (epoch_us(created) + {_SHIFT})"
        time = _label_time(self.plan)
        left = [f"l.{quote(column)}" for column, _ in self.join.on]
        named = ", ".join(f"{column} AS {key}" for column, key in zip(left, self.keys, strict=True))
        present = " AND ".join(f"{value} IS NOT NULL" for value in [*left, time])
        return (
            f"SELECT {keys}, greatest(event, created) AS moment, {best} AS best, NULL::BIGINT AS number "
            f"FROM ({self._rows(self.source)}) UNION ALL "
            f"SELECT {named}, {time}, NULL, l.{_NUMBER} FROM {_HELD} l WHERE {present}"
        )

    def _hashed(self, engine: Engine, everything: Relation, needed: list[str]) -> Relation:
        """Return the rows that share keys and times with others, with their hashes; only these are hashed."""
        schema = self.join.source.spec.schema
        place = f"hash({', '.join(self._values())})"
        shared = self._shared()
        query = f"SELECT {names(schema.names, table='s')} FROM {self.source} s SEMI JOIN ({shared}) t ON {place} = t.place"
        tied = replace(
            engine.sql(query, tables={self.source: everything}, parameters={}), schema=schema
        )
        fields = (schema.field(name) for name in needed)
        hashed = pa.schema(
            [*(field.with_type(_plain(field.type)) for field in fields), pa.field(_TIE, pa.int64())]
        )
        return engine.map_batches(tied, WithTieHash(tuple(needed)), schema=hashed)

    def _values(self) -> list[str]:
        schema = self.join.source.spec.schema
        times = [
            time for time in (self.join.event_time, self.join.created_time) if time is not None
        ]
        return [
            *(f"s.{quote(key)}" for _, key in self.join.on),
            *(_moment(f"s.{quote(time)}", schema.field(time).type) for time in times),
        ]


@dataclass(frozen=True)
class WithTieHash:
    """Adds the hash that decides between rows of equal keys and times, as an integer of the same order."""

    columns: tuple[str, ...]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return ``columns`` of a batch and the hash of all its columns."""
        hashes: npt.NDArray[np.uint64] = tie_hash(batch)
        kept = batch.select(list(self.columns))
        signed = pa.array((hashes ^ _SIGN).view(np.int64))
        schema = kept.schema.append(pa.field(_TIE, pa.int64()))
        return pa.RecordBatch.from_arrays([*kept.columns, signed], schema=schema)


def _first(rows: str, places: list[str], order: list[str]) -> str:
    """Return the query of the first row of each place."""
    window = f"(PARTITION BY {', '.join(places)} ORDER BY {', '.join(order)})"
    # Not row_number() = 1: DuckDB turns that into an aggregate over sort keys, in which -0.0 is 0.0.
    return f"SELECT * FROM ({rows}) QUALIFY lag(true) OVER {window} IS NULL"


def _moment(value: str, kind: pa.DataType) -> str:
    """Return a time column as a timestamp; a date is its midnight in UTC."""
    return f"make_timestamptz(epoch_us(CAST({value} AS TIMESTAMP)))" if pat.is_date(kind) else value


def _constant(moment: datetime) -> str:
    return f"make_timestamptz({to_micros(moment)}::BIGINT)"
