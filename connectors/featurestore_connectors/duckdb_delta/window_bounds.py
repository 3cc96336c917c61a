"""Bounds on the rows of a group that labels can aggregate: ranges of keys and times.

Other rows are filtered before the sort. The result is the same: rows of other keys, rows later than
every label and rows older than every window contribute to no label, and all versions of an event
have the same key and time.
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
# In microseconds; its negative is earlier than any row and valid in DuckDB.
_EARLIEST = 1 << 62
_NARROW = 1 << 32


@dataclass(frozen=True)
class WindowBounds:
    """The ranges of the labels' keys and times (microseconds).

    ``keys`` is None for non-integer keys; ``times`` is None if no label has a time.
    """

    keys: tuple[int, int] | None
    times: tuple[int, int] | None

    @property
    def narrow_keys(self) -> int | None:
        """The minimum key, if all keys differ from it by at most 32 bits."""
        if self.keys is None or self.keys[1] - self.keys[0] >= _NARROW:
            return None
        return self.keys[0]

    def conditions(self, side: WindowSide) -> list[str]:
        """Return the filter conditions for rows of a group."""
        if self.times is None or (side.group_is_key and self.keys is None):
            return ["FALSE"]
        spec, name = side.join.source.spec, side.join.event_time
        event = timestamp(quote(name), spec.schema.field(name).type)
        ends, begins = [], []
        for output in side.join.outputs:
            ends.append(self.times[1] - output.offset // _MICROSECOND)
            begin = -_EARLIEST
            if output.over is not None:
                begin = self.times[0] - (output.over + output.offset) // _MICROSECOND
            begins.append(begin)
        texts = [f"{event} <= {_instant(max(*ends, -_EARLIEST))}"]
        if min(begins) > -_EARLIEST:
            texts.append(f"{event} > {_instant(min(begins))}")
        if self.keys is not None:
            key = quote(side.join.on[0][1])
            texts.append(f"{key} BETWEEN {self.keys[0]} AND {self.keys[1]}")
        return texts


def bounds_of_labels(
    engine: DuckDBEngine, side: WindowSide, labels: Relation, key: str
) -> WindowBounds:
    """Compute the bounds of labels for a group.

    Args:
        engine: The engine.
        side: The aggregates of the group.
        labels: The labels; they are read once.
        key: The expression of a label's first key, of the table ``l``, in the group's type.
    """
    if not side.group_is_key:
        key = "NULL"
    query = (
        f"SELECT min(k), max(k), min(t), max(t) FROM (SELECT {key}::BIGINT AS k, "
        f"epoch_us({label_time(side.plan)}) AS t FROM {_LABELS} AS l)"
    )
    extremes = engine.sql(query, tables={_LABELS: labels}, parameters={})
    min_key, max_key, first, last = engine.stream(extremes).read_all().to_pydict().values()
    keys = times = None
    if min_key[0] is not None:
        keys = (min_key[0], max_key[0])
    if first[0] is not None:
        times = (first[0], last[0])
    return WindowBounds(keys, times)


def _instant(micros: int) -> str:
    return f"make_timestamptz({micros}::BIGINT)"
