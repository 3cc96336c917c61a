"""What every page and call of the REST interface is given: the store and the settings."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from featurestore.server.access.visitors import visible_to
from featurestore.server.guard import Asking
from featurestore.server.settings import ServerSettings
from featurestore.store import FeatureStore


def store_of(request: Request, visitor: Asking) -> FeatureStore:
    """Return the store that a request is about, as whoever asks may see it."""
    whole: FeatureStore = request.app.state.store
    if visitor is None or visitor.sees_all:
        return whole
    return visible_to(visitor, whole, request.app.state.views)


def settings_of(request: Request) -> ServerSettings:
    """Return what the server was started with."""
    found: ServerSettings = request.app.state.settings
    return found


def whole_store_of(request: Request) -> FeatureStore:
    """Return the store with nothing hidden, for what a role was checked for."""
    found: FeatureStore = request.app.state.store
    return found


Store = Annotated[FeatureStore, Depends(store_of)]
Whole = Annotated[FeatureStore, Depends(whole_store_of)]
Settings = Annotated[ServerSettings, Depends(settings_of)]


def moment(text: str) -> int | str | None:
    """Return the Delta version or the time that a field holds; None where it is empty.

    >>> moment("7"), moment("2013-01-01T06:00Z"), moment(" ")
    (7, '2013-01-01T06:00Z', None)
    """
    text = text.strip()
    if not text:
        return None
    # As many digits as show that it is no Delta version, which the store refuses.
    return int(text[:40]) if text.isdecimal() else text
