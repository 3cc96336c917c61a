"""The plan of a project, and its application: nothing is applied if any definition is refused.

A plan compares all definitions of a folder with a store, in the order of their dependencies, each
against a draft of the registry that contains the earlier ones. A plan writes nothing.

Each step is complete or has no effect, so that after a crash a second ``apply`` plans the rest from
the state of the store. The owner mark of an object is written before the object, because an object
without a mark would never be removed.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sqlalchemy.exc import IntegrityError

from featurestore import config
from featurestore.alerts.channels import grant_channel
from featurestore.define import steps as comparisons
from featurestore.define.definitions import Definition, GroupContent, JobContent
from featurestore.define.group_steps import compare_group
from featurestore.define.loading import Project, Refusal, load_project, refuse
from featurestore.define.removal import check_blockers, plan_removals
from featurestore.define.steps import Draft, ProjectStep
from featurestore.errors import (
    DefinitionMismatch,
    FeatureStoreError,
    InvalidArgument,
    InvalidExpectation,
)
from featurestore.external import grant_rows
from featurestore.featuregroups.redefinition import check_expectations
from featurestore.jobs.registration import grant_job
from featurestore.jobs.shared_targets import Registration
from featurestore.jobs.window_jobs import with_primary_key
from featurestore.model.alert import Channel
from featurestore.model.names import check_name
from featurestore.model.project import (
    CHANNEL,
    GROUP,
    JOB,
    KINDS,
    SOURCE,
    VIEW,
    PlannedChange,
    ProjectPlan,
    format_object,
)
from featurestore.model.source import SourceSpec
from featurestore.recovery import liveness
from featurestore.registry import featuregroups, intents, jobs, projects
from featurestore.registry.projects import OwnerMark, draft
from featurestore.session import Session
from featurestore.sources.registration import grant_source

_PROJECT_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_COMPARISONS: Mapping[str, Callable[[Draft, Definition, str], ProjectStep | None]] = {
    SOURCE: comparisons.compare_source,
    CHANNEL: comparisons.compare_channel,
    GROUP: compare_group,
    VIEW: comparisons.compare_view,
    JOB: comparisons.compare_job,
}


@dataclass(frozen=True)
class Planned:
    """A plan with the functions that apply it, and marks of objects that no longer exist.

    ``current_versions`` are the versions of the groups that the definitions describe. ``project`` is
    None if the registry has no owner marks of the objects. A plan with refusals is not applied.
    """

    project: str | None
    steps: tuple[ProjectStep, ...]
    removals: tuple[ProjectStep, ...]
    stale_marks: tuple[OwnerMark, ...]
    refusals: tuple[Refusal, ...]
    current_versions: Mapping[str, int]

    @property
    def plan(self) -> ProjectPlan:
        """The plan as data."""
        return ProjectPlan(
            self.project or "",
            tuple(step.change for step in self.steps),
            tuple(step.change for step in self.removals),
        )


def plan_folder(
    session: Session, folder: str | os.PathLike[str], *, project: str | None = None
) -> ProjectPlan:
    """Return the changes that ``apply`` would make, without making them."""
    # A served store is refused before any file is executed.
    with session.registry.reading():
        pass
    loaded = load_project(folder)
    return plan_project(session, loaded, choose_project_name(loaded, project)).plan


def choose_project_name(loaded: Project, name: str | None) -> str:
    """Return the name of a project: the argument, featurestore.toml, or the name of its folder."""
    name = name or config.resolve().project
    if name is not None:
        return check_name(name, noun="project")
    folder = os.path.basename(os.path.dirname(loaded.folder)).lower()
    derived = re.sub(r"[^a-z0-9_]+", "_", folder).strip("_")
    if not _PROJECT_NAME.fullmatch(derived):
        raise InvalidArgument(
            f"The project at {loaded.folder!r} has no name.",
            hint='project = "demand" in featurestore.toml',
        )
    return derived


def plan_project(session: Session, loaded: Project, project: str) -> Planned:
    """Compare all definitions with the store; raise DefinitionsRefused for those it refuses."""
    defined = {(definition.object_type, definition.name) for definition in loaded.definitions}
    with session.registry.reading() as connection:
        marks = projects.marks(connection, project)
    dropped = [mark for mark in marks if (mark.object_type, mark.name) not in defined]
    planned = plan_definitions(
        session, loaded.definitions, dropped, project=project, position=loaded.position
    )
    if planned.refusals:
        raise refuse(planned.refusals)
    return planned


def plan_definitions(
    session: Session,
    definitions: Sequence[Definition],
    dropped: Sequence[OwnerMark],
    *,
    project: str | None,
    position: Callable[[Definition], str],
) -> Planned:
    """Compare definitions with a store, without writing to it.

    Args:
        session: The connection.
        definitions: What the store is to contain.
        dropped: The objects that earlier definitions created and that are no longer defined.
        project: The project that owns the objects; None: their owner is not in the registry.
        position: Returns where a definition was written, for refusals and changes.
    """
    steps, refusals = [], []
    reads = comparisons.read_sources(session, definitions, project)
    with draft(session.registry) as registry:
        current_draft = open_draft(
            replace(session, registry=registry, reads=session.recorder), definitions, dropped, reads
        )
        for definition in sort_by_dependency(definitions):
            try:
                if project is not None:
                    check_owner(current_draft.session, definition, project)
                compare = _COMPARISONS[definition.object_type]
                step = compare(current_draft, definition, position(definition))
            except FeatureStoreError as error:
                refusals.append(Refusal(position(definition), error.message, error.hint))
            else:
                steps += [step] if step is not None else []
        refusals += refuse_expectations(current_draft, definitions, position)
        # The draft now contains the changed jobs and views, which removals may break.
        removals = [] if refusals else plan_removals(current_draft.session, dropped)
    existing = {mark_of(step.change) for step in removals}
    return Planned(
        project,
        tuple(steps),
        tuple(removals),
        tuple(mark for mark in dropped if mark not in existing),
        tuple(refusals),
        current_draft.current_versions,
    )


def open_draft(
    session: Session,
    definitions: Sequence[Definition],
    dropped: Sequence[OwnerMark],
    reads: comparisons.SourceLookups,
) -> Draft:
    """Return a draft with the jobs of the definitions and of the store."""
    contents = [
        definition.content
        for definition in definitions
        if isinstance(definition.content, JobContent)
    ]
    targets = {content.job.spec.target for content in contents}
    with session.registry.reading() as connection:
        targets |= {job.spec.target for job in jobs.list_all(connection)}
    registration = Registration(
        {content.job.spec.name: content.job.spec for content in contents},
        origins={content.file.origin for content in contents},
        removed={mark.name for mark in dropped if mark.object_type == JOB},
    )
    return Draft(session, targets, reads, registration)


def refuse_expectations(
    draft: Draft, definitions: Sequence[Definition], position: Callable[[Definition], str]
) -> list[Refusal]:
    """Return the groups whose expectations name columns or features that do not exist.

    They are checked against the complete draft, since groups may refer to each other.
    """
    refusals = []
    for definition in definitions:
        if not isinstance(definition.content, GroupContent):
            continue
        version = definition.content.version or draft.current_versions.get(definition.name)
        with draft.session.registry.reading() as connection:
            group = featuregroups.find(connection, definition.name, version)
        if group is None:  # the definition is refused for another reason
            continue
        try:
            check_expectations(draft.session, group.spec)
        except InvalidExpectation as error:
            refusals.append(Refusal(position(definition), error.message, error.hint))
    return refusals


def sort_by_dependency(definitions: Sequence[Definition]) -> list[Definition]:
    """Return definitions in the order of their dependencies."""

    def key(definition: Definition) -> tuple[int, str, int]:
        version = getattr(definition.content, "version", None)
        return KINDS.index(definition.object_type), definition.name, version or 0

    return sorted(definitions, key=key)


def check_owner(session: Session, definition: Definition, project: str) -> None:
    """Raise an error if another project created an object."""
    with session.registry.reading() as connection:
        owner = projects.owner(connection, definition.object_type, definition.name)
    if owner not in (None, project):
        title = format_object(definition.object_type, definition.name, None)
        raise DefinitionMismatch(
            f"The {title} belongs to the project {owner!r}, and this is the project {project!r}.",
            hint=f"choose another name, or project={owner!r} if it is the same project",
        )


def mark_of(change: PlannedChange) -> OwnerMark:
    """Return the owner mark of the object that a change creates or removes."""
    return OwnerMark(change.kind, change.name, change.version or 1)


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
            apply_planned(session, planned, remove=remove)
    grant_definitions(session, loaded.definitions, planned)
    return planned.plan


def apply_planned(session: Session, planned: Planned, *, remove: bool) -> None:
    """Apply the steps of a plan, each with its owner mark.

    Raises:
        DefinitionsRefused: ``remove`` is set, and others read an object that would be removed.
    """
    if remove:
        check_blockers(planned.removals)
    for step in planned.steps:
        change = step.change
        # A change of a view creates its next version. The mark is written first.
        creates = change.action == "create" or change.kind == VIEW
        if planned.project is not None and creates:
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


def grant_definitions(
    session: Session, definitions: Sequence[Definition], planned: Planned
) -> None:
    """Allow what a project defines to act on this machine: jobs, sources, channels and queries.

    The store may have the registration from another machine, whose grants do not apply here. The steps
    of the plan have granted the groups that they created, and the jobs that they registered.
    """
    granted = {
        (step.change.kind, step.change.name, step.change.version)
        for step in planned.steps
        if step.change.kind == JOB or step.change.action == "create"
    }
    for definition in definitions:
        content = definition.content
        if isinstance(content, SourceSpec):
            grant_source(session, content)
        elif isinstance(content, Channel):
            grant_channel(session, content)
        elif isinstance(content, JobContent):
            if (JOB, definition.name, None) in granted:
                continue
            grant_job(session, with_primary_key(session, content.job.spec), content.file)
            with session.registry.reading() as connection:
                job = jobs.get(connection, definition.name)
            # The project may be another checkout than that of the last ``apply``.
            origin = content.file.origin
            if job.origin != origin:
                with session.registry.transaction() as connection:
                    jobs.register(connection, job.spec, origin=origin, watermark=None)
        elif isinstance(content, GroupContent) and content.declared.external is not None:
            version = content.version or planned.current_versions.get(definition.name)
            if (GROUP, definition.name, version) in granted:
                continue
            with session.registry.reading() as connection:
                group = featuregroups.find(connection, definition.name, version)
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
