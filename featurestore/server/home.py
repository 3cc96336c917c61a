"""Home page, object counts, Prometheus metrics, and the notice of objects that the registry lacks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from fastapi import Request
from fastapi.responses import HTMLResponse, PlainTextResponse

from featurestore import __version__
from featurestore.model.runtime import ForkSafeLock
from featurestore.registry import overview, unregistered
from featurestore.registry.overview import (
    DatasetLine,
    FailedValidation,
    GroupFilter,
    GroupLine,
    Incident,
)
from featurestore.registry.runs import Run
from featurestore.registry.stores import rebuild_command
from featurestore.server.access.visitors import Visitor
from featurestore.server.guard import Store
from featurestore.server.rendering import page
from featurestore.server.rest import REFUSALS, Record
from featurestore.server.routes import Router
from featurestore.server.vectors import prometheus_lines
from featurestore.session import Session
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
def describe(store: Store) -> Record:
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


# A restored backup of the registry is noticed after this time.
_SECONDS = 10.0
_GENERAL = (
    "The registry lacks objects of this store, so lists are incomplete; an admin can rebuild it."
)


class Notice(NamedTuple):
    """What the registry lacks, and the command that restores it, None if the visitor cannot."""

    text: str
    command: str | None


class LostObjects:
    """The objects in a location that its registry lacks."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = ForkSafeLock()
        self._next_check = 0.0
        self._text: str | None = None

    def notice(self, visitor: Visitor | None) -> Notice | None:
        """Return the notice for a visitor, None if the registry lacks nothing.

        Only visitors who see all objects read their names.
        """
        text = self._current_text()
        if text is None:
            return None
        if visitor is not None and not visitor.sees_all:
            return Notice(_GENERAL, None)
        return Notice(text, rebuild_command(self._session.location))

    def _current_text(self) -> str | None:
        with self._lock:
            if time.monotonic() >= self._next_check:
                self._text = unregistered.loss_of(self._session.registry)
                self._next_check = time.monotonic() + _SECONDS
            return self._text
