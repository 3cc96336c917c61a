"""Feature views in the registry, and the groups that they read."""

from __future__ import annotations

import json

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.errors import FeatureViewNotFound, listing
from featurestore.model.arguments import check_version
from featurestore.model.feature_view import FeatureViewSpec, view_source
from featurestore.model.json_object import MalformedJson
from featurestore.registry import lineage, tags, window_features
from featurestore.registry.rows import readable
from featurestore.registry.tables import feature_views
from featurestore.registry.tables import lineage as lineage_table

KIND = "feature_view"
_DATASET = "training_dataset"


def add(connection: Connection, spec: FeatureViewSpec) -> None:
    """Register a version with its tags and the groups it reads, in place of what was there."""
    remove(connection, spec.name, spec.version)
    connection.execute(
        feature_views.insert().values(
            name=spec.name, version=spec.version, spec=json.dumps(spec.to_json())
        )
    )
    tags.replace(connection, KIND, spec.name, spec.version, spec.tags)
    inputs = [{"featuregroup": name, "version": version} for name, version in spec.groups]
    lineage.add(connection, KIND, spec.name, spec.version, delta_version=None, inputs=inputs)
    window_features.replace(connection, KIND, spec.name, spec.version, spec.windows)


def remove(connection: Connection, name: str, version: int) -> None:
    """Forget a version with its tags and lineage."""
    columns = feature_views.c
    same = sa.and_(columns.name == name, columns.version == version)
    connection.execute(feature_views.delete().where(same))
    tags.replace(connection, KIND, name, version, {})
    lineage.remove(connection, KIND, name, version)
    window_features.remove(connection, KIND, name, version)


def get(connection: Connection, name: str, version: int | None = None) -> tuple[str, int]:
    """Return name and version (None: the latest); FeatureViewNotFound lists what there is."""
    existing = versions(connection, name)
    if existing and (version is None or version in existing):
        return name, existing[-1] if version is None else version
    if existing:
        raise FeatureViewNotFound(
            f"Feature view {name!r} has no version {version}; it has {', '.join(map(str, existing))}.",
            hint="leave version=None for the latest",
        )
    column = feature_views.c.name
    names = connection.execute(sa.select(column).distinct().order_by(column)).scalars()
    raise FeatureViewNotFound(
        f"Unknown feature view {name!r}. Available: {listing(names)}.",
        hint="featurestore.create_feature_view(name, features=[...]) makes one",
    )


def versions(connection: Connection, name: str) -> list[int]:
    """Return the versions of a view, ascending."""
    columns = feature_views.c
    query = sa.select(columns.version).where(columns.name == name).order_by(columns.version)
    return [check_version(each) for each in connection.execute(query).scalars()]


def remembered(connection: Connection, name: str) -> list[int]:
    """Return the versions of a view that training datasets were made of, whether they exist."""
    edges = lineage.results(connection, view_source(name))
    return [edge.source_version for edge in edges if edge.source_version is not None]


def every(connection: Connection) -> list[tuple[str, int]]:
    """Return name and version of every view."""
    columns = feature_views.c
    query = sa.select(columns.name, columns.version).order_by(columns.name, columns.version)
    return [(str(row.name), check_version(row.version)) for row in connection.execute(query)]


def reading(
    connection: Connection, group: str, version: int | None = None
) -> list[FeatureViewSpec]:
    """Return the views that read a group, or one of its versions."""
    edges = lineage_table.c
    condition = sa.and_(edges.kind == KIND, edges.source == group)
    if version is not None:
        condition = sa.and_(condition, edges.source_version == version)
    names_and_versions = sa.select(edges.name, edges.version).where(condition).distinct()
    columns = feature_views.c
    query = sa.select(columns.name, columns.version, columns.spec).order_by(
        columns.name, columns.version
    )
    specs = []
    for row in connection.execute(
        query.where(sa.tuple_(columns.name, columns.version).in_(names_and_versions))
    ):
        with readable(f"feature view {row.name!r} version {row.version}"):
            try:
                specs.append(FeatureViewSpec.from_json(json.loads(row.spec)))
            except MalformedJson as error:
                raise ValueError(str(error)) from error
    return specs


def datasets_of(connection: Connection, name: str, version: int) -> list[tuple[str, int]]:
    """Return name and version of the training datasets that were made of a view."""
    datasets = [
        (edge.name, edge.version)
        for edge in lineage.results(connection, view_source(name), version)
        if edge.kind == _DATASET
    ]
    return datasets
