"""The audit log, for admins."""

from __future__ import annotations

import json

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from featurestore.registry import audit_log
from featurestore.registry.audit_log import Entry
from featurestore.server.access.roles import ADMIN
from featurestore.server.context import Settings, Whole
from featurestore.server.guard import needs
from featurestore.server.pages.paging import PageNumber, one_page
from featurestore.server.pages.rendering import csv_file, page

router = APIRouter(prefix="/audit", dependencies=[Depends(needs(ADMIN))])
_COLUMNS = ["at", "who", "how", "action", "subject", "detail"]


@router.get("")
def audit_page(
    request: Request,
    store: Whole,
    settings: Settings,
    who: str = "",
    q: str = "",
    number: PageNumber = 1,
    format: str = "html",
) -> Response:
    """Show who changed what, the newest first."""

    def read(limit: int, offset: int) -> list[Entry]:
        with store.session.registry.reading() as connection:
            return audit_log.entries(
                connection, who=who.strip(), text=q.strip(), limit=limit, offset=offset
            )

    found = one_page(read, number=number, size=settings.page)
    if format == "csv":
        rows = []
        for entry in found.items:
            told = json.dumps(entry.detail, ensure_ascii=False)
            rows.append([entry.at, entry.who, entry.how, entry.action, entry.subject, told])
        return csv_file("audit", _COLUMNS, rows)
    return page(request, "audit.html", title="Audit log", found=found, who=who, q=q)
