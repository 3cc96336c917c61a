"""Monitor reports, and the out-of-bounds windows that users accepted."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Collection, Iterable
from typing import cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.model import times
from featurestore.model.monitor_report import Acceptance, MonitorReport, Subject
from featurestore.model.times import Window, from_micros, to_micros
from featurestore.registry.rows import put_row, translate_parse_errors
from featurestore.registry.tables import monitor_acceptances, monitor_results


def record_monitor_reports(
    connection: Connection, reports: Iterable[MonitorReport], *, run_id: str
) -> None:
    """Record monitor reports; replace earlier reports for the same windows."""
    for report in reports:
        key = {
            "monitor": report.monitor,
            "window_start": to_micros(report.window.start),
            "window_end": to_micros(report.window.end),
        }
        values = {
            "state": report.state,
            "rows": report.rows,
            "run_id": run_id,
            "report": json.dumps(report.to_json(), ensure_ascii=False),
            "created": to_micros(times.utc_now()),
        }
        put_row(connection, monitor_results, key, values)


def monitor_reports(
    connection: Connection, monitor: str, *, limit: int | None = None, offset: int = 0
) -> list[MonitorReport]:
    """Return the reports of a monitor, newest window first, optionally only one page."""
    query = (
        sa.select(monitor_results.c.report)
        .where(monitor_results.c.monitor == monitor)
        .order_by(monitor_results.c.window_end.desc(), monitor_results.c.window_start.desc())
        .limit(limit)
        .offset(offset)
    )
    reports = []
    for text in connection.execute(query).scalars():
        with translate_parse_errors(f"a report of monitor {monitor!r}"):
            reports.append(MonitorReport.from_json(json.loads(text)))
    return reports


def newest_monitor_report(connection: Connection, monitor: str) -> MonitorReport | None:
    """Return the report for the newest window, None if there is none."""
    reports = monitor_reports(connection, monitor, limit=1)
    return reports[0] if reports else None


def monitor_report_of_window(
    connection: Connection, monitor: str, window: Window
) -> MonitorReport | None:
    """Return the report for one window, None if it was not evaluated."""
    query = sa.select(monitor_results.c.report).where(_is_window(monitor, window))
    text = connection.execute(query).scalar()
    if text is None:
        return None
    with translate_parse_errors(f"a report of monitor {monitor!r}"):
        return MonitorReport.from_json(json.loads(text))


def monitor_reports_out_of_bounds(connection: Connection, monitor: str) -> list[MonitorReport]:
    """Return the out-of-bounds reports of a monitor."""
    columns = monitor_results.c
    query = sa.select(columns.report).where(
        columns.monitor == monitor, columns.state.in_(["alarm", "suspect"])
    )
    with translate_parse_errors(f"a report of monitor {monitor!r}"):
        return [
            MonitorReport.from_json(json.loads(text))
            for text in connection.execute(query.order_by(columns.window_end)).scalars()
        ]


def count_window_states(
    connection: Connection, monitor: str, run_ids: Collection[str]
) -> Counter[str]:
    """Return the number of windows by state that the given runs of a monitor recorded."""
    columns = monitor_results.c
    query = sa.select(columns.run_id, columns.state).where(columns.monitor == monitor)
    known_ids = set(run_ids)
    return Counter(state for run_id, state in connection.execute(query) if run_id in known_ids)


def add_acceptance(connection: Connection, acceptance: Acceptance) -> None:
    """Record that out-of-bounds windows were accepted."""
    start = None
    if acceptance.window is not None:
        start = to_micros(acceptance.window.start)
    connection.execute(
        monitor_acceptances.insert().values(
            id=uuid.uuid4().hex,
            monitor=acceptance.monitor,
            window_start=start,
            until=to_micros(acceptance.until),
            subjects=json.dumps(acceptance.to_json()["subjects"], ensure_ascii=False),
            note=acceptance.note,
            created=to_micros(times.utc_now()),
        )
    )


def acceptances(connection: Connection, monitor: str) -> list[Acceptance]:
    """Return the acceptances for a monitor, oldest first."""
    query = (
        sa.select(monitor_acceptances)
        .where(monitor_acceptances.c.monitor == monitor)
        .order_by(monitor_acceptances.c.created, monitor_acceptances.c.until)
    )
    accepted = []
    for row in connection.execute(query):
        until = from_micros(row.until)
        window = None
        if row.window_start is not None:
            window = Window(from_micros(row.window_start), until)
        with translate_parse_errors(f"an acceptance of monitor {monitor!r}"):
            subjects = {
                cast(Subject, (str(subject_kind), str(name))): (
                    None if start is None else times.parse_moment(start, warn=False)
                )
                for subject_kind, name, start in json.loads(row.subjects)
            }
        accepted.append(
            Acceptance(monitor, window, until, subjects, row.note, from_micros(row.created))
        )
    return accepted


def _is_window(monitor: str, window: Window) -> sa.ColumnElement[bool]:
    columns = monitor_results.c
    return sa.and_(
        columns.monitor == monitor,
        columns.window_start == to_micros(window.start),
        columns.window_end == to_micros(window.end),
    )
