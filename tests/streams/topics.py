"""Topics of the test broker: create, fill, truncate and delete."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

CLICKS = '{"id": "int64", "user": "string", "at": "timestamp"}'


@dataclass(frozen=True)
class Broker:
    """The addresses of a broker with and without passwords, and test operations."""

    address: str
    secured: str = ""

    @property
    def uri(self) -> str:
        return f"kafka://{self.address}"

    def topic(self, partitions: int = 2, name: str | None = None, **config: str) -> str:
        """Create a topic and return its name."""
        from confluent_kafka.admin import NewTopic

        name = name or f"clicks-{uuid.uuid4().hex[:8]}"
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
        client = self._admin()  # completes its calls on deletion
        client.create_topics([new])[name].result()
        return name

    def add_user(self, name: str, password: str) -> None:
        """Create a user with SCRAM-SHA-256 authentication."""
        from confluent_kafka import admin

        credential = admin.ScramCredentialInfo(admin.ScramMechanism.SCRAM_SHA_256, 4096)
        upsertion = admin.UserScramCredentialUpsertion(name, credential, password.encode())
        client = self._admin()  # completes its calls on deletion
        client.alter_user_scram_credentials([upsertion])[name].result()

    def delete(self, topic: str) -> None:
        client = self._admin()  # completes its calls on deletion
        client.delete_topics([topic])[topic].result()

    def add_partitions(self, topic: str, partitions: int) -> None:
        from confluent_kafka.admin import NewPartitions

        client = self._admin()  # completes its calls on deletion
        client.create_partitions([NewPartitions(topic, partitions)])[topic].result()

    def cut(self, topic: str, partition: int, before: int) -> None:
        """Delete the records of a partition before an offset, like retention."""
        from confluent_kafka import TopicPartition

        expected = TopicPartition(topic, partition, before)
        client = self._admin()  # completes its calls on deletion
        client.delete_records([expected])[expected].result()

    def send(
        self, topic: str, values: Iterable[bytes | None], *, partition: int | None = None
    ) -> None:
        """Send values to each partition in turn, or all to one."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 5, "log_level": 0})
        partitions = self._partitions(topic)
        for number, value in enumerate(values):
            goes_to = number % partitions if partition is None else partition
            while True:
                try:
                    producer.produce(topic, value, partition=goes_to, key=str(number).encode())
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        producer.flush()

    def send_by_key(self, topic: str, records: Iterable[tuple[int, bytes | None]]) -> None:
        """Send the records of an integer key to one partition, in their order."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 5, "log_level": 0})
        partitions = self._partitions(topic)
        for key, value in records:
            while True:
                try:
                    producer.produce(
                        topic, value, partition=key % partitions, key=str(key).encode()
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        producer.flush()

    def _partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic, which may be 0 right after its creation."""
        client = self._admin()
        end = time.monotonic() + 30
        while True:
            result = len(client.list_topics(topic).topics[topic].partitions)
            if result or time.monotonic() > end:
                return result
            time.sleep(0.05)

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})


def click(number: int, **members: Any) -> bytes:
    """Return the JSON of a click."""
    day = 1 + number // 86_400 % 28
    timestamp = (
        f"2024-01-{day:02d}T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z"
    )
    actual: Mapping[str, Any] = {
        "id": number,
        "user": f"u{number % 97}",
        "at": timestamp,
        **members,
    }
    return json.dumps(actual).encode()


def clicks(first: int, last: int) -> list[bytes]:
    return [click(number) for number in range(first, last)]


def job(topic: str, **arguments: Any) -> str:
    """Return the line that defines the job "clicks" over a topic."""
    document = {
        "source": "events",
        "topic": topic,
        "schema": json.loads(CLICKS),
        "primary_key": "id",
        "event_time": "at",
        **arguments,
    }
    inputs = ", ".join(f"{name}={value!r}" for name, value in document.items())
    return f"clicks = featurestore.stream_job('clicks', {inputs})"
