"""Brokers with passwords, which are references and never stored or shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from featurestore.errors import SourceUnavailable
from featurestore.store import FeatureStore
from featurestore_connectors.kafka import consumer
from tests.streams.kafka_server import PASSWORD, USER
from tests.streams.topics import Broker, clicks, job

JobFile = Callable[[str], Path]


def options(mechanism: str, user: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
    }


@pytest.mark.parametrize(("mechanism", "user"), [("PLAIN", USER), ("SCRAM-SHA-256", "scram")])
def test_stream_authenticates_with_referenced_secret(
    empty_store: FeatureStore,
    broker: Broker,
    job_file: JobFile,
    monkeypatch: pytest.MonkeyPatch,
    mechanism: str,
    user: str,
) -> None:
    store, topic = empty_store, broker.topic(2)
    broker.send(topic, clicks(0, 20))
    broker.add_user("scram", PASSWORD)
    monkeypatch.setenv("EVENTS_PASSWORD", PASSWORD)
    store.add_source(
        "events",
        f"kafka://{broker.secured}",
        secret="env:EVENTS_PASSWORD",
        options=options(mechanism, user),
    )
    assert store.check_source("events").ok
    text = job(topic, consumer_group=f"{topic}-readers")
    store.register_jobs(job_file(text))
    (run,) = store.run_job("clicks")
    assert run.rows == 20
    files = [path for path in Path(store.location).rglob("*") if path.is_file()]
    assert not [path for path in files if PASSWORD.encode() in path.read_bytes()]


def test_wrong_password_error_omits_password(
    empty_store: FeatureStore, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "TIMEOUT_SECONDS", 2.0)
    monkeypatch.setenv("EVENTS_PASSWORD", "wr0ng&guess")
    empty_store.add_source(
        "events",
        f"kafka://{broker.secured}",
        secret="env:EVENTS_PASSWORD",
        options=options("PLAIN", USER),
    )
    with pytest.raises(SourceUnavailable, match="reject the user") as caught:
        empty_store.read_source("events", table="clicks")
    assert "wr0ng&guess" not in f"{caught.value!r} {caught.value}"
