"""Search as one types."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from featurestore.registry import overview
from featurestore.registry.search_filters import SearchFilter
from featurestore.server.context import Store
from featurestore.server.pages.paging import FRESH
from featurestore.server.pages.rendering import is_partial, page
from featurestore.server.records.search import KINDS, SearchResult, count_kinds, search

router = APIRouter()
_MOST = 200
_SUGGESTED = 8


@router.get("/search")
def search_page(
    request: Request,
    store: Store,
    q: str = "",
    kind: str = "",
    tag: str = "",
    owner: str = "",
    fresh: str = "",
) -> HTMLResponse:
    """Show where a text was found."""
    kind = kind if kind in KINDS else ""
    wanted = SearchFilter(tag=tag, owner=owner, changed_within=FRESH.get(fresh))
    found = search(store, q, kind=kind, wanted=wanted, limit=_MOST)
    is_part = is_partial(request)
    choices: dict[str, list[str]] = {}
    if not is_part:
        with store.session.registry.reading() as connection:
            choices["tag"] = overview.tag_values(connection)
            choices["owner"] = overview.owners(connection)
        choices["fresh"] = list(FRESH)
    return page(
        request,
        "search_results.html" if is_part else "search.html",
        title=f"Search: {q}",
        q=q,
        kind=kind,
        all_kinds=KINDS,
        kinds=count_kinds(found),
        chosen={"tag": tag, "owner": owner, "fresh": fresh},
        choices=choices,
        found=found,
        most=_MOST,
    )


@router.get("/suggestions")
def suggestions(request: Request, store: Store, q: str = "") -> HTMLResponse:
    """Show the first of what a search would find, for the field that every page has."""
    found: dict[str, SearchResult] = {}
    for each in search(store, q, limit=_SUGGESTED):
        found.setdefault(each.address, each)
    first = list(found.values())[:_SUGGESTED]
    return page(request, "suggestions.html", title="Suggestions", q=q, found=first)
