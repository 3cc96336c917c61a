"""Java, Python libraries and jars that the Spark engine needs, checked before Spark starts."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from featurestore.errors import MissingJava, missing_extra
from featurestore.storage.connections import connected_roots

# The Hadoop version of Spark 4.0, and the modules of its AWS client (15 MB instead of 558 MB for
# the complete AWS bundle).
S3A_PACKAGES = (
    "org.apache.hadoop:hadoop-aws:3.4.1",
    "software.amazon.awssdk:s3:2.24.6",
    "software.amazon.awssdk:s3-transfer-manager:2.24.5",
    "software.amazon.awssdk:sts:2.24.6",
)
# Spark has its own netty and logging libraries.
EXCLUDED = ("software.amazon.awssdk:bundle", "io.netty:*", "org.slf4j:*")
JVM_JAR = Path(__file__).parent / "jvm" / "featurestore-spark.jar"
# Spark's cache of downloaded packages, in the home directory.
_JAR_FOLDER = os.path.join(".ivy2.5.2", "jars")
S3A_FILE_SYSTEM = "org.apache.hadoop.fs.s3a.S3AFileSystem"
SUPPORTED = (17, 21)
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
    """Return the Maven coordinates of Delta for the installed version of delta-spark."""
    try:
        return f"io.delta:delta-spark_2.13:{version('delta-spark')}"
    except PackageNotFoundError:
        raise missing_extra("delta-spark", "spark") from None


def delta_jars() -> list[Path]:
    """Return the paths of Delta's jars in Spark's download cache; the files may not exist."""
    folder = Path(os.path.expanduser("~"), _JAR_FOLDER)
    names = ("delta-spark_2.13", "delta-storage")
    return [folder / f"io.delta_{name}-{version('delta-spark')}.jar" for name in names]


def includes_s3a(jars: str | None) -> bool:
    """Return whether a list of jars contains S3A.

    >>> includes_s3a("/jars/hadoop-aws-3.4.1.jar,/jars/s3-2.24.6.jar"), includes_s3a(None)
    (True, False)
    """
    return jars is not None and "hadoop-aws" in jars


def s3a_settings() -> dict[str, str]:
    """Return the session settings that download the S3A jars."""
    return {
        "spark.jars.packages": ",".join(S3A_PACKAGES),
        "spark.jars.excludes": ",".join(EXCLUDED),
    }


def connected_bucket() -> str | None:
    """Return an S3 bucket that this process has opened, or None."""
    for root in connected_roots():
        if root.startswith("s3://"):
            return root
    return None


def has_class(session: Any, name: str) -> bool:
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
