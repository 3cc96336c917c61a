"""The SparkSession behind the engine: the active one when there is one, else a new one that knows Delta."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from featurestore.errors import ConfigurationError, EngineError, missing_extra
from featurestore_connectors.spark_delta.java import check_java

MASTER = "FEATURESTORE_SPARK_MASTER"
DRIVER_MEMORY = "FEATURESTORE_SPARK_DRIVER_MEMORY"
STAGING = "FEATURESTORE_SPARK_STAGING"

_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_DELTA = {"spark.sql.extensions": _EXTENSION, "spark.sql.catalog.spark_catalog": _CATALOG}
_JAR_FOLDER = os.path.join(
    ".ivy2.5.2", "jars"
)  # where Spark keeps the packages that it fetched, below the home
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
    # Other threads than the one that started Spark have no active session: the builder answers with the default one.
    return active if active is not None else SparkSession.builder.getOrCreate()


def check_session(session: Any) -> None:
    """Make sure that a session somebody else started can hold the store.

    Raises:
        ConfigurationError: It does not know Delta, or its time zone is not UTC; the hint is what to add.
    """
    extensions = session.conf.get("spark.sql.extensions", "") or ""
    catalog = session.conf.get("spark.sql.catalog.spark_catalog", "") or ""
    if _EXTENSION not in extensions or catalog != _CATALOG:
        needed = ", ".join(f"{key}={value}" for key, value in _DELTA.items())
        raise ConfigurationError(
            "The active SparkSession is not configured for Delta tables.",
            hint=f"build it with {needed} and the package {delta_package()}, or start Python without it",
        )
    _check_delta_classes(session)
    zone = session.conf.get("spark.sql.session.timeZone", "")
    if zone not in ("UTC", "Etc/UTC", "GMT", "Z", "+00:00"):
        raise ConfigurationError(
            f"The active SparkSession works in the time zone {zone!r}; the times of the store are UTC.",
            hint='spark.conf.set("spark.sql.session.timeZone", "UTC")',
        )
    _use_own_interpreter(session)


def start_session() -> Any:
    """Return a new session: local, or on the master of $FEATURESTORE_SPARK_MASTER or of spark-submit.

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

    # A session started inside Python reads this variable, not spark.pyspark.python; else workers are PATH's python3.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("featurestore")
    for key, value in (session_settings() | ({} if submitted else _launch_settings())).items():
        builder = builder.config(key, value)
    try:
        session = (builder if submitted else _with_delta(builder)).getOrCreate()
    except (PySparkException, RuntimeError, OSError) as error:
        raise EngineError(f"Spark did not start: {error}", hint="featurestore doctor") from error
    if not submitted:
        session.sparkContext.setLogLevel("ERROR")
    _check_delta_classes(session)
    return session


def session_settings() -> dict[str, str]:
    """Return what every session of ours is built with, wherever its JVM came from."""
    return {
        **_DELTA,
        "spark.sql.session.timeZone": "UTC",
        # Not INT96, whose statistics no reader uses.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # Files written by pandas keep nanoseconds, which Spark refuses otherwise.
        "spark.sql.legacy.parquet.nanosAsLong": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    }


def is_local(session: Any) -> bool:
    """Tell whether the executors are threads of the driver."""
    return str(session.sparkContext.master).startswith("local")


def staging_directory(session: Any) -> str:
    """Return where streams are parked for the executors: a folder that all of them see.

    Raises:
        ConfigurationError: The session runs on a cluster and no such folder was named.
    """
    chosen = os.environ.get(STAGING)
    if chosen:
        os.makedirs(chosen, exist_ok=True)
        return chosen
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


def _launch_settings() -> dict[str, str]:
    """Return what is decided when the JVM starts: where it runs, with how much memory, and that it is quiet."""
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
            "spark.sql.shuffle.partitions": str(max(2, 2 * (os.cpu_count() or 1))),
            "spark.databricks.delta.snapshotPartitions": "1",
        }
    return settings


def _with_delta(builder: Any) -> Any:
    from delta import configure_spark_with_delta_pip

    # Once fetched, the jars are used as files: no network, no report of a resolver on every start.
    folder = Path(os.path.expanduser("~"), _JAR_FOLDER)
    jars = [
        folder / f"io.delta_{name}-{version('delta-spark')}.jar"
        for name in ("delta-spark_2.13", "delta-storage")
    ]
    if all(jar.is_file() for jar in jars):
        return builder.config("spark.jars", ",".join(map(str, jars)))
    return configure_spark_with_delta_pip(builder)


def _default_memory() -> str:
    """Return a quarter of the machine's memory, between one and eight GiB."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{min(8192, max(1024, total // 4 // 2**20))}m"


def _check_delta_classes(session: Any) -> None:
    """Raise when the settings name Delta but its jars are not there (spark-submit without --packages)."""
    from py4j.protocol import Py4JJavaError

    try:
        loader = session._jvm.Thread.currentThread().getContextClassLoader()
        session._jvm.java.lang.Class.forName(_CATALOG, True, loader)
    except Py4JJavaError as error:
        raise ConfigurationError(
            "The Spark session has no Delta jars.",
            hint=f"spark-submit --packages {delta_package()} ...; where Python started Spark, start Python anew",
        ) from error


def _use_own_interpreter(session: Any) -> None:
    """Let workers on this machine run this interpreter, unless the user chose one."""
    context = session.sparkContext
    if is_local(session) and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
