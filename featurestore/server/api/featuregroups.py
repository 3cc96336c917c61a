"""REST routes of feature groups: definitions, commits, statistics, reports, rows."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query

from featurestore.registry.overview import GroupFilter
from featurestore.server.api.answers import (
    REFUSALS,
    Items,
    Limit,
    Name,
    Offset,
    Version,
    items,
    record,
)
from featurestore.server.context import Settings, Store
from featurestore.server.records import featuregroups as records

router = APIRouter(prefix="/featuregroups", tags=["feature groups"], responses=REFUSALS)


@router.get("")
def list_groups(
    store: Store,
    q: Annotated[str, Query(max_length=200, description="Substring of the name.")] = "",
    tag: Annotated[str, Query(max_length=600, description="key or key=value.")] = "",
    limit: Limit = 100,
    offset: Offset = 0,
) -> Items:
    """List the latest version of each group."""
    group_filter = GroupFilter(text=q, tag=tag)
    return items(
        lambda count, skipped: records.lines(store, group_filter, limit=count, offset=skipped),
        asdict,
        limit=limit,
        offset=offset,
    )


@router.get("/{name}")
def get_latest(store: Store, name: Name) -> dict[str, Any]:
    """Return the latest version of a group and the list of its versions."""
    group = store.featuregroup(name)
    return record({**records.definition(group), "versions": records.versions(store, name)})


@router.get("/{name}/{version}")
def get_version(store: Store, name: Name, version: Version) -> dict[str, Any]:
    """Return the definition of a version."""
    return record(records.definition(store.featuregroup(name, version=version)))


@router.get("/{name}/{version}/commits")
def list_commits(
    store: Store,
    name: Name,
    version: Version,
    limit: Limit = 100,
    before: Annotated[
        int | None, Query(ge=0, description="Only commits before this Delta version.")
    ] = None,
) -> Items:
    """List commits, newest first."""
    group = store.featuregroup(name, version=version)
    commits = records.history(group, limit=limit, before=before)
    return Items(items=[record(commit) for commit in commits], next=None)


@router.get("/{name}/{version}/statistics")
def get_statistics(store: Store, name: Name, version: Version) -> dict[str, Any]:
    """Return the stored statistics of the newest rows (statistics.schema.json)."""
    group = store.featuregroup(name, version=version)
    return record(records.require_statistics(group).to_json())


@router.get("/{name}/{version}/validations")
def list_validations(
    store: Store, name: Name, version: Version, limit: Limit = 100, offset: Offset = 0
) -> Items:
    """List validation reports, newest first (validation_report.schema.json)."""
    group = store.featuregroup(name, version=version)
    reports = records.validations(store, group)
    return items(
        lambda count, skipped: reports[skipped : skipped + count], dict, limit=limit, offset=offset
    )


@router.get("/{name}/{version}/rows")
def get_rows(
    store: Store,
    settings: Settings,
    name: Name,
    version: Version,
    limit: Limit = 20,
    delta_version: Annotated[
        int | None, Query(ge=0, le=2**53, description="As of this Delta version.")
    ] = None,
    at: Annotated[
        datetime | None, Query(description="As of this time; ignored with delta_version.")
    ] = None,
) -> dict[str, Any]:
    """Return the first rows: column names, and a list of values for each row."""
    group = store.featuregroup(name, version=version)
    as_of = at if delta_version is None else delta_version
    max_rows = min(limit, settings.rows)
    bounds = records.RowBounds(max_rows, settings.answer, settings.query_seconds)
    return records.rows(group, bounds, as_of=as_of)
