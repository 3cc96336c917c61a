"""Ctrl-C cancels long queries and leaves the store usable."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from featurestore_connectors.duckdb_delta.session import interrupt_on_signal

pytestmark = pytest.mark.slow

PROGRAM = """
import os, signal, sys, threading, time, warnings
warnings.simplefilter("ignore")
import duckdb
import pyarrow as pa
import featurestore
from featurestore_connectors.duckdb_delta import relations, session

ENDLESS = {
    "one long task": "select sum(a.range * b.range % 7) s from range(1000000) a, range(1000000) b",
    "rows that never come": "select a.range r from range(100000000) a, range(100000) b where a.range * b.range = -1",
}
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
store = featurestore.connect(sys.argv[1])
group = store.create_featuregroup(pa.table({"x": [1, 2]}), "g")
engine = store.session.engine

def own(query):
    native = engine.database.connection.sql(query)
    return relations.relation(native, pa.schema([(native.columns[0], pa.int64())]))

CALLS = {
    "count": lambda query: engine.count(own(query)),
    "stream": lambda query: engine.stream(own(query)).read_all(),
    "stage": lambda query: engine.stage(own(query), os.path.join(sys.argv[1], "staged")),
    "insert": lambda query: group.insert(duckdb.sql(query).project("1 as x")),
    "create": lambda query: store.create_featuregroup(duckdb.sql(query), "h"),
    "export": lambda query: store.create_training_dataset(duckdb.sql(query), "d"),
}

def interrupt():
    while not any(watch._running for watch in session._WATCHES.values()):
        time.sleep(0.001)
    time.sleep(0.1)  # let DuckDB start
    os.kill(os.getpid(), signal.SIGINT)

for name, call in CALLS.items():
    for kind, query in ENDLESS.items():
        other = threading.Thread(target=interrupt)
        other.start()
        try:
            call(query)
        except KeyboardInterrupt:
            print(name, kind, "ended", flush=True)
        other.join()
assert signal.set_wakeup_fd(-1) == -1, "it is as it was"
assert store.get_featuregroup("g").count() == 2
assert [each.name for each in store.get_featuregroups()] == ["g"]
assert store.get_training_datasets() == []
group.insert(pa.table({"x": [3]}))
print("goes on", flush=True)
"""


def test_ctrl_c_ends_a_waiting_query(tmp_path: Path) -> None:
    try:
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "store")],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"a query went on: {error.stdout!r}")
    assert "Traceback" not in ended.stderr, ended.stderr
    assert ended.returncode == 0
    assert ended.stdout.splitlines()[-1] == "goes on"
    assert len(ended.stdout.splitlines()) == 13


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    switches = sys.getswitchinterval()
    yield
    sys.setswitchinterval(switches)
    signal.signal(signal.SIGINT, handler)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_does_not_end_later_queries() -> None:
    with duckdb.connect() as connection:
        sys.setswitchinterval(10)  # the watching thread is delayed until the next query
        for _ in range(5):
            with contextlib.suppress(KeyboardInterrupt), interrupt_on_signal(connection):
                os.kill(os.getpid(), signal.SIGINT)
            with interrupt_on_signal(connection):
                slow = "select sum(a.range * b.range) from range(20000) a, range(10000) b"
                assert connection.execute(slow).fetchone() is not None
