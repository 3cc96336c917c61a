"""The plan of a project: all definitions of a folder, compared with a store.

Definitions are compared in the order of their dependencies, each against a draft of the registry
that contains the earlier ones. Nothing is written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from featurestore import config
from featurestore.define.definitions import Definition, GroupContent, JobContent
from featurestore.define.group_steps import compare_group
from featurestore.define.loading import Project, Refusal, load_project, refuse
from featurestore.define.removal import plan_removals
from featurestore.define.steps import (
    Draft,
    ProjectStep,
    compare_channel,
    compare_job,
    compare_source,
    compare_view,
    read_sources,
)
from featurestore.errors import (
    DefinitionMismatch,
    FeatureStoreError,
    InvalidArgument,
    InvalidExpectation,
)
from featurestore.featuregroups.redefinition import check_expectations
from featurestore.jobs.shared_targets import Registration
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
from featurestore.registry import featuregroups, jobs, projects
from featurestore.registry.projects import OwnerMark, draft
from featurestore.session import Session

_PROJECT_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_COMPARISONS: Mapping[str, Callable[[Draft, Definition, str], ProjectStep | None]] = {
    SOURCE: compare_source,
    CHANNEL: compare_channel,
    GROUP: compare_group,
    VIEW: compare_view,
    JOB: compare_job,
}


@dataclass(frozen=True)
class Planned:
    """A plan with the functions that apply it, and marks of objects that no longer exist."""

    project: str
    steps: tuple[ProjectStep, ...]
    removals: tuple[ProjectStep, ...]
    stale_marks: tuple[OwnerMark, ...]

    @property
    def plan(self) -> ProjectPlan:
        """The plan as data."""
        return ProjectPlan(
            self.project,
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
    steps, refusals = [], []
    reads = read_sources(session, loaded, project)
    with draft(session.registry) as registry:
        draft_session = replace(session, registry=registry, reads=session.recorder)
        contents = [
            definition.content
            for definition in loaded.definitions
            if isinstance(definition.content, JobContent)
        ]
        targets = {content.job.spec.target for content in contents}
        with registry.reading() as connection:
            targets |= {job.spec.target for job in jobs.list_all(connection)}
            marks = projects.marks(connection, project)
        defined = {(definition.object_type, definition.name) for definition in loaded.definitions}
        dropped = [mark for mark in marks if (mark.kind, mark.name) not in defined]
        registration = Registration(
            {content.job.spec.name: content.job.spec for content in contents},
            origins={content.file.origin for content in contents},
            removed={mark.name for mark in dropped if mark.kind == JOB},
        )
        for definition in sort_by_dependency(loaded.definitions):
            position = loaded.position(definition)
            try:
                check_owner(draft_session, definition, project)
                compare = _COMPARISONS[definition.object_type]
                current_draft = Draft(draft_session, targets, reads, registration)
                step = compare(current_draft, definition, position)
            except FeatureStoreError as error:
                refusals.append(Refusal(position, error.message, error.hint))
            else:
                steps += [step] if step is not None else []
        refusals += refuse_expectations(draft_session, loaded)
        if refusals:
            raise refuse(refusals)
        # The draft now contains the changed jobs and views, which removals may break.
        removals = plan_removals(draft_session, dropped)
    existing = {mark_of(step.change) for step in removals}
    stale_marks = tuple(mark for mark in dropped if mark not in existing)
    return Planned(project, tuple(steps), tuple(removals), stale_marks)


def refuse_expectations(session: Session, loaded: Project) -> list[Refusal]:
    """Return the groups whose expectations name columns or features that do not exist.

    They are checked against the complete draft, since groups may refer to each other.
    """
    refusals = []
    for definition in loaded.definitions:
        if not isinstance(definition.content, GroupContent):
            continue
        with session.registry.reading() as connection:
            group = featuregroups.find(connection, definition.name, definition.content.version)
        if group is None:  # the definition is refused for another reason
            continue
        try:
            check_expectations(session, group.spec)
        except InvalidExpectation as error:
            refusals.append(Refusal(loaded.position(definition), error.message, error.hint))
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
