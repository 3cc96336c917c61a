"""Removal of objects that a project created: what breaks, by lineage, and the removal itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from sqlalchemy.engine import Connection

from featurestore.alerts.channels import remove_channel
from featurestore.define.loading import Refusal, refuse
from featurestore.define.steps import ProjectStep
from featurestore.featuregroups.maintenance import delete_group
from featurestore.jobs.removal import remove_job
from featurestore.model.job import (
    CatalogWork,
    JobSpec,
    MonitorWork,
    PublishWork,
    StreamWork,
    TransformWork,
    WindowedWork,
)
from featurestore.model.names import parse_group_reference
from featurestore.model.project import (
    CHANNEL,
    GROUP,
    JOB,
    SOURCE,
    VERSIONED,
    VIEW,
    PlannedChange,
    format_object,
)
from featurestore.model.validation import FeatureComparison
from featurestore.recovery.pins import find_pinning_datasets
from featurestore.registry import alerts, featuregroups, jobs, sources
from featurestore.registry.artifacts import feature_views
from featurestore.registry.projects import OwnerMark
from featurestore.session import Session
from featurestore.sources import registration
from featurestore.views import definition as views


def plan_removals(session: Session, marks: Collection[OwnerMark]) -> list[ProjectStep]:
    """Return the steps that remove objects, in order, without those that no longer exist."""
    steps = []
    removed = set(marks)
    # Objects are removed before those that they refer to.
    for object_type in (JOB, VIEW, GROUP, CHANNEL, SOURCE):
        for mark in sorted(removed, key=lambda mark: (mark.name, -mark.version)):
            if mark.object_type == object_type and exists(session, mark):
                steps.append(plan_removal(session, mark, removed))
    return steps


def exists(session: Session, mark: OwnerMark) -> bool:
    """Return whether an object exists in the store."""
    with session.registry.reading() as connection:
        if mark.object_type == GROUP:
            return featuregroups.find(connection, mark.name, mark.version) is not None
        if mark.object_type == VIEW:
            return mark.version in feature_views.versions(connection, mark.name)
        if mark.object_type == JOB:
            return jobs.find(connection, mark.name) is not None
        if mark.object_type == SOURCE:
            return mark.name in sources.names(connection)
        return mark.name in [channel.name for channel in alerts.channels(connection)]


def plan_removal(session: Session, mark: OwnerMark, removed: Collection[OwnerMark]) -> ProjectStep:
    """Return the step that removes one object."""
    with session.registry.reading() as connection:
        breaks = tuple(_BREAKS[mark.object_type](connection, mark, removed))
    blockers: tuple[str, ...] = ()
    if mark.object_type == GROUP:
        blockers = tuple(find_blockers(session, mark, removed))
    change = PlannedChange(
        "remove",
        mark.object_type,
        mark.name,
        version=mark.version if mark.object_type in VERSIONED else None,
        breaks=breaks,
        blockers=blockers,
    )
    return ProjectStep(change, lambda store: _REMOVALS[mark.object_type](store, mark))


# -- consequences ---------------------------------------------------------------------------------


def find_blockers(
    session: Session, mark: OwnerMark, removed: Collection[OwnerMark]
) -> Iterator[str]:
    """Yield the views and training datasets because of which a group cannot be deleted."""
    with session.registry.reading() as connection:
        for view in feature_views.views_reading(connection, mark.name, mark.version):
            if OwnerMark(VIEW, view.name, view.version) not in removed:
                yield format_object(VIEW, view.name, view.version)
    for dataset in find_pinning_datasets(session, mark.name, mark.version):
        yield f"training dataset {dataset.dataset!r} version {dataset.dataset_version}"


def _remaining_jobs(connection: Connection, removed: Collection[OwnerMark]) -> Iterator[JobSpec]:
    names = {mark.name for mark in removed if mark.object_type == JOB}
    for job in jobs.list_all(connection):
        if job.spec.name not in names:
            yield job.spec


def breaks_of_group(
    connection: Connection, mark: OwnerMark, removed: Collection[OwnerMark]
) -> Iterator[str]:
    """Yield the jobs that read or write a group, and the groups that compare with it."""
    for spec in _remaining_jobs(connection, removed):
        if mark.name in _groups_read(spec):
            yield f"job {spec.name!r}, which reads it"
        elif isinstance(spec.work, WindowedWork) and spec.target == mark.name:
            yield f"job {spec.name!r}, which writes it"
        elif mark.name in _groups_registered(spec):
            yield f"job {spec.name!r}, which registers it in source {spec.target!r}"
    for group in featuregroups.list_all(connection):
        if OwnerMark(GROUP, group.name, group.version) in removed or group.name == mark.name:
            continue
        compared = map(FeatureComparison.from_expectation, group.spec.expectations)
        if mark.name in [comparison.group for comparison in compared if comparison is not None]:
            title = format_object(GROUP, group.name, group.version)
            yield f"the expectations of {title}, which compare with it"


def breaks_of_view(
    connection: Connection, mark: OwnerMark, removed: Collection[OwnerMark]
) -> Iterator[str]:
    """Yield the jobs that publish a view, and the training datasets created from it."""
    for spec in _remaining_jobs(connection, removed):
        if mark.name in _published_views(spec):
            yield f"job {spec.name!r}, which publishes it"
    for name, version in feature_views.datasets_of(connection, mark.name, mark.version):
        yield f"the recomputation of training dataset {name!r} version {version}"


def breaks_of_job(
    connection: Connection, mark: OwnerMark, removed: Collection[OwnerMark]
) -> Iterator[str]:
    """Yield the group that a job computes, and the readers of this group."""
    job = jobs.get(connection, mark.name).spec
    groups = {mark.name for mark in removed if mark.object_type == GROUP}
    if not isinstance(job.work, WindowedWork) or job.target in groups:
        return
    if featuregroups.find(connection, job.target) is None:  # the job has not run yet
        return
    yield f"feature group {job.target!r}, which is no longer computed"
    for view in feature_views.views_reading(connection, job.target):
        if OwnerMark(VIEW, view.name, view.version) not in removed:
            yield f"{format_object(VIEW, view.name, view.version)}, which reads {job.target!r}"
    for spec in _remaining_jobs(connection, removed):
        if job.target in _groups_read(spec):
            yield f"job {spec.name!r}, which reads {job.target!r}"


def breaks_of_channel(
    connection: Connection, mark: OwnerMark, removed: Collection[OwnerMark]
) -> Iterator[str]:
    """Yield the jobs that send alerts to a channel."""
    for spec in _remaining_jobs(connection, removed):
        if mark.name in spec.alerts.channels:
            yield f"the alerts of job {spec.name!r}"


def breaks_of_source(
    connection: Connection, mark: OwnerMark, removed: Collection[OwnerMark]
) -> Iterator[str]:
    """Yield the external groups over a source, and the jobs that read it."""
    for group in featuregroups.list_all(connection):
        external = group.spec.external
        is_removed = OwnerMark(GROUP, group.name, group.version) in removed
        if external is not None and external.source == mark.name and not is_removed:
            yield f"external {format_object(GROUP, group.name, group.version)}"
    for spec in _remaining_jobs(connection, removed):
        if mark.name in _sources_read(spec):
            yield f"job {spec.name!r}, which reads it"
        if isinstance(spec.work, CatalogWork) and spec.target == mark.name:
            yield f"job {spec.name!r}, which registers feature groups in it"


def _groups_read(spec: JobSpec) -> set[str]:
    """Return the names of the groups that a job reads or monitors."""
    references = [
        reference
        for reference in spec.inputs.values()
        if "/" not in reference and ":" not in reference
    ]
    if isinstance(spec.work, MonitorWork):
        references.append(spec.work.watched.featuregroup)
    return {parse_group_reference(reference)[0] for reference in references}


def _groups_registered(spec: JobSpec) -> set[str]:
    """Return the names of the groups that a catalog job names."""
    references = None
    if isinstance(spec.work, CatalogWork):
        references = spec.work.registers.featuregroups
    return {parse_group_reference(reference)[0] for reference in references or ()}


def _published_views(spec: JobSpec) -> list[str]:
    """Return the names of the views that a job publishes."""
    if isinstance(spec.work, PublishWork | StreamWork):
        return [target.view for target in spec.work.publishes]
    return []


def _sources_read(spec: JobSpec) -> list[str]:
    """Return the names of the registered sources that a job reads."""
    if isinstance(spec.work, StreamWork):
        return [spec.work.stream.source]
    if isinstance(spec.work, TransformWork):
        return [source_input.source for source_input in spec.work.sources.values()]
    return []


_BREAKS: Mapping[str, Callable[[Connection, OwnerMark, Collection[OwnerMark]], Iterator[str]]] = {
    SOURCE: breaks_of_source,
    CHANNEL: breaks_of_channel,
    GROUP: breaks_of_group,
    VIEW: breaks_of_view,
    JOB: breaks_of_job,
}


def check_blockers(steps: Sequence[ProjectStep]) -> None:
    """Raise an error if an object cannot be removed, because others read it."""
    refusals = [
        Refusal(str(step.change), f"{', '.join(step.change.blockers)} must be removed before")
        for step in steps
        if step.change.blockers
    ]
    if refusals:
        raise refuse(refusals)


# -- removal --------------------------------------------------------------------------------------


_REMOVALS: Mapping[str, Callable[[Session, OwnerMark], object]] = {
    SOURCE: lambda session, mark: registration.remove(session, mark.name),
    CHANNEL: lambda session, mark: remove_channel(session, mark.name),
    GROUP: lambda session, mark: delete_group(session, mark.name, version=mark.version),
    VIEW: lambda session, mark: views.remove(session, mark.name, mark.version),
    JOB: lambda session, mark: remove_job(session, mark.name),
}
