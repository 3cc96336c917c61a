"""The Java that Spark would start.

Found and checked before it does, so that a wrong one is said in one sentence.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from featurestore.errors import MissingJava

SUPPORTED = (17, 21)
_HINT = (
    "install one (Debian: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17) or set JAVA_HOME"
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def check_java() -> int:
    """Return the major version of the Java that Spark would use.

    Raises:
        MissingJava: There is none, it does not run, or Spark 4 does not work with it.
    """
    path = _java_path()
    try:
        process = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingJava(
            f"The Spark engine needs Java 17 or 21, and {path} does not run: {error}.", hint=_HINT
        ) from error
    version = parse_version(process.stderr + process.stdout)
    if version is None or process.returncode != 0:
        raise MissingJava(
            f"The Spark engine needs Java 17 or 21, and {path} does not run.", hint=_HINT
        )
    if version not in SUPPORTED:
        raise MissingJava(
            f"The Spark engine needs Java 17 or 21, and {path} is Java {version}.", hint=_HINT
        )
    return version


def parse_version(text: str) -> int | None:
    """Return the major version in the answer of ``java -version``, or None.

    >>> parse_version('openjdk version "17.0.15" 2025-04-15')
    17
    >>> parse_version('java version "1.8.0_401"')
    8
    """
    match = _VERSION.search(text)
    return None if match is None else int(match.group(1))


def _java_path() -> str:
    home = os.environ.get("JAVA_HOME")
    if home:
        path = os.path.join(home, "bin", "java")
        if not os.access(path, os.X_OK):
            raise MissingJava(
                f"The Spark engine needs Java 17 or 21, and JAVA_HOME={home!r} has no bin/java.",
                hint=_HINT,
            )
        return path
    executable = shutil.which("java")
    if executable is None:
        raise MissingJava(
            "The Spark engine needs Java 17 or 21, and there is no java on the PATH.", hint=_HINT
        )
    return executable
