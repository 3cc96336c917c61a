"""Buckets and HDFS under Spark: what a session must have for them, and how it reaches each.

The settings of a place go into the Hadoop configuration of the running driver, which Spark sends
along with its tasks. They are no settings of Spark, so neither its event log nor its page of the
environment shows them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from featurestore.errors import ConfigurationError, UnsupportedLocation
from featurestore.storage.connections import options_of, s3a_options
from featurestore.storage.location import HDFS, Location
from featurestore.storage.selection import storage_for
from featurestore_connectors.spark_delta import s3a
from featurestore_connectors.spark_delta.session import check_log_store, has_class, session_hint

_FILE_SYSTEM_OF_S3 = "fs.s3.impl"
_FILE_SYSTEM_OF_HDFS = "org.apache.hadoop.hdfs.DistributedFileSystem"
_guard = threading.Lock()


def use_location(session: Any, path: str) -> None:
    """Let a session read and write below a path; nothing is to be done for a directory.

    Raises:
        ConfigurationError: It lacks the client of S3 or HDFS, or reaches the place with other
            settings.
        UnsupportedLocation: Spark does not reach places of this kind.
    """
    if storage_for(path).is_local:
        return
    location = Location.parse(path)
    if location.scheme == HDFS:
        _use_cluster(session, location)
        return
    if location.scheme != "s3":
        raise UnsupportedLocation(
            f"The Spark engine does not reach {location.text} yet.", hint="engine='duckdb'"
        )
    if not has_class(session, s3a.FILE_SYSTEM):
        raise ConfigurationError(
            "The active SparkSession cannot reach S3: it has no hadoop-aws.",
            hint=session_hint(s3a.settings()),
        )
    _use_bucket(session.sparkContext._jsc.hadoopConfiguration(), location)


def use_table(session: Any, path: str) -> None:
    """Let a session write a table: it reaches the place, and replaces nobody's commits.

    Raises:
        ConfigurationError: The hint is what to build the session with.
        UnsupportedLocation: Spark does not reach places of this kind.
    """
    use_location(session, path)
    check_log_store(session, path)


def _use_bucket(configuration: Any, location: Location) -> None:
    """Tell the client of S3 how to reach a bucket; the first settings stay as long as Spark runs.

    Executors keep their connection to a bucket, with the settings that they were given first.
    """
    options = s3a_options(location.text)
    mark = f"fs.s3a.bucket.{location.bucket}.featurestore"
    with _guard:
        if configuration.get(mark) is None:
            configuration.set(_FILE_SYSTEM_OF_S3, s3a.FILE_SYSTEM)
            for key, value in options.items():
                configuration.set(key, value)
            configuration.set(mark, "true")
            return
    _check_settings(configuration, location, options)


def _use_cluster(session: Any, location: Location) -> None:
    """Tell Hadoop's client what ``storage_options=`` says of a cluster, beside its own files."""
    if not has_class(session, _FILE_SYSTEM_OF_HDFS):
        raise ConfigurationError(
            "The active SparkSession cannot reach HDFS: its Spark came without Hadoop's client.",
            hint="pip install 'featurestore[spark]', or a Spark that is built with Hadoop",
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
    if any(configuration.get(key) != value for key, value in options.items()):
        raise ConfigurationError(
            f"The running Spark reaches {location.bucket!r} with other settings or credentials, "
            "which its executors keep.",
            hint="stop it (spark.stop()), then connect again",
        )
