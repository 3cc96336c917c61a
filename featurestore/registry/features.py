"""Features in the registry, derived from the definitions of groups.

For plain names and for search.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.registry import search_documents
from featurestore.registry.tables import featuregroups, features, is_latest

_KIND = "featuregroup"


@dataclass(frozen=True)
class RegisteredFeature:
    """One column of one version of a group; ``role`` is "feature", "key" or "time"."""

    group: str
    version: int
    name: str
    type: str
    role: str

    @property
    def reference(self) -> str:
        """The column as a feature reference without version."""
        return f"{self.group}.{self.name}"


def replace(connection: Connection, group_id: int, spec: FeatureGroupSpec) -> None:
    """Write the columns of a group, in place of those recorded before."""
    connection.execute(features.delete().where(features.c.featuregroup_id == group_id))
    rows = [
        {
            "featuregroup_id": group_id,
            "position": position,
            "name": field.name,
            "type": str(field.type),
            "role": _role(spec, field.name),
        }
        for position, field in enumerate(spec.schema)
    ]
    connection.execute(features.insert(), rows)
    _search(connection, spec.name, spec.version, search_documents.FEATURE, spec.schema.names)
    _search(connection, spec.name, spec.version, search_documents.FEATURE_DESCRIPTION, [])


def _search(
    connection: Connection, name: str, version: int, field: str, texts: Iterable[str]
) -> None:
    search_documents.replace(connection, _KIND, name, version, field, texts)


def describe(
    connection: Connection, group_id: int, name: str, version: int, descriptions: Mapping[str, str]
) -> None:
    """Set the descriptions of the columns of a group's version; of all others they are empty."""
    is_of_group = features.c.featuregroup_id == group_id
    described = sa.and_(is_of_group, features.c.description != "")
    connection.execute(features.update().where(described).values(description=""))
    is_column = sa.and_(is_of_group, features.c.name == sa.bindparam("column"))
    change = features.update().where(is_column).values(description=sa.bindparam("text"))
    rows = [{"column": column, "text": text} for column, text in descriptions.items()]
    if rows:
        connection.execute(change, rows)
    field = search_documents.FEATURE_DESCRIPTION
    _search(connection, name, version, field, descriptions.values())


def latest_descriptions(
    connection: Connection, *, names: Collection[str]
) -> list[tuple[str, int, str, str]]:
    """Return group, version, name, description of described features of groups of these names.

    Of each group it is the latest version.
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


def _role(spec: FeatureGroupSpec, name: str) -> str:
    if name in spec.primary_key:
        return "key"
    if name in (spec.event_time, spec.created_time):
        return "time"
    return "feature"


def names(connection: Connection, group: str, version: int) -> list[str]:
    """Return the names of the columns of a version of a group, in its order."""
    query = (
        sa.select(features.c.name)
        .join(featuregroups, features.c.featuregroup_id == featuregroups.c.id)
        .where(featuregroups.c.name == group, featuregroups.c.version == version)
        .order_by(features.c.position)
    )
    return [str(row.name) for row in connection.execute(query)]


def groups_with(connection: Connection, name: str) -> list[str]:
    """Return the names of the groups that have a column of this name in some version, in order."""
    query = (
        sa.select(featuregroups.c.name)
        .join(features, features.c.featuregroup_id == featuregroups.c.id)
        .where(features.c.name == name)
        .distinct()
        .order_by(featuregroups.c.name)
    )
    return list(connection.execute(query).scalars())


def latest(
    connection: Connection,
    *,
    name: str | None = None,
    groups: Collection[str] | None = None,
    limit: int | None = None,
) -> list[RegisteredFeature]:
    """Return the columns of the latest version of every group, by group and position.

    ``name``: only these; ``groups``: only those of these groups; ``limit``: the first ones alone.
    """
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


def containing(
    connection: Connection, text: str, *, among: Collection[str] | None = None
) -> Iterator[RegisteredFeature]:
    """Yield the columns of latest versions whose name contains a text, in whatever case.

    ``among``: only of these groups.
    """
    searched = text.casefold()
    field = search_documents.FEATURE
    for groups in search_documents.candidates(connection, _KIND, field, text, among=among):
        for each in latest(connection, groups=groups):
            if searched in each.name.casefold():
                yield each
