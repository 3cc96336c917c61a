"""Results of an import of a dbt project: changes, nodes that were left out, and notes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from featurestore.model import display

Action = Literal["created", "changed", "unchanged", "removed"]
# The nodes that a text shows for each reason.
_MAX_SKIPPED = 20


@dataclass(frozen=True)
class DbtChange:
    """The change of one dbt node: ``version`` is that of its feature group after the import.

    ``differences`` describe what changed. A removed node was deleted from the project; its feature
    group remains, unless the import is called with ``remove=True``. ``breaks`` are the consequences of
    this removal for other objects, ``blockers`` the objects that have to be removed before.
    """

    node: str
    featuregroup: str
    action: Action
    version: int
    differences: tuple[str, ...] = ()
    breaks: tuple[str, ...] = ()
    blockers: tuple[str, ...] = ()

    __repr__ = display.record_repr

    def __str__(self) -> str:
        text = f"{self.action:<9} {self.featuregroup}@v{self.version} ({self.node})"
        lines = [f"  {difference}" for difference in self.differences]
        lines += [f"  breaks {consequence}" for consequence in self.breaks]
        lines += [f"  not before {blocker} is removed" for blocker in self.blockers]
        return "\n".join([text, *lines])


@dataclass(frozen=True)
class DbtSkipped:
    """A node that an import without a selection left out; ``hint`` is a setting that it needs."""

    node: str
    reason: str
    hint: str


@dataclass(frozen=True)
class DbtImport:
    """The result of an import, or of its plan: a change for each node, and what was left out.

    ``skipped`` are nodes without a table or without a single key, ``notes`` describe parts of
    imported nodes that were not imported.
    """

    project: str
    source: str
    changes: tuple[DbtChange, ...]
    notes: tuple[str, ...] = ()
    skipped: tuple[DbtSkipped, ...] = ()

    __repr__ = display.record_repr

    @property
    def created(self) -> tuple[str, ...]:
        """The names of the feature groups of new nodes."""
        return self._names("created")

    @property
    def changed(self) -> tuple[str, ...]:
        """The names of the feature groups that changed."""
        return self._names("changed")

    @property
    def unchanged(self) -> tuple[str, ...]:
        """The names of the feature groups that did not change."""
        return self._names("unchanged")

    @property
    def removed(self) -> tuple[str, ...]:
        """The names of the feature groups whose nodes were removed from the project."""
        return self._names("removed")

    @property
    def is_current(self) -> bool:
        """Whether an import has nothing to write."""
        return not self.created and not self.changed

    def _names(self, action: Action) -> tuple[str, ...]:
        return tuple(change.featuregroup for change in self.changes if change.action == action)

    def __str__(self) -> str:
        counts = [
            f"{len(self._names(action))} {action}"
            for action in ("created", "changed", "unchanged", "removed")
        ]
        if self.skipped:
            counts.append(f"{len(self.skipped)} skipped")
        lines = [f"dbt project {self.project} in source {self.source}: {', '.join(counts)}"]
        lines += [str(change) for change in self.changes if change.action != "unchanged"]
        nodes: dict[str, list[str]] = {}
        for skip in self.skipped:
            nodes.setdefault(f"{skip.reason} ({skip.hint})", []).append(skip.node)
        for reason, names in nodes.items():
            more = len(names) - _MAX_SKIPPED
            lines += [f"skipped   {reason}", *(f"  {name}" for name in names[:_MAX_SKIPPED])]
            lines += [f"  and {more} more"] if more > 0 else []
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        return display.preformatted(str(self))

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        changes = [
            {
                **vars(change),
                "differences": list(change.differences),
                "breaks": list(change.breaks),
                "blockers": list(change.blockers),
            }
            for change in self.changes
        ]
        return {
            "project": self.project,
            "source": self.source,
            "changes": changes,
            "notes": list(self.notes),
            "skipped": [dict(vars(skip)) for skip in self.skipped],
        }
