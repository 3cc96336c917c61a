"""Lineage of commits and datasets: the job, run, sources and window aggregates of each."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.model import display
from featurestore.registry import origins, search_documents
from featurestore.registry.rows import is_version, translate_parse_errors
from featurestore.registry.tables import lineage, window_features

if TYPE_CHECKING:
    from featurestore.model.window_features import WindowLineage

_WINDOW_COLUMNS = window_features.c
_AGGREGATE = (
    _WINDOW_COLUMNS.feature,
    _WINDOW_COLUMNS.source,
    _WINDOW_COLUMNS.source_version,
    _WINDOW_COLUMNS.source_column,
    _WINDOW_COLUMNS.function,
    _WINDOW_COLUMNS.over_us,
    _WINDOW_COLUMNS.offset_us,
    _WINDOW_COLUMNS.condition,
)


@dataclass(frozen=True)
class LineageEdge:
    """One source of a commit or dataset.

    ``source`` is the name of a group, the path of a table or folder, or ``source:`` followed by the
    name of a registered source; ``detail`` then describes the data that was read.
    """

    kind: str
    name: str
    version: int
    delta_version: int | None
    job: str | None
    run_id: str | None
    source: str
    source_version: int | None
    source_delta_version: int | None
    detail: Mapping[str, Any] | None = None

    __repr__ = display.record_repr


def add(
    connection: Connection,
    object_kind: str,
    name: str,
    version: int,
    *,
    delta_version: int | None,
    inputs: Iterable[Mapping[str, Any]],
    job: str | None = None,
    run_id: str | None = None,
) -> None:
    """Record the inputs of a commit or dataset; replace those with the same Delta version.

    Each input is an object with ``source`` (or ``featuregroup``), and optionally ``version`` and
    ``delta_version``.
    """
    connection.execute(
        lineage.delete().where(
            is_version(lineage, object_kind, name, version),
            # Datasets have no Delta version, and "= NULL" is never true in SQL.
            lineage.c.delta_version.is_not_distinct_from(delta_version),
        )
    )
    inputs = list(inputs)
    origin_objects = origins.find_objects(connection, inputs)
    # Edges of lineage are removed with their output; origins remain.
    origins.record(connection, origins.Object(object_kind, name, version), origin_objects)
    if job is not None:
        origins.record(connection, origins.Object(origins.JOB, job), origin_objects)
    rows = [
        {
            "kind": object_kind,
            "name": name,
            "version": version,
            "delta_version": delta_version,
            "job": job,
            "run_id": run_id,
            "source": str(lineage_input.get("source") or lineage_input.get("featuregroup")),
            "source_version": lineage_input.get("version"),
            "source_delta_version": lineage_input.get("delta_version"),
            # Only inputs from registered sources have a snapshot, which describes the rows that
            # were read.
            "detail": json.dumps(dict(lineage_input), default=str)
            if "snapshot" in lineage_input
            else None,
        }
        for lineage_input in inputs
    ]
    if rows:
        connection.execute(lineage.insert(), rows)


def sources(connection: Connection, object_kind: str, name: str, version: int) -> list[LineageEdge]:
    """Return the inputs of a group or dataset, oldest commit first."""
    return _edges(connection, is_version(lineage, object_kind, name, version))


def results(connection: Connection, source: str, version: int | None = None) -> list[LineageEdge]:
    """Return the outputs created from a group, or from the table at a path."""
    condition = lineage.c.source == source
    if version is not None:
        condition = sa.and_(condition, lineage.c.source_version == version)
    return _edges(connection, condition)


def _edges(connection: Connection, condition: sa.ColumnElement[bool]) -> list[LineageEdge]:
    columns = [column for column in lineage.c if column.name != "id"]
    edges = []
    for row in connection.execute(sa.select(*columns).where(condition).order_by(lineage.c.id)):
        values = row._asdict()
        if values["detail"] is not None:
            with translate_parse_errors("the lineage of a source"):
                values["detail"] = dict(json.loads(values["detail"]))
        edges.append(LineageEdge(**values))
    return edges


def replace_windows(
    connection: Connection,
    object_kind: str,
    name: str,
    version: int,
    windows: Iterable[WindowLineage],
) -> None:
    """Replace the window aggregates of a version."""
    is_output = is_version(window_features, object_kind, name, version)
    connection.execute(window_features.delete().where(is_output))
    rows, texts = [], []
    for window in windows:
        texts.append(str(window))
        values = dict(
            # The columns have the order of the fields of WindowLineage.
            zip([column.name for column in _AGGREGATE], asdict(window).values(), strict=True)
        )
        rows.append({"kind": object_kind, "name": name, "version": version, **values})
    if rows:
        connection.execute(window_features.insert(), rows)
    search_documents.replace(
        connection, object_kind, name, version, {search_documents.WINDOW: texts}
    )


def latest_windows(
    connection: Connection, object_kind: str, *, names: Collection[str]
) -> list[tuple[str, int, WindowLineage]]:
    """Return (name, version, aggregate) for the latest aggregated version of each name."""
    from featurestore.model.window_features import WindowLineage

    newer = window_features.alias()
    newest = (
        sa.select(sa.func.max(newer.c.version))
        .where(newer.c.kind == _WINDOW_COLUMNS.kind, newer.c.name == _WINDOW_COLUMNS.name)
        .scalar_subquery()
    )
    query = (
        sa.select(_WINDOW_COLUMNS.name, _WINDOW_COLUMNS.version, *_AGGREGATE)
        .where(
            _WINDOW_COLUMNS.kind == object_kind,
            _WINDOW_COLUMNS.name.in_(names),
            _WINDOW_COLUMNS.version == newest,
        )
        .order_by(_WINDOW_COLUMNS.name, _WINDOW_COLUMNS.id)
    )
    windows = [
        (str(name), int(version), WindowLineage(*lineage))
        for name, version, *lineage in connection.execute(query)
    ]
    return windows
