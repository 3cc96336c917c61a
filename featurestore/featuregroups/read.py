"""Reading a group: a lazy frame of one Delta version."""

from __future__ import annotations

import pyarrow as pa

from featurestore.delta import commits
from featurestore.delta.log import is_delta_table
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import InvalidArgument
from featurestore.featuregroups.table import OpenGroup, TableVersion, open_group, resolve
from featurestore.model.featuregroup import Commit
from featurestore.model.html import Listing
from featurestore.model.plan import Source, plan_of_group
from featurestore.retrieval import FeatureFrame
from featurestore.session import Session
from featurestore.validation import quarantine_schema


def read(
    session: Session, name: str, *, version: int | None = None, as_of: TableVersion | None = None
) -> FeatureFrame:
    """Return the data of a group, pinned to the latest Delta version now, or as of an instant."""
    return frame_of(session, open_group(session, name, version, as_of=as_of))


def frame_of(session: Session, group: OpenGroup) -> FeatureFrame:
    """Return the data of an open group.

    Its plan pins the version, so that what is made of it can be made again.
    """
    engine, path, schema, delta_version = (
        session.engine,
        group.path,
        group.spec.schema,
        group.delta_version,
    )
    return FeatureFrame(
        session,
        lambda: engine.read_table(path, version=delta_version, schema=schema),
        schema=schema,
        plan=plan_of_group(pinned(group)),
    )


def quarantined(session: Session, name: str, *, version: int | None = None) -> FeatureFrame:
    """Return the rows that a group's writes put aside, each with its ``reasons``.

    The rows of a quarantine keep the columns that the group had when they were put aside.
    """
    name, version = resolve(session, name, version)
    spec = open_group(session, name, version).spec
    engine, path = session.engine, session.quarantine_path(name, version)
    schema = quarantine_schema(spec.schema)
    if not is_delta_table(path):
        empty = schema.empty_table()
        return FeatureFrame(session, lambda: engine.from_arrow(empty.to_reader()), schema=schema)
    snapshot = read_snapshot(path)
    stored = set(snapshot.schema.names)
    fields = [field for field in schema if field.name in stored]
    schema = pa.schema(fields)
    return FeatureFrame(
        session,
        lambda: engine.read_table(
            path, version=snapshot.version, schema=schema, columns=schema.names
        ),
        schema=schema,
    )


def pinned(group: OpenGroup) -> Source:
    """Return an open group as the source of a plan."""
    state = group.state
    return Source(
        group.spec, group.path, state.version, state.table_id, rows=state.rows, bytes=state.bytes
    )


def history(
    session: Session,
    name: str,
    *,
    version: int | None = None,
    limit: int = 100,
    before: int | None = None,
) -> list[Commit]:
    """Return the last ``limit`` commits of a group's data before a Delta version, newest first."""
    for argument, value in (("limit", limit), ("before", before)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise InvalidArgument(
                f"{argument}={value!r} is no number of commits or Delta version.",
                hint=f"{argument}=100",
            )
    name, version = resolve(session, name, version)
    path = session.featuregroup_path(name, version)
    return Listing(commits.history(path, limit=limit, before=before))
