"""Registered models: records and pages."""

from __future__ import annotations

from functools import partial

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from featurestore.experiments.models import Model, catalog
from featurestore.registry.artifacts import models as index
from featurestore.server.guard import Settings, Store
from featurestore.server.rendering import PageNumber, csv_file, load_page, page
from featurestore.server.rest import Record
from featurestore.server.routes import Router
from featurestore.store import FeatureStore

COLUMNS = ("name", "version", "stage", "flavor", "dataset", "run", "created", "description")
pages = Router(prefix="/models")


def find(store: FeatureStore, *, limit: int, offset: int = 0) -> list[Model]:
    """List model versions, ordered by name, newest version first."""
    with store.session.registry.reading() as connection:
        page = index.list_all(connection, newest_first=True, limit=limit, offset=offset)
    return [get(store, name, version) for name, version in page]


def get(store: FeatureStore, name: str, version: int | None = None) -> Model:
    """Return a model version, by default the latest; raise ModelNotFound if it does not exist."""
    return Model(store.session, catalog.get(store.session, name, version))


def versions(store: FeatureStore, name: str) -> list[int]:
    """Return the versions of a model, newest first."""
    with store.session.registry.reading() as connection:
        return index.versions(connection, name)[::-1]


def summarize(model: Model) -> Record:
    """Return a summary of a model."""
    record = model.to_json()
    return {name: record[name] for name in COLUMNS}


@pages.get("")
def list_page(
    request: Request, store: Store, settings: Settings, number: PageNumber = 1, format: str = "html"
) -> Response:
    """List all versions of all models."""
    current_page = load_page(partial(find, store), number=number, size=settings.page)
    lines = [summarize(model) for model in current_page.items]
    if format == "csv":
        rows = [list(line.values()) for line in lines]
        return csv_file("models", list(COLUMNS), rows)
    owners = [model.tags.get("owner", "") for model in current_page.items]
    return page(
        request,
        "models.html",
        title="Models",
        current_page=current_page,
        lines=lines,
        owners=owners,
    )


@pages.get("/{name}")
def latest(store: Store, name: str) -> RedirectResponse:
    """Redirect to the latest version."""
    model = get(store, name)
    return RedirectResponse(f"/models/{model.name}/{model.version}")


@pages.get("/{name}/{version}")
def model_page(request: Request, store: Store, name: str, version: int) -> HTMLResponse:
    """Display the stage, training dataset, inputs and outputs of a model."""
    model = get(store, name, version)
    return page(
        request,
        "model.html",
        title=f"{name} v{version}",
        model=model,
        versions=versions(store, name),
    )
