"""Basket page: join keys, plan and Python code of selected features."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from featurestore.errors import FeatureStoreError
from featurestore.featuregroups import FeatureGroup
from featurestore.model.references import parse_reference
from featurestore.registry import features
from featurestore.retrieval import explain_features
from featurestore.server.context import Store
from featurestore.server.pages.rendering import page
from featurestore.store import FeatureStore

router = APIRouter(prefix="/basket")
_MAX_SUGGESTIONS = 50


@dataclass(frozen=True)
class JoinedGroup:
    """A group of the basket and its selected features."""

    group: FeatureGroup
    features: list[str]


@router.get("")
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
            candidates = list(islice(features.containing(connection, q.strip()), _MAX_SUGGESTIONS))
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
