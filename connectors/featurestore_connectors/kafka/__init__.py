"""Kafka topics as sources (read up to the current offsets) and as streams, for both engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from featurestore.errors import InvalidArgument, did_you_mean, listing
from featurestore.model.source import SourceTable
from featurestore.model.stream import StreamSpec
from featurestore.plugins.engine import BatchFunction
from featurestore.plugins.source import (
    DecoderRequest,
    HasStreams,
    Source,
    SourceConfig,
    SourceQuery,
    SourceSnapshot,
    StreamSource,
    Topic,
)
from featurestore_connectors.kafka import decoding
from featurestore_connectors.kafka.consumer import KafkaStream
from featurestore_connectors.kafka.settings import check_config

__all__ = ["KafkaSource"]


class KafkaSource:
    """The topics of a Kafka cluster."""

    def __init__(self, config: SourceConfig) -> None:
        check_config(config)
        self._config = config

    def snapshot(self, at: int | datetime | None = None) -> KafkaSnapshot:
        if at is not None:
            raise InvalidArgument(
                f"at={at!r} is not supported: topics are read from their first record up to now.",
                hint="filter by timestamp",
            )
        return KafkaSnapshot(KafkaStream(self._config))

    def stream(self) -> StreamSource:
        return KafkaStream(self._config)

    def decoder(self, spec: StreamSpec, request: DecoderRequest) -> BatchFunction:
        return decoding.decoder(spec, request)

    def decoded_schema(self, spec: StreamSpec) -> pa.Schema:
        return decoding.decoded_schema(spec)


class KafkaSnapshot:
    """The undecoded records of topics, up to the offsets at the first access."""

    def __init__(self, stream: KafkaStream) -> None:
        self._stream = stream
        self._topics: dict[str, Topic] = {}
        self.server = stream.server()
        self.identity = "offsets"

    def tables(self) -> Sequence[SourceTable]:
        return [SourceTable(name) for name in sorted(self._stream.topics())]

    def query_of(self, table: SourceTable) -> SourceQuery:
        return SourceQuery(table=table.name)

    def names(self, query: SourceQuery) -> Sequence[str]:
        return list(self.schema(query).names)

    def schema(self, query: SourceQuery) -> pa.Schema:
        # The first access determines the end offsets, so that all reads return the same records.
        self._topic(query)
        if query.columns is None:
            return decoding.RECORDS
        unknown = [name for name in query.columns if name not in decoding.RECORDS.names]
        if unknown:
            raise InvalidArgument(
                f"Unknown columns {listing(unknown)} of records. Available: {listing(decoding.RECORDS.names)}.",
                hint=did_you_mean(unknown[0], decoding.RECORDS.names),
            )
        return pa.schema([decoding.RECORDS.field(name) for name in query.columns])

    def read(self, query: SourceQuery) -> pa.RecordBatchReader:
        schema = self.schema(query)
        topic = self._topic(query)
        first = {number: partition.first for number, partition in topic.partitions.items()}
        end = {number: partition.end for number, partition in topic.partitions.items()}
        # Timestamps are only fetched if a field of the stream refers to them.
        timestamp_field = {"timestamp": "timestamp"}
        spec = StreamSpec("source", topic.name, decoding.RECORDS, fields=timestamp_field)

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in self._stream.read_batches(spec, first, end):
                rows = batch.records
                if query.window is not None:
                    rows = rows.filter(_window_mask(rows, query))
                yield from rows.select(schema.names).to_batches()

        return pa.RecordBatchReader.from_batches(schema, batches())

    def close(self) -> None:
        self._stream.close()

    def _topic(self, query: SourceQuery) -> Topic:
        """Return the topic of a query with its offsets at the first access."""
        if query.table is None:
            raise InvalidArgument(
                f"Invalid query of a Kafka source: {query}.", hint="table='clicks'"
            )
        if query.table not in self._topics:
            self._topics[query.table] = self._stream.topic(query.table)
        return self._topics[query.table]


def _window_mask(rows: pa.Table, query: SourceQuery) -> pa.ChunkedArray:
    """Return a mask of the records in the window of a query."""
    window = query.window
    assert window is not None
    times = rows.column(window.column)
    if window.closed == "left":
        return pc.and_(
            pc.greater_equal(times, pa.scalar(window.start)), pc.less(times, pa.scalar(window.end))
        )
    return pc.and_(
        pc.greater(times, pa.scalar(window.start)), pc.less_equal(times, pa.scalar(window.end))
    )


if TYPE_CHECKING:
    _contract: type[Source] = KafkaSource
    _streams: type[HasStreams] = KafkaSource
    _snapshot: type[SourceSnapshot] = KafkaSnapshot
    _stream: type[StreamSource] = KafkaStream
