"""Rows of the sorted stream as events: in their order, each version with the time it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from featurestore.aggregates.arrays import Flags, Integers
from featurestore.aggregates.chunk import Aggregate, Totals
from featurestore.aggregates.column_codes import codes_of, flags_of, integers_of
from featurestore.aggregates.kernel import aggregate
from featurestore.aggregates.parts import KNOWN, TIE
from featurestore.aggregates.ranges import NEVER, Labels, Rows
from featurestore.errors import InvalidArgument

_LEAST = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Events:
    """Rows of a table that count: their keys and times, and where in the table they are."""

    rows: Rows
    table: pa.Table
    positions: Integers

    def of(self, chosen: Flags) -> Events:
        """Return some of the events."""
        rows = self.rows
        known, replaced = rows.known, rows.replaced
        if known is not None:
            known = known[chosen]
        if replaced is not None:
            replaced = replaced[chosen]
        some = Rows(rows.key[chosen], rows.event[chosen], known, replaced)
        return Events(some, self.table, self.positions[chosen])

    def column(self, name: str) -> pa.Array:
        """Return a column of the rows."""
        taken = self.table.column(name).take(pa.array(self.positions))
        return taken.combine_chunks()


@dataclass(frozen=True)
class Question:
    """What is asked of the rows of a group; the attributes are those of ``WindowFeatures``."""

    members: int
    waits: bool
    refuses_ties: bool
    aggregates: tuple[Aggregate, ...]
    conditions: int
    group: str

    def events(self, table: pa.Table, key: Integers, time: Integers, rows: Integers) -> Events:
        """Return the rows that count for some label, in the order that the kernel wants.

        Args:
            table: Rows of the stream.
            key: A number for the key of each.
            time: Its event time.
            rows: Which of them are looked at.
        """
        known, tie = _column_or_zeros(table, KNOWN), _column_or_zeros(table, TIE)
        if self.waits:
            was_known = flags_of(table.column(KNOWN).is_valid())
            rows = rows[was_known[rows]]
        if not is_sorted(key[rows], time[rows], strictly=True):
            rows = rows[np.lexsort((tie[rows], known[rows], time[rows], key[rows]))]
        replaced = self._replaced(table, key[rows], time[rows], known[rows], rows)
        if replaced is not None:
            current = replaced > _LEAST
            rows, replaced = rows[current], replaced[current]
            if not (replaced < NEVER).any():
                replaced = None
        waits = known[rows] if self.waits else None
        return Events(Rows(key[rows], time[rows], waits, replaced), table, rows)

    def answers(
        self,
        events: Events,
        labels: Labels,
        *,
        keys: int,
        aggregates: Sequence[Aggregate],
        carried: Mapping[tuple[int, int | None], Totals] | None = None,
    ) -> list[pa.Array]:
        """Return what some of the aggregates answer for labels."""
        values, conditions = self.columns(events)
        return aggregate(
            events.rows,
            labels,
            keys=keys,
            columns=values,
            aggregates=aggregates,
            conditions=conditions,
            carried=carried,
        )

    def columns(self, events: Events) -> tuple[list[pa.Array], list[pa.Array]]:
        """Return the values and the conditions of events."""
        count = 1 + max([each.values for each in self.aggregates], default=-1)
        values = [events.column(f"v{number}") for number in range(count)]
        return values, [events.column(f"w{number}") for number in range(self.conditions)]

    def _replaced(
        self, table: pa.Table, key: Integers, time: Integers, known: Integers, rows: Integers
    ) -> Integers | None:
        """Return from when on another version counts instead of each row; None if none ever does.

        The least integer stands for a row that never counts: its successor is known as early.
        """
        same = (key[1:] == key[:-1]) & (time[1:] == time[:-1])
        if not same.any():
            return None
        shares = np.append(same, False) | np.append(False, same)
        tied = np.flatnonzero(shares)
        columns = [table.column(f"m{number}") for number in range(self.members)]
        member = codes_of([column.take(pa.array(rows[tied])) for column in columns], len(tied))
        # Rows of one event stand together then, in the order in which they were known.
        order = np.lexsort((np.arange(len(tied)), member, time[tied], key[tied]))
        tied, member = tied[order], member[order]
        is_version = (
            (key[tied[1:]] == key[tied[:-1]])
            & (time[tied[1:]] == time[tied[:-1]])
            & (member[1:] == member[:-1])
        )
        if not is_version.any():
            return None
        if self.refuses_ties:
            raise InvalidArgument(
                f"Feature group {self.group!r} has several rows of one key and event time, and "
                "nothing says whether they are several events or versions of one.",
                hint="declare what tells them apart as part of primary_key, or a created_time",
            )
        found = np.full(len(rows), NEVER)
        earlier = tied[:-1][is_version]
        later = tied[1:][is_version]
        if self.waits:
            start = np.maximum(known[earlier], time[earlier])
            next_start = np.maximum(known[later], time[later])
            found[earlier] = np.where(next_start > start, next_start, _LEAST)
        else:
            found[earlier] = _LEAST
        return found


def is_sorted(key: Integers, time: Integers, *, strictly: bool = False) -> bool:
    """Tell whether pairs of key and time ascend; strictly where none occurs twice."""
    same = key[1:] == key[:-1]
    later = time[1:] > time[:-1]
    if not strictly:
        later |= time[1:] == time[:-1]
    return bool(np.all((key[1:] > key[:-1]) | (same & later)))


def _column_or_zeros(table: pa.Table, name: str) -> Integers:
    if name not in table.column_names:
        return np.zeros(table.num_rows, np.int64)
    return integers_of(table.column(name))
