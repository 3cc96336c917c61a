"""Read the records of a topic with Spark Structured Streaming, in micro-batches.

Only the table records which offsets have been read. Each call therefore has its own temporary
checkpoint, which starts at the offsets in the table. Spark writes the end offsets of a micro-batch
into the checkpoint before the micro-batch runs.
"""

from __future__ import annotations

import json
import queue
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from featurestore.arrow.spark_frames import is_connect_object
from featurestore.errors import ConfigurationError, EngineError
from featurestore.model.stream import StreamSpec
from featurestore.plugins.engine import Engine
from featurestore.plugins.source import MicroBatch, SourceConfig
from featurestore_connectors.kafka.settings import TIMEOUT_SECONDS, check_config

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value")
_LOOK_SECONDS = 0.5


@dataclass
class _BatchHandoff:
    """Passes micro-batches from Spark's callback thread to the reading thread."""

    frames: queue.Queue[tuple[DataFrame, int]] = field(default_factory=lambda: queue.Queue(1))
    processed: threading.Event = field(default_factory=threading.Event)
    is_cancelled: bool = False

    def put(self, frame: DataFrame, number: int) -> None:
        """Pass a micro-batch and wait until it is processed. Called by Spark."""
        if self.is_cancelled:
            raise InterruptedError("the reader has stopped")
        self.processed.clear()
        self.frames.put((frame, number))
        # Spark starts the next micro-batch when this call returns.
        self.processed.wait()
        if self.is_cancelled:
            raise InterruptedError("the reader has stopped")


def batches(
    config: SourceConfig, spec: StreamSpec, start: Mapping[int, int], engine: Engine
) -> Iterator[MicroBatch]:
    """Yield the new records of a topic in micro-batches of at most ``spec.batch_records``."""
    session = _session_with_kafka(engine)
    reader = session.readStream.format("kafka").options(**_reader_options(config, spec, start))
    reader = reader.option("maxOffsetsPerTrigger", spec.batch_records)
    handoff = _BatchHandoff()
    with tempfile.TemporaryDirectory(prefix="featurestore-stream-") as folder:
        checkpoint = f"file://{folder}"
        query = (
            reader.load()
            .select(*_COLUMNS)
            .writeStream.foreachBatch(handoff.put)
            .option("checkpointLocation", checkpoint)
            # The query ends at the offsets that exist when it starts.
            .trigger(availableNow=True)
            .start()
        )
        try:
            yield from _take_batches(session, query, handoff, checkpoint, spec.topic, dict(start))
        finally:
            # A callback that waits for the reader would block the stop of the query.
            handoff.is_cancelled = True
            handoff.processed.set()
            query.stop()


def batch(
    config: SourceConfig,
    spec: StreamSpec,
    start: Mapping[int, int],
    end: Mapping[int, int],
    engine: Engine,
) -> MicroBatch:
    """Return the records of an offset range as one micro-batch."""
    ends = json.dumps({spec.topic: {str(number): offset for number, offset in end.items()}})
    reader = (
        _session_with_kafka(engine)
        .read.format("kafka")
        .options(**_reader_options(config, spec, start))
    )
    frame = reader.option("endingOffsets", ends).load().select(*_COLUMNS)
    return MicroBatch(frame, dict(start), dict(end))


def _take_batches(
    session: SparkSession,
    query: StreamingQuery,
    handoff: _BatchHandoff,
    checkpoint: str,
    topic: str,
    offsets: dict[int, int],
) -> Iterator[MicroBatch]:
    """Yield the micro-batches of a query until it ends, with their offsets."""
    while True:
        try:
            # A failed query passes no further micro-batch, so its state is checked regularly.
            frame, number = handoff.frames.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            if query.isActive:
                continue
            problem = query.exception()
            if problem is not None:
                raise EngineError(f"Spark could not read the topic {topic!r}: {problem}") from None
            return
        # The last line of the micro-batch's checkpoint file has the end offsets of the partitions.
        lines = session.read.text(f"{checkpoint}/offsets/{number}").collect()
        topic_ends = json.loads(lines[-1][0])[topic]
        end = offsets | {int(partition): int(offset) for partition, offset in topic_ends.items()}
        yield MicroBatch(frame, dict(offsets), end)
        offsets = end
        handoff.processed.set()


def _reader_options(
    config: SourceConfig, spec: StreamSpec, start: Mapping[int, int]
) -> dict[str, str]:
    """Return the options of Spark's Kafka reader, with the table's partitions and offsets."""
    numbers = sorted(start)
    beginnings = {str(number): start[number] for number in numbers}
    options = {
        "assign": json.dumps({spec.topic: numbers}),
        "startingOffsets": json.dumps({spec.topic: beginnings}),
        "failOnDataLoss": "true",
        "kafka.bootstrap.servers": check_config(config),
        "kafka.isolation.level": "read_committed",
        "kafka.request.timeout.ms": str(int(TIMEOUT_SECONDS * 1000)),
    }
    settings = dict(config.options)
    user = settings.pop("sasl.username", None)
    authority = settings.pop("ssl.ca.location", None)
    for name, value in settings.items():
        options[f"kafka.{name}"] = value
    if authority is not None:
        # The Java client reads certificates from a truststore, which may be a PEM file.
        options |= {
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": authority,
        }
    if config.secret is not None:
        mechanism = settings.get("sasl.mechanism", "PLAIN")
        options["kafka.sasl.jaas.config"] = _login_config(mechanism, user or "", config.secret())
    return options


def _login_config(mechanism: str, user: str, password: str) -> str:
    """Return the JAAS login configuration of the Java client, with quoted values."""
    module = "scram.ScramLoginModule" if mechanism.startswith("SCRAM") else "plain.PlainLoginModule"
    return (
        f"org.apache.kafka.common.security.{module} required "
        f"username={_quote(user)} password={_quote(password)};"
    )


def _quote(text: str) -> str:
    # A quote in a password would otherwise end the value and could add options.
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _session_with_kafka(engine: Engine) -> SparkSession:
    """Return the engine's Spark session after checking that it can read Kafka.

    Raises:
        ConfigurationError: The session has no Kafka reader. The hint shows how to install it.
    """
    from py4j.protocol import Py4JJavaError

    session = engine.session  # type: ignore[attr-defined]
    if is_connect_object(session):
        raise ConfigurationError(
            "A stream job on Spark needs Spark in this process, but the active SparkSession is a "
            "Spark Connect session.",
            hint="featurestore.connect(engine='duckdb')",
        )
    machine = session._jvm
    loader = machine.Thread.currentThread().getContextClassLoader()
    try:
        machine.java.lang.Class.forName(_CLASS, True, loader)
    except Py4JJavaError:
        import pyspark

        raise ConfigurationError(
            "The Spark session has no Kafka reader.",
            hint="start it with the package org.apache.spark:spark-sql-kafka-0-10_2.13:"
            f"{pyspark.__version__} (spark-submit --packages), or name its jars in "
            "FEATURESTORE_SPARK_JARS",
        ) from None
    return session
