"""Search of the store, the basket of selected features, and feature views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Annotated, Literal, get_args

from fastapi import Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy.engine import Connection

from featurestore.errors import FeatureStoreError, NoJoinKey, find_similar_names
from featurestore.featuregroups import FeatureGroup, discovery
from featurestore.featuregroups.discovery import Match
from featurestore.model.names import parse_reference
from featurestore.model.plan import FeaturePlan
from featurestore.model.requests import RetrievalRequest
from featurestore.model.times import parse_duration
from featurestore.registry import featuregroups, overview
from featurestore.registry.artifacts import feature_views
from featurestore.registry.overview import SearchFilter
from featurestore.retrieval import explain_features
from featurestore.server.access import visitors
from featurestore.server.guard import CurrentVisitor, Form, FullStore, Settings, Store, log_change
from featurestore.server.rendering import (
    AGES,
    PageNumber,
    is_partial,
    load_page,
    objects_to_csv,
    page,
)
from featurestore.server.rest import REFUSALS, Items, Limit, Offset, items, record
from featurestore.server.routes import Router
from featurestore.server.snippets import LabelRow, label_row
from featurestore.store import FeatureStore

view_pages = Router(prefix="/views")
_COLUMNS = ["name", "version", "description"]
basket_pages = Router(prefix="/basket")
_MAX_SUGGESTED_FEATURES = 50
# Kinds that are searched only by name: category in the registry and URL pattern.
_SEARCHED_BY_NAME = {
    "training dataset": (overview.DATASET, "/datasets/{}"),
    "feature view": (overview.VIEW, "/views/{}"),
    "job": (overview.JOB, "/jobs/{}"),
    "model": (overview.MODEL, "/models/{}"),
    "experiment": (overview.EXPERIMENT, "/experiments?name={}"),
}
Kind = Literal[
    "feature group", "feature", "training dataset", "feature view", "job", "model", "experiment"
]
KINDS: tuple[str, ...] = get_args(Kind)
api = Router(tags=["store"], responses=REFUSALS)
pages = Router()
_MAX_RESULTS = 200
_MAX_SUGGESTIONS = 8
# Names are compared with each other character by character, which takes longer than their query.
_MAX_CANDIDATES = 200


@dataclass(frozen=True)
class SearchResult:
    """A match: the field and the string that matched, and the URL of its page."""

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
    """Search for a string; return at most ``limit`` matches of groups and of each other kind."""
    if not text.strip():
        return []
    filters = filters or SearchFilter()
    matches = discovery.search(
        store.session, text, limit=limit, match_kind=kind or None, filters=filters
    )
    results = [_result_of_match(match) for match in matches]
    with store.session.registry.reading() as connection:
        for kind_name in _SEARCHED_BY_NAME:
            if kind in ("", kind_name):
                results += _search_names(connection, kind_name, text.strip(), filters, limit)
    return results


def similar_searches(store: FeatureStore, text: str) -> list[str]:
    """Return names of visible objects and features that are similar to a mistyped text."""
    with store.session.registry.reading() as connection:
        groups = featuregroups.latest_names(connection, containing="", limit=_MAX_CANDIDATES)
        names = [name for name, _ in groups]
        features = featuregroups.latest_features(connection, limit=_MAX_CANDIDATES)
        names += [feature.name for feature in features]
        for category, _ in _SEARCHED_BY_NAME.values():
            names += overview.names(
                connection, category, SearchFilter(), text="", limit=_MAX_CANDIDATES
            )
    return find_similar_names(text.strip(), names)


def count_kinds(results: Sequence[SearchResult]) -> dict[str, int]:
    """Count results by kind, in the order of KINDS."""
    counts = Counter(result.kind for result in results)
    return {result_type: counts[result_type] for result_type in KINDS if counts[result_type]}


def _result_of_match(match: Match) -> SearchResult:
    """Convert a match to a result with the URL of its page."""
    address, name = f"/groups/{match.group}/{match.version}", match.reference
    if match.kind == "feature":
        address = f"{address}#feature-{match.reference.partition('.')[2]}"
    elif match.kind == "training dataset":
        address, name = f"/datasets/{match.group}/{match.version}", match.group
    elif match.kind == "feature view":
        address, name = f"/views/{match.group}/{match.version}", match.group
    return SearchResult(match.kind, name, match.where, match.text, address)


def _search_names(
    connection: Connection, result_type: str, text: str, filters: SearchFilter, limit: int
) -> list[SearchResult]:
    category, address = _SEARCHED_BY_NAME[result_type]
    names = overview.names(connection, category, filters, text=text, limit=limit)
    return [SearchResult(result_type, name, "name", name, address.format(name)) for name in names]


@api.get("/search")
def find(
    store: Store,
    q: Annotated[str, Query(min_length=1, max_length=200, description="Substring to find.")],
    kind: Annotated[Kind | Literal[""], Query(description="empty: any kind.")] = "",
    tag: Annotated[str, Query(max_length=500, description="key or key=value.")] = "",
    owner: Annotated[str, Query(max_length=500, description="Value of the tag owner.")] = "",
    changed_within: Annotated[
        str, Query(pattern="^([0-9]{1,4}(min|h|d))?$", description="Duration: 7d or 12h.")
    ] = "",
    limit: Limit = 100,
) -> Items:
    """Search names, features, descriptions and tags; return ``limit`` matches of each kind."""
    age = parse_duration(changed_within, argument="changed_within") if changed_within else None
    search_filter = SearchFilter(tag=tag, owner=owner, changed_within=age)
    results = search(store, q, kind=kind, filters=search_filter, limit=limit)
    return Items(items=[record(asdict(result)) for result in results], next=None)


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
    """Display search results."""
    kind = kind if kind in KINDS else ""
    search_filter = SearchFilter(tag=tag, owner=owner, changed_within=AGES.get(fresh))
    results = search(store, q, kind=kind, filters=search_filter, limit=_MAX_RESULTS)
    is_partial_page = is_partial(request)
    choices: dict[str, list[str]] = {}
    # A partial page replaces only the results, not the form with the filters.
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
        similar=[] if results or not q.strip() else similar_searches(store, q),
        most=_MAX_RESULTS,
    )


@pages.get("/suggestions")
def suggestions(request: Request, store: Store, q: str = "") -> HTMLResponse:
    """Display the first search results below the search field."""
    # Several fields of one object may match; the object is displayed once.
    by_address: dict[str, SearchResult] = {}
    for result in search(store, q, limit=_MAX_SUGGESTIONS):
        by_address.setdefault(result.address, result)
    first = list(by_address.values())[:_MAX_SUGGESTIONS]
    similar = [] if first or not q.strip() else similar_searches(store, q)
    return page(
        request, "suggestions.html", title="Suggestions", q=q, results=first, similar=similar
    )


@api.get("/features")
def list_features(
    store: Store,
    q: Annotated[str, Query(max_length=200, description="Substring of the name.")] = "",
    limit: Limit = 100,
    offset: Offset = 0,
) -> Items:
    """List the columns of the latest version of each group."""

    def read(*, limit: int, offset: int) -> list[featuregroups.RegisteredFeature]:
        with store.session.registry.reading() as connection:
            if not q:
                return featuregroups.latest_features(connection, limit=offset + limit)[offset:]
            return list(
                islice(featuregroups.search_features(connection, q), offset, offset + limit)
            )

    return items(
        read,
        lambda feature: {**asdict(feature), "reference": feature.reference},
        limit=limit,
        offset=offset,
    )


@dataclass(frozen=True)
class JoinedGroup:
    """A group in the basket with its selected features."""

    group: FeatureGroup
    features: list[str]


@basket_pages.get("")
def basket_page(
    request: Request,
    store: Store,
    feature: Annotated[list[str] | None, Query()] = None,
    q: str = "",
) -> HTMLResponse:
    """Display join keys, plan and code for the selected features."""
    selected = list(dict.fromkeys(feature or []))
    plan, refusal = None, None
    joined: list[JoinedGroup] = []
    row = LabelRow()
    if selected:
        try:
            joined = _group_features(store, selected)
            plan, row = _plan_selected(store, selected, joined)
        except FeatureStoreError as error:
            refusal = error
    suggestions: list[str] = []
    if q.strip():
        with store.session.registry.reading() as connection:
            candidates = list(
                islice(
                    featuregroups.search_features(connection, q.strip()), _MAX_SUGGESTED_FEATURES
                )
            )
        suggestions = [
            candidate.reference
            for candidate in candidates
            if candidate.role == "feature" and candidate.reference not in selected
        ]
    return page(
        request,
        "basket.html",
        title="Basket",
        selected=selected,
        plan=plan,
        joined=joined,
        row=row,
        refusal=refusal,
        q=q,
        suggestions=suggestions,
    )


@basket_pages.post("/view")
def create_view(
    store: Store, full_store: FullStore, visitor: CurrentVisitor, form: Form
) -> RedirectResponse:
    """Create a feature view, or its next version, from the selected features."""
    if visitor is not None:
        visitor.check(visitors.WRITER)
    name, labels = form.get("name", "").strip(), form.get("labels", "").strip() or None
    references = form.get("features", "").splitlines()
    # A hidden group raises the same error as a missing one.
    request = RetrievalRequest(features=references, labels=labels, include_keys=True)
    explain_features(store.session, request)
    with full_store.session.registry.reading() as connection:
        exists = bool(feature_views.versions(connection, name))
    if exists:
        # So does a hidden view: creating its next version would reveal that it exists.
        store.get_feature_view(name)
    view = full_store.create_feature_view(
        name, features=references, labels=labels, description=form.get("description", "")
    )
    log_change(full_store, visitor, "create view", f"{view.name}@v{view.version}", {})
    return RedirectResponse(f"/views/{view.name}/{view.version}", status_code=303)


def _plan_selected(
    store: FeatureStore, selected: list[str], joined: list[JoinedGroup]
) -> tuple[FeaturePlan, LabelRow]:
    """Return the plan for the selected features, and a label row for its groups."""
    try:
        request = RetrievalRequest(features=selected, include_keys=True)
        plan = explain_features(store.session, request)
    except NoJoinKey:
        # The groups have different keys, so only labels can join them.
        row = label_row([reference.group for reference in joined])
        request = RetrievalRequest(features=selected, labels=[row.values])
        return explain_features(store.session, request), row
    groups = [
        store.featuregroup(source.spec.name, version=source.spec.version) for source in plan.sources
    ]
    return plan, label_row(groups)


def _group_features(store: FeatureStore, references: list[str]) -> list[JoinedGroup]:
    """Group features by their feature group, in order of first use."""
    groups: dict[tuple[str, int | None], JoinedGroup] = {}
    for text in references:
        reference = parse_reference(text)
        if reference.group is None:
            continue  # the plan resolves features without a group
        key = reference.group, reference.version
        if key not in groups:
            group = store.featuregroup(reference.group, version=reference.version)
            groups[key] = JoinedGroup(group, [])
        groups[key].features.append(reference.name)
    return list(groups.values())


@view_pages.get("")
def list_page(
    request: Request, store: Store, settings: Settings, number: PageNumber = 1, format: str = "html"
) -> Response:
    """List the feature views."""
    current_page = load_page(store.get_feature_views, number=number, size=settings.page)
    if format == "csv":
        return objects_to_csv("feature-views", _COLUMNS, current_page.items)
    return page(request, "views.html", title="Feature views", current_page=current_page)


@view_pages.get("/{name}")
def latest(store: Store, name: str) -> RedirectResponse:
    """Redirect to the latest version."""
    view = store.get_feature_view(name)
    return RedirectResponse(f"/views/{view.name}/{view.version}")


@view_pages.get("/{name}/{version}")
def view_page(request: Request, store: Store, name: str, version: int) -> HTMLResponse:
    """Display the features, groups and labels of a view."""
    view = store.get_feature_view(name, version=version)
    return page(request, "view.html", title=f"{name} v{version}", view=view)
