"""Inspection of a location's registry without changing it: its revision, and what it lacks."""

from __future__ import annotations

from featurestore.errors import listing
from featurestore.registry import schema, unregistered
from featurestore.registry.database import Registry
from featurestore.registry.migrations import current_revision, head_revision
from featurestore.registry.opening import existing_registry


def inspect(directory: str, *, url: str | None = None) -> str | None:
    """Return the revision of a location's registry without changing the registry.

    Return None if it does not exist or is empty.
    """
    with existing_registry(directory, url) as registry:
        return None if registry is None else revision(registry)


def find_problems(directory: str, *, url: str | None = None) -> list[str]:
    """Return what a rebuild would repair: damage, missing tables, and unregistered objects."""
    with existing_registry(directory, url) as registry:
        if registry is None or revision(registry) is None:
            has_objects = unregistered.contains_objects(directory)
            return ["the registry is empty, but the location contains objects"] * has_objects
        damage = registry.damage()
        if damage is not None:
            return [f"the file is damaged: {damage}"]
        with registry.reading() as connection:
            if current_revision(connection) != head_revision():
                return []  # an upgrade creates the missing tables
            missing_parts = schema.missing_parts(connection)
            if missing_parts:
                return [f"the registry lacks {listing(missing_parts)}"]
            objects = unregistered.unregistered_objects(connection)
    return [f"the registry lacks {listing(objects)}"] if objects else []


def revision(registry: Registry) -> str | None:
    """Return the revision stored in the database, None if it is empty."""
    with registry.reading() as connection:
        return current_revision(connection)
