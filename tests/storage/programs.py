"""Programs that write to a store at a URI in separate processes, to be raced or killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest

import featurestore
from featurestore.store import FeatureStore
from tests import forked_processes
from tests.object_server import ROOT
from tests.on_spark import Append
from tests.storage.trip_jobs import RANGE
from tests.streams import kafka_server

if TYPE_CHECKING:
    from tests.storage.stores import StoreLocation

# Writes to a store, and yields after each write.
Program = Callable[..., Iterator[None]]


def append_batches(store: FeatureStore, number: int) -> Iterator[None]:
    """Append four batches of ten rows, whose ids are those of this writer."""
    for turn in range(4):
        first = 1000 * (number + 1) + 10 * turn
        store.insert_into_featuregroup(pd.DataFrame({"id": range(first, first + 10)}), "g")
        yield


def export_datasets(store: FeatureStore) -> Iterator[None]:
    """Create versions of a training dataset without end."""
    frame = store.get_featuregroup("weather").select("id", "x", "late")
    while True:
        store.create_training_dataset(frame, "d", label="late", key="id", shards=40)
        yield


def backfill_tips(store: FeatureStore) -> Iterator[None]:
    store.backfill_job("tips", *RANGE)
    yield


@dataclass(frozen=True)
class RunningProgram:
    """The process of a program, which waits for its start signal."""

    process: BaseProcess
    messages: Connection

    def begin(self) -> None:
        """Wait until the program has opened its store, and send the start signal."""
        assert self.messages.recv() == "ready"
        self.messages.send("go")

    def killed_after(self, seconds: float) -> int:
        """Start the program, kill it after some seconds, and return the number of its writes."""
        self.begin()
        time.sleep(seconds)
        forked_processes.kill(self.process)
        writes = 0
        with suppress(EOFError):
            while self.messages.recv() == "done":
                writes += 1
        return writes


@contextmanager
def running(
    program: Program,
    store: FeatureStore,
    cache: Path,
    store_location: StoreLocation,
    *arguments: object,
) -> Iterator[RunningProgram]:
    """Run a program on a store; it is killed at the end of the block."""
    messages, messages_of_child = forked_processes.server.Pipe()
    with pytest.MonkeyPatch.context() as environment:
        for name, value in store_location.environment.items():
            environment.setenv(name, value)
        registry = f"sqlite:///{cache}"
        process = forked_processes.start(
            _run, program, store.location, registry, messages_of_child, arguments
        )
    messages_of_child.close()
    try:
        yield RunningProgram(process, messages)
    finally:
        forked_processes.kill(process)
        messages.close()


def _run(
    program: Program,
    location: str,
    registry: str,
    messages: Connection,
    arguments: tuple[object, ...],
) -> None:
    with featurestore.connect(location, registry=registry) as store:
        messages.send("ready")
        messages.recv()
        for _ in program(store, *arguments):
            messages.send("done")


# Append a row per commit for each number on standard input.
APPENDER = """
import os, sys
import pyarrow as pa
from featurestore.plugins.engine import TableWrite, find_engine
from tests.on_spark import APPENDED
engine_name, path, jars = sys.argv[1:]
if engine_name == "spark":
    from pyspark.sql import SparkSession
    from featurestore_connectors.spark_delta import configure_session
    builder = SparkSession.builder.master("local[1]").config("spark.jars", jars)
    configure_session(builder.config("spark.ui.enabled", "false")).getOrCreate()
engine = find_engine(engine_name)
print("ready", flush=True)
for line in sys.stdin:
    writer, _, number = line.rpartition(" ")
    rows = pa.table({"k": [int(number)], "by": [writer]}, APPENDED)
    assert engine.write(path, engine.from_arrow(rows.to_reader()), TableWrite("append")) is not None
    print("done", flush=True)
"""


@contextmanager
def appender(engine_name: str, path: str, environment: Mapping[str, str]) -> Iterator[Append]:
    """Run a process with its own engine, and return a function that appends a row with it."""
    jars = ",".join(map(str, kafka_server.spark_jars(kafka_server.S3A)))
    with subprocess.Popen(
        [sys.executable, "-c", APPENDER, engine_name, path, jars],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={
            **os.environ,
            **environment,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        cwd=ROOT,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        child_output, child_input = process.stdout, process.stdin

        def wait_for(word: str) -> None:
            for line in child_output:
                if line.strip() == word:
                    return
            raise AssertionError(f"a writer with {engine_name} ended")

        def append(writer: str, number: int) -> None:
            child_input.write(f"{writer} {number}\n")
            child_input.flush()
            wait_for("done")

        wait_for("ready")
        yield append
        child_input.close()
