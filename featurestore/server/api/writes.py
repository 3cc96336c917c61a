"""Writes of feature groups, for those whose role allows them; each is in the audit log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends

from featurestore.errors import FeatureGroupNotFound
from featurestore.registry import audit_log
from featurestore.server.access import roles
from featurestore.server.api.answers import REFUSALS, Name, Version
from featurestore.server.api.rows import BODY, uploaded
from featurestore.server.context import Settings, Store, Whole
from featurestore.server.guard import Asking, log_change
from featurestore.server.records.retrievals import check_sql
from featurestore.server.records.writes import (
    Deletion,
    Insert,
    NewGroup,
    Tag,
    commit_record,
    needed,
)
from featurestore.server.streams.uploads import Asked, Upload
from featurestore.store import FeatureStore

router = APIRouter(prefix="/featuregroups", tags=["writes"], responses=REFUSALS)


def makeable(name: Name, store: Store, whole: Whole, visitor: Asking) -> FeatureStore:
    """Return the store in which a visitor may make a version of a group."""
    if visitor is not None:
        visitor.check(roles.WRITER, name)
        is_hidden = not store.get_latest_featuregroup_version(name)
        if is_hidden and whole.get_latest_featuregroup_version(name):
            raise FeatureGroupNotFound(f"There is no feature group {name!r} to add a version to.")
    return whole


def writable(
    name: Name, version: Version, store: Store, whole: Whole, visitor: Asking
) -> FeatureStore:
    """Return the store in which a visitor may write a group."""
    store.featuregroup(name, version=version)
    if visitor is not None:
        visitor.check(roles.WRITER, name)
    return whole


Makeable = Annotated[FeatureStore, Depends(makeable)]
Writable = Annotated[FeatureStore, Depends(writable)]
Uploaded = Annotated[Upload, Depends(uploaded)]


@router.post("/{name}", openapi_extra=BODY)
def create(name: Name, whole: Makeable, visitor: Asking, upload: Uploaded) -> dict[str, Any]:
    """Make a feature group, or its next version, of the rows that are sent."""
    with _taking(upload, NewGroup) as asked:
        made = asked.make(whole, name, needed(upload.table()))
        # Where it may have been there before, nobody knows who made its first commit.
        first = {} if asked.may_exist else {"delta_version": 1}
        log_change(whole, visitor, audit_log.CREATE, name, made | first)
        return made


@router.post("/{name}/{version}/rows", openapi_extra=BODY)
def insert(
    name: Name, version: Version, whole: Writable, visitor: Asking, upload: Uploaded
) -> dict[str, Any]:
    """Write the rows that are sent: all of them land, or none."""
    with _taking(upload, Insert) as asked:
        commit = asked.write(whole, name, version, needed(upload.table()))
        told = {"mode": asked.mode, "delta_version": commit["delta_version"]}
        log_change(whole, visitor, "insert", f"{name}@v{version}", told)
        return commit


@router.post("/{name}/{version}/deletions")
def delete_rows(
    name: Name,
    version: Version,
    whole: Writable,
    visitor: Asking,
    settings: Settings,
    asked: Deletion,
) -> dict[str, Any]:
    """Delete the rows for which a condition is true."""
    check_sql(asked.where, most=settings.condition)
    commit = commit_record(whole.delete_from_featuregroup(name, asked.where, version=version))
    told = {"where": asked.where, "delta_version": commit["delta_version"]}
    log_change(whole, visitor, "delete rows", f"{name}@v{version}", told)
    return commit


@router.post("/{name}/{version}/tags")
def tag(
    name: Name, version: Version, whole: Writable, visitor: Asking, asked: Tag
) -> dict[str, str]:
    """Set a tag, or remove it where it has no value; return all that there are then."""
    if asked.value is None:
        whole.remove_featuregroup_tag(name, asked.key, version=version)
    else:
        whole.add_featuregroup_tag(name, asked.key, asked.value, version=version)
    log_change(whole, visitor, "tag", f"{name}@v{version}", asked.model_dump())
    return whole.get_featuregroup_tags(name, version=version)


@contextmanager
def _taking(upload: Upload, kind: type[Asked]) -> Iterator[Asked]:
    """Yield what the line of an upload asks for, and remove its rows at the end."""
    try:
        yield upload.asked(kind)
    finally:
        upload.remove()
