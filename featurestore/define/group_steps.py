"""Comparison of feature group definitions with a store.

A group evolves in place if its rows fit the definition: descriptions, tags, new columns, wider
decimals, and the fields that ``update_featuregroup`` changes. Other differences need the next
version, which the definition names, because rows are never rewritten. A definition without a version
that describes an earlier version, such as after a revert in git, makes it the current one again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from featurestore.define.definitions import Definition, GroupContent
from featurestore.define.steps import DRAFT_TABLE, Draft, ProjectStep
from featurestore.delta.log import latest_version
from featurestore.errors import DefinitionMismatch
from featurestore.featuregroups import WriteRequest, create, insert
from featurestore.featuregroups.comparison import (
    DefinitionComparison,
    StoredDefinition,
    compare_definitions,
    read_definition,
)
from featurestore.featuregroups.definition import build_spec
from featurestore.featuregroups.redefinition import change_definition
from featurestore.featuregroups.schema_change import widen_table
from featurestore.featuregroups.table import OpenGroup, next_version, open_group, open_stored
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.project import VIEW, PlannedChange, format_object
from featurestore.recovery.in_flight import in_flight
from featurestore.registry import featuregroups
from featurestore.registry.artifacts import feature_views
from featurestore.session import Session
from featurestore.sources.registration import get as get_source


@dataclass(frozen=True)
class Evolution:
    """The change of a stored group to its definition, which is in place without conflicts."""

    content: GroupContent
    comparison: DefinitionComparison
    conflicts: tuple[str, ...]

    @property
    def spec(self) -> FeatureGroupSpec:
        """The stored definition with the changes that are applied in place."""
        return self.comparison.evolve(self.content.changeable_fields)

    def change(self, definition: StoredDefinition) -> StoredDefinition:
        """Return a stored definition with the changed fields, descriptions and tags."""
        changed = definition.with_fields(self.comparison.declared, self.content.changeable_fields)
        return replace(changed, meta=self.content.merge_metadata(definition.meta))

    def describe(self, group: OpenGroup) -> list[str]:
        """Describe what the change of the group does."""
        current = read_definition(group)
        changes = self.content.describe_changes(current, self.change(current))
        return [*self.conflicts, *self.comparison.describe_columns(), *changes]


def compare_group(draft: Draft, definition: Definition, position: str) -> ProjectStep | None:
    """Return the step that creates a feature group, or changes it in place.

    Raises:
        DefinitionMismatch: The definition needs the next version; the hint is the line to add.
    """
    content = definition.content
    assert isinstance(content, GroupContent)
    with draft.session.registry.reading() as connection:
        registered = featuregroups.find(connection, definition.name, content.version)
        latest = featuregroups.latest_version(connection, definition.name)
    if registered is None:
        return plan_creation(draft, definition, content, position)
    group = open_group(draft.session, definition.name, registered.version)
    evolution = find_evolution(group, content)
    if evolution.conflicts and content.creates_versions:
        return plan_next_version(draft, definition, group, evolution, position)
    if evolution.conflicts and content.version is None:
        group, evolution = find_earlier_version(draft.session, group, content) or (group, evolution)
    if evolution.conflicts:
        raise conflict_error(evolution, next_version=max(latest, registered.version) + 1)
    add_current_version(draft, definition.name, group.spec.version)
    details = evolution.describe(group)
    if not details:
        return None
    with draft.session.registry.transaction() as connection:
        featuregroups.redefine(connection, evolution.spec)
        if group.spec.ttl != evolution.spec.ttl:
            for view in feature_views.views_reading(
                connection, definition.name, group.spec.version
            ):
                title = format_object(VIEW, view.name, view.version)
                details.append(f"later retrievals of {title} use the new ttl")
    change = PlannedChange(
        "change",
        definition.object_type,
        definition.name,
        version=group.spec.version,
        details=tuple(details),
        position=position,
    )
    return ProjectStep(change, lambda session: evolve(session, evolution))


def add_current_version(draft: Draft, name: str, version: int) -> None:
    """Record a version that a definition describes; views of the project read the newest one."""
    draft.current_versions[name] = max(version, draft.current_versions.get(name, 0))


def find_earlier_version(
    session: Session, latest: OpenGroup, content: GroupContent
) -> tuple[OpenGroup, Evolution] | None:
    """Return the newest version before the latest one whose columns and keys a definition has.

    This is the version that a revert in git describes again. Its metadata may differ, but a version
    that would get new columns is not the one that was reverted to.
    """
    name = latest.spec.name
    with session.registry.reading() as connection:
        versions = featuregroups.versions(connection, name)
    for version in sorted(versions, reverse=True):
        if version < latest.spec.version:
            group = open_group(session, name, version)
            evolution = find_evolution(group, content)
            if not evolution.conflicts and not evolution.comparison.changed_columns:
                return group, evolution
    return None


def plan_next_version(
    draft: Draft, definition: Definition, group: OpenGroup, evolution: Evolution, position: str
) -> ProjectStep:
    """Return the step that creates the version after an existing one, with its metadata."""
    content, current = evolution.content, read_definition(group)
    meta = content.merge_metadata(current.meta)
    columns = evolution.comparison.declared.schema.names
    features = {name: text for name, text in meta.features.items() if name in columns}
    declared = replace(
        content.declared, description=meta.description, descriptions=features, tags=meta.tags
    )
    step = plan_creation(draft, definition, replace(content, declared=declared), position)
    details = [*evolution.conflicts, *content.describe_changes(current, evolution.change(current))]
    return replace(step, change=replace(step.change, details=tuple(details)))


def plan_creation(
    draft: Draft, definition: Definition, content: GroupContent, position: str
) -> ProjectStep:
    """Return the step that creates a version of a group without rows."""
    name = definition.name
    version = content.version or next_version(draft.session, name)
    schema = content.schema
    if schema is None:
        assert content.declared.external is not None
        assert content.query is not None
        source = get_source(draft.session, content.declared.external.source)
        schema = draft.reads.schema(draft.session, source, content.query)
    spec = build_spec(content.declared, name=name, version=version, schema=schema)
    with draft.session.registry.transaction() as connection:
        featuregroups.add(connection, spec, table_id=DRAFT_TABLE, delta_version=0)
    add_current_version(draft, name, version)
    change = PlannedChange(
        "create",
        definition.object_type,
        name,
        version=version,
        details=(f"columns {', '.join(schema.names)}",),
        position=position,
    )
    # There are no rows to validate.
    request = WriteRequest(name, version=version, options=content.declared, validation="off")

    def run(session: Session) -> None:
        create(session, schema.empty_table(), request)

    return ProjectStep(change, run)


def find_evolution(group: OpenGroup, content: GroupContent) -> Evolution:
    """Return the change that applies its definition to a group."""
    stored, declared = group.spec, content.declared
    schema = stored.schema if content.schema is None else content.schema
    declared_spec = build_spec(declared, name=stored.name, version=stored.version, schema=schema)
    comparison = compare_definitions(stored, declared_spec, declared.types)
    conflicts = comparison.conflicts
    # The columns of a renamed query have other names in the source.
    query = content.query
    if query is not None and query.columns is not None and not query.options:
        columns, names = list(query.columns), stored.schema.names
        conflicts += [f"columns: stored {names}, declared {columns}"] * (set(columns) != set(names))
    return Evolution(content, comparison, tuple(conflicts))


def conflict_error(evolution: Evolution, *, next_version: int) -> DefinitionMismatch:
    """Return the error for a definition that needs another version."""
    stored = evolution.comparison.stored
    return DefinitionMismatch(
        f"Feature group {stored.name!r} version {stored.version} cannot change in place: "
        f"{'; '.join(evolution.conflicts)}.",
        hint=f"version={next_version} in the definition creates the next version without rows",
    )


def evolve(session: Session, evolution: Evolution) -> None:
    """Change a group in place; each step can be repeated after a crash."""
    spec = evolution.spec
    name, version = spec.name, spec.version
    group = open_group(session, name, version)
    if spec.external is None:
        group = open_stored(session, name, version, to="change the columns")
        with in_flight(session, operation="write", name=name, version=version) as run:
            widen_table(session, group, spec)
            run.committed_version = latest_version(group.path)
            run.registered = True
    added = [field.name for field in evolution.comparison.added_columns]
    if not set(added) <= set(group.spec.schema.names):
        request = WriteRequest(name, version=version, schema_change="add", validation="off")
        insert(session, spec.schema.empty_table(), request)
    change_definition(session, open_group(session, name, version), evolution.change)
