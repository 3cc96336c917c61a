"""Validation reports: what was found in a version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.model.times import to_micros, utc_now
from featurestore.registry.rows import readable
from featurestore.registry.tables import validation_reports


def add_validation(connection: Connection, kind: str, report: Mapping[str, Any]) -> None:
    """Keep a validation report; ``report`` is its JSON object (schema ``validation_report``)."""
    connection.execute(
        validation_reports.insert().values(
            kind=kind,
            name=report["name"],
            version=report["version"],
            delta_version=report.get("delta_version"),
            run_id=report.get("run_id"),
            policy=report["policy"],
            success=bool(report["success"]),
            rows=report["rows"],
            report=json.dumps(report),
            created=to_micros(utc_now()),
        )
    )


def validations(
    connection: Connection, kind: str, name: str, version: int, *, limit: int | None = None
) -> list[dict[str, Any]]:
    """Return the reports of a version as JSON objects, oldest first; the newest ``limit`` of them."""
    columns = validation_reports.c
    query = (
        sa.select(columns.report)
        .where(columns.kind == kind, columns.name == name, columns.version == version)
        .order_by(columns.id.desc())
        .limit(limit)
    )
    with readable(f"validations of {name!r} version {version}"):
        newest_first = [json.loads(each) for each in connection.execute(query).scalars()]
    return newest_first[::-1]


def failed_of_run(connection: Connection, run_id: str) -> list[str]:
    """Return in words what the rows of a run failed, that landed all the same."""
    columns = validation_reports.c
    query = sa.select(columns.name, columns.policy, columns.rows).where(
        columns.run_id == run_id, columns.success.is_(False)
    )
    messages = [
        f"{rows:,} rows for {name} failed validation (policy {policy})"
        for name, policy, rows in connection.execute(query)
    ]
    return messages


def remove(connection: Connection, kind: str, name: str, version: int) -> None:
    """Forget the reports of a version."""
    columns = validation_reports.c
    same = sa.and_(columns.kind == kind, columns.name == name, columns.version == version)
    connection.execute(validation_reports.delete().where(same))
