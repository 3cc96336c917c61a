"""Topics in memory, read in micro-batches that a test defines."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from featurestore.jobs.target import declaration, find_target
from featurestore.model.job import JobSpec, StreamWork
from featurestore.model.stream import StreamSpec
from featurestore.plugins.engine import BatchFunction, Engine
from featurestore.plugins.source import DecoderRequest, MicroBatch, OffsetRange, Topic
from featurestore.store import FeatureStore
from featurestore.streams import Progress, StreamTarget, consume, loop
from featurestore_connectors.kafka import decoding

Record = tuple[bytes | None, bytes | None]  # key, value


@dataclass
class MemoryTopics:
    """A source with one topic whose micro-batches have ``sizes`` records in turn."""

    partitions: Sequence[list[Record]]
    sizes: Sequence[int] = (1000,)
    reads: list[int] = field(default_factory=list)

    def stream(self) -> MemoryTopics:
        return self

    def decoder(self, spec: StreamSpec, request: DecoderRequest) -> BatchFunction:
        return decoding.decoder(spec, request)

    def decoded_schema(self, spec: StreamSpec) -> pa.Schema:
        return decoding.decoded_schema(spec)

    def topic(self, name: str) -> Topic:
        ranges = {}
        for number, records in enumerate(self.partitions):
            ranges[number] = OffsetRange(0, len(records))
        return Topic(name, ranges)

    def owned(self, spec: StreamSpec, partitions: Collection[int]) -> frozenset[int]:
        return frozenset(partitions)

    def batches(
        self, spec: StreamSpec, start: Mapping[int, int], end: Mapping[int, int], *, engine: Engine
    ) -> Iterator[MicroBatch]:
        offsets, turn = dict(start), 0
        while any(offsets[number] < end[number] for number in offsets):
            room, first = self.sizes[turn % len(self.sizes)], dict(offsets)
            for number in offsets:
                count = min(room, end[number] - offsets[number])
                offsets[number] += count
                room -= count
            yield self.batch(spec, first, offsets, engine=engine)
            turn += 1

    def batch(
        self, spec: StreamSpec, start: Mapping[int, int], end: Mapping[int, int], *, engine: Engine
    ) -> MicroBatch:
        rows = []
        for number in start:
            for offset in range(start[number], end[number]):
                key, value = self.partitions[number][offset]
                actual = {"topic": spec.topic, "partition": number, "offset": offset}
                rows.append({**actual, "timestamp": None, "key": key, "value": value})
        self.reads.append(len(rows))
        records: Any = pa.Table.from_pylist(rows, schema=decoding.RECORDS)
        return MicroBatch(records, dict(start), dict(end))

    def close(self) -> None:
        pass


def run(
    monkeypatch: pytest.MonkeyPatch, store: FeatureStore, spec: JobSpec, topics: MemoryTopics
) -> Progress:
    """Read the topic into the group of a job."""
    monkeypatch.setattr(loop.opening, "open_streams", lambda session, stream: topics)
    work = spec.work
    assert isinstance(work, StreamWork)
    declared = StreamTarget(find_target(store.session, work), declaration(work))
    stop = threading.Event()
    return consume(
        store.session,
        spec.name,
        work,
        declared,
        run_id="r",
        check=lambda: None,
        after_commit=lambda: None,
        stop=stop,
    )


def rows_of(store: FeatureStore, name: str) -> list[dict[str, Any]]:
    """Return the rows of a group in a fixed order."""
    rows: list[dict[str, Any]] = store.get_featuregroup(name).to_arrow().to_pylist()
    return sorted(rows, key=repr)


def quarantined(store: FeatureStore, name: str, version: int = 1) -> list[dict[str, Any]]:
    """Return the quarantined records of a group in order."""
    from featurestore.delta.log import is_delta_table

    path = store.session.quarantine_path(name, version)
    if not is_delta_table(path):
        return []
    engine = store.session.engine
    rows: list[dict[str, Any]] = engine.stream(engine.read_table(path)).read_all().to_pylist()
    return sorted(rows, key=lambda row: (row["record_partition"], row["record_offset"]))
