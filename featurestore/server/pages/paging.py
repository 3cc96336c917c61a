"""Paging of lists, and the ages for their filters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Generic, TypeVar

from fastapi import Query

T = TypeVar("T")
AGES = {"1h": timedelta(hours=1), "1d": timedelta(days=1), "7d": timedelta(days=7)}
PageNumber = Annotated[int, Query(alias="page", ge=1, le=100_000)]


@dataclass(frozen=True)
class ListPage(Generic[T]):
    """A page of a list; ``more``: there is a next page."""

    items: list[T]
    number: int
    more: bool


def load_page(read: Callable[[int, int], list[T]], *, number: int, size: int) -> ListPage[T]:
    """Load a page of a list; ``read`` takes limit and offset."""
    entries = read(size + 1, (number - 1) * size)
    return ListPage(entries[:size], number, len(entries) > size)
