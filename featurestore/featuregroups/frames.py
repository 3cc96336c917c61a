"""Rows of a group as lazy frames: stored rows, rows of a source, and quarantined rows."""

from __future__ import annotations

import pyarrow as pa

from featurestore.delta.log import is_delta_table
from featurestore.delta.snapshot import read_snapshot
from featurestore.external import LiveSource, check_snapshot
from featurestore.featuregroups.table import OpenGroup, TableVersion, open_group, resolve
from featurestore.model.plan import Source, build_group_plan
from featurestore.plugins.engine import Relation
from featurestore.plugins.source import STORED_COLUMNS
from featurestore.retrieval import FeatureFrame
from featurestore.session import Session
from featurestore.validation import quarantine_schema


def read(
    session: Session, name: str, *, version: int | None = None, as_of: TableVersion | None = None
) -> FeatureFrame:
    """Return the rows of a group, pinned to the current Delta version or to ``as_of``."""
    group = open_group(session, name, version, as_of=as_of)
    if group.spec.external is not None:
        return external_frame(session, group, is_pinned=as_of is not None)
    return open_frame(session, group)


def external_frame(session: Session, group: OpenGroup, *, is_pinned: bool) -> FeatureFrame:
    """Return the rows of an external group, from its source or from a snapshot in the store.

    Raises:
        VersionNotFound: The snapshot does not exist.
    """
    if is_pinned:
        check_snapshot(group.path, group.spec, group.delta_version)
        return open_frame(session, group)
    live = live_source(session, group)
    return FeatureFrame(
        session,
        lambda: read_plan_source(session, live),
        schema=group.spec.schema,
        plan=build_group_plan(live),
    )


def live_source(session: Session, group: OpenGroup) -> LiveSource:
    """Return the lazy source of an external group."""
    return LiveSource(
        session, group.spec, table_id=group.state.table_id, defined_at=group.delta_version
    )


def read_plan_source(session: Session, source: Source) -> Relation:
    """Return all rows of a plan source."""
    return session.engine.read_table(
        source.path, version=source.delta_version, schema=source.spec.schema
    )


def open_frame(session: Session, group: OpenGroup) -> FeatureFrame:
    """Return the rows of an open group; the plan of the frame pins the Delta version."""
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
        plan=build_group_plan(plan_source(group)),
    )


def read_quarantine(session: Session, name: str, *, version: int | None = None) -> FeatureFrame:
    """Return the quarantined rows of a group, with a column ``reasons``.

    Rows have the columns that the group had when they were written. Rows of a stream also have
    record columns: topic, partition, offset, timestamp, key and value.
    """
    name, version = resolve(session, name, version)
    spec = open_group(session, name, version).spec
    engine, path = session.engine, session.quarantine_path(name, version)
    schema = quarantine_schema(spec.schema)
    if not is_delta_table(path):
        empty = schema.empty_table()
        return FeatureFrame(session, lambda: engine.from_arrow(empty.to_reader()), schema=schema)
    # The quarantine table may lack columns that were added to the group later.
    snapshot = read_snapshot(path)
    stored_names = set(snapshot.schema.names)
    fields = [field for field in schema if field.name in stored_names]
    for name in STORED_COLUMNS:
        if name in stored_names and name not in schema.names:
            fields.append(snapshot.schema.field(name))
    schema = pa.schema(fields)
    return FeatureFrame(
        session,
        lambda: engine.read_table(
            path, version=snapshot.version, schema=schema, columns=schema.names
        ),
        schema=schema,
    ).made_of({"featuregroup": spec.name, "version": version})


def plan_source(group: OpenGroup) -> Source:
    """Return the plan source of an open group, pinned to its Delta version."""
    state = group.state
    return Source(
        group.spec, group.path, state.version, state.table_id, rows=state.rows, bytes=state.bytes
    )
