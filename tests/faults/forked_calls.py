"""Call a store in children that are forked from a process that has used it.

``python forked_calls.py STORE [--threads]`` writes a JSON line for each call: the state of the
parent, the call, and its result: what it returned, the class of the error of the library, or how
the child ended. A child that blocks is ended after ``SECONDS`` and writes its stacks.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import featurestore
from featurestore.errors import FeatureStoreError
from featurestore.readers.reader import Reader
from featurestore.retrieval.frame import FeatureFrame
from featurestore.storage.temporary import temporary_directory
from featurestore.store import FeatureStore
from tests import flights

SECONDS = 60
ENTITY = {"origin": "EWR", "tailnum": "N102UW"}


@dataclass
class Parent:
    """The objects of the parent that a child may use."""

    store: FeatureStore
    frame: FeatureFrame
    reader: Reader
    started: Iterator[Any]
    server: Any
    stop: threading.Event = field(default_factory=threading.Event)


def read(parent: Parent) -> int:
    return parent.store.get_features(flights.FEATURES, labels="flights").to_arrow().num_rows


def read_same_frame(parent: Parent) -> int:
    return parent.frame.to_arrow().num_rows


def insert(parent: Parent) -> int:
    commit = parent.store.insert_into_featuregroup(
        flights.weather().slice(0, 2), "weather", mode="upsert"
    )
    return int(commit.rows)


def read_batches(parent: Parent) -> int:
    reader = parent.store.get_training_dataset("late_flights").reader("train", global_batch_size=4)
    return len(list(reader.batches()))


def read_same_reader(parent: Parent) -> int:
    return len(list(parent.reader.batches()))


def read_started_iteration(parent: Parent) -> int:
    return len(list(parent.started))


def serve(parent: Parent) -> int:
    return len(parent.server.get_vector(ENTITY))


def publish(parent: Parent) -> str:
    parent.store.publish("late_flights", to="cache", full=True)
    return "published"


def export(parent: Parent) -> int:
    dataset = parent.store.create_training_dataset(
        parent.store.get_featuregroup("flights"), "d", label="late", key=["flight"], progress=False
    )
    parent.store.delete_training_dataset("d", version=dataset.version)
    return dataset.num_rows("train")


def user_query(parent: Parent) -> int:
    return parent.store.sql("SELECT * FROM planes").to_arrow().num_rows


def reconnect(parent: Parent) -> int:
    with featurestore.connect(parent.store.location) as store:
        return store.get_featuregroup("planes").count()


def close(parent: Parent) -> str:
    parent.store.close()
    return "closed"


CALLS: dict[str, Callable[[Parent], Any]] = {
    call.__name__: call
    for call in (
        read,
        read_same_frame,
        insert,
        read_batches,
        read_same_reader,
        read_started_iteration,
        serve,
        publish,
        export,
        user_query,
        reconnect,
        close,
    )
}


def use(location: str) -> Parent:
    """Create a store and use every part of it, so that its threads and connections exist."""
    store = featurestore.connect(location)
    flights.fill_flights(store)
    store.add_online_store("cache", f"sqlite:///{location}.online.db")
    store.publish("late_flights", to="cache")
    frame = store.get_features(flights.FEATURES, labels="flights")
    frame.to_arrow()
    store.insert_into_featuregroup(flights.weather(), "weather", mode="upsert")
    store.sql("SELECT * FROM planes").to_arrow()
    reader = store.get_training_dataset("late_flights").reader("train", global_batch_size=4)
    started = reader.batches()
    next(started)
    server = store.get_feature_view("late_flights").server(online="cache")
    server.get_vector(ENTITY)
    return Parent(store, frame, reader, started, server)


def run_threads(parent: Parent) -> list[threading.Thread]:
    """Read and write in threads until ``parent.stop`` is set."""

    def repeat(call: Callable[[Parent], Any]) -> None:
        while not parent.stop.is_set():
            call(parent)

    threads = [threading.Thread(target=repeat, args=(call,)) for call in (read, insert, serve)]
    for thread in threads:
        thread.start()
    return threads


def call_in_child(parent: Parent, call: Callable[[Parent], Any], *, exits: bool) -> str:
    """Return the outcome of a call in a forked child."""
    return wait_for_child(lambda: call(parent), exits=exits)


def wait_for_child(call: Callable[[], Any], *, exits: bool) -> str:
    """Return the outcome of a function in a forked child, which exits like a program if ``exits``."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            outcome = str(call())
        except FeatureStoreError as error:
            outcome = type(error).__name__
        except Exception:
            outcome = f"raw: {traceback.format_exc()}"
        os.write(sending, outcome.encode())
        if exits:
            sys.exit(0)
        os._exit(0)
    os.close(sending)
    end = time.monotonic() + SECONDS
    ended, status = 0, 0
    while not ended and time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.005)
    if not ended:
        os.kill(child, signal.SIGABRT)
        os.waitpid(child, 0)
    with os.fdopen(receiving) as stream:
        outcome = stream.read()
    if not ended:
        return f"blocked {outcome}"
    return outcome if status == 0 else f"ended with {os.waitstatus_to_exitcode(status)} {outcome}"


def main(location: str, *, has_threads: bool) -> None:
    """Run all calls in children of a process without and, if ``has_threads``, with other threads."""
    warnings.simplefilter("ignore")
    faulthandler.enable()
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def report(state: str, call: str, outcome: Any) -> None:
        lines.write(json.dumps({"state": state, "call": call, "outcome": str(outcome)}) + "\n")
        lines.flush()

    parent = use(location)
    temporary = Path(temporary_directory())
    for name, call in CALLS.items():
        report("used", name, call_in_child(parent, call, exits=True))
    if has_threads:
        threads = run_threads(parent)
        for name, call in CALLS.items():
            report("running threads", name, call_in_child(parent, call, exits=False))
        parent.stop.set()
        for thread in threads:
            thread.join()
    # A child of a child, and the pools of multiprocessing.
    report("used", "grandchild", call_in_child(parent, _read_in_child, exits=True))
    with get_context("fork").Pool(2, initializer=_remember, initargs=(parent,)) as pool:
        report("used", "pool", sum(pool.map(_read_number, range(4))))
    # The parent still works, and its temporary files exist.
    report("parent", "read", read(parent))
    report("parent", "insert", insert(parent))
    report("parent", "read_started_iteration", read_started_iteration(parent))
    report("parent", "serve", serve(parent))
    report("parent", "temporary directory", temporary.exists())
    parent.store.close()


def _read_in_child(parent: Parent) -> str:
    read(parent)
    return call_in_child(parent, read, exits=True)


_parent: Parent | None = None


def _remember(parent: Parent) -> None:
    global _parent
    _parent = parent


def _read_number(_: int) -> int:
    assert _parent is not None
    return read(_parent)


if __name__ == "__main__":
    main(sys.argv[1], has_threads="--threads" in sys.argv)
