"""Jobs with one target: which jobs may write the same feature group, and which jobs write it.

Two jobs that replace windows of one group would delete rows of each other. Therefore a group has
one job, unless all its jobs append or upsert rows with disjoint keys, and their definitions set
``shared=True``. A stream and another job are often intended, for example if a batch job replaces
the rows of a stream after each day, and only cause a warning.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from sqlalchemy.engine import Connection

from featurestore.delta import commits
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import FeatureStoreError, InvalidJob, JobWarning
from featurestore.featuregroups.comparison import COLUMN_FIELDS
from featurestore.featuregroups.table import OpenGroup
from featurestore.featuregroups.writers import (
    GroupWriter,
    change_writers,
    select_writers,
    writers_of,
)
from featurestore.model.arguments import warn_caller
from featurestore.model.job import GroupWork, JobSpec, StreamWork, WindowedWork
from featurestore.registry import featuregroups, jobs
from featurestore.session import Session


@dataclass(frozen=True)
class Registration:
    """Definitions that are registered together, by name, and the files that were loaded.

    A job of these files without a definition was removed from its file, or has another name now.
    ``removed`` are the names of further jobs that no longer exist.
    """

    specs: Mapping[str, JobSpec]
    origins: Collection[str] = ()
    removed: Collection[str] = ()

    def removes(self, job: jobs.RegisteredJob) -> bool:
        """Return whether the definition of a registered job was removed."""
        name = job.spec.name
        return name in self.removed or (job.origin in self.origins and name not in self.specs)

    def replace_spec(self, spec: JobSpec) -> Registration:
        """Return the definitions with another definition of one job."""
        return replace(self, specs={**self.specs, spec.name: spec})


def check_targets(
    connection: Connection,
    session: Session,
    registration: Registration,
    *,
    name: str | None = None,
    warns: bool = True,
) -> list[str]:
    """Refuse jobs whose target another job writes.

    Return the former writers of the targets: jobs that their files no longer define.

    Args:
        connection: The connection.
        session: The connection to the store.
        registration: The definitions.
        name: The job to check; None: all definitions.
        warns: Whether streams that write the group of another job cause a warning.

    Raises:
        InvalidJob: Another job writes the group, and the definitions do not share it.
    """
    registered_jobs = {job.spec.name: job for job in jobs.list_all(connection)}
    former = [job_name for job_name, job in registered_jobs.items() if registration.removes(job)]
    specs = {
        job_name: job.spec for job_name, job in registered_jobs.items() if job_name not in former
    } | dict(registration.specs)
    for spec in registration.specs.values():
        work = spec.work
        if name not in (None, spec.name) or not isinstance(work, GroupWork):
            continue
        group = _find_group(connection, session, work.target)
        # The registry has the current definition of a job; the table also names jobs of other
        # registries.
        writers = {} if group is None else writers_of(group)
        writers = {
            writer_name: writer
            for writer_name, writer in writers.items()
            if writer_name not in registered_jobs
        }
        writers |= select_writers(specs.values(), work.target)
        writers.pop(spec.name, None)
        earlier = registered_jobs.get(spec.name)
        is_writer = earlier is not None and bool(select_writers([earlier.spec], work.target))
        for writer_name, writer in writers.items():
            # Two jobs of an earlier release may be registered. One becomes shared before the other.
            if not (work.shared and (writer.shared or is_writer)):
                refuse_pair(spec.name, work, writer_name, writer, warns=warns)
            other_work = specs[writer_name].work if writer_name in specs else None
            if isinstance(other_work, GroupWork):
                check_same_roles(spec.name, work, writer_name, other_work)
    return former


def refuse_pair(job: str, work: GroupWork, name: str, writer: GroupWriter, *, warns: bool) -> None:
    """Refuse a job whose group another job writes; only warn if one job is a stream."""
    title = f"Job {job!r} and job {name!r} both write feature group {work.target!r}"
    if isinstance(work, StreamWork) or writer.stream:
        if not warns:
            return
        warn_caller(
            f"{title}, and each may replace rows of the other. If their keys are disjoint, set "
            "shared=True in both definitions.",
            JobWarning,
        )
        return
    free_name = f"{work.target}_2" if job == work.target else job
    advice, hint = "", f"featuregroup={free_name!r}"
    if isinstance(work, WindowedWork) and work.mode != "replace_window":
        hint = "shared=True"
        advice = " If their keys are disjoint, set shared=True in both definitions."
        if work.shared:
            advice = f" The definition of {name!r} does not set shared=True."
            hint = f"shared=True in the definition of {name!r}"
    raise InvalidJob(
        f"{title}, so a run of one could replace rows of the other.{advice} 'featurestore job remove "
        f"{name}' releases the group.",
        hint=hint,
    )


def check_same_roles(job: str, work: GroupWork, second_job: str, second: GroupWork) -> None:
    """Refuse jobs with different keys or times, which would create a version in turn."""
    for argument in COLUMN_FIELDS:
        first_value, second_value = (
            getattr(options, argument) for options in (work.options, second.options)
        )
        if work.shared and second.shared and first_value != second_value:
            raise InvalidJob(
                f"Job {job!r} and job {second_job!r} share feature group {work.target!r}, "
                f"but {argument} is {first_value!r} in one and {second_value!r} in the other.",
                hint=f"{argument}={second_value!r}",
            )


def claim_target(session: Session, spec: JobSpec, *, former: Collection[str] = ()) -> None:
    """Record in the table of its target that a job writes it, and remove ``former`` writers."""
    writers_of_spec = select_writers([spec], spec.target)
    if not writers_of_spec:
        return
    with session.registry.reading() as connection:
        group = _find_group(connection, session, spec.target)
    if group is not None:
        change_writers(
            session,
            group,
            lambda writers: {
                **{name: writer for name, writer in writers.items() if name not in former},
                **writers_of_spec,
            },
        )


def release_target(session: Session, spec: JobSpec) -> None:
    """Remove a job from the recorded writers of its target."""
    with session.registry.reading() as connection:
        group = _find_group(connection, session, spec.target)
    if group is not None and isinstance(spec.work, GroupWork):
        _remove_writer(session, group, spec.name)


def release_groups(session: Session, job: str) -> list[str]:
    """Remove a job from the recorded writers of all groups, and return the names of these groups.

    The job may be unknown to this registry, for example after its loss.
    """
    with session.registry.reading() as connection:
        names = {group.spec.name for group in featuregroups.list_all(connection)}
        groups = {name: _find_group(connection, session, name) for name in sorted(names)}
    released = []
    for name, group in groups.items():
        if group is not None and job in writers_of(group):
            _remove_writer(session, group, job)
            released.append(name)
    return released


def _remove_writer(session: Session, group: OpenGroup, job: str) -> None:
    change_writers(
        session,
        group,
        lambda writers: {name: writer for name, writer in writers.items() if name != job},
    )


def _find_group(connection: Connection, session: Session, name: str) -> OpenGroup | None:
    """Open the latest version of a group; None if it does not exist or cannot be read."""
    registered = featuregroups.find(connection, name)
    if registered is not None:
        path = session.featuregroup_path(name, registered.version)
        with suppress(FeatureStoreError, OSError):
            state = read_snapshot(path)
            return OpenGroup(commits.spec_of(state), path, state)
    return None
