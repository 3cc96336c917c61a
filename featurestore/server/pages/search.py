"""Search as one types."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from featurestore.server.context import Store
from featurestore.server.pages.rendering import is_partial, page
from featurestore.server.records.search import count_kinds, search

router = APIRouter()
_MOST = 200


@router.get("/search")
def search_page(request: Request, store: Store, q: str = "", kind: str = "") -> HTMLResponse:
    """Show where a text was found."""
    found = search(store, q, limit=_MOST)
    kinds = count_kinds(found)
    if kind:
        found = [each for each in found if each.kind == kind]
    template = "search_results.html" if is_partial(request) else "search.html"
    return page(
        request,
        template,
        title=f"Search: {q}",
        q=q,
        kind=kind,
        kinds=kinds,
        found=found,
        most=_MOST,
    )
