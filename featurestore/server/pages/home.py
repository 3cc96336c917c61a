"""The first page."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from featurestore.server.context import Store
from featurestore.server.pages.rendering import page
from featurestore.server.records.home import home

router = APIRouter()
# The pages of what is counted.
_PLACES = {
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
    """Show what is new and what fails."""
    return page(request, "home.html", title="Feature store", home=home(store), places=_PLACES)
