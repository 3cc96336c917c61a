"""Streams on the embedded engine: valid records once, invalid ones quarantined."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from featurestore.errors import (
    InvalidJob,
    JobFailed,
    SourceTableNotFound,
    SourceUnavailable,
    UnsupportedType,
)
from featurestore.store import FeatureStore
from featurestore_connectors.kafka.consumer import KafkaStream
from tests.streams.topics import Broker, click, clicks, job

JobFile = Callable[[str], Path]


def ids(store: FeatureStore, name: str = "clicks") -> list[int]:
    rows = store.get_featuregroup(name).to_arrow()
    return sorted(rows.column("id").to_pylist())


def registered(store: FeatureStore, broker: Broker, file: Path) -> None:
    store.add_source("events", broker.uri)
    store.register_jobs(file)


def quarantined(store: FeatureStore, name: str = "clicks") -> list[dict[str, Any]]:
    path = store.session.quarantine_path(name, 1)
    relation = store.session.engine.read_table(path)
    rows: list[dict[str, Any]] = store.session.engine.stream(relation).read_all().to_pylist()
    return rows


def test_stream_run_reads_new_records_only(
    empty_store: FeatureStore, broker: Broker, job_file: JobFile
) -> None:
    topic = broker.topic(3)
    broker.send(topic, clicks(0, 50))
    registered(empty_store, broker, job_file(job(topic, batch_records=20)))
    (run,) = empty_store.run_job("clicks")
    assert (run.state, run.rows) == ("done", 50)
    assert ids(empty_store) == list(range(50))
    assert empty_store.run_job("clicks") == []
    broker.send(topic, clicks(50, 60))
    (run,) = empty_store.run_job("clicks")
    assert run.rows == 10
    assert ids(empty_store) == list(range(60))


def test_unreadable_records_are_quarantined_with_offset_and_reason(
    empty_store: FeatureStore, broker: Broker, job_file: JobFile
) -> None:
    topic = broker.topic(1)
    poison = [
        b"not json",
        b"[1, 2]",
        b'{"id": 1.7, "user": "a", "at": "2024-01-01T00:00:00Z"}',
        b'{"id": 9, "user": "a", "at": "yesterday"}',
        b'{"user": "a", "at": "2024-01-01T00:00:00Z"}',
        b'{"id": 10, "user": 5, "at": "2024-01-01T00:00:00Z"}',
        b"\xff\xfe",
        None,
    ]
    broker.send(topic, [click(0), *poison, click(1, more="left alone"), click(2, user=None)])
    registered(empty_store, broker, job_file(job(topic)))
    empty_store.run_job("clicks")
    assert ids(empty_store) == [0, 1, 2]
    actual = sorted(quarantined(empty_store), key=lambda row: row["record_offset"])
    assert [row["record_offset"] for row in actual] == list(range(1, 9))
    assert {(row["record_topic"], row["record_partition"]) for row in actual} == {(topic, 0)}
    assert [row["record_value"] for row in actual] == poison
    assert [row["reasons"][0] for row in actual] == [
        "the value is not JSON: Expecting value at column 1",
        "the value is an array, not an object",
        "id is a number (1.7), which is not int64",
        "at: 'yesterday' is not timestamp[us, tz=UTC]",
        "'id' is null or missing",
        "user is a number (5), which is not string",
        "the value is not UTF-8 text",
        "the record has no value",
    ]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"event_time": None}, InvalidJob, "no event_time="),
        ({"event_time": "when"}, InvalidJob, "unknown column"),
        ({"event_time": "user"}, InvalidJob, "not a time"),
        ({"format": "jsonl"}, InvalidJob, "format='json'"),
        ({"schema": {"id": "int64", "at": "datetime"}}, UnsupportedType, "'datetime'"),
        ({"schema": {"id": "binary", "at": "timestamp"}}, InvalidJob, "without loss"),
        ({"topic": "no-such-topic"}, SourceTableNotFound, "unknown topic 'no-such-topic'"),
    ],
)
def test_invalid_stream_job_is_refused_before_writing(
    empty_store: FeatureStore,
    broker: Broker,
    job_file: JobFile,
    arguments: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    file = job_file(job(**{"topic": broker.topic(1), **arguments}))
    empty_store.add_source("events", broker.uri)
    with pytest.raises(error) as raised:
        empty_store.register_jobs(file)
    assert words in str(raised.value)
    assert empty_store.get_jobs() == []
    assert empty_store.get_featuregroups() == []


def test_unreachable_broker_error_names_address(
    empty_store: FeatureStore, broker: Broker, job_file: JobFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("featurestore_connectors.kafka.consumer.TIMEOUT_SECONDS", 0.5)
    empty_store.add_source("events", "kafka://127.0.0.1:9")
    with pytest.raises(SourceUnavailable, match=r"127\.0\.0\.1:9"):
        empty_store.register_jobs(job_file(job("clicks")))


def test_lost_offsets_and_recreated_topics_fail_run(
    empty_store: FeatureStore,
    broker: Broker,
    job_file: JobFile,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = broker.topic(1)
    broker.send(topic, clicks(0, 10))
    registered(empty_store, broker, job_file(job(topic)))
    empty_store.run_job("clicks")
    broker.send(topic, clicks(10, 20))
    broker.cut(topic, 0, 15)
    with pytest.raises(JobFailed, match="10 to 14 of partition 0 were removed"):
        empty_store.run_job("clicks")
    empty_store.register_jobs(job_file(job(topic, on_lost="skip")))
    empty_store.run_job("clicks")
    assert ids(empty_store) == [*range(10), *range(15, 20)]

    broker.delete(topic)
    broker.topic(1, name=topic)
    broker.send(topic, clicks(100, 103))
    with monkeypatch.context() as brokers:  # that are too old to tell the id of a topic
        brokers.setattr(KafkaStream, "_topic_id", lambda self, name: None)
        with pytest.raises(JobFailed, match="ends at offset 3, but was read up to 20"):
            empty_store.run_job("clicks")
    broker.send(topic, clicks(103, 130))  # more offsets than were read, yet another topic
    with pytest.raises(JobFailed, match="recreated"):
        empty_store.run_job("clicks")
    assert len(ids(empty_store)) == 15
    empty_store.register_jobs(job_file(job(topic, on_lost="skip", generation=2)))
    empty_store.run_job("clicks")
    assert ids(empty_store)[-30:] == list(range(100, 130))


def test_added_partitions_are_read_from_first_record(
    empty_store: FeatureStore, broker: Broker, job_file: JobFile
) -> None:
    topic = broker.topic(1)
    broker.send(topic, clicks(0, 10))
    registered(empty_store, broker, job_file(job(topic, begin="latest")))
    empty_store.run_job("clicks")
    assert ids(empty_store) == []
    broker.add_partitions(topic, 3)
    broker.send(topic, clicks(10, 40))
    empty_store.run_job("clicks")
    assert ids(empty_store) == list(range(10, 40))


def test_run_of_bad_records_fails_and_alerts(
    empty_store: FeatureStore, broker: Broker, job_file: JobFile
) -> None:
    topic = broker.topic(1)
    broker.send(topic, [click(number, user=number) for number in range(120)])
    empty_store.add_alert_channel("ops", "log")
    registered(empty_store, broker, job_file(job(topic, alert=["ops"])))
    with pytest.raises(JobFailed, match=r"120 of 120 .* \(120 records\): user is a number"):
        empty_store.run_job("clicks")
    assert len(quarantined(empty_store)) == 120
    (message,) = empty_store.get_alerts()
    assert (message.alert.event, message.alert.job) == ("begin", "clicks")
    broker.send(topic, clicks(200, 210))
    empty_store.run_job("clicks")
    events = sorted(message.alert.event for message in empty_store.get_alerts())
    assert events == ["begin", "end"]
    assert ids(empty_store) == list(range(200, 210))
