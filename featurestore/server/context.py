"""Dependencies of all routes: the store and the settings."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from featurestore.server.access.visitors import visible_to
from featurestore.server.guard import CurrentVisitor
from featurestore.server.settings import ServerSettings
from featurestore.store import FeatureStore


def visible_store(request: Request, visitor: CurrentVisitor) -> FeatureStore:
    """Return the store, filtered by the permissions of the visitor."""
    full_store: FeatureStore = request.app.state.store
    if visitor is None or visitor.sees_all:
        return full_store
    return visible_to(visitor, full_store, request.app.state.views)


def server_settings(request: Request) -> ServerSettings:
    """Return the settings of the server."""
    settings: ServerSettings = request.app.state.settings
    return settings


def unfiltered_store(request: Request) -> FeatureStore:
    """Return the unfiltered store, for routes that check a role themselves."""
    store: FeatureStore = request.app.state.store
    return store


Store = Annotated[FeatureStore, Depends(visible_store)]
FullStore = Annotated[FeatureStore, Depends(unfiltered_store)]
Settings = Annotated[ServerSettings, Depends(server_settings)]


def parse_as_of(text: str) -> int | str | None:
    """Parse a Delta version or a time of a form field; None if it is empty.

    >>> moment("7"), moment("2013-01-01T06:00Z"), moment(" ")
    (7, '2013-01-01T06:00Z', None)
    """
    text = text.strip()
    if not text:
        return None
    # int() of a very long text is slow; 40 digits exceed every Delta version, so the store rejects it.
    return int(text[:40]) if text.isdecimal() else text
