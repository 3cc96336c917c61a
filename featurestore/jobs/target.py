"""The feature group that a job fills: found, declared, and asked what it holds."""

from __future__ import annotations

import os
from collections.abc import Iterator

from featurestore.delta import deltalog
from featurestore.delta.deltalog import LogCommit
from featurestore.featuregroups.definition import Declaration
from featurestore.featuregroups.table import OpenGroup, open_group
from featurestore.model.job import JobSpec
from featurestore.model.window import Window
from featurestore.registry import featuregroups
from featurestore.session import Session


def target(session: Session, spec: JobSpec) -> OpenGroup | None:
    """Return the group that a job fills; None when it must be made.

    That is so when it is absent, or when its key, times or partitions differ from the job's, which calls for the next
    version.
    """
    with session.registry.reading() as connection:
        if featuregroups.find(connection, spec.target) is None:
            return None
    group = open_group(session, spec.target)
    known = group.spec
    same = (known.primary_key, known.event_time, known.created_time, known.partition_by) == (
        spec.primary_key,
        spec.event_time,
        spec.created_time,
        spec.partition_by,
    )
    return group if same else None


def declaration(spec: JobSpec) -> Declaration:
    """Return what a job declares about the group that it fills."""
    return Declaration(
        primary_key=spec.primary_key,
        event_time=spec.event_time,
        created_time=spec.created_time,
        partition_by=spec.partition_by,
        ttl=spec.ttl,
        expectations=spec.expectations or None,
        validation=spec.validation,
        statistics=spec.statistics,
        description=spec.description,
        tags=dict(spec.tags),
        job=spec.name,
    )


def transaction(group: OpenGroup | None, spec: JobSpec, window: Window) -> tuple[str, int]:
    """Return the app of a chunk and the number after the last one that the table has for it.

    A window that is appended has number 0 for ever: whoever tries again, the table takes it once.
    """
    app = f"job/{spec.name}/{window.start.isoformat()}/{window.end.isoformat()}"
    if spec.mode == "append":
        return app, 0
    last = None if group is None else deltalog.transaction_version(group.path, app)
    return app, 0 if last is None else last + 1


def commits_of_job(session: Session, spec: JobSpec) -> Iterator[tuple[int, LogCommit]]:
    """Yield (version of the group, commit) of everything that a job wrote, newest first."""
    with session.registry.reading() as connection:
        versions = featuregroups.versions(connection, spec.target)
    for version in reversed(versions):
        yield from (
            (version, each)
            for each in job_commits(session.featuregroup_path(spec.target, version), spec.name)
        )


def job_commits(path: str, job: str | None = None) -> list[LogCommit]:
    """Return the commits of a table that hold windows of a job (None: of any job), newest first."""
    if not os.path.isdir(path):
        return []
    found = [each for each in deltalog.history(path) if isinstance(each.note.get("window"), dict)]
    return [each for each in found if job is None or each.note["window"].get("job") == job]
