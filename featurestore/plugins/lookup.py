"""Engines, formats and validators that are installed, by the names of their entry points."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from featurestore._imports import uninterrupted


def find_plugin(group: str, name: str) -> EntryPoint | None:
    """Return an entry point of ``featurestore.<group>``; None when there is none of this name."""
    if name not in _installed(group):
        _installed.cache_clear()  # it may have been installed since
    return _installed(group).get(name)


def load_plugin(found: EntryPoint) -> Any:
    """Return what an entry point names, whose imports no signal interrupts."""
    with uninterrupted():
        return found.load()


def plugin_names(group: str) -> list[str]:
    """Return the names of a group's entry points, sorted."""
    return sorted(_installed(group))


@cache
def _installed(group: str) -> dict[str, EntryPoint]:
    """Return entry points by name.

    Looking through all installed packages takes a tenth of a second.
    """
    return {each.name: each for each in entry_points(group=f"featurestore.{group}")}
