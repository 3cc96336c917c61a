"""Home page."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from featurestore.server.context import Store
from featurestore.server.pages.rendering import page
from featurestore.server.records.home import home

router = APIRouter()
# Page of each count.
_COUNT_PAGES = {
    "feature groups": "/groups",
    "features": "/groups",
    "training datasets": "/datasets",
    "feature views": "/views",
    "jobs": "/jobs",
    "experiments": "/experiments",
    "models": "/models",
}


@router.get("/")
def first_page(request: Request, store: Store) -> HTMLResponse:
    """Show counts, newest objects and failures."""
    return page(request, "home.html", title="Feature store", home=home(store), pages=_COUNT_PAGES)
