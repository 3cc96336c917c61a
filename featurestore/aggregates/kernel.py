"""The functions over windows: what each of them answers for the rows that a label sees.

Values that are null, and rows that a condition rules out, count for no function. A label that sees
no value gets 0 for counts and null for the rest. NaN is greater than every number; sums, means and
deviations over NaN, or over infinities of both signs, are NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
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
    Summands,
    Timeline,
    TooLong,
    Window,
)
from featurestore.aggregates.rounding import Sums
from featurestore.aggregates.variance import variances
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


@dataclass(frozen=True)
class Totals:
    """What rows add to the sums and counts of every label that sees them all.

    ``sums`` are exact: of the values as "whole numbers" or as "doubles", and of their "squares".
    NaN and infinities are counted apart.
    """

    count: int = 0
    sums: Mapping[str, Fraction] = field(default_factory=dict)
    above: int = 0
    below: int = 0
    nothing: int = 0

    @property
    def odds(self) -> tuple[int, int, int]:
        """How many values are infinite above and below, and how many NaN."""
        return self.above, self.below, self.nothing

    @property
    def odd(self) -> int:
        """How many values are NaN or infinite."""
        return sum(self.odds)

    def plus(self, other: Totals) -> Totals:
        """Return the totals of the rows of both."""
        sums = dict(self.sums)
        for what, total in other.sums.items():
            sums[what] = sums.get(what, Fraction(0)) + total
        return Totals(
            self.count + other.count,
            sums,
            self.above + other.above,
            self.below + other.below,
            self.nothing + other.nothing,
        )


_NOTHING = Totals()


@dataclass
class Chunk:
    """Rows and labels of whole keys and what has been computed of them already."""

    timeline: Timeline
    rows: Rows
    columns: Sequence[pa.Array]
    conditions: Sequence[pa.Array]
    carried: Mapping[tuple[int, int | None], Totals] = field(default_factory=dict)
    windows: dict[tuple[int | None, int], Window] = field(default_factory=dict)
    found: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def totals(self, aggregate: Aggregate) -> Totals:
        """Return what rows that are not in the chunk add for every label."""
        return self.carried.get((aggregate.values, aggregate.condition), _NOTHING)

    def window(self, aggregate: Aggregate) -> Window:
        """Return the window of an aggregate; one for all that share it."""
        key = (aggregate.over, aggregate.offset)
        if key not in self.windows:
            self.windows[key] = self.timeline.window(over=key[0], offset=key[1])
        return self.windows[key]

    def in_window(self, aggregate: Aggregate, what: str, compute: Callable[[], Any]) -> Any:
        """Return what several functions over one column, condition and window share."""
        key = (what, aggregate.values, aggregate.condition, aggregate.over, aggregate.offset)
        if key not in self.found:
            self.found[key] = compute()
        return self.found[key]

    def of_column(self, aggregate: Aggregate, what: str, compute: Callable[[], Any]) -> Any:
        """Return what several functions and windows over one column and condition share."""
        key = (what, aggregate.values, aggregate.condition)
        if key not in self.found:
            self.found[key] = compute()
        return self.found[key]

    def present(self, aggregate: Aggregate) -> Flags:
        """Return the rows whose value counts."""
        found: Flags = self.of_column(aggregate, "present", lambda: self._present(aggregate))
        return found

    def _present(self, aggregate: Aggregate) -> Flags:
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


def totals_of(
    rows: Rows,
    *,
    columns: Sequence[pa.Array],
    conditions: Sequence[pa.Array],
    aggregates: Sequence[Aggregate],
) -> Totals:
    """Return what rows of one key add to aggregates over one column and condition.

    >>> rows = Rows(np.array([0, 0]), np.array([1, 5]))
    >>> totals_of(rows, columns=[pa.array([1.5, 2.0])], conditions=[],
    ...           aggregates=[Aggregate("mean", 0, over=5)])
    Totals(count=2, sums={'doubles': Fraction(7, 2)}, above=0, below=0, nothing=0)
    """
    # One label that sees them all.
    after = Labels(np.zeros(1, np.int64), np.array([_MOST // 4]))
    chunk = Chunk(Timeline(rows, after, keys=1), rows, columns, conditions)
    found = Totals()
    for given in aggregates:
        each = replace(given, over=None, offset=0)
        kind = columns[each.values].type
        is_whole = not pat.is_floating(kind)
        sums: dict[str, Fraction] = {}
        if each.function in ("sum", "mean") and is_whole:
            total = _limb_sums(chunk, each, "whole numbers", _whole_numbers)
            sums["whole numbers"] = total.exactly(0)
        elif each.function != "count":
            sums["doubles"] = _limb_sums(chunk, each, "doubles", _finite_doubles).exactly(0)
        if each.function in ("std", "var"):
            sums["squares"] = _limb_sums(chunk, each, "squares", _finite_squares).exactly(0)
        odd = [0, 0, 0]
        if each.function != "count" and not is_whole:
            odd = [int(counts[0]) for counts in _odd_counts(chunk, each)]
        count = int(_counted(chunk, each)[0])
        found = Totals(count, {**found.sums, **sums}, *map(max, odd, found.odds))
    return found


def rows_that_answer(
    columns: Sequence[pa.Array],
    conditions: Sequence[pa.Array],
    aggregates: Sequence[Aggregate],
) -> Integers:
    """Return numbers of rows that answer for all: whoever sees all may be shown these alone.

    The rows are of one key and in their order; of the functions those that pick values, not sums.

    >>> rows_that_answer([pa.array([3, 1, 1, 2])], [],
    ...                  [Aggregate("max", 0, over=5), Aggregate("last", 0, over=5)]).tolist()
    [0, 3]
    """
    count = len(columns[0])
    rows = Rows(np.zeros(count, np.int64), np.arange(count))
    nobody = Labels(np.zeros(0, np.int64), np.zeros(0, np.int64))
    chunk = Chunk(Timeline(rows, nobody, keys=1), rows, columns, conditions)
    picked = [np.zeros(0, np.int64)]
    for each in aggregates:
        present = np.flatnonzero(chunk.present(each))
        if len(present):
            picked.append(present[_PICKS[each.function](chunk, each, present)])
    return np.unique(np.concatenate(picked))


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
    def compute() -> Integers:
        flags = chunk.of_column(each, "counts", lambda: _ones(chunk.present(each)))
        return chunk.window(each).totals(flags) + chunk.totals(each).count

    found: Integers = chunk.in_window(each, "count", compute)
    return found


def _ones(flags: Flags) -> Summands:
    return Summands(flags.astype(np.int64))


def _count(chunk: Chunk, each: Aggregate) -> pa.Array:
    return pa.array(_counted(chunk, each), pa.int64())


def _count_distinct(chunk: Chunk, each: Aggregate) -> pa.Array:
    groups = chunk.of_column(each, "groups", lambda: _groups(chunk, each))
    found = chunk.window(each).distinct(groups, chunk.present(each))
    return pa.array(found, pa.int64())


def _groups(chunk: Chunk, each: Aggregate) -> Integers:
    """Return a number for each pair of key and value; equal pairs have equal ones."""
    values = _one_zero(chunk.columns[each.values])
    indices = values.dictionary_encode(null_encoding="encode").indices
    codes = indices.to_numpy(zero_copy_only=False).astype(np.int64)
    pairs = codes + chunk.rows.key * (int(codes.max(initial=0)) + 1)
    return np.unique(pairs, return_inverse=True)[1].astype(np.int64)


def _any(chunk: Chunk, each: Aggregate) -> pa.Array:
    true = _counted_true(chunk, each)
    return _nulls_where(true > 0, _counted(chunk, each) == 0, pa.bool_())


def _all(chunk: Chunk, each: Aggregate) -> pa.Array:
    counted = _counted(chunk, each)
    return _nulls_where(_counted_true(chunk, each) == counted, counted == 0, pa.bool_())


def _counted_true(chunk: Chunk, each: Aggregate) -> Integers:
    def compute() -> Summands:
        values = _flags(pc.fill_null(chunk.columns[each.values], False))
        return _ones(values & chunk.present(each))

    return chunk.window(each).totals(chunk.of_column(each, "true", compute))


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
    scale = 10.0**kind.scale if pat.is_decimal(kind) else 1.0
    return _limb_sums(chunk, each, "whole numbers", _whole_numbers).rounded(), scale


def _double_sums(chunk: Chunk, each: Aggregate) -> exact.Doubles:
    def compute() -> exact.Doubles:
        found = _limb_sums(chunk, each, "doubles", _finite_doubles).rounded()
        return _with_specials(chunk, each, found)

    found: exact.Doubles = chunk.in_window(each, "sum", compute)
    return found


def _finite_doubles(chunk: Chunk, each: Aggregate) -> FixedPoint:
    values = _finite(chunk, each)
    return exact.of_doubles(values, bits=exact.bits_for(len(values)))


def _finite_squares(chunk: Chunk, each: Aggregate) -> FixedPoint:
    values = _finite(chunk, each)
    return exact.of_squares(values, bits=exact.bits_for(len(values)))


def _finite(chunk: Chunk, each: Aggregate) -> exact.Doubles:
    """Return the values that count; 0 for those that do not, or are not finite."""
    values = _doubles(chunk, each)
    counts = chunk.present(each) & ~_odd(chunk, each)
    return values if counts.all() else np.where(counts, values, 0.0)


def _doubles(chunk: Chunk, each: Aggregate) -> exact.Doubles:
    def compute() -> exact.Doubles:
        column = chunk.columns[each.values]
        if pat.is_decimal(column.type):
            return _doubles_of_decimals(column)
        # Integers beyond 2**53 are rounded to the nearest doubles.
        doubles = column.cast(pa.float64(), safe=False)
        return doubles.fill_null(0.0).to_numpy(zero_copy_only=False)

    found: exact.Doubles = chunk.of_column(each, "values", compute)
    return found


def _doubles_of_decimals(column: pa.Array) -> exact.Doubles:
    """Return the nearest doubles to decimals; 0 for null."""
    low, *high = _decimal_words(column)
    units = low + (high[0] << 32)
    sign = units >> 63
    is_small = (np.abs(units) <= 1 << 53) & (high[1] == sign & 0xFFFFFFFF) & (high[2] == sign)
    # A quotient of two doubles that are exact is rounded once.
    if is_small.all() and column.type.scale <= 22:
        return units / 10.0**column.type.scale
    return np.array(list(map(float, column.fill_null(0).to_pylist())), np.float64)


def _odd(chunk: Chunk, each: Aggregate) -> Flags:
    """Return where values that count are NaN or infinite."""
    found: Flags = chunk.of_column(
        each, "odd", lambda: ~np.isfinite(_doubles(chunk, each)) & chunk.present(each)
    )
    return found


def _with_specials(chunk: Chunk, each: Aggregate, found: exact.Doubles) -> exact.Doubles:
    """Put NaN and infinities into sums of finite numbers."""
    odd, carried = _odd(chunk, each), chunk.totals(each)
    if not odd.any() and not carried.odd:
        return found
    above, below, nothing = _odd_counts(chunk, each)
    is_nothing = (nothing > 0) | ((above > 0) & (below > 0))
    found = np.where(above > 0, np.inf, np.where(below > 0, -np.inf, found))
    return np.where(is_nothing, np.nan, found)


def _odd_counts(chunk: Chunk, each: Aggregate) -> tuple[Integers, Integers, Integers]:
    """Return how many infinities above and below and how many NaN each label sees."""
    odd, carried = _odd(chunk, each), chunk.totals(each)
    values, window = _doubles(chunk, each), chunk.window(each)
    above = window.totals(_ones(odd & (values == np.inf))) + carried.above
    below = window.totals(_ones(odd & (values == -np.inf))) + carried.below
    return above, below, window.totals(_ones(odd & np.isnan(values))) + carried.nothing


def _limb_sums(
    chunk: Chunk, each: Aggregate, what: str, make: Callable[[Chunk, Aggregate], FixedPoint]
) -> Sums:
    """Return the exact sums over the windows; the digits are shared by all windows."""

    def numbers() -> tuple[FixedPoint, list[Summands]]:
        fixed = make(chunk, each)
        return fixed, list(map(Summands, fixed.limbs))

    def compute() -> Sums:
        fixed, digits = chunk.of_column(each, what, numbers)
        sums = Sums(list(map(chunk.window(each).totals, digits)), fixed.unit, fixed.bits)
        return sums.plus(chunk.totals(each).sums.get(what, Fraction(0)))

    found: Sums = chunk.in_window(each, f"sums of {what}", compute)
    return found


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


def _whole_sums(chunk: Chunk, each: Aggregate) -> Integers | list[int]:
    """Return sums of integers; of any size as integers without a bound."""
    sums = _limb_sums(chunk, each, "whole numbers", _whole_numbers)
    if len(sums.limbs) == 1:
        return sums.limbs[0]
    total = sums.limbs[0].astype(object)
    for number, limb in enumerate(sums.limbs[1:], start=1):
        if limb.any():
            total = total + limb.astype(object) * (1 << (sums.bits * number))
    return list(total)


def _fitting(sums: Integers | list[int]) -> Integers:
    if isinstance(sums, np.ndarray):
        return sums
    if sums and not (min(sums) >= _LEAST and max(sums) <= _MOST):
        raise InvalidArgument(
            "A sum of integers over a window does not fit 64 bits.",
            hint="sum a double or decimal column, or take a shorter window",
        )
    return np.array(sums, np.int64)


def _decimals(units: Integers | list[int], empty: Flags, scale: int) -> pa.Array:
    if isinstance(units, np.ndarray):
        buffer = np.column_stack([units, units >> 63]).tobytes()
    else:
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
    """Return sample variances of the values as doubles; NaN where one of them is not finite."""

    def compute() -> exact.Doubles:
        sums = _limb_sums(chunk, each, "doubles", _finite_doubles)
        squares = _limb_sums(chunk, each, "squares", _finite_squares)
        found = variances(_counted(chunk, each), sums, squares)
        odd, carried = _odd(chunk, each), chunk.totals(each).odd
        if not odd.any() and not carried:
            return found
        return np.where(chunk.window(each).totals(_ones(odd)) + carried > 0, np.nan, found)

    found: exact.Doubles = chunk.in_window(each, "variance", compute)
    return found


# ---- extremes, first and last


def _max(chunk: Chunk, each: Aggregate) -> pa.Array:
    return _extreme(chunk, each, np.maximum, neutral=_LEAST)


def _min(chunk: Chunk, each: Aggregate) -> pa.Array:
    return _extreme(chunk, each, np.minimum, neutral=_MOST)


def _extreme(
    chunk: Chunk, each: Aggregate, choose: Callable[..., Integers], *, neutral: int
) -> pa.Array:
    """Return the greatest or smallest value."""
    column = chunk.columns[each.values]
    codes = chunk.of_column(each, "codes", lambda: _codes(column))
    empty = _counted(chunk, each) == 0
    window, present = chunk.window(each), chunk.present(each)
    if codes is not None:
        found = window.extremes(codes, present, choose, neutral=neutral)
        return _values_of_codes(found, empty, column.type)
    ranks = chunk.of_column(each, "ranks", lambda: _ranks(column))
    found = window.extremes(ranks, present, choose, neutral=neutral)
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


def _codes(column: pa.Array) -> Integers | None:
    """Return integers in the order of the values, which can be turned back; None for others.

    Of floats the bits; NaN is the greatest, whatever its sign, and there is one zero.
    """
    kind = column.type
    if pat.is_floating(kind):
        doubles = column.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False) + 0.0
        doubles[np.isnan(doubles)] = np.nan
        return _ordered(doubles.view(np.int64))
    if pat.is_temporal(kind):
        column = column.cast(pa.int32()) if kind.bit_width == 32 else column
        return column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    if pat.is_integer(kind) and not pat.is_uint64(kind):
        return column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return None


def _ordered(bits: Integers) -> Integers:
    """Return the bits of doubles as integers in the order of the doubles, and back."""
    return np.where(bits < 0, bits ^ np.int64(_MOST), bits)


def _values_of_codes(codes: Integers, empty: Flags, kind: pa.DataType) -> pa.Array:
    codes = np.where(empty, 0, codes)
    if pat.is_floating(kind):
        return pa.array(_ordered(codes).view(np.float64), mask=empty).cast(kind)
    whole = pa.array(codes, mask=empty)
    if pat.is_temporal(kind) and kind.bit_width == 32:
        whole = whole.cast(pa.int32())
    return whole.cast(kind)


def _ranks(column: pa.Array) -> Integers:
    """Return the rank of each value among all; equal values have equal ranks, nulls any."""
    return pc.rank(column, tiebreaker="dense").to_numpy().astype(np.int64)


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


# ---- rows that answer for all


def _pick_extreme(chunk: Chunk, each: Aggregate, present: Integers) -> Integers:
    column = chunk.columns[each.values]
    order = chunk.of_column(each, "codes", lambda: _codes(column))
    if order is None:
        order = chunk.of_column(each, "ranks", lambda: _ranks(column))
    choose = np.argmax if each.function == "max" else np.argmin
    return np.array([choose(order[present])])


def _pick_distinct(chunk: Chunk, each: Aggregate, present: Integers) -> Integers:
    groups = chunk.of_column(each, "groups", lambda: _groups(chunk, each))
    return np.unique(groups[present], return_index=True)[1].astype(np.int64)


def _pick_edge(chunk: Chunk, each: Aggregate, present: Integers) -> Integers:
    """Return the first row, or the last ones."""
    count = len(present)
    if each.function == "first":
        return np.zeros(1, np.int64)
    return np.arange(max(count - max(each.n, 1), 0), count)


_PICKS: dict[str, Callable[[Chunk, Aggregate, Integers], Integers]] = {
    "all": _pick_distinct,
    "any": _pick_distinct,
    "count_distinct": _pick_distinct,
    "first": _pick_edge,
    "last": _pick_edge,
    "last_n": _pick_edge,
    "max": _pick_extreme,
    "min": _pick_extreme,
}
# Functions that some of the rows can answer for all of them.
PICKING = frozenset(_PICKS)
