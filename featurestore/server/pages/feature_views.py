"""The list of feature views, and the page of one."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from featurestore.server.context import Store
from featurestore.server.pages.rendering import csv_of, page

router = APIRouter(prefix="/views")
_COLUMNS = ["name", "version", "description"]


@router.get("")
def list_page(request: Request, store: Store, format: str = "html") -> Response:
    """Show the feature views."""
    found = store.get_feature_views()
    if format == "csv":
        return csv_of("feature-views", _COLUMNS, found)
    return page(request, "views.html", title="Feature views", found=found)


@router.get("/{name}")
def latest(store: Store, name: str) -> RedirectResponse:
    """Lead to the latest version."""
    view = store.get_feature_view(name)
    return RedirectResponse(f"/views/{view.name}/{view.version}")


@router.get("/{name}/{version}")
def view_page(request: Request, store: Store, name: str, version: int) -> HTMLResponse:
    """Show what a view reads."""
    view = store.get_feature_view(name, version=version)
    return page(request, "view.html", title=f"{name} v{version}", view=view)
