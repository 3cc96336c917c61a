"""Import of a dbt project: compare its tables with the store, then create what changed."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from featurestore.dbt import freshness
from featurestore.dbt.definitions import (
    DBT_TAGS,
    NODE_TAG,
    PROJECT_TAG,
    NodeDefinition,
    add_relationships,
    define_node,
    group_name,
    table_of,
)
from featurestore.dbt.expectations import RelatedGroup
from featurestore.dbt.keys import NotImportable, check_importable
from featurestore.dbt.manifest import DbtNode, DbtProject, read_project
from featurestore.dbt.results import DbtChange, DbtImport, DbtSkipped
from featurestore.dbt.selection import select_nodes
from featurestore.delta import commits
from featurestore.errors import (
    FeatureStoreError,
    InvalidDbtProject,
    SourceNotFound,
    SourceUnavailable,
)
from featurestore.external import grant_rows
from featurestore.featuregroups import WriteRequest, create
from featurestore.featuregroups.comparison import (
    StoredDefinition,
    compare_definitions,
    describe_changes,
    read_definition,
)
from featurestore.featuregroups.definition import build_spec
from featurestore.featuregroups.redefinition import change_definition
from featurestore.featuregroups.table import OpenGroup, find_existing
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.group_options import DeclaredTypes, check_primary_key
from featurestore.model.job import JobSpec
from featurestore.model.names import check_name
from featurestore.registry import artifacts, featuregroups, jobs
from featurestore.registry import sources as registered_sources
from featurestore.session import Session
from featurestore.sources import build_query, define_external

_MAX_PROBLEMS = 20


@dataclass(frozen=True)
class _Step:
    """One change with what is needed to apply it; ``existing`` is the group before the import."""

    change: DbtChange
    definition: NodeDefinition
    schema: pa.Schema
    spec: FeatureGroupSpec
    existing: OpenGroup | None
    needs_version: bool
    metadata: commits.Meta
    monitor: JobSpec | None


@dataclass(frozen=True)
class _Table:
    """The definition of one dbt node without its comparisons with other nodes, and its columns."""

    definition: NodeDefinition
    schema: pa.Schema


@dataclass(frozen=True)
class _Plan:
    """The steps of an import; ``ended_monitors`` check a freshness that dbt no longer limits."""

    result: DbtImport
    steps: tuple[_Step, ...]
    ended_monitors: tuple[str, ...]


def plan_import(
    session: Session,
    manifest: str | os.PathLike[str],
    *,
    source: str,
    select: str | Sequence[str] | None,
) -> DbtImport:
    """Return what an import would change, without writing."""
    return _plan(session, manifest, source=source, select=select).result


def import_project(
    session: Session,
    manifest: str | os.PathLike[str],
    *,
    source: str,
    select: str | Sequence[str] | None,
) -> DbtImport:
    """Import the selected tables of a dbt project as external feature groups.

    All tables are checked before the first group is written.

    Raises:
        InvalidDbtProject: The manifest or nodes are invalid; the message names every node.
    """
    plan = _plan(session, manifest, source=source, select=select)
    for step in plan.steps:
        _apply(session, step, origin=freshness.origin_of(plan.result.project))
    with session.registry.transaction() as connection:
        for name in plan.ended_monitors:
            jobs.set_paused(connection, name, True)
    return plan.result


def _plan(
    session: Session,
    manifest: str | os.PathLike[str],
    *,
    source: str,
    select: str | Sequence[str] | None,
) -> _Plan:
    with session.registry.reading() as connection:
        source_kind = registered_sources.get(connection, source).kind
    project = read_project(manifest)
    nodes = select_nodes(project, select)
    imported_nodes = {tags[NODE_TAG] for _, _, tags in imported_groups(session)}
    rejections = _Rejections(imported_nodes, has_selection=select is not None)
    importable_nodes = []
    for node in nodes:
        with rejections.record(node):
            check_importable(node)
            importable_nodes.append(node)
    check_database(importable_nodes, source)
    tables: list[_Table] = []
    steps: list[_Step] = []
    for node in importable_nodes:
        with rejections.record(node):
            tables.append(define_table(session, project, node, source, source_kind))
    groups = find_related_groups(session, tables)
    for table in tables:
        with rejections.record(table.definition.node):
            steps.append(plan_node(session, project, table, groups))
    problems = [*rejections.problems, *find_equal_names(steps)]
    if problems:
        more = len(problems) - _MAX_PROBLEMS
        shown = [*problems[:_MAX_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]
        raise InvalidDbtProject(
            f"{len(problems)} of {len(nodes)} nodes of the dbt project {project.name!r} cannot be "
            f"imported: {' '.join(shown)}",
            hint="correct these nodes and run dbt again, or select fewer nodes",
        )
    notes = [note for step in steps for note in step.definition.notes]
    result = DbtImport(
        project.name,
        source,
        (*(step.change for step in steps), *find_removed(session, project)),
        tuple(notes),
        tuple(rejections.skipped),
    )
    unlimited = [step.definition.name for step in steps if step.monitor is None]
    ended_monitors = freshness.find_ended_monitors(session, unlimited)
    return _Plan(result, tuple(steps), tuple(ended_monitors))


@dataclass
class _Rejections:
    """The nodes that are not imported: problems, and nodes that may be left out.

    An import without a selection leaves out nodes without a table or a single key, unless they have
    settings, or were imported earlier.
    """

    imported_nodes: Container[str]
    has_selection: bool
    problems: list[str] = field(default_factory=list)
    skipped: list[DbtSkipped] = field(default_factory=list)

    @contextmanager
    def record(self, node: DbtNode) -> Iterator[None]:
        """Record an error of a node."""
        try:
            yield
        # Without the source, each node would have the same problem.
        except (SourceNotFound, SourceUnavailable):
            raise
        except NotImportable as error:
            is_requested = self.has_selection or node.settings is not None
            if is_requested or node.unique_id in self.imported_nodes:
                self.problems.append(f"{node} {error}. ({error.hint})")
            else:
                self.skipped.append(DbtSkipped(node.unique_id, str(error), error.hint))
        except FeatureStoreError as error:
            self.problems.append(describe_problem(node, error))


def find_related_groups(session: Session, tables: Sequence[_Table]) -> dict[str, RelatedGroup]:
    """Return the groups of all imported nodes by node id: those of the plan, and earlier ones."""
    groups = {}
    with session.registry.reading() as connection:
        for name, version, tags in imported_groups(session):
            spec = featuregroups.get(connection, name, version).spec
            groups[tags[NODE_TAG]] = RelatedGroup(name, spec.schema)
    for table in tables:
        definition = table.definition
        groups[definition.node.unique_id] = RelatedGroup(definition.name, table.schema)
    return groups


def check_database(nodes: Sequence[DbtNode], source: str) -> None:
    """Raise an error for nodes in several databases, of which the source reads only one."""
    databases: dict[str, DbtNode] = {}
    for node in nodes:
        databases.setdefault((node.database or "").lower(), node)
    if len(databases) > 1:
        (first, first_node), (second, second_node) = list(databases.items())[:2]
        raise InvalidDbtProject(
            f"{first_node} is in the database {first!r} and {second_node} in {second!r}; the source "
            f"{source!r} reads one database.",
            hint='import each database with a source of its own: select="path:models/marts"',
        )


def describe_problem(node: DbtNode, error: FeatureStoreError) -> str:
    """Return the message of an error with the name of the node and the hint."""
    text = error.message if str(node) in error.message else f"{node}: {error.message}"
    return text if error.hint is None else f"{text} ({error.hint})"


def find_equal_names(steps: Sequence[_Step]) -> list[str]:
    """Return a problem for each pair of nodes with the same feature group."""
    nodes: dict[str, DbtNode] = {}
    problems = []
    for step in steps:
        name = step.definition.name
        if name in nodes:
            problems.append(
                f"{nodes[name]} and {step.definition.node} both define the feature group {name!r}. "
                "(meta: {featurestore: {name: other_name}})"
            )
        nodes.setdefault(name, step.definition.node)
    return problems


def define_table(
    session: Session, project: DbtProject, node: DbtNode, source: str, source_kind: str
) -> _Table:
    """Read the columns of a node's table, and define its feature group."""
    check_name(group_name(node))
    query = build_query(table=table_of(node, source_kind))
    rows, schema = define_external(session, source, query, snapshots="training")
    definition = define_node(project, node, schema, source_kind=source_kind)
    is_complete = definition.sql is None and definition.columns == tuple(schema.names)
    if not is_complete or definition.snapshots != rows.snapshots:
        query = build_query(table=definition.table, sql=definition.sql, columns=definition.columns)
        rows, schema = define_external(session, source, query, snapshots=definition.snapshots)
    declared = replace(definition.declared, external=rows)
    check_primary_key(declared)
    return _Table(replace(definition, declared=declared), schema)


def plan_node(
    session: Session, project: DbtProject, table: _Table, groups: Mapping[str, RelatedGroup]
) -> _Step:
    """Compare a node with the feature group in the store."""
    schema = table.schema
    definition = add_relationships(table.definition, schema, groups)
    node, name, declared = definition.node, definition.name, definition.declared
    existing = find_existing(session, name)
    if existing is not None:
        check_origin(project, node, existing)
    version = 1 if existing is None else existing.spec.version
    spec = build_spec(declared, name=name, version=version, schema=schema)
    metadata = commits.Meta(
        description=declared.description,
        features=dict(declared.descriptions or {}),
        tags=dict(declared.tags),
    )
    monitor = freshness.build_freshness_monitor(node, name, definition.max_age)
    if existing is None:
        with session.registry.reading() as connection:
            version = featuregroups.latest_version(connection, name) + 1
        differences = [] if monitor is None else [freshness.describe_limit(definition.max_age)]
        change = DbtChange(node.unique_id, name, "created", version, tuple(differences))
        return _Step(change, definition, schema, spec, None, True, metadata, monitor)
    differences = compare_definitions(existing.spec, spec, DeclaredTypes()).conflicts
    needs_version = bool(differences)
    current = read_definition(existing)
    differences += describe_changes(current, change_fields(current, spec))
    metadata = merge_metadata(current.meta, metadata)
    differences += compare_metadata(current.meta, metadata)
    if freshness.is_new_monitor(session, monitor, origin=freshness.origin_of(project.name)):
        differences.append(freshness.describe_limit(definition.max_age))
    change = DbtChange(
        node.unique_id,
        name,
        "changed" if differences else "unchanged",
        version + needs_version,
        tuple(differences),
    )
    return _Step(change, definition, schema, spec, existing, needs_version, metadata, monitor)


def check_origin(project: DbtProject, node: DbtNode, existing: OpenGroup) -> None:
    """Raise an error for a group that was not imported from this node.

    The node may have another name than in the last import, if the old name no longer exists.
    """
    origin = commits.meta_of(existing.state).tags.get(NODE_TAG)
    if origin == node.unique_id:
        return
    name = existing.spec.name
    if origin is None or origin in project.nodes:
        owner = "not from dbt" if origin is None else f"from the dbt node {origin!r}"
        raise InvalidDbtProject(
            f"{node}: the feature group {name!r} exists and is {owner}.",
            hint=f"meta: {{featurestore: {{name: dbt_{name}}}}}",
        )


def change_fields(current: StoredDefinition, declared: FeatureGroupSpec) -> StoredDefinition:
    """Return a stored definition with the fields of dbt that change in place."""
    spec = replace(current.spec, ttl=declared.ttl, expectations=declared.expectations)
    return replace(current, spec=spec)


def merge_metadata(stored: commits.Meta, declared: commits.Meta) -> commits.Meta:
    """Return the stored metadata with that of dbt; descriptions and tags of users remain."""
    tags = {key: value for key, value in stored.tags.items() if key not in DBT_TAGS}
    return commits.Meta(
        description=declared.description or stored.description,
        features={**stored.features, **declared.features},
        tags={**tags, **declared.tags},
    )


def compare_metadata(stored: commits.Meta, merged: commits.Meta) -> list[str]:
    """Describe the changed descriptions and tags."""
    differences = []
    if stored.description != merged.description:
        differences.append("description")
    for column, text in merged.features.items():
        if stored.features.get(column) != text:
            differences.append(f"description of {column!r}")
    for key in sorted({*stored.tags, *merged.tags}):
        before, now = stored.tags.get(key), merged.tags.get(key)
        if before != now:
            differences.append(f"tag {key}: {before or 'none'} -> {now or 'none'}")
    return differences


# -- writes -----------------------------------------------------------------------------------


def _apply(session: Session, step: _Step, *, origin: str) -> None:
    """Write the changes of one node."""
    if step.needs_version:
        declared = replace(
            step.definition.declared,
            description=step.metadata.description,
            descriptions={
                name: text
                for name, text in step.metadata.features.items()
                if name in step.schema.names
            },
            tags=dict(step.metadata.tags),
        )
        # Only the definition is stored. The table has no rows to validate.
        request = WriteRequest(
            step.definition.name,
            version=step.change.version,
            options=declared,
            validation="off",
        )
        create(session, step.schema.empty_table(), request)
    elif step.existing is not None:
        change_definition(
            session,
            step.existing,
            lambda current: replace(change_fields(current, step.spec), meta=step.metadata),
        )
    if step.existing is not None and not step.needs_version:
        # The group may have been imported on another machine.
        grant_rows(session, step.existing.spec)
    if step.monitor is not None:
        freshness.start_monitor(session, step.monitor, origin=origin)


def find_removed(session: Session, project: DbtProject) -> list[DbtChange]:
    """Return the groups that were imported from nodes which the project no longer has."""
    removed = []
    for name, version, tags in imported_groups(session):
        node = tags[NODE_TAG]
        if tags.get(PROJECT_TAG) == project.name and node not in project.nodes:
            difference = f"the feature group remains; delete_featuregroup({name!r}) deletes it"
            removed.append(DbtChange(node, name, "removed", version, (difference,)))
    return removed


def imported_groups(session: Session) -> list[tuple[str, int, Mapping[str, str]]]:
    """Return name, version and tags of the latest versions that were imported from dbt."""
    with session.registry.reading() as connection:
        names = [name for name, _ in featuregroups.latest_names(connection, containing="")]
        tags = artifacts.tags_of_latest_groups(connection, featuregroups.KIND, names=names)
    return [
        (name, version, values)
        for (name, version), values in sorted(tags.items())
        if NODE_TAG in values
    ]
