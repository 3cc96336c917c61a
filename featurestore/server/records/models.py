"""Registered models: versions, stages, and what each was made of."""

from __future__ import annotations

from typing import Any

from featurestore.experiments.models import Model, catalog
from featurestore.registry import models as index
from featurestore.store import FeatureStore

COLUMNS = ("name", "version", "stage", "flavor", "dataset", "run", "created", "description")


def find(store: FeatureStore, *, limit: int, offset: int = 0) -> list[Model]:
    """Return versions of models by name, the newest version of each first."""
    with store.session.registry.reading() as connection:
        known = index.every(connection)
    known.sort(key=lambda each: (each[0], -each[1]))
    found = []
    for name, version in known[offset : offset + limit]:
        found.append(get(store, name, version))
    return found


def get(store: FeatureStore, name: str, version: int | None = None) -> Model:
    """Return a version of a model, None: the latest; ModelNotFound lists what there is."""
    return Model(store.session, catalog.get(store.session, name, version))


def versions(store: FeatureStore, name: str) -> list[int]:
    """Return the versions of a model, the newest first."""
    with store.session.registry.reading() as connection:
        return index.versions(connection, name)[::-1]


def line(model: Model) -> dict[str, Any]:
    """Return what a list says of a model."""
    told = model.to_json()
    return {name: told[name] for name in COLUMNS}
