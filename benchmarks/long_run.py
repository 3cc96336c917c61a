"""A server and a scheduler under load: memory, descriptors, threads and Python objects over time.

python benchmarks/long_run.py [--quick] [--minutes 60] [--clients 3] [--pause 0.2] [--folder DIR]

Client processes read pages and rows of the server while others insert, publish, export, validate,
compact and delete in the location, and the scheduler runs jobs, a publication and a monitor every
minute. After a warm-up, both processes are sampled; the figures are the medians of the first and of
the last quarter of the samples. What grew is printed: types, targets of descriptors, and threads.
SIGUSR2 writes the stacks of the Python threads of such a process to its log.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import http.client
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from report import COMPARISONS, Report

import featurestore
from featurestore.store import FeatureStore

REPORT = Report(
    "long_run",
    "A server and a scheduler under the load of other processes: the last quarter of the run against "
    "the first quarter.",
)
MIB = 1 << 20
SAMPLE_SECONDS = 10.0
WARM_UP = 0.15  # of the run
GROUPS = ("prices", "orders", "visits")
ADDRESSES = ("/", "/groups", "/groups/prices/1", "/lineage", "/jobs", "/monitors", "/search?q=pri")
JOBS = """
import featurestore

for name in ("prices", "orders"):
    featurestore.sql_job(
        f"{name}_by_minute", primary_key=["shop"], event_time="minute", window="1min",
        sql=f"select shop, date_trunc('minute', at) + interval 1 minute as minute, count(*) as n, "
            f"sum(value) as total from {name} where at >= $window_start and at < $window_end "
            "group by 1, 2",
        inputs={name: name}, schedule="* * * * *",
    )
featurestore.publish_job("publish_current", view="current", schedule="* * * * *")
featurestore.monitor_job("prices_watch", featuregroup="prices", schedule="* * * * *")
"""


def rows(count: int) -> pa.Table:
    """Return rows of a group with the current time."""
    now = datetime.now(UTC)
    return pa.table(
        {
            "id": [random.randrange(10_000) for _ in range(count)],
            "at": [now - timedelta(milliseconds=number) for number in range(count)],
            "shop": [f"shop{random.randrange(20)}" for _ in range(count)],
            "value": [random.random() for _ in range(count)],
        }
    )


def prepare(location: Path) -> None:
    """Create groups, a view, jobs and a monitor."""
    file = location.with_name("jobs.py")
    file.write_text(JOBS)
    with featurestore.connect(location) as store:
        for name in GROUPS:
            store.create_featuregroup(rows(500), name, primary_key="id", event_time="at")
        store.create_feature_view(
            "current", features=["prices.value", "orders.value as order_value"]
        )
        store.publish("current")
        store.register_jobs(file)


# -- the observed processes -----------------------------------------------------------------------


def observed(census_file: str, arguments: list[str]) -> None:
    """Run the command line; after SIGUSR1, write the types of objects and the threads to a file."""

    def count() -> None:
        for _ in range(2):
            gc.collect()
        # Python raises SystemError in another thread that is still filling a counted tuple, so no
        # other thread may run while the list of objects exists.
        interval = sys.getswitchinterval()
        sys.setswitchinterval(60)
        time.sleep(0.05)
        types = Counter(
            f"{type(item).__module__}.{type(item).__qualname__}" for item in gc.get_objects()
        )
        sys.setswitchinterval(interval)
        temporary = Path(f"{census_file}.new")
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        temporary.write_text(json.dumps({"types": types, "threads": names}))
        temporary.rename(census_file)

    faulthandler.register(signal.SIGUSR2, all_threads=True)
    # Not in the handler, which interrupts the main thread at any instruction.
    signal.signal(signal.SIGUSR1, lambda *_: threading.Thread(target=count).start())
    from featurestore.cli.main import main

    sys.argv = ["featurestore", *arguments]
    main()


@dataclass
class Sample:
    """One observation of a process: its memory in MiB, and what it has, by target, name and type.

    ``types`` are those of the objects that the garbage collector tracks.
    """

    seconds: float
    memory: float
    descriptors: Counter[str]
    threads: Counter[str]
    types: Counter[str]


class Process:
    """A server or a scheduler in a process of its own."""

    def __init__(self, name: str, folder: Path, *arguments: str) -> None:
        self.name, self.samples = name, list[Sample]()
        self._census = folder / f"{name}.census"
        command = [sys.executable, __file__, "--observe", str(self._census)]
        command += ["--location", str(folder / "store"), *arguments]
        self._log = (folder / f"{name}.log").open("w")
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def sample(self, started: float) -> None:
        """Observe the process, which counts its objects."""
        folder = Path(f"/proc/{self.process.pid}")
        memory = int(re.search(r"VmRSS:\s+(\d+)", (folder / "status").read_text())[1])  # type: ignore[index]
        descriptors = read_entries(folder / "fd", os.readlink)
        commands = read_entries(folder / "task", lambda task: (task / "comm").read_text())
        self._census.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + 60
        while not self._census.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        census = json.loads(self._census.read_text())
        names: dict[str, str] = census["threads"]
        # The operating system names a Python thread after the program.
        threads = Counter(
            re.sub(r"[\d-]+$", "", names.get(task, f"not Python: {command.strip()}"))
            for task, command in commands.items()
        )
        targets = Counter(re.sub(r"\[?\d+\]?", "N", target) for target in descriptors.values())
        sample = Sample(
            time.monotonic() - started,
            memory * 1024 / MIB,
            targets,
            threads,
            Counter(census["types"]),
        )
        self.samples.append(sample)

    def end(self) -> int:
        """End the process and return its exit status."""
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(timeout=120)
        self._log.close()
        return status


def read_entries(folder: Path, read: Callable[[Path], str]) -> dict[str, str]:
    """Return a value for each entry of a folder of /proc, without entries that disappear."""
    values = {}
    for entry in folder.iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            values[entry.name] = read(entry)
    return values


# -- the load -------------------------------------------------------------------------------------


def read_pages(port: int, counts: Counter[str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    for address in ADDRESSES:
        connection.request("GET", address)
        response = connection.getresponse()
        response.read()
        assert response.status == 200, (address, response.status)
        counts["pages"] += 1
    connection.close()


def read_remotely(port: int, counts: Counter[str]) -> None:
    with featurestore.connect(f"http://127.0.0.1:{port}") as store:
        store.get_featuregroups()
        store.search("price")
        assert store.get_featuregroup("prices").to_arrow().num_rows
        store.get_feature_view("current").server().get_vector({"id": random.randrange(10_000)})
        counts["remote reads"] += 4


def write(store: FeatureStore, counts: Counter[str]) -> None:
    name = random.choice(GROUPS)
    store.insert_into_featuregroup(rows(50), name, mode="upsert")
    store.publish("current")
    store.get_featuregroup(name).to_arrow()
    dataset = f"sample{os.getpid()}"
    frame = store.get_featuregroup("prices")
    version = store.create_training_dataset(frame, dataset, progress=False).version
    store.delete_training_dataset(dataset, version=version)
    store.add_featuregroup_tag(name, "round", str(counts["write rounds"]))
    if counts["write rounds"] % 20 == 19:
        store.compact_featuregroup(name)
        store.vacuum_featuregroup(name, retain="1h")
    counts["write rounds"] += 1


def client(folder: str, port: int, role: str, seconds: float, pause: float) -> None:
    """Send requests with pauses until the time has passed; then write their numbers to a file."""
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    store = featurestore.connect(Path(folder, "store")) if role == "write" else None
    while time.monotonic() < end:
        try:
            if store is not None:
                write(store, counts)
            else:
                read_pages(port, counts)
                read_remotely(port, counts)
        except (featurestore.FeatureStoreError, OSError, AssertionError) as error:
            counts["errors"] += 1
            print(f"{role}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        time.sleep(pause)
    Path(folder, f"counts{os.getpid()}").write_text(json.dumps(counts))


# -- the figures ----------------------------------------------------------------------------------


def report(process: Process, *, minutes: float, rounds: int) -> None:
    """Print and store the medians of the first and of the last quarter."""
    quarter = max(len(process.samples) // 4, 1)
    first, last = process.samples[:quarter], process.samples[-quarter:]
    measures: dict[str, Callable[[Sample], float]] = {
        "memory": lambda sample: sample.memory,
        "descriptors": lambda sample: sample.descriptors.total(),
        "threads": lambda sample: sample.threads.total(),
        "objects": lambda sample: sample.types.total(),
    }
    for field, measure in measures.items():
        unit = "MiB" if field == "memory" else ""
        figures = [statistics.median(map(measure, samples)) for samples in (first, last)]
        print(f"{process.name} {field}: {figures[0]:,.0f} -> {figures[1]:,.0f} {unit}", flush=True)
        REPORT.add(COMPARISONS, f"{process.name}, {field}", "first quarter", figures[0], unit)
        REPORT.add(COMPARISONS, f"{process.name}, {field}", "last quarter", figures[1], unit)
    print(f"  {minutes:.0f} minutes, {rounds} write rounds; what grew:", flush=True)
    for values in ("types", "descriptors", "threads"):
        growth = getattr(last[-1], values) - getattr(first[-1], values)
        for name, number in growth.most_common(12):
            print(f"  {number:+8,} {values}: {name}", flush=True)


def wait_for_server(port: int) -> None:
    """Wait until the server answers."""
    deadline = time.monotonic() + 120
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        else:
            return


def run(options: argparse.Namespace, folder: Path) -> int:
    prepare(folder / "store")
    port = 8790 + os.getpid() % 1000
    processes = [
        Process("server", folder, "serve", "--port", str(port)),
        Process("scheduler", folder, "scheduler", "start", "--every", "2s"),
    ]
    try:
        return observe(options, folder, port, processes)
    finally:
        for process in processes:
            process.process.kill()


def observe(options: argparse.Namespace, folder: Path, port: int, processes: list[Process]) -> int:
    """Send requests and observe the processes; return the exit status of the program."""
    seconds = options.minutes * 60
    wait_for_server(port)
    times = [str(seconds), str(options.pause)]
    roles = ["write", *["read"] * (options.clients - 1)]
    clients = [
        subprocess.Popen(
            [sys.executable, __file__, "--client", str(folder), str(port), role, *times],
            stdout=subprocess.DEVNULL,
        )
        for role in roles
    ]
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        time.sleep(SAMPLE_SECONDS)
        if time.monotonic() - started > seconds * WARM_UP:
            for process in processes:
                process.sample(started)
    statuses = [each.wait(timeout=300) for each in clients]
    counts: Counter[str] = Counter()
    for file in folder.glob("counts*"):
        counts.update(json.loads(file.read_text()))
    minutes = (time.monotonic() - started) / 60
    for process in processes:
        report(process, minutes=minutes, rounds=counts["write rounds"])
    print(dict(counts), flush=True)
    REPORT.add(COMPARISONS, "duration", "first quarter", minutes, "min")
    REPORT.save(quick=options.quick)
    statuses += [process.end() for process in processes]
    print("statuses", statuses)
    return 1 if counts["errors"] else 0


def main() -> int:
    if sys.argv[1:2] == ["--observe"]:
        observed(sys.argv[2], sys.argv[3:])
        return 0
    if sys.argv[1:2] == ["--client"]:
        client(sys.argv[2], int(sys.argv[3]), sys.argv[4], *map(float, sys.argv[5:]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.2)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.minutes = min(options.minutes, 2.0)
    if options.folder is not None:
        options.folder.mkdir(parents=True)
        return run(options, options.folder)
    with tempfile.TemporaryDirectory() as folder:
        return run(options, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
