"""Features: REST list, basket of selected features, feature views."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from featurestore.errors import FeatureStoreError
from featurestore.featuregroups import FeatureGroup
from featurestore.model.names import parse_reference
from featurestore.registry import featuregroups
from featurestore.retrieval import explain_features
from featurestore.server.guard import Store
from featurestore.server.rendering import csv_of, page
from featurestore.server.rest import REFUSALS, Items, Limit, Offset, items
from featurestore.store import FeatureStore

api = APIRouter(tags=["store"], responses=REFUSALS)
view_pages = APIRouter(prefix="/views")
_COLUMNS = ["name", "version", "description"]
basket_pages = APIRouter(prefix="/basket")
_MAX_SUGGESTIONS = 50


@api.get("/features")
def list_features(
    store: Store,
    q: Annotated[str, Query(max_length=200, description="Substring of the name.")] = "",
    limit: Limit = 100,
    offset: Offset = 0,
) -> Items:
    """List the columns of the latest version of each group."""

    def read(count: int, skipped: int) -> list[featuregroups.RegisteredFeature]:
        with store.session.registry.reading() as connection:
            if not q:
                return featuregroups.latest_features(connection, limit=skipped + count)[skipped:]
            return list(
                islice(featuregroups.features_containing(connection, q), skipped, skipped + count)
            )

    return items(
        read, lambda each: {**asdict(each), "reference": each.reference}, limit=limit, offset=offset
    )


@dataclass(frozen=True)
class JoinedGroup:
    """A group of the basket and its selected features."""

    group: FeatureGroup
    features: list[str]


@basket_pages.get("")
def basket_page(
    request: Request,
    store: Store,
    feature: Annotated[list[str] | None, Query()] = None,
    q: str = "",
) -> HTMLResponse:
    """Show join keys, plan and code for the selected features."""
    selected = list(dict.fromkeys(feature or []))
    plan, refusal = None, None
    joined: list[JoinedGroup] = []
    if selected:
        try:
            plan = explain_features(store.session, selected, include_keys=True)
            joined = _group_features(store, selected)
        except FeatureStoreError as error:
            refusal = error
    suggestions: list[str] = []
    if q.strip():
        with store.session.registry.reading() as connection:
            candidates = list(
                islice(featuregroups.features_containing(connection, q.strip()), _MAX_SUGGESTIONS)
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
        refusal=refusal,
        q=q,
        suggestions=suggestions,
    )


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
def list_page(request: Request, store: Store, format: str = "html") -> Response:
    """List the feature views."""
    views = store.get_feature_views()
    if format == "csv":
        return csv_of("feature-views", _COLUMNS, views)
    return page(request, "views.html", title="Feature views", views=views)


@view_pages.get("/{name}")
def latest(store: Store, name: str) -> RedirectResponse:
    """Redirect to the latest version."""
    view = store.get_feature_view(name)
    return RedirectResponse(f"/views/{view.name}/{view.version}")


@view_pages.get("/{name}/{version}")
def view_page(request: Request, store: Store, name: str, version: int) -> HTMLResponse:
    """Show the features, groups and labels of a view."""
    view = store.get_feature_view(name, version=version)
    return page(request, "view.html", title=f"{name} v{version}", view=view)
