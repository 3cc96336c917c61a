"""The functions over windows: what each of them answers for the rows that a label sees.

Values that are null, and rows that a condition rules out, count for no function. A label that sees
no value gets 0 for counts and null for the rest. NaN is greater than every number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.aggregates import counts, extremes, sums
from featurestore.aggregates.chunk import Aggregate, Chunk, Function, Totals
from featurestore.aggregates.ranges import Labels, Rows, Timeline, TooLong
from featurestore.model.types import is_nested


def aggregate(
    rows: Rows,
    labels: Labels,
    *,
    keys: int,
    columns: Sequence[pa.Array],
    aggregates: Sequence[Aggregate],
    conditions: Sequence[pa.Array] = (),
    carried: Mapping[tuple[int, int | None], Totals] | None = None,
) -> list[pa.Array]:
    """Return one array for each aggregate, with one value for each label.

    Args:
        rows: Rows of whole keys in the order that ``Rows`` asks for.
        labels: Labels in the order of their keys and times.
        keys: How many keys there are.
        columns: Values of the rows.
        aggregates: What is asked for.
        conditions: Booleans of the rows.
        carried: By values and condition, what rows of one key that are not given add for every
            label; only to counts, sums, means and deviations.

    Raises:
        InvalidArgument: A sum of integers or decimals does not fit its type.

    >>> rows = Rows(np.array([0, 0, 0]), np.array([1, 5, 9]))
    >>> labels = Labels(np.array([0, 0]), np.array([5, 100]))
    >>> found = aggregate(rows, labels, keys=1, columns=[pa.array([1.5, 2.0, None])],
    ...                   aggregates=[Aggregate("sum", 0, over=5),
    ...                               Aggregate("count", 0, over=None)])
    >>> [each.to_pylist() for each in found]
    [[3.5, None], [2, 2]]
    """
    try:
        timeline = Timeline(rows, labels, keys=keys)
        chunk = Chunk(timeline, rows, columns, conditions, carried or {})
        return [_FUNCTIONS[each.function](chunk, each) for each in aggregates]
    except TooLong:
        return _in_halves(rows, labels, keys, columns, aggregates, conditions)


def _in_halves(
    rows: Rows,
    labels: Labels,
    keys: int,
    columns: Sequence[pa.Array],
    aggregates: Sequence[Aggregate],
    conditions: Sequence[pa.Array],
) -> list[pa.Array]:
    """Aggregate the lower and the upper half of the keys, one after the other."""
    middle = keys // 2
    halves = []
    for low, high in ((0, middle), (middle, keys)):
        mine = slice(*np.searchsorted(rows.key, [low, high]))
        asked = slice(*np.searchsorted(labels.key, [low, high]))
        my_columns = [each[mine] for each in columns]
        my_conditions = [each[mine] for each in conditions]
        half = aggregate(
            rows.part(mine, first_key=low),
            Labels(labels.key[asked] - low, labels.time[asked]),
            keys=high - low,
            columns=my_columns,
            aggregates=aggregates,
            conditions=my_conditions,
        )
        halves.append(half)
    lower, upper = halves
    return [pa.concat_arrays(pair) for pair in zip(lower, upper, strict=True)]


def result_type(function: Function, kind: pa.DataType, *, n: int = 0) -> pa.DataType | None:
    """Return the type of a function's answers over a column; None where it has none.

    >>> result_type("sum", pa.decimal128(10, 2)), result_type("mean", pa.string())
    (Decimal128Type(decimal128(38, 2)), None)
    """
    if function == "count":
        return pa.int64()
    if function == "count_distinct":
        return None if is_nested(kind) else pa.int64()
    if function in ("min", "max"):
        return None if is_nested(kind) or pat.is_boolean(kind) else kind
    if function in ("first", "last"):
        return kind
    if function == "last_n":
        is_array = pat.is_fixed_size_list(kind)
        return pa.list_(kind, n) if is_array or not is_nested(kind) else None
    if function in ("any", "all"):
        return pa.bool_() if pat.is_boolean(kind) else None
    if pat.is_decimal(kind):
        return pa.decimal128(38, kind.scale) if function == "sum" else pa.float64()
    if pat.is_integer(kind):
        return pa.int64() if function == "sum" else pa.float64()
    return pa.float64() if pat.is_floating(kind) else None


_FUNCTIONS = {**counts.FUNCTIONS, **sums.FUNCTIONS, **extremes.FUNCTIONS}
