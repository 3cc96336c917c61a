"""Configuration of S3 buckets and HDFS clusters in a running Spark session.

The settings are stored in the driver's Hadoop configuration, which Spark sends to its tasks. They
are not Spark settings, so that credentials appear neither in the event log nor in the web UI.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from featurestore.errors import ConfigurationError, UnsupportedLocation
from featurestore.storage import storage_for
from featurestore.storage.connections import options_of, s3a_options
from featurestore.storage.location import HDFS, Location
from featurestore_connectors.spark_delta import connect, jars
from featurestore_connectors.spark_delta.jars import has_class
from featurestore_connectors.spark_delta.session import check_log_store, session_hint

_FILE_SYSTEM_OF_S3 = "fs.s3.impl"
_FILE_SYSTEM_OF_HDFS = "org.apache.hadoop.hdfs.DistributedFileSystem"
_guard = threading.Lock()


def use_location(session: Any, path: str) -> None:
    """Configure a session for a location; local directories need no configuration.

    Raises:
        ConfigurationError: The session has no S3 or HDFS client, or already uses the location with
            other settings.
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
    if location.scheme != "s3":
        raise UnsupportedLocation(
            f"The Spark engine does not support {location.text}.", hint="engine='duckdb'"
        )
    # Checked here, since Spark would report a missing class at the first access.
    if not has_class(session, jars.S3A_FILE_SYSTEM):
        raise ConfigurationError(
            "The active SparkSession cannot reach S3: it has no hadoop-aws.",
            hint=session_hint(jars.s3a_settings()),
        )
    _use_bucket(session.sparkContext._jsc.hadoopConfiguration(), location)


def use_table(session: Any, path: str) -> None:
    """Configure a session for a table location, and check that commits to it are atomic.

    Raises:
        ConfigurationError: A session setting is missing. The hint includes the required settings.
        UnsupportedLocation: The engine does not support this type of location.
    """
    use_location(session, path)
    check_log_store(session, path)


def _use_bucket(configuration: Any, location: Location) -> None:
    """Set the S3 client options of a bucket; they cannot be changed while Spark runs.

    Executors cache the connection to a bucket with its initial options.
    """
    options = s3a_options(location.text)
    # The mark is part of Hadoop's configuration, which all engines of the process share.
    mark = f"fs.s3a.bucket.{location.bucket}.featurestore"
    with _guard:
        if configuration.get(mark) is None:
            configuration.set(_FILE_SYSTEM_OF_S3, jars.S3A_FILE_SYSTEM)
            for key, value in options.items():
                configuration.set(key, value)
            configuration.set(mark, "true")
            return
    _check_settings(configuration, location, options)


def _use_cluster(session: Any, location: Location) -> None:
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


def _check_settings(configuration: Any, location: Location, options: Mapping[str, str]) -> None:
    """Raise ConfigurationError if options differ from those that Spark already uses."""
    if any(configuration.get(key) != value for key, value in options.items()):
        raise ConfigurationError(
            f"The running Spark application already uses {location.bucket!r} with other settings or "
            "credentials, which its executors keep.",
            hint="stop it (spark.stop()), then connect again",
        )
