"""Records of a topic by Structured Streaming, in micro-batches of Spark.

Each reading has a checkpoint of its own, which begins with the offsets that the table has: what was
read is known to the table alone, and the checkpoint goes with the reading. Where a micro-batch ends
is in the checkpoint before the micro-batch runs.
"""

from __future__ import annotations

import json
import queue
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from featurestore.errors import ConfigurationError, EngineError
from featurestore.model.stream import StreamSpec
from featurestore.plugins.engine import Engine
from featurestore.plugins.source import SourceConfig
from featurestore.plugins.stream import MicroBatch
from featurestore_connectors.kafka.settings import PATIENCE, check_config

_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value")
_LOOK_SECONDS = 0.5


@dataclass
class _Handover:
    """Between the thread in which Spark calls and the one that takes micro-batches."""

    frames: queue.Queue[tuple[Any, int]] = field(default_factory=lambda: queue.Queue(1))
    taken: threading.Event = field(default_factory=threading.Event)
    given_up: bool = False

    def give(self, frame: Any, number: int) -> None:
        """Hand a micro-batch over, and wait until it is done with; Spark calls this."""
        if self.given_up:
            raise InterruptedError("the reader went away")
        self.taken.clear()
        self.frames.put((frame, number))
        self.taken.wait()
        if self.given_up:
            raise InterruptedError("the reader went away")


def batches(
    config: SourceConfig, spec: StreamSpec, start: Mapping[int, int], engine: Engine
) -> Iterator[MicroBatch]:
    """Yield what a topic has now, in micro-batches of ``spec.batch_records`` at most."""
    session = _session(engine)
    reader = session.readStream.format("kafka").options(**_options(config, spec, start))
    reader = reader.option("maxOffsetsPerTrigger", spec.batch_records)
    handover = _Handover()
    with tempfile.TemporaryDirectory(prefix="featurestore-stream-") as folder:
        checkpoint = f"file://{folder}"
        query = (
            reader.load()
            .select(*_COLUMNS)
            .writeStream.foreachBatch(handover.give)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            yield from _handed_over(session, query, handover, checkpoint, spec.topic, dict(start))
        finally:
            handover.given_up = True
            handover.taken.set()
            query.stop()


def batch(
    config: SourceConfig,
    spec: StreamSpec,
    start: Mapping[int, int],
    end: Mapping[int, int],
    engine: Engine,
) -> MicroBatch:
    """Return all records of a range of offsets."""
    ends = json.dumps({spec.topic: {str(number): offset for number, offset in end.items()}})
    reader = _session(engine).read.format("kafka").options(**_options(config, spec, start))
    frame = reader.option("endingOffsets", ends).load().select(*_COLUMNS)
    return MicroBatch(frame, dict(start), dict(end))


def _handed_over(
    session: Any,
    query: Any,
    handover: _Handover,
    checkpoint: str,
    topic: str,
    at: dict[int, int],
) -> Iterator[MicroBatch]:
    while True:
        try:
            frame, number = handover.frames.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            if query.isActive:
                continue
            problem = query.exception()
            if problem is not None:
                raise EngineError(f"Spark could not read the topic {topic!r}: {problem}") from None
            return
        end = {**at, **_ends(session, checkpoint, number, topic)}
        yield MicroBatch(frame, dict(at), end)
        at = end
        handover.taken.set()


def _ends(session: Any, checkpoint: str, number: int, topic: str) -> dict[int, int]:
    """Return where a micro-batch ends, as the checkpoint has it: the last line of its file."""
    lines = session.read.text(f"{checkpoint}/offsets/{number}").collect()
    told = json.loads(lines[-1][0])
    return {int(partition): int(offset) for partition, offset in told[topic].items()}


def _options(config: SourceConfig, spec: StreamSpec, start: Mapping[int, int]) -> dict[str, str]:
    """Return the options of Spark's reader; the partitions and their offsets are the table's."""
    numbers = sorted(start)
    beginnings = {str(number): start[number] for number in numbers}
    options = {
        "assign": json.dumps({spec.topic: numbers}),
        "startingOffsets": json.dumps({spec.topic: beginnings}),
        "failOnDataLoss": "true",
        "kafka.bootstrap.servers": check_config(config),
        "kafka.isolation.level": "read_committed",
        "kafka.request.timeout.ms": str(int(PATIENCE * 1000)),
    }
    given = dict(config.options)
    user = given.pop("sasl.username", None)
    authority = given.pop("ssl.ca.location", None)
    for name, value in given.items():
        options[f"kafka.{name}"] = value
    if authority is not None:
        options |= {
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": authority,
        }
    if config.secret is not None:
        mechanism = given.get("sasl.mechanism", "PLAIN")
        options["kafka.sasl.jaas.config"] = _login(mechanism, user or "", config.secret())
    return options


def _login(mechanism: str, user: str, password: str) -> str:
    """Return how Java's client logs in, its texts quoted."""
    module = "scram.ScramLoginModule" if mechanism.startswith("SCRAM") else "plain.PlainLoginModule"
    quoted = []
    for text in (user, password):
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        quoted.append(f'"{escaped}"')
    return (
        f"org.apache.kafka.common.security.{module} required "
        f"username={quoted[0]} password={quoted[1]};"
    )


def _session(engine: Engine) -> Any:
    """Return the engine's session, which has to know Kafka.

    Raises:
        ConfigurationError: It has no reader of Kafka; the hint is how to get one.
    """
    from py4j.protocol import Py4JJavaError

    session = engine.session  # type: ignore[attr-defined]
    machine = session._jvm
    loader = machine.Thread.currentThread().getContextClassLoader()
    try:
        machine.java.lang.Class.forName(_CLASS, True, loader)
    except Py4JJavaError:
        import pyspark

        raise ConfigurationError(
            "The Spark session has no reader of Kafka.",
            hint="start it with the package org.apache.spark:spark-sql-kafka-0-10_2.13:"
            f"{pyspark.__version__} (spark-submit --packages), or name its jars in "
            "FEATURESTORE_SPARK_JARS",
        ) from None
    return session
