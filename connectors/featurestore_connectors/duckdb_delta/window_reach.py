"""Which rows of a group labels can see at all: those between their keys and their times.

All other rows are left out before they are sorted. That changes no answer: rows of other keys, rows
later than every label, and rows that have left every window count for no label, and versions of
one event have one key and one time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from featurestore.aggregates.window_side import WindowSide
from featurestore.plugins.engine import Relation
from featurestore_connectors.duckdb_delta.point_in_time import label_time, timestamp
from featurestore_connectors.duckdb_delta.sqltext import quote

if TYPE_CHECKING:
    from featurestore_connectors.duckdb_delta.engine import DuckDBEngine

_LABELS = "fs_labels"
_MICROSECOND = timedelta(microseconds=1)
# In microseconds; earlier than any row, and a time that DuckDB has.
_FURTHEST = 1 << 62
_NARROW = 1 << 32


@dataclass(frozen=True)
class Reach:
    """The least and the greatest key of labels, and their first and last time in microseconds.

    Keys are None where they are no integers; times where no label has one.
    """

    keys: tuple[int, int] | None
    times: tuple[int, int] | None

    @property
    def narrow_keys(self) -> int | None:
        """The least key, where the others differ from it by 32 bits at most."""
        if self.keys is None or self.keys[1] - self.keys[0] >= _NARROW:
            return None
        return self.keys[0]

    def conditions(self, side: WindowSide) -> list[str]:
        """Return what is true of all rows of a group that some label sees, as conditions."""
        if self.times is None or (side.group_is_key and self.keys is None):
            return ["FALSE"]
        spec, name = side.join.source.spec, side.join.event_time
        event = timestamp(quote(name), spec.schema.field(name).type)
        ends, begins = [], []
        for output in side.join.outputs:
            ends.append(self.times[1] - output.offset // _MICROSECOND)
            begin = -_FURTHEST
            if output.over is not None:
                begin = self.times[0] - (output.over + output.offset) // _MICROSECOND
            begins.append(begin)
        found = [f"{event} <= {_instant(max(*ends, -_FURTHEST))}"]
        if min(begins) > -_FURTHEST:
            found.append(f"{event} > {_instant(min(begins))}")
        if self.keys is not None:
            key = quote(side.join.on[0][1])
            found.append(f"{key} BETWEEN {self.keys[0]} AND {self.keys[1]}")
        return found


def reach_of(engine: DuckDBEngine, side: WindowSide, labels: Relation, key: str) -> Reach:
    """Return what labels can see of a group.

    Args:
        engine: The engine.
        side: The aggregates of the group.
        labels: The labels; they are read once.
        key: The first key of a label, of the table ``l``, as the group's type.
    """
    if not side.group_is_key:
        key = "NULL"
    query = (
        f"SELECT min(k), max(k), min(t), max(t) FROM (SELECT {key}::BIGINT AS k, "
        f"epoch_us({label_time(side.plan)}) AS t FROM {_LABELS} AS l)"
    )
    found = engine.sql(query, tables={_LABELS: labels}, parameters={})
    least, greatest, first, last = engine.stream(found).read_all().to_pydict().values()
    keys = times = None
    if least[0] is not None:
        keys = (least[0], greatest[0])
    if first[0] is not None:
        times = (first[0], last[0])
    return Reach(keys, times)


def _instant(micros: int) -> str:
    return f"make_timestamptz({micros}::BIGINT)"
