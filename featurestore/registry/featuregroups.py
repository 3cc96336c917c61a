"""Feature groups and their features in the registry: versions, definitions and descriptions."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from featurestore.arrow.fitting import can_widen
from featurestore.errors import FeatureGroupExists, FeatureGroupNotFound
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.names import suggest_group
from featurestore.model.times import from_micros, to_micros, utc_now
from featurestore.registry import search_documents
from featurestore.registry.artifacts import VersionedTable
from featurestore.registry.rows import existing_values, translate_parse_errors
from featurestore.registry.tables import contains_text, featuregroups, features, is_latest

KIND = "featuregroup"
# A search usually needs the first rows of a query.
_ROWS_READ_AT_ONCE = 100
TABLE = VersionedTable(
    object_kind=KIND,
    noun="feature group",
    table=featuregroups,
    not_found=FeatureGroupNotFound,
    latest_hint="the latest is {name}@v{version}",
    creation_hint="featurestore.create_featuregroup(df, name) creates one",
    suggest=suggest_group,
    list_command="featurestore fg list",
)
versions, names, remove = TABLE.versions, TABLE.names, TABLE.remove
unregistered_error = TABLE.unregistered_error
list_keys = TABLE.list_all
lock_version = TABLE.lock_version


@dataclass(frozen=True)
class RegisteredGroup:
    """A feature group version in the registry.

    ``delta_version`` may be older than the current table version.
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


@dataclass(frozen=True)
class RegisteredFeature:
    """A column of a feature group version; ``role`` is "feature", "key" or "time"."""

    group: str
    version: int
    name: str
    type: str
    role: str

    @property
    def reference(self) -> str:
        """The feature reference of the column, without a version."""
        return f"{self.group}.{self.name}"


def add(
    connection: Connection,
    spec: FeatureGroupSpec,
    *,
    table_id: str,
    delta_version: int,
    description: str = "",
    feature_descriptions: Mapping[str, str] = MappingProxyType({}),
    created: datetime | None = None,
    changed: datetime | None = None,
) -> None:
    """Register a version and its features with their descriptions.

    If the same table is already registered, its registration is updated, since ``registry rebuild``
    may run during a creation.

    Raises:
        FeatureGroupExists: Another table is registered as this version.
    """
    lock_version(connection, spec.name, spec.version)
    existing = TABLE.row(connection, spec.name, spec.version)
    if existing is not None and existing.table_id == table_id:
        version = spec.version
        advance(connection, spec.name, version, delta_version=delta_version, spec=spec)
        describe(connection, spec.name, version, description, descriptions=feature_descriptions)
        return
    if existing is not None:
        raise FeatureGroupExists(
            f"Feature group {spec.name!r} version {spec.version} already exists.",
            hint="use version=None for the next version, or insert_into_featuregroup",
        )
    creation_time = created or utc_now()
    rows = _feature_rows(spec, feature_descriptions)
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
            features=_count_features(rows),
        )
    )
    key = inserted.inserted_primary_key
    assert key is not None  # both databases return the key of a single row
    connection.execute(features.insert(), [{"featuregroup_id": key[0], **row} for row in rows])
    texts = {
        search_documents.FEATURE: spec.schema.names,
        search_documents.FEATURE_DESCRIPTION: feature_descriptions.values(),
        search_documents.DESCRIPTION: [description],
    }
    search_documents.replace(connection, KIND, spec.name, spec.version, texts)


def find(connection: Connection, name: str, version: int | None = None) -> RegisteredGroup | None:
    """Return a version (None: the latest), or None if it does not exist."""
    row = TABLE.row(connection, name, version)
    return None if row is None else _to_registered_group(row)


def get(connection: Connection, name: str, version: int | None = None) -> RegisteredGroup:
    """Return a version (None: the latest).

    Raises:
        FeatureGroupNotFound: The message lists the versions of the group, or all groups.
    """
    group = find(connection, name, version)
    if group is None:
        raise TABLE.missing(connection, name, version)
    return group


def list_versions(connection: Connection, name: str) -> list[RegisteredGroup]:
    """Return all versions of a group in ascending order; empty if it does not exist."""
    query = (
        sa.select(featuregroups)
        .where(featuregroups.c.name == name)
        .order_by(featuregroups.c.version)
    )
    return [_to_registered_group(row) for row in connection.execute(query)]


def latest_version(connection: Connection, name: str) -> int:
    """Return the latest version of a group, 0 if the group does not exist."""
    return max(versions(connection, name), default=0)


def list_all(
    connection: Connection, *, limit: int | None = None, offset: int = 0
) -> list[RegisteredGroup]:
    """List group versions by name and version, optionally only one page."""
    query = sa.select(featuregroups).order_by(featuregroups.c.name, featuregroups.c.version)
    query = query.limit(limit).offset(offset)
    return [_to_registered_group(row) for row in connection.execute(query)]


def latest_names(
    connection: Connection, *, containing: str, limit: int | None = None
) -> Iterator[tuple[str, int]]:
    """Yield name and latest version of groups whose name contains a string, ignoring case.

    The rows are read while the caller iterates.
    """
    name, version = featuregroups.c.name, featuregroups.c.version
    name_matches = contains_text(connection, name, containing)
    query = sa.select(name, version).where(name_matches, is_latest(featuregroups)).order_by(name)
    options = {"yield_per": _ROWS_READ_AT_ONCE}
    with connection.execute(query.limit(limit), execution_options=options) as rows:
        for row in rows:
            yield row.name, row.version


def existing_names(connection: Connection, names: Iterable[str]) -> list[str]:
    """Return the names that are names of groups, in the same order."""
    ordered = list(names)
    existing = existing_values(connection, featuregroups.c.name, ordered)
    return [name for name in ordered if name in existing]


def latest_descriptions(
    connection: Connection, *, names: Collection[str]
) -> list[tuple[str, int, str]]:
    """Return name, version and description of the latest versions with a description."""
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
    changed: datetime | None = None,
) -> None:
    """Record a table's Delta version and time, and its columns if some were added or widened.

    Other fields of the spec are not changed, since a write may have read an earlier definition. If
    the Delta version is older than the recorded one, only the columns are updated.
    """
    row = TABLE.row_for_update(connection, name, version)
    if row is None:
        return
    # Concurrent writers may register their commits in another order.
    values: dict[str, object] = {"delta_version": max(row.delta_version, delta_version)}
    if delta_version > row.delta_version:
        values["changed"] = to_micros(changed or utc_now())
    if spec is not None:
        stored_spec = _to_registered_group(row).spec
        # A writer that started before columns were added must not remove them from the registry.
        if _extends_schema(stored_spec.schema, spec.schema):
            spec = replace(stored_spec, schema=spec.schema)
            values["spec"] = json.dumps(spec.to_json())
            _replace_features(connection, row.id, spec)
    connection.execute(featuregroups.update().where(featuregroups.c.id == row.id).values(**values))


def rewind(connection: Connection, name: str, version: int, *, delta_version: int) -> None:
    """Record an earlier Delta version, if the last commits of a table are lost."""
    table = featuregroups.c
    connection.execute(
        featuregroups.update()
        .where(table.name == name, table.version == version, table.delta_version > delta_version)
        .values(delta_version=delta_version)
    )


def redefine(connection: Connection, spec: FeatureGroupSpec) -> None:
    """Replace the definition of a registered version by that of its table."""
    row = TABLE.row_for_update(connection, spec.name, spec.version)
    if row is None:
        return
    text = json.dumps(spec.to_json())
    if text == row.spec:
        return
    columns_changed = _to_registered_group(row).spec.schema != spec.schema
    values: dict[str, object] = {"spec": text, "job": spec.job}
    connection.execute(featuregroups.update().where(featuregroups.c.id == row.id).values(**values))
    if columns_changed:
        _replace_features(connection, row.id, spec)


def _extends_schema(registered: pa.Schema, schema: pa.Schema) -> bool:
    """Return True if a schema adds or widens columns of the registered schema."""
    if set(registered.names) < set(schema.names):
        return True
    if set(registered.names) != set(schema.names) or registered == schema:
        return False
    types = dict(zip(schema.names, schema.types, strict=True))
    return all(can_widen(field.type, types[field.name]) for field in registered)


def describe(
    connection: Connection,
    name: str,
    version: int,
    description: str,
    *,
    descriptions: Mapping[str, str],
) -> None:
    """Set the descriptions of a version and its features."""
    row = TABLE.row_for_update(connection, name, version)
    if row is not None:
        is_of_group = features.c.featuregroup_id == row.id
        has_description = sa.and_(is_of_group, features.c.description != "")
        # Columns without a description get an empty one.
        connection.execute(features.update().where(has_description).values(description=""))
        if descriptions:
            is_column = sa.and_(is_of_group, features.c.name == sa.bindparam("column"))
            change = features.update().where(is_column).values(description=sa.bindparam("text"))
            rows = [{"column": column, "text": text} for column, text in descriptions.items()]
            connection.execute(change, rows)
        texts = {
            search_documents.FEATURE_DESCRIPTION: descriptions.values(),
            search_documents.DESCRIPTION: [description],
        }
        search_documents.replace(connection, KIND, name, version, texts)
    connection.execute(
        featuregroups.update()
        .where(featuregroups.c.name == name, featuregroups.c.version == version)
        .values(description=description)
    )


def _to_registered_group(row: Row[tuple[object, ...]]) -> RegisteredGroup:
    with translate_parse_errors(f"feature group {row.name!r} version {row.version}"):
        return RegisteredGroup(
            id=row.id,
            spec=FeatureGroupSpec.from_text(row.spec),
            table_id=str(row.table_id),
            delta_version=int(row.delta_version),
            description=str(row.description),
            created=from_micros(row.created),
        )


def _replace_features(connection: Connection, group_id: int, spec: FeatureGroupSpec) -> None:
    """Replace the recorded columns of a group, and their search documents."""
    connection.execute(features.delete().where(features.c.featuregroup_id == group_id))
    rows = _feature_rows(spec, {})
    connection.execute(features.insert(), [{"featuregroup_id": group_id, **row} for row in rows])
    is_group = featuregroups.c.id == group_id
    change = featuregroups.update().where(is_group).values(features=_count_features(rows))
    connection.execute(change)
    texts: dict[str, list[str]] = {
        search_documents.FEATURE: spec.schema.names,
        search_documents.FEATURE_DESCRIPTION: [],
    }
    search_documents.replace(connection, KIND, spec.name, spec.version, texts)


def _feature_rows(
    spec: FeatureGroupSpec, descriptions: Mapping[str, str]
) -> list[dict[str, object]]:
    """Return a row for each column of a group, without the id of the group."""
    roles = dict.fromkeys((spec.event_time, spec.created_time), "time")
    roles.update(dict.fromkeys(spec.primary_key, "key"))
    return [
        {
            "position": position,
            "name": field.name,
            "type": str(field.type),
            "role": roles.get(field.name, "feature"),
            "description": descriptions.get(field.name, ""),
        }
        for position, field in enumerate(spec.schema)
    ]


def _count_features(rows: Iterable[Mapping[str, object]]) -> int:
    return sum(row["role"] == "feature" for row in rows)


def latest_feature_descriptions(
    connection: Connection, *, names: Collection[str]
) -> list[tuple[str, int, str, str]]:
    """Return (group, version, feature, description) for the latest versions of groups.

    Features without a description are omitted.
    """
    query = (
        sa.select(
            featuregroups.c.name.label("group"),
            featuregroups.c.version,
            features.c.name,
            features.c.description,
        )
        .join(features, features.c.featuregroup_id == featuregroups.c.id)
        .where(featuregroups.c.name.in_(names), features.c.description != "")
        .where(is_latest(featuregroups))
        .order_by(featuregroups.c.name, features.c.position)
    )
    return [tuple(row) for row in connection.execute(query)]


def feature_names(connection: Connection, group: str, version: int) -> list[str]:
    """Return the column names of a group version in table order."""
    query = (
        sa.select(features.c.name)
        .join(featuregroups, features.c.featuregroup_id == featuregroups.c.id)
        .where(featuregroups.c.name == group, featuregroups.c.version == version)
        .order_by(features.c.position)
    )
    return [str(row.name) for row in connection.execute(query)]


def groups_with_column(connection: Connection, name: str) -> list[str]:
    """Return the sorted names of groups that have a column with this name in any version."""
    query = (
        sa.select(featuregroups.c.name)
        .join(features, features.c.featuregroup_id == featuregroups.c.id)
        .where(features.c.name == name)
        .distinct()
        .order_by(featuregroups.c.name)
    )
    return list(connection.execute(query).scalars())


def latest_features(
    connection: Connection,
    *,
    name: str | None = None,
    groups: Collection[str] | None = None,
    limit: int | None = None,
) -> list[RegisteredFeature]:
    """Return the columns in the latest version of every group, ordered by group and position.

    Args:
        connection: A connection to the registry.
        name: Return only columns with this name.
        groups: Return only columns in these groups.
        limit: The maximum number of columns.
    """
    if limit is not None and name is None and groups is None:
        # Each group has a column, so the first columns are in these groups. A join of all groups
        # would be sorted before its first row.
        groups = [group for group, _ in latest_names(connection, containing="", limit=limit)]
    query = (
        sa.select(
            featuregroups.c.name,
            featuregroups.c.version,
            features.c.name,
            features.c.type,
            features.c.role,
        )
        .join(features, features.c.featuregroup_id == featuregroups.c.id)
        .where(is_latest(featuregroups))
        .order_by(featuregroups.c.name, features.c.position)
    )
    if name is not None:
        query = query.where(features.c.name == name)
    if groups is not None:
        query = query.where(featuregroups.c.name.in_(groups))
    if limit is not None:
        query = query.limit(limit)
    return [RegisteredFeature(*row) for row in connection.execute(query)]


def latest_feature_names(connection: Connection) -> list[tuple[str, str]]:
    """Return (group, feature) for the features in the latest version of every group."""
    return [
        (column.group, column.name)
        for column in latest_features(connection)
        if column.role == "feature"
    ]


def search_features(
    connection: Connection, text: str, *, among: Collection[str] | None = None
) -> Iterator[RegisteredFeature]:
    """Yield the columns of latest versions whose name contains a string, ignoring case.

    If ``among`` is set, only these groups are searched.
    """
    folded_text = text.casefold()
    field = search_documents.FEATURE
    for groups in search_documents.candidate_names(connection, KIND, field, text, among=among):
        for feature in latest_features(connection, groups=groups):
            if folded_text in feature.name.casefold():
                yield feature
