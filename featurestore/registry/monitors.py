"""What monitors found, window by window."""

from __future__ import annotations

import json
from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.model import times
from featurestore.model.monitor_report import MonitorReport
from featurestore.model.times import to_micros
from featurestore.model.window import Window
from featurestore.registry.rows import readable
from featurestore.registry.tables import monitor_results


def record(connection: Connection, reports: Iterable[MonitorReport], *, run_id: str) -> None:
    """Record the reports of windows in place of those known of them."""
    for report in reports:
        connection.execute(monitor_results.delete().where(_same(report.monitor, report.window)))
        connection.execute(
            monitor_results.insert().values(
                monitor=report.monitor,
                window_start=to_micros(report.window.start),
                window_end=to_micros(report.window.end),
                state=report.state,
                rows=report.rows,
                run_id=run_id,
                report=json.dumps(report.to_json(), ensure_ascii=False),
                created=to_micros(times.utc_now()),
            )
        )


def history(
    connection: Connection, monitor: str, *, limit: int | None = None, offset: int = 0
) -> list[MonitorReport]:
    """Return what a monitor found, newest window first: all of it, or a page."""
    query = (
        sa.select(monitor_results.c.report)
        .where(monitor_results.c.monitor == monitor)
        .order_by(monitor_results.c.window_end.desc(), monitor_results.c.window_start.desc())
        .limit(limit)
        .offset(offset)
    )
    found = []
    for text in connection.execute(query).scalars():
        with readable(f"a report of monitor {monitor!r}"):
            found.append(MonitorReport.from_json(json.loads(text)))
    return found


def newest(connection: Connection, monitor: str) -> MonitorReport | None:
    """Return the report of the newest window, None before the first one."""
    found = history(connection, monitor, limit=1)
    return found[0] if found else None


def of_window(connection: Connection, monitor: str, window: Window) -> MonitorReport | None:
    """Return the report of one window, None where the monitor has not looked at it."""
    query = sa.select(monitor_results.c.report).where(_same(monitor, window))
    text = connection.execute(query).scalar()
    if text is None:
        return None
    with readable(f"a report of monitor {monitor!r}"):
        return MonitorReport.from_json(json.loads(text))


def _same(monitor: str, window: Window) -> sa.ColumnElement[bool]:
    columns = monitor_results.c
    return sa.and_(
        columns.monitor == monitor,
        columns.window_start == to_micros(window.start),
        columns.window_end == to_micros(window.end),
    )
