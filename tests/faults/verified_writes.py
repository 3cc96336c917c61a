"""Writes with verifiable outcomes, and concurrent writers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

ROWS = 20_000
START = 1_700_000_000_000_000


def rows(first: int, count: int, *, value: int) -> pa.Table:
    ids = np.arange(first, first + count)
    times = pa.array(START + ids * 1_000_000, pa.timestamp("us", tz="UTC"))
    return pa.table({"id": ids, "t": times, "x": np.full(count, value)})


def prepare(store: Any) -> None:
    """Create the group that the writes change."""
    store.create_featuregroup(rows(0, ROWS, value=1), "g", primary_key="id", event_time="t")


def write(store: Any, name: str) -> None:
    """Run one write whose outcome is visible in the rows."""
    if name == "create":
        store.create_featuregroup(
            rows(0, ROWS, value=7), "made", version=1, primary_key="id", event_time="t"
        )
    elif name == "append":
        store.insert_into_featuregroup(rows(ROWS, ROWS, value=2), "g")
    elif name == "upsert":
        store.insert_into_featuregroup(rows(ROWS // 2, ROWS, value=3), "g", mode="upsert")
    elif name == "overwrite":
        store.insert_into_featuregroup(rows(0, 10, value=4), "g", mode="overwrite")
    else:
        raise ValueError(name)


# (rows, sum of x) of the group before and after each write
OLD = (ROWS, ROWS)
NEW = {
    "append": (2 * ROWS, 3 * ROWS),
    "upsert": (ROWS + ROWS // 2, ROWS // 2 + 3 * ROWS),
    "overwrite": (10, 40),
}


def many(location: str, number: int, rounds: int) -> None:
    """Append and upsert, in turns, rows with keys of this writer only."""
    import featurestore

    store = featurestore.connect(location)
    for turn in range(rounds):
        first = 1_000_000 * (number + 1) + 1_000 * turn
        mode = "append" if (turn + number) % 2 else "upsert"
        store.insert_into_featuregroup(rows(first, 10, value=number), "g", mode=mode)
