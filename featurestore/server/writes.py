"""Feature group writes through REST: request models and routes; all writes are audited."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

from fastapi import Depends
from pydantic import BaseModel, Field

from featurestore.errors import FeatureGroupNotFound, InvalidArgument
from featurestore.featuregroups.definition import normalize_expectations
from featurestore.featuregroups.existing import collect_notices
from featurestore.featuregroups.write_request import find_inputs
from featurestore.model.featuregroup import Commit
from featurestore.registry import audit_log
from featurestore.retrieval.compared_features import find_comparisons, find_group_of_feature
from featurestore.server.access import visitors
from featurestore.server.guard import CurrentVisitor, FullStore, Settings, Store, log_change
from featurestore.server.rest import REFUSALS, Name, Record, Version, to_json_value
from featurestore.server.routes import Router
from featurestore.server.rows import BODY, check_sql, receive_request_upload
from featurestore.server.uploads import RequestModel, Upload
from featurestore.store import FeatureStore

Names = str | list[str]
api = Router(prefix="/featuregroups", tags=["writes"], responses=REFUSALS)
ReceivedUpload = Annotated[Upload, Depends(receive_request_upload)]


class NewGroup(BaseModel, extra="forbid"):
    """Arguments of ``create_featuregroup``, or ``get_or_create_featuregroup`` if ``may_exist``."""

    may_exist: bool = False
    primary_key: Names = Field(default_factory=list)
    event_time: str | None = None
    created_time: str | None = None
    partition_by: Names = Field(default_factory=list)
    version: int | None = None
    ttl: str | None = None
    description: str = ""
    descriptions: dict[str, str] | None = None
    tags: dict[str, str] | None = None
    expectations: list[Record] | None = None
    validation: str = "strict"
    event_time_tolerance: str | None = None
    statistics: bool = True
    compact: Literal["auto"] | None = None
    iceberg: bool = False
    inputs: list[str] = Field(default_factory=list, max_length=1000)
    if_exists: Literal["version", "error", "return"] = "version"

    def create(
        self, store: FeatureStore, name: str, rows: object, *, visible: FeatureStore
    ) -> Record:
        """Create the group and return its name, its version and notices."""
        # An input that the visitor must not see raises the same error as a missing one.
        find_inputs(visible.session, self.inputs, None)
        # The same holds for a feature that an expectation names: refused rows would state which
        # values its group has.
        for comparison in find_comparisons(normalize_expectations(self.expectations)):
            if comparison.group != name:
                find_group_of_feature(visible.session, comparison)
        arguments = self.model_dump(exclude={"may_exist", "if_exists"})
        with collect_notices(visible.session) as notices:
            if self.may_exist:
                group = store.get_or_create_featuregroup(rows, name, **arguments)
            else:
                arguments["if_exists"] = self.if_exists
                group = store.create_featuregroup(rows, name, **arguments)
        return {"name": group.name, "version": group.version, "notices": notices}


class Insert(BaseModel, extra="forbid"):
    """Arguments of ``insert_into_featuregroup``."""

    mode: Literal["append", "upsert", "overwrite"] = "append"
    schema_change: Literal["add"] | None = None
    on_duplicates: Literal["error", "last"] = "error"
    transaction: tuple[str, int] | None = None
    validation: str | None = None

    def write(self, store: FeatureStore, name: str, version: int, rows: object) -> Record:
        """Write the rows and return the commit."""
        commit = store.insert_into_featuregroup(rows, name, version=version, **self.model_dump())
        return commit_record(commit)


class Deletion(BaseModel, extra="forbid"):
    """A condition that selects the rows to delete."""

    where: str


class Tag(BaseModel, extra="forbid"):
    """A tag to set; without a value it is removed."""

    key: str = Field(max_length=200)
    value: str | None = Field(default=None, max_length=2000)


def commit_record(commit: Commit) -> Record:
    """Convert a commit to a JSON record."""
    record: Record = to_json_value(vars(commit))
    return record


def require_rows(rows: object | None) -> object:
    """Return the uploaded rows; raise an error if a write has no rows."""
    if rows is None:
        raise InvalidArgument("The request body has no rows.")
    return rows


def creatable_store(
    name: Name, store: Store, full_store: FullStore, visitor: CurrentVisitor
) -> FeatureStore:
    """Return the unfiltered store if the visitor may create a version of a group."""
    if visitor is not None:
        visitor.check(visitors.WRITER, name)
        # A hidden group raises the same error as a missing one: creating its next version would
        # reveal that it exists.
        is_hidden = not store.get_latest_featuregroup_version(name)
        if is_hidden and full_store.get_latest_featuregroup_version(name):
            raise FeatureGroupNotFound(f"Unknown feature group {name!r}.")
    return full_store


def writable_store(
    name: Name, version: Version, store: Store, full_store: FullStore, visitor: CurrentVisitor
) -> FeatureStore:
    """Return the unfiltered store if the visitor may write to a group."""
    # A hidden group raises the error of a missing one before the role is checked.
    store.featuregroup(name, version=version)
    if visitor is not None:
        visitor.check(visitors.WRITER, name)
    return full_store


CreatableStore = Annotated[FeatureStore, Depends(creatable_store)]
WritableStore = Annotated[FeatureStore, Depends(writable_store)]


@api.post("/{name}", openapi_extra=BODY)
def create(
    name: Name,
    full_store: CreatableStore,
    store: Store,
    visitor: CurrentVisitor,
    upload: ReceivedUpload,
) -> Record:
    """Create a feature group, or its next version, from the uploaded rows."""
    with _parse_request(upload, NewGroup) as request:
        latest_version = full_store.get_latest_featuregroup_version(name)
        group_record = request.create(full_store, name, require_rows(upload.table()), visible=store)
        # If the group already existed, its first commit may have another author.
        detail = {key: group_record[key] for key in ("name", "version")}
        is_new = request.version is not None or group_record["version"] > latest_version
        if is_new and not request.may_exist and request.if_exists != "return":
            detail["delta_version"] = 1
        # The entry follows the commit, so a failed write is not logged.
        log_change(full_store, visitor, audit_log.CREATE, name, detail)
        return group_record


@api.post("/{name}/{version}/rows", openapi_extra=BODY)
def insert(
    name: Name,
    version: Version,
    full_store: WritableStore,
    visitor: CurrentVisitor,
    upload: ReceivedUpload,
) -> Record:
    """Write the uploaded rows in one atomic commit."""
    with _parse_request(upload, Insert) as request:
        commit = request.write(full_store, name, version, require_rows(upload.table()))
        detail = {"mode": request.mode, "delta_version": commit["delta_version"]}
        log_change(full_store, visitor, "insert", f"{name}@v{version}", detail)
        return commit


@api.post("/{name}/{version}/deletions")
def delete_rows(
    name: Name,
    version: Version,
    full_store: WritableStore,
    visitor: CurrentVisitor,
    settings: Settings,
    deletion: Deletion,
) -> Record:
    """Delete the rows for which a condition is true."""
    check_sql(deletion.where, max_characters=settings.condition)
    commit = commit_record(
        full_store.delete_from_featuregroup(name, deletion.where, version=version)
    )
    detail = {"where": deletion.where, "delta_version": commit["delta_version"]}
    log_change(full_store, visitor, "delete rows", f"{name}@v{version}", detail)
    return commit


@api.post("/{name}/{version}/tags")
def tag(
    name: Name, version: Version, full_store: WritableStore, visitor: CurrentVisitor, new_tag: Tag
) -> dict[str, str]:
    """Set a tag, or remove it if it has no value, and return all tags."""
    if new_tag.value is None:
        full_store.remove_featuregroup_tag(name, new_tag.key, version=version)
    else:
        full_store.add_featuregroup_tag(name, new_tag.key, new_tag.value, version=version)
    log_change(full_store, visitor, "tag", f"{name}@v{version}", new_tag.model_dump())
    return full_store.get_featuregroup_tags(name, version=version)


@contextmanager
def _parse_request(upload: Upload, model: type[RequestModel]) -> Iterator[RequestModel]:
    """Yield the parsed JSON line of an upload, and remove the uploaded rows at the end."""
    try:
        yield upload.parse_line(model)
    finally:
        upload.remove()
