"""Pages of feature views."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from featurestore.server.context import Store
from featurestore.server.pages.rendering import csv_of, page

router = APIRouter(prefix="/views")
_COLUMNS = ["name", "version", "description"]


@router.get("")
def list_page(request: Request, store: Store, format: str = "html") -> Response:
    """List the feature views."""
    views = store.get_feature_views()
    if format == "csv":
        return csv_of("feature-views", _COLUMNS, views)
    return page(request, "views.html", title="Feature views", views=views)


@router.get("/{name}")
def latest(store: Store, name: str) -> RedirectResponse:
    """Redirect to the latest version."""
    view = store.get_feature_view(name)
    return RedirectResponse(f"/views/{view.name}/{view.version}")


@router.get("/{name}/{version}")
def view_page(request: Request, store: Store, name: str, version: int) -> HTMLResponse:
    """Show the features, groups and labels of a view."""
    view = store.get_feature_view(name, version=version)
    return page(request, "view.html", title=f"{name} v{version}", view=view)
