"""Reads of a group: lazy frames of one Delta version, quarantine, partitions and history."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from featurestore.delta import commits
from featurestore.delta.log import is_delta_table
from featurestore.delta.snapshot import read_snapshot
from featurestore.external import LiveSource, check_snapshot
from featurestore.featuregroups.table import OpenGroup, TableVersion, open_group, resolve
from featurestore.model.counts import check_count
from featurestore.model.featuregroup import Commit
from featurestore.model.html import Listing
from featurestore.model.plan import Source, plan_of_group
from featurestore.plugins.engine import Relation
from featurestore.plugins.stream import STORED_COLUMNS
from featurestore.retrieval import FeatureFrame
from featurestore.session import Session
from featurestore.validation import quarantine_schema


def read(
    session: Session, name: str, *, version: int | None = None, as_of: TableVersion | None = None
) -> FeatureFrame:
    """Return the data of a group, pinned to the latest Delta version now, or as of an instant."""
    group = open_group(session, name, version, as_of=as_of)
    if group.spec.external is not None:
        return external_frame(session, group, is_pinned=as_of is not None)
    return frame_of(session, group)


def external_frame(session: Session, group: OpenGroup, *, is_pinned: bool) -> FeatureFrame:
    """Return the data of an external group: at its source, or of a snapshot in the store.

    Raises:
        VersionNotFound: The snapshot does not exist.
    """
    if is_pinned:
        check_snapshot(group.path, group.spec, group.delta_version)
        return frame_of(session, group)
    live = live_source(session, group)
    return FeatureFrame(
        session,
        lambda: rows_of(session, live),
        schema=group.spec.schema,
        plan=plan_of_group(live),
    )


def live_source(session: Session, group: OpenGroup) -> LiveSource:
    """Return the rows of an external group at its source; none is read yet."""
    return LiveSource(
        session, group.spec, table_id=group.state.table_id, defined_at=group.delta_version
    )


def rows_of(session: Session, source: Source) -> Relation:
    """Return all rows of the source of a plan."""
    return session.engine.read_table(
        source.path, version=source.delta_version, schema=source.spec.schema
    )


def frame_of(session: Session, group: OpenGroup) -> FeatureFrame:
    """Return the data of an open group; its plan pins the version for reproduction."""
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


def read_quarantine(session: Session, name: str, *, version: int | None = None) -> FeatureFrame:
    """Return the quarantined rows of a group, each with its ``reasons``.

    Rows keep the columns that the group had at their write. Those of a stream also have columns
    for their records: topic, partition, offset, timestamp, key and value.
    """
    name, version = resolve(session, name, version)
    spec = open_group(session, name, version).spec
    engine, path = session.engine, session.quarantine_path(name, version)
    schema = quarantine_schema(spec.schema)
    if not is_delta_table(path):
        empty = schema.empty_table()
        return FeatureFrame(session, lambda: engine.from_arrow(empty.to_reader()), schema=schema)
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
    check_count(limit, argument="limit", minimum=1)
    if before is not None:
        check_count(before, argument="before", minimum=1)
    name, version = resolve(session, name, version)
    path = session.featuregroup_path(name, version)
    return Listing(commits.history(path, limit=limit, before=before))


def partitions_of(
    session: Session, name: str, *, version: int | None = None, as_of: TableVersion | None = None
) -> list[dict[str, Any]]:
    """Return the values of each partition of a group, sorted; no data file is read."""
    group = open_group(session, name, version, as_of=as_of)
    columns = group.spec.partition_by
    if not columns:
        return []
    texts = [tuple(map(file.partition.get, columns)) for file in group.state.files]
    distinct = list(dict.fromkeys(texts))
    arrays = {}
    for position, column in enumerate(columns):
        values = pa.array([each[position] for each in distinct], pa.string())
        arrays[column] = values.cast(group.spec.schema.field(column).type)
    ordered = [(column, "ascending") for column in columns]
    partitions: list[dict[str, Any]] = pa.table(arrays).sort_by(ordered).to_pylist()
    return partitions
