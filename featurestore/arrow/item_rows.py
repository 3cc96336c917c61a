"""Lists of varying length as rows of one array: how many items each has, and the items."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def item_rows(rows: int, max_items: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return so many empty lists with places for ``most`` items each, as a structured array.

    ``length`` is the number of a row's ``items`` that belong to it; the items after them mean
    nothing. Rows are taken, joined and assigned like those of any array.

    >>> lists = item_rows(2, 3, np.dtype(np.int64))
    >>> lists[0] = 2, [7, 8, 0]
    >>> lists["length"].tolist(), lists["items"].shape
    ([2, 0], (2, 3))
    """
    return np.zeros(rows, dtype=[("length", np.int64), ("items", dtype, (max_items,))])


def is_item_rows(rows: npt.NDArray[Any]) -> bool:
    """Return whether an array is one that ``item_rows`` made."""
    return rows.dtype.names is not None


def items_and_lengths(
    rows: npt.NDArray[Any],
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return the items of all rows, one behind the other, and how many each row has.

    >>> lists = item_rows(2, 3, np.dtype(np.int64))
    >>> lists[0] = 2, [7, 8, 0]
    >>> items_and_lengths(lists)[0].tolist()
    [7, 8]
    """
    lengths: npt.NDArray[np.int64] = np.ascontiguousarray(rows["length"])
    items = rows["items"]
    return items[np.arange(items.shape[1]) < lengths[:, None]], lengths
