"""Java, Python libraries and jars that the Spark engine needs, checked before Spark starts."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from featurestore.errors import ConfigurationError, MissingJava, missing_extra
from featurestore.storage import storage_for
from featurestore.storage.connections import connected_roots
from featurestore.storage.location import scheme_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Hadoop's version in each minor version of Spark, and the versions of the modules of its AWS client
# (15 MB instead of 558 MB for the complete AWS bundle).
_HADOOP_OF_SPARK = {
    "4.0": ("3.4.1", "2.24.6", "2.24.5"),
    "4.1": ("3.4.2", "2.29.52", "2.29.52"),
    "4.2": ("3.5.0", "2.35.4", "2.35.4"),
}
# Spark has its own netty and logging libraries.
_EXCLUDED_OF_S3A = ("software.amazon.awssdk:bundle", "io.netty:*", "org.slf4j:*")
JVM_JAR = Path(__file__).parent / "jvm" / "featurestore-spark.jar"
# Spark's cache of downloaded packages, in the home directory.
_JAR_FOLDER = os.path.join(".ivy2.5.2", "jars")
_GCS_CONNECTOR = "3.0.4"
# Spark downloads packages without classifier only, so the engine downloads Google's connector,
# which has its libraries under other package names in the artifact with the classifier "shaded".
_GCS_MODULE = f"""\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="featurestore" module="gcs"/>
  <dependencies>
    <dependency org="com.google.cloud.bigdataoss" name="gcs-connector" rev="{_GCS_CONNECTOR}"
        transitive="false">
      <artifact name="gcs-connector" type="jar" ext="jar" m:classifier="shaded"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
SUPPORTED = (17, 21)
# The versions of Delta, from first to last, for each minor version of Spark, of which Delta's
# internal classes are tested. Delta 4.1 and 4.2 call a constructor that Spark 4.1.4 does not have
# when they read a checkpoint of another writer.
DELTA_OF_SPARK = {
    "4.0": ("4.0.1", "4.0.1"),
    "4.1": ("4.3.0", "4.4.0"),
    "4.2": ("4.4.0", "4.4.0"),
}
NEWEST_PAIR = ("4.2.0", "4.4.0")
# Since Delta 4.2, delta-spark needs Delta Kernel.
_FIRST_WITH_KERNEL = (4, 2)
_KERNEL = ("delta-kernel-api", "delta-kernel-defaults", "delta-kernel-unitycatalog")
# With it Ivy would download 27 modules (76 MB) that Spark contains or that tables at paths do not
# need, and fail if Maven's local repository has the description of such a module without its jar.
_EXCLUDED_OF_KERNEL = (
    "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.datatype:*",
    "com.github.luben:*",
    "com.google.code.findbugs:*",
    "commons-logging:*",
    "commons-pool:*",
    "io.airlift:*",
    "io.unitycatalog:*",
    "javax.annotation:*",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.locationtech.jts:*",
    "org.roaringbitmap:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
)
_HINT = (
    "install Java 17 (Debian: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17) or set JAVA_HOME"
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def check_libraries() -> None:
    """Raise MissingExtra if pyspark or delta-spark is not installed."""
    for library, module in (("pyspark", "pyspark"), ("delta-spark", "delta")):
        if importlib.util.find_spec(module) is None:
            raise missing_extra(library, "spark")

    check_pair()


def check_pair() -> None:
    """Check the installed pair of pyspark and delta-spark, if both are installed.

    Raises:
        ConfigurationError: The pair is not supported. The message has the pairs that are.
    """
    try:
        spark, delta = version("pyspark"), version("delta-spark")
    except PackageNotFoundError:
        return  # a session on a platform that has Delta's jars
    first, last = DELTA_OF_SPARK.get(_minor(spark), ("", ""))
    if first and _numbers(first) <= _numbers(delta) <= _numbers(last):
        return
    pairs = "; ".join(
        f"pyspark {minor} with delta-spark {first} to {last}"
        if first != last
        else f"pyspark {minor} with delta-spark {first}"
        for minor, (first, last) in DELTA_OF_SPARK.items()
    )
    raise ConfigurationError(
        f"The store does not support pyspark {spark} with delta-spark {delta}. Supported: {pairs}.",
        hint=f"pip install 'pyspark=={NEWEST_PAIR[0]}' 'delta-spark=={NEWEST_PAIR[1]}'",
    )


def check_java() -> int:
    """Return the major version of the Java installation that Spark would use.

    Raises:
        MissingJava: Java is not installed, does not run, or is not supported by Spark 4.
    """
    path = _java_path()
    try:
        process = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingJava(
            f"The Spark engine needs Java 17 or 21, but {path} does not run: {error}.", hint=_HINT
        ) from error
    # Java prints its version to standard error.
    version = parse_version(process.stderr + process.stdout)
    if version is None or process.returncode != 0:
        raise MissingJava(
            f"The Spark engine needs Java 17 or 21, but {path} does not run.", hint=_HINT
        )
    if version not in SUPPORTED:
        raise MissingJava(
            f"The Spark engine needs Java 17 or 21, but {path} is Java {version}.", hint=_HINT
        )
    return version


def parse_version(text: str) -> int | None:
    """Parse the major version from the output of ``java -version``; return None if it is missing.

    >>> parse_version('openjdk version "17.0.15" 2025-04-15')
    17
    >>> parse_version('java version "1.8.0_401"')
    8
    """
    match = _VERSION.search(text)
    return None if match is None else int(match.group(1))


def _java_path() -> str:
    """Return the path of the Java executable in JAVA_HOME, or else on the PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        path = os.path.join(home, "bin", "java")
        if not os.access(path, os.X_OK):
            raise MissingJava(
                f"The Spark engine needs Java 17 or 21, but JAVA_HOME={home!r} has no bin/java.",
                hint=_HINT,
            )
        return path
    executable = shutil.which("java")
    if executable is None:
        raise MissingJava(
            "The Spark engine needs Java 17 or 21, but there is no java on the PATH.", hint=_HINT
        )
    return executable


def delta_package() -> str:
    """Return the Maven coordinates of Delta for the installed versions of Spark and Delta."""
    spark, delta = installed_pair()
    return f"io.delta:{_delta_artifact(spark, delta)}:{delta}"


def delta_jars() -> list[Path]:
    """Return the paths of Delta's jars in Spark's download cache; the files may not exist."""
    spark, delta = installed_pair()
    names = [_delta_artifact(spark, delta), "delta-storage"]
    if _numbers(delta) >= _FIRST_WITH_KERNEL:
        names += _KERNEL
    folder = Path(os.path.expanduser("~"), _JAR_FOLDER)
    return [folder / f"io.delta_{name}-{delta}.jar" for name in names]


def installed_pair() -> tuple[str, str]:
    """Return the installed versions of pyspark and delta-spark."""
    try:
        return version("pyspark"), version("delta-spark")
    except PackageNotFoundError as error:
        raise missing_extra(str(error.name), "spark") from None


def _numbers(release: str) -> tuple[int, ...]:
    """Return the numbers of a release.

    >>> _numbers("4.2.0"), _numbers("4.0.1rc1")
    ((4, 2, 0), (4, 0, 1))
    """
    return tuple(map(int, re.findall(r"\.?(\d+)", release)[:3]))


def _minor(release: str) -> str:
    return ".".join(map(str, _numbers(release)[:2]))


def _delta_artifact(spark: str, delta: str) -> str:
    """Return the name of Delta's artifact, which has the version of Spark since Delta 4.1.

    >>> _delta_artifact("4.0.5", "4.0.1"), _delta_artifact("4.2.0", "4.4.0")
    ('delta-spark_2.13', 'delta-spark_4.2_2.13')
    """
    if _numbers(delta) < (4, 1):
        return "delta-spark_2.13"
    return f"delta-spark_{_minor(spark)}_2.13"


def s3a_packages() -> list[str]:
    """Return the Maven coordinates of S3A for the installed version of Spark."""
    hadoop, client, transfer_manager = _HADOOP_OF_SPARK[_minor(installed_pair()[0])]
    return [
        f"org.apache.hadoop:hadoop-aws:{hadoop}",
        f"software.amazon.awssdk:s3:{client}",
        f"software.amazon.awssdk:s3-transfer-manager:{transfer_manager}",
        f"software.amazon.awssdk:sts:{client}",
    ]


def s3a_settings() -> dict[str, str]:
    """Return the session settings that download the S3A jars."""
    return _download_settings(s3a_packages(), _EXCLUDED_OF_S3A)


def download_settings(*, with_s3a: bool) -> dict[str, str]:
    """Return the session settings that download the jars of Delta, and those of S3A if required."""
    packages = [delta_package()]
    excluded: list[str] = []
    if _numbers(installed_pair()[1]) >= _FIRST_WITH_KERNEL:
        excluded += _EXCLUDED_OF_KERNEL
    if with_s3a:
        packages += s3a_packages()
        excluded += _EXCLUDED_OF_S3A
    return _download_settings(packages, excluded)


def _download_settings(packages: Sequence[str], excluded: Sequence[str]) -> dict[str, str]:
    settings = {"spark.jars.packages": ",".join(packages)}
    if excluded:
        settings["spark.jars.excludes"] = ",".join(dict.fromkeys(excluded))
    return settings


def gcs_connector() -> Path:
    """Return the path of Google's connector in Spark's download cache; the file may not exist."""
    name = f"com.google.cloud.bigdataoss_gcs-connector-{_GCS_CONNECTOR}-shaded.jar"
    return Path(os.path.expanduser("~"), _JAR_FOLDER, name)


def fetch_gcs_connector() -> Path:
    """Return the path of Google's connector, which is downloaded once.

    Raises:
        ConfigurationError: The connector is not in a Maven repository that Ivy can reach.
        MissingExtra: pyspark, which contains Ivy, is not installed.
        MissingJava: Java is not installed.
    """
    connector = gcs_connector()
    if storage_for(str(connector)).is_file(str(connector)):
        return connector
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise missing_extra("pyspark", "spark")
    (ivy,) = Path(pyspark.origin).parent.glob("jars/ivy-*.jar")
    storage_for(str(connector.parent)).make_directory(str(connector.parent))
    # In the same file system, so that the complete jar can be moved to its name.
    with tempfile.TemporaryDirectory(dir=connector.parent) as folder:
        module = os.path.join(folder, "ivy.xml")
        storage_for(module).write_atomically(module, _GCS_MODULE.encode())
        command = [
            *(_java_path(), "-jar", str(ivy), "-ivy", module, "-cache", folder),
            *("-retrieve", os.path.join(folder, "[artifact].[ext]")),
        ]
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        jar = os.path.join(folder, "gcs-connector.jar")
        if finished.returncode or not storage_for(jar).is_file(jar):
            raise ConfigurationError(
                f"Google's connector could not be downloaded: {finished.stdout[-300:].strip()}",
                hint=f"copy gcs-connector-{_GCS_CONNECTOR}-shaded.jar to {connector}",
            )
        storage_for(jar).rename(jar, str(connector))
    return connector


@dataclass(frozen=True)
class HadoopClient:
    """Hadoop's client of a type of object store.

    Args:
        name: The name of the service.
        library: A part of the name of its jar.
        file_system: Its class.
        settings: Returns the settings of a session that has it.
    """

    name: str
    library: str
    file_system: str
    settings: Callable[[], dict[str, str]]


# By the scheme of locations.
CLIENTS = {
    "s3": HadoopClient("S3", "hadoop-aws", "org.apache.hadoop.fs.s3a.S3AFileSystem", s3a_settings),
    "gs": HadoopClient(
        "Google Cloud Storage",
        "gcs-connector",
        "featurestore.delta.GcsFileSystem",
        lambda: {"spark.jars": f"{JVM_JAR},{gcs_connector()}"},
    ),
}


def missing_client(location: str, user_jars: str | None) -> str | None:
    """Return the scheme of a location whose client a list of jars does not contain, or None.

    >>> missing_client("s3://models/store", None)
    's3'
    >>> missing_client("s3://models/store", "/jars/hadoop-aws-3.4.1.jar,/jars/s3-2.24.6.jar")
    """
    client = CLIENTS.get(scheme_of(location))
    if client is None or client.library in (user_jars or ""):
        return None
    return scheme_of(location)


def connected_bucket() -> str | None:
    """Return a bucket with a client for Spark that this process has opened, or None."""
    return next((root for root in connected_roots() if scheme_of(root) in CLIENTS), None)


def has_class(session: SparkSession, name: str) -> bool:
    """Return whether the JVM of a session can load a class."""
    from py4j.protocol import Py4JJavaError

    jvm = session._jvm
    # The context class loader includes jars of --jars and --packages.
    loader = jvm.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(name, True, loader)
    except Py4JJavaError:
        return False
    return True
