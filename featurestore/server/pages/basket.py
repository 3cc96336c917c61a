"""Features put together: their join keys, the plan, and the code to paste."""

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
_SUGGESTED = 50


@dataclass(frozen=True)
class JoinedGroup:
    """A group of a basket: what labels are joined to it by, and what is taken of it."""

    group: FeatureGroup
    features: list[str]


@router.get("")
def basket_page(
    request: Request,
    store: Store,
    feature: Annotated[list[str] | None, Query()] = None,
    q: str = "",
) -> HTMLResponse:
    """Show what features need to be joined, and how to ask for them."""
    chosen = list(dict.fromkeys(feature or []))
    plan, refused = None, None
    joined: list[JoinedGroup] = []
    if chosen:
        try:
            plan = explain_features(store.session, chosen, include_keys=True)
            joined = _joined(store, chosen)
        except FeatureStoreError as error:
            refused = error
    suggested: list[str] = []
    if q.strip():
        with store.session.registry.reading() as connection:
            found = list(islice(features.containing(connection, q.strip()), _SUGGESTED))
        for each in found:
            if each.role == "feature" and each.reference not in chosen:
                suggested.append(each.reference)
    return page(
        request,
        "basket.html",
        title="Basket",
        chosen=chosen,
        plan=plan,
        joined=joined,
        refused=refused,
        q=q,
        suggested=suggested,
    )


def _joined(store: FeatureStore, chosen: list[str]) -> list[JoinedGroup]:
    """Return the groups of some features, in the order in which they come first."""
    found: dict[tuple[str, int | None], JoinedGroup] = {}
    for text in chosen:
        reference = parse_reference(text)
        if reference.group is None:
            continue  # the plan found the one group that has it
        key = reference.group, reference.version
        if key not in found:
            group = store.featuregroup(reference.group, version=reference.version)
            found[key] = JoinedGroup(group, [])
        found[key].features.append(reference.name)
    return list(found.values())
