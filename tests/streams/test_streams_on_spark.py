"""Streams on Spark by Structured Streaming equal those of the embedded engine."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import featurestore
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import EngineError
from featurestore.featuregroups.table import open_group
from featurestore.model.stream import StreamSpec
from featurestore.plugins.source import SourceConfig
from featurestore.store import FeatureStore
from featurestore_connectors.kafka import spark_stream
from tests.on_spark import INTERPRETED_QUERIES
from tests.streams import kafka_server
from tests.streams.conftest import Landings
from tests.streams.kafka_server import PASSWORD, USER
from tests.streams.killed_streams import count_click_ids
from tests.streams.test_passwords import options
from tests.streams.test_stream_kills import share, values
from tests.streams.topics import Broker, click, clicks, job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JobFile = Callable[[str], Path]

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        not kafka_server.spark_jars(),
        reason="Kafka suite skipped: python -m tests.fetch fetches Spark's reader",
    ),
]


@pytest.fixture
def spark_store(spark: SparkSession, tmp_path: Path) -> FeatureStore:
    return featurestore.connect(tmp_path / "store", engine="spark")


def test_spark_stream_resumes_from_table_of_either_engine(
    spark_store: FeatureStore, broker: Broker, job_file: JobFile, landings: Landings
) -> None:
    """In micro-batches of the configured size, with the lag reported meanwhile."""
    topic = broker.topic(2)
    broker.send(topic, [*clicks(0, 7), b"poison 7", *clicks(8, 40)])
    spark_store.add_source("events", broker.uri)
    spark_store.register_jobs(job_file(job(topic, batch_records=25)))
    (run,) = spark_store.run_job("clicks")
    assert (run.state, run.rows) == ("done", 39)
    assert max(landings.rows) <= 25
    assert landings.lags[0] == 40
    assert landings.lags == sorted(set(landings.lags), reverse=True)
    broker.send(topic, clicks(40, 50))
    embedded = featurestore.connect(spark_store.location, engine="duckdb")
    embedded.run_job("clicks")
    broker.send(topic, clicks(50, 60))
    (run,) = spark_store.run_job("clicks")
    assert run.rows == 10
    actual = count_click_ids(embedded)
    assert actual == dict.fromkeys(range(60), 1)
    assert spark_store.run_job("clicks") == []
    embedded.close()


@pytest.mark.parametrize(
    ("mechanism", "user", "password"),
    [
        pytest.param("PLAIN", USER, PASSWORD, marks=pytest.mark.soak),
        ("SCRAM-SHA-256", "on spark", 'a "quoted" \\ one;'),
    ],
)
def test_spark_stream_authenticates_with_referenced_secret(
    spark_store: FeatureStore,
    broker: Broker,
    job_file: JobFile,
    monkeypatch: pytest.MonkeyPatch,
    mechanism: str,
    user: str,
    password: str,
) -> None:
    topic = broker.topic(2)
    broker.send(topic, clicks(0, 30))
    if mechanism != "PLAIN":
        broker.add_user(user, password)
    monkeypatch.setenv("EVENTS_PASSWORD", password)
    uri, login = f"kafka://{broker.secured}", options(mechanism, user)
    spark_store.add_source("events", uri, secret="env:EVENTS_PASSWORD", options=login)
    spark_store.register_jobs(job_file(job(topic, batch_records=20)))
    (run,) = spark_store.run_job("clicks")
    assert (run.state, run.rows) == ("done", 30)
    files = [path for path in Path(spark_store.location).rglob("*") if path.is_file()]
    assert not [path for path in files if password.encode() in path.read_bytes()]


def test_spark_stream_wrong_password_error_omits_password(
    spark_store: FeatureStore, broker: Broker
) -> None:
    topic = broker.topic(1)
    broker.send(topic, clicks(0, 5))
    config = SourceConfig(
        "events", f"kafka://{broker.secured}", options("PLAIN", USER), lambda: "wr0ng&guess"
    )
    spec = StreamSpec("events", topic, pa.schema([("id", pa.int64())]))
    engine = spark_store.session.engine
    with pytest.raises(EngineError, match=topic) as caught:
        list(spark_stream.batches(config, spec, {0: 0}, engine))
    assert "wr0ng" not in f"{caught.value!r} {caught.value}"


_RUNNER = """
import json, sys, featurestore
from pyspark.sql import SparkSession
from featurestore.streams import loop
from featurestore_connectors.spark_delta import configure_session
location, commits, settings = sys.argv[1:]
builder = SparkSession.builder.master("local[1]")
for key, value in json.loads(settings).items():
    builder = builder.config(key, value)
configure_session(builder).getOrCreate().sparkContext.setLogLevel("ERROR")
store = featurestore.connect(location, engine="spark")
land = loop.commit_micro_batch
def counted(*given, **named):
    landed = land(*given, **named)
    with open(commits, "a") as file:
        file.write(f"{landed.delta_version}\\n")
    return landed
loop.commit_micro_batch = counted
while True:
    try:
        store.run_job("clicks")
    except featurestore.errors.FeatureStoreError:  # another runner may be in the way
        pass
"""
_PATIENCE = 600.0


class SparkRunner:
    """A process with its own JVM that runs the job until it is killed.

    Args:
        store: The store, and the job in it.
        commits: The file to which the process writes the version of each commit.
        settings: More settings of the session.
    """

    def __init__(self, store: FeatureStore, commits: Path, settings: Mapping[str, str]) -> None:
        self._commits = commits
        settings_of_tests = {
            "spark.jars": ",".join(map(str, kafka_server.spark_jars())),
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": "1",
            "spark.databricks.delta.snapshotPartitions": "1",
        }
        session_settings = json.dumps({**settings_of_tests, **settings})
        self._process = subprocess.Popen(
            [sys.executable, "-c", _RUNNER, store.location, str(commits), session_settings],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def commits(self) -> int:
        """Return the number of micro-batches that this process has committed."""
        if not self._commits.exists():
            return 0
        return len(self._commits.read_text().splitlines())

    def wait_for_a_commit(self) -> None:
        """Return once this process has committed a micro-batch."""
        start = time.monotonic()
        while self.commits() == 0 and time.monotonic() - start < _PATIENCE:
            assert self._process.poll() is None, "the runner ended"
            time.sleep(0.02)

    def kill(self) -> None:
        """Send SIGKILL to the process and to its JVM, which would outlive it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def unread(store: FeatureStore, topic: str, sent_count: int) -> int:
    """Return the number of sent records of a topic that are in no commit."""
    transactions = read_snapshot(open_group(store.session, "clicks", 1).path).transactions
    stream = StreamSpec("events", topic, pa.schema([("id", pa.int64())]))
    return sent_count - sum(transactions.get(stream.app(number), 0) for number in range(4))


def share_partitions(broker: Broker, topic: str, *, seconds: float) -> None:
    """Join the consumer group for some seconds, which takes partitions from the others."""
    from confluent_kafka import Consumer

    settings = {
        "bootstrap.servers": broker.address,
        "group.id": f"{topic}-readers",
        "enable.auto.commit": False,
        "partition.assignment.strategy": "range",
        "log_level": 0,
    }
    end = time.monotonic() + seconds
    consumer = Consumer(settings)
    try:
        consumer.subscribe([topic], on_assign=lambda _, partitions: consumer.pause(partitions))
        while time.monotonic() < end:
            consumer.poll(0.05)
    finally:
        consumer.close()


def kill_runners(
    store: FeatureStore,
    broker: Broker,
    file: JobFile,
    *,
    records: int,
    kills: int,
    batch: int,
) -> None:
    """Kill Spark runners at random after their first commit; the embedded engine finishes.

    All commits are published. Every second one is killed while its partitions are shared out anew.
    """
    topic = broker.topic(4)
    inputs = values(records)
    settings = INTERPRETED_QUERIES if kills == 1 else {}
    store.add_source("events", broker.uri)
    shared = {"consumer_group": f"{topic}-readers"} if kills > 1 else {}
    path = file(job(topic, statistics=False, batch_records=batch, publish=["users"], **shared))
    store.register_jobs(path)
    store.run_job("clicks")  # creates the group
    view = store.create_feature_view("users", features=["clicks.user"])
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    sent_count, after_commits, at_work = 0, 0, 0
    for number in range(kills):
        records_of_turn = share(inputs, number, kills)
        broker.send(topic, records_of_turn)
        sent_count += len(records_of_turn)
        runner = SparkRunner(store, path.parent / f"commits-{number}", settings)
        try:
            runner.wait_for_a_commit()
            seconds = rng.uniform(0, 3)
            if number % 2:
                share_partitions(broker, topic, seconds=seconds)
            else:
                time.sleep(seconds)
        finally:
            runner.kill()
        after_commits += runner.commits() > 0
        at_work += unread(store, topic, sent_count) > 0
        message = f"{number + 1} kills, {after_commits} after a commit, {at_work} at work"
        (path.parent / "kills.txt").write_text(f"seed {seed}: {message}\n")
    assert after_commits == kills
    assert at_work > kills // 2
    if shared:
        time.sleep(7)  # until the consumer group has removed the dead members
    while store.run_job("clicks"):
        pass
    assert count_click_ids(store) == dict.fromkeys(range(records), 1)
    assert [lag.commits for lag in view.online_lag()] == [0]
    assert view.verify_online().ok


@pytest.mark.slow
def test_killed_spark_stream_writes_each_record_once(
    empty_store: FeatureStore, broker: Broker, job_file: JobFile
) -> None:
    kill_runners(empty_store, broker, job_file, records=4000, kills=1, batch=200)


@pytest.mark.soak
@pytest.mark.parametrize("ten", range(1, 11))
def test_hundred_killed_spark_streams_write_records_once(
    empty_store: FeatureStore, broker: Broker, job_file: JobFile, ten: int
) -> None:
    del ten  # each ten of the hundred has a store and a topic of its own
    kill_runners(empty_store, broker, job_file, records=20_000, kills=10, batch=500)


def random_changes(rng: random.Random, count: int) -> list[tuple[int, bytes | None]]:
    """Return keys with changed clicks, tombstones and invalid values, in the order of sending."""
    keys, changes = count // 20, list[tuple[int, bytes | None]]()
    for number in range(count):
        key, form = rng.randrange(keys), rng.random()
        value: bytes | None = click(
            key, user=f"u{number}", at=f"2024-01-0{rng.randint(1, 3)}T00:00:00Z"
        )
        if form < 0.03:
            value = None
        elif form < 0.04:
            value = f"poison {number}".encode()
        changes.append((key, value))
    return changes


def final_clicks(changes: list[tuple[int, bytes | None]]) -> tuple[list[tuple[int, str, str]], int]:
    """Return the rows after all changes, and the number of invalid values."""
    rows: dict[int, dict[str, str]] = {}
    invalid_count = 0
    for key, value in changes:
        if value is None:
            rows.pop(key, None)
        elif value.startswith(b"poison"):
            invalid_count += 1
        else:
            document = json.loads(value)
            rows.setdefault(key, {})[document["at"][:10]] = document["user"]
    final_rows = [(key, day, user) for key, row in rows.items() for day, user in row.items()]
    return sorted(final_rows), invalid_count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("records", "kills", "batch"),
    [
        (3_000, 1, 500),
        pytest.param(300_000, 10, 5_000, marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
    ],
)
def test_killed_upsert_stream_on_spark_equals_model(
    empty_store: FeatureStore,
    broker: Broker,
    job_file: JobFile,
    records: int,
    kills: int,
    batch: int,
) -> None:
    """Runners are killed at random; the embedded engine computes the last micro-batches."""
    rng = random.Random(f"upserts/{records}")
    changes = random_changes(rng, records)
    settings = INTERPRETED_QUERIES if kills == 1 else {}
    topic = broker.topic(4)
    empty_store.add_source("events", broker.uri)
    path = job_file(job(topic, mode="upsert", statistics=False, batch_records=batch))
    empty_store.register_jobs(path)
    after_commits, start = 0, time.monotonic()
    for number in range(kills):
        first, last = (turn * records // kills for turn in (number, number + 1))
        broker.send_by_key(topic, changes[first:last])
        runner = SparkRunner(empty_store, path.parent / f"commits-{number}", settings)
        try:
            runner.wait_for_a_commit()
            time.sleep(rng.uniform(0, min(kills, 5)))
        finally:
            runner.kill()
        after_commits += runner.commits()
    while empty_store.run_job("clicks"):
        pass
    rows = empty_store.get_featuregroup("clicks").to_arrow().to_pylist()
    expected_rows, invalid_count = final_clicks(changes)
    assert sorted((row["id"], row["at"].date().isoformat(), row["user"]) for row in rows) == (
        expected_rows
    )
    path_of_invalid = empty_store.session.quarantine_path("clicks", 1)
    assert sum(file.rows for file in read_snapshot(path_of_invalid).files) == invalid_count
    seconds = time.monotonic() - start
    print(f"{records} records, {kills} kills, {after_commits} commits of Spark, {seconds:.0f} s")
