"""Answers of the REST interface: objects as JSON, lists by page, and what each may refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from fastapi import Path, Query
from pydantic import BaseModel, Field

from featurestore.model.counts import MAX_VERSION
from featurestore.server.problems import MEDIA_TYPE
from featurestore.server.records.jsonable import jsonable

T = TypeVar("T")
Limit = Annotated[int, Query(ge=1, le=1000, description="How many at most.")]
Offset = Annotated[int, Query(ge=0, le=10_000_000, description="How many to leave out before.")]
Name = Annotated[str, Path(pattern="^[a-z][a-z0-9_]{0,62}$", description="A name.")]
Version = Annotated[int, Path(ge=1, le=MAX_VERSION, description="A version.")]


class Problem(BaseModel):
    """What went wrong (RFC 9457); ``hint`` is what to do."""

    type: str
    title: str
    status: int
    detail: str
    hint: str | None = None


class Items(BaseModel):
    """A page of a list; ``next`` is the offset of the next one."""

    items: list[dict[str, Any]]
    next: int | None = Field(description="The offset of the next page; null: there is none.")


_PROBLEM = {"model": Problem, "content": {MEDIA_TYPE: {}}}
REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {**_PROBLEM, "description": "What was asked cannot be."},
    404: {**_PROBLEM, "description": "There is no such thing."},
    413: {**_PROBLEM, "description": "More was asked or sent than a bound, which is named."},
    422: {**_PROBLEM, "description": "An argument has a wrong type."},
}


def record(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as JSON has it."""
    answer: dict[str, Any] = jsonable(found)
    return answer


def items(
    read: Callable[[int, int], list[T]],
    told: Callable[[T], Mapping[str, Any]],
    *,
    limit: int,
    offset: int,
) -> Items:
    """Return a page of a list; ``read`` takes how many and how many to leave out before them."""
    found = read(limit + 1, offset)
    following = offset + limit if len(found) > limit else None
    return Items(items=[record(told(each)) for each in found[:limit]], next=following)
