"""Lineage: which job and run made a commit, from which sources at which versions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.registry.rows import readable
from featurestore.registry.tables import lineage


@dataclass(frozen=True)
class LineageEdge:
    """One source of one result.

    ``source`` is a group's name, the path of a table or folder, or ``source:`` and the name of a
    registered source, of which ``detail`` tells what was read.
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


def add(
    connection: Connection,
    kind: str,
    name: str,
    version: int,
    *,
    delta_version: int | None,
    inputs: Iterable[Mapping[str, Any]],
    job: str | None = None,
    run_id: str | None = None,
) -> None:
    """Record the inputs of one commit or dataset.

    What is recorded for that Delta version already is replaced.

    ``inputs`` are objects with ``source`` (or ``featuregroup``), and optionally ``version`` and
    ``delta_version``.
    """
    same = sa.and_(lineage.c.kind == kind, lineage.c.name == name, lineage.c.version == version)
    connection.execute(
        lineage.delete().where(same, lineage.c.delta_version.is_not_distinct_from(delta_version))
    )
    rows = [
        {
            "kind": kind,
            "name": name,
            "version": version,
            "delta_version": delta_version,
            "job": job,
            "run_id": run_id,
            "source": str(each.get("source") or each.get("featuregroup")),
            "source_version": each.get("version"),
            "source_delta_version": each.get("delta_version"),
            "detail": _detail_of(each),
        }
        for each in inputs
    ]
    if rows:
        connection.execute(lineage.insert(), rows)


def sources(connection: Connection, kind: str, name: str, version: int) -> list[LineageEdge]:
    """Return what a group or dataset was made from, oldest commit first."""
    return _edges(
        connection,
        sa.and_(lineage.c.kind == kind, lineage.c.name == name, lineage.c.version == version),
    )


def results(connection: Connection, source: str, version: int | None = None) -> list[LineageEdge]:
    """Return what was made from a group (or path)."""
    condition = lineage.c.source == source
    if version is not None:
        condition = sa.and_(condition, lineage.c.source_version == version)
    return _edges(connection, condition)


def remove(connection: Connection, kind: str, name: str, version: int) -> None:
    """Forget how a version was made."""
    connection.execute(
        lineage.delete().where(
            lineage.c.kind == kind, lineage.c.name == name, lineage.c.version == version
        )
    )


def _edges(connection: Connection, condition: sa.ColumnElement[bool]) -> list[LineageEdge]:
    columns = [column for column in lineage.c if column.name != "id"]
    edges = []
    for row in connection.execute(sa.select(*columns).where(condition).order_by(lineage.c.id)):
        values = row._asdict()
        if values["detail"] is not None:
            with readable("what was read of a source"):
                values["detail"] = dict(json.loads(values["detail"]))
        edges.append(LineageEdge(**values))
    return edges


def _detail_of(input_record: Mapping[str, Any]) -> str | None:
    """Return what an input tells of a registered source; None for other inputs."""
    if "snapshot" not in input_record:
        return None
    return json.dumps(dict(input_record), default=str)
