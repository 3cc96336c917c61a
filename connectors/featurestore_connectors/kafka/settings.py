"""Kafka client settings, from the URI, the options and the secret of a source."""

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
from featurestore.plugins.credentials import needs_environment_error
from featurestore.plugins.source import SourceConfig

# Seconds to wait for a server response.
TIMEOUT_SECONDS = 10.0
# Settings of librdkafka that configure the connection to a cluster.
OPTIONS = (
    "client.id",
    "sasl.mechanism",
    "sasl.username",
    "security.protocol",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.endpoint.identification.algorithm",
)
# The mechanisms that sign in by user and password.
_PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_URI = "kafka://broker-1:9092,broker-2:9092"


def check_config(config: SourceConfig) -> str:
    """Check the configuration and return its brokers, as ``host:port,host:port``.

    Raises:
        InvalidArgument: The URI has no brokers, or an option is unknown.
    """
    address = urlsplit(config.uri)
    if address.scheme != "kafka" or not address.netloc or address.path.strip("/") or address.query:
        raise InvalidArgument(
            f"uri={config.uri!r} has no brokers.", hint=f"uri={_URI!r}; pass the topic as topic="
        )
    if "@" in address.netloc:
        raise InvalidArgument(
            "The URI of a Kafka source must not have a user.",
            hint="options={'sasl.username': 'reader'}",
        )
    unknown = [name for name in config.options if name not in OPTIONS]
    if unknown:
        raise InvalidArgument(
            f"Unknown options {listing(unknown)} of a Kafka source. Available: {listing(OPTIONS)}.",
            hint=did_you_mean(unknown[0], OPTIONS, write="options={{{!r}: ...}}"),
        )
    _check_credentials(config)
    return address.netloc


def _check_credentials(config: SourceConfig) -> None:
    """Refuse settings with which a client signs in by a ticket or a login file of the machine.

    Raises:
        InvalidArgument: The mechanism uses no password, or the secret is missing.
    """
    if config.uses_environment:
        return
    options = config.options
    if not options.get("security.protocol", "").lower().startswith("sasl"):
        return
    # The clients use Kerberos by default.
    mechanism = options.get("sasl.mechanism", "GSSAPI").upper()
    if mechanism not in _PASSWORD_MECHANISMS or config.secret is None:
        raise needs_environment_error(
            f"Source {config.name!r} with sasl.mechanism={mechanism}", "the login"
        )


def client_settings(config: SourceConfig) -> dict[str, Any]:
    """Return the client settings, including the secret."""
    settings: dict[str, Any] = {
        "bootstrap.servers": check_config(config),
        "log_level": 0,  # otherwise it writes to standard error
        "socket.timeout.ms": int(TIMEOUT_SECONDS * 1000),
        **config.options,
    }
    if config.secret is not None:
        settings["sasl.password"] = config.secret()
    return settings


def import_client_library() -> Any:
    """Import and return the client library; raise MissingExtra if it is not installed."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise missing_extra("confluent-kafka", "kafka") from error
    return confluent_kafka


@contextmanager
def translate_kafka_errors(config: SourceConfig) -> Iterator[None]:
    """Convert Kafka client errors to feature store errors, without secrets."""
    library = import_client_library()
    try:
        yield
    except library.KafkaException as error:
        cause = error.args[0] if error.args else error
        raise to_store_error(config, cause) from None


def to_store_error(config: SourceConfig, cause: Any) -> SourceUnavailable | SourceError:
    """Return the feature store error for a broker or client error."""
    brokers = check_config(config)
    text = cause.str() if hasattr(cause, "str") else str(cause)
    library = import_client_library()
    unavailable = {
        library.KafkaError._ALL_BROKERS_DOWN,
        library.KafkaError._AUTHENTICATION,
        library.KafkaError._RESOLVE,
        library.KafkaError._SSL,
        library.KafkaError._TIMED_OUT,
        library.KafkaError._TRANSPORT,
        library.KafkaError.SASL_AUTHENTICATION_FAILED,
    }
    if hasattr(cause, "code") and cause.code() in unavailable:
        return SourceUnavailable(
            f"Source {config.name!r}: the brokers {brokers} cannot be reached, or reject the "
            f"user: {text}",
            hint="check that a broker responds at this address and at the one that it advertises: "
            f"featurestore source check {config.name}",
        )
    return SourceError(f"Source {config.name!r}: the broker reports: {text}")
