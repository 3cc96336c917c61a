"""Jars from Maven Central, downloaded once into a cache outside the repository.

A machine without Maven downloads Maven itself, too; it only needs Java and pyspark.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

MAVEN = "apache-maven-3.9.9"
_MAVEN_SHA512 = (
    "a555254d6b53d267965a3404ecb14e53c3827c09c3b94b5678835887ab404556"
    "bfaf78dcfe03ba76fa2508649dca8531c74bca4d5846513522404d48e8c4ac8b"
)
# Ivy, which pyspark contains, downloads the distribution of Maven from its default repository.
_MAVEN_MODULE = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="featurestore.tests" module="maven"/>
  <dependencies>
    <dependency org="org.apache.maven" name="apache-maven" rev="3.9.9" transitive="false">
      <artifact name="apache-maven" type="tar.gz" ext="tar.gz" m:classifier="bin"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


class NotFetched(Exception):
    """The reason why the jars are not available."""


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "featurestore-tests"


def fetched(pom: Path, name: str, versions: Mapping[str, str] | None = None) -> Path:
    """Return the folder of the jars of a pom, downloaded once; ``versions`` are its properties."""
    folder = cache_folder() / name
    if (folder / "complete").exists():
        return folder
    maven = maven_program()
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        maven, "-q", "-B", "-U", "-f", str(pom), "dependency:copy-dependencies",
        "-DincludeScope=runtime", f"-DoutputDirectory={folder}",
        *(f"-D{key}={value}" for key, value in (versions or {}).items()),
    ]  # fmt: skip
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=420, check=False)
    except subprocess.TimeoutExpired:
        raise NotFetched("Maven did not fetch its jars in seven minutes") from None
    if process.returncode:
        raise NotFetched(
            f"Maven could not fetch its jars: {(process.stdout + process.stderr)[-300:]}"
        )
    (folder / "complete").touch()
    return folder


def maven_program() -> str:
    """Return the path of Maven: the installed one, or one that is downloaded once."""
    installed = shutil.which("mvn")
    if installed is not None:
        return installed
    program = cache_folder() / MAVEN / "bin" / "mvn"
    if not program.exists():
        with tempfile.TemporaryDirectory() as directory:
            archive = _download_maven(Path(directory))
            with tarfile.open(archive) as packed:
                packed.extractall(cache_folder(), filter="data")
    return str(program)


def _download_maven(folder: Path) -> Path:
    """Download the distribution of Maven into a folder and check it."""
    java = shutil.which("java")
    if java is None:
        raise NotFetched("Java is not installed")
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise NotFetched("neither Maven nor pyspark is installed")
    (ivy,) = Path(pyspark.origin).parent.glob("jars/ivy-*.jar")
    (folder / "ivy.xml").write_text(_MAVEN_MODULE)
    command = [
        java, "-jar", str(ivy), "-ivy", "ivy.xml", "-cache", "cache",
        "-retrieve", "[artifact].[ext]",
    ]  # fmt: skip
    try:
        finished = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=False, cwd=folder
        )
    except subprocess.TimeoutExpired:
        raise NotFetched("Ivy did not fetch Maven in two minutes") from None
    archive = folder / "apache-maven.tar.gz"
    if finished.returncode or not archive.exists():
        raise NotFetched(f"Ivy could not fetch Maven: {finished.stdout[-300:]}")
    if hashlib.sha512(archive.read_bytes()).hexdigest() != _MAVEN_SHA512:
        raise NotFetched("the distribution of Maven has another checksum than expected")
    return archive
