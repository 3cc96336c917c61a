"""Write requests of remote clients: the arguments of library calls other than the rows."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from featurestore.errors import InvalidArgument
from featurestore.model.featuregroup import Commit
from featurestore.server.records.jsonable import jsonable
from featurestore.store import FeatureStore

Names = str | list[str]


class NewGroup(BaseModel, extra="forbid"):
    """Arguments of ``create_featuregroup``; with ``may_exist`` of ``get_or_create_featuregroup``."""

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
    expectations: list[dict[str, Any]] | None = None
    validation: str = "strict"
    event_time_tolerance: str | None = None
    statistics: bool = True
    compact: Literal["auto"] | None = None

    def create(self, store: FeatureStore, name: str, rows: object) -> dict[str, Any]:
        """Create the group and return its name and version."""
        arguments = self.model_dump(exclude={"may_exist"})
        create_group = (
            store.get_or_create_featuregroup if self.may_exist else store.create_featuregroup
        )
        group = create_group(rows, name, **arguments)
        return {"name": group.name, "version": group.version}


class Insert(BaseModel, extra="forbid"):
    """Arguments of ``insert_into_featuregroup``."""

    mode: Literal["append", "upsert", "overwrite"] = "append"
    schema_change: Literal["add"] | None = None
    on_duplicates: Literal["error", "last"] = "error"
    transaction: tuple[str, int] | None = None
    validation: str | None = None

    def write(self, store: FeatureStore, name: str, version: int, rows: object) -> dict[str, Any]:
        """Write the rows and return the commit."""
        commit = store.insert_into_featuregroup(rows, name, version=version, **self.model_dump())
        return commit_record(commit)


class Deletion(BaseModel, extra="forbid"):
    """Rows to delete: those for which a condition is true."""

    where: str


class Tag(BaseModel, extra="forbid"):
    """A tag to set, or to remove where it has no value."""

    key: str = Field(max_length=200)
    value: str | None = Field(default=None, max_length=2000)


def commit_record(commit: Commit) -> dict[str, Any]:
    """Return a commit as a JSON record."""
    record: dict[str, Any] = jsonable(vars(commit))
    return record


def require_rows(rows: object | None) -> object:
    """Return the uploaded rows; a write without rows is an error."""
    if rows is None:
        raise InvalidArgument("The request body has no rows.")
    return rows
