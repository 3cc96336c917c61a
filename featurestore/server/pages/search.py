"""Search page, and suggestions for the search field."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from featurestore.registry import overview
from featurestore.registry.search_filters import SearchFilter
from featurestore.server.context import Store
from featurestore.server.pages.paging import AGES
from featurestore.server.pages.rendering import is_partial, page
from featurestore.server.records.search import KINDS, SearchResult, count_kinds, search

router = APIRouter()
_MAX_RESULTS = 200
_MAX_SUGGESTIONS = 8


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
    """Show the results of a search."""
    kind = kind if kind in KINDS else ""
    search_filter = SearchFilter(tag=tag, owner=owner, changed_within=AGES.get(fresh))
    results = search(store, q, kind=kind, filters=search_filter, limit=_MAX_RESULTS)
    is_partial_page = is_partial(request)
    choices: dict[str, list[str]] = {}
    if not is_partial_page:
        with store.session.registry.reading() as connection:
            choices["tag"] = overview.tag_values(connection)
            choices["owner"] = overview.owners(connection)
        choices["fresh"] = list(AGES)
    return page(
        request,
        "search_results.html" if is_partial_page else "search.html",
        title=f"Search: {q}",
        q=q,
        kind=kind,
        all_kinds=KINDS,
        kinds=count_kinds(results),
        filters={"tag": tag, "owner": owner, "fresh": fresh},
        choices=choices,
        results=results,
        most=_MAX_RESULTS,
    )


@router.get("/suggestions")
def suggestions(request: Request, store: Store, q: str = "") -> HTMLResponse:
    """Show the first results of a search below the search field."""
    by_address: dict[str, SearchResult] = {}
    for result in search(store, q, limit=_MAX_SUGGESTIONS):
        by_address.setdefault(result.address, result)
    first = list(by_address.values())[:_MAX_SUGGESTIONS]
    return page(request, "suggestions.html", title="Suggestions", q=q, results=first)
