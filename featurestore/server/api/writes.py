"""REST routes of writes to feature groups; all writes are in the audit log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends

from featurestore.errors import FeatureGroupNotFound
from featurestore.registry import audit_log
from featurestore.server.access import roles
from featurestore.server.api.answers import REFUSALS, Name, Version
from featurestore.server.api.rows import BODY, received_upload
from featurestore.server.context import FullStore, Settings, Store
from featurestore.server.guard import CurrentVisitor, log_change
from featurestore.server.records.retrievals import check_sql
from featurestore.server.records.writes import (
    Deletion,
    Insert,
    NewGroup,
    Tag,
    commit_record,
    require_rows,
)
from featurestore.server.streams.uploads import RequestModel, Upload
from featurestore.store import FeatureStore

router = APIRouter(prefix="/featuregroups", tags=["writes"], responses=REFUSALS)


def creatable_store(
    name: Name, store: Store, full_store: FullStore, visitor: CurrentVisitor
) -> FeatureStore:
    """Return the unfiltered store if the visitor is allowed to create a version of a group."""
    if visitor is not None:
        visitor.check(roles.WRITER, name)
        is_hidden = not store.get_latest_featuregroup_version(name)
        if is_hidden and full_store.get_latest_featuregroup_version(name):
            raise FeatureGroupNotFound(f"Unknown feature group {name!r}.")
    return full_store


def writable_store(
    name: Name, version: Version, store: Store, full_store: FullStore, visitor: CurrentVisitor
) -> FeatureStore:
    """Return the unfiltered store if the visitor is allowed to write to a group."""
    store.featuregroup(name, version=version)
    if visitor is not None:
        visitor.check(roles.WRITER, name)
    return full_store


CreatableStore = Annotated[FeatureStore, Depends(creatable_store)]
WritableStore = Annotated[FeatureStore, Depends(writable_store)]
ReceivedUpload = Annotated[Upload, Depends(received_upload)]


@router.post("/{name}", openapi_extra=BODY)
def create(
    name: Name, full_store: CreatableStore, visitor: CurrentVisitor, upload: ReceivedUpload
) -> dict[str, Any]:
    """Create a feature group, or its next version, from the uploaded rows."""
    with _parsed_request(upload, NewGroup) as request:
        group_record = request.create(full_store, name, require_rows(upload.table()))
        # With may_exist the group may be older, and its first commit may have another author.
        first_commit = {} if request.may_exist else {"delta_version": 1}
        log_change(full_store, visitor, audit_log.CREATE, name, group_record | first_commit)
        return group_record


@router.post("/{name}/{version}/rows", openapi_extra=BODY)
def insert(
    name: Name,
    version: Version,
    full_store: WritableStore,
    visitor: CurrentVisitor,
    upload: ReceivedUpload,
) -> dict[str, Any]:
    """Write the uploaded rows in one atomic commit."""
    with _parsed_request(upload, Insert) as request:
        commit = request.write(full_store, name, version, require_rows(upload.table()))
        detail = {"mode": request.mode, "delta_version": commit["delta_version"]}
        log_change(full_store, visitor, "insert", f"{name}@v{version}", detail)
        return commit


@router.post("/{name}/{version}/deletions")
def delete_rows(
    name: Name,
    version: Version,
    full_store: WritableStore,
    visitor: CurrentVisitor,
    settings: Settings,
    deletion: Deletion,
) -> dict[str, Any]:
    """Delete the rows for which a condition is true."""
    check_sql(deletion.where, max_characters=settings.condition)
    commit = commit_record(
        full_store.delete_from_featuregroup(name, deletion.where, version=version)
    )
    detail = {"where": deletion.where, "delta_version": commit["delta_version"]}
    log_change(full_store, visitor, "delete rows", f"{name}@v{version}", detail)
    return commit


@router.post("/{name}/{version}/tags")
def tag(
    name: Name, version: Version, full_store: WritableStore, visitor: CurrentVisitor, new_tag: Tag
) -> dict[str, str]:
    """Set a tag, or remove it without a value, and return all tags."""
    if new_tag.value is None:
        full_store.remove_featuregroup_tag(name, new_tag.key, version=version)
    else:
        full_store.add_featuregroup_tag(name, new_tag.key, new_tag.value, version=version)
    log_change(full_store, visitor, "tag", f"{name}@v{version}", new_tag.model_dump())
    return full_store.get_featuregroup_tags(name, version=version)


@contextmanager
def _parsed_request(upload: Upload, model: type[RequestModel]) -> Iterator[RequestModel]:
    """Yield the parsed line of an upload, and remove the uploaded rows at the end."""
    try:
        yield upload.parse_line(model)
    finally:
        upload.remove()
