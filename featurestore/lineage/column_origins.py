"""Column lineage, derived from retrieval plans and job queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from featurestore.model.job import WindowJob
from featurestore.model.times import format_duration
from featurestore.model.window_features import WindowLineage

Group = tuple[str, int | None]


@dataclass(frozen=True)
class Origin:
    """A source column of a derived column; ``kind`` is an OpenLineage transformation subtype."""

    group: Group
    column: str
    kind: str = "IDENTITY"
    text: str = ""


@dataclass
class ColumnOrigins:
    """Source columns of each output column, and columns that determine the rows (joins, filters)."""

    columns: dict[str, list[Origin]] = field(default_factory=dict)
    rows: list[Origin] = field(default_factory=list)


def origins_of_plan(plan: Mapping[str, Any]) -> ColumnOrigins:
    """Return the column origins of a JSON retrieval plan."""
    output_origins = ColumnOrigins()
    left_columns = _left_column_origins(plan, output_origins)
    for name in plan["columns"]:
        if name in left_columns:
            output_origins.columns[name] = left_columns[name]
    for join in (*plan.get("windows", ()), *plan["joins"]):
        group = _source_group(join["source"])
        for output in join["outputs"]:
            output_origins.columns[output["name"]] = [_output_origin(group, output)]
        for label_column, column in join["on"]:
            output_origins.rows += [
                Origin(group, column, "JOIN"),
                *_row_origins(left_columns.get(label_column, []), "JOIN"),
            ]
        if join["event_time"] is not None:
            output_origins.rows.append(
                Origin(group, join["event_time"], "JOIN", "as of the label's time")
            )
    output_origins.rows += _row_origins(left_columns.get(plan["left_time"], []), "JOIN")
    output_origins.rows = list(dict.fromkeys(output_origins.rows))
    return output_origins


def _left_column_origins(
    plan: Mapping[str, Any], output_origins: ColumnOrigins
) -> dict[str, list[Origin]]:
    """Return the origins of the columns from the left side of the joins, by output name."""
    if plan.get("left_plan") is not None:
        input_origins = origins_of_plan(plan["left_plan"])
        output_origins.rows += input_origins.rows
        left_origins = input_origins.columns
    elif plan.get("left_query") is not None:
        query = plan["left_query"]
        groups = {name: _source_group(source) for name, source in query["tables"].items()}
        left_origins = origins_of_query(query["sql"], groups, plan["left_columns"]).columns
    elif plan["left"] is not None:
        group = _source_group(plan["left"])
        left_origins = {name: [Origin(group, name)] for name in plan["left_columns"]}
    else:
        return {}
    renamed = {rename["name"]: rename["column"] for rename in plan.get("left_renames", ())}
    left_columns = {}
    for name in (*plan["left_columns"], plan["left_time"]):
        # The plan has the names after renaming, the source the names before.
        origins = left_origins.get(renamed.get(name, name), [])
        if plan["left"] is not None and name in renamed:
            origins = [Origin(_source_group(plan["left"]), renamed[name])]
        left_columns[name] = origins
    return left_columns


def _output_origin(group: Group, output: Mapping[str, Any]) -> Origin:
    if "function" not in output:
        return Origin(group, output["column"])
    window_lineage = WindowLineage(
        output["name"],
        *group,
        output["column"],
        output["function"],
        output["over_us"],
        output["offset_us"] or 0,
        output["where"],
    )
    return Origin(group, output["column"], "AGGREGATION", str(window_lineage))


def origins_of_query(sql: str, tables: Mapping[str, Group], names: Iterable[str]) -> ColumnOrigins:
    """Return the column origins of a query; columns that cannot be traced are omitted.

    >>> origins = origins_of_query("select a + b as c from t", {"t": ("g", 1)}, ["c"])
    >>> sorted(each.column for each in origins.columns["c"])
    ['a', 'b']
    """
    from sqlglot import exp
    from sqlglot.errors import SqlglotError
    from sqlglot.lineage import lineage

    output_origins = ColumnOrigins()
    for name in names:
        try:
            node = lineage(name, sql, schema={}, dialect="duckdb")
        except (SqlglotError, ValueError):  # not every query can be traced
            continue
        origins = []
        for leaf in node.walk():
            source = leaf.expression
            if leaf.downstream or not isinstance(source, exp.Table) or source.name not in tables:
                continue
            # sqlglot names a leaf "table.column", with quotes if the query has them.
            column = leaf.name.rpartition(".")[2].strip('"')
            if column != "*":
                origins.append(Origin(tables[source.name], column, "TRANSFORMATION"))
        if origins:
            output_origins.columns[name] = list(dict.fromkeys(origins))
    return output_origins


def origins_of_window_job(job: WindowJob) -> ColumnOrigins:
    """Return the origins of the aggregates that a window job computes."""
    output_origins = ColumnOrigins()
    for aggregate in job.lineage:
        kind = format_duration(job.every)
        text = f"{aggregate}, every {kind}"
        group = aggregate.group, aggregate.version
        output_origins.columns[aggregate.name] = [
            Origin(group, aggregate.column, "AGGREGATION", text)
        ]
    return output_origins


def _row_origins(origins: Iterable[Origin], kind: str) -> list[Origin]:
    return [Origin(origin.group, origin.column, kind) for origin in origins]


def _source_group(source: Mapping[str, Any]) -> Group:
    return str(source["featuregroup"]), source["version"]
