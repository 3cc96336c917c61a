"""A served store: rows per second of get_features through the server compared with the local call.

python benchmarks/remote.py [--quick]

One million labels are joined to ten features as of their times, and come as a pandas frame: from a
server in a process of its own over the loopback, labels sent and rows received, and from the same
directory. Both are timed in turns; the frames have to be equal.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from report import Report

import featurestore

NAMES = [f"f{index}" for index in range(10)]
HOUR = 3_600_000_000
START = 400_000 * HOUR
GOAL = 0.5
REPORT = Report("remote", "`get_features` to pandas over the loopback.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = 50_000 if options.quick else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        location = str(Path(folder) / "store")
        labels = fill(location, rows)
        with served(location) as (address, server):
            missed = compare(location, address, server, labels, options.rounds)
    REPORT.save(quick=options.quick)
    return missed


def fill(location: str, rows: int) -> pa.Table:
    """Make a group of as many rows with ten features, and return labels."""
    random = np.random.default_rng(0)
    keys, hours = max(rows // 100, 1), 100
    stamps = START + np.tile(np.arange(hours, dtype=np.int64) * HOUR, keys)
    columns = {
        "k": np.repeat(np.arange(keys), hours),
        "at": pa.array(stamps).cast(pa.timestamp("us", "UTC")),
    }
    for name in NAMES:
        columns[name] = random.random(keys * hours)
    with featurestore.connect(location) as store:
        store.create_featuregroup(pa.table(columns), "x", primary_key="k", event_time="at")
    times = START + random.integers(0, hours * HOUR, rows)
    return pa.table(
        {
            "k": random.integers(0, keys, rows),
            "asked": pa.array(times).cast(pa.timestamp("us", "UTC")),
        }
    )


@contextmanager
def served(location: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Yield the address of a server over a store, and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    program = "from featurestore.cli import main; main()"
    command = [sys.executable, "-c", program, "--location", location, "serve"]
    with subprocess.Popen([*command, "--port", port], stdout=subprocess.DEVNULL) as server:
        address = f"http://127.0.0.1:{port}"
        try:
            wait_for(f"{address}/healthz", server)
            yield address, server
        finally:
            server.terminate()


def wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(address, timeout=10).close()
            return
        except OSError:
            if server.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.2)


def compare(
    location: str,
    address: str,
    server: subprocess.Popen[bytes],
    labels: pa.Table,
    rounds: int,
) -> int:
    """Print both rates and their ratio; 1 where it misses the goal."""
    stores = {
        "local": featurestore.connect(location),
        "through the server": featurestore.connect(address),
    }
    names = [f"x.{name}" for name in NAMES]
    seconds: dict[str, list[float]] = {name: [] for name in stores}
    busy: dict[str, list[float]] = {name: [] for name in stores}
    frames: dict[str, pd.DataFrame] = {}
    for _ in range(rounds):
        for name, store in stores.items():
            start, used = time.perf_counter(), processor(server)
            frames[name] = store.get_features(names, labels=labels).to_pandas()
            seconds[name].append(time.perf_counter() - start)
            busy[name].append(processor(server) - used)
    if not frames["local"].equals(frames["through the server"]):
        raise SystemExit("the rows through the server differ from those of the local call")
    rates = {}
    for name in stores:
        rates[name] = len(labels) / statistics.median(seconds[name])
        used = statistics.median(busy[name])
        print(f"{name}: {rates[name]:,.0f} rows/s, {used:.2f} s of processor time")
    ratio = rates["through the server"] / rates["local"]
    by_processor = statistics.median(busy["local"]) / statistics.median(busy["through the server"])
    print(f"ratio of rows/s: {ratio:.2f} (goal {GOAL}), by processor time: {by_processor:.2f}")
    print(f"most memory of the server: {memory(server):,.0f} MB; the rows are equal")
    row = f"`get_features`, {len(labels):,} labels x 10, through the server, vs local"
    served_rate, local_rate = rates["through the server"], rates["local"]
    REPORT.compare(row, served_rate, local_rate, "rows/s", processor=by_processor, at_least=GOAL)
    return int(max(ratio, by_processor) < GOAL)


def processor(server: subprocess.Popen[bytes]) -> float:
    """Return the processor time of this process and the server so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return usage.ru_utime + usage.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def memory(server: subprocess.Popen[bytes]) -> float:
    """Return the most memory that the server held at once, in MB."""
    for line in Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1000
    return 0.0


if __name__ == "__main__":
    sys.exit(main())
