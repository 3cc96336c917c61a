"""Pages of monitors: list, and findings by window."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from featurestore.jobs.monitors import service
from featurestore.model.monitor_report import MonitorReport
from featurestore.model.times import parse_moment
from featurestore.server.access import roles
from featurestore.server.context import FullStore, Settings, Store
from featurestore.server.guard import CurrentVisitor, Form, actor_of
from featurestore.server.pages.paging import PageNumber, load_page
from featurestore.server.pages.rendering import csv_file, page

router = APIRouter(prefix="/monitors")


@router.get("")
def list_page(request: Request, store: Store, format: str = "html") -> Response:
    """List the monitors with their last findings."""
    monitors = store.get_monitors()
    if format == "csv":
        summaries = [each._summary() for each in monitors]
        columns = list(summaries[0]) if summaries else []
        return csv_file("monitors", columns, [list(each.values()) for each in summaries])
    return page(request, "monitors.html", title="Monitors", monitors=monitors)


@router.get("/{name}")
def monitor_page(
    request: Request,
    store: Store,
    settings: Settings,
    name: str,
    number: PageNumber = 1,
    format: str = "html",
) -> Response:
    """Show the findings of a monitor, newest window first."""
    current_page = load_page(
        lambda limit, offset: store.get_monitor_history(name, limit=limit, offset=offset),
        number=number,
        size=settings.page,
    )
    if format == "csv":
        return _findings_file(name, current_page.items)
    return page(
        request,
        "monitor.html",
        title=name,
        name=name,
        current_page=current_page,
        acceptances=service.get_acceptances(store.session, name)[::-1],
    )


@router.post("/{name}/accept")
def accept(
    name: str, store: Store, full_store: FullStore, visitor: CurrentVisitor, form: Form
) -> RedirectResponse:
    """Accept the out-of-bounds windows of a monitor up to a time."""
    service.get_monitor(store.session, name)
    if visitor is not None:
        visitor.check(roles.WRITER)
    until = parse_moment(form.get("until", ""), argument="until", warn=False)
    note = form.get("note", "").strip()
    service.accept(full_store.session, name, until=until, note=note, actor=actor_of(visitor))
    return RedirectResponse(f"/monitors/{name}", status_code=303)


def _findings_file(name: str, reports: list[MonitorReport]) -> Response:
    """Return a CSV file with a row for each finding."""
    columns = ["window_start", "window_end", "rows", "kind", "subject", "measure"]
    columns += ["value", "low", "high", "out", "alarm", "text"]
    rows: list[list[object]] = []
    for report in reports:
        for finding in report.findings:
            row = [
                report.window.start,
                report.window.end,
                report.rows,
                finding.kind,
                finding.subject,
            ]
            row += [
                finding.measure,
                finding.value,
                finding.low,
                finding.high,
                finding.out,
                finding.alarm,
                str(finding),
            ]
            rows.append(row)
    return csv_file(f"{name}-findings", columns, rows)
