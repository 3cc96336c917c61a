"""Feature groups in the registry: which versions exist, where, and with which definition."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from featurestore.arrow.fitting import widens
from featurestore.errors import (
    FeatureGroupExists,
    FeatureGroupNotFound,
    did_you_mean,
    listing,
)
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.names import suggest_group
from featurestore.model.times import from_micros, to_micros, utc_now
from featurestore.registry import features, search_documents
from featurestore.registry.rows import readable, versions_of
from featurestore.registry.tables import contains_text, featuregroups, is_latest, tags

KIND = "featuregroup"


@dataclass(frozen=True)
class RegisteredGroup:
    """One version of a feature group as the registry knows it.

    ``delta_version`` may lag behind the table.
    """

    id: int
    spec: FeatureGroupSpec
    table_id: str
    delta_version: int
    description: str
    created: datetime

    @property
    def name(self) -> str:
        """The name of the group."""
        return self.spec.name

    @property
    def version(self) -> int:
        """The group version."""
        return self.spec.version


def add(
    connection: Connection,
    spec: FeatureGroupSpec,
    *,
    table_id: str,
    delta_version: int,
    description: str = "",
    created: datetime | None = None,
    changed: datetime | None = None,
) -> int:
    """Register a version and its features; return its id.

    A table that is registered already, as ``registry rebuild`` does during a creation, is brought
    up to date.

    Raises:
        FeatureGroupExists: Another table is registered as that version.
    """
    existing = _row(connection, spec.name, spec.version)
    if existing is not None and existing.table_id == table_id:
        advance(connection, spec.name, spec.version, delta_version=delta_version, spec=spec)
        return int(existing.id)
    if existing is not None:
        raise FeatureGroupExists(
            f"Feature group {spec.name!r} version {spec.version} exists already.",
            hint="leave version=None for the next version, or use insert_into_featuregroup",
        )
    creation_time = created or utc_now()
    inserted = connection.execute(
        featuregroups.insert().values(
            name=spec.name,
            version=spec.version,
            table_id=table_id,
            delta_version=delta_version,
            spec=json.dumps(spec.to_json()),
            description=description,
            job=spec.job,
            created=to_micros(creation_time),
            changed=to_micros(changed or creation_time),
        )
    )
    key = inserted.inserted_primary_key
    identifier = int(key[0]) if key is not None else -1
    features.replace(connection, identifier, spec)
    _search_description(connection, spec.name, spec.version, description)
    return identifier


def find(connection: Connection, name: str, version: int | None = None) -> RegisteredGroup | None:
    """Return a version (None: the latest), or None when there is no such."""
    row = _row(connection, name, version)
    return None if row is None else _group(row)


def get(connection: Connection, name: str, version: int | None = None) -> RegisteredGroup:
    """Return a version (None: the latest).

    Raises:
        FeatureGroupNotFound: Lists the versions, or the groups, that there are.
    """
    group = find(connection, name, version)
    if group is not None:
        return group
    existing = versions(connection, name)
    if existing:
        raise FeatureGroupNotFound(
            f"Feature group {name!r} has no version {version}; "
            f"it has {', '.join(map(str, existing))}.",
            hint=f"the latest is {name}@v{max(existing)}",
        )
    groups = names(connection)
    raise FeatureGroupNotFound(
        f"Unknown feature group {name!r}. Available: {listing(groups)}.",
        hint=suggest_group(name, groups) or "featurestore.create_featuregroup(df, name) makes one",
        command=did_you_mean(name, groups) or "featurestore fg list",
    )


def versions(connection: Connection, name: str) -> list[int]:
    """Return the versions of a group, ascending; empty if it does not exist."""
    query = (
        sa.select(featuregroups.c.version)
        .where(featuregroups.c.name == name)
        .order_by(featuregroups.c.version)
    )
    return versions_of(connection, query, f"feature group {name!r}")


def names(connection: Connection) -> list[str]:
    """Return the names of all groups, in order."""
    query = sa.select(featuregroups.c.name).distinct().order_by(featuregroups.c.name)
    return list(connection.execute(query).scalars())


def of_name(connection: Connection, name: str) -> list[RegisteredGroup]:
    """Return every version of a group, ascending; empty if it does not exist."""
    query = (
        sa.select(featuregroups)
        .where(featuregroups.c.name == name)
        .order_by(featuregroups.c.version)
    )
    return [_group(row) for row in connection.execute(query)]


def latest_version(connection: Connection, name: str) -> int:
    """Return the latest version of a group; 0 if it does not exist."""
    return max(versions(connection, name), default=0)


def every(
    connection: Connection, *, limit: int | None = None, offset: int = 0
) -> list[RegisteredGroup]:
    """Return versions of groups, by name and version: all, or one page."""
    query = sa.select(featuregroups).order_by(featuregroups.c.name, featuregroups.c.version)
    query = query.limit(limit).offset(offset)
    return [_group(row) for row in connection.execute(query)]


def latest_names(
    connection: Connection, *, containing: str, limit: int | None = None
) -> list[tuple[str, int]]:
    """Return name and latest version of the groups whose name contains a text, in whatever case."""
    name, version = featuregroups.c.name, featuregroups.c.version
    matches = contains_text(connection, name, containing)
    query = sa.select(name, version).where(matches, is_latest(featuregroups)).order_by(name)
    if limit is not None:
        query = query.limit(limit)
    return [(row.name, row.version) for row in connection.execute(query)]


def latest_descriptions(
    connection: Connection, *, names: Collection[str]
) -> list[tuple[str, int, str]]:
    """Return name, version, description of the latest versions of these names that have one."""
    columns = featuregroups.c
    query = sa.select(columns.name, columns.version, columns.description).where(
        columns.name.in_(names), columns.description != "", is_latest(featuregroups)
    )
    rows = connection.execute(query.order_by(columns.name))
    return [(row.name, row.version, row.description) for row in rows]


def advance(
    connection: Connection,
    name: str,
    version: int,
    *,
    delta_version: int,
    spec: FeatureGroupSpec | None = None,
    written: datetime | None = None,
) -> None:
    """Record the table's Delta version, written ``at``, and its spec where its columns grew.

    What is known of a later one stays.
    """
    row = _row(connection, name, version)
    if row is None:
        return
    changed: dict[str, object] = {"delta_version": max(row.delta_version, delta_version)}
    if delta_version > row.delta_version:
        changed["changed"] = to_micros(written or utc_now())
    if spec is not None:
        stored_spec = _group(row).spec
        if _has_grown(stored_spec.schema, spec.schema):
            changed["spec"] = json.dumps(spec.to_json())
            features.replace(connection, row.id, spec)
    connection.execute(featuregroups.update().where(featuregroups.c.id == row.id).values(**changed))


def _has_grown(registered: pa.Schema, schema: pa.Schema) -> bool:
    """Return whether a schema has all columns of a registered one, and more of them or wider ones."""
    if set(registered.names) < set(schema.names):
        return True
    if set(registered.names) != set(schema.names) or registered == schema:
        return False
    types = dict(zip(schema.names, schema.types, strict=True))
    return all(widens(field.type, types[field.name]) for field in registered)


def describe(
    connection: Connection,
    name: str,
    version: int,
    description: str,
    *,
    descriptions: Mapping[str, str],
) -> None:
    """Set the description of a version, and those of its features."""
    row = _row(connection, name, version)
    if row is not None:
        features.describe(connection, row.id, name, version, descriptions)
        _search_description(connection, name, version, description)
    connection.execute(
        featuregroups.update()
        .where(featuregroups.c.name == name, featuregroups.c.version == version)
        .values(description=description)
    )


def _search_description(connection: Connection, name: str, version: int, text: str) -> None:
    field = search_documents.DESCRIPTION
    search_documents.replace(connection, KIND, name, version, field, [text])


def remove(connection: Connection, name: str, version: int) -> None:
    """Forget a version with its features and tags."""
    row = _row(connection, name, version)
    if row is not None:
        connection.execute(featuregroups.delete().where(featuregroups.c.id == row.id))
    connection.execute(
        tags.delete().where(tags.c.kind == KIND, tags.c.name == name, tags.c.version == version)
    )
    search_documents.remove(connection, KIND, name, version)


def _row(connection: Connection, name: str, version: int | None) -> Row[tuple[object, ...]] | None:
    query = sa.select(featuregroups).where(featuregroups.c.name == name)
    if version is None:
        query = query.order_by(featuregroups.c.version.desc()).limit(1)
    else:
        query = query.where(featuregroups.c.version == version)
    return connection.execute(query).first()


def _group(row: Row[tuple[object, ...]]) -> RegisteredGroup:
    with readable(f"feature group {row.name!r} version {row.version}"):
        return RegisteredGroup(
            id=row.id,
            spec=FeatureGroupSpec.from_json(json.loads(row.spec)),
            table_id=str(row.table_id),
            delta_version=int(row.delta_version),
            description=str(row.description),
            created=from_micros(row.created),
        )
