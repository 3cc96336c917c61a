"""Registered models in the registry: their stage, and the run and dataset that they come from."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.errors import ModelNotFound, listing
from featurestore.model.arguments import check_version
from featurestore.model.paths import TRAININGDATASETS
from featurestore.model.registered_model import ModelAnnotations, ModelSpec, model_source
from featurestore.registry import lineage, tags
from featurestore.registry.tables import models

KIND = "model"
_columns = models.c


def add(connection: Connection, spec: ModelSpec, description: ModelAnnotations) -> None:
    """Register a version with its tags and lineage, in place of what was there."""
    remove(connection, spec.name, spec.version)
    dataset = spec.dataset["name"], spec.dataset["version"]
    connection.execute(
        models.insert().values(
            name=spec.name,
            version=spec.version,
            stage=description.stage,
            run=spec.run,
            dataset=dataset[0],
            dataset_version=dataset[1],
        )
    )
    tags.replace(connection, KIND, spec.name, spec.version, description.tags)
    inputs = [{"source": f"{TRAININGDATASETS}/{dataset[0]}", "version": dataset[1]}]
    for name, version in spec.features.groups:
        inputs.append({"featuregroup": name, "version": version})
    lineage.add(
        connection,
        KIND,
        spec.name,
        spec.version,
        delta_version=None,
        inputs=inputs,
        run_id=spec.run,
    )


def remove(connection: Connection, name: str, version: int) -> None:
    """Forget a version with its tags and lineage."""
    same = sa.and_(_columns.name == name, _columns.version == version)
    connection.execute(models.delete().where(same))
    tags.replace(connection, KIND, name, version, {})
    lineage.remove(connection, KIND, name, version)


def get(
    connection: Connection, name: str, version: int | None = None, *, stage: str | None = None
) -> tuple[str, int]:
    """Return name and version (None: the latest, of a stage); ModelNotFound lists what there is."""
    query = sa.select(_columns.version, _columns.stage).where(_columns.name == name)
    stages = {
        check_version(row.version): str(row.stage)
        for row in connection.execute(query.order_by(_columns.version))
    }
    suitable = [
        number
        for number, version_stage in stages.items()
        if version in (None, number) and stage in (None, version_stage)
    ]
    if suitable:
        return name, suitable[-1]
    if stages:
        missing = f"version {version}" if stage is None else f"version in stage {stage!r}"
        existing = listing(
            [f"{number} ({version_stage})" for number, version_stage in stages.items()]
        )
        raise ModelNotFound(
            f"Model {name!r} has no {missing}; it has {existing}.",
            hint="version=None takes the latest",
        )
    names = connection.execute(sa.select(_columns.name).distinct().order_by(_columns.name))
    raise ModelNotFound(
        f"Unknown model {name!r}. Available: {listing(names.scalars())}.",
        hint="experiments.register_model(run, name) makes one",
    )


def versions(connection: Connection, name: str) -> list[int]:
    """Return the versions of a model, ascending."""
    query = sa.select(_columns.version).where(_columns.name == name).order_by(_columns.version)
    return [check_version(each) for each in connection.execute(query).scalars()]


def remembered(connection: Connection, name: str) -> list[int]:
    """Return the versions of a model that predictions were made with, whether they exist."""
    edges = lineage.results(connection, model_source(name))
    return [edge.source_version for edge in edges if edge.source_version is not None]


def every(connection: Connection, *, name: str | None = None) -> list[tuple[str, int]]:
    """Return name and version of every model, or of every version of one."""
    return _where(connection, sa.true() if name is None else _columns.name == name)


def _where(connection: Connection, condition: sa.ColumnElement[bool]) -> list[tuple[str, int]]:
    query = sa.select(_columns.name, _columns.version).where(condition)
    rows = connection.execute(query.order_by(_columns.name, _columns.version))
    return [(str(row.name), check_version(row.version)) for row in rows]


def of_run(connection: Connection, run: str) -> list[tuple[str, int]]:
    """Return name and version of the models that a run trained."""
    return _where(connection, _columns.run == run)


def of_dataset(connection: Connection, name: str, version: int) -> list[tuple[str, int]]:
    """Return name and version of the models that were trained on a dataset."""
    same = sa.and_(_columns.dataset == name, _columns.dataset_version == version)
    return _where(connection, same)
