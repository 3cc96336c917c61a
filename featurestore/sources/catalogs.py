"""Registration of feature groups as external tables of a catalog, and its updates.

A second call changes only what differs. Tables of changed groups are replaced. A table that this
store registered is removed when its group no longer exists or has an obstacle (``find_obstacle``),
such as that it became private. Tables without the mark of this store are never changed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from featurestore.delta import commits, iceberg
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import FeatureGroupNotFound, InvalidArgument, SourceError
from featurestore.external.reading import open_source
from featurestore.model import display
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.names import format_group_reference, parse_group_reference
from featurestore.model.records import Record
from featurestore.plugins.catalog import CatalogSource, CatalogTable, TableCatalog, TableMark
from featurestore.registry import featuregroups as groups
from featurestore.registry.hidden import find_hidden_objects
from featurestore.session import Session
from featurestore.sources import registration
from featurestore.storage import storage_for
from featurestore.storage.location import remove_owner

_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")


@dataclass(frozen=True)
class CatalogRegistration(Record):
    """What a call of ``register_in`` changed: the names of the catalog's tables.

    ``skipped`` has the reason for each feature group that cannot be registered.
    """

    source: str
    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    __repr__ = display.record_repr

    def __str__(self) -> str:
        counts = [
            f"{len(getattr(self, action))} {action}"
            for action in ("created", "updated", "removed", "unchanged")
        ]
        lines = [f"catalog {self.source}: {', '.join(counts)}"]
        for action in ("created", "updated", "removed"):
            lines += [f"{action:<9} {name}" for name in getattr(self, action)]
        return "\n".join([*lines, *(f"skipped   {text}" for text in self.skipped)])

    def _repr_html_(self) -> str:
        return display.preformatted(str(self))


@dataclass(frozen=True)
class _Changes:
    """The groups to register by reference, the tables to remove, and the skipped groups."""

    specs: Mapping[str, FeatureGroupSpec]
    removed: tuple[str, ...]
    skipped: tuple[str, ...]


def register_groups(
    session: Session, name: str, *, featuregroups: str | Iterable[str] | None, schema: str
) -> CatalogRegistration:
    """Synchronize the tables of a catalog with feature groups.

    Raises:
        SourceNotFound: No source with this name is registered.
        InvalidArgument: The source has no catalog, or a group cannot be registered.
        FeatureGroupNotFound: A group does not exist.
        SourceError: A table exists and was not registered by this store, or the catalog refuses it.
    """
    session.registry.check_writable()
    source = open_catalog_source(session, name)
    check_schema(schema)
    references = None if featuregroups is None else parse_references(featuregroups)
    catalog = source.catalog()
    try:
        existing = catalog.tables(schema)
        changes = plan_changes(session, catalog, existing, references)
        # Nothing may delay this: tables of private groups must not stay because others conflict.
        for table_name in changes.removed:
            catalog.remove(schema, table_name)
        existing = {
            table_name: mark
            for table_name, mark in existing.items()
            if table_name not in changes.removed
        }
        tables = build_tables(session, catalog, changes.specs, schema)
        check_owners(name, tables, existing, store=store_uri(session))
        actions = write_tables(catalog, tables, existing)
    finally:
        catalog.close()
    return CatalogRegistration(
        name,
        removed=tuple(f"{schema}.{table_name}" for table_name in changes.removed),
        skipped=changes.skipped,
        **actions,
    )


def open_catalog_source(session: Session, name: str) -> CatalogSource:
    """Return a source in whose catalog tables can be registered, without connecting to it.

    Raises:
        SourceNotFound: No source with this name is registered.
        InvalidArgument: The source is not a catalog.
    """
    spec = registration.get(session, name)
    source = open_source(session, spec)
    if not isinstance(source, CatalogSource):
        raise InvalidArgument(
            f"Source {name!r} is of kind {spec.kind!r}, which is not a catalog of tables.",
            hint="add_source('lake', 'unity://host/catalog') or 'iceberg+https://host'",
        )
    return source


def check_schema(schema: object) -> None:
    """Raise InvalidArgument if a value is not the name of a schema."""
    if not isinstance(schema, str) or not _SCHEMA.fullmatch(schema):
        raise InvalidArgument(
            f"schema={schema!r} is not the name of a schema.", hint="schema='featurestore'"
        )


def parse_references(featuregroups: str | Iterable[str]) -> tuple[str, ...]:
    """Return normalized references of groups; a string is one reference."""
    names = [featuregroups] if isinstance(featuregroups, str) else featuregroups
    return tuple(format_group_reference(*parse_group_reference(name)) for name in names)


def plan_changes(
    session: Session,
    catalog: TableCatalog,
    existing: Mapping[str, TableMark | None],
    references: Sequence[str] | None,
) -> _Changes:
    """Return what must be registered and removed; nothing is written.

    Tables that were registered earlier are synchronized, too, also if ``references`` omits their
    groups.
    """
    with session.registry.reading() as connection:
        # Catalogs have other users than the store. Groups derived from private ones are private.
        hidden = find_hidden_objects(connection, granted=(), reads_store=True).groups
        candidates = references
        if candidates is None:
            candidates = [name for name, _ in groups.latest_names(connection, containing="")]
    specs: dict[str, FeatureGroupSpec] = {}
    skipped = []
    for reference in candidates:
        spec = find_spec(session, reference)
        reason = find_obstacle(spec, catalog, hidden)
        if reason is None:
            specs[reference] = spec
        elif references is None:
            skipped.append(f"{reference}: {reason}")
        else:
            raise InvalidArgument(
                f"Feature group {reference!r} cannot be registered: {reason}.",
                hint="omit featuregroups= to register all groups that can be registered",
            )
    removed = []
    for name, mark in existing.items():
        if mark is None or mark.store != store_uri(session):
            continue
        try:
            spec = find_spec(session, mark.group)
        except FeatureGroupNotFound:
            removed.append(name)
            continue
        if find_obstacle(spec, catalog, hidden) is None:
            specs[mark.group] = spec
        else:
            removed.append(name)
    return _Changes(specs, tuple(removed), tuple(skipped))


def find_spec(session: Session, reference: str) -> FeatureGroupSpec:
    """Return the definition of a group version."""
    name, version = parse_group_reference(reference)
    with session.registry.reading() as connection:
        return groups.get(connection, name, version).spec


def find_obstacle(
    spec: FeatureGroupSpec, catalog: TableCatalog, hidden: Collection[str]
) -> str | None:
    """Return the reason why a catalog must not have a table of a group, None if it can.

    The rule applies to new tables and to those that were registered earlier. ``hidden`` are the
    names of private groups and of groups derived from them.
    """
    if spec.name in hidden:
        return "it is private"
    if spec.external is not None:
        return "its rows are in another source"
    if catalog.table_format == "iceberg" and not spec.iceberg:
        return "it was not created with iceberg=True"
    return None


def build_tables(
    session: Session, catalog: TableCatalog, specs: Mapping[str, FeatureGroupSpec], schema: str
) -> list[CatalogTable]:
    """Return groups as tables; raise InvalidArgument if two groups would be one table."""
    tables: dict[str, CatalogTable] = {}
    for reference, spec in sorted(specs.items()):
        table = build_table(session, catalog, reference, spec, schema)
        if table.name in tables:
            raise InvalidArgument(
                f"Feature groups {tables[table.name].mark.group!r} and {reference!r} would both be "
                f"the table {table.full_name!r}.",
                hint="register only one group, or pass another schema=",
            )
        tables[table.name] = table
    return list(tables.values())


def build_table(
    session: Session, catalog: TableCatalog, reference: str, spec: FeatureGroupSpec, schema: str
) -> CatalogTable:
    """Return a group as a table; references with a version have it in their names."""
    path = session.featuregroup_path(spec.name, spec.version)
    state = read_snapshot(path)
    meta = commits.meta_of(state)
    columns = json.loads(state.metadata["schemaString"])["fields"]
    metadata = None
    if catalog.table_format == "iceberg":
        # Written again from the log: clients of the catalog open all files that the metadata names,
        # and another program could have changed it.
        iceberg.publish(path)
        metadata = to_uri(iceberg.current_metadata(path))
        fields: list[Any] = [metadata]
    else:
        fields = [columns, state.partition_by, meta.description, dict(meta.features)]
    content = json.dumps([to_uri(path), *fields], sort_keys=True)
    definition = hashlib.sha256(content.encode()).hexdigest()
    return CatalogTable(
        schema=schema,
        name=reference.replace("@", "_"),
        location=to_uri(path),
        columns=columns,
        partition_by=state.partition_by,
        comment=meta.description,
        comments=dict(meta.features),
        metadata=metadata,
        mark=TableMark(store_uri(session), reference, definition),
    )


def to_uri(path: str) -> str:
    """Return the URI by which other programs read a path of the store."""
    return f"file://{path}" if storage_for(path).is_local else remove_owner(path)


def store_uri(session: Session) -> str:
    """Return the location of the store, by which its marks are recognized."""
    return to_uri(session.location)


def check_owners(
    source: str,
    tables: Sequence[CatalogTable],
    existing: Mapping[str, TableMark | None],
    *,
    store: str,
) -> None:
    """Raise an error for tables that exist and were not registered by this store."""
    conflicts = []
    for table in tables:
        mark = existing.get(table.name)
        if mark is not None and mark.store != store:
            conflicts.append(f"{table.full_name!r} (registered by the store at {mark.store})")
        elif mark is None and table.name in existing:
            conflicts.append(f"{table.full_name!r}")
    if conflicts:
        raise SourceError(
            f"Source {source!r}: tables exist that were not registered by this store: "
            f"{', '.join(conflicts)}. No table was created or replaced.",
            hint=f"register_in({source!r}, schema='another_schema'), or drop them in the catalog",
        )


def write_tables(
    catalog: TableCatalog, tables: Sequence[CatalogTable], existing: Mapping[str, TableMark | None]
) -> dict[str, tuple[str, ...]]:
    """Register and replace tables, and return their full names by action."""
    names: dict[str, list[str]] = {"created": [], "updated": [], "unchanged": []}
    for table in tables:
        mark = existing.get(table.name)
        if mark is None:
            catalog.create(table)
            action = "created"
        elif mark != table.mark:
            catalog.replace(table)
            action = "updated"
        else:
            action = "unchanged"
        names[action].append(table.full_name)
    return {action: tuple(values) for action, values in names.items()}
