"""A Spark standalone cluster on this machine, from the files of the pip package."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.on_spark import QUICK_JAVA

_START_SECONDS = 240
# Two executors; no task starts before both are registered, or waits for the one with its rows, so
# that each gets some.
EXECUTORS = (
    *("--conf", "spark.executor.cores=1"),
    *("--conf", "spark.cores.max=2"),
    *("--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0"),
    *("--conf", "spark.locality.wait=0s"),
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


class StandaloneCluster:
    """A running master and its workers; tests kill and start workers and executors.

    Args:
        folder: The folder of logs, of applications and of shuffle files.
        cores: The cores of each worker.
        memory: The memory of each worker.
        java: The options of every JVM.
    """

    def __init__(self, folder: Path, *, cores: int, memory: str, java: str) -> None:
        self.folder = folder
        self.workers: list[subprocess.Popen[bytes]] = []
        self._leaving: list[subprocess.Popen[bytes]] = []
        self._cores = cores
        self._memory = memory
        self._java = java
        port = _free_port()
        self.url = f"spark://127.0.0.1:{port}"
        (folder / "log4j2.properties").write_text(
            "rootLogger.level = info\nrootLogger.appenderRef.out.ref = out\nappender.out.type = Console\n"
            "appender.out.name = out\nappender.out.layout.type = PatternLayout\nappender.out.layout.pattern = %m%n\n"
        )
        self._master = self._start("master", "master.Master", "--port", str(port))

    def start_worker(self) -> Path:
        """Start a worker and return its log.

        Each worker has an address of its own: Spark starts no copy of a task on the host of the task.
        """
        number = len(list(self.folder.glob("worker-*.log")))
        name, host = f"worker-{number}", f"127.0.0.{number + 2}"
        limits = ("--cores", str(self._cores), "--memory", self._memory)
        work = ("--work-dir", str(self.folder / "work"))
        worker = self._start(name, "worker.Worker", *limits, *work, self.url, host=host)
        self.workers.append(worker)
        return self.folder / f"{name}.log"

    def wait_for_worker(self, log: Path) -> None:
        """Wait until a worker is registered."""
        _wait_for_text(log, "Successfully registered with master")

    def executors(self) -> list[int]:
        """Return the process ids of the executors of all workers."""
        return [
            pid for worker in (*self.workers, *self._leaving) for pid in _executors_of(worker.pid)
        ]

    def kill_worker(self) -> None:
        """Kill the first worker together with its executors, as if its machine were lost."""
        worker = self.workers.pop(0)
        executors = _executors_of(worker.pid)
        worker.kill()
        for pid in executors:
            os.kill(pid, signal.SIGKILL)
        worker.wait()

    def decommission_worker(self) -> None:
        """Announce the end of the first worker, which then ends after its executors."""
        worker = self.workers.pop(0)
        self._leaving.append(worker)
        worker.send_signal(signal.SIGPWR)

    def restore(self, workers: int) -> None:
        """Start the workers that were killed."""
        for log in [self.start_worker() for _ in range(workers - len(self.workers))]:
            self.wait_for_worker(log)

    def stop(self) -> None:
        """Stop all processes."""
        processes = [*self._leaving, *self.workers, self._master]
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(
        self, name: str, class_name: str, *arguments: str, host: str = "127.0.0.1"
    ) -> subprocess.Popen[bytes]:
        # The command of spark-class, which would start another JVM to compute it.
        home = os.environ.get("JAVA_HOME")
        command = [
            str(Path(home, "bin", "java")) if home else "java",
            "-Xmx256m",
            "-Dspark.decommission.enabled=true",
            "-cp",
            f"{self.folder}{os.pathsep}{spark_home() / 'jars' / '*'}",
            f"org.apache.spark.deploy.{class_name}",
            *("--host", host, "--webui-port", "0"),
            *arguments,
        ]
        folders = str(self.folder / "local")
        env = environment(java=self._java, SPARK_LOCAL_DIRS=folders, SPARK_LOCAL_IP=host)
        with open(self.folder / f"{name}.log", "wb") as log:
            return subprocess.Popen(
                command, env=env, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder
            )


@contextmanager
def standalone_cluster(
    folder: Path, *, workers: int = 1, memory: str = "2g", java: str = QUICK_JAVA
) -> Iterator[StandaloneCluster]:
    """Yield a running cluster, and stop all processes afterwards.

    The workers share two cores and the memory (in GiB): an application with ``EXECUTORS`` gets two
    executors. ``java`` are the options of every JVM.
    """
    memory_of_worker = f"{int(memory.removesuffix('g')) // workers}g"
    cluster = StandaloneCluster(folder, cores=2 // workers, memory=memory_of_worker, java=java)
    try:
        for log in [cluster.start_worker() for _ in range(workers)]:
            cluster.wait_for_worker(log)
        yield cluster
    finally:
        cluster.stop()


def _executors_of(worker: int) -> list[int]:
    """Return the process ids of the executors that a worker started."""
    executors = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # processes end
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == worker and b"ExecutorBackend" in (folder / "cmdline").read_bytes():
                executors.append(int(folder.name))
    return executors


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
