"""Plugin interfaces (engines, formats, validators, sources and others), and entry point lookup."""

from __future__ import annotations

from functools import cache
from importlib.metadata import (
    EntryPoint,
    EntryPoints,
    PackageNotFoundError,
    distribution,
    entry_points,
)
from typing import Any

from featurestore._imports import uninterrupted


def find_plugin(group: str, name: str) -> EntryPoint | None:
    """Return the entry point with a name in the group ``featurestore.<group>``, or None.

    Plugins of other distributions cannot replace those of this one, so that most calls need no scan
    of all distributions.
    """
    if name in _built_in_entry_points(group):
        return _built_in_entry_points(group)[name]
    if name not in _installed_entry_points(group):
        _installed_entry_points.cache_clear()  # it may have been installed since
    return _installed_entry_points(group).get(name)


def load_plugin(entry_point: EntryPoint) -> Any:
    """Load an entry point, deferring signals during its imports."""
    with uninterrupted():
        return entry_point.load()


def plugin_names(group: str) -> list[str]:
    """Return the sorted names of the entry points in a group."""
    return sorted(_installed_entry_points(group))


@cache
def _installed_entry_points(group: str) -> dict[str, EntryPoint]:
    """Return entry points by name; the result is cached, since a scan takes 0.1 seconds."""
    installed = entry_points(group=f"featurestore.{group}")
    return _by_name(installed) | _built_in_entry_points(group)


@cache
def _built_in_entry_points(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of this distribution by name; they are read without a scan."""
    try:
        metadata = distribution("featurestore")
    except PackageNotFoundError:  # the package was copied without its metadata
        return {}
    return _by_name(metadata.entry_points.select(group=f"featurestore.{group}"))


def _by_name(entry_points: EntryPoints) -> dict[str, EntryPoint]:
    return {entry_point.name: entry_point for entry_point in entry_points}
