"""Which columns each column was made of, as the plan of a retrieval or the query of a job tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from featurestore.model.durations import format_duration
from featurestore.model.window_job import WindowJob
from featurestore.model.window_lineage import WindowLineage

Group = tuple[str, int | None]


@dataclass(frozen=True)
class Origin:
    """One column that another one was made of, and how; ``kind`` is OpenLineage's subtype."""

    group: Group
    column: str
    kind: str = "IDENTITY"
    text: str = ""


@dataclass
class Columns:
    """The origins of each column, and of the rows as a whole (what was joined on, filtered by)."""

    columns: dict[str, list[Origin]] = field(default_factory=dict)
    rows: list[Origin] = field(default_factory=list)


def of_plan(plan: Mapping[str, Any]) -> Columns:
    """Return the origins that the JSON of a plan tells of its columns."""
    found = Columns()
    left = _left_of(plan, found)
    for name in plan["columns"]:
        if name in left:
            found.columns[name] = left[name]
    for join in (*plan.get("windows", ()), *plan["joins"]):
        group = _group(join["source"])
        for output in join["outputs"]:
            found.columns[output["name"]] = [_origin(group, output)]
        for before, column in join["on"]:
            found.rows += [Origin(group, column, "JOIN"), *_as_rows(left.get(before, []), "JOIN")]
        if join["event_time"] is not None:
            found.rows.append(Origin(group, join["event_time"], "JOIN", "as of the label's time"))
    found.rows += _as_rows(left.get(plan["left_time"], []), "JOIN")
    found.rows = list(dict.fromkeys(found.rows))
    return found


def _left_of(plan: Mapping[str, Any], found: Columns) -> dict[str, list[Origin]]:
    """Return the origins of the left side's columns, by their names in the result."""
    if plan.get("left_plan") is not None:
        before = of_plan(plan["left_plan"])
        found.rows += before.rows
        own = before.columns
    elif plan.get("left_query") is not None:
        query = plan["left_query"]
        groups = {name: _group(source) for name, source in query["tables"].items()}
        own = of_query(query["sql"], groups, plan["left_columns"]).columns
    elif plan["left"] is not None:
        group = _group(plan["left"])
        own = {name: [Origin(group, name)] for name in plan["left_columns"]}
    else:
        return {}
    renamed = {each["name"]: each["column"] for each in plan.get("left_renames", ())}
    left = {}
    for name in (*plan["left_columns"], plan["left_time"]):
        origins = own.get(renamed.get(name, name), [])
        if plan["left"] is not None and name in renamed:
            origins = [Origin(_group(plan["left"]), renamed[name])]
        left[name] = origins
    return left


def _origin(group: Group, output: Mapping[str, Any]) -> Origin:
    if "function" not in output:
        return Origin(group, output["column"])
    told = WindowLineage(
        output["name"],
        *group,
        output["column"],
        output["function"],
        output["over_us"],
        output["offset_us"] or 0,
        output["where"],
    )
    return Origin(group, output["column"], "AGGREGATION", str(told))


def of_query(sql: str, tables: Mapping[str, Group], names: Iterable[str]) -> Columns:
    """Return the origins of the columns of a query over named tables; of those that can be told.

    >>> found = of_query("select a + b as c from t", {"t": ("g", 1)}, ["c"])
    >>> sorted(each.column for each in found.columns["c"])
    ['a', 'b']
    """
    from sqlglot import exp
    from sqlglot.errors import SqlglotError
    from sqlglot.lineage import lineage

    found = Columns()
    for name in names:
        try:
            node = lineage(name, sql, schema={}, dialect="duckdb")
        except (SqlglotError, ValueError):  # not every query can be followed
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
            found.columns[name] = list(dict.fromkeys(origins))
    return found


def of_windows(job: WindowJob) -> Columns:
    """Return the origins of the aggregates that a window job writes."""
    found = Columns()
    for each in job.lineage:
        kind = format_duration(job.every)
        text = f"{each}, every {kind}"
        group = each.group, each.version
        found.columns[each.name] = [Origin(group, each.column, "AGGREGATION", text)]
    return found


def _as_rows(origins: Iterable[Origin], kind: str) -> list[Origin]:
    return [Origin(each.group, each.column, kind) for each in origins]


def _group(source: Mapping[str, Any]) -> Group:
    return str(source["featuregroup"]), source["version"]
