"""The graph of stored origins, which is loaded completely to find the objects that are hidden from a reader."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.registry.origins import GROUP, Object
from featurestore.registry.tables import featuregroups, origin_edges, origins

GroupVersion = tuple[str, int | None]


@dataclass(frozen=True)
class OriginGraph:
    """The stored origins: what was computed from each creation of an object.

    ``objects`` are the objects by the ids of their creations, ``derived`` the ids of what was
    computed from a creation, ``last`` the id of the last creation of each object, and ``sealed``
    the creations that stay private, and ``ended`` the removed creations. ``registered`` has
    (name, version) of the groups that exist, and (name, None).
    """

    objects: dict[str, Object]
    derived: dict[str, list[str]]
    sealed: frozenset[str]
    ended: frozenset[str]
    last: dict[Object, str]
    registered: frozenset[GroupVersion]

    @cached_property
    def last_of_groups(self) -> dict[str, list[str]]:
        """The ids of the last creation of each version, by group name."""
        ids: dict[str, list[str]] = {}
        for version, identifier in self.last.items():
            if version.kind == GROUP:
                ids.setdefault(version.name, []).append(identifier)
        return ids

    def represents_group(self, identifier: str) -> bool:
        """Return whether a creation decides about the name of its group.

        A deleted version decides only if the group has no other version: its name may remain in the
        definitions of jobs.
        """
        version = self.objects[identifier]
        if self.last[version] != identifier:
            return False
        is_registered = (version.name, version.version) in self.registered
        return is_registered or (version.name, None) not in self.registered


def load_graph(connection: Connection) -> OriginGraph:
    """Read all stored origins."""
    columns = origins.c
    objects, sealed, ended, last = {}, set(), set(), dict[Object, tuple[int, str]]()
    query = sa.select(
        columns.id,
        columns.kind,
        columns.name,
        columns.version,
        columns.creation,
        columns.sealed,
        columns.ended,
    )
    for identifier, kind, name, version, creation, is_sealed, has_ended in connection.execute(
        query
    ):
        objects[identifier] = Object(kind, name, version)
        last[objects[identifier]] = max(
            last.get(objects[identifier], (0, "")), (creation, identifier)
        )
        if is_sealed:
            sealed.add(identifier)
        if has_ended:
            ended.add(identifier)
    derived: dict[str, list[str]] = {}
    for child, parent in connection.execute(
        sa.select(origin_edges.c.derived, origin_edges.c.origin)
    ):
        derived.setdefault(parent, []).append(child)
    group = featuregroups.c
    registered: set[GroupVersion] = set()
    for name, version in connection.execute(sa.select(group.name, group.version)):
        registered.update({(name, version), (name, None)})
    last_ids = {version: identifier for version, (_, identifier) in last.items()}
    return OriginGraph(
        objects, derived, frozenset(sealed), frozenset(ended), last_ids, frozenset(registered)
    )
