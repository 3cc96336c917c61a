"""Records of a topic by librdkafka, in batches whose ends are chosen before they are read.

The consumer is told the partitions and offsets to read: what the table says, not what the group
has committed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from operator import methodcaller
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from featurestore.errors import (
    SourceTableNotFound,
    SourceUnavailable,
    did_you_mean,
    listing,
)
from featurestore.model.stream import StreamSpec
from featurestore.model.types import TIMESTAMP
from featurestore.plugins.engine import Engine
from featurestore.plugins.source import SourceConfig
from featurestore.plugins.stream import MicroBatch, OffsetRange, Topic
from featurestore_connectors.kafka import spark_stream
from featurestore_connectors.kafka.decoding import RECORDS
from featurestore_connectors.kafka.membership import Membership
from featurestore_connectors.kafka.settings import (
    PATIENCE,
    client_library,
    client_settings,
    failure,
    translated,
)

# Messages that one call hands over.
_AT_ONCE = 10_000
# A micro-batch of long records ends where it has so many bytes; the library keeps 64 MiB more ready.
_MOST_BYTES = 256 << 20
# Seconds that a call waits for all of them.
_WAIT = 0.05
# Seconds without a message or an end after which a broker is said not to answer.
_SILENCE = 30.0
# The group is never joined: the library wants one to be named.
_GROUP = "featurestore"


class KafkaStream:
    """A connection to the brokers of a source."""

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._held: Any = None
        self._membership: Membership | None = None

    def topic(self, name: str) -> Topic:
        known = self.topics()
        if name not in known:
            raise SourceTableNotFound(
                f"Source {self._config.name!r} has no topic {name!r}; it has "
                f"{listing(sorted(known), limit=50)}.",
                hint=did_you_mean(name, sorted(known), write="topic={!r}"),
            )
        library = client_library()
        ranges = {}
        for number in known[name]:
            with translated(self._config):
                partition = library.TopicPartition(name, number)
                first, end = self._consumer().get_watermark_offsets(partition, timeout=PATIENCE)
            ranges[number] = OffsetRange(first, end)
        return Topic(name, ranges, self._identity(name))

    def topics(self) -> Mapping[str, list[int]]:
        """Return the partitions of every topic that people made."""
        with translated(self._config):
            told = self._consumer().list_topics(timeout=PATIENCE)
        found = {}
        for name, topic in told.topics.items():
            if topic.error is None and not name.startswith("__"):
                found[name] = sorted(topic.partitions)
        return found

    def server(self) -> str:
        """Return what answered, for people."""
        with translated(self._config):
            brokers = self._consumer().list_topics(timeout=PATIENCE).brokers
        return f"Kafka of {len(brokers)} brokers"

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
            yield from self.consumed(spec, start, end)

    def batch(
        self, spec: StreamSpec, start: Mapping[int, int], end: Mapping[int, int], *, engine: Engine
    ) -> MicroBatch:
        if engine.name == "spark":
            return spark_stream.batch(self._config, spec, start, end, engine)
        whole = sum(end[number] - offset for number, offset in start.items())
        spec = replace(spec, batch_records=max(whole, 1))
        (found,) = self.consumed(spec, start, end, most_bytes=sys.maxsize)
        return found

    def close(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None
        if self._membership is not None:
            self._membership.close()
            self._membership = None

    def consumed(
        self,
        spec: StreamSpec,
        start: Mapping[int, int],
        end: Mapping[int, int],
        *,
        most_bytes: int | None = None,
    ) -> Iterator[MicroBatch]:
        """Yield the records from ``start`` to ``end`` as Arrow tables."""
        library = client_library()
        at = {number: offset for number, offset in start.items() if offset < end[number]}
        assigned = []
        for number, offset in at.items():
            assigned.append(library.TopicPartition(spec.topic, number, offset))
        consumer = self._consumer()
        with translated(self._config):
            consumer.assign(assigned)
        open_partitions = set(at)
        timed = "timestamp" in spec.fields.values()
        while open_partitions:
            begun = dict(at)
            gathered = _Gathered(spec.batch_records, most_bytes or _MOST_BYTES, timed=timed)
            self._fill(gathered, at, end, open_partitions)
            yield MicroBatch(gathered.table(spec.topic), begun, dict(at))
        with translated(self._config):
            consumer.unassign()

    def _fill(
        self,
        gathered: _Gathered,
        at: dict[int, int],
        end: Mapping[int, int],
        open_partitions: set[int],
    ) -> None:
        """Gather records until there is no room for more, or all ends are reached."""
        consumer = self._consumer()
        heard = time.monotonic()
        while open_partitions and gathered.room() > 0:
            wanted = min(_AT_ONCE, gathered.room())
            with translated(self._config):
                messages = consumer.consume(wanted, timeout=_WAIT)
            records, ended = self._sorted_out(messages, open_partitions)
            for number, last in gathered.add(records, end, open_partitions).items():
                at[number] = last + 1
            for number in ended:
                # What lies between holds no record: a transaction's mark, or it was compacted.
                at[number] = end[number]
            open_partitions -= {number for number in open_partitions if at[number] >= end[number]}
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > _SILENCE:
                raise SourceUnavailable(
                    f"Source {self._config.name!r}: no record of partitions "
                    f"{listing(sorted(open_partitions))} came for {_SILENCE:.0f} seconds.",
                    hint=f"featurestore source check {self._config.name}",
                )

    def _sorted_out(
        self, messages: list[Any], open_partitions: set[int]
    ) -> tuple[list[Any], set[int]]:
        """Return the records, and the partitions that are read and end there."""
        records, ended = messages, set()
        errors = _told(messages, "error")
        if any(errors):  # rare: most calls give records alone, which are not looked at one by one
            records = []
            for message, error in zip(messages, errors, strict=True):
                if error is None:
                    records.append(message)
                elif error.code() == client_library().KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise failure(self._config, error)
        ended &= open_partitions
        return records, ended

    def _consumer(self) -> Any:
        if self._held is None:
            library = client_library()
            with translated(self._config):
                self._held = library.Consumer(
                    {
                        **client_settings(self._config),
                        "group.id": _GROUP,
                        "enable.auto.commit": False,
                        "enable.partition.eof": True,
                        "auto.offset.reset": "error",
                        "isolation.level": "read_committed",
                    }
                )
        return self._held

    def _identity(self, name: str) -> str | None:
        """Return the id that a topic got when it was made; None where brokers are too old."""
        library = client_library()
        from confluent_kafka.admin import AdminClient

        client = AdminClient(client_settings(self._config))
        asked = client.describe_topics(library.TopicCollection([name]), request_timeout=PATIENCE)
        with translated(self._config):
            told = asked[name].result()
        identity = getattr(told, "topic_id", None)
        return None if identity is None else str(identity)


def _told(messages: list[Any], what: str) -> list[Any]:
    """Return what each of some messages tells."""
    return list(map(methodcaller(what), messages))


class _Gathered:
    """Records on their way into one table; ``timed`` ones with their timestamps."""

    def __init__(self, most_records: int, most_bytes: int, *, timed: bool) -> None:
        self._most_records = most_records
        self._most_bytes = most_bytes
        self._timed = timed
        self._parts: list[pa.Table] = []
        self._rows = 0
        self._bytes = 0

    def room(self) -> int:
        """Return how many more records are taken: none where they have enough bytes."""
        if self._bytes >= self._most_bytes:
            return 0
        return self._most_records - self._rows

    def add(
        self, messages: list[Any], end: Mapping[int, int], open_partitions: Collection[int]
    ) -> dict[int, int]:
        """Take the messages of partitions that are open, up to their ends.

        Returns the last offset of each partition.
        """
        if not messages:
            return {}
        times = pa.nulls(len(messages), TIMESTAMP)
        if self._timed:  # asking for it costs as much as the rest of the record
            micros: list[int | None] = []
            for kind, millis in _told(messages, "timestamp"):
                micros.append(millis * 1000 if kind else None)
            times = pa.array(micros, pa.int64()).cast(TIMESTAMP)
        columns = [
            pa.array(_told(messages, "partition"), pa.int32()),
            pa.array(_told(messages, "offset"), pa.int64()),
            times,
            pa.array(_told(messages, "key"), pa.binary()),
            pa.array(_told(messages, "value"), pa.binary()),
        ]
        part = pa.Table.from_arrays(columns, names=RECORDS.names[1:])
        last = {}
        greatest = part.group_by("partition").aggregate([("offset", "max")]).to_pylist()
        for row in greatest:
            number, offset = row["partition"], row["offset_max"]
            taken = -1
            if number in open_partitions:
                last[number] = taken = min(offset, end[number] - 1)
            if taken < offset:
                beyond = pc.and_(
                    pc.equal(part.column("partition"), number),
                    pc.greater(part.column("offset"), taken),
                )
                part = part.filter(pc.invert(beyond))
        self._parts.append(part)
        self._rows += part.num_rows
        self._bytes += part.nbytes
        return last

    def table(self, topic: str) -> pa.Table:
        """Return what was taken."""
        if not self._parts:
            return RECORDS.empty_table()
        whole = pa.concat_tables(self._parts)
        names = pa.repeat(pa.scalar(topic), self._rows)
        return whole.add_column(0, RECORDS.field("topic"), names).cast(RECORDS)
