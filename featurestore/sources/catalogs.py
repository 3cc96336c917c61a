"""Registration of feature groups as external tables of a catalog, and its updates.

A second call changes only what differs: tables of changed groups are replaced, and tables of
deleted groups are removed. Tables without the mark of this store are never changed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from featurestore.delta import commits, iceberg
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import (
    FeatureGroupNotFound,
    InvalidArgument,
    SourceError,
)
from featurestore.external.reading import open_source
from featurestore.model import display
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.names import format_group_reference, parse_group_reference
from featurestore.plugins.catalog import CatalogSource, CatalogTable, TableCatalog, TableMark
from featurestore.registry import featuregroups as groups
from featurestore.registry.hidden import find_hidden_objects
from featurestore.session import Session
from featurestore.sources import registration
from featurestore.storage import storage_for
from featurestore.storage.location import remove_owner

_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")


@dataclass(frozen=True)
class CatalogRegistration:
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

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return {
            name: value if isinstance(value, str) else list(value)
            for name, value in vars(self).items()
        }


@dataclass(frozen=True)
class _Changes:
    """The tables to register, those of deleted groups to remove, and the skipped groups."""

    tables: tuple[CatalogTable, ...]
    removed: tuple[str, ...]
    skipped: tuple[str, ...]


def register_groups(
    session: Session,
    name: str,
    *,
    featuregroups: str | Iterable[str] | None,
    schema: str,
) -> CatalogRegistration:
    """Bring the tables of a catalog in step with feature groups.

    Raises:
        SourceNotFound: No source with this name is registered.
        InvalidArgument: The source has no catalog, or a group cannot be registered.
        FeatureGroupNotFound: A group does not exist.
        SourceError: A table exists and was not registered by this store, or the catalog refuses it.
    """
    session.registry.check_writable()
    spec = registration.get(session, name)
    source = open_source(session, spec)
    if not isinstance(source, CatalogSource):
        raise InvalidArgument(
            f"Source {name!r} is of kind {spec.kind!r}, which is not a catalog of tables.",
            hint="add_source('lake', 'unity://host/catalog') or 'iceberg+https://host'",
        )
    if not isinstance(schema, str) or not _SCHEMA.fullmatch(schema):
        raise InvalidArgument(
            f"schema={schema!r} is not the name of a schema.", hint="schema='featurestore'"
        )
    references = None
    if featuregroups is not None:
        # A string is one name.
        names = [featuregroups] if isinstance(featuregroups, str) else list(featuregroups)
        references = [format_group_reference(*parse_group_reference(each)) for each in names]
    catalog = source.catalog()
    try:
        existing = catalog.tables(schema)
        changes = plan_changes(session, catalog, existing, references, schema)
        check_owners(name, changes.tables, existing, store=store_uri(session))
        return apply_changes(name, catalog, changes, existing, schema)
    finally:
        catalog.close()


def plan_changes(
    session: Session,
    catalog: TableCatalog,
    existing: Mapping[str, TableMark | None],
    references: Sequence[str] | None,
    schema: str,
) -> _Changes:
    """Return what must be registered and removed; nothing is written.

    Tables that were registered earlier remain in step, also if ``references`` omits their groups.
    """
    if references is None:
        specs, skipped = find_all_groups(session, catalog)
    else:
        specs, skipped = find_groups(session, catalog, references), []
    removed = []
    for name, mark in existing.items():
        if mark is None or mark.store != store_uri(session) or mark.group in specs:
            continue
        try:
            spec = find_spec(session, mark.group)
        except FeatureGroupNotFound:
            removed.append(name)
            continue
        if find_obstacle(spec, catalog) is None:
            specs[mark.group] = spec
        else:
            removed.append(name)
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
    return _Changes(tuple(tables.values()), tuple(removed), tuple(skipped))


def find_all_groups(
    session: Session, catalog: TableCatalog
) -> tuple[dict[str, FeatureGroupSpec], list[str]]:
    """Return the public groups that can be registered, and the reasons for others."""
    with session.registry.reading() as connection:
        names = [name for name, _ in groups.latest_names(connection, containing="")]
        # Catalogs have other users than the store. Groups derived from private ones are private.
        hidden = find_hidden_objects(connection, granted=(), reads_store=True).groups
    specs, skipped = {}, []
    for name in names:
        spec = find_spec(session, name)
        reason = "it is private" if name in hidden else find_obstacle(spec, catalog)
        if reason is None:
            specs[name] = spec
        else:
            skipped.append(f"{name}: {reason}")
    return specs, skipped


def find_groups(
    session: Session, catalog: TableCatalog, references: Sequence[str]
) -> dict[str, FeatureGroupSpec]:
    """Return the requested groups; raise an error for one that cannot be registered."""
    specs = {}
    for reference in references:
        specs[reference] = find_spec(session, reference)
        reason = find_obstacle(specs[reference], catalog)
        if reason is not None:
            raise InvalidArgument(
                f"Feature group {reference!r} cannot be registered: {reason}.",
                hint="omit featuregroups= to register all groups that can be registered",
            )
    return specs


def find_spec(session: Session, reference: str) -> FeatureGroupSpec:
    """Return the definition of a group version."""
    name, version = parse_group_reference(reference)
    with session.registry.reading() as connection:
        return groups.get(connection, name, version).spec


def find_obstacle(spec: FeatureGroupSpec, catalog: TableCatalog) -> str | None:
    """Return the reason why a group cannot be registered, None if it can."""
    if spec.external is not None:
        return "its rows are in another source"
    if catalog.table_format == "iceberg" and not spec.iceberg:
        return "it was not created with iceberg=True"
    return None


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
            f"{', '.join(conflicts)}. Nothing was changed.",
            hint=f"register_in({source!r}, schema='another_schema'), or drop them in the catalog",
        )


def apply_changes(
    source: str,
    catalog: TableCatalog,
    changes: _Changes,
    existing: Mapping[str, TableMark | None],
    schema: str,
) -> CatalogRegistration:
    """Register, replace and remove tables."""
    names: dict[str, list[str]] = {"created": [], "updated": [], "unchanged": []}
    for table in changes.tables:
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
    for name in changes.removed:
        catalog.remove(schema, name)
    return CatalogRegistration(
        source,
        removed=tuple(f"{schema}.{name}" for name in changes.removed),
        skipped=changes.skipped,
        **{action: tuple(values) for action, values in names.items()},
    )
