"""Children forked from a process that uses an online store in a SQLite file."""

from __future__ import annotations

import multiprocessing
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from featurestore.errors import OnlineStoreUnavailable
from featurestore.model.times import utc_now
from featurestore.plugins.online import OnlineConfig, OnlineStore, open_config
from featurestore.serving.stores import StoreClock

WAIT_SECONDS = 30
FORK = multiprocessing.get_context("fork")
# What every connection does that is the last one of a file: it removes the log.
CLOSE_LAST = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("DELETE FROM entries WHERE key = x'00'")
connection.close()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "online.db"


@pytest.fixture
def online(path: Path) -> Iterator[OnlineStore]:
    with closing(open_config(OnlineConfig("ours", f"sqlite:///{path}"))) as store:
        yield store


def test_write_of_a_child_is_not_lost_after_others_have_closed_the_file(
    online: OnlineStore, path: Path
) -> None:
    online.write([b"parent"], [b"1"])
    has_written, may_continue = FORK.Event(), FORK.Event()
    arguments = (online, has_written, may_continue)
    child = FORK.Process(target=_write_twice, args=arguments, daemon=True)
    child.start()
    online.close()
    assert has_written.wait(WAIT_SECONDS)
    subprocess.run([sys.executable, "-c", CLOSE_LAST, str(path)], check=True)
    may_continue.set()
    child.join(WAIT_SECONDS)
    assert child.exitcode == 0
    # The second value is acknowledged.
    assert online.read([b"parent", b"first", b"second"]) == [b"1", b"2", b"3"]


def _write_twice(online: OnlineStore, has_written: Event, may_continue: Event) -> None:
    online.write([b"first"], [b"2"])
    has_written.set()
    assert may_continue.wait(WAIT_SECONDS)
    online.write([b"second"], [b"3"])


def test_fork_waits_for_the_writes_of_other_threads(online: OnlineStore, path: Path) -> None:
    keys = [number.to_bytes(4, "big") for number in range(500)]
    is_stopped = threading.Event()

    def write_until_stopped() -> None:
        for value in range(1_000_000):
            online.write(keys, [b"%d" % value] * len(keys))
            if is_stopped.is_set():
                return

    writers = [threading.Thread(target=write_until_stopped) for _ in range(2)]
    for writer in writers:
        writer.start()
    children = [FORK.Process(target=_write_own, args=(online, number)) for number in range(8)]
    for child in children:
        child.start()
    for child in children:
        child.join(WAIT_SECONDS)
    is_stopped.set()
    for writer in writers:
        writer.join(WAIT_SECONDS)
    assert [child.exitcode for child in children] == [0] * len(children)
    names = [b"child %d" % number for number in range(len(children))]
    assert online.read(names) == names
    assert len(set(online.read(keys))) == 1
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def _write_own(online: OnlineStore, number: int) -> None:
    name = b"child %d" % number
    online.write([name], [name])


class SlowClock:
    """A server whose clock another thread waits for during a fork."""

    def __init__(self) -> None:
        self.is_read, self.may_return = threading.Event(), threading.Event()

    def clock(self) -> datetime:
        if threading.current_thread() is not threading.main_thread():
            self.is_read.set()
            assert self.may_return.wait(WAIT_SECONDS)
            raise OnlineStoreUnavailable("no response")
        return utc_now()


def test_clock_that_a_thread_measures_during_a_fork_is_measured_again_in_the_child() -> None:
    server = SlowClock()
    clock = StoreClock(server)
    measuring = threading.Thread(target=_measure_in_vain, args=(clock,))
    measuring.start()
    assert server.is_read.wait(WAIT_SECONDS)
    child = FORK.Process(target=clock.now, daemon=True)
    child.start()
    child.join(WAIT_SECONDS)
    server.may_return.set()
    measuring.join(WAIT_SECONDS)
    exit_code = child.exitcode
    child.kill()
    assert exit_code == 0


def _measure_in_vain(clock: StoreClock) -> None:
    with pytest.raises(OnlineStoreUnavailable):
        clock.now()
