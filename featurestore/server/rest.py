"""Parameters and responses of the REST interface, and the conversion of values to JSON."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, TypeVar

from fastapi import Path, Query
from pydantic import BaseModel, Field

from featurestore.model.arguments import MAX_VERSION
from featurestore.model.times import format_duration
from featurestore.server.problems import MEDIA_TYPE

T = TypeVar("T")
Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items.")]
Offset = Annotated[int, Query(ge=0, le=10_000_000, description="Number of items to skip.")]
Name = Annotated[str, Path(pattern="^[a-z][a-z0-9_]{0,62}$", description="A name.")]
Version = Annotated[int, Path(ge=1, le=MAX_VERSION, description="A version.")]


def jsonable(value: Any) -> Any:
    """Convert a value to JSON types.

    >>> jsonable({"at": datetime(2013, 1, 1), "x": float("nan"), "b": b"ab"})
    {'at': '2013-01-01T00:00:00', 'x': 'NaN', 'b': 'YWI='}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _non_finite_text(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(name): jsonable(each) for name, each in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return list(map(jsonable, value))
    return str(value)


def _non_finite_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


class Problem(BaseModel):
    """An error (RFC 9457); ``hint`` suggests a fix."""

    type: str
    title: str
    status: int
    detail: str
    hint: str | None = None


class Items(BaseModel):
    """A page of a list; ``next`` is the offset of the next page."""

    items: list[dict[str, Any]]
    next: int | None = Field(description="Offset of the next page; null: this is the last page.")


_PROBLEM = {"model": Problem, "content": {MEDIA_TYPE: {}}}
REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {**_PROBLEM, "description": "Invalid request."},
    404: {**_PROBLEM, "description": "Not found."},
    413: {**_PROBLEM, "description": "The request or the response exceeds a limit."},
    422: {**_PROBLEM, "description": "An argument has an invalid type or is out of range."},
}


def record(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a record to JSON types."""
    json_values: dict[str, Any] = jsonable(values)
    return json_values


def items(
    read: Callable[[int, int], list[T]],
    to_record: Callable[[T], Mapping[str, Any]],
    *,
    limit: int,
    offset: int,
) -> Items:
    """Return a page of a list; ``read`` takes limit and offset."""
    entries = read(limit + 1, offset)
    next_offset = offset + limit if len(entries) > limit else None
    return Items(items=[record(to_record(entry)) for entry in entries[:limit]], next=next_offset)
