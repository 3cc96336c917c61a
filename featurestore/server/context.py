"""What every page and call of the REST interface is given: the store and the settings."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from featurestore.server.settings import ServerSettings
from featurestore.store import FeatureStore


def store_of(request: Request) -> FeatureStore:
    """Return the store that a request is about."""
    found: FeatureStore = request.app.state.store
    return found


def settings_of(request: Request) -> ServerSettings:
    """Return what the server was started with."""
    found: ServerSettings = request.app.state.settings
    return found


Store = Annotated[FeatureStore, Depends(store_of)]
Settings = Annotated[ServerSettings, Depends(settings_of)]


def moment(text: str) -> int | str | None:
    """Return the Delta version or the time that a field holds; None where it is empty.

    >>> moment("7"), moment("2013-01-01T06:00Z"), moment(" ")
    (7, '2013-01-01T06:00Z', None)
    """
    text = text.strip()
    if not text:
        return None
    return int(text) if text.isdecimal() else text
