"""A Spark standalone cluster on this machine.

One master and one worker, from the files of the pip package.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.on_spark import QUICK_JAVA

_START_SECONDS = 240
# Two executors; no task starts before both are registered, so that each gets some.
EXECUTORS = (
    *("--conf", "spark.executor.cores=1"),
    *("--conf", "spark.cores.max=2"),
    *("--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0"),
)


def spark_home() -> Path:
    """Return the folder of the installed pyspark."""
    import pyspark

    return Path(pyspark.__file__).parent


def environment(*, java: str = QUICK_JAVA, **more: str) -> dict[str, str]:
    """Return the environment of every process of the cluster and of its drivers."""
    inherited = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SPARK_", "FEATURESTORE_"))
    }
    ours = {
        "SPARK_HOME": str(spark_home()),
        "SPARK_SCALA_VERSION": "2.13",  # else the worker looks for folders of a build
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "JDK_JAVA_OPTIONS": java,
    }
    return inherited | ours | more


@contextmanager
def standalone_cluster(
    folder: Path, *, memory: str = "2g", java: str = QUICK_JAVA
) -> Iterator[str]:
    """Yield the URL of a running master, and stop all processes afterwards.

    The worker has two cores: an application with ``EXECUTORS`` gets two executors. ``java`` are the
    options of every JVM.
    """
    port = _free_port()
    url = f"spark://127.0.0.1:{port}"
    (folder / "log4j2.properties").write_text(
        "rootLogger.level = info\nrootLogger.appenderRef.out.ref = out\nappender.out.type = Console\n"
        "appender.out.name = out\nappender.out.layout.type = PatternLayout\nappender.out.layout.pattern = %m%n\n"
    )
    arguments = ("--cores", "2", "--memory", memory, "--work-dir", str(folder / "work"), url)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes.append(
            _start(
                folder, "master", java, "master.Master", "--host", "127.0.0.1", "--port", str(port)
            )
        )
        processes.append(
            _start(folder, "worker", java, "worker.Worker", "--host", "127.0.0.1", *arguments)
        )
        _wait_for_text(folder / "worker.log", "Successfully registered with master")
        yield url
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
        for process in processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start(
    folder: Path, name: str, java: str, kind: str, *arguments: str
) -> subprocess.Popen[bytes]:
    # The command of spark-class, which would start another JVM to compute it.
    home = os.environ.get("JAVA_HOME")
    command = [
        str(Path(home, "bin", "java")) if home else "java",
        "-Xmx256m",
        "-cp",
        f"{folder}{os.pathsep}{spark_home() / 'jars' / '*'}",
        f"org.apache.spark.deploy.{kind}",
        "--webui-port",
        "0",
        *arguments,
    ]
    with open(folder / f"{name}.log", "wb") as log:
        return subprocess.Popen(
            command, env=environment(java=java), stdout=log, stderr=subprocess.STDOUT, cwd=folder
        )


def _wait_for_text(file: Path, text: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while text not in file.read_text(errors="replace"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{file} never said {text!r}:\n{file.read_text(errors='replace')}")
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
