"""Programs that write to a store at a URI in separate processes, to be raced or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from featurestore.store import FeatureStore
from tests.object_server import ROOT
from tests.on_spark import Append
from tests.storage.stores import StoreLocation
from tests.streams import kafka_server

WRITER = """
import sys
import pandas as pd
import featurestore
location, registry, number = sys.argv[1:]
with featurestore.connect(location, registry=registry) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    for turn in range(4):
        ids = range(1000 * (int(number) + 1) + 10 * turn, 1000 * (int(number) + 1) + 10 * turn + 10)
        store.insert_into_featuregroup(pd.DataFrame({"id": ids}), "g")
        print(turn, flush=True)
"""

EXPORT = """
import sys
import featurestore
location, registry = sys.argv[1:]
with featurestore.connect(location, registry=registry) as store:
    frame = store.get_featuregroup("weather").select("id", "x", "late")
    print("ready", flush=True)
    sys.stdin.readline()
    while True:
        store.create_training_dataset(frame, "d", label="late", key="id", shards=40)
        print("done", flush=True)
"""

BACKFILL = """
import sys
import featurestore
location, registry = sys.argv[1:]
with featurestore.connect(location, registry=registry) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    store.backfill_job("tips", "2024-01-01T00:00Z", "2024-01-01T08:00Z")
"""

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


@contextmanager
def running(
    program: str, store: FeatureStore, cache: Path, store_location: StoreLocation, *words: str
) -> Iterator[Any]:
    """Run a program on a store up to its start signal; it is killed at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, store.location, f"sqlite:///{cache}", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **store_location.environment},
        text=True,
    )
    assert process.stdout is not None
    try:
        while process.stdout.readline() != "ready\n":
            assert process.poll() is None, "the program ended"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


def begin(process: Any) -> None:
    """Send the start signal to a program."""
    process.stdin.write("go\n")
    process.stdin.flush()


def killed_after(process: Any, seconds: float) -> str:
    """Start a program, kill it after some seconds, and return its output so far."""
    begin(process)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    output: str = process.communicate(timeout=60)[0]
    return output
