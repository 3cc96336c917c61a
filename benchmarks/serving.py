"""Serving: latency of feature vectors, speed of publication and memory per key, compared with Feast.

python benchmarks/serving.py [--quick] [--keys 1000000] [--only latency batches ...] [--feast FOLDER]

``latency`` compares ``get_vector`` with a bare MGET of the same keys whose values are decoded by
struct, on Redis and in the embedded store. ``batches`` reads 100 entities at once. ``publication``
counts rows per second, complete and after changes of 100 and 10,000 keys; ``postgres`` does so with
Postgres, whose server has its default settings. ``registry`` measures the latency among 10 and
10,000 groups. ``feast`` serves the same rows with Feast in an environment of
its own, which is made in FOLDER, from the same Redis server. The program ends with 1 if a vector
differs from the rows that were written, or a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import redis
from report import COMPARISONS, Report
from sources import server as postgres_server

import featurestore
from featurestore.registry import featuregroups
from featurestore.serving.seals import SEAL_BYTES
from featurestore.store import FeatureStore

FEAST = "feast[redis]==0.67.0"
GROUPS, FEATURES = 3, 10
EVENT_TIME = datetime(2026, 1, 1, tzinfo=UTC)
# The rows of Feast: its materialization of a million keys takes ten minutes.
FEAST_KEYS = 100_000
REPORT = Report(
    "serving",
    "Three groups of 10 float64 features, one client process, Redis 7.0 on loopback with redis-py "
    "and hiredis, embedded SQLite. 'Bare' is an MGET of the same keys, decoded by struct.",
)
SECTIONS = ("latency", "batches", "publication", "postgres", "registry", "feast")


class Figures:
    """The figures of a run, and the limits that they missed."""

    def __init__(self) -> None:
        self.missed: list[str] = []

    def report(
        self,
        row: str,
        value: float,
        unit: str = "",
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        limit = ""
        if at_most is not None:
            limit = f"(at most {at_most:,g})"
        elif at_least is not None:
            limit = f"(at least {at_least:,g})"
        print(f"  {row:62}{value:14,.2f} {unit:8}{limit}", flush=True)
        REPORT.add(COMPARISONS, row, "ours", value, unit, at_most=at_most, at_least=at_least)
        too_high = at_most is not None and value > at_most
        if too_high or (at_least is not None and value < at_least):
            self.missed.append(row)


@contextmanager
def redis_server(folder: Path) -> Iterator[int]:
    """Start a server without persistence and yield its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(port=port) as client:
            while True:
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait()


def rows_of(group: int, keys: Sequence[int] | np.ndarray[Any, Any], *, salt: int = 0) -> pa.Table:
    """Return the rows of keys in a group; values follow from the key, the group and the salt."""
    numbers = np.asarray(keys, dtype=np.int64)
    columns: dict[str, Any] = {
        "key": numbers,
        "at": [EVENT_TIME + timedelta(seconds=salt)] * len(numbers),
    }
    for feature in range(FEATURES):
        columns[f"g{group}_f{feature}"] = numbers / 7 + group + feature * 0.5 + salt
    return pa.table(columns)


def create_view(store: FeatureStore, key_count: int) -> Any:
    for group in range(GROUPS):
        store.create_featuregroup(
            rows_of(group, np.arange(key_count)),
            f"g{group}",
            primary_key="key",
            event_time="at",
            statistics=False,
        )
    names = [f"g{group}.g{group}_f{n}" for group in range(GROUPS) for n in range(FEATURES)]
    return store.create_feature_view("served", features=names)


def percentiles(calls: int, call: Callable[[int], object]) -> tuple[float, float]:
    """Return the median and the 99th percentile of the duration of calls, in microseconds."""
    durations = []
    for number in range(calls):
        begin = time.perf_counter()
        call(number)
        durations.append(time.perf_counter() - begin)
    durations.sort()
    return durations[calls // 2] * 1e6, durations[calls * 99 // 100] * 1e6


def in_turns(
    calls: Mapping[str, Callable[[int], object]], *, rounds: int, count: int
) -> dict[str, tuple[float, float]]:
    """Return the medians over rounds of each call's percentiles; calls take turns."""
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            measured = percentiles(count, call)
            if number:  # the first round warms up
                results[name].append(measured)
    return {
        name: (
            statistics.median(p50 for p50, _ in measured),
            statistics.median(p99 for _, p99 in measured),
        )
        for name, measured in results.items()
    }


def bare_reader(server: Any, port: int) -> Callable[[Sequence[int]], list[tuple[Any, ...]]]:
    """Return a function that reads the keys of the server by MGET and decodes them by struct."""
    program = next(iter(server._backend._programs.values()))
    readers = [reader for _, readers in program.stages for reader in readers]
    client = redis.Redis(port=port)
    # Header and times of 35 bytes and the null bitmap precede the values, a seal follows.
    values = struct.Struct(f"<{15 + 20 + (FEATURES + 7) // 8}x{FEATURES}d{SEAL_BYTES}x")
    unpack = values.unpack

    def read(keys: Sequence[int]) -> list[tuple[Any, ...]]:
        # The keys are computed as the server does, outside of its bookkeeping.
        names = [reader.key({"key": key}) for key in keys for reader in readers]
        packed_values: Any = client.mget(names)
        return [unpack(value) for value in packed_values]

    return read


def check_vectors(server: Any, key_count: int) -> None:
    """Compare vectors with the rows that were written."""
    for key in (0, 1, key_count // 2, key_count - 1):
        vector = server.get_vector({"key": key})
        expected: dict[str, Any] = {}
        for group in range(GROUPS):
            row = rows_of(group, [key]).to_pylist()[0]
            expected |= {name: row[name] for name in row if name.startswith("g")}
        assert dict(vector) == expected, f"key {key}: {dict(vector)} is not {expected}"
        assert vector.status == "found"


def measure_latency(view: Any, port: int, key_count: int, figures: Figures, *, quick: bool) -> None:
    rounds, count = (3, 300) if quick else (7, 3000)
    random = np.random.default_rng(0).integers(0, key_count, count).tolist()
    with view.server(online="cache") as server, view.server() as embedded:
        check_vectors(server, key_count)
        check_vectors(embedded, key_count)
        bare = bare_reader(server, port)
        measured = in_turns(
            {
                "bare": lambda number: bare([random[number]]),
                "redis": lambda number: server.get_vector({"key": random[number]}),
                "embedded": lambda number: embedded.get_vector({"key": random[number]}),
            },
            rounds=rounds,
            count=count,
        )
    for index, percentile in enumerate(("p50", "p99")):
        ours, peer = measured["redis"][index], measured["bare"][index]
        row = f"one vector from Redis, {percentile}"
        figures.report(row, ours, "us")
        figures.report(f"{row}, vs bare MGET", ours / peer, at_most=1.3)
    figures.report("one vector from the embedded store, p50", measured["embedded"][0], "us")
    p99 = measured["embedded"][1]
    figures.report("one vector from the embedded store, p99", p99, "us", at_most=1000)


def measure_batches(view: Any, port: int, key_count: int, figures: Figures, *, quick: bool) -> None:
    rounds, count = (3, 50) if quick else (5, 300)
    random = np.random.default_rng(1).integers(0, key_count, (count, 100)).tolist()
    entities = [[{"key": key} for key in keys] for keys in random]
    with view.server(online="cache") as server:
        bare = bare_reader(server, port)
        calls: dict[str, Callable[[int], object]] = {
            "bare": lambda number: bare(random[number]),
            "dicts": lambda number: server.get_vectors(entities[number]),
            "numpy": lambda number: server.get_vectors(entities[number], as_="numpy"),
        }
        measured = in_turns(calls, rounds=rounds, count=count)
    for form in ("dicts", "numpy"):
        p50, p99 = measured[form]
        figures.report(f"100 vectors as {form} from Redis, p50", p50, "us")
        figures.report(f"100 vectors as {form} from Redis, p99", p99, "us")
        figures.report(f"100 vectors as {form} from Redis, p50 vs bare", p50 / measured["bare"][0])


def measure_publication(store: FeatureStore, port: int, key_count: int, figures: Figures) -> None:
    """Report the speed of complete publications, and the time after changes."""
    for name, label in (("cache", "Redis"), (None, "the embedded store")):
        begin, work = time.perf_counter(), time.process_time()
        publication = store.publish("served", to=name, full=True)
        seconds, work = time.perf_counter() - begin, time.process_time() - work
        rows = sum(publication.rows.values())
        assert rows == GROUPS * key_count
        limit = 200_000 if label == "Redis" else None
        figures.report(
            f"publication to {label}, per processor second", rows / work, "rows/s", at_least=limit
        )
        figures.report(f"publication to {label}", rows / seconds, "rows/s")
    client = redis.Redis(port=port)
    information: Any = client.info("memory")
    key_total: Any = client.dbsize()
    figures.report("Redis memory per value", information["used_memory"] / key_total, "bytes")
    times = publish_changes(store, key_count)
    for changed, seconds in times.items():
        figures.report(f"publication of {changed:,} appended keys", seconds * 1e3, "ms")
    few = key_count // 10
    with (
        tempfile.TemporaryDirectory() as directory,
        featurestore.connect(Path(directory) / "store") as small_store,
    ):
        create_view(small_store, few)
        small_store.add_online_store("cache", f"redis://127.0.0.1:{port}/2")
        small_store.publish("served", to="cache")
        seconds = publish_changes(small_store, few)[100]
    row = f"publication of 100 appended keys, among {key_count:,} keys vs {few:,}"
    figures.report(row, times[100] / seconds, at_most=1.5)


def publish_changes(store: FeatureStore, key_count: int) -> dict[int, float]:
    """Return the median seconds of incremental publications, by the number of changed keys."""
    times: dict[int, list[float]] = {100: [], 10_000: []}
    for salt, changed in enumerate((100, 10_000) * 5, start=1):
        keys = np.random.default_rng(salt).choice(key_count, min(changed, key_count), replace=False)
        store.insert_into_featuregroup(rows_of(0, keys, salt=salt), "g0", mode="append")
        begin = time.perf_counter()
        publication = store.publish("served", to="cache")
        times[changed].append(time.perf_counter() - begin)
        assert publication.mode == "incremental"
        assert sum(publication.rows.values()) == len(keys)
        with store.get_feature_view("served").server(online="cache") as server:
            value = server.get_vector({"key": int(keys[0])})["g0_f0"]
            assert value == keys[0] / 7 + salt
    return {changed: statistics.median(seconds) for changed, seconds in times.items()}


def measure_postgres(store: FeatureStore, key_count: int, figures: Figures, *, quick: bool) -> None:
    """Report the speed of publications to Postgres by COPY, and the latency of one vector."""
    count = 300 if quick else 3000
    with postgres_server(fsync="on") as url:
        store.add_online_store("database", url)
        begin, work = time.perf_counter(), time.process_time()
        publication = store.publish("served", to="database")
        seconds, work = time.perf_counter() - begin, time.process_time() - work
        rows = sum(publication.rows.values())
        figures.report("publication to Postgres, per processor second", rows / work, "rows/s")
        figures.report("publication to Postgres", rows / seconds, "rows/s")
        with store.get_feature_view("served").server(online="database") as server:
            check_vectors(server, key_count)
            calls = {"ours": lambda number: server.get_vector({"key": number * 7 % key_count})}
            p50, p99 = in_turns(calls, rounds=3, count=count)["ours"]
        figures.report("one vector from Postgres, p50", p50, "us")
        figures.report("one vector from Postgres, p99", p99, "us")
        store.remove_online_store("database")


def measure_registry(folder: Path, figures: Figures, *, quick: bool) -> None:
    """Report the latency among few and many registered groups."""
    medians = {}
    count = 300 if quick else 3000
    for group_count in (10, 300 if quick else 10_000):
        with featurestore.connect(folder / f"registry-{group_count}") as store:
            view = create_view(store, 1000)
            spec = store.featuregroup("g0").spec
            with store.session.registry.transaction() as connection:
                for number in range(group_count):
                    registered = replace(spec, name=f"other_{number}")
                    featuregroups.add(connection, registered, table_id=f"{number}", delta_version=1)
            store.publish("served")
            with view.server() as server:
                calls = {"ours": lambda number, s=server: s.get_vector({"key": number % 1000})}
                medians[group_count] = in_turns(calls, rounds=3, count=count)["ours"][0]
    few, many = medians.values()
    row = f"one vector, {max(medians):,} other groups registered vs {min(medians)}"
    figures.report(row, many / few, at_most=1.2)


_FEAST_SCRIPT = """
import json, sys, time
from datetime import timedelta
from pathlib import Path
import pandas as pd
import pyarrow.parquet as pq
from feast import Entity, FeatureService, FeatureStore, FeatureView, Field, FileSource
from feast.types import Float64
from feast.value_type import ValueType
folder, port, count, batches, key_count = json.loads(sys.argv[1])
folder = Path(folder)
(folder / "feature_store.yaml").write_text(f'''
project: serving
registry: {folder}/registry.db
provider: local
online_store: {{type: redis, connection_string: "localhost:{port},db=1"}}
offline_store: {{type: file}}
entity_key_serialization_version: 3
''')
store = FeatureStore(repo_path=str(folder))
key = Entity(name="key", join_keys=["key"], value_type=ValueType.INT64)
views = []
for group in range(3):
    source = FileSource(path=str(folder / f"g{group}.parquet"), timestamp_field="at")
    schema = [Field(name=f"g{group}_f{n}", dtype=Float64) for n in range(10)]
    views.append(FeatureView(name=f"g{group}", entities=[key], ttl=timedelta(days=3650),
                             schema=schema, source=source, online=True))
service = FeatureService(name="all", features=views)
store.apply([key, *views, service])
begin = time.perf_counter()
store.materialize(pd.Timestamp("2025-12-31", tz="UTC"), pd.Timestamp("2026-01-02", tz="UTC"))
materialized = 3 * key_count / (time.perf_counter() - begin)
service = store.get_feature_service("all")
def read(keys):
    rows = [{"key": key} for key in keys]
    return store.get_online_features(features=service, entity_rows=rows).to_dict()
def percentiles(calls, call):
    durations = []
    for number in range(calls):
        begin = time.perf_counter()
        call(number)
        durations.append(time.perf_counter() - begin)
    durations.sort()
    return durations[calls // 2] * 1e6, durations[calls * 99 // 100] * 1e6
percentiles(100, lambda number: read([number]))
one = percentiles(count, lambda number: read([number * 7 % key_count]))
many = percentiles(batches, lambda number: read([(number * 100 + n) * 7 % key_count for n in range(100)]))
print("RESULT " + json.dumps({"one": one, "many": many, "rows": materialized,
                              "first": read([5])["g1_f3"][0]}))
"""


def measure_feast(
    view: Any, folder: Path, environment: Path, port: int, figures: Figures, *, quick: bool
) -> None:
    """Compare latency and memory with Feast on the same Redis server."""
    import pyarrow.parquet as pq

    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", FEAST], check=True)
    key_count = 5_000 if quick else FEAST_KEYS
    repository = folder / "feast"
    repository.mkdir()
    for group in range(GROUPS):
        pq.write_table(rows_of(group, np.arange(key_count)), repository / f"g{group}.parquet")
    count, batches = (200, 20) if quick else (2000, 200)
    client = redis.Redis(port=port)
    before: Any = client.info("memory")
    arguments = json.dumps([str(repository), port, count, batches, key_count])
    environment_variables = os.environ | {"FEAST_USAGE": "False"}
    finished = subprocess.run(
        [str(python), "-c", _FEAST_SCRIPT, arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment_variables,
    )
    if finished.returncode:
        print(f"Feast failed: {finished.stderr.strip().splitlines()[-1]}", flush=True)
        return
    line = next(line for line in finished.stdout.splitlines() if line.startswith("RESULT "))
    result = json.loads(line.removeprefix("RESULT "))
    assert result["first"] == rows_of(1, [5]).column("g1_f3")[0].as_py()
    after: Any = client.info("memory")
    memory = after["used_memory"] - before["used_memory"]
    with view.server(online="cache") as server:
        calls: dict[str, Callable[[int], object]] = {
            "one": lambda number: server.get_vector({"key": number * 7 % key_count}),
        }
        one_percentiles = in_turns(calls, rounds=3, count=count)["one"]
        calls = {
            "many": lambda number: server.get_vectors(
                [{"key": (number * 100 + n) * 7 % key_count} for n in range(100)]
            ),
        }
        many_percentiles = in_turns(calls, rounds=3, count=batches)["many"]
    for index, percentile in enumerate(("p50", "p99")):
        row = f"one vector from Redis, {percentile}, Feast / ours"
        figures.report(row, result["one"][index] / one_percentiles[index], at_least=3)
        row = f"100 vectors from Redis, {percentile}, Feast / ours"
        figures.report(row, result["many"][index] / many_percentiles[index], at_least=3)
    figures.report("one vector from Redis with Feast, p50", result["one"][0], "us")
    figures.report("publication with Feast", result["rows"], "rows/s")
    figures.report("Redis memory per entity with Feast", memory / key_count, "bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keys", type=int)
    parser.add_argument("--only", nargs="*", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--feast", type=Path, help="the folder of an environment with Feast")
    arguments = parser.parse_args()
    key_count = arguments.keys or (20_000 if arguments.quick else 1_000_000)
    figures, quick = Figures(), arguments.quick
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        with redis_server(folder) as port, featurestore.connect(folder / "store") as store:
            view = create_view(store, key_count)
            store.add_online_store("cache", f"redis://127.0.0.1:{port}/0")
            print(f"{key_count:,} keys in {GROUPS} groups of {FEATURES} features", flush=True)
            for name in ("cache", None):
                store.publish("served", to=name)
            if "latency" in arguments.only:
                measure_latency(view, port, key_count, figures, quick=quick)
            if "batches" in arguments.only:
                measure_batches(view, port, key_count, figures, quick=quick)
            if "feast" in arguments.only and arguments.feast is not None:
                measure_feast(view, folder, arguments.feast, port, figures, quick=quick)
            if "publication" in arguments.only:
                measure_publication(store, port, key_count, figures)
            if "postgres" in arguments.only:
                measure_postgres(store, key_count, figures, quick=quick)
        if "registry" in arguments.only:
            measure_registry(folder, figures, quick=quick)
    REPORT.save(quick=quick)
    if figures.missed:
        print("missed: " + "; ".join(figures.missed))
        raise SystemExit(1)


if __name__ == "__main__":
    main()
