"""The SparkSession behind the engine.

The active one where there is one, else a new one that knows Delta.

A session may be used by any thread. One that somebody else started is checked and left as it is;
one that the engine started is stopped by the engine.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from featurestore.errors import ConfigurationError, EngineError, missing_extra
from featurestore.model.cores import usable_cores
from featurestore.storage import files
from featurestore.storage.location import HDFS, scheme_of
from featurestore_connectors.spark_delta import s3a
from featurestore_connectors.spark_delta.java import check_java

MASTER = "FEATURESTORE_SPARK_MASTER"
DRIVER_MEMORY = "FEATURESTORE_SPARK_DRIVER_MEMORY"
STAGING = "FEATURESTORE_SPARK_STAGING"
# Jars of more connectors, such as that of Kafka, for a session that the engine starts.
JARS = "FEATURESTORE_SPARK_JARS"

# Delta's log store of each scheme that the store's own writes to: commits never replace those of
# other writers.
LOG_STORES = {"file": "featurestore.delta.PosixLogStore", "s3": "featurestore.delta.S3LogStore"}
# What Delta commits by where it is told nothing, and what is right there: it renames without
# overwriting.
_LOG_STORE_OF_HDFS = "io.delta.storage.HDFSLogStore"
JVM_JAR = Path(__file__).parent / "jvm" / "featurestore-spark.jar"

_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_DELTA = {"spark.sql.extensions": _EXTENSION, "spark.sql.catalog.spark_catalog": _CATALOG}
_GLOBAL_LOG_STORE = "spark.delta.logStore.class"
_UTC_NAMES = ("UTC", "Etc/UTC", "GMT", "Z", "+00:00")
# Where Spark keeps the packages that it fetched, below the home.
_JAR_FOLDER = os.path.join(".ivy2.5.2", "jars")
_LOG_SETTINGS = os.path.join(os.path.dirname(__file__), "log4j2.properties")


def find_session() -> Any:
    """Return the active SparkSession, or None when this process has none."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:
        return None
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    # Other threads than the one that started Spark have no active session: the builder gives the
    # default one.
    return SparkSession.builder.getOrCreate()


def check_session(session: Any) -> None:
    """Make sure that a session somebody else started can hold the store.

    Raises:
        ConfigurationError: It does not know Delta, or its time zone is not UTC; the hint is what to
            add.
    """
    extensions = session.conf.get("spark.sql.extensions", "") or ""
    catalog = session.conf.get("spark.sql.catalog.spark_catalog", "") or ""
    if _EXTENSION not in extensions or catalog != _CATALOG:
        needed = ", ".join(f"{key}={value}" for key, value in _DELTA.items())
        raise ConfigurationError(
            "The active SparkSession is not configured for Delta tables.",
            hint=f"build it with {needed} and the package {delta_package()}, "
            "or start Python without it",
        )
    _check_delta_classes(session)
    zone = session.conf.get("spark.sql.session.timeZone", "")
    if zone not in _UTC_NAMES:
        raise ConfigurationError(
            f"The active SparkSession works in the time zone {zone!r}; "
            "the times of the store are UTC.",
            hint='spark.conf.set("spark.sql.session.timeZone", "UTC")',
        )
    _use_driver_interpreter(session)


def check_log_store(session: Any, path: str) -> None:
    """Make sure that commits of a session below a path do not replace those of other writers.

    Delta's own log store renames a commit into its place, over one that another process put there a
    moment before.

    Raises:
        ConfigurationError: The session commits by another log store; the hint is what to build it
            with.
    """
    scheme = scheme_of(path)
    # What the JVM was started with: Delta does not look at what a session sets later.
    configuration = session.sparkContext._jsc.getConf()
    if scheme == HDFS and _log_store_of(configuration, scheme) in (None, _LOG_STORE_OF_HDFS):
        return
    name = LOG_STORES.get(scheme, _LOG_STORE_OF_HDFS)
    if _log_store_of(configuration, scheme) == name and has_class(session, name):
        return
    raise ConfigurationError(
        "The active SparkSession would write Delta commits over those of other processes, "
        "which then lose rows.",
        hint=session_hint({_log_store_setting(scheme): name, "spark.jars": str(JVM_JAR)}),
    )


def session_hint(settings: Mapping[str, str]) -> str:
    """Return how to build a session with settings that one lacks."""
    settings_text = ", ".join(f"{key}={value}" for key, value in settings.items())
    return (
        f"build it with {settings_text}, or by featurestore_connectors.spark_delta.configure_session"
        "(SparkSession.builder, location=...).getOrCreate()"
    )


def start_session(location: str | None = None) -> Any:
    """Return a new session, local or on the master of the environment or of spark-submit.

    Args:
        location: Where the store is that it is for.

    Raises:
        MissingExtra: pyspark or delta-spark is not installed.
        MissingJava: No Java that Spark works with.
        EngineError: Spark did not start.
    """
    check_libraries()
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        check_java()
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # A session started inside Python reads this variable, not spark.pyspark.python; else workers
    # are PATH's python3.
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
        session.sparkContext.setLogLevel("ERROR")
    _check_delta_classes(session)
    return session


def configure_session(builder: Any, *, location: str | None = None) -> Any:
    """Return a ``SparkSession.builder`` with the settings and jars that the store needs.

    For a session of your own:

        builder = SparkSession.builder.master("local[2]")
        spark = configure_session(builder, location="s3://bucket/prefix").getOrCreate()

    Args:
        builder: What is built by ``getOrCreate()``.
        location: Where the store is. For S3 the session gets Hadoop's client of it, too, which
            Spark fetches once, unless ``spark.jars`` has it.
    """
    from delta import configure_spark_with_delta_pip

    user_jars = builder._options.get("spark.jars") or os.environ.get(JARS)
    jars = [user_jars] if user_jars else []
    jars.append(str(JVM_JAR))
    builder = builder.config(map=session_settings())
    packages: list[str] = []
    if location is not None and location.startswith("s3://") and not s3a.is_among(user_jars):
        packages.extend(s3a.PACKAGES)
        builder = builder.config(map=s3a.settings())
    fetched_jars = delta_jars()
    # Once fetched, Delta's jars are used as files: no network, no report of a resolver on every
    # start.
    if not packages and all(files.is_file(str(jar)) for jar in fetched_jars):
        jars.extend(map(str, fetched_jars))
        return builder.config("spark.jars", ",".join(jars))
    builder = builder.config("spark.jars", ",".join(jars))
    return configure_spark_with_delta_pip(builder, extra_packages=packages)


def session_settings() -> dict[str, str]:
    """Return what every session of ours is built with, wherever its JVM came from."""
    log_stores = {_log_store_setting(scheme): name for scheme, name in LOG_STORES.items()}
    return {
        **_DELTA,
        **log_stores,
        "spark.sql.session.timeZone": "UTC",
        # Not INT96, whose statistics no reader uses.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # Files written by pandas keep nanoseconds, which Spark refuses otherwise.
        "spark.sql.legacy.parquet.nanosAsLong": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    }


def settings_for_builder(location: str) -> dict[str, str]:
    """Return what a session of somebody else is built with for a store at a location.

    Raises:
        MissingExtra: delta-spark is not installed.
    """
    settings = {**session_settings(), "spark.jars": str(JVM_JAR)}
    packages = [delta_package()]
    if location.startswith("s3://"):
        packages.extend(s3a.PACKAGES)
        settings.update(s3a.settings())
    return {**settings, "spark.jars.packages": ",".join(packages)}


def is_local(session: Any) -> bool:
    """Tell whether the executors are threads of the driver."""
    return str(session.sparkContext.master).startswith("local")


def staging_directory(session: Any) -> str:
    """Return where streams are parked for the executors: a folder that all of them see.

    Raises:
        ConfigurationError: The session runs on a cluster and no such folder was named.
    """
    directory = os.environ.get(STAGING)
    if directory:
        files.make_directory(directory)
        return directory
    if is_local(session):
        return tempfile.gettempdir()
    raise ConfigurationError(
        "Data of this process has to reach the executors, and no folder that they share is known.",
        hint=f"set {STAGING} to a directory that the driver and all executors see",
    )


def check_libraries() -> None:
    """Raise MissingExtra when pyspark or delta-spark is not installed."""
    for library, module in (("pyspark", "pyspark"), ("delta-spark", "delta")):
        if importlib.util.find_spec(module) is None:
            raise missing_extra(library, "spark")


def delta_package() -> str:
    """Return the Maven coordinates of the Delta that belongs to the installed delta-spark."""
    try:
        return f"io.delta:delta-spark_2.13:{version('delta-spark')}"
    except PackageNotFoundError:
        raise missing_extra("delta-spark", "spark") from None


def delta_jars() -> list[Path]:
    """Return Delta's jars where Spark keeps what it fetched once; they may be absent."""
    folder = Path(os.path.expanduser("~"), _JAR_FOLDER)
    names = ("delta-spark_2.13", "delta-storage")
    return [folder / f"io.delta_{name}-{version('delta-spark')}.jar" for name in names]


def _launch_settings() -> dict[str, str]:
    """Return what is decided when the JVM starts.

    Where it runs, with how much memory, and that it is quiet.
    """
    master = os.environ.get(MASTER) or "local[*]"
    settings = {
        "spark.master": master,
        "spark.pyspark.python": os.environ["PYSPARK_PYTHON"],
        "spark.driver.memory": os.environ.get(DRIVER_MEMORY) or _default_memory(),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_SETTINGS}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": os.path.join(
            tempfile.gettempdir(), "featurestore-spark-warehouse"
        ),
    }
    if master.startswith("local"):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # The defaults are made for clusters: 200 and 50 tasks for a table of one file.
            "spark.sql.shuffle.partitions": str(max(2, 2 * usable_cores())),
            "spark.databricks.delta.snapshotPartitions": "1",
        }
    return settings


def _default_memory() -> str:
    """Return a quarter of the machine's memory, between one and eight GiB."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{min(8192, max(1024, installed // 4 // 2**20))}m"


def _log_store_setting(scheme: str) -> str:
    return f"spark.delta.logStore.{scheme}.impl"


def _log_store_of(configuration: Any, scheme: str) -> str | None:
    """Return the log store that Delta was told to use.

    For all schemes, else for one, with and without "spark.".
    """
    for setting in (_GLOBAL_LOG_STORE, _log_store_setting(scheme)):
        for key in (setting, setting.removeprefix("spark.")):
            name = str(configuration.get(key, ""))
            if name:
                return name
    return None


def _check_delta_classes(session: Any) -> None:
    """Refuse a JVM that has no Delta, as after spark-submit without --packages."""
    if not has_class(session, _CATALOG):
        raise ConfigurationError(
            "The Spark session has no Delta jars.",
            hint=f"spark-submit --packages {delta_package()} ...; "
            "where Python started Spark, start Python anew",
        )


def has_class(session: Any, name: str) -> bool:
    """Tell whether the JVM of a session has a class."""
    from py4j.protocol import Py4JJavaError

    machine = session._jvm
    loader = machine.Thread.currentThread().getContextClassLoader()
    try:
        machine.java.lang.Class.forName(name, True, loader)
    except Py4JJavaError:
        return False
    return True


def _add_jar_to_driver(session: Any) -> None:
    """Bring our log store to the driver of spark-submit, whose class path is fixed by then."""
    machine = session._jvm
    if not all(has_class(session, name) for name in LOG_STORES.values()):
        # The loader that spark-submit made for --jars and --packages; every thread of the driver
        # looks there.
        loader = machine.Thread.currentThread().getContextClassLoader()
        loader.addURL(machine.java.io.File(str(JVM_JAR)).toURI().toURL())


def _use_driver_interpreter(session: Any) -> None:
    """Let workers on this machine run this interpreter, unless the user chose one."""
    context = session.sparkContext
    if is_local(session) and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
