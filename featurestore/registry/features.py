"""Features in the registry, derived from the definitions of groups.

For plain names and for search.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.registry.tables import contains_text, featuregroups, features, is_latest


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
    rows = []
    for position, field in enumerate(spec.schema):
        rows.append(
            {
                "featuregroup_id": group_id,
                "position": position,
                "name": field.name,
                "type": str(field.type),
                "role": _role(spec, field.name),
            }
        )
    connection.execute(features.insert(), rows)


def describe(connection: Connection, group_id: int, descriptions: Mapping[str, str]) -> None:
    """Set the descriptions of a group's columns; of all others they are empty."""
    of_group = features.c.featuregroup_id == group_id
    connection.execute(features.update().where(of_group).values(description=""))
    for name, text in descriptions.items():
        named = sa.and_(of_group, features.c.name == name)
        connection.execute(features.update().where(named).values(description=text))


def latest_descriptions(connection: Connection) -> list[tuple[str, int, str, str]]:
    """Return group, version, name, description of the latest versions' described features."""
    query = (
        sa.select(
            featuregroups.c.name.label("group"),
            featuregroups.c.version,
            features.c.name,
            features.c.description,
        )
        .join(features, features.c.featuregroup_id == featuregroups.c.id)
        .where(features.c.description != "", is_latest(featuregroups))
        .order_by(featuregroups.c.name, features.c.position)
    )
    return [tuple(row) for row in connection.execute(query)]


def _role(spec: FeatureGroupSpec, name: str) -> str:
    if name in spec.primary_key:
        return "key"
    if name in (spec.event_time, spec.created_time):
        return "time"
    return "feature"


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
    containing: str | None = None,
    limit: int | None = None,
) -> list[RegisteredFeature]:
    """Return the columns of the latest version of every group, by group and position.

    ``name``: only these; ``containing``: only those whose name contains a text, in whatever case;
    ``limit``: the first ones alone.
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
    if containing is not None:
        # The index of names is read alone; groups are looked up where one matches.
        found = contains_text(connection, features.c.name, containing)
        query = query.where(features.c.name.in_(sa.select(features.c.name).distinct().where(found)))
    if limit is not None:
        query = query.limit(limit)
    return [RegisteredFeature(*row) for row in connection.execute(query)]
