"""A process that uses HDFS and forks: ``python -m tests.storage.forked_child CASE FOLDER``.

It ends with 0 where its child, and itself, got what they had to.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable

from featurestore.storage import connections
from featurestore_connectors.hdfs import HdfsStorage

DATA = bytes(range(256)) * 2_000


def reads_and_writes(folder_uri: str) -> None:
    """Read in both processes at once; neither receives the other's data, and the child exits normally."""
    storage, folder = connections.object_store_for(folder_uri)
    storage.put(f"{folder}/before", DATA)
    assert storage.read(f"{folder}/before") == DATA

    def in_child() -> None:
        inner, _ = connections.object_store_for(folder_uri)
        for _ in range(20):
            assert inner.read(f"{folder}/before") == DATA
        inner.put(f"{folder}/child", DATA)

    child = forked(in_child)
    for _ in range(20):
        assert storage.read(f"{folder}/before") == DATA
    ends_well(child, meanwhile=lambda: storage.read(f"{folder}/before"))
    assert storage.read(f"{folder}/child") == DATA


def collects_no_garbage_of_its_parent(folder_uri: str) -> None:
    """Leave a client in a reference cycle, whose cleanup in the child would wait for threads."""
    root, _, folder = folder_uri.rpartition("/")
    client = HdfsStorage(root, {})
    client.put(f"{folder}/before", DATA)
    cycle: list[object] = [client._client.read(client._path(f"{folder}/before"))]
    cycle.append(cycle)
    del client, cycle
    ends_well(forked(gc.collect), meanwhile=lambda: time.sleep(0.05))


def forked(in_child: Callable[[], object]) -> int:
    """Return the process id of a child that calls a function and exits."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            in_child()
            code = 0
        finally:
            os._exit(code)
    return child


def ends_well(child: int, *, meanwhile: Callable[[], object]) -> None:
    """Wait for a child, and fail if it hangs or fails."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        meanwhile()
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


CASES = {case.__name__: case for case in (reads_and_writes, collects_no_garbage_of_its_parent)}

if __name__ == "__main__":
    CASES[sys.argv[1]](sys.argv[2])
