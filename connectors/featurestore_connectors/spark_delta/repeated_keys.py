"""Detection of duplicate keys in the driver, without a Spark job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.types import is_nested

_COUNT = "n"


def can_compare(schema: pa.Schema, key: Sequence[str]) -> bool:
    """Return True if Arrow compares the values of the key as Spark does."""
    kinds = [schema.field(name).type for name in key]
    return not any(is_nested(kind) or pat.is_floating(kind) for kind in kinds)


def can_sort(schema: pa.Schema, key: Sequence[str]) -> bool:
    """Return True if a sort can detect duplicates, in a tenth of the memory of a group-by."""
    return len(key) == 1 and bool(pat.is_integer(schema.field(key[0]).type))


def duplicates(
    keys: pa.Table, key: Sequence[str], *, limit: int
) -> tuple[int, list[dict[str, Any]]]:
    """Return how many keys occur more than once, and the first few of them with their count.

    ``keys`` has only the columns of ``key``, for which ``can_compare`` is true; rows with nulls are
    ignored.
    """
    # Numbered names, since a key column may have the name of the count column.
    numbers = list(map(str, range(len(key))))
    present = keys.select(list(key)).rename_columns(numbers).drop_null()
    counts = _repeated_candidates(present).group_by(numbers).aggregate([([], "count_all")])
    repeated = counts.filter(pc.greater(counts["count_all"], 1))
    order = [("count_all", "descending")]
    for number in numbers:
        order.append((number, "ascending"))
    first = repeated.sort_by(order).slice(0, limit)
    examples = first.select([*numbers, "count_all"]).rename_columns([*key, _COUNT])
    return len(repeated), examples.to_pylist()


def _repeated_candidates(keys: pa.Table) -> pa.Table:
    """Return a superset of the rows with repeated keys."""
    if not can_sort(keys.schema, keys.schema.names):
        return keys
    column = keys.column(0)
    numbers = np.empty(len(column), column.type.to_pandas_dtype())
    start = 0
    for chunk in column.chunks:
        values = chunk.to_numpy(zero_copy_only=False)
        numbers[start : start + len(values)] = values
        start += len(values)
    numbers.sort()
    repeated_numbers = numbers[1:][numbers[1:] == numbers[:-1]]
    if not len(repeated_numbers):
        return keys.slice(0, 0)
    return keys.filter(pc.is_in(column, pa.array(np.unique(repeated_numbers), column.type)))
