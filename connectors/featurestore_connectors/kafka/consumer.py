"""Read the records of a topic with librdkafka, in batches up to predetermined end offsets.

Partitions and offsets come from the table's commits, not from the consumer group.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import (
    SourceTableNotFound,
    SourceUnavailable,
    did_you_mean,
    listing,
)
from featurestore.model.stream import StreamSpec
from featurestore.plugins.engine import Engine
from featurestore.plugins.source import MicroBatch, OffsetRange, SourceConfig, Topic
from featurestore_connectors.kafka import spark_stream
from featurestore_connectors.kafka.decoding import RECORDS
from featurestore_connectors.kafka.settings import (
    TIMEOUT_SECONDS,
    client_settings,
    import_client_library,
    to_store_error,
    translate_kafka_errors,
)

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

# Seconds that a new member waits for partitions. Partitions of a dead member are free after the
# session timeout.
_ASSIGNMENT_POLL_SECONDS = 30.0
_SESSION = 6.0


class Membership:
    """Membership in a consumer group, until it is closed."""

    def __init__(self, config: SourceConfig, group: str, topic: str) -> None:
        self._config = config
        self._partitions: frozenset[int] = frozenset()
        self._has_assignment = False
        # Heartbeats are sent at a third of the session timeout, as Kafka recommends.
        settings = {
            **client_settings(config),
            "group.id": group,
            "enable.auto.commit": False,
            "session.timeout.ms": int(_SESSION * 1000),
            "heartbeat.interval.ms": int(_SESSION * 1000 / 3),
            "partition.assignment.strategy": "range",
        }
        with translate_kafka_errors(config):
            self._consumer = import_client_library().Consumer(settings)
            self._consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def partitions(self) -> frozenset[int]:
        """Return the partitions of this member; the first call waits for the assignment."""
        started = time.monotonic()
        with translate_kafka_errors(self._config):
            # Polling runs the callbacks of rebalances and keeps the membership.
            self._consumer.poll(0)
            while (
                not self._has_assignment and time.monotonic() - started < _ASSIGNMENT_POLL_SECONDS
            ):
                self._consumer.poll(0.1)
        return self._partitions

    def close(self) -> None:
        """Leave the group, so that the other members take over the partitions."""
        self._consumer.close()

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.assign(partitions)
        # The membership only divides the partitions. Their records are read by another consumer.
        consumer.pause(partitions)
        self._partitions = frozenset(partition.partition for partition in partitions)
        self._has_assignment = True

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._partitions = self._partitions - frozenset(
            partition.partition for partition in partitions
        )
        self._has_assignment = False
        consumer.unassign()


# Maximum number of messages per consumer call.
_MAX_MESSAGES = 10_000
# Maximum bytes of a micro-batch with long records. The library buffers 64 MiB more.
_MAX_BATCH_BYTES = 256 << 20
# Seconds that a consumer call waits for messages.
_POLL_SECONDS = 0.05
# Seconds without a message or an end-of-partition event, after which a broker counts as
# unavailable.
_SILENCE_SECONDS = 30.0
# The library requires a group name, but the consumer never joins this group.
_GROUP = "featurestore"


class KafkaStream:
    """A connection to the brokers of a source."""

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._client: Consumer | None = None
        self._membership: Membership | None = None

    def topic(self, name: str) -> Topic:
        partitions_by_topic = self.topics()
        if name not in partitions_by_topic:
            raise SourceTableNotFound(
                f"Source {self._config.name!r}: unknown topic {name!r}. Available: "
                f"{listing(sorted(partitions_by_topic), limit=50)}.",
                hint=did_you_mean(name, sorted(partitions_by_topic), write="topic={!r}"),
            )
        library = import_client_library()
        ranges = {}
        for number in partitions_by_topic[name]:
            with translate_kafka_errors(self._config):
                partition = library.TopicPartition(name, number)
                first, end = self._new_consumer().get_watermark_offsets(
                    partition, timeout=TIMEOUT_SECONDS
                )
            ranges[number] = OffsetRange(first, end)
        return Topic(name, ranges, self._topic_id(name))

    def topics(self) -> Mapping[str, list[int]]:
        """Return the partitions of all topics, except internal topics."""
        with translate_kafka_errors(self._config):
            metadata = self._new_consumer().list_topics(timeout=TIMEOUT_SECONDS)
        return {
            name: sorted(topic.partitions)
            for name, topic in metadata.topics.items()
            if topic.error is None and not name.startswith("__")
        }

    def server(self) -> str:
        """Return a description of the cluster for display."""
        with translate_kafka_errors(self._config):
            brokers = self._new_consumer().list_topics(timeout=TIMEOUT_SECONDS).brokers
        return f"Kafka with {len(brokers)} brokers"

    def owned(self, spec: StreamSpec, partitions: Collection[int]) -> frozenset[int]:
        if spec.consumer_group is None:
            return frozenset(partitions)
        if self._membership is None:
            self._membership = Membership(self._config, spec.consumer_group, spec.topic)
        return self._membership.partitions() & frozenset(partitions)

    def batches(
        self, spec: StreamSpec, start: Mapping[int, int], end: Mapping[int, int], *, engine: Engine
    ) -> Iterator[MicroBatch]:
        if engine.name == "spark":
            yield from spark_stream.batches(self._config, spec, start, engine)
        else:
            yield from self.read_batches(spec, start, end)

    def batch(
        self, spec: StreamSpec, start: Mapping[int, int], end: Mapping[int, int], *, engine: Engine
    ) -> MicroBatch:
        if engine.name == "spark":
            return spark_stream.batch(self._config, spec, start, end, engine)
        # The limits are removed, since a replayed range must not be split.
        record_count = sum(end[number] - offset for number, offset in start.items())
        spec = replace(spec, batch_records=max(record_count, 1))
        (micro_batch,) = self.read_batches(spec, start, end, max_bytes=sys.maxsize)
        return micro_batch

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._membership is not None:
            self._membership.close()
            self._membership = None

    def read_batches(
        self,
        spec: StreamSpec,
        start: Mapping[int, int],
        end: Mapping[int, int],
        *,
        max_bytes: int | None = None,
    ) -> Iterator[MicroBatch]:
        """Yield the records from ``start`` to ``end`` as micro-batches of Arrow tables."""
        library = import_client_library()
        offsets = {number: offset for number, offset in start.items() if offset < end[number]}
        assigned = [
            library.TopicPartition(spec.topic, number, offset) for number, offset in offsets.items()
        ]
        consumer = self._new_consumer()
        with translate_kafka_errors(self._config):
            consumer.assign(assigned)
        open_partitions = set(offsets)
        timed = "timestamp" in spec.fields.values()
        while open_partitions:
            first_offsets = dict(offsets)
            buffer = _RecordBuffer(spec.batch_records, max_bytes or _MAX_BATCH_BYTES, timed=timed)
            self._fill_buffer(buffer, offsets, end, open_partitions)
            yield MicroBatch(buffer.table(spec.topic), first_offsets, dict(offsets))
        with translate_kafka_errors(self._config):
            consumer.unassign()

    def _fill_buffer(
        self,
        buffer: _RecordBuffer,
        offsets: dict[int, int],
        end: Mapping[int, int],
        open_partitions: set[int],
    ) -> None:
        """Buffer records until the buffer is full or all end offsets are reached."""
        consumer = self._new_consumer()
        last_message = time.monotonic()
        while open_partitions and buffer.remaining() > 0:
            message_count = min(_MAX_MESSAGES, buffer.remaining())
            with translate_kafka_errors(self._config):
                messages = consumer.consume(message_count, timeout=_POLL_SECONDS)
            records, ended = self._separate_events(messages, open_partitions)
            for number, last in buffer.add(records, end, open_partitions).items():
                offsets[number] = last + 1
            for number in ended:
                # The remaining offsets have no records: they are transaction markers or were
                # compacted.
                offsets[number] = end[number]
            open_partitions -= {
                number for number in open_partitions if offsets[number] >= end[number]
            }
            if messages:
                last_message = time.monotonic()
            elif time.monotonic() - last_message > _SILENCE_SECONDS:
                raise SourceUnavailable(
                    f"Source {self._config.name!r}: no record of partitions "
                    f"{listing(sorted(open_partitions))} arrived for {_SILENCE_SECONDS:.0f} seconds.",
                    hint=f"featurestore source check {self._config.name}",
                )

    def _separate_events(
        self, messages: list[Any], open_partitions: set[int]
    ) -> tuple[list[Message], set[int]]:
        """Separate the records from end-of-partition events."""
        records, ended = messages, set()
        errors = _call_each(messages, "error")
        if any(errors):  # rare: most calls return records only, which need no loop
            records = []
            for message, error in zip(messages, errors, strict=True):
                if error is None:
                    records.append(message)
                elif error.code() == import_client_library().KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise to_store_error(self._config, error)
        ended &= open_partitions
        return records, ended

    def _new_consumer(self) -> Consumer:
        """Return the consumer of this connection, which is created on first use."""
        if self._client is None:
            library = import_client_library()
            with translate_kafka_errors(self._config):
                self._client = library.Consumer(
                    {
                        **client_settings(self._config),
                        "group.id": _GROUP,
                        "enable.auto.commit": False,
                        # The last offsets of a partition may have no records, so its end is an
                        # event.
                        "enable.partition.eof": True,
                        # Records that retention has removed must not be skipped silently.
                        "auto.offset.reset": "error",
                        # Records of aborted transactions are not delivered.
                        "isolation.level": "read_committed",
                    }
                )
        return self._client

    def _topic_id(self, name: str) -> str | None:
        """Return the id of a topic, or None if the brokers do not support topic ids."""
        library = import_client_library()
        from confluent_kafka.admin import AdminClient

        client = AdminClient(client_settings(self._config))
        futures = client.describe_topics(
            library.TopicCollection([name]), request_timeout=TIMEOUT_SECONDS
        )
        with translate_kafka_errors(self._config):
            description = futures[name].result()
        # The id distinguishes a topic from a later topic with the same name.
        identity = getattr(description, "topic_id", None)
        return None if identity is None else str(identity)


def _call_each(messages: list[Message], method: str) -> list[Any]:
    """Call a method of each message and return the results."""
    return list(map(methodcaller(method), messages))


class _RecordBuffer:
    """A buffer for the records of one table. ``timed`` records keep their timestamps."""

    def __init__(self, max_records: int, max_bytes: int, *, timed: bool) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._timed = timed
        self._tables: list[pa.Table] = []
        self._rows = 0
        self._bytes = 0

    def remaining(self) -> int:
        """Return the number of records that still fit."""
        if self._bytes >= self._max_bytes:
            return 0
        return self._max_records - self._rows

    def add(
        self, messages: list[Message], end: Mapping[int, int], open_partitions: Collection[int]
    ) -> dict[int, int]:
        """Add messages of open partitions, up to their end offsets.

        Return the last offset of each partition.
        """
        if not messages:
            return {}
        times = pa.nulls(len(messages), TIMESTAMP)
        if self._timed:  # reading it costs as much as the rest of the record
            micros = [
                # The type of the timestamp is 0 if the record has none.
                millis * 1000 if timestamp_type else None
                for timestamp_type, millis in _call_each(messages, "timestamp")
            ]
            times = pa.array(micros, pa.int64()).cast(TIMESTAMP)
        columns = [
            pa.array(_call_each(messages, "partition"), pa.int32()),
            pa.array(_call_each(messages, "offset"), pa.int64()),
            times,
            pa.array(_call_each(messages, "key"), pa.binary()),
            pa.array(_call_each(messages, "value"), pa.binary()),
        ]
        records = pa.Table.from_arrays(columns, names=RECORDS.names[1:])
        last = {}
        last_offsets = records.group_by("partition").aggregate([("offset", "max")]).to_pylist()
        for row in last_offsets:
            number, offset = row["partition"], row["offset_max"]
            last_offset = -1
            if number in open_partitions:
                last[number] = last_offset = min(offset, end[number] - 1)
            # The library fetches records beyond the end offsets, which belong to a later run.
            if last_offset < offset:
                beyond = pc.and_(
                    pc.equal(records.column("partition"), number),
                    pc.greater(records.column("offset"), last_offset),
                )
                records = records.filter(pc.invert(beyond))
        self._tables.append(records)
        self._rows += records.num_rows
        self._bytes += records.nbytes
        return last

    def table(self, topic: str) -> pa.Table:
        """Return the buffered records as a table."""
        if not self._tables:
            return RECORDS.empty_table()
        records = pa.concat_tables(self._tables)
        names = pa.repeat(pa.scalar(topic), self._rows)
        return records.add_column(0, RECORDS.field("topic"), names).cast(RECORDS)
