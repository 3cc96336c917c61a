"""Filtered lists of objects for web pages and searches, and an overview of the store's state."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exists
from sqlalchemy.engine import Connection

from featurestore.model.times import Window, from_micros, shift_time, to_micros, utc_now
from featurestore.registry import runs
from featurestore.registry.featuregroups import KIND
from featurestore.registry.rows import select_distinct
from featurestore.registry.tables import (
    contains_text,
    experiment_runs,
    feature_views,
    featuregroups,
    incidents,
    is_latest,
    job_states,
    lineage,
    models,
    tags,
    training_datasets,
    validation_reports,
    windows,
)
from featurestore.registry.tables import runs as run_rows

OWNER = "owner"
_GROUPS_WITH_CHOICES = 200
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
# The name column and the time column of each kind. Views and models have no time.
_TIMES: dict[str, tuple[sa.Column[Any], sa.Column[Any]]] = {
    DATASET: (training_datasets.c.name, training_datasets.c.created),
    JOB: (run_rows.c.job, run_rows.c.started),
    EXPERIMENT: (experiment_runs.c.name, experiment_runs.c.created),
}


@dataclass(frozen=True)
class GroupLine:
    """A feature group version in a list; ``features`` is the number of its features."""

    name: str
    version: int
    delta_version: int
    description: str
    job: str | None
    created: datetime
    changed: datetime
    features: int


@dataclass(frozen=True)
class SearchFilter:
    """Conditions on the objects that a search returns; all conditions must hold.

    Args:
        tag: A tag key, or "key=value"; jobs and experiments have no tags.
        owner: The value of the tag ``owner``.
        changed_within: The maximum age of a group's last write, a dataset's creation, or a job's or
        experiment's newest run; views and models have no time.
    """

    tag: str = ""
    owner: str = ""
    changed_within: timedelta | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the filter has no conditions."""
        return not (self.tag or self.owner or self.changed_within is not None)


@dataclass(frozen=True)
class GroupFilter(SearchFilter):
    """Conditions on the listed groups, a string to find in their names, and the sort order."""

    text: str = ""
    newest_first: bool = False


@dataclass(frozen=True)
class DatasetLine:
    """A training dataset version in a list."""

    name: str
    version: int
    format: str
    rows: int
    description: str
    created: datetime


@dataclass(frozen=True)
class FailedValidation:
    """The newest validation report of a group, with a failed expectation."""

    name: str
    version: int
    policy: str
    rows: int
    created: datetime


@dataclass(frozen=True)
class Incident:
    """An open alert incident."""

    id: str
    job: str
    family: str
    began: datetime


def count_objects(connection: Connection) -> dict[str, int]:
    """Return the number of objects of each kind; all versions of an object count as one."""
    # An index contains the numbers, so that neither features nor definitions are read.
    number = sa.func.coalesce(sa.func.sum(featuregroups.c.features), 0)
    latest = sa.select(sa.func.count(), number).where(is_latest(featuregroups))
    group_count, feature_count = connection.execute(latest).one()
    datasets = sa.select(sa.func.count(sa.distinct(training_datasets.c.name)))
    views = sa.select(sa.func.count(sa.distinct(feature_views.c.name)))
    jobs = sa.select(sa.func.count()).select_from(job_states)
    queries = {
        "training datasets": datasets,
        "feature views": views,
        "jobs": jobs,
        "experiments": sa.select(sa.func.count()).select_from(
            select_distinct(experiment_runs.c.id, [experiment_runs.c.name]).subquery()
        ),
        "models": sa.select(sa.func.count(sa.distinct(models.c.name))),
    }
    counts = {name: int(connection.execute(query).scalar_one()) for name, query in queries.items()}
    return {"feature groups": int(group_count), "features": int(feature_count), **counts}


def groups(
    connection: Connection, group_filter: GroupFilter, *, limit: int, offset: int = 0
) -> list[GroupLine]:
    """Return one page of groups that match a filter, in their latest versions."""
    columns = featuregroups.c
    query = sa.select(featuregroups)
    query = query.where(*_group_conditions(connection, group_filter))
    order: list[sa.ColumnElement[Any]] = [columns.name]
    if group_filter.newest_first:
        order = [columns.changed.desc(), columns.name]
    rows = connection.execute(query.order_by(*order).limit(limit).offset(offset))
    return [_to_group_line(row) for row in rows]


def _to_group_line(row: Any) -> GroupLine:
    return GroupLine(
        name=row.name,
        version=row.version,
        delta_version=row.delta_version,
        description=row.description,
        job=row.job,
        created=from_micros(row.created),
        changed=from_micros(row.changed),
        features=row.features,
    )


def group_names(connection: Connection, search_filter: SearchFilter) -> list[str]:
    """Return the names of groups that match a filter."""
    query = sa.select(featuregroups.c.name).where(*_group_conditions(connection, search_filter))
    return list(connection.execute(query).scalars())


def _group_conditions(
    connection: Connection, search_filter: SearchFilter
) -> list[sa.ColumnElement[bool]]:
    """Return the SQL conditions of a group filter."""
    columns = featuregroups.c
    conditions = [is_latest(featuregroups)]
    if isinstance(search_filter, GroupFilter) and search_filter.text:
        conditions.append(contains_text(connection, columns.name, search_filter.text))
    if search_filter.tag:
        key, _, value = search_filter.tag.partition("=")
        conditions.append(_has_tag(key, value))
    if search_filter.owner:
        conditions.append(_has_tag(OWNER, search_filter.owner))
    if search_filter.changed_within is not None:
        since = to_micros(shift_time(utc_now(), -search_filter.changed_within))
        conditions.append(columns.changed >= since)
    return conditions


def _has_tag(key: str, value: str) -> sa.ColumnElement[bool]:
    """Return the condition that a group has a tag, with a value unless it is empty."""
    is_match = sa.and_(
        tags.c.kind == KIND,
        tags.c.name == featuregroups.c.name,
        tags.c.version == featuregroups.c.version,
        tags.c.key == key,
    )
    if value:
        is_match = sa.and_(is_match, tags.c.value == value)
    return exists(sa.select(tags.c.key).where(is_match).correlate(featuregroups))


def filter_group_names(
    connection: Connection, search_filter: SearchFilter
) -> frozenset[str] | None:
    """Return the names of groups that match a filter, None for all groups."""
    if search_filter.is_empty:
        return None
    return frozenset(group_names(connection, search_filter))


def tag_values(connection: Connection, *, limit: int = 100) -> list[str]:
    """Return the tags of the groups changed last as ``key=value``, most frequent first."""
    query = (
        sa.select(tags.c.key, tags.c.value)
        # Owners have a filter of their own.
        .where(_belongs_to_groups_changed_last(connection), tags.c.key != OWNER)
        .group_by(tags.c.key, tags.c.value)
        .order_by(sa.func.count().desc(), tags.c.key, tags.c.value)
    )
    return [f"{row.key}={row.value}" for row in connection.execute(query.limit(limit))]


def owners(connection: Connection, *, limit: int = 100) -> list[str]:
    """Return the owners of the groups changed last, according to the tag ``owner``."""
    belongs = _belongs_to_groups_changed_last(connection)
    query = sa.select(tags.c.value).distinct().where(belongs, tags.c.key == OWNER)
    return list(connection.execute(query.order_by(tags.c.value).limit(limit)).scalars())


def _belongs_to_groups_changed_last(connection: Connection) -> sa.ColumnElement[bool]:
    """Return the condition that a tag belongs to one of the groups changed last.

    The choices of a filter are those of a bounded number of groups, so that a page takes the same
    time in a store with many groups.
    """
    columns = featuregroups.c
    newest = sa.select(columns.name).order_by(columns.changed.desc()).limit(_GROUPS_WITH_CHOICES)
    names = connection.execute(newest).scalars().all()
    return sa.and_(tags.c.kind == KIND, tags.c.name.in_(names))


def datasets(
    connection: Connection, *, text: str = "", newest_first: bool = False, limit: int, offset: int
) -> list[DatasetLine]:
    """Return one page of training dataset versions whose name contains a string."""
    columns = training_datasets.c
    query = sa.select(training_datasets)
    if text:
        query = query.where(contains_text(connection, columns.name, text))
    order: list[sa.ColumnElement[Any]] = [columns.name, columns.version.desc()]
    if newest_first:
        order = [columns.created.desc(), columns.name]
    rows = connection.execute(query.order_by(*order).limit(limit).offset(offset))
    lines = []
    for row in rows:
        created = from_micros(row.created)
        lines.append(
            DatasetLine(row.name, row.version, row.format, row.rows, row.description, created)
        )
    return lines


def names(
    connection: Connection,
    object_kind: str,
    search_filter: SearchFilter,
    *,
    text: str,
    limit: int | None,
) -> list[str]:
    """Return the sorted names of one kind that contain a string and match a filter."""
    name: sa.ColumnElement[Any] = _NAMES[object_kind]
    query = sa.select(name)
    if object_kind == EXPERIMENT:
        # An experiment has many rows.
        name = select_distinct(experiment_runs.c.id, [experiment_runs.c.name]).subquery().c.name
        query = sa.select(name)
    elif object_kind != JOB:
        query = query.distinct()
    query = query.where(contains_text(connection, name, text))
    for condition in _name_conditions(object_kind, search_filter):
        query = query.where(name.in_(condition))
    return list(connection.execute(query.order_by(name).limit(limit)).scalars())


def filter_names(
    connection: Connection, object_kind: str, search_filter: SearchFilter
) -> frozenset[str] | None:
    """Return the names of one kind that match a filter, None for all names."""
    if search_filter.is_empty:
        return None
    return frozenset(names(connection, object_kind, search_filter, text="", limit=None))


def _name_conditions(object_kind: str, search_filter: SearchFilter) -> Iterator[sa.Select[str]]:
    """Yield queries for the names that meet each condition of a filter."""
    tagged = sa.select(tags.c.name).where(tags.c.kind == object_kind)
    if search_filter.tag:
        key, _, value = search_filter.tag.partition("=")
        query = tagged.where(tags.c.key == key)
        yield query.where(tags.c.value == value) if value else query
    if search_filter.owner:
        yield tagged.where(tags.c.key == OWNER, tags.c.value == search_filter.owner)
    if search_filter.changed_within is not None:
        since = to_micros(shift_time(utc_now(), -search_filter.changed_within))
        # Kinds without a time column never match.
        name_column, time = _TIMES.get(object_kind, (tags.c.name, sa.literal(since - 1)))
        yield sa.select(name_column).where(time >= since)


def failing_jobs(
    connection: Connection, *, among: Collection[str] | None = None, limit: int = 20
) -> list[runs.Run]:
    """Return the last run of each job, or of some jobs, if it failed, newest first."""
    last = (
        sa.select(run_rows.c.run_id)
        .where(run_rows.c.job == job_states.c.name)
        .order_by(run_rows.c.started.desc(), run_rows.c.window_start.desc())
        .limit(1)
        .correlate(job_states)
        .scalar_subquery()
    )
    query = (
        sa.select(run_rows.c.run_id)
        .select_from(job_states)
        .join(run_rows, run_rows.c.run_id == last)
        .where(run_rows.c.state == runs.FAILED)
        .order_by(run_rows.c.started.desc())
    )
    if among is not None:
        query = query.where(job_states.c.name.in_(among))
    identifiers = connection.execute(query.limit(limit)).scalars().all()
    return [runs.get(connection, identifier) for identifier in identifiers]


def newest_windows(connection: Connection, job: str, *, limit: int) -> list[tuple[Window, str]]:
    """Return the attempted windows of a job with their states, newest first."""
    columns = windows.c
    query = (
        sa.select(columns.window_start, columns.window_end, columns.state)
        .where(columns.job == job)
        .order_by(columns.window_end.desc())
    )
    newest = []
    for row in connection.execute(query.limit(limit)):
        window = Window(from_micros(row.window_start), from_micros(row.window_end))
        newest.append((window, str(row.state)))
    return newest


def count_computed_windows(connection: Connection, jobs: Sequence[str]) -> dict[str, int]:
    """Return the number of windows that each job has computed."""
    query = (
        sa.select(windows.c.job, sa.func.count().label("number"))
        .where(windows.c.job.in_(jobs), windows.c.state == "done")
        .group_by(windows.c.job)
    )
    return {str(row.job): int(row.number) for row in connection.execute(query)}


def read_owners(
    connection: Connection, object_kind: str, names: Sequence[str]
) -> dict[tuple[str, int], str]:
    """Return the tag ``owner`` of groups or datasets by name and version."""
    query = sa.select(tags).filter(
        tags.c.kind == object_kind, tags.c.key == OWNER, tags.c.name.in_(names)
    )
    return {(str(row.name), int(row.version)): str(row.value) for row in connection.execute(query)}


def failed_validations(connection: Connection, *, limit: int = 20) -> list[FailedValidation]:
    """Return the groups whose newest report has a failed expectation, newest first."""
    reports = validation_reports
    newer = reports.alias("newer")
    is_newer = sa.and_(
        newer.c.kind == reports.c.kind,
        newer.c.name == reports.c.name,
        newer.c.version == reports.c.version,
        # Ids order the reports even if their times are equal.
        newer.c.id > reports.c.id,
    )
    query = (
        sa.select(reports)
        .where(reports.c.kind == KIND, reports.c.success.is_(False))
        .where(~exists(sa.select(newer.c.id).where(is_newer).correlate(reports)))
        .order_by(reports.c.id.desc())
    )
    failures = []
    for row in connection.execute(query.limit(limit)):
        created = from_micros(row.created)
        failures.append(FailedValidation(row.name, row.version, row.policy, row.rows, created))
    return failures


def open_incidents(connection: Connection, *, limit: int = 20) -> list[Incident]:
    """Return the open incidents, newest first."""
    query = (
        sa.select(incidents).where(incidents.c.ended.is_(None)).order_by(incidents.c.began.desc())
    )
    rows = connection.execute(query.limit(limit))
    return [Incident(row.id, row.job, row.family, from_micros(row.began)) for row in rows]


def lineage_edges(
    connection: Connection, *, limit: int, matching: Mapping[str, str] | None = None
) -> list[tuple[str, str, int, str | None, str, int | None]]:
    """Return lineage edges as (kind, name, version, job, source, source version).

    ``matching`` is ``{"kind": ..., "name": ...}``, ``{"job": ...}`` or ``{"source": ...}``, to
    select the edges of one output, job or source.
    """
    columns = lineage.c
    edge_columns = (
        columns.kind,
        columns.name,
        columns.version,
        columns.job,
        columns.source,
        columns.source_version,
    )
    query = sa.select(*edge_columns).distinct()
    if not matching:
        # The condition holds for all rows. With it, SQLite reads the rows in the order of the index.
        query = query.where(columns.kind > "")
    for name, value in (matching or {}).items():
        query = query.where(columns[name] == value)
    # A fixed order makes a truncated graph the same for each request.
    rows = connection.execute(query.order_by(*edge_columns).limit(limit))
    return [(row[0], row[1], row[2], row[3], row[4], row[5]) for row in rows]


def experiments_reading(
    connection: Connection, *, limit: int, experiment: str | None = None, dataset: str | None = None
) -> list[tuple[str, str, int]]:
    """Return (experiment, dataset, dataset version) for the datasets that runs read.

    Args:
        connection: A connection to the registry.
        limit: The maximum number of results.
        experiment: Return only the datasets of this experiment.
        dataset: Return only the experiments that read this dataset.
    """
    read = experiment_runs.c
    conditions: list[sa.ColumnElement[bool]] = [read.dataset.is_not(None)]
    columns: list[sa.ColumnElement[Any]] = [read.name, read.dataset, read.dataset_version]
    if experiment is not None:
        conditions.append(read.name == experiment)
    if dataset is not None:
        conditions.append(read.dataset == dataset)
        # The order of an index that begins with the dataset.
        columns = [read.dataset, read.dataset_version, read.name]
    rows = connection.execute(select_distinct(read.id, columns, *conditions, limit=limit))
    return [(row.name, row.dataset, row.dataset_version) for row in rows]


def trained_models(
    connection: Connection, *, limit: int, experiment: str | None = None, model: str | None = None
) -> list[tuple[str, str, int]]:
    """Return (experiment, model, model version) for the models that runs trained.

    Args:
        connection: A connection to the registry.
        limit: The maximum number of results.
        experiment: Return only the models of this experiment.
        model: Return only the experiments of this model.
    """
    columns = [models.c.name, models.c.version]
    # Models of hidden or removed runs are omitted.
    is_trained = exists(sa.select(experiment_runs.c.id).where(experiment_runs.c.id == models.c.run))
    query = sa.select(models.c.experiment, *columns).where(
        models.c.experiment.is_not(None), is_trained
    )
    if experiment is not None:
        query = query.where(models.c.experiment == experiment)
    if model is not None:
        query = query.where(models.c.name == model)
    rows = connection.execute(query.order_by(*columns).limit(limit))
    return [(row.experiment, row.name, row.version) for row in rows]
