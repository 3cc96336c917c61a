"""The functions over windows: what each of them answers for the rows that a label sees.

Values that are null, and rows that a condition rules out, count for no function. A label that sees
no value gets 0 for counts and null for the rest. NaN is greater than every number; sums, means and
deviations over NaN, or over infinities of both signs, are NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.aggregates import exact
from featurestore.aggregates.exact import FixedPoint
from featurestore.aggregates.ranges import (
    Flags,
    Integers,
    Labels,
    Rows,
    TooLong,
    Window,
    window_of,
)
from featurestore.errors import InvalidArgument

Function = Literal[
    "sum", "count", "mean", "min", "max", "std", "var", "first", "last",
    "count_distinct", "any", "all", "last_n",
]  # fmt: skip
_LEAST, _MOST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Aggregate:
    """One function over one window of a chunk.

    ``values`` and ``condition`` are numbers of columns among those handed to ``aggregate``; the
    window is ``(t - offset - over, t - offset]`` in microseconds, without a beginning where
    ``over`` is None. ``n`` is how many values ``last_n`` keeps.
    """

    function: Function
    values: int
    over: int | None
    offset: int = 0
    condition: int | None = None
    n: int = 0


@dataclass
class Chunk:
    """Rows and labels of whole keys and what has been computed of them already."""

    rows: Rows
    labels: Labels
    keys: int
    columns: Sequence[pa.Array]
    conditions: Sequence[pa.Array]
    windows: dict[tuple[int | None, int], Window] = field(default_factory=dict)
    sums: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def window(self, aggregate: Aggregate) -> Window:
        """Return the window of an aggregate; one for all that share it."""
        key = (aggregate.over, aggregate.offset)
        if key not in self.windows:
            self.windows[key] = window_of(
                self.rows, self.labels, keys=self.keys, over=key[0], offset=key[1]
            )
        return self.windows[key]

    def once(self, aggregate: Aggregate, what: str, compute: Callable[[], Any]) -> Any:
        """Return what several functions over one column, condition and window share."""
        key = (what, aggregate.values, aggregate.condition, aggregate.over, aggregate.offset)
        if key not in self.sums:
            self.sums[key] = compute()
        return self.sums[key]

    def present(self, aggregate: Aggregate) -> Flags:
        """Return the rows whose value counts."""
        flags = _flags(self.columns[aggregate.values].is_valid())
        if aggregate.condition is not None:
            condition = self.conditions[aggregate.condition]
            flags = flags & _flags(pc.fill_null(condition, False))
        return flags


def aggregate(
    rows: Rows,
    labels: Labels,
    *,
    keys: int,
    columns: Sequence[pa.Array],
    aggregates: Sequence[Aggregate],
    conditions: Sequence[pa.Array] = (),
) -> list[pa.Array]:
    """Return one array for each aggregate, with one value for each label.

    Args:
        rows: Rows of whole keys in the order that ``Rows`` asks for.
        labels: Labels in the order of their keys and times.
        keys: How many keys there are.
        columns: Values of the rows.
        aggregates: What is asked for.
        conditions: Booleans of the rows.

    Raises:
        InvalidArgument: A sum of integers or decimals does not fit its type.

    >>> rows = Rows(np.array([0, 0, 0]), np.array([1, 5, 9]))
    >>> labels = Labels(np.array([0, 0]), np.array([5, 100]))
    >>> found = aggregate(rows, labels, keys=1, columns=[pa.array([1.5, 2.0, None])],
    ...                   aggregates=[Aggregate("sum", 0, over=5), Aggregate("count", 0, over=None)])
    >>> [each.to_pylist() for each in found]
    [[3.5, None], [2, 2]]
    """
    try:
        chunk = Chunk(rows, labels, keys, columns, conditions)
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
    if function == "count" or function == "count_distinct":
        return pa.int64()
    if function in ("min", "max"):
        return None if pat.is_nested(kind) or pat.is_boolean(kind) else kind
    if function in ("first", "last"):
        return kind
    if function == "last_n":
        return None if pat.is_nested(kind) else pa.list_(kind, n)
    if function in ("any", "all"):
        return pa.bool_() if pat.is_boolean(kind) else None
    if pat.is_decimal(kind):
        return pa.decimal128(38, kind.scale) if function == "sum" else pa.float64()
    if pat.is_integer(kind):
        return pa.int64() if function == "sum" else pa.float64()
    return pa.float64() if pat.is_floating(kind) else None


def _flags(array: pa.Array) -> Flags:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=bool)


def _nulls_where(found: npt.NDArray[Any], empty: Flags, kind: pa.DataType) -> pa.Array:
    return pa.array(found, mask=empty, type=kind)


# ---- counts


def _counted(chunk: Chunk, each: Aggregate) -> Integers:
    return chunk.once(each, "count", lambda: chunk.window(each).counts(chunk.present(each)))


def _count(chunk: Chunk, each: Aggregate) -> pa.Array:
    return pa.array(_counted(chunk, each), pa.int64())


def _count_distinct(chunk: Chunk, each: Aggregate) -> pa.Array:
    codes = _same(chunk.columns[each.values])
    groups = codes + chunk.rows.key * (int(codes.max(initial=0)) + 1)
    _, groups = np.unique(groups, return_inverse=True)
    found = chunk.window(each).distinct(groups.astype(np.int64), chunk.present(each))
    return pa.array(found, pa.int64())


def _same(values: pa.Array) -> Integers:
    """Return a number for each value; equal values have equal ones."""
    indices = _one_zero(values).dictionary_encode(null_encoding="encode").indices
    return indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _any(chunk: Chunk, each: Aggregate) -> pa.Array:
    true = _counted_true(chunk, each)
    return _nulls_where(true > 0, _counted(chunk, each) == 0, pa.bool_())


def _all(chunk: Chunk, each: Aggregate) -> pa.Array:
    counted = _counted(chunk, each)
    return _nulls_where(_counted_true(chunk, each) == counted, counted == 0, pa.bool_())


def _counted_true(chunk: Chunk, each: Aggregate) -> Integers:
    values = _flags(pc.fill_null(chunk.columns[each.values], False))
    return chunk.window(each).counts(values & chunk.present(each))


# ---- sums


def _sum(chunk: Chunk, each: Aggregate) -> pa.Array:
    kind = chunk.columns[each.values].type
    empty = _counted(chunk, each) == 0
    if pat.is_decimal(kind):
        units = _whole_sums(chunk, each)
        return _decimals(units, empty, kind.scale)
    if pat.is_integer(kind):
        return _nulls_where(_fitting(_whole_sums(chunk, each)), empty, pa.int64())
    return _nulls_where(_double_sums(chunk, each), empty, pa.float64())


def _mean(chunk: Chunk, each: Aggregate) -> pa.Array:
    count = _counted(chunk, each)
    sums, scale = _as_doubles(chunk, each)
    found = sums / np.maximum(count, 1) / scale
    return _nulls_where(found, count == 0, pa.float64())


def _as_doubles(chunk: Chunk, each: Aggregate) -> tuple[exact.Doubles, float]:
    """Return the sums, rounded once, and what units of a decimal they are to be divided by."""
    kind = chunk.columns[each.values].type
    if pat.is_floating(kind):
        return _double_sums(chunk, each), 1.0
    limbs, bits = _limb_sums(chunk, each, "whole", lambda: _whole_numbers(chunk, each))
    scale = 10.0**kind.scale if pat.is_decimal(kind) else 1.0
    return exact.rounded(limbs, unit=0, bits=bits), scale


def _double_sums(chunk: Chunk, each: Aggregate) -> exact.Doubles:
    return chunk.once(each, "doubles", lambda: _summed_doubles(chunk, each))


def _summed_doubles(chunk: Chunk, each: Aggregate) -> exact.Doubles:
    numbers = _finite(chunk, each, exact.of_doubles)
    limbs, bits = _limb_sums(chunk, each, "sum", lambda: numbers)
    found = exact.rounded(limbs, unit=numbers.unit, bits=bits)
    return _with_specials(chunk, each, found)


def _finite(chunk: Chunk, each: Aggregate, make: Callable[..., FixedPoint]) -> FixedPoint:
    values = _doubles(chunk, each)
    counts = np.isfinite(values) & chunk.present(each)
    return make(np.where(counts, values, 0.0), bits=exact.bits_for(len(values)))


def _doubles(chunk: Chunk, each: Aggregate) -> exact.Doubles:
    column = chunk.columns[each.values].cast(pa.float64())
    return column.fill_null(0.0).to_numpy(zero_copy_only=False)


def _with_specials(chunk: Chunk, each: Aggregate, found: exact.Doubles) -> exact.Doubles:
    """Put NaN and infinities into sums of finite numbers."""
    values, present = _doubles(chunk, each), chunk.present(each)
    odd = present & ~np.isfinite(values)
    if not odd.any():
        return found
    window = chunk.window(each)
    above = window.counts(odd & (values == np.inf)) > 0
    below = window.counts(odd & (values == -np.inf)) > 0
    nothing = (window.counts(odd & np.isnan(values)) > 0) | (above & below)
    found = np.where(above, np.inf, np.where(below, -np.inf, found))
    return np.where(nothing, np.nan, found)


def _limb_sums(
    chunk: Chunk, each: Aggregate, what: str, numbers: Callable[[], FixedPoint]
) -> tuple[list[Integers], int]:
    """Return for each digit the sums over the windows, and how many bits a digit has."""

    def compute() -> tuple[list[Integers], int]:
        window, fixed = chunk.window(each), numbers()
        return list(map(window.totals, fixed.limbs())), fixed.bits

    return chunk.once(each, f"limbs of {what}", compute)


def _whole_numbers(chunk: Chunk, each: Aggregate) -> FixedPoint:
    column, present = chunk.columns[each.values], chunk.present(each)
    bits = exact.bits_for(len(column))
    if pat.is_decimal(column.type):
        words = _decimal_words(column)
        return exact.of_words([np.where(present, word, 0) for word in words], bits=bits)
    if pat.is_uint64(column.type):
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
        low = np.where(present, numbers & np.uint64(0xFFFFFFFF), 0).astype(np.int64)
        high = np.where(present, numbers >> np.uint64(32), 0).astype(np.int64)
        return exact.of_words([low, high], bits=bits)
    values = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return exact.of_integers(np.where(present, values, 0), bits=bits)


def _decimal_words(column: pa.Array) -> list[Integers]:
    """Return the unscaled integers of decimals as four words, the lowest first."""
    wide = column.cast(pa.decimal128(38, column.type.scale)).fill_null(0)
    words = np.frombuffer(wide.buffers()[1], np.uint32).reshape(-1, 4)
    words = words[wide.offset : wide.offset + len(wide)]
    lower = [words[:, number].astype(np.int64) for number in range(3)]
    return [*lower, words[:, 3].view(np.int32).astype(np.int64)]


def _whole_sums(chunk: Chunk, each: Aggregate) -> list[int]:
    limbs, bits = _limb_sums(chunk, each, "whole", lambda: _whole_numbers(chunk, each))
    return _joined(limbs, bits)


def _joined(limbs: Sequence[Integers], bits: int) -> list[int]:
    """Return the numbers that limbs mean, as integers without a bound."""
    total = limbs[0].astype(object)
    for number, limb in enumerate(limbs[1:], start=1):
        if limb.any():
            total = total + limb.astype(object) * (1 << (bits * number))
    return list(total)


def _fitting(sums: Sequence[int]) -> Integers:
    if sums and not (min(sums) >= _LEAST and max(sums) <= _MOST):
        raise InvalidArgument(
            "A sum of integers over a window does not fit 64 bits.",
            hint="sum a double or decimal column, or take a shorter window",
        )
    return np.array(sums, np.int64)


def _decimals(units: Sequence[int], empty: Flags, scale: int) -> pa.Array:
    if units and max(map(abs, units)) >= 10**38:
        raise InvalidArgument(
            "A sum of decimals over a window has more than 38 digits.",
            hint="sum a double column, or take a shorter window",
        )
    mask = (1 << 128) - 1
    buffer = b"".join([(unit & mask).to_bytes(16, "little") for unit in units])
    valid = np.packbits(~empty, bitorder="little").tobytes()
    kind = pa.decimal128(38, scale)
    return pa.Array.from_buffers(kind, len(units), [pa.py_buffer(valid), pa.py_buffer(buffer)])


# ---- deviations


def _var(chunk: Chunk, each: Aggregate) -> pa.Array:
    count = _counted(chunk, each)
    return _nulls_where(_variances(chunk, each), count < 2, pa.float64())


def _std(chunk: Chunk, each: Aggregate) -> pa.Array:
    count = _counted(chunk, each)
    return _nulls_where(np.sqrt(_variances(chunk, each)), count < 2, pa.float64())


def _variances(chunk: Chunk, each: Aggregate) -> exact.Doubles:
    return chunk.once(each, "variance", lambda: _computed_variances(chunk, each))


def _computed_variances(chunk: Chunk, each: Aggregate) -> exact.Doubles:
    """Return sample variances of the values as doubles; NaN where one of them is not finite."""
    numbers, squares = (
        _finite(chunk, each, exact.of_doubles),
        _finite(chunk, each, exact.of_squares),
    )
    sums, bits = _limb_sums(chunk, each, "sum", lambda: numbers)
    square_sums, _ = _limb_sums(chunk, each, "squares", lambda: squares)
    found = exact.variances(
        _counted(chunk, each),
        exact.Sums(sums, numbers.unit, bits),
        exact.Sums(square_sums, squares.unit, bits),
    )
    odd = chunk.present(each) & ~np.isfinite(_doubles(chunk, each))
    if odd.any():
        found = np.where(chunk.window(each).counts(odd) > 0, np.nan, found)
    return found


# ---- extremes, first and last


def _max(chunk: Chunk, each: Aggregate) -> pa.Array:
    return _extreme(chunk, each, np.maximum, neutral=_LEAST)


def _min(chunk: Chunk, each: Aggregate) -> pa.Array:
    return _extreme(chunk, each, np.minimum, neutral=_MOST)


def _extreme(
    chunk: Chunk, each: Aggregate, choose: Callable[..., Integers], *, neutral: int
) -> pa.Array:
    """Return the value of the row whose code is the greatest or smallest."""
    column, present = _one_zero(chunk.columns[each.values]), chunk.present(each)
    ranks = _ranks(column)
    found = chunk.window(each).extremes(ranks, present, choose, neutral=neutral)
    valid = np.flatnonzero(_flags(column.is_valid()))
    one_row_of_rank = np.zeros(int(ranks.max(initial=0)) + 1, np.int64)
    one_row_of_rank[ranks[valid]] = valid
    return _taken(column, one_row_of_rank, found, neutral=neutral)


def _one_zero(column: pa.Array) -> pa.Array:
    """Return a column in which equal floats have equal bits: one zero, one NaN."""
    if not pat.is_floating(column.type):
        return column
    doubles = column.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False) + 0.0
    doubles[np.isnan(doubles)] = np.nan
    nulls = _flags(column.is_null())
    return pa.array(doubles, mask=nulls).cast(column.type)


def _ranks(column: pa.Array) -> Integers:
    """Return the rank of each value among all; equal values have equal ranks, nulls any."""
    if pat.is_floating(column.type):
        doubles = column.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False)
        numbers = _ordered_bits(doubles)
    elif pat.is_integer(column.type) and not pat.is_uint64(column.type):
        numbers = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    elif pat.is_temporal(column.type):
        whole = column.cast(pa.int32()) if column.type.bit_width == 32 else column.cast(pa.int64())
        numbers = whole.fill_null(0).to_numpy(zero_copy_only=False)
    else:
        return pc.rank(column, tiebreaker="dense").to_numpy().astype(np.int64)
    return np.unique(numbers, return_inverse=True)[1].astype(np.int64)


def _ordered_bits(values: exact.Doubles) -> Integers:
    """Return integers in the order of doubles; NaN is the greatest, whatever its sign."""
    bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
    return np.where(bits < 0, bits ^ np.int64(_MOST), bits)


def _taken(column: pa.Array, rows: Integers, found: Integers, *, neutral: int) -> pa.Array:
    """Return the values of rows by the numbers found; null where nothing was."""
    empty = found == neutral
    numbers = np.zeros(len(found), np.int64)
    if len(rows):
        numbers = rows[np.where(empty, 0, found)]
    return column.take(pa.array(numbers, mask=empty))


def _last(chunk: Chunk, each: Aggregate) -> pa.Array:
    return _at_the_edge(chunk, each, np.maximum, neutral=_LEAST)


def _first(chunk: Chunk, each: Aggregate) -> pa.Array:
    return _at_the_edge(chunk, each, np.minimum, neutral=_MOST)


def _at_the_edge(
    chunk: Chunk, each: Aggregate, choose: Callable[..., Integers], *, neutral: int
) -> pa.Array:
    """Return the value of the newest or oldest row; rows are in the order of their times."""
    column = chunk.columns[each.values]
    numbers = np.arange(len(column))
    found = chunk.window(each).extremes(numbers, chunk.present(each), choose, neutral=neutral)
    return _taken(column, numbers, found, neutral=neutral)


def _last_n(chunk: Chunk, each: Aggregate) -> pa.Array:
    """Return the newest values, the newest last; nulls come first where there are fewer."""
    column = chunk.columns[each.values]
    newest = chunk.window(each).newest(chunk.present(each), each.n)
    flat = newest.ravel()
    values = column.take(pa.array(np.maximum(flat, 0), mask=flat < 0))
    return pa.FixedSizeListArray.from_arrays(values, each.n)


_FUNCTIONS: dict[str, Callable[[Chunk, Aggregate], pa.Array]] = {
    "all": _all,
    "any": _any,
    "count": _count,
    "count_distinct": _count_distinct,
    "first": _first,
    "last": _last,
    "last_n": _last_n,
    "max": _max,
    "mean": _mean,
    "min": _min,
    "std": _std,
    "sum": _sum,
    "var": _var,
}
