"""The list of monitors, and the page of one: what it found, window by window."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from featurestore.jobs.monitors import service
from featurestore.model.monitor_report import MonitorReport
from featurestore.model.times import parse_moment
from featurestore.server.access import roles
from featurestore.server.context import Settings, Store, Whole
from featurestore.server.guard import Asking, Form, actor_of
from featurestore.server.pages.paging import PageNumber, one_page
from featurestore.server.pages.rendering import csv_file, page

router = APIRouter(prefix="/monitors")


@router.get("")
def list_page(request: Request, store: Store, format: str = "html") -> Response:
    """Show the monitors and what they found last."""
    found = store.get_monitors()
    if format == "csv":
        told = [each._summary() for each in found]
        columns = list(told[0]) if told else []
        return csv_file("monitors", columns, [list(each.values()) for each in told])
    return page(request, "monitors.html", title="Monitors", monitors=found)


@router.get("/{name}")
def monitor_page(
    request: Request,
    store: Store,
    settings: Settings,
    name: str,
    number: PageNumber = 1,
    format: str = "html",
) -> Response:
    """Show what a monitor found, the newest window first."""
    found = one_page(
        lambda limit, offset: store.get_monitor_history(name, limit=limit, offset=offset),
        number=number,
        size=settings.page,
    )
    if format == "csv":
        return _findings_file(name, found.items)
    return page(
        request,
        "monitor.html",
        title=name,
        name=name,
        found=found,
        acceptances=service.get_acceptances(store.session, name)[::-1],
    )


@router.post("/{name}/accept")
def accept(name: str, store: Store, whole: Whole, visitor: Asking, form: Form) -> RedirectResponse:
    """Accept the windows out of bounds of a monitor, up to one that the page shows."""
    service.get_monitor(store.session, name)
    if visitor is not None:
        visitor.check(roles.WRITER)
    until = parse_moment(form.get("until", ""), argument="until", warn=False)
    note = form.get("note", "").strip()
    service.accept(whole.session, name, until=until, note=note, actor=actor_of(visitor))
    return RedirectResponse(f"/monitors/{name}", status_code=303)


def _findings_file(name: str, reports: list[MonitorReport]) -> Response:
    """Return every finding of some windows as a row."""
    columns = ["window_start", "window_end", "rows", "kind", "subject", "measure"]
    columns += ["value", "low", "high", "out", "alarm", "text"]
    rows: list[list[object]] = []
    for report in reports:
        for each in report.findings:
            row = [report.window.start, report.window.end, report.rows, each.kind, each.subject]
            row += [each.measure, each.value, each.low, each.high, each.out, each.alarm, str(each)]
            rows.append(row)
    return csv_file(f"{name}-findings", columns, rows)
