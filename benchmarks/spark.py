"""The Spark engine compared with plain Spark: exports, groups, small work, and where the time goes.

An export is compared with what one would write by hand in the same session: the Delta table read,
`repartitionByRange` by a hash, `sortWithinPartitions`, `write.parquet`. A group is compared with a
plain Delta write. Medians, in turns, in one run.

python benchmarks/spark.py [--quick] [--trials 3] [--only export wide groups small profile]
    [--cluster] [--tfrecord-source JARS]   # the same plan by hand with a data source "tfrecord" at its end

Cores are those of the session: FEATURESTORE_SPARK_MASTER=local[2], or the master of a cluster;
--cluster starts a standalone one on this machine, with one executor of two cores.
The processor time of all JVMs and Python workers is counted with the seconds where it can be.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from export import table
from report import Report

import featurestore

SECTIONS = ("export", "wide", "groups", "small", "profile")
FORMATS = {"tfrecord": 1.0, "parquet": 1.1, "petastorm": 1.1}
STATISTICS_LIMIT = 1.4
# Options of a write, with the limit of its time compared with a plain Delta write.
WRITES: dict[str, tuple[dict[str, Any], float]] = {
    "validation and statistics off": ({"validation": "off", "statistics": False}, 1.3),
    "without statistics": ({"statistics": False}, 1.3),
    "default options": ({}, 1.5),
}
SMALL_LIMITS = {"append": 1.0, "upsert": 1.2}
TFRECORD_SOURCE = "by hand, tfrecord"
REPORT = Report(
    "spark",
    "Exports compared with the same Delta table, `repartitionByRange` by a hash, `sortWithinPartitions` "
    "and `write.parquet` in 8 shards; groups compared with plain Delta in the same warm session. `local[2]` or a "
    "standalone cluster, processor time of all processes.",
)


class Cost(NamedTuple):
    """Seconds on a clock, and of this process and all that it started."""

    clock: float
    processor: float


def processor_seconds() -> float:
    """Return the processor seconds of this process and of those below it that live or were waited for."""
    ticks = os.sysconf("SC_CLK_TCK")
    parents, used = {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[1])
        used[int(entry.name)] = sum(map(int, fields[11:15])) / ticks
    total = 0.0
    for process in used:
        above = process
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid():
            total += used[process]
    return total


def measured(works: dict[str, Callable[[], object]], trials: int) -> dict[str, Cost]:
    costs_of_works: dict[str, list[Cost]] = {name: [] for name in works}
    for trial in range(trials + 1):
        for name, work in works.items():
            start, used = time.perf_counter(), processor_seconds()
            work()
            cost = Cost(time.perf_counter() - start, processor_seconds() - used)
            if trial:  # the first one warms up
                costs_of_works[name].append(cost)
    medians = {}
    for name, costs in costs_of_works.items():
        clocks, processors = zip(*costs, strict=True)
        medians[name] = Cost(statistics.median(clocks), statistics.median(processors))
    return medians


class Spark:
    """A store on the Spark engine with one group ``rows``."""

    def __init__(self, rows: int, columns: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bench-spark-"))
        self.rows, self.columns, self._number = rows, columns, 0
        self._group: Any = None
        self.data = table(rows, columns)
        with featurestore.connect(self.folder / "store", engine="duckdb") as store:
            store.create_featuregroup(self.data, "rows", primary_key="id", statistics=False)
            self.path = store.featuregroup("rows").path
        self.store = featurestore.connect(self.folder / "store", engine="spark")
        self.session = self.store.get_featuregroup("rows").to_spark().sparkSession

    def reopen(self) -> None:
        """Open the store anew on the session that runs."""
        self.store = featurestore.connect(self.folder / "store", engine="spark")

    def by_hand(self, data_format: str = "parquet") -> None:
        """Write the rows in the order of a hash, by a data source of Spark's."""
        from pyspark.sql import functions as sf

        target = self.folder / "by-hand"
        frame = self.session.read.format("delta").load(self.path)
        hashed = frame.withColumn("__hash", sf.xxhash64("id"))
        ranged = hashed.repartitionByRange(8, "__hash").sortWithinPartitions("__hash")
        ranged.drop("__hash").write.mode("overwrite").format(data_format).save(str(target))

    def write_delta(self, rows: Any, mode: str = "overwrite") -> None:
        if isinstance(rows, pa.Table):
            rows = self.session.createDataFrame(rows)
        rows.write.format("delta").mode(mode).save(str(self.folder / "plain"))

    def merge_delta(self, rows: Any) -> None:
        from delta.tables import DeltaTable

        if isinstance(rows, pa.Table):
            rows = self.session.createDataFrame(rows)
        table = DeltaTable.forPath(self.session, str(self.folder / "plain")).alias("old")
        merge = table.merge(rows.alias("new"), "old.id = new.id")
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

    def create(self, rows: Any, **options: Any) -> None:
        """Create a new group, after the previous one is removed."""
        if self._group is not None:
            shutil.rmtree(self._group.path)
        self._number += 1
        name = f"g{self._number}"
        self._group = self.store.create_featuregroup(rows, name, primary_key="id", **options)

    def insert(self, rows: Any, *, mode: str) -> None:
        """Write into the newest group, with its validation and statistics."""
        self._group.insert(rows, mode=mode)

    def export(self, data_format: str, *, statistics: bool = False) -> Any:
        self._number += 1
        with redirect_stdout(io.StringIO()):  # the roles
            return self.store.create_training_dataset(
                self.store.get_featuregroup("rows"),
                f"d{self._number}",
                data_format=data_format,
                shards=8,
                statistics=statistics,
            )

    def export_and_remove(self, data_format: str, *, statistics: bool) -> None:
        shutil.rmtree(self.export(data_format, statistics=statistics).path)

    def check(self, data_format: str) -> None:
        dataset = self.export(data_format)
        rows = dataset.read("train").to_arrow().sort_by("id")
        lossy = {column.name for column in dataset.manifest.columns if column.loss is not None}
        assert rows.num_rows == self.rows
        for name in set(self.data.schema.names) - lossy:
            assert rows[name].equals(self.data[name]), name
        shutil.rmtree(dataset.path)

    def close(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def export(rows: int, columns: int, trials: int, *, tfrecord_source: bool) -> None:
    """Print exports compared with the plan by hand, and compared with one that ends in another's TFRecord."""
    spark = Spark(rows, columns)
    try:
        works: dict[str, Callable[[], object]] = {"by hand": spark.by_hand}
        if tfrecord_source:
            works[TFRECORD_SOURCE] = partial(spark.by_hand, "tfrecord")
        for data_format in FORMATS:
            spark.check(data_format)
            for label, statistics in ((data_format, False), (f"{data_format}, statistics", True)):
                works[label] = partial(spark.export_and_remove, data_format, statistics=statistics)
        costs = measured(works, trials)
    finally:
        spark.close()
    hand = costs["by hand"]
    print(f"\n{rows:,} rows x {columns} columns, the plan by hand {hand.clock:.1f} s")
    master = os.environ["FEATURESTORE_SPARK_MASTER"]
    column = f"{rows:,} x {columns}" + ("" if master.startswith("local") else ", cluster")
    REPORT.add("export", "by hand", column, hand.clock, "s")
    for data_format, limit in FORMATS.items():
        print(
            f"  {data_format:<22} {_ratio(costs[data_format], hand)} of that time (limit {limit})"
        )
        _add_ratio(
            "export", f"{data_format} / by hand", column, costs[data_format], hand, at_most=limit
        )
    for data_format in FORMATS:
        label = f"{data_format}, statistics"
        more = _ratio(costs[label], costs[data_format])
        print(f"  {label:<22} {more} of {data_format} without (limit {STATISTICS_LIMIT})")
        row = f"{data_format}, statistics / without"
        _add_ratio(
            "export", row, column, costs[label], costs[data_format], at_most=STATISTICS_LIMIT
        )
    if tfrecord_source:
        print(f"  tfrecord               {_ratio(costs['tfrecord'], costs[TFRECORD_SOURCE])} of")
        print(f"    the plan by hand with the data source, {costs[TFRECORD_SOURCE].clock:.1f} s")
        row, peer = "tfrecord / `spark-tfrecord`", costs[TFRECORD_SOURCE]
        _add_ratio("export", row, column, costs["tfrecord"], peer, at_most=1.0)


def groups(rows: int, trials: int) -> None:
    """Print writes of a group compared with those of plain Delta: create, append, upsert of a fifth."""
    import pyarrow.parquet as pq

    spark = Spark(1000, 10)
    fifth = rows // 5

    def load_frame(name: str, data: pa.Table) -> Any:
        path = str(spark.folder / f"{name}.parquet")
        pq.write_table(data, path)
        return spark.session.read.parquet(path)

    try:
        all_rows = load_frame("all", table(rows, 10))
        # Keys of a trial must be new to the group, so each trial begins with a create.
        more, changed = (
            load_frame("more", table(fifth, 10, first=rows)),
            load_frame("some", table(fifth, 10)),
        )
        works: dict[str, Callable[[], object]] = {
            "create": lambda: spark.write_delta(all_rows),
            "append": lambda: spark.write_delta(more, "append"),
            "upsert": lambda: spark.merge_delta(changed),
        }
        for label, (options, _) in WRITES.items():
            works[f"create {label}"] = partial(spark.create, all_rows, **options)
            for mode, frame in (("append", more), ("upsert", changed)):
                works[f"{mode} {label}"] = partial(spark.insert, frame, mode=mode)
        costs = measured(works, trials)
        print(f"\ngroup of {rows:,} rows x 10, append and upsert of {fifth:,}")
        for operation in ("create", "append", "upsert"):
            plain = costs[operation]
            print(f"  {operation}: plain Delta {plain.clock:.1f} s", end="")
            title, row = (
                f"group of {rows:,} x 10",
                f"{operation} of {rows if operation == 'create' else fifth:,}",
            )
            REPORT.add(title, row, "plain Delta", plain.clock, "s")
            for label, (_, limit) in WRITES.items():
                ratio = _ratio(costs[f"{operation} {label}"], plain)
                print(f", {label} {ratio}, limit {limit}", end="")
                column = f"{label} / plain Delta"
                _add_ratio(title, row, column, costs[f"{operation} {label}"], plain, at_most=limit)
            print()
    finally:
        spark.close()


def small(trials: int) -> None:
    """Print the seconds and the Spark jobs of small calls on a warm session."""
    spark = Spark(10_000, 10)
    labels = pa.table({"id": pa.array(np.arange(100))})
    next_id = 2_000_000

    def new_rows() -> pa.Table:
        nonlocal next_id
        next_id += 100
        return table(100, 10, first=next_id)

    changed_rows = table(100, 10, first=9_950)  # half of them are new in the first upsert

    def retrieve() -> None:
        spark.store.get_features(["rows.d0", "rows.word"], labels=labels).to_arrow()

    def append(name: str) -> None:
        spark.store.insert_into_featuregroup(new_rows(), name)

    def upsert(name: str) -> None:
        spark.store.insert_into_featuregroup(changed_rows, name, mode="upsert")

    works: dict[str, Callable[[], object]] = {
        "append, plain Delta": lambda: spark.write_delta(new_rows(), "append"),
        "upsert, plain Delta": lambda: spark.merge_delta(changed_rows),
        "get_features": retrieve,
    }
    title = "group of 10,000 rows"
    try:
        for name in ("session", "warm session"):
            start, used = time.perf_counter(), processor_seconds()
            retrieve()
            first_cost = Cost(time.perf_counter() - start, processor_seconds() - used)
            print(
                f"\nfirst get_features of a store of 10,000 rows, {name}: {first_cost.clock:.1f} s "
                f"({first_cost.processor:.1f} of processors)"
            )
            row, limit = f"first get_features, {name}", 2.0 if name == "warm session" else None
            REPORT.add(
                title,
                row,
                "time",
                first_cost.clock,
                "s",
                processor=first_cost.processor,
                at_most=limit,
            )
            spark.reopen()
        spark.write_delta(spark.data)
        for label, (options, _) in WRITES.items():
            name = label.replace(" ", "_")
            spark.store.create_featuregroup(spark.data, name, primary_key="id", **options)
            works[f"append, {label}"] = partial(append, name)
            works[f"upsert, {label}"] = partial(upsert, name)
        costs = measured(works, trials)
        for name, work in works.items():
            cost, jobs = costs[name], jobs_of(spark.session, work)
            print(f"  {name}: {cost.clock:.2f} s, {cost.processor:.2f}, {jobs} jobs")
            operation = name.partition(",")[0]
            limit = None if name.endswith("plain Delta") else SMALL_LIMITS.get(operation)
            row = f"{name}, 100 rows"
            REPORT.add(title, row, "time", cost.clock, "s", processor=cost.processor, at_most=limit)
            REPORT.add(title, row, "jobs", jobs)
    finally:
        spark.close()


def _add_ratio(
    table: str, row: str, column: str, cost: Cost, peer: Cost, *, at_most: float
) -> None:
    ratio, by_processor = cost.clock / peer.clock, cost.processor / peer.processor
    REPORT.add(table, row, column, ratio, processor=by_processor, at_most=at_most)


def jobs_of(session: Any, work: Callable[[], object]) -> int:
    """Return how many Spark jobs a call starts."""
    before = _last_job(session)
    work()
    return _last_job(session) - before


def _last_job(session: Any) -> int:
    jobs = session.sparkContext._jsc.sc().statusStore().jobsList(None)
    if not jobs.size():
        return -1
    return max(jobs.apply(index).jobId() for index in range(jobs.size()))


def profile(rows: int) -> None:
    """Print the stages of one export of each format with their time and bytes."""
    spark = Spark(rows, 25)
    try:
        for plan in ("by hand", *FORMATS):
            work = spark.by_hand
            if plan != "by hand":
                work = lambda plan=plan: spark.export(plan)  # noqa: E731
            work()
            before = _stages(spark.session)
            start = time.perf_counter()
            work()
            print(f"\n{plan}: {time.perf_counter() - start:.2f} s")
            for number, line in sorted(_stages(spark.session).items()):
                if number not in before:
                    print(f"  {line}")
    finally:
        spark.close()


def _stages(session: Any) -> dict[int, str]:
    """Return a line on each finished stage: what it is, tasks, seconds, shuffle."""
    store = session.sparkContext._jsc.sc().statusStore()
    # All that ``stageList`` takes has defaults in Scala, which Python does not see.
    empty = session._jvm.java.util.ArrayList()
    stages = store.stageList(
        empty, False, False, session.sparkContext._gateway.new_array(session._jvm.double, 0), empty
    )
    lines = {}
    for index in range(stages.size()):
        stage = stages.apply(index)
        lines[stage.stageId()] = (
            f"stage {stage.stageId()}: {stage.numTasks()} tasks, "
            f"run {stage.executorRunTime() / 1000:.2f} s, "
            f"processor {stage.executorCpuTime() / 1e9:.2f} s, "
            f"read {stage.inputBytes() / 2**20:.0f} MiB, "
            f"shuffle {stage.shuffleReadBytes() / 2**20:.0f} in "
            f"{stage.shuffleWriteBytes() / 2**20:.0f} out: {stage.name().splitlines()[0]}"
        )
    return lines


def start_cluster(stack: ExitStack) -> None:
    """Start a standalone cluster and let sessions of this process find it."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.cluster.standalone import environment, standalone_cluster

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-cluster-")))
    master = stack.enter_context(standalone_cluster(folder, memory="6g", java="")).url
    os.environ.update(environment(java=""), SPARK_EXECUTOR_MEMORY="4g")
    os.environ |= {"FEATURESTORE_SPARK_MASTER": master, "FEATURESTORE_SPARK_STAGING": str(folder)}


def _ratio(cost: Cost, base: Cost) -> str:
    return f"{cost.clock / base.clock:.2f} ({cost.processor / base.processor:.2f} by processor)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--trials", type=int, default=3, help="fewer on a busy machine")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--cluster", action="store_true", help="on a standalone cluster")
    parser.add_argument("--tfrecord-source", metavar="JARS", help="of a data source, by commas")
    arguments = parser.parse_args()
    os.environ.setdefault("FEATURESTORE_SPARK_MASTER", "local[2]")
    warnings.simplefilter("ignore")
    source = arguments.tfrecord_source is not None
    if source:
        os.environ["FEATURESTORE_SPARK_JARS"] = arguments.tfrecord_source
    rows, trials = arguments.rows, arguments.trials
    if arguments.quick:
        rows, trials = 50_000, 1
    with ExitStack() as stack:
        if arguments.cluster:
            start_cluster(stack)
        run(arguments.only, rows, trials, tfrecord_source=source)
    REPORT.save(quick=arguments.quick)


def run(sections: Sequence[str], rows: int, trials: int, *, tfrecord_source: bool) -> None:
    """Run parts of the benchmark in one session."""
    if "export" in sections:
        export(rows, 25, trials, tfrecord_source=tfrecord_source)
    if "wide" in sections:
        export(max(rows // 4, 10_000), 200, trials, tfrecord_source=tfrecord_source)
    if "groups" in sections:
        groups(max(rows * 5 // 2, 10_000), trials)
    if "small" in sections:
        small(trials)
    if "profile" in sections:
        profile(rows)


if __name__ == "__main__":
    main()
