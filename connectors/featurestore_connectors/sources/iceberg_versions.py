"""Versions of Iceberg tables: snapshot ids, times, branches and tags."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from featurestore.errors import InvalidArgument, SourceTableNotFound, did_you_mean, listing
from featurestore.model.times import from_micros, parse_moment, to_micros

_MAIN, _BRANCH = "main", "branch"
_MAX_LISTED = 5


@dataclass(frozen=True)
class TableVersion:
    """A snapshot of a table, None for a table without snapshots, and its schema."""

    snapshot: Any
    schema: Any


def find_version(table: Any, version: int | datetime | str, *, subject: str) -> TableVersion:
    """Return the snapshot of a table with an id, at a time, or of a branch or tag.

    A text is the name of a branch or tag, else a snapshot id, else a time. A number that is not a
    snapshot id is such a name, too.

    Args:
        table: The table of pyiceberg.
        version: The snapshot id, the time, or the text.
        subject: Source and table, for errors.

    Raises:
        SourceTableNotFound: No snapshot, branch or tag has this name; the message lists them.
    """
    references = table.refs()
    if isinstance(version, str):
        if version in references or version == _MAIN:
            return _referenced_version(table, references.get(version))
        version = _parse_version(table, version, subject=subject)
    if isinstance(version, datetime):
        # Iceberg times are in milliseconds.
        snapshot = table.snapshot_as_of_timestamp(to_micros(version) // 1000)
    else:
        snapshot = table.snapshot_by_id(version)
        if snapshot is None and str(version) in references:
            return _referenced_version(table, references[str(version)])
    if snapshot is None:
        last_snapshots = []
        for listed_snapshot in table.metadata.snapshots[-_MAX_LISTED:]:
            timestamp = from_micros(listed_snapshot.timestamp_ms * 1000).isoformat()
            last_snapshots.append(f"{listed_snapshot.snapshot_id} of {timestamp}")
        raise SourceTableNotFound(
            f"{subject} has no snapshot at {version}; it may have expired. Latest snapshots: "
            f"{listing(last_snapshots)}.",
            hint="omit at= to read the latest snapshot",
        )
    return TableVersion(snapshot, _schema_of(table, snapshot))


def _referenced_version(table: Any, reference: Any) -> TableVersion:
    """Return the version of a branch or tag; None for the main branch without snapshots."""
    if reference is None:
        return TableVersion(table.current_snapshot(), table.schema())
    snapshot = table.snapshot_by_id(reference.snapshot_id)
    # A branch has the current schema of the table, as in Iceberg's own readers.
    is_branch = str(reference.snapshot_ref_type.value) == _BRANCH
    return TableVersion(snapshot, table.schema() if is_branch else _schema_of(table, snapshot))


def _schema_of(table: Any, snapshot: Any) -> Any:
    """Return the schema with which a snapshot was written, which is optional in the metadata."""
    return table.schemas().get(snapshot.schema_id, table.schema())


def _parse_version(table: Any, text: str, *, subject: str) -> int | datetime:
    """Return a text as a snapshot id or a time."""
    number = int(text) if text.isascii() and text.isdecimal() else None
    # A text of digits may also be a date.
    if number is not None and table.snapshot_by_id(number) is not None:
        return number
    try:
        return parse_moment(text, argument="at")
    except InvalidArgument as error:
        if number is not None:
            return number
        names = list(table.refs())
        raise SourceTableNotFound(
            f"{subject} has no branch or tag {text!r}, which is neither a snapshot id nor a time. "
            f"Available: {listing(names)}.",
            hint=did_you_mean(text, names, write="at={!r}")
            or "at='main', or at='2024-01-31T00:00:00Z'",
        ) from error
