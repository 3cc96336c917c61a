"""The engine's SparkSession: the active session, or a new session configured for Delta.

Sessions are thread-safe. A user's session is checked; only the substitution of variables is switched
off. The engine only stops sessions that it started.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING

from featurestore.arrow.spark_frames import find_connect_session, is_connect_object
from featurestore.errors import ConfigurationError, EngineError
from featurestore.model.runtime import usable_cores
from featurestore.storage import storage_for
from featurestore.storage.location import HDFS, scheme_of
from featurestore.storage.protection import user_temporary_folder
from featurestore_connectors.spark_delta import connect, jars
from featurestore_connectors.spark_delta.jars import JVM_JAR

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

MASTER = "FEATURESTORE_SPARK_MASTER"
DRIVER_MEMORY = "FEATURESTORE_SPARK_DRIVER_MEMORY"
STAGING = "FEATURESTORE_SPARK_STAGING"
# Additional connector jars, such as Kafka's, for sessions that the engine starts.
JARS = "FEATURESTORE_SPARK_JARS"

# Delta's log store for each URI scheme to which the store's own log store writes. Its commits never
# replace commits of other writers.
LOG_STORES = {
    "file": "featurestore.delta.PosixLogStore",
    "s3": "featurestore.delta.S3LogStore",
    "gs": "featurestore.delta.GcsLogStore",
    HDFS: "featurestore.delta.HdfsLogStore",
}
# Delta's default log store for HDFS, which is safe since it renames without overwriting. Its
# commits have no checksums.
_LOG_STORE_OF_HDFS = "io.delta.storage.HDFSLogStore"

_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
# Registers the SQL functions of ``jvm/StoreFunctions.java``.
STORE_EXTENSION = "featurestore.spark.StoreExtensions"
_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_DELTA = {"spark.sql.extensions": _EXTENSION, "spark.sql.catalog.spark_catalog": _CATALOG}
# Spark replaces ``${env:NAME}`` in the text of a query by a variable of the driver's environment, also
# in literals and quoted names. Queries of users and names of fields would read its secrets.
_SUBSTITUTION = "spark.sql.variable.substitute"
_GLOBAL_LOG_STORE = "spark.delta.logStore.class"
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
_UTC_NAMES = ("UTC", "Etc/UTC", "GMT", "Z", "+00:00")
_LOG_SETTINGS = os.path.join(os.path.dirname(__file__), "log4j2.properties")


def find_session() -> SparkSession | None:
    """Return the active SparkSession, or None."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # ``getOrCreate`` would start Spark if it is not running.
    if SparkContext._active_spark_context is None:
        return find_connect_session()
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    # Only the thread that started Spark has an active session. The builder returns the default
    # session.
    return SparkSession.builder.getOrCreate()


def check_session(session: SparkSession) -> None:
    """Check that a user's session supports the store.

    Raises:
        ConfigurationError: The session is not configured for Delta, or its time zone is not UTC.
            The hint includes the settings.
    """
    is_connect = is_connect_object(session)
    if is_connect:
        connect.check_server(session)
    jars.check_pair()
    extensions = session.conf.get("spark.sql.extensions", "") or ""
    catalog = session.conf.get("spark.sql.catalog.spark_catalog", "") or ""
    if _EXTENSION not in extensions or catalog != _CATALOG:
        needed = ", ".join(f"{key}={value}" for key, value in _DELTA.items())
        raise ConfigurationError(
            "The active SparkSession is not configured for Delta tables.",
            hint=f"build it with {needed} and the package {jars.delta_package()}, "
            "or start Python without a SparkSession",
        )
    if not is_connect:
        _check_delta_classes(session)
    zone = session.conf.get("spark.sql.session.timeZone", "")
    if zone not in _UTC_NAMES:
        raise ConfigurationError(
            f"The time zone of the active SparkSession is {zone!r}; the store needs UTC.",
            hint='spark.conf.set("spark.sql.session.timeZone", "UTC")',
        )
    if not is_connect and is_local(session) and "PYSPARK_PYTHON" not in os.environ:
        # Local workers use the driver's interpreter.
        session.sparkContext.pythonExec = sys.executable


def forbid_substitution(session: SparkSession) -> None:
    """Make a session parse ``${...}`` in queries and names as text.

    The setting stays: Spark Connect parses queries when they run, and other threads would see a
    setting that is changed for one query only.
    """
    session.conf.set(_SUBSTITUTION, "false")


def is_stopped(session: SparkSession) -> bool:
    """Return whether a session can no longer run queries."""
    if is_connect_object(session):
        return bool(session.is_stopped)
    # A stopped context has no Java object.
    return session.sparkContext._jsc is None


def check_log_store(session: SparkSession, path: str) -> None:
    """Check that commits of a session cannot overwrite commits of other writers.

    Delta's own log store publishes a commit by rename, which overwrites concurrent commits.

    Raises:
        ConfigurationError: The session uses another log store. The hint includes the settings.
    """
    scheme = scheme_of(path)
    # Delta only reads settings with which the JVM was started.
    is_connect = is_connect_object(session)
    configuration = (
        connect.read_log_store_settings(session, _log_store_keys(scheme))
        if is_connect
        else session.sparkContext._jsc.getConf()
    )
    if scheme == HDFS and _configured_log_store(configuration, scheme) in (
        None,
        _LOG_STORE_OF_HDFS,
    ):
        return
    name = LOG_STORES.get(scheme, _LOG_STORE_OF_HDFS)
    if _configured_log_store(configuration, scheme) == name and (
        is_connect or jars.has_class(session, name)
    ):
        return
    raise ConfigurationError(
        "The active SparkSession could overwrite Delta commits of other processes, "
        "which then lose rows.",
        hint=session_hint({_log_store_setting(scheme): name, "spark.jars": str(JVM_JAR)}),
    )


def session_hint(settings: Mapping[str, str]) -> str:
    """Return a hint that shows how to build a session with missing settings."""
    settings_text = ", ".join(f"{key}={value}" for key, value in settings.items())
    return (
        f"build it with {settings_text}, or use "
        "featurestore_connectors.spark_delta.configure_session"
        "(SparkSession.builder, location=...).getOrCreate()"
    )


def start_session(location: str | None = None) -> SparkSession:
    """Start a session, local or on the master set by the environment or spark-submit.

    Args:
        location: The store's location.

    Raises:
        MissingExtra: pyspark or delta-spark is not installed.
        MissingJava: No supported version of Java is installed.
        EngineError: Spark did not start.
    """
    jars.check_libraries()
    # spark-submit sets this variable. It has started the JVM, whose settings are fixed.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        jars.check_java()
    if "SPARK_REMOTE" in os.environ:
        raise ConfigurationError(
            "engine='spark' does not open Spark Connect sessions, but SPARK_REMOTE selects the "
            f"server {os.environ['SPARK_REMOTE']}.",
            hint="SparkSession.builder.getOrCreate() before connect, or "
            "featurestore.connect(engine='duckdb')",
        )
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # Sessions started from Python read this variable, not spark.pyspark.python. Without it, workers
    # use python3 from PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("featurestore").config(map=session_settings())
    if not submitted:
        builder = configure_session(builder.config(map=_launch_settings()), location=location)
    try:
        session = builder.getOrCreate()
    except (PySparkException, RuntimeError, OSError) as error:
        raise EngineError(f"Spark did not start: {error}", hint="featurestore doctor") from error
    if submitted:
        _add_jar_to_driver(session)
    else:
        # Only for sessions that this process starts: in spark-submit, the user configures the logs.
        session.sparkContext.setLogLevel("ERROR")
    _check_delta_classes(session)
    return session


def configure_session(
    builder: SparkSession.Builder, *, location: str | None = None
) -> SparkSession.Builder:
    """Add the settings and jars that the store needs to a ``SparkSession.builder``.

    Example:
        builder = SparkSession.builder.master("local[2]")
        spark = configure_session(builder, location="s3://bucket/prefix").getOrCreate()

    Args:
        builder: The builder; call ``getOrCreate()`` on the result.
        location: The store's location. For S3 and Google Cloud Storage the session also gets
            Hadoop's client, which is downloaded once, unless ``spark.jars`` contains it.
    """
    user_jars = builder._options.get("spark.jars") or os.environ.get(JARS)
    jar_paths = [user_jars] if user_jars else []
    jar_paths.append(str(JVM_JAR))
    builder = builder.config(map=session_settings())
    missing_client = jars.missing_client(location or "", user_jars)
    if missing_client == "gs":
        jar_paths.append(str(jars.fetch_gcs_connector()))
    with_s3a = missing_client == "s3"
    fetched_jars = jars.delta_jars()
    # Use downloaded Delta jars as files, to avoid network access and resolver output on every
    # start.
    if not with_s3a and all(storage_for(str(jar)).is_file(str(jar)) for jar in fetched_jars):
        jar_paths.extend(map(str, fetched_jars))
        return builder.config("spark.jars", ",".join(jar_paths))
    builder = builder.config("spark.jars", ",".join(jar_paths))
    return builder.config(map=jars.download_settings(with_s3a=with_s3a))


def session_settings() -> dict[str, str]:
    """Return the settings of all sessions that the engine starts."""
    log_stores = {_log_store_setting(scheme): name for scheme, name in LOG_STORES.items()}
    return {
        **_DELTA,
        _SUBSTITUTION: "false",
        "spark.sql.extensions": connect.EXTENSIONS,
        **log_stores,
        "spark.sql.session.timeZone": "UTC",
        # Not INT96, which has no usable statistics.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # Files written by pandas have nanoseconds, which Spark rejects by default.
        "spark.sql.legacy.parquet.nanosAsLong": "true",
        # The batch size of the DuckDB engine, so that functions get similar batches.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    }


def settings_for_builder(location: str) -> dict[str, str]:
    """Return the settings of a user's session for a store at a location.

    Raises:
        MissingExtra: delta-spark is not installed.
    """
    downloads = jars.download_settings(with_s3a=location.startswith("s3://"))
    settings = {**session_settings(), "spark.jars": str(JVM_JAR), **downloads}
    if location.startswith("gs://"):
        settings["spark.jars"] += f",{jars.gcs_connector()}"
    return settings


def is_local(session: SparkSession) -> bool:
    """Return whether the executors are threads of the driver."""
    return str(session.conf.get("spark.master", "")).startswith("local")


def default_parallelism(session: SparkSession) -> int:
    """Return the number of tasks that the application runs at a time."""
    if is_connect_object(session):
        return connect.read_parallelism(session)
    return int(session.sparkContext.defaultParallelism)


def staging_directory(session: SparkSession) -> str:
    """Return the folder for data sent to executors; all executors must have access to it.

    Raises:
        ConfigurationError: The session runs on a cluster, and no folder is configured.
    """
    directory = os.environ.get(STAGING)
    if directory:
        storage_for(directory).make_directory(directory)
        return directory
    is_here = not is_connect_object(session) or session.client.host in _THIS_MACHINE
    if is_local(session) and is_here:
        return tempfile.gettempdir()
    raise ConfigurationError(
        "Data must be sent to the executors, but no shared folder is configured.",
        hint=f"set {STAGING} to a directory that the driver and all executors can access",
    )


def _launch_settings() -> dict[str, str]:
    """Return the settings for the start of the JVM: master, memory and logging."""
    master = os.environ.get(MASTER) or "local[*]"
    # A quarter of the machine's memory, but at least one and at most eight GiB.
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    memory = f"{min(8192, max(1024, installed // 4 // 2**20))}m"
    settings = {
        "spark.master": master,
        "spark.pyspark.python": os.environ["PYSPARK_PYTHON"],
        "spark.driver.memory": os.environ.get(DRIVER_MEMORY) or memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_SETTINGS}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": os.path.join(user_temporary_folder(), "spark-warehouse"),
    }
    if master.startswith("local"):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # The defaults (200 and 50 tasks) are for clusters, and too many for a table with one
            # file.
            "spark.sql.shuffle.partitions": str(max(2, 2 * usable_cores())),
            "spark.databricks.delta.snapshotPartitions": "1",
        }
        # The folders of Spark for shuffled and spilled rows are readable for all users. The
        # configuration of the user may name another disk.
        if "SPARK_CONF_DIR" not in os.environ:
            settings["spark.local.dir"] = user_temporary_folder()
    return settings


def _log_store_setting(scheme: str) -> str:
    return f"spark.delta.logStore.{scheme}.impl"


def _configured_log_store(configuration: JavaObject, scheme: str) -> str | None:
    """Return the log store configured for all schemes or for one, or None."""
    for key in _log_store_keys(scheme):
        name = str(configuration.get(key, ""))
        if name:
            return name
    return None


def _log_store_keys(scheme: str) -> list[str]:
    """Return the settings of a log store in Delta's order, with and without "spark."."""
    keys = []
    for setting in (_GLOBAL_LOG_STORE, _log_store_setting(scheme)):
        keys += [setting, setting.removeprefix("spark.")]
    return keys


def _check_delta_classes(session: SparkSession) -> None:
    """Raise ConfigurationError if the JVM lacks Delta, as in spark-submit without --packages."""
    if not jars.has_class(session, _CATALOG):
        raise ConfigurationError(
            "The Spark session has no Delta jars.",
            hint=f"spark-submit --packages {jars.delta_package()} ...; "
            "if Python started Spark, restart Python",
        )


def _add_jar_to_driver(session: SparkSession) -> None:
    """Add the log store jar to the driver of spark-submit, whose class path is already fixed."""
    jvm = session._jvm
    if not all(jars.has_class(session, name) for name in LOG_STORES.values()):
        # The class loader of spark-submit for --jars and --packages, which all driver threads use.
        loader = jvm.Thread.currentThread().getContextClassLoader()
        loader.addURL(jvm.java.io.File(str(JVM_JAR)).toURI().toURL())
