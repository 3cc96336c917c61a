"""What the checksums in commits cost: writes, verified reads and verification.

Inserts into a group with checksums and into a group without them, in turns. On the embedded engine
the functions that compute them are replaced; on Spark the second group has a log store that adds
none (``WithoutChecksums.java``, which needs a JDK). Processor times are those of this process and
of Spark's JVM without its compilers, so programs that share the machine change them less than the
seconds on a clock.

python benchmarks/checksums.py [--quick] [--engine spark] [--only inserts reads]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
from report import COMPARISONS, Report

import featurestore
from featurestore.delta.checksums import CHECKSUMS
from featurestore.delta.commits import seal_commit
from featurestore.delta.log import commit_info, commit_path, read_commit
from featurestore.store import FeatureStore
from featurestore_connectors.duckdb_delta import commits

# name: (rows of an insert, partitions that it touches, inserts into each group)
CASES = {
    "100 rows, one file": (100, 1, 60),
    "1,000,000 rows, one file": (1_000_000, 1, 15),
    "100,000 rows, 200 files": (100_000, 200, 40),
}
WARM_UP = {"duckdb": 1, "spark": 5}
READ_ROWS, READ_FILES = 1_000_000, 14
LIMIT = 1.05
SECONDS_OF_CHECKSUMS: list[float] = []
REPORT = Report(
    "checksums",
    "Inserts of an id, a partition and eight random numbers, with validation and fast durability, "
    "where no sync hides the checksums. Inserts with and without them alternate; the ratio is the median "
    "of the ratios of the pairs.",
)


def rows(number: int, partitions: int) -> pa.Table:
    """Return rows x 10: an id, the partition, and eight numbers."""
    random = np.random.default_rng(0)
    ids = np.arange(number)
    columns = {"id": pa.array(ids), "part": pa.array(ids % partitions)}
    for index in range(8):
        columns[f"x{index}"] = pa.array(random.random(number))
    return pa.table(columns)


def create(
    store: FeatureStore, name: str, number: int, partitions: int
) -> featurestore.FeatureGroup:
    return store.create_featuregroup(
        rows(partitions, partitions),
        name,
        primary_key="id",
        partition_by="part" if partitions > 1 else (),
        statistics=False,
        validation="warn",
    )


# -- writes without checksums ---------------------------------------------------------------


def seal_without_checksums(
    _: str, __: int, actions: Sequence[Mapping[str, Any]], **___: object
) -> bytes:
    return "".join(json.dumps(action) + "\n" for action in actions).encode()


@contextmanager
def embedded_without_checksums() -> Iterator[None]:
    with (
        mock.patch.object(commits, "_compute_checksums", lambda new, _: [None] * len(new)),
        mock.patch.object(commits, "seal_commit", seal_without_checksums),
    ):
        yield


@contextmanager
def embedded_with_timed_checksums() -> Iterator[None]:
    """Add up the processor seconds of the functions that compute checksums in an insert."""
    seconds = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            start = time.process_time()
            result = function(*arguments, **options)
            seconds.append(time.process_time() - start)
            return result

        return call

    with (
        mock.patch.object(commits, "_compute_checksums", timed(commits._compute_checksums)),
        mock.patch.object(commits, "seal_commit", timed(seal_commit)),
    ):
        yield
    SECONDS_OF_CHECKSUMS.append(sum(seconds))


def add_jar_without_checksums(folder: str) -> None:
    """Compile the log store for the session that Spark starts."""
    import pyspark

    from featurestore_connectors.spark_delta.jars import JVM_JAR, delta_jars
    from featurestore_connectors.spark_delta.session import JARS

    hadoop = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
    libraries = ":".join(map(str, [JVM_JAR, *delta_jars(), *hadoop]))
    source = Path(__file__).with_name("WithoutChecksums.java")
    # The jar of the library also has its sources, which need more libraries.
    options = ["-sourcepath", folder, "-cp", libraries, "-d", folder]
    subprocess.run(["javac", *options, source], check=True)
    jar = f"{folder}/without.jar"
    subprocess.run(["jar", "cf", jar, "-C", folder, "WithoutChecksums.class"], check=True)
    os.environ[JARS] = jar


def use_log_store_without_checksums(session: Any, path: str) -> None:
    """Give Delta's cached log of a table another log store; all other tables keep theirs."""
    settings = session._jvm.org.apache.spark.SparkEnv.get().conf()
    key = "spark.delta.logStore.file.impl"
    before = settings.get(key)
    delta_log = session._jvm.org.apache.spark.sql.delta.DeltaLog
    settings.set(key, "WithoutChecksums")
    delta_log.clearCache()
    delta_log.forTable(session._jsparkSession, path).store()
    settings.set(key, before)


def has_checksums(group: featurestore.FeatureGroup) -> bool:
    return CHECKSUMS in commit_info(read_commit(commit_path(group.path, group.delta_version)))


# -- measurements ---------------------------------------------------------------------------


def processor_clock(engine: str) -> Callable[[], float]:
    """Return a clock of the processor seconds of this process and of Spark's JVM."""
    if engine != "spark":
        return time.process_time
    from pyspark.sql import SparkSession

    session: Any = SparkSession.getActiveSession()
    pid = session._jvm.java.lang.ProcessHandle.current().pid()
    # Linux has a clock of the processor time of each process (clock_getcpuclockid).
    machine_clock = (~pid << 3) | 2

    def read() -> float:
        used = time.process_time() + time.clock_gettime(machine_clock)
        # When the JVM compiles its code does not depend on the inserts of one group.
        return used - sum(map(processor_seconds, compiler_threads))

    tasks = Path(f"/proc/{pid}/task").iterdir()
    compiler_threads = [task for task in tasks if "Compiler" in (task / "comm").read_text()]
    return read


def processor_seconds(thread: Path) -> float:
    return int((thread / "schedstat").read_text().split()[0]) / 1e9


def measure_inserts(store: FeatureStore, engine: str, name: str) -> None:
    """Compare inserts with and without checksums."""
    number, partitions, trials = CASES[name]
    table = rows(number, partitions)
    groups = {kind: create(store, f"g{number}_{kind}", number, partitions) for kind in (1, 0)}
    if engine == "spark":
        from pyspark.sql import SparkSession

        use_log_store_without_checksums(SparkSession.getActiveSession(), groups[0].path)
    clock = processor_clock(engine)
    times: dict[int, list[tuple[float, float]]] = {1: [], 0: []}
    SECONDS_OF_CHECKSUMS.clear()
    for trial in range(-WARM_UP[engine], trials):
        # The first insert of a pair differs from the second one, so they change their turns.
        for kind in (1, 0) if trial % 2 else (0, 1):
            change = {0: embedded_without_checksums, 1: embedded_with_timed_checksums}[kind]
            with change() if engine == "duckdb" else nullcontext():
                start, processor_start = time.perf_counter(), clock()
                groups[kind].insert(table)
                cost = time.perf_counter() - start, clock() - processor_start
            assert has_checksums(groups[kind]) == bool(kind)
            if trial >= 0:
                times[kind].append(cost)
    wall, processor = map(statistics.median, zip(*times[1], strict=True))
    peer_wall, peer_processor = map(statistics.median, zip(*times[0], strict=True))
    ratios = [ours[1] / peer[1] for ours, peer in zip(times[1], times[0], strict=True)]
    quarters = statistics.quantiles(ratios, n=4)
    print(
        f"{name:26} {wall / peer_wall:.3f}, processor {processor:.3f} s / {peer_processor:.3f} s = "
        f"{processor / peer_processor:.3f}; pairs {quarters[0]:.3f} {quarters[1]:.3f} {quarters[2]:.3f}"
    )
    row = f"processor time of an insert of {name}, vs without checksums, {engine}"
    REPORT.add(COMPARISONS, row, "ours", 1000 * processor, "ms")
    REPORT.add(COMPARISONS, row, "peer", 1000 * peer_processor, "ms")
    REPORT.add(COMPARISONS, row, "ours / peer", None, processor=quarters[1], at_most=LIMIT)
    if engine == "duckdb":
        share = statistics.median(SECONDS_OF_CHECKSUMS) / processor
        print(f"{name:26} checksums alone {share:.4f} of an insert")
        row = (
            f"processor time of the checksums alone in an insert of {name}, vs the insert, {engine}"
        )
        REPORT.add(COMPARISONS, row, "ours / peer", None, processor=share, at_most=LIMIT - 1)


def measure_reads(store: FeatureStore, engine: str) -> None:
    """Compare verified reads and a verification with a plain read."""
    table = rows(READ_ROWS, 1)
    group = create(store, "reads", READ_ROWS, 1)
    for _ in range(READ_FILES):
        group.insert(table)

    def read(verify: Any) -> None:
        store.get_featuregroup(group.name, verify=verify).select("id", "x0", "x1").to_arrow()

    calls: dict[str, Callable[[], object]] = {
        "plain": lambda: read(None),
        "sample": lambda: read("sample"),
        "all": lambda: read("all"),
        "verify": lambda: store.verify_featuregroup(group.name),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(5):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    plain, sample, everything, verification = map(statistics.median, seconds.values())
    size = f"{READ_ROWS * READ_FILES // 1_000_000} million rows"
    for mode, figure in (("sample", sample), ("all", everything)):
        print(f"read with verify={mode!r} {figure / plain:.3f}")
        row = f'read of {size}, `verify="{mode}"` vs None, {engine}'
        REPORT.compare(row, 1000 * figure, 1000 * plain, "ms")
    row = f"verify_featuregroup of {size}, vs a read, {engine}"
    REPORT.compare(row, 1000 * verification, 1000 * plain, "ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the inserts of the first case only")
    parser.add_argument("--engine", default="duckdb", choices=WARM_UP)
    parser.add_argument("--only", nargs="+", default=["inserts", "reads"])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        if arguments.engine == "spark":
            add_jar_without_checksums(folder)
        location = f"{folder}/store"
        store = featurestore.connect(location, engine=arguments.engine, durability="fast")
        if "inserts" in arguments.only:
            for name in list(CASES)[: 1 if arguments.quick else None]:
                measure_inserts(store, arguments.engine, name)
                REPORT.save(quick=arguments.quick)
        if "reads" in arguments.only and not arguments.quick:
            measure_reads(store, arguments.engine)
            REPORT.save()


if __name__ == "__main__":
    main()
