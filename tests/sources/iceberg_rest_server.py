"""A real REST catalog on the loopback interface: that of Iceberg's own tests, from Maven Central."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.maven import NotFetched, fetched

CODE = Path(__file__).with_name("iceberg_rest")
VERSION = "1.10.1"
TOKEN = "token-of-the-catalog-5d1f"
# A quick start matters more than speed.
_JAVA = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]


@dataclass(frozen=True)
class RestCatalogServer:
    """A running catalog, whose tables are in the folder ``root``."""

    port: int
    root: Path

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> Any:
        """Return a client of pyiceberg, which writes."""
        from pyiceberg.catalog.rest import RestCatalog

        return RestCatalog("writer", uri=self.uri, token=TOKEN)


def catalog_jars() -> Path:
    """Return the folder of the server's jars and its compiled class, fetched once."""
    folder = fetched(CODE / "pom.xml", f"iceberg-rest-{VERSION}")
    source = CODE / "CatalogServer.java"
    classes = folder / "classes"
    copy = classes / source.name
    if not copy.exists() or copy.read_bytes() != source.read_bytes():
        if shutil.which("javac") is None:
            raise NotFetched("a Java compiler is not installed")
        command = ["javac", "-cp", f"{folder}/*", "-d", str(classes), str(source)]
        compiled = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if compiled.returncode:
            raise NotFetched(f"the catalog could not be compiled: {compiled.stderr[-300:]}")
        shutil.copy(source, copy)
    return folder


@contextlib.contextmanager
def serving(root: Path, vended: dict[str, str]) -> Iterator[RestCatalogServer]:
    """Run a catalog whose tables are loaded with the settings ``vended``."""
    jars = catalog_jars()
    settings = [f"{name}={value}" for name, value in vended.items()]
    process = subprocess.Popen(
        [*_JAVA, "-cp", f"{jars}/classes:{jars}/*", "org.apache.iceberg.rest.CatalogServer",
         str(root), TOKEN, *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.strip().isdigit():
            raise RuntimeError("the REST catalog of the tests did not start")
        yield RestCatalogServer(int(line), root)
    finally:
        process.terminate()
        process.communicate(timeout=20)
