"""Feature plans: frozen descriptions of a retrieval."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa

from featurestore.errors import InvalidPlan, listing
from featurestore.model import display
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.model.on_demand import OnDemandFeature
from featurestore.model.window_features import WindowFunction, micros, value_to_json

JoinKind = Literal["left", "inner"]

# The label position, an int64 column that is added to the labels; engines sort by it if the plan
# keeps the order.
ROW = "__fs_row"


@dataclass(frozen=True)
class Source:
    """A feature group, pinned to a Delta version.

    ``unique`` is True if (primary key, event time, created time) is known to be unique in that
    version, so that ties are impossible. ``corrected`` is False if created time is known never to
    change the order, for example because it is not declared. ``rows`` and ``bytes`` come from the
    Delta log and are informational.
    """

    spec: FeatureGroupSpec
    path: str
    delta_version: int
    table_id: str
    unique: bool = False
    rows: int | None = None
    bytes: int | None = None

    def to_json(self) -> JsonDict:
        """Return the JSON object that identifies the source in plans and manifests."""
        return {
            "featuregroup": self.spec.name,
            "version": self.spec.version,
            "delta_version": self.delta_version,
            "table_id": self.table_id,
        }

    def assume_unique(self) -> Source:
        """Return the source with rows that are assumed to be unique."""
        return replace(self, unique=True)


@dataclass(frozen=True)
class Output:
    """A source column ``column``, called ``name`` in the result."""

    column: str
    name: str


@dataclass(frozen=True)
class RowSample:
    """A sample of the rows.

    A row is selected if the hash of its ``by`` columns is in the lowest ``fraction`` of all hashes.
    """

    fraction: float
    seed: int
    by: tuple[str, ...]


@dataclass(frozen=True)
class Join:
    """The join of one source to the left side.

    ``on`` pairs a left column with each primary-key column of the source, in primary-key order.
    With ``event_time``, the join is as of the left time (``FeaturePlan.left_time``); without it,
    the source is first reduced to one row per key.
    """

    source: Source
    on: tuple[tuple[str, str], ...]
    outputs: tuple[Output, ...]
    event_time: str | None
    created_time: str | None
    ttl: timedelta | None


@dataclass(frozen=True)
class QuerySource:
    """The result of a user query over pinned groups, as the left side of a plan.

    ``sql`` is the original DuckDB SQL after validation. ``tables`` are the groups by their table
    names in the query. ``varies`` is the reason why another run over the same versions may return
    other rows, or None if the result is deterministic.
    """

    sql: str
    tables: tuple[tuple[str, Source], ...]
    varies: str | None = None

    def to_json(self) -> JsonDict:
        """Return the JSON object of the query in plans and manifests."""
        tables = {}
        for name, source in self.tables:
            tables[name] = source.to_json()
        return {"sql": self.sql, "tables": tables}


@dataclass(frozen=True)
class WindowOutput:
    """A window aggregate of a source column, called ``name`` in the result.

    It aggregates the rows in ``(t - offset - over, t - offset]`` that are known at the label time
    ``t`` and for which ``where`` (DuckDB SQL) is true. ``kind`` is the result type.
    """

    column: str
    name: str
    function: WindowFunction
    over: timedelta | None
    offset: timedelta
    where: str | None
    fill_value: object
    n: int
    kind: pa.DataType


@dataclass(frozen=True)
class OnDemandOutput:
    """A feature computed from each row of the left side; ``kind`` is its type."""

    feature: OnDemandFeature
    kind: pa.DataType

    @property
    def name(self) -> str:
        """The column name in the result."""
        return self.feature.name


@dataclass(frozen=True)
class WindowJoin:
    """The join of the window aggregates of one source to the left side.

    ``on`` pairs left columns with source columns; ``members`` are the other primary-key columns of
    the source: rows with equal ``on`` columns, members and event time are versions of one event.
    """

    source: Source
    on: tuple[tuple[str, str], ...]
    members: tuple[str, ...]
    outputs: tuple[WindowOutput, ...]
    event_time: str
    created_time: str | None


@dataclass(frozen=True, repr=False)
class FeaturePlan:
    """The plan of one ``get_features`` call.

    The left side is ``left_source`` (a pinned group), the result of ``left_plan`` (a chained
    retrieval) or of ``left_query`` (a user query over pinned groups), or the caller's labels (all
    None). The engine gets the left rows in addition to the plan, unless they are a group.
    ``left_columns`` are the first columns of the result. ``columns`` is the order of all result
    columns; each is a left column or the name of an output. ``left_time`` is a left column;
    ``fixed_time`` is one time for all rows instead (batch scoring); both are None if no join needs
    a time. ``keep_order`` keeps the order of labels in memory: the labels then have the column
    ``ROW``. ``filters`` (DuckDB SQL) and ``samples`` reduce the joined rows.

    ``requested_columns`` are the result columns that were requested by name in all chained
    retrievals, or None for all columns of a group.

    ``left_schema`` has the column names of the left side; ``left_renames`` are the left columns
    with other names in the result. ``left_rows`` is the number of rows of the left side, or None if
    it is unknown. A plan has either ``windows`` or ``joins``; if both were requested, the windows
    are in the left plan. ``on_demand`` features are computed from the rows of a left plan that
    contains all their inputs.

    Raises:
        InvalidPlan: The left side lacks a column that the plan uses, a join as of a time has no
            time, or a result column has no source. Thus no engine gets such a plan.
    """

    left_source: Source | None
    left_schema: pa.Schema
    left_columns: tuple[str, ...]
    left_time: str | None
    fixed_time: datetime | None
    joins: tuple[Join, ...]
    columns: tuple[str, ...]
    schema: pa.Schema
    how: JoinKind = "left"
    created_time_filter: bool = True
    keep_order: bool = False
    notes: tuple[str, ...] = ()
    left_plan: FeaturePlan | None = None
    filters: tuple[str, ...] = ()
    left_renames: tuple[Output, ...] = ()
    left_rows: int | None = None
    samples: tuple[RowSample, ...] = ()
    left_query: QuerySource | None = None
    requested_columns: tuple[str, ...] | None = None
    windows: tuple[WindowJoin, ...] = ()
    on_demand: tuple[OnDemandOutput, ...] = ()

    def __post_init__(self) -> None:
        left_names = set(self.left_schema.names)
        needed_columns = {output.column: "its result" for output in self.left_outputs}
        for join in self.all_joins:
            for left_column, _ in join.on:
                needed_columns.setdefault(left_column, f"the join of {join.source.spec.name!r}")
        if self.left_time is not None:
            needed_columns.setdefault(self.left_time, "the label time")
        for name, use in needed_columns.items():
            if name not in left_names:
                raise InvalidPlan(
                    f"A feature plan uses the column {name!r} for {use}, but its left side has "
                    f"{listing(self.left_schema.names)}."
                )
        if self.left_time is not None and self.fixed_time is not None:
            raise InvalidPlan(
                f"A feature plan has the label times {self.left_time!r} and one time for all rows."
            )
        if self.left_time is None and self.fixed_time is None:
            timed_joins = [join for join in self.all_joins if join.event_time is not None]
            if timed_joins:
                raise InvalidPlan(
                    "A feature plan joins as of a time, but has none: "
                    f"{listing([join.source.spec.name for join in timed_joins])}."
                )
        computed_names = {output.name for join in self.all_joins for output in join.outputs}
        computed_names.update([output.name for output in self.on_demand], self.left_columns)
        unknown_columns = [name for name in self.columns if name not in computed_names]
        if unknown_columns or list(self.columns) != self.schema.names:
            raise InvalidPlan(
                f"A feature plan returns {listing(unknown_columns or self.columns)}, but computes "
                f"{listing(sorted(computed_names))}."
            )

    def __repr__(self) -> str:
        columns, groups = len(self.columns), len(self.sources)
        return f"FeaturePlan({columns} columns of {groups} groups, {self.hash[:12]})"

    def __str__(self) -> str:
        from featurestore.model.plan_text import describe

        return describe(self)

    def _repr_html_(self) -> str:
        return display.preformatted(str(self))

    def to_json(self) -> JsonDict:
        """Return a JSON object for manifests, with the fields that determine the rows."""
        # Optional fields are absent when they are empty, so that plans without them keep their
        # hash.
        extra: JsonDict = {}
        if self.left_plan is not None:
            extra["left_plan"] = self.left_plan.to_json()
        if self.left_query is not None:
            extra["left_query"] = self.left_query.to_json()
        if self.filters:
            extra["filters"] = list(self.filters)
        if self.samples:
            extra["samples"] = [
                {**asdict(sample), "by": list(sample.by)} for sample in self.samples
            ]
        if self.windows:
            extra["windows"] = list(map(_window_to_json, self.windows))
        if self.on_demand:
            extra["on_demand"] = [output.feature.to_json() for output in self.on_demand]
        if self.left_renames:
            extra["left_renames"] = list(map(asdict, self.left_renames))
        left_source, fixed_time = None, None
        if self.left_source is not None:
            left_source = self.left_source.to_json()
        if self.fixed_time is not None:
            fixed_time = self.fixed_time.isoformat()
        return extra | {
            "left": left_source,
            "left_columns": list(self.left_columns),
            "left_time": self.left_time,
            "fixed_time": fixed_time,
            "how": self.how,
            "created_time_filter": self.created_time_filter,
            "joins": list(map(_join_to_json, self.joins)),
            "columns": list(self.columns),
        }

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON of the plan."""
        return canonical_hash(self.to_json())

    @property
    def all_joins(self) -> tuple[Join | WindowJoin, ...]:
        """All joins to the left side, for features and for window aggregates."""
        return (*self.windows, *self.joins)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The groups that the plan reads, with the left side first.

        >>> plan = store.get_features(["weather.temp"], labels="questions").plan
        >>> [source.spec.name for source in plan.sources]
        ['questions', 'weather']
        """
        sources = []
        if self.left_source is not None:
            sources.append(self.left_source)
        if self.left_plan is not None:
            sources += self.left_plan.sources
        if self.left_query is not None:
            sources += [source for _, source in self.left_query.tables]
        for join in self.all_joins:
            sources.append(join.source)
        return tuple(sources)

    def left_column(self, name: str) -> str:
        """Return the left-side name of a left column ``name`` of the result."""
        return self._renamed_columns.get(name, name)

    @cached_property
    def _renamed_columns(self) -> dict[str, str]:
        return {output.name: output.column for output in self.left_renames}

    @property
    def left_outputs(self) -> tuple[Output, ...]:
        """The left columns in the result, in result order."""
        left_names, outputs = set(self.left_columns), []
        for name in self.columns:
            if name in left_names:
                outputs.append(Output(self.left_column(name), name))
        return tuple(outputs)

    @property
    def keys(self) -> tuple[str, ...]:
        """The result columns that identify its rows.

        These are the left group's primary key, or otherwise the join columns.

        >>> store.get_features(["weather.temp"], labels="questions").plan.keys
        ('tailnum', 'origin')
        """
        if self.left_source is not None and self.left_source.spec.primary_key:
            return self._result_names(self.left_source.spec.primary_key)
        columns: list[str] = []
        if self.left_plan is not None:
            columns += self.left_plan.keys
        for join in self.all_joins:
            for left_column, _ in join.on:
                columns.append(left_column)
        return self._result_names(tuple(dict.fromkeys(columns)))

    @property
    def join_columns(self) -> tuple[str, ...]:
        """The left columns of the result that groups were joined on, in all chained retrievals.

        >>> store.get_features(["weather.temp"], labels="questions").plan.join_columns
        ('origin',)
        """
        columns: list[str] = []
        if self.left_plan is not None:
            columns += self.left_plan.join_columns
        for join in self.all_joins:
            for left_column, _ in join.on:
                columns.append(left_column)
        return self._result_names(tuple(dict.fromkeys(columns)))

    @property
    def time(self) -> str | None:
        """The result column with the time of each row, or None.

        >>> store.get_features(["weather.temp"], labels="questions").plan.time
        'asked_at'
        """
        if self.left_time is None:
            return None
        # ``select`` may have removed the time column from the result.
        names = self._result_names((self.left_time,))
        if not names:
            return None
        return names[0]

    @property
    def rows(self) -> int | None:
        """The number of result rows, or None if it is not known at planning time.

        >>> store.get_features(["weather.temp"], labels="questions").plan.rows
        4
        """
        if self.how != "left" or self.drops_rows:
            return None
        return self.left_rows

    @property
    def drops_rows(self) -> bool:
        """Whether filters or samples remove rows.

        >>> store.get_featuregroup("weather").filter("temp > 38").plan.drops_rows
        True
        """
        return bool(self.filters or self.samples)

    def _result_names(self, columns: Sequence[str]) -> tuple[str, ...]:
        # If a left column has several names in the result, the first one is used.
        names = {output.column: output.name for output in reversed(self.left_outputs)}
        return tuple(names[column] for column in columns if column in names)

    def select(self, columns: Sequence[str]) -> FeaturePlan:
        """Return the plan with the selected columns only.

        Joins of unused columns are removed.

        >>> plan = store.get_features(["weather.temp"], labels="questions").plan
        >>> plan.select(["temp"]).columns
        ('temp',)
        """
        schema = pa.schema(list(map(self.schema.field, columns)))
        if self.drops_rows:  # a filter may look at any column
            return replace(self, columns=tuple(columns), schema=schema)
        joins = []
        for join in self.joins:
            outputs = tuple(output for output in join.outputs if output.name in columns)
            # An inner join drops rows even if none of its columns is selected.
            if outputs or self.how == "inner":
                joins.append(replace(join, outputs=outputs))
        windows = []
        for window in self.windows:
            aggregates = tuple(
                output_column for output_column in window.outputs if output_column.name in columns
            )
            if aggregates:
                windows.append(replace(window, outputs=aggregates))
        return replace(
            self,
            columns=tuple(columns),
            schema=schema,
            joins=tuple(joins),
            windows=tuple(windows),
            on_demand=tuple(
                output_column for output_column in self.on_demand if output_column.name in columns
            ),
        )

    def map_sources(self, change: Callable[[Source], Source]) -> FeaturePlan:
        """Return the plan with ``change`` applied to each group; the columns stay the same."""
        left_source, left_plan, query = self.left_source, self.left_plan, self.left_query
        if left_source is not None:
            left_source = change(left_source)
        if left_plan is not None:
            left_plan = left_plan.map_sources(change)
        if query is not None:
            tables = [(name, change(source)) for name, source in query.tables]
            query = replace(query, tables=tuple(tables))
        joins = [replace(join, source=change(join.source)) for join in self.joins]
        windows = [replace(window, source=change(window.source)) for window in self.windows]
        return replace(
            self,
            left_source=left_source,
            left_plan=left_plan,
            left_query=query,
            joins=tuple(joins),
            windows=tuple(windows),
        )

    def filter(self, predicate: str) -> FeaturePlan:
        """Return the plan filtered by an SQL predicate in DuckDB's dialect."""
        return replace(self, filters=(*self.filters, predicate))

    def sample(self, sample: RowSample) -> FeaturePlan:
        """Return the plan with a sample of its rows."""
        return replace(self, samples=(*self.samples, sample))


def build_group_plan(source: Source) -> FeaturePlan:
    """Return a plan for all rows and columns of a group."""
    schema = source.spec.schema
    columns = tuple(schema.names)
    return FeaturePlan(
        left_source=source,
        left_schema=schema,
        left_columns=columns,
        left_time=source.spec.event_time,
        fixed_time=None,
        joins=(),
        columns=columns,
        schema=schema,
        left_rows=source.rows,
    )


def build_query_plan(query: QuerySource, schema: pa.Schema) -> FeaturePlan:
    """Return a plan for all rows and columns of a query result."""
    columns = tuple(schema.names)
    return FeaturePlan(
        left_source=None,
        left_schema=schema,
        left_columns=columns,
        left_time=None,
        fixed_time=None,
        joins=(),
        columns=columns,
        schema=schema,
        left_query=query,
    )


def canonical_hash(data: JsonMapping | Sequence[Any]) -> str:
    """Return the SHA-256 of a JSON value, serialized without spaces and with sorted keys.

    >>> canonical_hash({"a": 1})[:8]
    '015abd7f'
    """
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _window_to_json(window: WindowJoin) -> JsonDict:
    outputs = []
    for aggregate in window.outputs:
        output: JsonDict = {
            "column": aggregate.column,
            "name": aggregate.name,
            "function": aggregate.function,
            "over_us": micros(aggregate.over),
            "offset_us": micros(aggregate.offset),
            "where": aggregate.where,
            "fill_value": value_to_json(aggregate.fill_value),
            "n": aggregate.n,
        }
        outputs.append(output)
    return {
        "source": window.source.to_json(),
        "on": list(map(list, window.on)),
        "members": list(window.members),
        "outputs": outputs,
        "event_time": window.event_time,
        "created_time": window.created_time,
    }


def _join_to_json(join: Join) -> JsonDict:
    ttl = None
    if join.ttl is not None:
        ttl = join.ttl // timedelta(microseconds=1)
    return {
        "source": join.source.to_json(),
        "on": list(map(list, join.on)),
        "outputs": list(map(asdict, join.outputs)),
        "event_time": join.event_time,
        "created_time": join.created_time,
        "ttl_us": ttl,
    }
