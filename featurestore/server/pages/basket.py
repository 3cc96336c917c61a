"""Features put together: their join keys, the plan, and the code to paste."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from featurestore.errors import FeatureStoreError
from featurestore.registry import features
from featurestore.retrieval import explain_features
from featurestore.server.context import Store
from featurestore.server.pages.rendering import page

router = APIRouter(prefix="/basket")
_SUGGESTED = 50


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
    if chosen:
        try:
            plan = explain_features(store.session, chosen, include_keys=True)
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
        refused=refused,
        q=q,
        suggested=suggested,
    )
