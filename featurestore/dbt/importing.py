"""Import of a dbt project: its tables as definitions, which the engine of projects compares and applies.

An import knows its groups by their tags, which survive the loss of the registry, so it writes no owner
marks.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from featurestore.dbt import freshness
from featurestore.dbt.definitions import (
    NODE_TAG,
    PROJECT_TAG,
    DbtGroup,
    NodeDefinition,
    add_relationships,
    define_node,
    group_name,
    table_of,
)
from featurestore.dbt.expectations import RelatedGroup
from featurestore.dbt.keys import NotImportable, check_importable
from featurestore.dbt.manifest import DbtNode, DbtProject, read_project
from featurestore.dbt.results import Action, DbtChange, DbtImport, DbtSkipped
from featurestore.dbt.selection import select_nodes
from featurestore.define.apply import Planned, apply_planned, grant_definitions, plan_definitions
from featurestore.define.definitions import Definition, JobContent
from featurestore.errors import (
    FeatureStoreError,
    InvalidDbtProject,
    SourceNotFound,
    SourceUnavailable,
)
from featurestore.jobs.definitions import JobDefinition
from featurestore.jobs.registration import JobFile
from featurestore.model.group_options import check_primary_key
from featurestore.model.names import check_name
from featurestore.model.project import GROUP, JOB, PlannedChange
from featurestore.registry import artifacts, featuregroups, jobs
from featurestore.registry import sources as registered_sources
from featurestore.registry.projects import OwnerMark
from featurestore.session import Session
from featurestore.sources import build_query, define_external

_MAX_PROBLEMS = 20


@dataclass(frozen=True)
class _Table:
    """The definition of one dbt node, and its columns."""

    definition: NodeDefinition
    schema: pa.Schema


@dataclass(frozen=True)
class _ImportedGroup:
    """The latest version of a group that was imported from dbt, with its tags."""

    name: str
    version: int
    tags: Mapping[str, str]


@dataclass(frozen=True)
class _Plan:
    """The definitions of an import, and their plan.

    ``monitors`` are to be active, ``ended_monitors`` check a freshness that dbt no longer limits.
    """

    result: DbtImport
    planned: Planned
    definitions: tuple[Definition, ...]
    monitors: tuple[str, ...]
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
    remove: bool,
) -> DbtImport:
    """Import the selected tables of a dbt project as external feature groups.

    All tables are checked before the first group is written. With ``remove``, the groups of removed
    nodes are deleted.

    Raises:
        InvalidDbtProject: The manifest or nodes are invalid; the message names every node.
        DefinitionsRefused: A group cannot be deleted, because others read it.
    """
    plan = _plan(session, manifest, source=source, select=select, remove=remove)
    apply_planned(session, plan.planned, remove=remove)
    grant_definitions(session, plan.definitions, plan.planned)
    with session.registry.transaction() as connection:
        for name in plan.monitors:
            if jobs.get(connection, name).paused:
                jobs.set_paused(connection, name, False)
        for name in plan.ended_monitors:
            jobs.set_paused(connection, name, True)
    return plan.result


def _plan(
    session: Session,
    manifest: str | os.PathLike[str],
    *,
    source: str,
    select: str | Sequence[str] | None,
    remove: bool = False,
) -> _Plan:
    with session.registry.reading() as connection:
        source_kind = registered_sources.get(connection, source).kind
    project = read_project(manifest)
    nodes = select_nodes(project, select)
    imported = imported_groups(session)
    imported_nodes = {group.tags[NODE_TAG] for group in imported}
    rejections = _Rejections(imported_nodes, has_selection=select is not None)
    importable_nodes = []
    for node in nodes:
        with rejections.record(node):
            check_importable(node)
            importable_nodes.append(node)
    check_database(importable_nodes, source)
    tables: list[_Table] = []
    for node in importable_nodes:
        with rejections.record(node):
            tables.append(define_table(session, project, node, source, source_kind))
    groups = find_related_groups(session, tables, imported)
    for position, table in enumerate(tables):
        with rejections.record(table.definition.node):
            definition = add_relationships(table.definition, table.schema, groups)
            tables[position] = replace(table, definition=definition)
            check_origin(session, project, definition)
    rejections.problems += find_equal_names(tables)
    nodes_by_id = {str(node): node for node in importable_nodes}
    definitions = [
        definition
        for table in {table.definition.name: table for table in tables}.values()
        for definition in emit_definitions(project, table)
    ]
    dropped = find_dropped(session, project, imported)
    planned = plan_definitions(
        session,
        definitions,
        [mark for marks in dropped.values() for mark in marks],
        project=None,
        position=lambda definition: definition.file,
    )
    for refusal in planned.refusals:
        error = InvalidDbtProject(refusal.message, hint=refusal.hint)
        rejections.problems.append(describe_problem(nodes_by_id[refusal.position], error))
    rejections.check(project, len(nodes))
    steps = {(step.change.kind, step.change.name): step.change for step in planned.steps}
    changes = [describe_node(session, project, table, steps) for table in tables]
    removals = [step.change for step in planned.removals]
    removed = [
        describe_removed(group, removals, remove=remove)
        for group in imported
        if group.name in dropped
    ]
    result = DbtImport(
        project.name,
        source,
        (*changes, *removed),
        tuple(note for table in tables for note in table.definition.notes),
        tuple(rejections.skipped),
    )
    limited = [table for table in tables if table.definition.max_age is not None]
    unlimited = [table.definition.name for table in tables if table.definition.max_age is None]
    return _Plan(
        result,
        planned,
        tuple(definitions),
        tuple(freshness.monitor_name(table.definition.name) for table in limited),
        tuple(freshness.find_ended_monitors(session, unlimited)),
    )


def emit_definitions(project: DbtProject, table: _Table) -> Iterator[Definition]:
    """Yield the definitions of a node: its external group, and the monitor of its freshness."""
    node, name = table.definition.node, table.definition.name
    content = DbtGroup(table.definition.declared, None, table.schema)
    yield Definition(GROUP, name, content, file=str(node))
    monitor = freshness.build_freshness_monitor(node, name, table.definition.max_age)
    if monitor is not None:
        file = JobFile(freshness.origin_of(project.name), None, None)
        yield Definition(JOB, monitor.name, JobContent(JobDefinition(monitor), file), str(node))


def describe_node(
    session: Session,
    project: DbtProject,
    table: _Table,
    steps: Mapping[tuple[str, str], PlannedChange],
) -> DbtChange:
    """Return the change of one node, by the planned changes of its group and its monitor."""
    definition = table.definition
    node, name = definition.node, definition.name
    with session.registry.reading() as connection:
        registered = featuregroups.find(connection, name)
    step = steps.get((GROUP, name))
    differences = [] if step is None or registered is None else list(step.details)
    monitor = freshness.build_freshness_monitor(node, name, definition.max_age)
    if freshness.is_new_monitor(session, monitor, origin=freshness.origin_of(project.name)):
        differences.append(freshness.describe_limit(definition.max_age))
    version = None if registered is None else registered.version
    if step is not None:
        version = step.version
    if registered is None:
        return DbtChange(node.unique_id, name, "created", version or 1, tuple(differences))
    action: Action = "changed" if differences else "unchanged"
    return DbtChange(node.unique_id, name, action, version or 1, tuple(differences))


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

    def check(self, project: DbtProject, selected: int) -> None:
        """Raise an error that names each node with a problem."""
        if not self.problems:
            return
        more = len(self.problems) - _MAX_PROBLEMS
        shown = [*self.problems[:_MAX_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]
        raise InvalidDbtProject(
            f"{len(self.problems)} of {selected} nodes of the dbt project {project.name!r} cannot be "
            f"imported: {' '.join(shown)}",
            hint="correct these nodes and run dbt again, or select fewer nodes",
        )


def find_related_groups(
    session: Session, tables: Sequence[_Table], imported: Sequence[_ImportedGroup]
) -> dict[str, RelatedGroup]:
    """Return the groups of all imported nodes by node id: those of the plan, and earlier ones."""
    groups = {}
    with session.registry.reading() as connection:
        for group in imported:
            spec = featuregroups.get(connection, group.name, group.version).spec
            groups[group.tags[NODE_TAG]] = RelatedGroup(group.name, spec.schema)
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


def find_equal_names(tables: Sequence[_Table]) -> list[str]:
    """Return a problem for each pair of nodes with the same feature group."""
    nodes: dict[str, DbtNode] = {}
    problems = []
    for table in tables:
        name, node = table.definition.name, table.definition.node
        if name in nodes:
            problems.append(
                f"{nodes[name]} and {node} both define the feature group {name!r}. "
                "(meta: {featurestore: {name: other_name}})"
            )
        nodes.setdefault(name, node)
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


def check_origin(session: Session, project: DbtProject, definition: NodeDefinition) -> None:
    """Raise an error for a group that was not imported from this node.

    The node may have another name than in the last import, if the old name no longer exists.
    """
    node, name = definition.node, definition.name
    with session.registry.reading() as connection:
        registered = featuregroups.find(connection, name)
        if registered is None:
            return
        tags = artifacts.tags_of(connection, featuregroups.KIND, name, registered.version)
    origin = tags.get(NODE_TAG)
    if origin != node.unique_id and (origin is None or origin in project.nodes):
        owner = "not from dbt" if origin is None else f"from the dbt node {origin!r}"
        raise InvalidDbtProject(
            f"{node}: the feature group {name!r} exists and is {owner}.",
            hint=f"meta: {{featurestore: {{name: dbt_{name}}}}}",
        )


# -- removal ----------------------------------------------------------------------------------


def find_dropped(
    session: Session, project: DbtProject, imported: Sequence[_ImportedGroup]
) -> dict[str, list[OwnerMark]]:
    """Return the groups of nodes that the project no longer has, with all that an import created.

    These are the versions of the group that were imported from the node, and its freshness monitor.
    """
    dropped = {}
    origin = freshness.origin_of(project.name)
    with session.registry.reading() as connection:
        for group in imported:
            node = group.tags[NODE_TAG]
            if group.tags.get(PROJECT_TAG) != project.name or node in project.nodes:
                continue
            marks = [
                OwnerMark(GROUP, group.name, version)
                for version in featuregroups.versions(connection, group.name)
                if artifacts.tags_of(connection, featuregroups.KIND, group.name, version).get(
                    NODE_TAG
                )
                == node
            ]
            monitor = jobs.find(connection, freshness.monitor_name(group.name))
            if monitor is not None and monitor.origin == origin:
                marks.append(OwnerMark(JOB, monitor.spec.name, 1))
            dropped[group.name] = marks
    return dropped


def describe_removed(
    group: _ImportedGroup, removals: Sequence[PlannedChange], *, remove: bool
) -> DbtChange:
    """Return the change of a removed node, with what a removal of its group breaks."""
    own = [
        change
        for change in removals
        if (change.kind, change.name)
        in ((GROUP, group.name), (JOB, freshness.monitor_name(group.name)))
    ]
    difference = f"the feature group remains; delete_featuregroup({group.name!r}) deletes it"
    if remove:
        difference = "the feature group is deleted"
    return DbtChange(
        group.tags[NODE_TAG],
        group.name,
        "removed",
        group.version,
        (difference,),
        tuple(dict.fromkeys(text for change in own for text in change.breaks)),
        tuple(dict.fromkeys(text for change in own for text in change.blockers)),
    )


def imported_groups(session: Session) -> list[_ImportedGroup]:
    """Return the latest versions of the groups that were imported from dbt."""
    with session.registry.reading() as connection:
        names = [name for name, _ in featuregroups.latest_names(connection, containing="")]
        tags = artifacts.tags_of_latest_groups(connection, featuregroups.KIND, names=names)
    return [
        _ImportedGroup(name, version, values)
        for (name, version), values in sorted(tags.items())
        if NODE_TAG in values
    ]
