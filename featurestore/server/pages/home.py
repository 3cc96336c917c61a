"""The first page."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from featurestore.server.context import Store
from featurestore.server.pages.rendering import page
from featurestore.server.records.home import home

router = APIRouter()


@router.get("/")
def first_page(request: Request, store: Store) -> HTMLResponse:
    """Show what is new and what fails."""
    return page(request, "home.html", title="Feature store", home=home(store))
