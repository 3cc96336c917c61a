"""What a user may not read: private groups without a role on them, and what was made with them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.model.paths import FEATUREGROUPS, FEATUREVIEWS, MODELS, TRAININGDATASETS
from featurestore.registry import access
from featurestore.registry.featuregroups import KIND as GROUP
from featurestore.registry.tables import (
    featuregroups,
    job_definitions,
    lineage,
    training_dataset_pins,
    training_datasets,
)

DATASET, MODEL = "training_dataset", "model"
# What lineage calls sources that are no groups.
_FOLDERS = {"feature_view": FEATUREVIEWS, DATASET: TRAININGDATASETS, MODEL: MODELS}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")

Artifact = tuple[str, str, int]


@dataclass(frozen=True)
class Hidden:
    """Groups, (kind, name, version) of what was made with them, sources, and jobs.

    ``sources`` are what lineage calls all of it: with a version, or with None for every version.
    """

    groups: frozenset[str] = frozenset()
    outputs: frozenset[Artifact] = frozenset()
    sources: frozenset[tuple[str, int | None]] = frozenset()
    jobs: frozenset[str] = frozenset()


def hidden_from(connection: Connection, *, granted: Collection[str], reads_store: bool) -> Hidden:
    """Return what somebody may not read who has roles on some groups.

    ``reads_store``: whoever has it reads every group that is not private; without it, only those
    groups.
    """
    groups = set(access.private(connection))
    if not reads_store:
        groups |= _every_group(connection)
    groups -= set(granted)
    if not groups:
        return Hidden()
    edges = _edges(connection)
    sources: set[tuple[str, int | None]] = {(name, None) for name in groups}
    sources |= {(path, None) for path in _paths(edges, groups)}
    outputs = _pinning(connection, groups)
    outputs |= _reached(edges, sources, outputs)
    for kind, name, version in outputs:
        sources.add((f"{_FOLDERS[kind]}/{name}", version))
    return Hidden(
        frozenset(groups), frozenset(outputs), frozenset(sources), _jobs(connection, groups)
    )


_Edge = tuple[str, str, int, str, int | None]


def _edges(connection: Connection) -> list[_Edge]:
    columns = lineage.c
    chosen = (columns.kind, columns.name, columns.version, columns.source, columns.source_version)
    found = connection.execute(sa.select(*chosen).distinct())
    return [(row[0], row[1], row[2], row[3], row[4]) for row in found]


def _every_group(connection: Connection) -> set[str]:
    """Return every name of a group that anything speaks of, also of groups that are gone."""
    found: set[str] = set()
    for column in (featuregroups.c.name, training_dataset_pins.c.featuregroup, lineage.c.source):
        for name in connection.execute(sa.select(column).distinct()).scalars():
            if _NAME.fullmatch(name):
                found.add(name)
    return found


def _paths(edges: Iterable[_Edge], groups: Collection[str]) -> set[str]:
    """Return sources that are paths of tables of groups, as jobs may name them."""
    found = set()
    for _, _, _, source, _ in edges:
        parts = source.split("/")
        for folder, name in pairwise(parts):
            if folder == FEATUREGROUPS and name in groups:
                found.add(source)
    return found


def _pinning(connection: Connection, groups: Collection[str]) -> set[Artifact]:
    """Return the training datasets that pin a group."""
    columns = training_datasets.c
    query = sa.select(columns.name, columns.version, training_dataset_pins.c.featuregroup).join(
        training_dataset_pins, training_dataset_pins.c.training_dataset_id == columns.id
    )
    found = set()
    for name, version, group in connection.execute(query.distinct()):
        if group in groups:
            found.add((DATASET, name, version))
    return found


def _reached(
    edges: Iterable[_Edge], sources: Collection[tuple[str, int | None]], known: Collection[Artifact]
) -> set[Artifact]:
    """Return what was made of sources, and what of that, except groups: these stand alone."""
    following: dict[tuple[str, int | None], list[Artifact]] = {}
    for kind, name, version, source, source_version in edges:
        if kind != GROUP:
            made = (kind, name, version)
            for each in {(source, source_version), (source, None)}:
                following.setdefault(each, []).append(made)
    found: set[Artifact] = set()
    waiting = list(sources)
    for kind, name, version in known:
        waiting.append((f"{_FOLDERS[kind]}/{name}", version))
    while waiting:
        for made in following.get(waiting.pop(), ()):
            if made not in found:
                found.add(made)
                waiting.append((f"{_FOLDERS[made[0]]}/{made[1]}", made[2]))
    return found


def _jobs(connection: Connection, groups: Collection[str]) -> frozenset[str]:
    """Return jobs in whose definition, code or target a group is named."""
    words = re.compile(rf"\b(?:{'|'.join(sorted(groups))})\b")
    columns = job_definitions.c
    found = set()
    for name, spec in connection.execute(sa.select(columns.name, columns.spec)):
        if words.search(spec):
            found.add(name)
    query = sa.select(lineage.c.job, lineage.c.source).where(lineage.c.job.is_not(None)).distinct()
    for job, source in connection.execute(query):
        if source in groups:
            found.add(job)
    return frozenset(found)
