"""Configuration of buckets and HDFS clusters in a running Spark session.

The settings are stored in the driver's Hadoop configuration, which Spark sends to its tasks. They
are not Spark settings, so that credentials appear neither in the event log nor in the web UI.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from featurestore.errors import ConfigurationError, UnsupportedLocation
from featurestore.storage import storage_for
from featurestore.storage.connections import options_of
from featurestore.storage.location import HDFS, Location
from featurestore.storage.settings import store_settings
from featurestore_connectors.spark_delta import connect, jars
from featurestore_connectors.spark_delta.jars import has_class
from featurestore_connectors.spark_delta.session import check_log_store, session_hint

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

_FILE_SYSTEM_OF_HDFS = "org.apache.hadoop.hdfs.DistributedFileSystem"
# Setting names in S3A after the prefix ``fs.s3a.bucket.<bucket>.``.
_S3A = {
    "aws_access_key_id": "access.key",
    "aws_secret_access_key": "secret.key",
    "aws_session_token": "session.token",
    "aws_region": "endpoint.region",
    "aws_endpoint_url": "endpoint",
    "aws_sse_kms_key_id": "encryption.key",
    "timeout": "connection.timeout",
    "connect_timeout": "connection.establish.timeout",
}
_S3A_ENCRYPTIONS = {"AES256": "SSE-S3", "aws:kms": "SSE-KMS", "aws:kms:dsse": "DSSE-KMS"}
_S3A_PROVIDERS = "org.apache.hadoop.fs.s3a."
# Setting names in Google's connector after the prefix ``fs.gs.``.
_GCS = {"timeout": "http.read-timeout", "connect_timeout": "http.connect-timeout"}
_guard = threading.Lock()


def use_location(session: SparkSession, path: str) -> None:
    """Configure a session for a location; local directories need no configuration.

    Raises:
        ConfigurationError: The session has no client of this storage, or already uses the location
            with other settings.
        UnsupportedLocation: The engine does not support this type of location.
    """
    if storage_for(path).is_local:
        return
    # Its driver has other options and credentials of buckets than this process.
    connect.refuse(session, f"The location {path}")
    location = Location.parse(path)
    if location.scheme == HDFS:
        _use_cluster(session, location)
        return
    client = jars.CLIENTS.get(location.scheme)
    if client is None:
        raise UnsupportedLocation(
            f"The Spark engine does not support {location.text}.", hint="engine='duckdb'"
        )
    # Checked here, since Spark would report a missing class at the first access.
    if not has_class(session, client.file_system):
        raise ConfigurationError(
            f"The active SparkSession cannot reach {client.name}: it has no {client.library}.",
            hint=session_hint(client.settings()),
        )
    _use_bucket(session.sparkContext._jsc.hadoopConfiguration(), location, client.file_system)


def use_table(session: SparkSession, path: str) -> None:
    """Configure a session for a table location, and check that commits to it are atomic.

    Raises:
        ConfigurationError: A session setting is missing. The hint includes the required settings.
        UnsupportedLocation: The engine does not support this type of location.
    """
    use_location(session, path)
    check_log_store(session, path)


def _use_bucket(configuration: JavaObject, location: Location, file_system: str) -> None:
    """Set the client options of a bucket; they cannot be changed while Spark runs.

    Executors cache the connection to a bucket with its initial options.
    """
    options = hadoop_options(location.text)
    # The mark is part of Hadoop's configuration, which all engines of the process share.
    mark = f"fs.s3a.bucket.{location.bucket}.featurestore"
    if location.scheme == "gs":
        # Google's connector has the same settings for all buckets.
        mark = "fs.gs.featurestore"
    with _guard:
        if configuration.get(mark) is None:
            configuration.set(f"fs.{location.scheme}.impl", file_system)
            for key, value in options.items():
                configuration.set(key, value)
            configuration.set(mark, "true")
            return
    _check_settings(configuration, location, options)


def _use_cluster(session: SparkSession, location: Location) -> None:
    """Set the ``storage_options=`` of an HDFS cluster in Hadoop's configuration."""
    if not has_class(session, _FILE_SYSTEM_OF_HDFS):
        raise ConfigurationError(
            "The active SparkSession cannot reach HDFS: its Spark has no Hadoop client.",
            hint="pip install 'featurestore[spark]', or use a Spark distribution with Hadoop",
        )
    configuration = session.sparkContext._jsc.hadoopConfiguration()
    options = options_of(location.text)
    mark = f"featurestore.reaches.{location.bucket}"
    with _guard:
        if configuration.get(mark) is None:
            for key, value in options.items():
                configuration.set(key, value)
            configuration.set(mark, "true")
            return
    _check_settings(configuration, location, options)


def _check_settings(
    configuration: JavaObject, location: Location, options: Mapping[str, str]
) -> None:
    """Raise ConfigurationError if options differ from those that Spark already uses."""
    if any(configuration.get(key) != value for key, value in options.items()):
        raise ConfigurationError(
            f"The running Spark application already uses {location.bucket!r} with other settings or "
            "credentials, which its executors keep.",
            hint="stop it (spark.stop()), then connect again",
        )


def hadoop_options(path: str) -> dict[str, str]:
    """Return the settings with which Hadoop accesses the bucket of an object store's URI.

    Raises:
        ConfigurationError: Google's connector does not support an option.
    """
    location = Location.parse(path)
    settings = store_settings(location.scheme, options_of(location.text))
    values = {**settings.store, **settings.client}
    if location.scheme == "s3":
        return _s3a_options(values, location.bucket)
    return _gcs_options(values)


def _s3a_options(values: Mapping[str, str], bucket: str) -> dict[str, str]:
    """Return the settings of S3A for one bucket."""
    s3a = {name: values[key] for key, name in _S3A.items() if key in values}
    # Directory markers would be objects that other writers do not expect.
    s3a["directory.marker.retention"] = "delete"
    virtual = values.get("aws_virtual_hosted_style_request") == "true"
    s3a["path.style.access"] = "false" if virtual else "true"
    encryption = values.get("aws_server_side_encryption")
    if encryption is not None:
        s3a["encryption.algorithm"] = _S3A_ENCRYPTIONS.get(encryption, encryption)
    provider = _s3a_provider(values)
    if provider is not None:
        s3a["aws.credentials.provider"] = _S3A_PROVIDERS + provider
    if "proxy_url" in values:
        host, port, user = _parse_proxy(values["proxy_url"])
        s3a |= {"proxy.host": host, "proxy.port": port, **user}
    return {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in s3a.items()}


def _s3a_provider(values: Mapping[str, str]) -> str | None:
    """Return the S3A credentials provider class; None for the default, the platform credentials."""
    if values.get("aws_skip_signature") == "true":
        return "AnonymousAWSCredentialsProvider"
    if "aws_access_key_id" not in values:
        return None
    if "aws_session_token" in values:
        return "TemporaryAWSCredentialsProvider"
    return "SimpleAWSCredentialsProvider"


def _gcs_options(values: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of Google's connector; they apply to all buckets of an application."""
    key = json.loads(values.get("google_service_account_key", "{}"))
    # ``store_settings`` makes this key for servers without authentication.
    is_anonymous = "disable_oauth" in key or values.get("google_skip_signature") == "true"
    gcs = {_GCS[name]: value for name, value in values.items() if name in _GCS}
    # A removal would create an empty object for the folder, which other writers do not expect.
    gcs["implicit.dir.repair.enable"] = "false"
    base_url = key.get("gcs_base_url", values.get("google_base_url"))
    if base_url is not None:
        gcs["storage.root.url"] = f"{base_url.rstrip('/')}/"
    key_file = values.get("google_service_account") or values.get("google_application_credentials")
    if is_anonymous:
        gcs["auth.type"] = "UNAUTHENTICATED"
    elif key:
        raise ConfigurationError(
            "Spark reads the key of a service account from a file, not from service_account_key=.",
            hint="storage_options={'service_account': '/path/to/key.json'}",
        )
    elif key_file is None or key_file == os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        gcs["auth.type"] = "APPLICATION_DEFAULT"
    else:
        gcs["auth.type"] = "SERVICE_ACCOUNT_JSON_KEYFILE"
        gcs["auth.service.account.json.keyfile"] = key_file
    if "proxy_url" in values:
        host, port, user = _parse_proxy(values["proxy_url"])
        gcs |= {"proxy.address": f"{host}:{port}", **user}
    return {f"fs.gs.{name}": value for name, value in gcs.items()}


def _parse_proxy(url: str) -> tuple[str, str, dict[str, str]]:
    """Return the host and the port of a proxy, and the settings of its user."""
    address = urlsplit(url)
    user = {"proxy.username": address.username, "proxy.password": address.password}
    credentials = {key: unquote(value) for key, value in user.items() if value is not None}
    return address.hostname or "", str(address.port or 80), credentials
