"""Plans of projects: the changes that apply a folder of definitions to a store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from featurestore.model import display

Action = Literal["create", "change", "remove"]
# The kinds in the order of their dependencies: each kind refers only to earlier ones.
SOURCE, CHANNEL, GROUP, VIEW, JOB = "source", "alert_channel", "featuregroup", "feature_view", "job"
KINDS = (SOURCE, CHANNEL, GROUP, VIEW, JOB)
# Kinds whose objects have versions.
VERSIONED = (GROUP, VIEW)
_TITLES = {
    SOURCE: "source",
    CHANNEL: "alert channel",
    GROUP: "feature group",
    VIEW: "feature view",
    JOB: "job",
}


def format_object(object_kind: str, name: str, version: int | None) -> str:
    """Return the title of an object.

    >>> format_object("featuregroup", "trips", 2), format_object("job", "demand", None)
    ("feature group 'trips' version 2", "job 'demand'")
    """
    title = f"{_TITLES[object_kind]} {name!r}"
    return title if version is None else f"{title} version {version}"


@dataclass(frozen=True)
class PlannedChange:
    """One change of a plan.

    ``details`` are the differences, ``breaks`` the consequences of a removal for other objects, and
    ``position`` is the file and line of the definition ("features/groups.py:12"), which a removed
    object does not have. Objects without versions have the
    ``version`` None. ``blockers`` are the
    objects that have to be removed before.
    """

    action: Action
    kind: str
    name: str
    version: int | None = None
    details: tuple[str, ...] = ()
    breaks: tuple[str, ...] = ()
    blockers: tuple[str, ...] = ()
    position: str | None = None

    __repr__ = display.record_repr

    def __str__(self) -> str:
        return f"{self.action} {format_object(self.kind, self.name, self.version)}"


@dataclass(frozen=True)
class ProjectPlan:
    """The changes between a folder of definitions and a store, in the order of their application.

    ``removals`` are the objects that an earlier ``apply`` of the project created and that the
    folder no longer defines. They are only removed with ``remove=True``.
    """

    project: str
    changes: tuple[PlannedChange, ...] = ()
    removals: tuple[PlannedChange, ...] = ()

    __repr__ = display.record_repr

    @property
    def is_empty(self) -> bool:
        """Whether the plan has no changes."""
        return not self.changes and not self.removals

    def __iter__(self) -> Iterator[PlannedChange]:
        yield from self.changes
        yield from self.removals

    def __str__(self) -> str:
        if self.is_empty:
            return f"project {self.project}: no changes"
        lines = [f"project {self.project}:"]
        for change in self:
            lines.append(f"  {change}" + (f"  ({change.position})" if change.position else ""))
            lines += [f"    {detail}" for detail in change.details]
            lines += [f"    breaks {consequence}" for consequence in change.breaks]
            lines += [f"    not before {blocker} is removed" for blocker in change.blockers]
        # Details contain tags and options of the store.
        return display.escape_controls("\n".join(lines))
