"""Events of the sorted stream: rows in order, each version with the time of its replacement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from featurestore.aggregates.blocks import AVAILABLE, TIE
from featurestore.aggregates.chunk import Aggregate, Totals
from featurestore.aggregates.column_codes import (
    Flags,
    Integers,
    combined_codes,
    to_flags,
    to_integers,
)
from featurestore.aggregates.kernel import aggregate
from featurestore.aggregates.ranges import NEVER, Labels, Rows
from featurestore.errors import InvalidArgument

_MIN_INT64 = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Events:
    """Rows of a table that count for some label: keys, times and positions in the table."""

    rows: Rows
    table: pa.Table
    positions: Integers

    def select(self, mask: Flags) -> Events:
        """Return the events of a mask."""
        rows = self.rows
        available, replaced = rows.available, rows.replaced
        if available is not None:
            available = available[mask]
        if replaced is not None:
            replaced = replaced[mask]
        selected = Rows(rows.key[mask], rows.event[mask], available, replaced)
        return Events(selected, self.table, self.positions[mask])

    def column(self, name: str) -> pa.Array:
        """Return a column of the events."""
        values = self.table.column(name).take(pa.array(self.positions))
        return values.combine_chunks()


@dataclass(frozen=True)
class AggregateRequest:
    """Aggregates over the rows of a group; the attributes are those of ``WindowFeatures``."""

    members: int
    filters_created_time: bool
    rejects_ties: bool
    aggregates: tuple[Aggregate, ...]
    conditions: int
    group: str

    def events(self, table: pa.Table, key: Integers, time: Integers, rows: Integers) -> Events:
        """Return the rows that count for some label, in the order that the kernel requires.

        Args:
            table: Rows of the stream.
            key: The number of each row's key.
            time: The event time of each row.
            rows: The positions of the rows to use.
        """
        available, tie = _column_or_zeros(table, AVAILABLE), _column_or_zeros(table, TIE)
        if self.filters_created_time:
            is_available = to_flags(table.column(AVAILABLE).is_valid())
            rows = rows[is_available[rows]]
        if not is_sorted(key[rows], time[rows], strictly=True):
            rows = rows[np.lexsort((tie[rows], available[rows], time[rows], key[rows]))]
        replaced = self._replacement_times(table, key[rows], time[rows], available[rows], rows)
        if replaced is not None:
            current = replaced > _MIN_INT64
            rows, replaced = rows[current], replaced[current]
            if not (replaced < NEVER).any():
                replaced = None
        available_times = available[rows] if self.filters_created_time else None
        return Events(Rows(key[rows], time[rows], available_times, replaced), table, rows)

    def aggregate(
        self,
        events: Events,
        labels: Labels,
        *,
        keys: int,
        aggregates: Sequence[Aggregate],
        carried: Mapping[tuple[int, int | None], Totals] | None = None,
    ) -> list[pa.Array]:
        """Return the values of some aggregates for labels."""
        values, conditions = self.columns(events)
        return aggregate(
            events.rows,
            labels,
            keys=keys,
            columns=values,
            aggregates=aggregates,
            conditions=conditions,
            base_totals=carried,
        )

    def columns(self, events: Events) -> tuple[list[pa.Array], list[pa.Array]]:
        """Return the value columns and the condition columns of events."""
        count = 1 + max([each.values for each in self.aggregates], default=-1)
        values = [events.column(f"v{number}") for number in range(count)]
        return values, [events.column(f"w{number}") for number in range(self.conditions)]

    def _replacement_times(
        self, table: pa.Table, key: Integers, time: Integers, available: Integers, rows: Integers
    ) -> Integers | None:
        """Return the time at which a later version replaces each row; None without versions.

        The minimum integer marks a row that never counts: its successor is available as early.
        """
        is_same = (key[1:] == key[:-1]) & (time[1:] == time[:-1])
        if not is_same.any():
            return None
        is_tied = np.append(is_same, False) | np.append(False, is_same)
        tied = np.flatnonzero(is_tied)
        columns = [table.column(f"m{number}") for number in range(self.members)]
        member = combined_codes(
            [column.take(pa.array(rows[tied])) for column in columns], len(tied)
        )
        # This makes versions of an event adjacent, in the order of their availability.
        order = np.lexsort((np.arange(len(tied)), member, time[tied], key[tied]))
        tied, member = tied[order], member[order]
        is_version = (
            (key[tied[1:]] == key[tied[:-1]])
            & (time[tied[1:]] == time[tied[:-1]])
            & (member[1:] == member[:-1])
        )
        if not is_version.any():
            return None
        if self.rejects_ties:
            raise InvalidArgument(
                f"Feature group {self.group!r} has several rows with the same key and event time. "
                "They may be different events or versions of one event.",
                hint="add a column that identifies events to primary_key, or declare created_time",
            )
        replaced = np.full(len(rows), NEVER)
        earlier = tied[:-1][is_version]
        later = tied[1:][is_version]
        if self.filters_created_time:
            start = np.maximum(available[earlier], time[earlier])
            next_start = np.maximum(available[later], time[later])
            replaced[earlier] = np.where(next_start > start, next_start, _MIN_INT64)
        else:
            replaced[earlier] = _MIN_INT64
        return replaced


def is_sorted(key: Integers, time: Integers, *, strictly: bool = False) -> bool:
    """Return True if pairs of key and time ascend; ``strictly`` excludes equal pairs."""
    is_same_key = key[1:] == key[:-1]
    is_later = time[1:] > time[:-1]
    if not strictly:
        is_later |= time[1:] == time[:-1]
    return bool(np.all((key[1:] > key[:-1]) | (is_same_key & is_later)))


def _column_or_zeros(table: pa.Table, name: str) -> Integers:
    if name not in table.column_names:
        return np.zeros(table.num_rows, np.int64)
    return to_integers(table.column(name))
