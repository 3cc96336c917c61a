"""Pages of lists, and the ages that they are narrowed by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Generic, TypeVar

from fastapi import Query

T = TypeVar("T")
FRESH = {"1h": timedelta(hours=1), "1d": timedelta(days=1), "7d": timedelta(days=7)}
PageNumber = Annotated[int, Query(alias="page", ge=1, le=100_000)]


@dataclass(frozen=True)
class ListPage(Generic[T]):
    """A page of a list, and whether there is a next one."""

    items: list[T]
    number: int
    more: bool


def one_page(read: Callable[[int, int], list[T]], *, number: int, size: int) -> ListPage[T]:
    """Return a page; ``read`` takes how many and how many to leave out before them."""
    found = read(size + 1, (number - 1) * size)
    return ListPage(found[:size], number, len(found) > size)
