"""Origins of the objects in a registry of an earlier release, from its lineage and definitions."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.registry import origins
from featurestore.registry.experiments import find_objects_named
from featurestore.registry.hidden import extract_words
from featurestore.registry.origins import DATASET, GROUP, JOB, MODEL, RUN, Object
from featurestore.registry.tables import (
    experiment_runs,
    job_definitions,
    lineage,
    models,
    tags,
    training_dataset_pins,
    training_datasets,
)

# The revision of the registry that stores origins.
REVISION = "0102"


def fill_from_lineage(connection: Connection) -> None:
    """Store the origins of all objects, as far as the edges of lineage still exist."""
    edges = lineage.c
    columns = (edges.kind, edges.name, edges.version, edges.job, edges.source, edges.source_version)
    for object_kind, name, version, job, source, source_version in connection.execute(
        sa.select(*columns).distinct()
    ):
        inputs = [{"source": source, "version": source_version}]
        origin_objects = origins.find_objects(connection, inputs)
        origins.record(connection, Object(object_kind, name, version), origin_objects)
        if job is not None:
            origins.record(connection, Object(JOB, job), origin_objects)
    dataset, pins = training_datasets.c, training_dataset_pins.c
    pinned = sa.select(dataset.name, dataset.version, pins.featuregroup, pins.version)
    for name, version, group, group_version in connection.execute(
        pinned.join(training_dataset_pins, pins.training_dataset_id == dataset.id)
    ):
        origins.record(
            connection, Object(DATASET, name, version), [Object(GROUP, group, group_version)]
        )
    _fill_runs(connection)
    for name, text in connection.execute(sa.select(job_definitions.c.name, job_definitions.c.spec)):
        named_objects = find_objects_named(connection, extract_words(text))
        origins.record(connection, Object(JOB, name), named_objects)


def _fill_runs(connection: Connection) -> None:
    """Store the origins of experiment runs, and of the models that they trained."""
    run = experiment_runs.c
    for identifier, parent, name, version in connection.execute(
        sa.select(run.id, run.parent, run.dataset, run.dataset_version)
    ):
        read_objects = [] if name is None else [Object(DATASET, name, version)]
        if parent is not None:
            read_objects.append(Object(RUN, parent))
        origins.record(connection, Object(RUN, identifier), read_objects)
    for name, version, identifier in connection.execute(
        sa.select(models.c.name, models.c.version, models.c.run).where(models.c.run.is_not(None))
    ):
        origins.record(connection, Object(MODEL, name, version), [Object(RUN, identifier)])
    mentions = sa.select(tags.c.name, tags.c.key).where(tags.c.kind == RUN)
    for identifier, name in connection.execute(mentions):
        origins.record(connection, Object(RUN, identifier), find_objects_named(connection, [name]))
