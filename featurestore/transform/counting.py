"""Value counts: an accumulator of the distinct values of columns, for fits that need values.

States may be merged in any order. A state has each distinct value once: about 20 bytes for a number,
more for strings.
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
from featurestore.transform.batches import to_value
from featurestore.transform.forms import Form, form_of
from featurestore.transform.ops import Value
from featurestore.transform.sample import Sample

# Tables are merged when the pending ones have more values than this and than the merged one.
_PENDING = 1_000_000


@dataclass
class ColumnState:
    """The counts of one column: tables of (value, n), and the number of missing values."""

    tables: list[pa.Table] = field(default_factory=list)
    pending: int = 0
    missing: int = 0

    def add(self, values: pa.Array) -> None:
        """Count values, missing ones included."""
        present = values.drop_null()
        self.missing += len(values) - len(present)
        value_counts = pc.value_counts(present)
        distinct, counts = value_counts.field(0), value_counts.field(1)
        self._append(pa.table({"value": distinct, "n": counts.cast(pa.int64())}))

    def merge(self, state: ColumnState) -> None:
        """Add the counts of another state."""
        self.missing += state.missing
        for table in state.tables:
            self._append(table)

    def merge_tables(self) -> pa.Table | None:
        """Merge the tables and return each value once with its count, None without values."""
        if len(self.tables) > 1:
            joined = pa.concat_tables(self.tables)
            summed = joined.group_by("value").aggregate([("n", "sum")])
            table = summed.select(["value", "n_sum"]).rename_columns(["value", "n"])
            self.tables = [table.combine_chunks()]
        self.pending = 0
        return next(iter(self.tables), None)

    def _append(self, table: pa.Table) -> None:
        self.tables.append(table)
        self.pending += len(table)
        if len(self.tables) > 1 and self.pending > max(_PENDING, len(self.tables[0])):
            self.merge_tables()


CountStates = dict[str, ColumnState]


@dataclass(frozen=True)
class ValueCounts(Accumulator[CountStates, CountStates]):
    """Accumulator of the distinct values of columns."""

    columns: tuple[str, ...]

    def start(self) -> CountStates:
        """Return the empty state."""
        return {name: ColumnState() for name in self.columns}

    def update(self, state: CountStates, batch: pa.RecordBatch) -> CountStates:
        """Count the values of a batch."""
        for name, column in state.items():
            column.add(countable(batch.column(name)))
        return state

    def merge(self, state: CountStates, other_state: CountStates) -> CountStates:
        """Merge two states."""
        for name, column in other_state.items():
            state[name].merge(column)
        return state

    def finish(self, state: CountStates) -> CountStates:
        """Return the state with each value once."""
        for column in state.values():
            column.merge_tables()
        return state


def countable(column: pa.Array) -> pa.Array:
    """Return the values of a column in the types in which they are counted.

    int64, float64 with nulls for NaN and 0.0 for -0.0, or bytes; lists are flattened.
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
    value = to_value(column, name="")
    if form.kind == "whole":
        absent = None if value.present is None else ~value.present
        return pa.array(value.data.astype(np.int64), mask=absent)
    numbers = value.data.astype(np.float64) + 0.0
    return pa.array(numbers, mask=np.isnan(numbers))


def to_sample(state: ColumnState, form: Form, *, narrow: bool) -> Sample:
    """Return the counts of a column as a sample."""
    if form.item is not None:
        form = Form(form.item)
    table = state.merge_tables()
    values: Sequence[Any] = ()
    counts = np.zeros(0, dtype=np.int64)
    if table is not None:
        table = table.take(pc.sort_indices(table, sort_keys=[("value", "ascending")]))
        values = table.column("value").to_numpy()
        counts = table.column("n").to_numpy()
    data, present = _append_missing(np.asarray(values), form, missing=state.missing)
    if narrow and form.kind == "number":
        with np.errstate(over="ignore"):
            data = data.astype(np.float32).astype(np.float64)
    if state.missing:
        counts = np.append(counts, state.missing)
    kind = form.kind
    return Sample(Value(kind, data, present), counts.astype(np.int64))


def _append_missing(values: Any, form: Form, *, missing: int) -> tuple[Any, Any | None]:
    """Append one value for the missing rows; return the values and their mask."""
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
