"""Run calls of the store, each repeatedly, while its first, second, ... thread cannot be started.

``python thread_calls.py STORE [--every]`` tries every second thread, or each thread twice. It
writes a JSON line for each attempt: the call, the number of the thread, the error (null: the call
succeeded, "raw": another error than of the library) and what the attempt left behind. The preloaded
library of ``threads.c`` refuses the threads. An attempt that blocks ends the process, with the
stack of each thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, MutableMapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pyarrow as pa

import featurestore
from featurestore import TrainingDataset
from featurestore.errors import ThreadsUnavailable
from featurestore.jobs.scheduler import Options
from featurestore.registry.audit_log import Actor
from featurestore.server.access.sign_in import PasswordThreads
from featurestore.server.app import create_app
from featurestore.server.job_actions import JobRuns
from featurestore.store import FeatureStore
from tests import flights

SECONDS = 60
# A call with more threads than this is a fault of the test.
MOST_THREADS = 60
ROWS = 4_000
Call = Callable[[FeatureStore, int], Any]
# The datasets of the current attempt, which are deleted after it.
exported: list[TrainingDataset] = []
JOBS = """
import featurestore

@featurestore.job(featuregroup="hours", primary_key="flight", event_time="departure", window="1h",
                  schedule="0 * * * *", start="2013-01-01T01:00:00Z", inputs={"flights": "flights"},
                  closed="left")
def hours(window, flights):
    return flights
"""
HOURS = ("2013-01-01T01:00:00Z", "2013-01-01T05:00:00Z")


def many_rows() -> pa.Table:
    """Return flights with distinct numbers."""
    table = pa.concat_tables([flights.flights()] * (ROWS // 40))
    return table.set_column(0, "flight", pa.array(range(ROWS)))


def export(store: FeatureStore, attempt: int, **options: Any) -> None:
    """Export a dataset with a new name, and check its rows."""
    dataset = store.create_training_dataset(
        store.get_featuregroup("many"),
        f"d{attempt}",
        label="late",
        key=["flight"],
        shards=4,
        splits={"train": 0.5, "test": 0.5},
        **{"progress": False, **options},
    )
    exported.append(dataset)
    assert sum(map(dataset.num_rows, dataset.splits)) == ROWS


def export_spilled(store: FeatureStore, attempt: int) -> None:
    """Export with a memory limit, so that DuckDB sorts and writers wait for their queues."""
    os.environ["FEATURESTORE_DUCKDB_MEMORY_LIMIT"] = "1GB"
    try:
        with featurestore.connect(store.location) as limited:
            export(limited, attempt)
    finally:
        del os.environ["FEATURESTORE_DUCKDB_MEMORY_LIMIT"]


def connect(store: FeatureStore, _: int) -> None:
    """Open another connection, whose engine starts its own threads."""
    with featurestore.connect(store.location) as other:
        assert other.get_featuregroup("planes").count() == 4


def serve_vectors(store: FeatureStore, _: int) -> None:
    """Read vectors, also asynchronously."""
    with store.get_feature_view("late_flights").server(online="cache") as server:
        entity = {"origin": "EWR", "tailnum": "N102UW"}
        vector = server.get_vector(entity)
        assert asyncio.run(server.aget_vector(entity)) == vector


def run_scheduler(store: FeatureStore, _: int) -> None:
    """Run due jobs once, in threads."""
    scheduler = store.scheduler(Options(workers=2))
    scheduler.run_due()


def start_job_thread(_: FeatureStore, attempt: int) -> None:
    """Request a run as the web server does."""
    runs = JobRuns()
    try:
        ran: list[int] = []

        def remember() -> list[Any]:
            ran.append(attempt)
            return []

        run = runs.start("job", "", Actor("ada", "browser"), remember)
        assert run.future.result(SECONDS) == []
        assert ran == [attempt]
    finally:
        runs.close()


def check_password(_: FeatureStore, __: int) -> None:
    """Hash a password as the web server does."""
    assert asyncio.run(PasswordThreads().run("127.0.0.1", lambda: 7)) == 7


def request_list(store: FeatureStore, _: int) -> None:
    """Request a list of the web server, which answers in a thread."""
    messages: list[MutableMapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "scheme": "http",
        "method": "GET",
        "path": "/api/v1/featuregroups",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 80),
    }
    asyncio.run(create_app(store)(scope, receive, send))
    status, body = messages[0]["status"], b"".join(message.get("body", b"") for message in messages)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        problem = json.loads(body)
        assert problem["title"] == "ThreadsUnavailable"
        raise ThreadsUnavailable(problem["detail"])
    assert status == HTTPStatus.OK, body


def download(store: FeatureStore, _: int) -> None:
    """Copy a dataset to a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        store.get_training_dataset("late_flights").download(f"{folder}/copy")


CALLS: dict[str, Call] = {
    "export": export,
    "export with progress": lambda store, n: export(store, n, progress=True),
    "export to Parquet": lambda store, n: export(store, n, data_format="parquet"),
    "export spilled": export_spilled,
    "connect": connect,
    "windows": lambda store, _: store.get_features(
        [featurestore.window("flights.distance", "mean", over="3h")], labels="flights"
    ).to_arrow(),
    "upsert": lambda store, _: store.insert_into_featuregroup(
        many_rows().slice(0, 100), "many", mode="upsert"
    ),
    "compact": lambda store, _: store.compact_featuregroup("many"),
    "reader": lambda store, _: list(
        store.get_training_dataset("late_flights").reader("train", global_batch_size=4).batches()
    ),
    "verify": lambda store, _: store.get_training_dataset("late_flights").verify(recompute=True),
    "download": download,
    "publish": lambda store, _: store.publish("late_flights", to="cache", full=True),
    "serve vectors": serve_vectors,
    "backfill": lambda store, _: store.backfill_job("hours", *HOURS, resume=False),
    "scheduler": run_scheduler,
    "job of the server": start_job_thread,
    "password": check_password,
    "request": request_list,
}


def prepare(location: str) -> FeatureStore:
    """Create a store, and start the threads that it keeps."""
    store = featurestore.connect(location)
    flights.fill_flights(store)
    store.create_featuregroup(many_rows(), "many", primary_key="flight", event_time="departure")
    store.add_online_store("cache", f"sqlite:///{location}.online.db")
    store.publish("late_flights", to="cache")
    file = Path(f"{location}.jobs.py")
    file.write_text(JOBS)
    store.register_jobs(file)
    # The scheduler would compute the hours of all years.
    store.pause_job("hours")
    return store


def leftovers(location: str) -> list[str]:
    """Return staged files, and files of datasets that were deleted."""
    root = Path(location)
    paths = [*root.glob("_staging/**/*"), *root.glob("trainingdatasets/d*/**/*")]
    return [str(path.relative_to(root)) for path in paths if path.is_file()]


def main(location: str, *, every: bool) -> None:
    """Run the calls."""
    warnings.simplefilter("ignore")
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    store = prepare(location)
    library = ctypes.CDLL(None)
    library.threads_arm.argtypes = [ctypes.c_long, ctypes.c_int]
    library.threads_count.restype = ctypes.c_long
    for name in CALLS:
        # Some threads start in the first call only.
        CALLS[name](store, MOST_THREADS)
        for stays in (False, True):
            for number in range(1, MOST_THREADS) if every else range(1 + stays, MOST_THREADS, 2):
                faulthandler.dump_traceback_later(SECONDS, exit=True)
                error = None
                library.threads_arm(number, stays)
                try:
                    CALLS[name](store, number)
                except featurestore.FeatureStoreError as raised:
                    error = type(raised).__name__
                except BaseException:
                    error = f"raw: {traceback.format_exc()}"
                started = library.threads_count()
                for dataset in exported:
                    store.delete_training_dataset(dataset.name, version=dataset.version)
                exported.clear()
                report = {"call": name, "number": number, "stays": stays, "error": error}
                report["leftovers"] = leftovers(location)
                report["was_refused"] = started >= number
                lines.write(json.dumps(report) + "\n")
                lines.flush()
                if started < number:
                    break
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], every="--every" in sys.argv)
