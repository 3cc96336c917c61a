"""The pass over rows for what statistics do not tell: every different value and its count.

States merge in any order to the same result. A state holds each different value once: about 20
bytes for a number, more for texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.plugins.engine import Accumulator
from featurestore.transform.arrow_values import value_of
from featurestore.transform.forms import Form, form_of
from featurestore.transform.ops import Value
from featurestore.transform.sample import Sample

# Batches are put together when they hold this many values more than what is together.
_PENDING = 1_000_000


@dataclass
class ColumnState:
    """The counts of one column: parts of (value, n), and rows without a value."""

    parts: list[pa.Table] = field(default_factory=list)
    pending: int = 0
    missing: int = 0

    def add(self, values: pa.Array) -> None:
        """Count more values, missing ones among them."""
        present = values.drop_null()
        self.missing += len(values) - len(present)
        counted = pc.value_counts(present)
        found, counts = counted.field(0), counted.field(1)
        self._append(pa.table({"value": found, "n": counts.cast(pa.int64())}))

    def merge(self, other: ColumnState) -> None:
        """Add the counts of another state."""
        self.missing += other.missing
        for part in other.parts:
            self._append(part)

    def together(self) -> pa.Table | None:
        """Return each value once with its count; None where there was no row."""
        if len(self.parts) > 1:
            joined = pa.concat_tables(self.parts)
            summed = joined.group_by("value").aggregate([("n", "sum")])
            table = summed.select(["value", "n_sum"]).rename_columns(["value", "n"])
            self.parts = [table.combine_chunks()]
        self.pending = 0
        return next(iter(self.parts), None)

    def _append(self, part: pa.Table) -> None:
        self.parts.append(part)
        self.pending += len(part)
        if len(self.parts) > 1 and self.pending > max(_PENDING, len(self.parts[0])):
            self.together()


CountStates = dict[str, ColumnState]


@dataclass(frozen=True)
class ValueCounts(Accumulator[CountStates, CountStates]):
    """Counts the different values of some columns."""

    columns: tuple[str, ...]

    def start(self) -> CountStates:
        """Return the state of no rows."""
        return {name: ColumnState() for name in self.columns}

    def update(self, state: CountStates, batch: pa.RecordBatch) -> CountStates:
        """Count the values of a batch."""
        for name, column in state.items():
            column.add(countable(batch.column(name)))
        return state

    def merge(self, left: CountStates, right: CountStates) -> CountStates:
        """Merge column by column."""
        for name, column in right.items():
            left[name].merge(column)
        return left

    def finish(self, state: CountStates) -> CountStates:
        """Return the counts with each value once."""
        for column in state.values():
            column.together()
        return state


def countable(column: pa.Array) -> pa.Array:
    """Return the values of a column as they are counted.

    int64, float64 with nulls for NaN and 0.0 for -0.0, or bytes; those of lists one by one.
    """
    while (
        pat.is_fixed_size_list(column.type)
        or pat.is_list(column.type)
        or pat.is_large_list(column.type)
    ):
        column = column.flatten()
    form = form_of(column.type)
    if form.kind in ("text", "binary"):
        return column.cast(pa.large_binary())
    if form.kind == "other":
        return column
    value = value_of(column, name="")
    if form.kind == "whole":
        absent = None if value.present is None else ~value.present
        return pa.array(value.data.astype(np.int64), mask=absent)
    numbers = value.data.astype(np.float64) + 0.0
    return pa.array(numbers, mask=np.isnan(numbers))


def sample_of(state: ColumnState, form: Form, *, narrow: bool) -> Sample:
    """Return the counts of a column as what steps are fitted on, values in ascending order."""
    if form.item is not None:
        form = Form(form.item)
    table = state.together()
    values: Sequence[Any] = ()
    counts = np.zeros(0, dtype=np.int64)
    if table is not None:
        table = table.take(pc.sort_indices(table, sort_keys=[("value", "ascending")]))
        values = table.column("value").to_numpy()
        counts = table.column("n").to_numpy()
    data, present = _with_missing(np.asarray(values), form, missing=state.missing)
    if narrow and form.kind == "number":
        with np.errstate(over="ignore"):
            data = data.astype(np.float32).astype(np.float64)
    if state.missing:
        counts = np.append(counts, state.missing)
    kind = form.kind
    return Sample(Value(kind, data, present), counts.astype(np.int64))


def _with_missing(values: Any, form: Form, *, missing: int) -> tuple[Any, Any | None]:
    """Return values with one more for the missing rows, and which are present."""
    dtypes: dict[str, Any] = {"number": np.float64, "whole": np.int64}
    data = np.asarray(values, dtype=dtypes.get(form.kind, object))
    if not missing:
        return data, None
    zeros: dict[str, Any] = {"number": np.nan, "whole": 0}
    absent = np.array([zeros.get(form.kind, b"")], dtype=data.dtype)
    data = np.concatenate([data, absent])
    if form.kind == "number":
        return data, None
    return data, np.arange(len(data)) < len(data) - 1
