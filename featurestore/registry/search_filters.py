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
# By kind: the name column and the time column. Views and models have no time.
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
            by their newest run; views and models have no time.
    """

    tag: str = ""
    owner: str = ""
    changed_within: timedelta | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the filter matches everything."""
        return not (self.tag or self.owner or self.changed_within is not None)


def groups_within(connection: Connection, search_filter: SearchFilter) -> frozenset[str] | None:
    """Return the names of groups that match a filter; None means all."""
    if search_filter.is_empty:
        return None
    same = GroupFilter(
        tag=search_filter.tag,
        owner=search_filter.owner,
        changed_within=search_filter.changed_within,
    )
    return frozenset(group_names(connection, same))


def names(
    connection: Connection, kind: str, search_filter: SearchFilter, *, text: str, limit: int | None
) -> list[str]:
    """Return, in order, names of a kind that contain a text and that a filter lets through."""
    name = _NAMES[kind]
    query = sa.select(name).distinct().where(contains_text(connection, name, text))
    for condition in _conditions(kind, search_filter):
        query = query.where(name.in_(condition))
    return list(connection.execute(query.order_by(name).limit(limit)).scalars())


def within(connection: Connection, kind: str, search_filter: SearchFilter) -> frozenset[str] | None:
    """Return the names of a kind that match a filter; None means all."""
    if search_filter.is_empty:
        return None
    return frozenset(names(connection, kind, search_filter, text="", limit=None))


def _conditions(kind: str, search_filter: SearchFilter) -> Iterator[sa.Select[tuple[str]]]:
    tagged = sa.select(tags.c.name).where(tags.c.kind == kind)
    if search_filter.tag:
        key, _, value = search_filter.tag.partition("=")
        query = tagged.where(tags.c.key == key)
        yield query.where(tags.c.value == value) if value else query
    if search_filter.owner:
        yield tagged.where(tags.c.key == OWNER, tags.c.value == search_filter.owner)
    if search_filter.changed_within is not None:
        since = to_micros(shifted(utc_now(), -search_filter.changed_within))
        # Kinds without a time never match.
        name_column, time = _TIMES.get(kind, (tags.c.name, sa.literal(since - 1)))
        yield sa.select(name_column).where(time >= since)
