"""Records of registered models."""

from __future__ import annotations

from typing import Any

from featurestore.experiments.models import Model, catalog
from featurestore.registry import models as index
from featurestore.store import FeatureStore

COLUMNS = ("name", "version", "stage", "flavor", "dataset", "run", "created", "description")


def find(store: FeatureStore, *, limit: int, offset: int = 0) -> list[Model]:
    """Return versions of models by name, newest version first."""
    with store.session.registry.reading() as connection:
        versions_by_name = index.every(connection)
    versions_by_name.sort(key=lambda each: (each[0], -each[1]))
    page = versions_by_name[offset : offset + limit]
    return [get(store, name, version) for name, version in page]


def get(store: FeatureStore, name: str, version: int | None = None) -> Model:
    """Return a version of a model, by default the latest; ModelNotFound lists the models."""
    return Model(store.session, catalog.get(store.session, name, version))


def versions(store: FeatureStore, name: str) -> list[int]:
    """Return the versions of a model, newest first."""
    with store.session.registry.reading() as connection:
        return index.versions(connection, name)[::-1]


def summarize(model: Model) -> dict[str, Any]:
    """Return the summary of a model."""
    record = model.to_json()
    return {name: record[name] for name in COLUMNS}
