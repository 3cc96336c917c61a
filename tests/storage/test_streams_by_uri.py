"""Streams into a store at a URI: every record once, from any machine."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from featurestore.recovery.rebuild import rebuild
from featurestore.store import FeatureStore
from tests.storage.stores import StoreLocation, on_servers
from tests.streams.conftest import broker, job_file
from tests.streams.topics import Broker, clicks, job

__all__ = ["broker", "job_file"]

pytest.importorskip("cronsim")


@on_servers("s3", soak=["hdfs"])
def test_stream_from_two_machines_writes_each_record_once(
    store_location: StoreLocation,
    broker: Broker,
    job_file: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    first = store_location.connect("first")
    topic = broker.topic(3)
    broker.send(topic, clicks(0, 50))
    file = job_file(job(topic, batch_records=20))
    first.add_source("events", broker.uri)
    first.register_jobs(file)
    (run,) = first.run_job("clicks")
    assert (run.state, run.rows) == ("done", 50)
    rebuild(first.location, url=f"sqlite:///{tmp_path / 'second'}.db")
    second = store_location.connect("second")
    second.add_source("events", broker.uri)
    second.register_jobs(file)
    assert second.run_job("clicks") == []
    broker.send(topic, clicks(50, 90))

    def rows_of_run(store: FeatureStore) -> int:
        return sum(run.rows or 0 for run in store.run_job("clicks"))

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(rows_of_run, (first, second))) == 40
    table = first.get_featuregroup("clicks").to_arrow()
    assert sorted(table.column("id").to_pylist()) == list(range(90))
