"""Pages of registered models."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from featurestore.server.context import Settings, Store
from featurestore.server.pages.paging import PageNumber, load_page
from featurestore.server.pages.rendering import csv_file, page
from featurestore.server.records import models as records

router = APIRouter(prefix="/models")


@router.get("")
def list_page(
    request: Request,
    store: Store,
    settings: Settings,
    number: PageNumber = 1,
    format: str = "html",
) -> Response:
    """List all versions of all models."""
    current_page = load_page(
        lambda limit, offset: records.find(store, limit=limit, offset=offset),
        number=number,
        size=settings.page,
    )
    lines = [records.summarize(model) for model in current_page.items]
    if format == "csv":
        rows = [list(line.values()) for line in lines]
        return csv_file("models", list(records.COLUMNS), rows)
    return page(request, "models.html", title="Models", current_page=current_page, lines=lines)


@router.get("/{name}")
def latest(store: Store, name: str) -> RedirectResponse:
    """Redirect to the latest version."""
    model = records.get(store, name)
    return RedirectResponse(f"/models/{model.name}/{model.version}")


@router.get("/{name}/{version}")
def model_page(request: Request, store: Store, name: str, version: int) -> HTMLResponse:
    """Show the stage, training dataset, inputs and outputs of a model."""
    model = records.get(store, name, version)
    return page(
        request,
        "model.html",
        title=f"{name} v{version}",
        model=model,
        versions=records.versions(store, name),
    )
