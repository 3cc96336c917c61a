"""Search: feature groups by all their texts, other objects by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Literal, get_args

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from sqlalchemy.engine import Connection

from featurestore.featuregroups import discovery
from featurestore.featuregroups.discovery import Match
from featurestore.model.times import parse_duration
from featurestore.registry import overview
from featurestore.registry.overview import SearchFilter
from featurestore.server.guard import Store
from featurestore.server.rendering import AGES, is_partial, page
from featurestore.server.rest import REFUSALS, Items, Limit, record
from featurestore.store import FeatureStore

# Kinds that are searched by name only: category in the registry and URL pattern.
_SEARCHED_BY_NAME = {
    "training dataset": (overview.DATASET, "/datasets/{}"),
    "feature view": (overview.VIEW, "/views/{}"),
    "job": (overview.JOB, "/jobs/{}"),
    "model": (overview.MODEL, "/models/{}"),
    "experiment": (overview.EXPERIMENT, "/experiments?name={}"),
}
Kind = Literal[
    "feature group",
    "feature",
    "training dataset",
    "feature view",
    "job",
    "model",
    "experiment",
]
KINDS: tuple[str, ...] = get_args(Kind)
api = APIRouter(tags=["store"], responses=REFUSALS)
pages = APIRouter()
_MAX_RESULTS = 200
_MAX_SUGGESTIONS = 8


@dataclass(frozen=True)
class SearchResult:
    """A match: the field and text that matched, and the URL of the page."""

    kind: str
    name: str
    where: str
    text: str
    address: str


def search(
    store: FeatureStore,
    text: str,
    *,
    kind: str = "",
    filters: SearchFilter | None = None,
    limit: int = 100,
) -> list[SearchResult]:
    """Return the matches of a text: at most ``limit`` of groups and of each other kind."""
    if not text.strip():
        return []
    filters = filters or SearchFilter()
    matches = discovery.search(store.session, text, limit=limit, kind=kind or None, filters=filters)
    results = [_result_of_match(match) for match in matches]
    with store.session.registry.reading() as connection:
        for each in _SEARCHED_BY_NAME:
            if kind in ("", each):
                results += _search_names(connection, each, text.strip(), filters, limit)
    return results


def count_kinds(results: Sequence[SearchResult]) -> dict[str, int]:
    """Count results by kind, in the order of KINDS."""
    counts = Counter(each.kind for each in results)
    return {kind: counts[kind] for kind in KINDS if counts[kind]}


def _result_of_match(match: Match) -> SearchResult:
    address, name = f"/groups/{match.group}/{match.version}", match.reference
    if match.kind == "feature":
        address = f"{address}#feature-{match.reference.partition('.')[2]}"
    elif match.kind == "training dataset":
        address, name = f"/datasets/{match.group}/{match.version}", match.group
    elif match.kind == "feature view":
        address, name = f"/views/{match.group}/{match.version}", match.group
    return SearchResult(match.kind, name, match.where, match.text, address)


def _search_names(
    connection: Connection, kind: str, text: str, filters: SearchFilter, limit: int
) -> list[SearchResult]:
    category, address = _SEARCHED_BY_NAME[kind]
    names = overview.names(connection, category, filters, text=text, limit=limit)
    return [SearchResult(kind, name, "name", name, address.format(name)) for name in names]


@api.get("/search")
def find(
    store: Store,
    q: Annotated[str, Query(min_length=1, max_length=200, description="Substring to find.")],
    kind: Annotated[Kind | Literal[""], Query(description="empty: any.")] = "",
    tag: Annotated[str, Query(max_length=500, description="key or key=value.")] = "",
    owner: Annotated[str, Query(max_length=500, description="Value of the tag owner.")] = "",
    changed_within: Annotated[
        str, Query(pattern="^([0-9]{1,4}(min|h|d))?$", description="Duration: 7d or 12h.")
    ] = "",
    limit: Limit = 100,
) -> Items:
    """Search names, features, descriptions and tags; at most ``limit`` matches of each kind."""
    age = parse_duration(changed_within, argument="changed_within") if changed_within else None
    search_filter = SearchFilter(tag=tag, owner=owner, changed_within=age)
    results = search(store, q, kind=kind, filters=search_filter, limit=limit)
    return Items(items=[record(asdict(each)) for each in results], next=None)


@api.get("/matches")
def list_matches(
    store: Store,
    q: Annotated[str, Query(min_length=1, max_length=200, description="Substring to find.")],
    limit: Limit = 1000,
) -> Items:
    """Return the matches of ``FeatureStore.search``, for remote clients."""
    matches = store.search(q, limit=limit) if q.strip() else []
    return Items(items=[record(asdict(match)) for match in matches], next=None)


@pages.get("/search")
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


@pages.get("/suggestions")
def suggestions(request: Request, store: Store, q: str = "") -> HTMLResponse:
    """Show the first results of a search below the search field."""
    by_address: dict[str, SearchResult] = {}
    for result in search(store, q, limit=_MAX_SUGGESTIONS):
        by_address.setdefault(result.address, result)
    first = list(by_address.values())[:_MAX_SUGGESTIONS]
    return page(request, "suggestions.html", title="Suggestions", q=q, results=first)
