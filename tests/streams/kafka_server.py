"""One Kafka broker (KRaft) for the test run, from Maven Central, in a temporary folder.

Its jars are fetched once into a cache outside of the repository. Where it cannot be fetched or
started, the tests that need it are skipped with a sentence.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tests.maven import NotFetched, cache_folder, fetched

VERSION = "3.9.1"
# The connectors of the installed version of Spark: the properties of the poms.
_READER_OF_SPARK = {
    "4.0": {"spark": "4.0.0", "kafka": "3.9.1", "pool": "2.12.0"},
    "4.1": {"spark": "4.1.1", "kafka": "3.9.1", "pool": "2.12.1"},
    "4.2": {"spark": "4.2.0", "kafka": "3.9.2", "pool": "2.13.1"},
}
_S3A_OF_SPARK = {
    "4.0": {"hadoop": "3.4.1", "client": "2.24.6", "transfer": "2.24.5"},
    "4.1": {"hadoop": "3.4.2", "client": "2.29.52", "transfer": "2.29.52"},
    "4.2": {"hadoop": "3.5.0", "client": "2.35.4", "transfer": "2.35.4"},
}


def _spark_minor() -> str:
    try:
        return ".".join(version("pyspark").split(".")[:2])
    except PackageNotFoundError:
        return "4.0"


_READER_VERSIONS = _READER_OF_SPARK[_spark_minor()]
_S3A_VERSIONS = _S3A_OF_SPARK[_spark_minor()]
SPARK_READER = f"spark-kafka-{_READER_VERSIONS['spark']}"
JDBC_DRIVER = "postgresql-42.7.7"
S3A = f"hadoop-aws-{_S3A_VERSIONS['hadoop']}"
_POMS = Path(__file__).parent / "kafka"
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
_PATIENCE = 300.0
USER, PASSWORD = "reader", "tr0ub4dor&3"


class NoKafka(Exception):
    """The reason why no broker is available."""


@cache
def kafka_jars() -> Path:
    try:
        return fetched(_POMS / "broker-pom.xml", f"kafka-{VERSION}")
    except NotFetched as error:
        raise NoKafka(str(error)) from None


def spark_jars(name: str = SPARK_READER) -> list[Path]:
    """Return the downloaded jars of Spark's Kafka reader, or of another connector."""
    folder = cache_folder() / name
    return sorted(folder.glob("*.jar")) if (folder / "complete").exists() else []


def spark_connectors() -> list[Path]:
    """Download the jars with which Spark reads Kafka, PostgreSQL and S3."""
    return [
        fetched(_POMS / "spark-pom.xml", SPARK_READER, _READER_VERSIONS),
        fetched(_POMS / "jdbc-pom.xml", JDBC_DRIVER),
        fetched(_POMS.parents[1] / "storage" / "s3a-pom.xml", S3A, _S3A_VERSIONS),
    ]


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(folder: Path, *, secured: int | None = None) -> Iterator[str]:
    """Start a broker in a folder and yield its address.

    ``secured`` is one more port, for users with a password: ``USER`` by PLAIN, others by SCRAM.
    """
    jars = kafka_jars()
    port, controller = free_port(), free_port()
    settings = folder / "server.properties"
    actual = _settings(folder / "data", port, controller)
    if secured is not None:
        actual |= _passwords(secured, actual)
    settings.write_text("".join(f"{name}={value}\n" for name, value in actual.items()))
    (folder / "data").mkdir()
    # The files that Kafka's format tool writes, without another JVM.
    actual = f"version=1\ncluster.id={_CLUSTER}\nnode.id=1\ndirectory.id={_CLUSTER}\n"
    (folder / "data" / "meta.properties").write_text(actual)
    java = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
    java.append(f"-Dlog4j.configuration=file:{_quiet(folder)}")
    log = (folder / "broker.log").open("w")
    with log:
        broker = subprocess.Popen(
            [*java, "kafka.Kafka", str(settings)], stdout=log, stderr=log, start_new_session=True
        )
        try:
            _wait(broker, port, folder / "broker.log")
            yield f"127.0.0.1:{port}"
        finally:
            broker.kill()
            broker.wait()


def _wait(broker: subprocess.Popen[bytes], port: int, log: Path) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
    start = time.monotonic()
    while time.monotonic() - start < _PATIENCE:
        if broker.poll() is not None:
            raise NoKafka(f"it ended: {log.read_text()[-300:]}")
        try:
            client.list_topics(timeout=1)
            return
        except KafkaException:
            time.sleep(0.1)
    raise NoKafka(f"it did not answer in {_PATIENCE:.0f} seconds")


def _settings(data: Path, port: int, controller: int) -> dict[str, Any]:
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": data,
        "num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
        "log.retention.check.interval.ms": 1000,
        "log.initial.task.delay.ms": 1000,
        "file.delete.delay.ms": 100,
        "auto.create.topics.enable": "false",
    }


def _passwords(port: int, base_settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a listener with password authentication."""
    module, listener = "org.apache.kafka.common.security", "listener.name.sasl_plaintext"
    protocols = f"{base_settings['listener.security.protocol.map']},SASL_PLAINTEXT:SASL_PLAINTEXT"
    result = {
        "listener.security.protocol.map": protocols,
        f"{listener}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        f"{listener}.scram-sha-256.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        f"{listener}.plain.sasl.jaas.config": (
            f'{module}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        ),
    }
    for name in ("listeners", "advertised.listeners"):
        result[name] = f"{base_settings[name]},SASL_PLAINTEXT://127.0.0.1:{port}"
    return result


def _quiet(folder: Path) -> Path:
    path = folder / "log4j.properties"
    path.write_text(
        "log4j.rootLogger=WARN, out\n"
        "log4j.appender.out=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.out.layout=org.apache.log4j.SimpleLayout\n"
    )
    return path
