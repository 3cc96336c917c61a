"""Programs that write to a store at a URI in a process of their own, to be raced or killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from featurestore.store import FeatureStore
from tests.object_server import ROOT
from tests.on_spark import Append
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
    while True:
        store.create_training_dataset(frame, "d", label="late", key="id", shards=40)
        print("done", flush=True)
"""


# Appends a row in a commit for each number that it reads.
APPENDER = """
import os, sys
import pyarrow as pa
from featurestore.plugins.engine import TableWrite, find_engine
from tests.on_spark import APPENDED
kind, path, jars = sys.argv[1:]
if kind == "spark":
    from pyspark.sql import SparkSession
    from featurestore_connectors.spark_delta import configure_session
    builder = SparkSession.builder.master("local[1]").config("spark.jars", jars)
    configure_session(builder.config("spark.ui.enabled", "false")).getOrCreate()
engine = find_engine(kind)
print("ready", flush=True)
for line in sys.stdin:
    rows = pa.table({"k": [int(line)], "by": [f"another {kind}"]}, APPENDED)
    assert engine.write(path, engine.from_arrow(rows.to_reader()), TableWrite("append")) is not None
    print("done", flush=True)
"""


@contextmanager
def appender(kind: str, path: str, options: dict[str, str]) -> Iterator[Append]:
    """Run a process with an engine of its own, and give what appends a row by it."""
    given = {key.upper(): value for key, value in options.items()}
    jars = ",".join(map(str, kafka_server.spark_jars(kafka_server.S3A)))
    with subprocess.Popen(
        [sys.executable, "-c", APPENDER, kind, path, jars],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={
            **os.environ,
            **given,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        cwd=ROOT,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said, told = process.stdout, process.stdin

        def wait_for(word: str) -> None:
            for line in said:
                if line.strip() == word:
                    return
            raise AssertionError(f"a writer with {kind} ended")

        def append(_: str, number: int) -> None:
            told.write(f"{number}\n")
            told.flush()
            wait_for("done")

        wait_for("ready")
        yield append
        told.close()


def start(store: FeatureStore, registry: Path, options: dict[str, str], number: int) -> Any:
    environment = {**os.environ, **{key.upper(): value for key, value in options.items()}}
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, store.location, f"sqlite:///{registry}", str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
