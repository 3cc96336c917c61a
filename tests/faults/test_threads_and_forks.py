"""Calls end when a thread cannot start, and in children that are forked from a process with a store.

Each test runs one program, which tries all cases: a thread is refused by a preloaded library, and a
child that blocks is killed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import featurestore
from featurestore_connectors.spark_delta import SparkEngine
from tests.faults.forked_calls import CALLS as CALLS_IN_CHILDREN
from tests.faults.thread_calls import CALLS
from tests.object_server import ObjectServer
from tests.store_copies import copy_of

pytestmark = pytest.mark.services

FOLDER = Path(__file__).parent
# The outcomes in a child; a call that is not listed returns what it returns in the parent.
OUTCOMES = {
    "read": "40",
    "read_same_frame": "40",
    "insert": "72",
    "read_batches": "6",
    "read_same_reader": "6",
    "read_started_iteration": "ForkedProcess",
    "publish": "published",
    "export": "40",
    "user_query": "4",
    "reconnect": "4",
    "close": "closed",
}


def run(program: str, *arguments: object, **environment: str) -> list[dict[str, Any]]:
    """Run a program of this folder and return its lines."""
    process = subprocess.run(
        [sys.executable, str(FOLDER / program), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    # The stacks of a child that blocked.
    sys.stderr.write(process.stderr)
    assert process.returncode == 0, process.stdout[-1000:] + process.stderr[-8000:]
    return [json.loads(line) for line in process.stdout.splitlines()]


@pytest.mark.parametrize("options", [(), pytest.param(("--every",), marks=pytest.mark.soak)])
def test_calls_end_when_a_thread_cannot_start(tmp_path: Path, options: tuple[str, ...]) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the library that refuses threads cannot be built")
    library = tmp_path / "threads.so"
    source = str(FOLDER / "threads.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    attempts = run(
        "thread_calls.py",
        tmp_path / "store",
        *options,
        LD_PRELOAD=str(library),
        FEATURESTORE_DUCKDB_THREADS="4",
    )
    refused = [attempt for attempt in attempts if attempt["was_refused"]]
    assert {attempt["call"] for attempt in refused} == set(CALLS)
    for attempt in attempts:
        # A backfill reports the errors of its windows.
        errors = {
            None,
            "ThreadsUnavailable",
            "JobFailed" if attempt["call"] == "backfill" else None,
        }
        assert attempt["error"] in errors, attempt
        assert attempt["leftovers"] == [], attempt
        assert attempt["was_refused"] or attempt["error"] is None, attempt
    # Some calls continue with fewer threads.
    assert {attempt["error"] for attempt in refused} >= {None, "ThreadsUnavailable"}


@pytest.mark.parametrize("options", [(), pytest.param(("--threads",), marks=pytest.mark.soak)])
def test_forked_children_use_stores_of_their_parents(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    lines = run("forked_calls.py", tmp_path / "store", *options)
    outcomes = {(line["state"], line["call"]): line["outcome"] for line in lines}
    for call in CALLS_IN_CHILDREN:
        expected = OUTCOMES.get(call, outcomes["parent", call] if call == "serve" else "")
        assert outcomes["used", call] == expected, (call, outcomes["used", call])
        if options:
            # A thread of the parent may be in DuckDB, with a lock that the child cannot release.
            outcome = outcomes["running threads", call]
            assert outcome == expected or outcome.startswith("blocked"), (call, outcome)
    assert options or outcomes["used", "grandchild"] == "40"
    assert outcomes["used", "pool"] == "160"
    assert outcomes["parent", "read"] == "40"
    assert outcomes["parent", "insert"] == "72"
    assert outcomes["parent", "read_started_iteration"] == "5"
    assert outcomes["parent", "temporary directory"] == "True"


@pytest.mark.spark
def test_forked_children_refuse_the_spark_session(
    spark: Any, flights_template: Path, tmp_path: Path
) -> None:
    engine = SparkEngine(spark)
    with copy_of(
        flights_template,
        tmp_path / "store",
        connect=lambda path: featurestore.connect(path, engine=engine),
    ) as store:
        assert store.get_featuregroup("planes").count() == 4
        receiving, sending = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                outcome = str(store.get_featuregroup("planes").count())
            except featurestore.FeatureStoreError as error:
                outcome = type(error).__name__
            store.close()
            os.write(sending, outcome.encode())
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert os.read(receiving, 100) == b"ForkedProcess"
        os.close(receiving)
        os.close(sending)
        assert store.get_featuregroup("planes").count() == 4


def test_object_stores_of_the_parent_are_refused_in_children(
    object_server: ObjectServer, tmp_path: Path
) -> None:
    lines = run(
        "forked_objects.py",
        object_server.new_bucket("forked-children"),
        f"sqlite:///{tmp_path}/registry.db",
        FORKED_OPTIONS=json.dumps(object_server.options),
    )
    assert lines == [{"child": "ForkedProcess", "parent": 4}]
