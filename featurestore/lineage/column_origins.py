"""Origins of columns, from the plan of a retrieval or the query of a job."""

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
    """A source column of another column; ``kind`` is the subtype of OpenLineage."""

    group: Group
    column: str
    kind: str = "IDENTITY"
    text: str = ""


@dataclass
class ColumnOrigins:
    """The origins of each column, and of the rows (columns of joins and filters)."""

    columns: dict[str, list[Origin]] = field(default_factory=dict)
    rows: list[Origin] = field(default_factory=list)


def origins_of_plan(plan: Mapping[str, Any]) -> ColumnOrigins:
    """Return the origins of the columns of a plan in JSON."""
    output_origins = ColumnOrigins()
    left_columns = _left_origins(plan, output_origins)
    for name in plan["columns"]:
        if name in left_columns:
            output_origins.columns[name] = left_columns[name]
    for join in (*plan.get("windows", ()), *plan["joins"]):
        group = _group(join["source"])
        for output in join["outputs"]:
            output_origins.columns[output["name"]] = [_origin(group, output)]
        for left_name, column in join["on"]:
            output_origins.rows += [
                Origin(group, column, "JOIN"),
                *_as_rows(left_columns.get(left_name, []), "JOIN"),
            ]
        if join["event_time"] is not None:
            output_origins.rows.append(
                Origin(group, join["event_time"], "JOIN", "as of the label's time")
            )
    output_origins.rows += _as_rows(left_columns.get(plan["left_time"], []), "JOIN")
    output_origins.rows = list(dict.fromkeys(output_origins.rows))
    return output_origins


def _left_origins(
    plan: Mapping[str, Any], output_origins: ColumnOrigins
) -> dict[str, list[Origin]]:
    """Return the origins of the left side's columns, by output name."""
    if plan.get("left_plan") is not None:
        input_origins = origins_of_plan(plan["left_plan"])
        output_origins.rows += input_origins.rows
        left_origins = input_origins.columns
    elif plan.get("left_query") is not None:
        query = plan["left_query"]
        groups = {name: _group(source) for name, source in query["tables"].items()}
        left_origins = origins_of_query(query["sql"], groups, plan["left_columns"]).columns
    elif plan["left"] is not None:
        group = _group(plan["left"])
        left_origins = {name: [Origin(group, name)] for name in plan["left_columns"]}
    else:
        return {}
    renamed = {each["name"]: each["column"] for each in plan.get("left_renames", ())}
    left_columns = {}
    for name in (*plan["left_columns"], plan["left_time"]):
        origins = left_origins.get(renamed.get(name, name), [])
        if plan["left"] is not None and name in renamed:
            origins = [Origin(_group(plan["left"]), renamed[name])]
        left_columns[name] = origins
    return left_columns


def _origin(group: Group, output: Mapping[str, Any]) -> Origin:
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
    """Return the origins of the columns of a query, except for untraceable ones.

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
            column = leaf.name.rpartition(".")[2].strip('"')
            if column != "*":
                origins.append(Origin(tables[source.name], column, "TRANSFORMATION"))
        if origins:
            output_origins.columns[name] = list(dict.fromkeys(origins))
    return output_origins


def origins_of_window_job(job: WindowJob) -> ColumnOrigins:
    """Return the origins of the aggregates of a window job."""
    output_origins = ColumnOrigins()
    for each in job.lineage:
        kind = format_duration(job.every)
        text = f"{each}, every {kind}"
        group = each.group, each.version
        output_origins.columns[each.name] = [Origin(group, each.column, "AGGREGATION", text)]
    return output_origins


def _as_rows(origins: Iterable[Origin], kind: str) -> list[Origin]:
    return [Origin(each.group, each.column, kind) for each in origins]


def _group(source: Mapping[str, Any]) -> Group:
    return str(source["featuregroup"]), source["version"]
