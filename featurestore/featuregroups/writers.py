"""The jobs that write a feature group, in the table property ``featurestore.writers``.

The property lets a rebuilt or second registry detect that two jobs write one group.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from featurestore.delta.snapshot import Snapshot
from featurestore.errors import JobWarning, listing
from featurestore.featuregroups.redefinition import change_metadata
from featurestore.featuregroups.table import OpenGroup
from featurestore.model.arguments import warn_caller
from featurestore.model.job import GroupWork, JobSpec, StreamWork
from featurestore.model.records import Record
from featurestore.plugins.engine import PropertyChange
from featurestore.registry import jobs
from featurestore.session import Session

WRITERS = "featurestore.writers"


@dataclass(frozen=True)
class GroupWriter(Record):
    """A job that writes a group: whether it reads a stream, and whether it allows more writers."""

    stream: bool = False
    shared: bool = False


def writers_of(group: OpenGroup) -> dict[str, GroupWriter]:
    """Return the jobs that write a group by name, as recorded in its table."""
    return _parse_writers(group.state)


def _parse_writers(state: Snapshot) -> dict[str, GroupWriter]:
    try:
        return {
            name: GroupWriter.from_json(fields)
            for name, fields in json.loads(state.properties.get(WRITERS, "{}")).items()
        }
    # Any Delta writer can change properties, which must not prevent writes.
    except (ValueError, AttributeError, RecursionError):
        return {}


def writer_properties(connection: Connection, name: str) -> dict[str, str]:
    """Return the property of a new table: the registered jobs that write the group."""
    writers = select_writers((job.spec for job in jobs.list_all(connection)), name)
    return {WRITERS: _to_text(writers)} if writers else {}


def select_writers(specs: Iterable[JobSpec], group: str) -> dict[str, GroupWriter]:
    """Return those jobs that write a feature group, by name."""
    return {
        spec.name: GroupWriter(isinstance(spec.work, StreamWork), spec.work.shared)
        for spec in specs
        if isinstance(spec.work, GroupWork) and spec.work.target == group
    }


def change_writers(
    session: Session,
    group: OpenGroup,
    change: Callable[[dict[str, GroupWriter]], dict[str, GroupWriter]],
) -> None:
    """Change the recorded writers of a group in one commit without rows.

    ``change`` gets the newest recorded writers. If it returns equal writers, nothing is written.
    """

    def change_properties(state: Snapshot, run_id: str) -> PropertyChange | None:
        current = _parse_writers(state)
        writers = change(current)
        if writers == current:
            return None
        return PropertyChange(
            {WRITERS: _to_text(writers)},
            {
                "operation": "writers",
                "run": run_id,
                "changes": [f"written by {listing(writers)}"],
            },
        )

    change_metadata(session, group, change_properties)


def warn_of_writers(group: OpenGroup) -> None:
    """Warn a user who writes rows into a group that jobs write."""
    names = list(writers_of(group))
    if names:
        verb = "writes" if len(names) == 1 else "write"
        warn_caller(
            f"Job {listing(names)} {verb} feature group {group.spec.name!r}, and a run may replace "
            "these rows. Write them into a group of their own.",
            JobWarning,
        )


def _to_text(writers: Mapping[str, GroupWriter]) -> str:
    fields = {name: writer.to_json() for name, writer in writers.items()}
    return json.dumps(fields, sort_keys=True)
