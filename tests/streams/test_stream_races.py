"""Concurrent readers of one topic: the slower one commits nothing and continues from the table."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import featurestore
from featurestore.errors import JobLeased
from featurestore.jobs.target import declaration, find_target
from featurestore.model.job import StreamWork
from featurestore.registry import jobs
from featurestore.registry.runs import Run
from featurestore.store import FeatureStore
from featurestore.streams import StreamTarget, consume
from tests.streams.topics import Broker, clicks, job

JobFile = Callable[[str], Path]


def read(store: FeatureStore) -> int:
    """Read the topic like a run, without its lease."""
    session = store.session
    with session.registry.reading() as connection:
        work = jobs.get(connection, "clicks").spec.work
    assert isinstance(work, StreamWork)
    aimed = StreamTarget(find_target(session, work), declaration(work))
    progress = consume(
        session,
        "clicks",
        work,
        aimed,
        run_id="test",
        check=lambda: None,
        after_commit=lambda: None,
        stop=threading.Event(),
    )
    return progress.rows


def test_overtaken_reader_writes_no_duplicates(
    empty_store: FeatureStore,
    broker: Broker,
    job_file: JobFile,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from featurestore.streams import loop, micro_batches

    topic = broker.topic(2)
    broker.send(topic, clicks(0, 40))
    empty_store.add_source("events", broker.uri)
    empty_store.register_jobs(job_file(job(topic, batch_records=10)))
    second_store = featurestore.connect(empty_store.location, engine="duckdb")
    overtaken = []

    def land(*args: Any, **kwargs: Any) -> Any:
        if not overtaken:
            overtaken.append(True)
            read(second_store)
            broker.send(topic, clicks(40, 45))
        return micro_batches.commit_micro_batch(*args, **kwargs)

    read(empty_store)  # makes the group
    broker.send(topic, clicks(45, 60))
    with monkeypatch.context() as patched:
        patched.setattr(loop, "commit_micro_batch", land)
        read(empty_store)
    read(empty_store)
    assert overtaken
    rows = empty_store.get_featuregroup("clicks").to_arrow()
    assert sorted(rows.column("id").to_pylist()) == list(range(60))
    second_store.close()


def test_consumer_group_runners_share_partitions(
    empty_store: FeatureStore, broker: Broker, job_file: JobFile
) -> None:
    topic = broker.topic(4)
    broker.send(topic, clicks(0, 400))
    empty_store.add_source("events", broker.uri)
    text = job(topic, batch_records=20, consumer_group=f"{topic}-readers", statistics=False)
    empty_store.register_jobs(job_file(text))
    second_store = featurestore.connect(empty_store.location, engine="duckdb")
    actual: list[Run] = []
    helper = threading.Thread(target=lambda: actual.extend(second_store.run_job("clicks")))
    helper.start()
    actual += empty_store.run_job("clicks")
    helper.join()
    actual += empty_store.run_job("clicks")
    assert sum(run.rows or 0 for run in actual) == 400
    rows = empty_store.get_featuregroup("clicks").to_arrow()
    assert sorted(rows.column("id").to_pylist()) == list(range(400))
    second_store.close()


def test_remove_stream_job_while_its_consumer_group_reads_is_refused(
    empty_store: FeatureStore,
    broker: Broker,
    job_file: JobFile,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from featurestore.streams import loop, micro_batches

    topic = broker.topic(1)
    broker.send(topic, clicks(0, 10))
    empty_store.add_source("events", broker.uri)
    empty_store.register_jobs(job_file(job(topic, consumer_group=f"{topic}-readers")))
    refusals = []

    def land(*args: Any, **kwargs: Any) -> Any:
        with pytest.raises(JobLeased, match="Job 'clicks' is currently run by") as refused:
            empty_store.remove_job("clicks")
        refusals.append(refused)
        return micro_batches.commit_micro_batch(*args, **kwargs)

    monkeypatch.setattr(loop, "commit_micro_batch", land)
    (run,) = empty_store.run_job("clicks")
    assert (run.rows, len(refusals)) == (10, 1)
    assert empty_store.remove_job("clicks").runs == 1
    assert len(empty_store.get_featuregroup("clicks").to_arrow()) == 10
