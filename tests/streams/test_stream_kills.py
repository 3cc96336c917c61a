"""kill -9 at random times: no record is lost or duplicated, and all are published."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from featurestore.store import FeatureStore
from tests.forked_processes import kill
from tests.streams.killed_streams import count_click_ids, start
from tests.streams.topics import Broker, click, job

pytestmark = pytest.mark.services

JobFile = Callable[[str], Path]


def values(records: int) -> list[bytes]:
    """Return clicks, every fiftieth of which is invalid."""
    result = []
    for number in range(records):
        result.append(f"poison {number}".encode() if number % 50 == 7 else click(number))
    return result


def share(records: list[bytes], number: int, kills: int) -> list[bytes]:
    """Return the records to send before a kill, so that each runner has unread records."""
    return records[number * len(records) // kills : (number + 1) * len(records) // kills]


def killed_in_turns(
    store: FeatureStore, broker: Broker, job_file: JobFile, *, records: int, kills: int, batch: int
) -> None:
    """Repeatedly kill one of two runners that share the partitions."""
    topic = broker.topic(4)
    inputs = values(records)
    store.add_source("events", broker.uri)
    text = job(topic, statistics=False, batch_records=batch, consumer_group=f"{topic}-readers")
    file = job_file(text)
    store.register_jobs(file)
    runners = [start(store, file.parent), start(store, file.parent)]
    for number in range(kills):
        broker.send(topic, share(inputs, number, kills))
        process, ready = runners.pop(0)
        while not ready.exists():
            time.sleep(0.01)
        time.sleep(random.uniform(0, 1.5))
        kill(process)
        runners.append(start(store, file.parent))
    for process, _ in runners:
        kill(process)
    time.sleep(7)  # until the consumer group has removed the dead members
    while store.run_job("clicks"):
        pass
    result = count_click_ids(store)
    lost = [number for number in range(records) if result[number] == 0]
    doubled = [number for number, count in result.items() if count > 1]
    assert (len(lost), len(doubled)) == (0, 0), f"{lost[:10]}, {doubled[:10]}"


def killed(
    store: FeatureStore,
    broker: Broker,
    job_file: JobFile,
    *,
    records: int,
    kills: int,
    **job_is: object,
) -> None:
    """Kill runners of a job at random times, and count the rows of its tables at the end."""
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    topic = broker.topic(4)
    inputs = values(records)
    store.add_source("events", broker.uri)
    file = job_file(job(topic, statistics=False, publish=["users"], **job_is))
    store.register_jobs(file)
    store.run_job("clicks")  # creates the group
    view = store.create_feature_view("users", features=["clicks.user"])
    folder = file.parent
    for number in range(kills):
        broker.send(topic, share(inputs, number, kills))
        process, ready = start(store, folder)
        while not ready.exists():
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 1.5))
        kill(process)
    store.run_job("clicks")
    result = count_click_ids(store)
    lost = [number for number in range(records) if result[number] == 0]
    doubled = [number for number, count in result.items() if count > 1]
    assert (len(lost), len(doubled)) == (0, 0), f"seed {seed}: {lost[:10]}, {doubled[:10]}"
    assert [lag.commits for lag in view.online_lag()] == [0]
    assert view.verify_online().ok


@pytest.mark.slow
def test_three_kills_write_each_record_once(
    empty_store: FeatureStore, broker: Broker, job_file: JobFile
) -> None:
    killed(empty_store, broker, job_file, records=4000, kills=3, batch_records=150)


@pytest.mark.soak
def test_hundred_kills_write_each_record_once(
    empty_store: FeatureStore, broker: Broker, job_file: JobFile
) -> None:
    killed(empty_store, broker, job_file, records=200_000, kills=100, batch_records=200)


@pytest.mark.soak
def test_hundred_kills_with_shared_partitions_write_records_once(
    empty_store: FeatureStore, broker: Broker, job_file: JobFile
) -> None:
    killed_in_turns(empty_store, broker, job_file, records=200_000, kills=100, batch=200)
