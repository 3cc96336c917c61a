"""Window aggregates of labels, computed from the rows of their keys for the leak check.

``aggregates.reference`` defines the values, row by row; its scans take rows times labels. This
module converts each column once. It shares no code with the kernel, which is what the leak check
checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.aggregates import reference
from featurestore.model.plan import WindowJoin, WindowOutput
from featurestore.retrieval.label_samples import NEVER, Ints, KeyValues
from featurestore.retrieval.visible_rows import Add, SortedEvents, VisibleRows, sort_events
from featurestore.retrieval.window_rows import matching_rows
from featurestore.session import Session

Bools: TypeAlias = npt.NDArray[np.bool_]
_MANTISSA_BITS = 53


# The value of an aggregate over a window, None if no row in the window has a value.
Evaluate: TypeAlias = Callable[[VisibleRows], Any]


def window_values(
    session: Session,
    join: WindowJoin,
    rows: pa.Table,
    keys: Sequence[KeyValues],
    times: Sequence[int | None],
) -> dict[str, pa.Array]:
    """Compute each aggregate for each label, by aggregate name.

    Rows are aggregated only after their created time, even if the retrieval ignores it.

    Args:
        session: The connection, whose engine evaluates the conditions.
        join: The group and its aggregates, with conditions in DuckDB's SQL.
        rows: All group rows that have the key of a label.
        keys: The label keys.
        times: The label times in microseconds; None for a label without a time.
    """
    events = sort_events(join, rows)
    columns = _Columns(session, events, rows.take(pa.array(events.positions)))
    evaluators = [(output, columns.evaluator(output)) for output in join.outputs]
    values: dict[str, list[Any]] = {output.name: [None] * len(keys) for output in join.outputs}
    # Sums are updated from label to label.
    label_order = np.argsort([NEVER if time is None else time for time in times], kind="stable")
    for number in label_order.tolist():
        windows: dict[tuple[timedelta | None, timedelta], VisibleRows] = {}
        for output, evaluate in evaluators:
            bounds = (output.over, output.offset)
            if bounds not in windows:
                windows[bounds] = events.find_window(
                    keys[number], times[number], over=output.over, offset=output.offset
                )
            value = evaluate(windows[bounds])
            values[output.name][number] = output.fill_value if value is None else value
    return {output.name: pa.array(values[output.name], output.kind) for output in join.outputs}


class _Columns:
    """The columns of sorted rows, each converted once for all aggregates that need it."""

    def __init__(self, session: Session, events: SortedEvents, rows: pa.Table) -> None:
        self._session = session
        self._events = events
        self._rows = rows
        self._counted: dict[tuple[str, str | None], Bools] = {}
        self._counters: dict[tuple[str, str | None], Add] = {}
        self._sums: dict[tuple[str, str | None], _FloatSums] = {}
        self._ranks: dict[str, tuple[Ints, list[Any]]] = {}

    def evaluator(self, output: WindowOutput) -> Evaluate:
        """Return the function that computes an aggregate over windows of the rows."""
        column = self._rows.column(output.column).combine_chunks()
        is_counted = self._find_counted(output)
        column_and_condition = (output.column, output.where)
        if column_and_condition not in self._counters:
            self._counters[column_and_condition] = _counter(self._events, is_counted)
        count = self._counters[column_and_condition]
        if output.function == "count":
            return count
        if output.function in ("any", "all"):
            is_true = np.asarray(column.fill_null(False).to_numpy(zero_copy_only=False))
            return _booleans(output, count, _counter(self._events, is_counted & is_true))
        if output.function == "count_distinct":
            return _distinct(self._find_ranks(output.column)[0], is_counted)
        if output.function in ("min", "max"):
            return _extremes(output, *self._find_ranks(output.column), is_counted)
        if output.function not in ("sum", "mean", "var", "std"):
            return _sequence(output, column, is_counted)
        is_exact = output.function in ("sum", "mean") and not pat.is_floating(column.type)
        if is_exact:
            return _integer_sums(output, self._events, column, is_counted, count)
        if column_and_condition not in self._sums:
            self._sums[column_and_condition] = _exact_sums(self._events, column, is_counted)
        aggregate = _float_sums if output.function in ("sum", "mean") else _deviations
        return aggregate(output, count, self._sums[column_and_condition])

    def _find_counted(self, output: WindowOutput) -> Bools:
        """Return the mask of the rows with a value that satisfy the condition of an aggregate."""
        column_and_condition = (output.column, output.where)
        if column_and_condition not in self._counted:
            is_valid = self._rows.column(output.column).is_valid().combine_chunks()
            mask = np.array(is_valid.to_numpy(zero_copy_only=False))
            if output.where is not None:
                matches = np.zeros(len(mask), np.bool_)
                matches[list(matching_rows(self._session, output, self._rows))] = True
                mask &= matches
            self._counted[column_and_condition] = mask
        return self._counted[column_and_condition]

    def _find_ranks(self, name: str) -> tuple[Ints, list[Any]]:
        """Return the rank of each row's value, and the distinct values in ascending order.

        Ranks are compared instead of values, since numpy has no order of strings, decimals and NaN.
        Nulls have the rank 0.
        """
        if name not in self._ranks:
            encoded = self._rows.column(name).combine_chunks().dictionary_encode()
            values = encoded.dictionary.to_pylist()
            identities = list(map(reference.identity, values))
            by_identity = dict(zip(identities, values, strict=True))
            ordered = sorted(
                by_identity.items(), key=lambda pair: reference.comparison_key(pair[1])
            )
            rank_of = {identity: rank for rank, (identity, _) in enumerate(ordered)}
            ranks = np.array([*map(rank_of.__getitem__, identities), 0])
            indices = np.asarray(encoded.indices.fill_null(len(values)))
            self._ranks[name] = (
                ranks[indices],
                [reference.normalize_zero(value) for _, value in ordered],
            )
        return self._ranks[name]


def _counter(events: SortedEvents, is_counted: Bools) -> Add:
    """Return a function that counts the rows of a window for which ``is_counted`` is true."""
    return events.adder(is_counted.astype(np.int64).tolist())


def _booleans(output: WindowOutput, count: Add, count_true: Add) -> Evaluate:
    def evaluate(window: VisibleRows) -> bool | None:
        rows, true_rows = count(window), count_true(window)
        if not rows:
            return None
        return true_rows > 0 if output.function == "any" else true_rows == rows

    return evaluate


def _distinct(ranks: Ints, is_counted: Bools) -> Evaluate:
    def evaluate(window: VisibleRows) -> int:
        return len(np.unique(ranks[window.index][is_counted[window.index]]))

    return evaluate


def _extremes(
    output: WindowOutput, ranks: Ints, ordered: Sequence[Any], is_counted: Bools
) -> Evaluate:
    is_maximum = output.function == "max"
    no_rank = -1 if is_maximum else len(ordered)
    counted_ranks = np.where(is_counted, ranks, no_rank)

    def evaluate(window: VisibleRows) -> Any:
        window_ranks = counted_ranks[window.index]
        if not len(window_ranks):
            return None
        rank = int(window_ranks.max() if is_maximum else window_ranks.min())
        return None if rank == no_rank else ordered[rank]

    return evaluate


def _sequence(output: WindowOutput, column: pa.Array, is_counted: Bools) -> Evaluate:
    numbers = np.arange(len(is_counted))

    def evaluate(window: VisibleRows) -> Any:
        counted_rows = numbers[window.index][is_counted[window.index]].tolist()
        if output.function == "last_n":
            last = [column[number].as_py() for number in counted_rows[-output.n :]]
            return [output.fill_value] * (output.n - len(last)) + last
        if not counted_rows:
            return None
        return column[counted_rows[0 if output.function == "first" else -1]].as_py()

    return evaluate


def _integer_sums(
    output: WindowOutput, events: SortedEvents, column: pa.Array, is_counted: Bools, count: Add
) -> Evaluate:
    """Return the function for sums and means of integers and decimals."""
    scale = column.type.scale if pat.is_decimal(column.type) else None
    with localcontext(prec=reference.DIGITS):
        units = [
            int(value.scaleb(scale or 0)) if pat.is_decimal(column.type) else int(value)
            for value in column.fill_null(0).to_pylist()
        ]
    counted_units = [
        unit if counted else 0 for unit, counted in zip(units, is_counted, strict=True)
    ]
    total_of = events.adder(counted_units)

    def evaluate(window: VisibleRows) -> Any:
        rows, total = count(window), total_of(window)
        if not rows:
            return None
        if output.function == "mean":
            return float(total) / rows / (1 if scale is None else 10.0**scale)
        if scale is None:
            return total
        with localcontext(prec=reference.DIGITS):
            return Decimal(total).scaleb(-scale)

    return evaluate


@dataclass(frozen=True)
class _FloatSums:
    """Exact sums of float64 values: of the finite ones, of their squares, and the other values."""

    total: Callable[[VisibleRows], Fraction]
    squares: Callable[[VisibleRows], Fraction]
    non_finite: Callable[[VisibleRows], set[float]]


def _float_sums(output: WindowOutput, count: Add, sums: _FloatSums) -> Evaluate:
    def evaluate(window: VisibleRows) -> float | None:
        rows = count(window)
        if not rows:
            return None
        non_finite = sums.non_finite(window)
        total = reference.add_non_finite(non_finite)
        if not non_finite:
            total = reference.nearest_double(sums.total(window))
        return total / rows if output.function == "mean" else total

    return evaluate


def _deviations(output: WindowOutput, count: Add, sums: _FloatSums) -> Evaluate:
    def evaluate(window: VisibleRows) -> float | None:
        rows = count(window)
        if rows < 2:
            return None
        if sums.non_finite(window):
            return float("nan")
        variance = reference.variance(rows, sums.total(window), sums.squares(window))
        if output.function == "var":
            return reference.nearest_double(variance)
        return reference.deviation(variance)

    return evaluate


def _exact_sums(events: SortedEvents, column: pa.Array, is_counted: Bools) -> _FloatSums:
    """Return the sums of a column of numbers as float64."""
    numbers = np.array(
        [0.0 if value is None else float(value) for value in column.to_pylist()], np.float64
    )
    is_finite = np.isfinite(numbers)
    units, exponent = _to_units(np.where(is_counted & is_finite, numbers, 0.0))
    unit, square_unit = Fraction(2) ** exponent, Fraction(4) ** exponent
    add, add_squares = events.adder(units), events.adder([number * number for number in units])
    # Most columns have no such values.
    counters = {
        value: _counter(events, is_counted & is_value)
        for value, is_value in (
            (np.nan, np.isnan(numbers)),
            (np.inf, numbers == np.inf),
            (-np.inf, numbers == -np.inf),
        )
        if (is_counted & is_value).any()
    }
    return _FloatSums(
        total=lambda window: add(window) * unit,
        squares=lambda window: add_squares(window) * square_unit,
        non_finite=lambda window: {value for value in counters if counters[value](window)},
    )


def _to_units(numbers: npt.NDArray[np.float64]) -> tuple[list[int], int]:
    """Convert finite numbers to multiples of a power of two, and return them with its exponent."""
    mantissas, exponents = np.frexp(numbers)
    lowest = int(exponents.min(initial=0))
    integers = np.ldexp(mantissas, _MANTISSA_BITS).astype(np.int64).tolist()
    shifts = (exponents - lowest).tolist()
    units = [integer << shift for integer, shift in zip(integers, shifts, strict=True)]
    return units, lowest - _MANTISSA_BITS
