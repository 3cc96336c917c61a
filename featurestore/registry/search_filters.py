"""Which names a search may find: by tag, owner and when they last changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.model.times import shifted, to_micros, utc_now
from featurestore.registry.overview import OWNER, GroupFilter, group_names
from featurestore.registry.tables import (
    contains_text,
    experiment_runs,
    feature_views,
    job_states,
    models,
    runs,
    tags,
    training_datasets,
)

DATASET, VIEW, JOB, MODEL, EXPERIMENT = (
    "training_dataset",
    "feature_view",
    "job",
    "model",
    "experiment",
)
_NAMES: dict[str, sa.Column[Any]] = {
    DATASET: training_datasets.c.name,
    VIEW: feature_views.c.name,
    JOB: job_states.c.name,
    MODEL: models.c.name,
    EXPERIMENT: experiment_runs.c.name,
}
# By kind: which name something is of, and when it was made or tried. Views and models say no time.
_TIMES: dict[str, tuple[sa.Column[Any], sa.Column[Any]]] = {
    DATASET: (training_datasets.c.name, training_datasets.c.created),
    JOB: (runs.c.job, runs.c.started),
    EXPERIMENT: (experiment_runs.c.name, experiment_runs.c.created),
}


@dataclass(frozen=True)
class SearchFilter:
    """What is found: all conditions that are given hold.

    Args:
        tag: A key, or "key=value"; jobs and experiments have none.
        owner: The value of the tag ``owner``.
        changed_within: Groups by their last write, datasets by their making, jobs and experiments
            by their newest run; views and models say no time.
    """

    tag: str = ""
    owner: str = ""
    changed_within: timedelta | None = None

    @property
    def is_empty(self) -> bool:
        """Tell whether everything is let through."""
        return not (self.tag or self.owner or self.changed_within is not None)


def groups_within(connection: Connection, wanted: SearchFilter) -> frozenset[str] | None:
    """Return the names of groups that a filter lets through; None: all of them."""
    if wanted.is_empty:
        return None
    same = GroupFilter(tag=wanted.tag, owner=wanted.owner, changed_within=wanted.changed_within)
    return frozenset(group_names(connection, same))


def names(
    connection: Connection, kind: str, wanted: SearchFilter, *, text: str, limit: int | None
) -> list[str]:
    """Return, in order, names of a kind that contain a text and that a filter lets through."""
    name = _NAMES[kind]
    query = sa.select(name).distinct().where(contains_text(connection, name, text))
    for condition in _conditions(kind, wanted):
        query = query.where(name.in_(condition))
    return list(connection.execute(query.order_by(name).limit(limit)).scalars())


def within(connection: Connection, kind: str, wanted: SearchFilter) -> frozenset[str] | None:
    """Return the names of a kind that a filter lets through; None: all of them."""
    if wanted.is_empty:
        return None
    return frozenset(names(connection, kind, wanted, text="", limit=None))


def _conditions(kind: str, wanted: SearchFilter) -> Iterator[sa.Select[tuple[str]]]:
    tagged = sa.select(tags.c.name).where(tags.c.kind == kind)
    if wanted.tag:
        key, _, value = wanted.tag.partition("=")
        query = tagged.where(tags.c.key == key)
        yield query.where(tags.c.value == value) if value else query
    if wanted.owner:
        yield tagged.where(tags.c.key == OWNER, tags.c.value == wanted.owner)
    if wanted.changed_within is not None:
        since = to_micros(shifted(utc_now(), -wanted.changed_within))
        # Of what says no time, none is known to have changed.
        of, time = _TIMES.get(kind, (tags.c.name, sa.literal(since - 1)))
        yield sa.select(of).where(time >= since)
