"""Home page, object counts and Prometheus metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, PlainTextResponse

from featurestore import __version__
from featurestore.registry import overview
from featurestore.registry.overview import (
    DatasetLine,
    FailedValidation,
    GroupFilter,
    GroupLine,
    Incident,
)
from featurestore.registry.runs import Run
from featurestore.server.guard import Store
from featurestore.server.rendering import page
from featurestore.server.rest import REFUSALS
from featurestore.server.routes import Router
from featurestore.server.vectors import prometheus_lines
from featurestore.store import FeatureStore

metrics_router = Router()
_NEWEST = 8
api = Router(tags=["store"], responses=REFUSALS)
pages = Router()
# The page for each count.
_COUNT_PAGES = {
    "feature groups": "/groups",
    "features": "/groups",
    "training datasets": "/datasets",
    "feature views": "/views",
    "jobs": "/jobs",
    "experiments": "/experiments",
    "models": "/models",
}


@dataclass(frozen=True)
class Home:
    """The content of the home page."""

    counts: dict[str, int]
    groups: list[GroupLine]
    datasets: list[DatasetLine]
    failing_jobs: list[Run]
    failed_validations: list[FailedValidation]
    incidents: list[Incident]

    @property
    def empty(self) -> bool:
        """Whether the store is empty."""
        return not any(self.counts.values())


def home(store: FeatureStore) -> Home:
    """Return the content of the home page from the registry, without opening tables."""
    with store.session.registry.reading() as connection:
        return Home(
            counts=overview.count_objects(connection),
            groups=overview.groups(connection, GroupFilter(newest_first=True), limit=_NEWEST),
            datasets=overview.datasets(connection, newest_first=True, limit=_NEWEST, offset=0),
            failing_jobs=overview.failing_jobs(connection),
            failed_validations=overview.failed_validations(connection),
            incidents=overview.open_incidents(connection),
        )


@api.get("/store")
def describe(store: Store) -> dict[str, Any]:
    """Return the release, the engine and the number of objects by kind."""
    return {"release": __version__, "engine": store.engine, "counts": home(store).counts}


@pages.get("/")
def first_page(request: Request, store: Store) -> HTMLResponse:
    """Display counts, newest objects and failures."""
    return page(request, "home.html", title="Feature store", home=home(store), pages=_COUNT_PAGES)


@metrics_router.get("/metrics")
def metrics(request: Request, store: Store) -> PlainTextResponse:
    """Return the metrics in the Prometheus text format."""
    lines = [store.get_metrics().rstrip("\n"), *prometheus_lines(request, store), ""]
    return PlainTextResponse(
        "\n".join(lines), media_type="text/plain; version=0.0.4; charset=utf-8"
    )
