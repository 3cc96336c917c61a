"""Groups as records, for lists and programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from featurestore.arrow.shapes import describe
from featurestore.delta import commits
from featurestore.featuregroups.handle import FeatureGroup
from featurestore.featuregroups.table import OpenGroup, open_group
from featurestore.model.durations import format_ttl
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.registry import streams


def overview(group: FeatureGroup) -> dict[str, Any]:
    """Return the summary of a group for lists."""
    table = open_group(group._session, group.name, group.version)
    spec = table.spec
    return {
        "name": spec.name,
        "version": spec.version,
        "delta_version": table.delta_version,
        "rows": _rows(table),
        "features": len(spec.features),
        "primary_key": list(spec.primary_key),
        "event_time": spec.event_time,
        "description": group.description,
    }


def details(group: FeatureGroup) -> dict[str, Any]:
    """Return everything about a group except its rows."""
    table = open_group(group._session, group.name, group.version)
    spec = table.spec
    return {
        "name": spec.name,
        "version": spec.version,
        "description": group.description,
        "tags": group.tags,
        "delta_version": table.delta_version,
        "rows": _rows(table),
        "files": len(table.state.files),
        "bytes": table.state.bytes,
        "path": table.path,
        "external": None if spec.external is None else spec.external.to_json(),
        "primary_key": list(spec.primary_key),
        "event_time": spec.event_time,
        "created_time": spec.created_time,
        "partition_by": list(spec.partition_by),
        "ttl": format_ttl(spec.ttl),
        "validation": spec.validation,
        "expectations": [dict(each) for each in spec.expectations],
        "statistics": spec.statistics,
        "job": spec.job,
        **_stream(group, spec),
        "columns": _columns(spec, commits.meta_of(table.state).features),
    }


def _stream(group: FeatureGroup, spec: FeatureGroupSpec) -> dict[str, Any]:
    """Return the status of the stream that writes into a group, if there is one."""
    if spec.job is None:
        return {}
    with group._session.registry.reading() as connection:
        status = streams.status(connection, spec.job)
    return {} if status is None else {"stream": status.summary()}


def _rows(table: OpenGroup) -> int | None:
    """Return how many rows a group has; None for an external group."""
    if table.spec.external is not None:
        return None
    return table.state.rows


def _columns(spec: FeatureGroupSpec, descriptions: Mapping[str, str]) -> list[dict[str, str]]:
    """Return name, type, role and description of each column."""
    columns = []
    for field in spec.schema:
        role = "feature"
        if field.name in spec.primary_key:
            role = "key"
        elif field.name in (spec.event_time, spec.created_time):
            role = "time"
        record = {"name": field.name, "type": describe(field.type), "role": role}
        columns.append({**record, "description": descriptions.get(field.name, "")})
    return columns
