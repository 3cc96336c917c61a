"""The application of a project: nothing is applied if any definition is refused.

Each step is complete or has no effect, so that after a crash a second ``apply`` plans the rest from
the state of the store. The owner mark of an object is written before the object, because an object
without a mark would never be removed.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import IntegrityError

from featurestore.alerts.channels import grant_channel
from featurestore.define.definitions import GroupContent, JobContent
from featurestore.define.loading import Project, load_project
from featurestore.define.plan import Planned, choose_project_name, mark_of, plan_project
from featurestore.define.removal import check_blockers
from featurestore.external import grant_rows
from featurestore.jobs.registration import grant_job
from featurestore.jobs.window_jobs import with_primary_key
from featurestore.model.alert import Channel
from featurestore.model.project import VIEW, ProjectPlan
from featurestore.model.source import SourceSpec
from featurestore.recovery import liveness
from featurestore.registry import featuregroups, intents, jobs, projects
from featurestore.session import Session
from featurestore.sources.registration import grant_source

# The intent of the one ``apply`` that may run in a store, of any project.
_INTENT = hashlib.sha256(b"apply").hexdigest()[:32]
_INTENT_KIND = "apply"
_POLL_SECONDS = 0.1


def apply_folder(
    session: Session,
    folder: str | os.PathLike[str],
    *,
    project: str | None = None,
    remove: bool = False,
) -> ProjectPlan:
    """Apply a folder of definitions to a store, and return the plan that was applied."""
    session.registry.check_writable()  # before any file is executed
    loaded = load_project(folder)
    name = choose_project_name(loaded, project)
    planned = plan_project(session, loaded, name)
    if planned.steps or (remove and planned.removals):
        with serialize_applies(session, name):
            # Another process may have changed the store while this one waited.
            planned = plan_project(session, loaded, name)
            if remove:
                check_blockers(planned.removals)
            apply_plan(session, planned, remove=remove)
    grant_definitions(session, loaded)
    return planned.plan


def apply_plan(session: Session, planned: Planned, *, remove: bool) -> None:
    """Apply the steps of a plan, each with its owner mark."""
    for step in planned.steps:
        change = step.change
        # A change of a view creates its next version. The mark is written first.
        if change.action == "create" or change.kind == VIEW:
            with session.registry.transaction() as connection:
                projects.add(connection, planned.project, mark_of(change))
        step.run(session)
    if not remove:
        return
    for step in planned.removals:
        step.run(session)
        with session.registry.transaction() as connection:
            projects.remove(connection, mark_of(step.change))
    with session.registry.transaction() as connection:
        for mark in planned.stale_marks:
            projects.remove(connection, mark)


def grant_definitions(session: Session, loaded: Project) -> None:
    """Allow what a project defines to act on this machine: jobs, sources, channels and queries.

    The store may have the registration from another machine, whose grants do not apply here.
    """
    for definition in loaded.definitions:
        content = definition.content
        if isinstance(content, SourceSpec):
            grant_source(session, content)
        elif isinstance(content, Channel):
            grant_channel(session, content)
        elif isinstance(content, JobContent):
            grant_job(session, with_primary_key(session, content.job.spec), content.file)
            with session.registry.reading() as connection:
                job = jobs.get(connection, definition.name)
            # The project may be another checkout than that of the last ``apply``.
            origin = content.file.origin
            if job.origin != origin:
                with session.registry.transaction() as connection:
                    jobs.register(connection, job.spec, origin=origin, watermark=None)
        elif isinstance(content, GroupContent) and content.declared.external is not None:
            with session.registry.reading() as connection:
                group = featuregroups.find(connection, definition.name, content.version)
            # The columns are those of the stored definition.
            if group is not None and group.spec.external == content.declared.external:
                grant_rows(session, group.spec)


@contextmanager
def serialize_applies(session: Session, project: str) -> Iterator[None]:
    """Wait until no other process applies a project to the store, and exclude others meanwhile."""
    with liveness.heartbeat(session.registry, session.location) as owner:
        while not begin_apply(session, owner, project):
            time.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            with session.registry.transaction() as connection:
                intents.end(connection, _INTENT)


def begin_apply(session: Session, owner: str, project: str) -> bool:
    """Record the intent of an ``apply``; return False while a live process has one."""
    try:
        with session.registry.transaction() as connection:
            intents.record_heartbeat(connection, owner)
            current = intents.find(connection, _INTENT)
            if current is not None:
                if liveness.is_alive(connection, session.location, current.owner):
                    return False
                intents.end(connection, _INTENT)
            intents.begin(
                connection, run_id=_INTENT, kind=_INTENT_KIND, name=project, version=1, owner=owner
            )
    # Two processes on a database server may both find no intent; one of them inserts it.
    except IntegrityError:
        return False
    return True
