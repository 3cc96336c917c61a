"""The aggregation kernel: aggregate functions over sorted rows and labels.

Functions ignore nulls and rows that do not satisfy the condition. In a window without values,
counts are 0 and other functions return null. NaN is greater than every number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.aggregates import counts, sums
from featurestore.aggregates.chunk import (
    Aggregate,
    AxisOverflow,
    Chunk,
    Function,
    KeyRows,
    Labels,
    Timeline,
    Totals,
)
from featurestore.arrow.types import is_nested


def aggregate(
    rows: KeyRows,
    labels: Labels,
    *,
    keys: int,
    columns: Sequence[pa.Array],
    aggregates: Sequence[Aggregate],
    conditions: Sequence[pa.Array] = (),
    base_totals: Mapping[tuple[int, int | None], Totals] | None = None,
) -> list[pa.Array]:
    """Compute the aggregates, as one array per aggregate with one value per label.

    Args:
        rows: Rows of complete keys, sorted as ``KeyRows`` specifies.
        labels: Labels, sorted by key and time.
        keys: The number of keys.
        columns: Value columns of the rows.
        aggregates: The aggregates to compute.
        conditions: Boolean columns of the rows.
        base_totals: By values and condition, the totals of further rows that are in every label's
            window, for a single key. They only affect counts, sums, means and deviations.

    Raises:
        InvalidArgument: A sum of integers or decimals does not fit its type.

    >>> rows = KeyRows(np.array([0, 0, 0]), np.array([1, 5, 9]))
    >>> labels = Labels(np.array([0, 0]), np.array([5, 100]))
    >>> arrays = aggregate(rows, labels, keys=1, columns=[pa.array([1.5, 2.0, None])],
    ...                    aggregates=[Aggregate("sum", 0, over=5),
    ...                                Aggregate("count", 0, over=None)])
    >>> [each.to_pylist() for each in arrays]
    [[3.5, None], [2, 2]]
    """
    try:
        timeline = Timeline(rows, labels, keys=keys)
        chunk = Chunk(timeline, rows, columns, conditions, base_totals or {})
        return [_FUNCTIONS[aggregate.function](chunk, aggregate) for aggregate in aggregates]
    except AxisOverflow:
        # Only several keys can overflow the axis: the times of one key fit 62 bits. base_totals are
        # for one key.
        return _aggregate_in_halves(rows, labels, keys, columns, aggregates, conditions)


def _aggregate_in_halves(
    rows: KeyRows,
    labels: Labels,
    keys: int,
    columns: Sequence[pa.Array],
    aggregates: Sequence[Aggregate],
    conditions: Sequence[pa.Array],
) -> list[pa.Array]:
    """Aggregate the lower half and the upper half of the keys separately."""
    middle = keys // 2
    halves = []
    for low, high in ((0, middle), (middle, keys)):
        # Rows and labels are sorted by key, so each half is a slice without a copy.
        row_range = slice(*np.searchsorted(rows.key, [low, high]))
        label_range = slice(*np.searchsorted(labels.key, [low, high]))
        half_columns = [column[row_range] for column in columns]
        half_conditions = [condition[row_range] for condition in conditions]
        half_answers = aggregate(
            rows.slice_keys(row_range, first_key=low),
            Labels(labels.key[label_range] - low, labels.time[label_range]),
            keys=high - low,
            columns=half_columns,
            aggregates=aggregates,
            conditions=half_conditions,
        )
        halves.append(half_answers)
    lower, upper = halves
    return [pa.concat_arrays(pair) for pair in zip(lower, upper, strict=True)]


def result_type(function: Function, dtype: pa.DataType, *, n: int = 0) -> pa.DataType | None:
    """Return the result type of a function over a column type; None if it is not supported.

    >>> result_type("sum", pa.decimal128(10, 2)), result_type("mean", pa.string())
    (Decimal128Type(decimal128(38, 2)), None)
    """
    if function == "count":
        return pa.int64()
    if function == "count_distinct":
        return None if is_nested(dtype) else pa.int64()
    if function in ("min", "max"):
        return None if is_nested(dtype) or pat.is_boolean(dtype) else dtype
    if function in ("first", "last"):
        return dtype
    if function == "last_n":
        is_array = pat.is_fixed_size_list(dtype)
        return pa.list_(dtype, n) if is_array or not is_nested(dtype) else None
    if function in ("any", "all"):
        return pa.bool_() if pat.is_boolean(dtype) else None
    if pat.is_decimal(dtype):
        return pa.decimal128(38, dtype.scale) if function == "sum" else pa.float64()
    if pat.is_integer(dtype):
        return pa.int64() if function == "sum" else pa.float64()
    return pa.float64() if pat.is_floating(dtype) else None


_FUNCTIONS = {**counts.FUNCTIONS, **sums.FUNCTIONS}
