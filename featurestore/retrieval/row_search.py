"""Search of the rows that a join as of a time matches, independent of the engines, for the leak check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.hashing import tie_hash
from featurestore.model.plan import Join, WindowJoin
from featurestore.retrieval.execution import NEVER, to_microseconds


class EligibleRows:
    """The rows of a group, sorted by key and rank, to search for each label."""

    def __init__(self, join: Join, rows: pa.Table) -> None:
        self._join = join
        keys = key_tuples(rows, [key for _, key in join.on])
        times, ranks = [], []
        for name in (join.event_time, join.created_time):
            if name is not None:
                times.append(name)
                ranks.append(to_microseconds(rows.column(name)))
        ties = np.zeros(0, np.uint64)
        if rows.num_rows:
            ties = tie_hash(rows)
        # The last key of lexsort is the primary one: event time, then created time, then tie hash.
        order = np.lexsort((ties, *reversed(ranks)))
        self._table = rows.take(pa.array(order))
        # A group without declared times is limited by all its time columns, the strictest
        # assumption.
        limiting_times = [
            to_microseconds(rows.column(name))[order] for name in (times or time_columns(join))
        ]
        self._eligible_from = np.full(len(order), NEVER + 1)
        self._has_times = np.ones(len(order), bool)
        if limiting_times:
            self._eligible_from = np.max(limiting_times, axis=0)
        if times:
            # A row without a declared time is never known. Nulls in other time columns have no
            # meaning.
            self._has_times = np.min(limiting_times, axis=0) != NEVER
        self._event: np.ndarray[Any, Any] | None = None
        if times:
            self._event = ranks[0][order]
        positions: dict[tuple[Any, ...], list[int]] = {}
        for position, index in enumerate(order.tolist()):
            if None not in keys[index]:
                positions.setdefault(keys[index], []).append(position)
        # Converted once, since several labels may have the key.
        self._positions = {key: np.array(numbers) for key, numbers in positions.items()}

    def find_values(
        self, keys: Sequence[tuple[Any, ...]], times: np.ndarray[Any, Any]
    ) -> dict[str, pa.Array]:
        """Find the value of each output for each label, by output name."""
        row_numbers = [
            self._find_best_row(key, int(time)) for key, time in zip(keys, times, strict=True)
        ]
        row_indices = pa.array(row_numbers, pa.int64())
        values = {}
        for output in self._join.outputs:
            column = self._table.column(output.column).combine_chunks()
            if len(column):
                values[output.name] = column.take(row_indices)
            else:
                values[output.name] = pa.nulls(len(row_numbers), column.type)
        return values

    def _find_best_row(self, key: tuple[Any, ...], time: int) -> int | None:
        """Return the row with the highest rank that is eligible at a time, or None."""
        positions = self._positions.get(key, np.zeros(0, np.int64))
        if time == NEVER:  # a label without time meets only rows that need none
            if self._event is not None:
                positions = positions[:0]
        else:
            positions = positions[
                self._has_times[positions] & (self._eligible_from[positions] <= time)
            ]
        if not len(positions):
            return None
        # Rows are sorted by rank, so the last eligible one is the maximum.
        last = int(positions[-1])
        if self._join.ttl is not None and self._event is not None:
            age = time - int(self._event[last])
            if age > self._join.ttl.total_seconds() * 1e6:
                return None
        return last


def time_columns(join: Join | WindowJoin) -> list[str]:
    """Return the time columns of the group that a join reads."""
    schema = join.source.spec.schema
    return [
        field.name for field in schema if pat.is_timestamp(field.type) or pat.is_date(field.type)
    ]


def key_tuples(table: pa.Table, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the values of key columns, as one tuple per row."""
    values = [table.column(name).to_pylist() for name in columns]
    return list(zip(*values, strict=True))
