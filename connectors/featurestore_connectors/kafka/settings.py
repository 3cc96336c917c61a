"""How a cluster is reached: what the URI, the options and the secret of a source say of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from featurestore.errors import (
    InvalidArgument,
    SourceError,
    SourceUnavailable,
    did_you_mean,
    listing,
    missing_extra,
)
from featurestore.plugins.source import SourceConfig

# Seconds that a server has to answer.
PATIENCE = 10.0
# Settings of librdkafka that people need to reach a cluster.
OPTIONS = (
    "client.id",
    "sasl.mechanism",
    "sasl.username",
    "security.protocol",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.endpoint.identification.algorithm",
)
_URI = "kafka://broker-1:9092,broker-2:9092"


def check_config(config: SourceConfig) -> str:
    """Return the brokers of a source, as ``host:port,host:port``.

    Raises:
        InvalidArgument: The URI names none, or an option is not known.
    """
    parts = urlsplit(config.uri)
    if parts.scheme != "kafka" or not parts.netloc or parts.path.strip("/") or parts.query:
        raise InvalidArgument(
            f"uri={config.uri!r} names no brokers.", hint=f"uri={_URI!r}; the topic is topic="
        )
    if "@" in parts.netloc:
        raise InvalidArgument(
            "The URI of Kafka names no user.", hint="options={'sasl.username': 'reader'}"
        )
    unknown = [name for name in config.options if name not in OPTIONS]
    if unknown:
        raise InvalidArgument(
            f"A Kafka source has no options {listing(unknown)}; it has {listing(OPTIONS)}.",
            hint=did_you_mean(unknown[0], OPTIONS, write="options={{{!r}: ...}}"),
        )
    return parts.netloc


def client_settings(config: SourceConfig) -> dict[str, Any]:
    """Return the settings of a client, the secret among them."""
    settings: dict[str, Any] = {
        "bootstrap.servers": check_config(config),
        "log_level": 0,  # else it writes into standard error
        "socket.timeout.ms": int(PATIENCE * 1000),
        **config.options,
    }
    if config.secret is not None:
        settings["sasl.password"] = config.secret()
    return settings


def client_library() -> Any:
    """Return the client; MissingExtra when it is not installed."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise missing_extra("confluent-kafka", "kafka") from error
    return confluent_kafka


@contextmanager
def translated(config: SourceConfig) -> Iterator[None]:
    """Say what the client says in the store's errors; no text of it holds the secret."""
    library = client_library()
    try:
        yield
    except library.KafkaException as error:
        cause = error.args[0] if error.args else error
        raise failure(config, cause) from None


def failure(config: SourceConfig, cause: Any) -> SourceUnavailable | SourceError:
    """Return the error for what a broker or the client answered."""
    brokers = check_config(config)
    text = cause.str() if hasattr(cause, "str") else str(cause)
    library = client_library()
    lost = {
        library.KafkaError._ALL_BROKERS_DOWN,
        library.KafkaError._AUTHENTICATION,
        library.KafkaError._RESOLVE,
        library.KafkaError._SSL,
        library.KafkaError._TIMED_OUT,
        library.KafkaError._TRANSPORT,
        library.KafkaError.SASL_AUTHENTICATION_FAILED,
    }
    if hasattr(cause, "code") and cause.code() in lost:
        return SourceUnavailable(
            f"Source {config.name!r}: the brokers {brokers} cannot be reached, or refuse the "
            f"user: {text}",
            hint="does a broker answer there, under the name that it advertises? "
            f"featurestore source check {config.name}",
        )
    return SourceError(f"Source {config.name!r}: the broker says: {text}")
