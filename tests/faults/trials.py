"""Writes whose outcome can be told from the rows, and a small server that forks several writers at once.

Run as a program; each line of standard input is a JSON object, each answer a line of JSON.
{"store": path, "writers": n, "rounds": n} -> {"errors": [text, ...]}
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
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
    """Make the group that the writes change."""
    store.create_featuregroup(rows(0, ROWS, value=1), "g", primary_key="id", event_time="t")


def write(store: Any, name: str) -> None:
    """Do one write whose outcome can be told from the rows."""
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


def serve() -> None:
    import deltalake  # noqa: F401
    import duckdb  # noqa: F401

    import featurestore.featuregroups
    import featurestore.retrieval
    import featurestore.store  # noqa: F401
    import featurestore_connectors.duckdb_delta  # noqa: F401

    # Threads of the libraries would not survive a fork: nothing has been opened yet, so there are
    # none.
    warnings.simplefilter("ignore", DeprecationWarning)
    for line in sys.stdin:
        asked = json.loads(line)
        sys.stdout.write(json.dumps(writers(asked)) + "\n")
        sys.stdout.flush()


def writers(asked: dict[str, Any]) -> dict[str, Any]:
    error_reader, error_writer = os.pipe()
    children = []
    for number in range(asked["writers"]):
        child = os.fork()
        if child == 0:
            child_main(lambda number=number: many(asked, number), error_writer)
        children.append(child)
    os.close(error_writer)
    with os.fdopen(error_reader) as stream:
        errors = stream.read()
    for child in children:
        os.waitpid(child, 0)
    return {"errors": [each for each in errors.split("\0") if each]}


def many(asked: dict[str, Any], number: int) -> None:
    """Append and upsert rows of keys that no other writer has, in turns."""
    import featurestore

    store = featurestore.connect(asked["store"])
    for turn in range(asked["rounds"]):
        first = 1_000_000 * (number + 1) + 1_000 * turn
        mode = "append" if (turn + number) % 2 else "upsert"
        store.insert_into_featuregroup(rows(first, 10, value=number), "g", mode=mode)


def child_main(work: Any, error_writer: int) -> None:
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        os.write(error_writer, (traceback.format_exc() + "\0").encode())
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
