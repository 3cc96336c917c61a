"""Stream status: lag, rate and last commit, also restored from the table."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from featurestore.cli.main import app
from featurestore.jobs.scheduler import Options
from featurestore.store import FeatureStore
from tests.streams.topics import Broker, clicks, job

JobFile = Callable[[str], Path]

HOURLY = """
clicks_hourly = featurestore.sql_job(
    "clicks_hourly",
    sql='''
        select 'all' as site, date_trunc('hour', "at") + interval 1 hour as hour, count(*) as clicks
        from clicks group by all
    ''',
    primary_key="site",
    event_time="hour",
    schedule="0 * * * *",
    start="2024-01-01T00:00Z",
    allowed_lateness="15min",
    inputs={"clicks": "clicks"},
)
"""


def invoke_json(location: str, *words: str) -> object:
    result = CliRunner().invoke(app, ["--location", location, "--output", "json", *words])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_stream_status_is_shown_in_lists_and_metrics(
    empty_store: FeatureStore,
    broker: Broker,
    job_file: JobFile,
) -> None:
    topic = broker.topic(2)
    broker.send(topic, [*clicks(0, 20), b"poison"])
    empty_store.add_source("events", broker.uri)
    empty_store.register_jobs(job_file(job(topic)))
    assert empty_store.get_jobs()[0].stream is None
    empty_store.run_job("clicks")
    (status,) = empty_store.get_jobs()
    assert status.stream is not None
    assert (status.stream.lag, status.stream.bad_records) == (0, 1)
    assert status.stream.rows_per_second
    assert [(position.partition, position.offset) for position in status.stream.offsets] == [
        (0, 11),
        (1, 10),
    ]
    assert 'stream_lag_records{job="clicks"} 0.0' in empty_store.get_metrics()
    (line,) = invoke_json(empty_store.location, "job", "list")  # type: ignore[misc]
    assert (line["lag"], line["schedule"]) == (0, "every 10s")
    shown = invoke_json(empty_store.location, "fg", "show", "clicks")
    assert shown["stream"]["bad_records"] == 1  # type: ignore[index]


def test_scheduler_runs_stream_after_trigger_interval(
    empty_store: FeatureStore, broker: Broker, job_file: JobFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    from featurestore.model import times

    topic = broker.topic(1)
    broker.send(topic, clicks(0, 5))
    empty_store.add_source("events", broker.uri)
    empty_store.register_jobs(job_file(job(topic, trigger="30s")))
    scheduler = empty_store.scheduler(Options())
    scheduler.run_due()
    broker.send(topic, clicks(5, 9))
    scheduler.run_due()
    group = empty_store.featuregroup("clicks")
    assert group.read().count() == 5
    real = times.utc_now
    monkeypatch.setattr(times, "utc_now", lambda: real() + timedelta(seconds=31))
    scheduler.run_due()
    assert group.read().count() == 9


def test_late_records_mark_windows_stale(
    empty_store: FeatureStore, broker: Broker, job_file: JobFile
) -> None:
    topic = broker.topic(1)
    broker.send(topic, clicks(0, 3600))
    empty_store.add_source("events", broker.uri)
    empty_store.register_jobs(job_file(job(topic) + HOURLY))
    empty_store.run_job("clicks")
    empty_store.backfill_job("clicks_hourly", "2024-01-01T00:00Z", "2024-01-01T02:00Z")
    assert empty_store.run_job("clicks_hourly", stale=True) == []
    watermark = {status.name: status.job.watermark for status in empty_store.get_jobs()}
    assert watermark["clicks_hourly"] == datetime.fromisoformat("2024-01-01T02:00Z")
    broker.send(topic, [record.replace(b'"id": ', b'"id": 99') for record in clicks(0, 10)])
    empty_store.run_job("clicks")
    (run,) = empty_store.run_job("clicks_hourly", stale=True)
    assert run.window.start == datetime.fromisoformat("2024-01-01T00:00Z")
    rows = empty_store.get_featuregroup("clicks_hourly").to_arrow().to_pylist()
    assert rows[0]["clicks"] == 3610


def test_stream_status_is_rebuilt_from_commits(
    empty_store: FeatureStore,
    broker: Broker,
    job_file: JobFile,
) -> None:
    import featurestore

    topic = broker.topic(2)
    broker.send(topic, [*clicks(0, 20), b"poison"])
    empty_store.add_source("events", broker.uri)
    file = job_file(job(topic))
    empty_store.register_jobs(file)
    empty_store.run_job("clicks")
    location = empty_store.location
    empty_store.close()
    for path in Path(location).glob("registry*"):
        path.unlink()
    invoke_json(location, "registry", "rebuild")
    store = featurestore.connect(location, engine="duckdb")
    store.add_source("events", broker.uri)
    store.register_jobs(file)
    (status,) = store.get_jobs()
    assert status.stream is not None
    assert [position.offset for position in status.stream.offsets] == [11, 10]
    assert status.stream.bad_records == 1
    assert [run.rows for run in store.get_runs("clicks")] == [20]
    broker.send(topic, clicks(20, 30))
    store.run_job("clicks")
    assert store.featuregroup("clicks").read().count() == 30
    store.close()
