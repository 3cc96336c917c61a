"""Experiment runs in the registry: the paths of their ``run.json`` files, and their inputs."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.errors import RunNotFound, listing
from featurestore.model.run_record import RunRecord, check_run_id
from featurestore.model.times import to_micros
from featurestore.registry import origins
from featurestore.registry.hidden import extract_words
from featurestore.registry.origins import DATASET, GROUP, RUN, VIEW, Object
from featurestore.registry.rows import lock, select_distinct, split_values
from featurestore.registry.stores import unregistered_error
from featurestore.registry.tables import (
    experiment_runs,
    feature_views,
    featuregroups,
    tags,
    training_datasets,
)
from featurestore.registry.unregistered import has_run

_columns = experiment_runs.c


def register(connection: Connection, record: RunRecord) -> None:
    """Register a run; replace an earlier registration."""
    lock(connection, f"run/{record.id}")
    remove(connection, record.id)
    dataset = record.dataset
    connection.execute(
        experiment_runs.insert().values(
            id=record.id,
            name=record.name,
            kind=record.kind,
            state=record.state,
            parent=record.parent,
            number=record.number,
            dataset=None if dataset is None else dataset.name,
            dataset_version=None if dataset is None else dataset.version,
            created=to_micros(datetime.fromisoformat(record.created)),
        )
    )
    read_objects = find_objects_named(connection, _words_of(record))
    # The names of groups, views and datasets in a record determine who may read it.
    names = sorted({named.name for named in read_objects})
    if dataset is not None:
        read_objects.append(Object(DATASET, dataset.name, dataset.version))
    # A study chooses the parameters of a trial from the results of its other trials.
    if record.parent is not None:
        read_objects.append(Object(RUN, record.parent))
    origins.record(connection, Object(RUN, record.id), read_objects)
    if names:
        rows = [
            {"kind": RUN, "name": record.id, "version": 1, "key": mentioned_name}
            for mentioned_name in names
        ]
        # The names are tags of the run, so that hidden runs are found without opening their files.
        connection.execute(tags.insert().values(value=""), rows)


def find_objects_named(connection: Connection, names: Collection[str]) -> list[Object]:
    """Return all versions of the groups, views and datasets with these names."""
    named_tables = {GROUP: featuregroups, VIEW: feature_views, DATASET: training_datasets}
    return [
        Object(object_kind, name, version)
        for some_names in split_values(sorted(names))
        for object_kind, table in named_tables.items()
        for name, version in connection.execute(
            sa.select(table.c.name, table.c.version).where(table.c.name.in_(some_names))
        )
    ]


def _words_of(record: RunRecord) -> frozenset[str]:
    """Return the words in a record that may be names."""
    texts = [record.name, record.params, record.settings, record.metrics, record.reason]
    return extract_words(json.dumps(texts, ensure_ascii=False, default=str))


def remove(connection: Connection, run_id: str) -> None:
    """Remove a run, except its origins: its models remain."""
    connection.execute(experiment_runs.delete().where(_columns.id == run_id))
    connection.execute(tags.delete().where(tags.c.kind == RUN, tags.c.name == run_id))


def experiment_of_run(connection: Connection, run_id: str) -> str:
    """Return the experiment of a run; raise RunNotFound, with the newest runs, if it is unknown."""
    query = sa.select(_columns.name).where(_columns.id == check_run_id(run_id))
    name = connection.execute(query).scalar()
    if name is not None:
        return str(name)
    newest = sa.select(_columns.id).order_by(_columns.created.desc()).limit(10)
    if has_run(connection, run_id):
        raise unregistered_error(connection, RunNotFound, f"Run {run_id!r}")
    raise RunNotFound(
        f"Unknown run {run_id!r}. Newest: {listing(connection.execute(newest).scalars())}.",
        hint="experiments.get_runs() lists all runs",
    )


def find(
    connection: Connection,
    *,
    name: str | None = None,
    parent: str | None = None,
    dataset: tuple[str, int | None] | None = None,
    states: Sequence[str] = (),
    trials: bool = False,
    limit: int | None = None,
    offset: int = 0,
) -> list[tuple[str, str]]:
    """Return (experiment, id) of runs, newest first; runs with a parent are ordered by number."""
    query = sa.select(_columns.name, _columns.id)
    if name is not None:
        query = query.where(_columns.name == name)
    if parent is not None:
        query = query.where(_columns.parent == parent)
    elif not trials:
        query = query.where(_columns.parent.is_(None))
    if dataset is not None:
        query = query.where(_columns.dataset == dataset[0])
        if dataset[1] is not None:
            query = query.where(_columns.dataset_version == dataset[1])
    if states:
        query = query.where(_columns.state.in_(states))
    order = [_columns.created.desc(), _columns.id.desc()]
    if parent is not None:
        order = [_columns.number.asc(), _columns.id.asc()]
    rows = connection.execute(query.order_by(*order).limit(limit).offset(offset))
    return [(str(row.name), str(row.id)) for row in rows]


def names(connection: Connection, *, limit: int | None = None) -> list[str]:
    """Return the names of all experiments, or of the first ones, sorted."""
    query = select_distinct(_columns.id, [_columns.name], limit=limit)
    return list(connection.execute(query).scalars())
