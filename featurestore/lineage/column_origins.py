"""Column lineage of the rows that are written, derived from retrieval plans and jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import FeatureStoreError
from featurestore.lineage.origins import (
    AGGREGATION,
    FILTER,
    GROUP_BY,
    JOIN,
    Dataset,
    OriginColumn,
    Origins,
    RelationOrigins,
    find_columns,
    sort_origins,
    then,
    union,
)
from featurestore.lineage.query_origins import QueryTable, trace_query
from featurestore.model.job import WindowWork
from featurestore.model.json_object import JsonMapping
from featurestore.model.times import format_duration
from featurestore.model.window_features import WindowLineage
from featurestore.model.window_job import WindowJob
from featurestore.storage import StorePaths

_log = logging.getLogger("featurestore.lineage")

# Returns the column names of a dataset, () if they are unknown.
ColumnReader = Callable[[Dataset], Sequence[str]]
# Aggregates from which no value of a row can be recovered.
_MASKING_AGGREGATES = frozenset({"count", "count_distinct"})


@dataclass
class ColumnOrigins:
    """Source columns of each output column, and columns that determine the rows (joins, filters)."""

    columns: dict[str, list[OriginColumn]] = field(default_factory=dict)
    rows: list[OriginColumn] = field(default_factory=list)

    @property
    def datasets(self) -> list[Dataset]:
        """The datasets of all origins, without duplicates."""
        origins = [*self.rows, *union(self.columns.values())]
        return sorted({origin.dataset for origin in origins}, key=str)


# -- jobs -----------------------------------------------------------------------------------------


def origins_of_query(
    sql: str, tables: Mapping[str, QueryTable], names: Iterable[str]
) -> ColumnOrigins:
    """Return the origins of the result columns ``names`` of a query.

    Columns without origins are omitted. If the query cannot be traced, the result is empty.

    >>> trips = QueryTable(Dataset("trips", 1), ["zone", "Fare"])
    >>> sql = "select zone, max(fare) as fare from trips where fare > 0 group by zone"
    >>> origins = origins_of_query(sql, {"trips": trips}, ["zone", "fare"])
    >>> [(origin.column, origin.subtype) for origin in origins.columns["fare"]]
    [('Fare', 'AGGREGATION')]
    >>> [(origin.column, origin.subtype) for origin in origins.rows]
    [('Fare', 'FILTER'), ('zone', 'GROUP_BY')]
    """
    try:
        query = trace_query(sql, tables)
    # sqlglot raises errors of many types for a query that it cannot resolve. Events are then sent
    # without column lineage.
    except Exception as error:
        _log.debug("no column lineage of %s: %s: %s", sql, type(error).__name__, error)
        return ColumnOrigins()
    return _sort({name: query.column(name.lower()) for name in names}, query.rows)


def _sort(
    columns: Mapping[str, Iterable[OriginColumn]], rows: Iterable[OriginColumn]
) -> ColumnOrigins:
    sorted_columns = {name: sort_origins(origins) for name, origins in columns.items()}
    return ColumnOrigins(
        {name: origins for name, origins in sorted_columns.items() if origins}, sort_origins(rows)
    )


def origins_of_window_job(work: WindowWork, tables: Iterable[QueryTable]) -> ColumnOrigins:
    """Return the origins of the aggregates and keys that a window job computes.

    Args:
        work: The work of the job.
        tables: Its inputs.
    """
    job = WindowJob.from_work(work)
    columns: dict[str, list[OriginColumn]] = {name: [] for name in work.options.primary_key}
    rows = []
    tables_by_dataset = {table.dataset: table for table in tables}
    for aggregate in job.lineage:
        text = f"{aggregate}, every {format_duration(job.every)}"
        for dataset in tables_by_dataset:
            if dataset.source == aggregate.group and aggregate.version in (None, dataset.version):
                columns[aggregate.name] = _aggregate_origins(
                    dataset, aggregate, text, lambda dataset: tables_by_dataset[dataset].columns
                )
    for table in tables_by_dataset.values():
        for name in work.options.primary_key:
            if name in table.columns:
                columns[name].append(OriginColumn(table.dataset, name))
                rows.append(OriginColumn(table.dataset, name, GROUP_BY))
        if table.time is not None:
            rows.append(OriginColumn(table.dataset, table.time, FILTER))
    return _sort(columns, rows)


def _aggregate_origins(
    dataset: Dataset, aggregate: WindowLineage, text: str, read_columns: ColumnReader
) -> list[OriginColumn]:
    masking = aggregate.function in _MASKING_AGGREGATES
    origins = [OriginColumn(dataset, aggregate.column, AGGREGATION, text, masking)]
    condition = aggregate.to_json()["where"]
    if condition is not None:
        # A condition may spell a name in another case.
        names = {name.lower(): name for name in read_columns(dataset)}
        origins += [
            OriginColumn(dataset, names.get(name.lower(), name), FILTER)
            for name in find_columns(condition)
        ]
    return origins


# -- retrieval plans ------------------------------------------------------------------------------


def snapshot_columns(paths: StorePaths) -> ColumnReader:
    """Return a function that reads the columns of groups from their Delta logs."""

    def read_columns(dataset: Dataset) -> Sequence[str]:
        if dataset.version is None:
            return ()
        try:
            path = paths.featuregroup(dataset.source, dataset.version)
            return tuple(read_snapshot(path).schema.names)
        except FeatureStoreError:  # the group was deleted
            return ()

    return read_columns


def origins_of_plan(plan: JsonMapping, read_columns: ColumnReader) -> ColumnOrigins:
    """Return the column origins of a JSON retrieval plan.

    Args:
        plan: The plan.
        read_columns: Reads the columns of the groups in a query of the plan.
    """
    query = _PlanTracer(read_columns).trace(plan)
    return _sort({name: query.columns.get(name, ()) for name in plan["columns"]}, query.rows)


@dataclass(frozen=True)
class _PlanTracer:
    """Computes the origins of all columns of a plan, including columns that are not selected."""

    read_columns: ColumnReader

    def trace(self, plan: JsonMapping) -> RelationOrigins:
        labels = self._labels(plan)
        columns, rows = dict(labels.columns), [labels.rows]
        joins = [*plan.get("windows", ()), *plan["joins"]]
        for join in joins:
            dataset = _source_dataset(join["source"])
            for output in join["outputs"]:
                columns[output["name"]] = self._output(dataset, output)
            for label_column, column in join["on"]:
                keys = {OriginColumn(dataset, column), *labels.columns.get(label_column, ())}
                rows.append(then(keys, JOIN))
            if join["event_time"] is not None:
                text = "as of the label's time"
                rows.append(frozenset({OriginColumn(dataset, join["event_time"], JOIN, text)}))
                rows.append(then(labels.columns.get(plan["left_time"], ()), JOIN))
        for output in plan.get("on_demand", ()):
            columns[output["name"]] = self._expression(output["sql"], columns)
        names = [name for sql in plan.get("filters", ()) for name in find_columns(sql)]
        names += [name for sample in plan.get("samples", ()) for name in sample["by"]]
        by_lower_name = {name.lower(): origins for name, origins in columns.items()}
        rows.append(then(union(by_lower_name.get(name.lower(), ()) for name in names), FILTER))
        return RelationOrigins(columns, union(rows))

    def _labels(self, plan: JsonMapping) -> RelationOrigins:
        """Return the origins of the labels, by the column names of the result."""
        if plan.get("left_plan") is not None:
            labels = self.trace(plan["left_plan"])
        elif plan.get("left_query") is not None:
            labels = self._query(plan["left_query"], plan["left_columns"])
        elif plan["left"] is not None:
            dataset = _source_dataset(plan["left"])
            # All columns: a filter or a join may read a column that the result does not have.
            names = {*plan["left_columns"], plan["left_time"], *self.read_columns(dataset)}
            labels = RelationOrigins(
                {name: frozenset({OriginColumn(dataset, name)}) for name in names if name}
            )
        else:
            return RelationOrigins({})
        # The plan has the names after renaming, the labels the names before.
        renamed = {
            rename["name"]: labels.columns.get(rename["column"], frozenset())
            for rename in plan.get("left_renames", ())
        }
        return RelationOrigins({**labels.columns, **renamed}, labels.rows)

    def _query(self, query: JsonMapping, names: Iterable[str]) -> RelationOrigins:
        datasets = {name: _source_dataset(source) for name, source in query["tables"].items()}
        tables = {
            name: QueryTable(dataset, self.read_columns(dataset))
            for name, dataset in datasets.items()
        }
        result = origins_of_query(query["sql"], tables, names)
        columns = {name: frozenset(origins) for name, origins in result.columns.items()}
        return RelationOrigins(columns, frozenset(result.rows))

    def _expression(self, sql: str, columns: Mapping[str, Iterable[OriginColumn]]) -> Origins:
        """Return the origins of an expression over columns with known origins."""
        rows = QueryTable(Dataset("rows"), list(columns))
        value = origins_of_query(f"select {sql} as v from fs_rows", {"fs_rows": rows}, ["v"])
        return union(
            then(columns[origin.column], origin.subtype, masking=origin.masking)
            for origin in value.columns.get("v", ())
        )

    def _output(self, dataset: Dataset, output: JsonMapping) -> Origins:
        if "function" not in output:
            return frozenset({OriginColumn(dataset, output["column"])})
        aggregate = WindowLineage(
            output["name"],
            dataset.source,
            dataset.version,
            output["column"],
            output["function"],
            output["over_us"],
            output["offset_us"] or 0,
            output["where"],
        )
        origins = _aggregate_origins(dataset, aggregate, str(aggregate), self.read_columns)
        return frozenset(origins)


def _source_dataset(source: JsonMapping) -> Dataset:
    return Dataset(str(source["featuregroup"]), source["version"])
