"""A real HDFS in one process, from Maven Central, in a temporary folder.

Its jars are fetched once into a cache outside of the repository. Where it cannot be fetched or
started, the tests that need it are skipped with a sentence.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.maven import NotFetched, fetched

VERSION = "3.4.1"
_POM = Path(__file__).parent / "storage" / "hdfs" / "server-pom.xml"
_MAIN = "org.apache.hadoop.test.MiniDFSClusterManager"
_PATIENCE = 300.0
# Files of several blocks are small.
_SETTINGS = {
    "dfs.replication": 2,
    "dfs.blocksize": 4 << 20,
    "dfs.namenode.fs-limits.min-block-size": 1 << 20,
}
# Closing a file does not wait half a second for the report of its last block.
QUICK = {"dfs.namenode.file.close.num-committed-allowed": 1}


class NoHdfs(Exception):
    """The reason why HDFS is not available."""


@dataclass(frozen=True)
class HdfsServer:
    """A running namenode with one datanode."""

    port: int

    @property
    def root(self) -> str:
        return f"hdfs://127.0.0.1:{self.port}"

    def site(self, cluster: str) -> str:
        """Return an hdfs-site.xml with this namenode as the only one of a cluster."""
        settings = {
            f"dfs.ha.namenodes.{cluster}": "one",
            f"dfs.namenode.rpc-address.{cluster}.one": f"127.0.0.1:{self.port}",
        }
        text = "<configuration>"
        for name, value in settings.items():
            text += f"<property><name>{name}</name><value>{value}</value></property>"
        return f"{text}</configuration>"


@cache
def hdfs_jars() -> Path:
    try:
        return fetched(_POM, f"hdfs-{VERSION}")
    except NotFetched as error:
        raise NoHdfs(str(error)) from None


@contextmanager
def serving(folder: Path, settings: dict[str, int] | None = None) -> Iterator[HdfsServer]:
    """Run HDFS in a folder while the block runs, bound to the loopback interface."""
    details = folder / "details.json"
    words = [
        "java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-cp", f"{hdfs_jars()}/*", _MAIN, "-format", "-datanodes", "2", "-nnport", "0",
        "-writeDetails", str(details),
    ]  # fmt: skip
    for name, value in {**_SETTINGS, **(settings or {})}.items():
        words += ["-D", f"{name}={value}"]
    log = folder / "hdfs.log"
    with log.open("wb") as output:
        # HDFS stops when its standard input closes, that is, with this process.
        server = subprocess.Popen(
            ["bash", "-c", '"$@" </dev/null & read -r; kill -9 $!', "hdfs", *words],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=folder,
        )
        try:
            yield HdfsServer(_port(server, details, log))
        finally:
            server.communicate()


def _port(server: subprocess.Popen[bytes], details: Path, log: Path) -> int:
    start = time.monotonic()
    while time.monotonic() - start < _PATIENCE:
        if details.exists() and (text := details.read_text()).endswith("}"):
            return int(json.loads(text)["namenode_port"])
        if server.poll() is not None:
            raise NoHdfs(f"it ended: {log.read_text()[-300:]}")
        time.sleep(0.05)
    raise NoHdfs(f"it did not start in {_PATIENCE:.0f} seconds: {log.read_text()[-300:]}")
