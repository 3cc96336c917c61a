"""Backlogs are read in bounded micro-batches, and the lag is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from featurestore.store import FeatureStore
from featurestore_connectors.kafka import consumer
from tests.on_spark import spark_in_soak
from tests.streams.conftest import Landings, require_spark_reader
from tests.streams.topics import Broker, click, clicks, job

JobFile = Callable[[str], Path]


@spark_in_soak  # test_streams_on_spark has landings, too
def test_backlog_is_read_in_bounded_micro_batches(
    store: FeatureStore, broker: Broker, job_file: JobFile, landings: Landings
) -> None:
    require_spark_reader(store.session.engine.name)
    topic = broker.topic(3)
    broker.send(topic, clicks(0, 60))
    broker.send(topic, clicks(60, 110), partition=0)  # one partition has most of them
    store.add_source("events", broker.uri)
    store.register_jobs(job_file(job(topic, batch_records=50)))
    (run,) = store.run_job("clicks")
    assert run.rows == sum(landings.rows) == 110
    assert max(landings.rows) <= 50
    assert len(landings.rows) <= 4
    remaining = [110]
    for rows in landings.rows:
        remaining.append(remaining[-1] - rows)
    (status,) = store.get_jobs()
    assert status.stream is not None
    assert [*landings.lags, status.stream.lag] == remaining


def test_backlog_of_long_records_stays_within_memory_bound(
    empty_store: FeatureStore,
    broker: Broker,
    job_file: JobFile,
    landings: Landings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound, call, long = 1 << 20, 10, 40_000
    monkeypatch.setattr(consumer, "_MAX_BATCH_BYTES", bound)
    monkeypatch.setattr(consumer, "_MAX_MESSAGES", call)
    topic = broker.topic(2)
    broker.send(topic, [click(number, more="x" * long) for number in range(300)])
    empty_store.add_source("events", broker.uri)
    empty_store.register_jobs(job_file(job(topic)))
    allocated_before = pa.total_allocated_bytes()
    (run,) = empty_store.run_job("clicks")
    assert run.rows == 300
    most = bound + call * 2 * long
    assert max(landings.bytes) <= most
    assert max(landings.allocated) - allocated_before <= 3 * most < 300 * long
