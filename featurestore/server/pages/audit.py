"""Page of the audit log, for admins."""

from __future__ import annotations

import json

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from featurestore.registry import audit_log
from featurestore.registry.audit_log import Entry
from featurestore.server.access.roles import ADMIN
from featurestore.server.context import FullStore, Settings
from featurestore.server.guard import require_role
from featurestore.server.pages.paging import PageNumber, load_page
from featurestore.server.pages.rendering import csv_file, page

router = APIRouter(prefix="/audit", dependencies=[Depends(require_role(ADMIN))])
_COLUMNS = ["at", "who", "how", "action", "subject", "detail"]


@router.get("")
def audit_page(
    request: Request,
    store: FullStore,
    settings: Settings,
    who: str = "",
    q: str = "",
    number: PageNumber = 1,
    format: str = "html",
) -> Response:
    """Show the entries of the audit log, newest first."""

    def read(limit: int, offset: int) -> list[Entry]:
        with store.session.registry.reading() as connection:
            return audit_log.entries(
                connection, who=who.strip(), text=q.strip(), limit=limit, offset=offset
            )

    current_page = load_page(read, number=number, size=settings.page)
    if format == "csv":
        rows = [
            [
                entry.at,
                entry.who,
                entry.how,
                entry.action,
                entry.subject,
                json.dumps(entry.detail, ensure_ascii=False),
            ]
            for entry in current_page.items
        ]
        return csv_file("audit", _COLUMNS, rows)
    return page(request, "audit.html", title="Audit log", current_page=current_page, who=who, q=q)
