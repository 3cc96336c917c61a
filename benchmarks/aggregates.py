"""Aggregates over windows against our own as-of retrieval and hand-written window queries.

Ratios in one run, medians, results compared. The unit is the as-of retrieval of one column of the
same group. Feast's local engine and Chronon without a Spark cluster have no aggregates as of a
label, so the peers are the window functions of DuckDB and Spark.

python benchmarks/aggregates.py                          all shapes, compared with DuckDB's windows
python benchmarks/aggregates.py --only dense --no-peers  one shape, ours alone
python benchmarks/aggregates.py --memory --cores         also peak memory, and one core against two
python benchmarks/aggregates.py --no-speed --memory --trials 1      peak memory alone, one trial
python benchmarks/aggregates.py --spark --only zipf      the spark engine compared with rangeBetween
python benchmarks/aggregates.py --large-key              one key with 50 M rows, and its peak memory
python benchmarks/aggregates.py --quick                  a tenth of the rows
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from point_in_time import (
    Group,
    StoreFolder,
    _processor_of_all,
    _status,
    files_of,
    in_turns,
    to_timestamps,
)
from report import Report

DAYS, START = 90, 1_700_000_000_000_000
SPAN = DAYS * 86_400_000_000
FUNCTIONS = ("sum", "mean", "std", "max")
LENGTHS = ("1d", "7d", "30d")
LIMITS = {1: 1.6, 3: 2.0, 12: 2.5}
CREATED_LIMIT, CORES_LIMIT, MEMORY_LIMIT, SPARK_LIMIT = 1.4, 1.6, 2.5, 2.0
TRIALS = 3
LARGE_ROWS, LARGE_MEMORY = 50_000_000, 2048
REPORT = Report(
    "aggregates",
    "Aggregates over windows of up to 30 days, compared with the as-of retrieval of one column. The wide "
    "shape has 200,000 keys, dense 265, and zipf one key with a tenth of the rows.",
)


@dataclass(frozen=True)
class Shape:
    """Rows of one group, some hundred thousand keys or few, and labels of the same keys."""

    name: str
    rows: pa.Table
    labels: pa.Table


def wide(random: np.random.Generator, rows: int, labels: int) -> tuple[Any, Any]:
    keys = max(rows // 25, 1)
    return random.integers(0, keys, rows), random.integers(0, keys, labels)


def dense(random: np.random.Generator, rows: int, labels: int) -> tuple[Any, Any]:
    return random.integers(0, 265, rows), random.integers(0, 265, labels)


def zipf(random: np.random.Generator, rows: int, labels: int) -> tuple[Any, Any]:
    """One key has more than a tenth of all rows."""
    return random.zipf(1.2, rows) % 200_000, random.zipf(1.2, labels) % 200_000


SHAPES: dict[str, Callable[..., tuple[Any, Any]]] = {"wide": wide, "dense": dense, "zipf": zipf}


def shape_of(name: str, scale: float) -> Shape:
    random = np.random.default_rng(1)
    rows, labels = int(5_000_000 * scale), int(1_000_000 * scale)
    keys, label_keys = SHAPES[name](random, rows, labels)
    # Every row has a microsecond of its own, so that no two rows tie.
    event = START + random.permutation(rows) * (SPAN // rows)
    columns = {
        "key": keys,
        "event": to_timestamps(event),
        "created": to_timestamps(event + random.integers(0, 3_600_000_000, rows)),
        "amount": np.round(random.lognormal(3, 1, rows), 2),
        "other": random.random(rows),
    }
    times = random.integers(START, START + SPAN, labels)
    label_columns = {"id": np.arange(labels), "key": label_keys, "at": to_timestamps(times)}
    return Shape(name, pa.table(columns), pa.table(label_columns))


def write(shape: Shape, folder: Path) -> None:
    """Write the group without created times as ``w`` and with them as ``c``, and the labels."""
    from pyarrow import parquet

    import featurestore

    store = featurestore.connect(folder, engine="duckdb")
    for name, created in (("w", None), ("c", "created")):
        rows = shape.rows if created else shape.rows.drop_columns(["created"])
        store.create_featuregroup(
            rows, name, primary_key=["key"], event_time="event", created_time=created,
            statistics=False,
        )  # fmt: skip
    store.close()
    parquet.write_table(shape.labels, folder / "labels.parquet")


def build_aggregates(group: str, count: int, *, lengths: tuple[str, ...] = LENGTHS) -> list[Any]:
    """Return so many aggregates; 0 for the column itself."""
    import featurestore

    if count == 0:
        return [f"{group}.amount"]
    if count == 1:
        return [featurestore.window(f"{group}.amount", "sum", over="7d")]
    if count == 3:
        return list(featurestore.windows(f"{group}.amount", ["sum", "mean", "max"], over="7d"))
    return list(featurestore.windows(f"{group}.amount", FUNCTIONS, over=lengths))


def ours(folder: Path, labels: pa.Table, group: str, count: int) -> Callable[[], pa.Table]:
    import featurestore

    store = featurestore.connect(folder, engine="duckdb")
    features = build_aggregates(group, count)
    return lambda: store.get_features(
        features, labels=labels, label_time="at", dataframe_type="arrow"
    )


def by_duckdb(folder: Path, labels: pa.Table) -> Callable[[], pa.Table]:
    """Return the query that one would write with DuckDB's windows, over the same files."""
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("labels", labels)
    files = files_of(folder, Group("w", pa.table({})))
    sql_names = {"sum": "sum", "mean": "avg", "std": "stddev_samp", "max": "max"}
    columns, frames = [], []
    for function in FUNCTIONS:
        columns += [
            f"{sql_names[function]}(amount) OVER w{length} AS {function}_{length}"
            for length in LENGTHS
        ]
    for length in LENGTHS:
        micros = int(length[:-1]) * 86_400_000_000 - 1
        frames.append(
            f"w{length} AS (PARTITION BY key ORDER BY t RANGE BETWEEN {micros} PRECEDING "
            "AND CURRENT ROW)"
        )
    query = (
        f"WITH u AS (SELECT key, epoch_us(event) AS t, amount, NULL AS id FROM read_parquet({files!r}) "
        "UNION ALL SELECT key, epoch_us(labels.at), NULL, id FROM labels), "
        f"f AS (SELECT id, {', '.join(columns)} FROM u WINDOW {', '.join(frames)}) "
        "SELECT * EXCLUDE (id) FROM f WHERE id IS NOT NULL ORDER BY id"
    )
    return lambda: connection.sql(query).to_arrow_table()


def is_nearly_equal(result: pa.Table, expected: pa.Table) -> bool:
    """Return whether two results agree; the expected one is rounded at every step, so nearly."""
    for column, expected_column in zip(
        result.columns[-expected.num_columns :], expected.columns, strict=True
    ):
        values, expected_values = column.to_numpy(), expected_column.to_numpy()
        # A deviation of nearly equal numbers loses half of its digits there.
        if not np.allclose(values, expected_values, rtol=1e-6, atol=1e-4, equal_nan=True):
            return False
    return True


def add_figure(shape: Shape, column: str, value: float, unit: str = "", **limits: Any) -> None:
    row = f"{shape.name}, {shape.labels.num_rows:,} labels"
    REPORT.add("window aggregates", row, column, value, unit, **limits)


def verdict(ratio: float, work: float, limit: float) -> str:
    missed = "" if ratio <= limit else "  MISSED"
    return f"{ratio:5.2f} (<= {limit}), of processor time {work:5.2f}{missed}"


def speed(shape: Shape, folder: Path, *, peers: bool, trials: int) -> None:
    """Print what aggregates cost, in units of the as-of retrieval of one column."""
    calls = {str(count): ours(folder, shape.labels, "w", count) for count in (0, *LIMITS)}
    calls["known later"] = ours(folder, shape.labels, "c", 12)
    medians = in_turns(calls, trials=trials)
    unit, unit_cpu = medians["0"], medians["0 cpu"]
    print(f"{shape.name:6} as-of, one column {unit:6.2f} s, {unit_cpu:6.2f} s of processor time")
    for count, limit in LIMITS.items():
        ratio, work = medians[str(count)] / unit, medians[f"{count} cpu"] / unit_cpu
        print(f"{shape.name:6} {count:2} aggregates {verdict(ratio, work, limit)}", flush=True)
        add_figure(shape, f"{count} / as-of", ratio, processor=work, at_most=limit)
    ratio = medians["known later"] / medians["12"]
    work = medians["known later cpu"] / medians["12 cpu"]
    print(f"{shape.name:6} with created time {verdict(ratio, work, CREATED_LIMIT)}", flush=True)
    add_figure(shape, "created time / without", ratio, processor=work, at_most=CREATED_LIMIT)
    if not peers:
        return
    started, worked = time.perf_counter(), time.process_time()
    peer_result = by_duckdb(folder, shape.labels)()
    seconds, work = time.perf_counter() - started, time.process_time() - worked
    assert is_nearly_equal(calls["12"](), peer_result), (
        f"{shape.name}: DuckDB's windows give other values"
    )
    minimum = 10 if shape.name == "dense" else 1
    print(
        f"{shape.name:6} DuckDB's windows take {seconds / medians['12']:.1f} times ours (>= {minimum}), "
        f"of processor time {work / medians['12 cpu']:.1f} (one run)",
        flush=True,
    )
    ratio, work = seconds / medians["12"], work / medians["12 cpu"]
    add_figure(shape, "DuckDB windows / 12", ratio, processor=work, at_least=minimum)


def cores(shape: Shape, folder: Path, *, trials: int) -> None:
    """Print how much faster two cores are than one."""
    calls = {}
    for threads in ("1", "2"):
        os.environ["FEATURESTORE_DUCKDB_THREADS"] = threads
        calls[threads] = ours(folder, shape.labels, "w", 12)
        calls[threads]()
    del os.environ["FEATURESTORE_DUCKDB_THREADS"]
    medians = in_turns(calls, trials=trials)
    gain = medians["1"] / medians["2"]
    print(f"{shape.name:6} two cores are {gain:.2f} times as fast as one (>= {CORES_LIMIT})")
    add_figure(shape, "one core / two", gain, at_least=CORES_LIMIT)


def memory(shape: Shape, folder: Path) -> None:
    """Print peak memory beyond what a process holds before, each in a process of its own."""
    peaks = {}
    for name in ("as-of", "1d", "30d"):
        command = [sys.executable, __file__, "--child", name, "--place", str(folder)]
        process = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[name] = int(process.stdout.split()[-1])
    print(
        f"{shape.name:6} peak memory: 12 aggregates {peaks['30d']:,} MiB, as-of {peaks['as-of']:,} "
        f"MiB, ratio {peaks['30d'] / peaks['as-of']:.2f} (<= {MEMORY_LIMIT}); 12 over at most a "
        f"day {peaks['1d']:,} MiB",
        flush=True,
    )
    ratio = peaks["30d"] / peaks["as-of"]
    add_figure(shape, "peak of 12", peaks["30d"], "MiB")
    add_figure(shape, "peak / as-of", ratio, at_most=MEMORY_LIMIT)


def child(name: str, folder: Path) -> None:
    """Print by how many MiB one retrieval lets the process grow."""
    from pyarrow import parquet

    import featurestore

    labels = parquet.read_table(folder / "labels.parquet")
    store = featurestore.connect(folder, engine="duckdb")
    features = {
        "as-of": build_aggregates("w", 0),
        "1d": build_aggregates("w", 12, lengths=("1h", "6h", "1d")),
        "30d": build_aggregates("w", 12),
    }[name]

    def run(label_rows: pa.Table) -> None:
        store.get_features(features, labels=label_rows, label_time="at", dataframe_type="arrow")

    run(labels.slice(0, 0))
    before = _status("VmRSS")
    run(labels)
    print((_status("VmHWM") - before) // 1024)


def large_key(folder: Path, *, scale: float) -> None:
    """Print what 14 aggregates of a key with 50 M rows cost, in a process of its own."""
    import featurestore

    rows = int(LARGE_ROWS * scale)
    if not folder.exists():
        store = featurestore.connect(folder, engine="duckdb")
        random = np.random.default_rng(2)
        for chunk in range(10):
            first, last = chunk * rows // 10, (chunk + 1) * rows // 10
            event = START + np.arange(first, last) * (SPAN // rows)
            amount = np.round(random.lognormal(3, 1, last - first), 2)
            table = pa.table(
                {
                    "key": np.zeros(last - first, int),
                    "event": to_timestamps(event),
                    "amount": amount,
                }
            )
            if chunk == 0:
                store.create_featuregroup(
                    table, "w", primary_key=["key"], event_time="event", statistics=False
                )
            else:
                store.insert_into_featuregroup(table, "w")
        store.close()
    command = [sys.executable, __file__, "--child", "large", "--place", str(folder)]
    environment = {**os.environ, "FEATURESTORE_DUCKDB_MEMORY_LIMIT": "512MiB"}
    process = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    peak, seconds, work = map(int, process.stdout.split()[-3:])
    missed = "" if peak <= LARGE_MEMORY else "  MISSED"
    print(
        f"one key with {rows:,} rows, 100,000 labels, 14 aggregates: {seconds} s ({work} s of "
        f"processor time), peak memory of the process {peak:,} MiB (<= {LARGE_MEMORY}){missed}"
    )
    table, row = "one key, DuckDB limited to 512 MiB", f"14 aggregates, {rows:,} rows"
    REPORT.add(table, row, "time", seconds, "s", processor=work)
    REPORT.add(table, row, "peak", peak, "MiB", at_most=LARGE_MEMORY)


def large_child(folder: Path) -> None:
    """Print the peak memory, the seconds and the processor time of the retrieval of one key."""
    import featurestore

    random = np.random.default_rng(3)
    count = 100_000
    times = random.integers(START, START + SPAN, count)
    labels = pa.table({"key": np.zeros(count, int), "at": to_timestamps(times)})
    store = featurestore.connect(folder, engine="duckdb")
    features = [
        *build_aggregates("w", 12),
        featurestore.window("w.amount", "sum", over=None),
        featurestore.window("w.amount", "max", over=None),
    ]
    started, worked = time.perf_counter(), time.process_time()
    result = store.get_features(features, labels=labels, label_time="at", dataframe_type="arrow")
    assert result.num_rows == count
    seconds, work = time.perf_counter() - started, time.process_time() - worked
    print(_status("VmHWM") // 1024, round(seconds), round(work))


def spark(shape: Shape, folder: Path, *, peers: bool, trials: int) -> None:
    """Print 12 aggregates on Spark compared with the as-of plan and a hand-written rangeBetween."""
    import featurestore

    store = featurestore.connect(folder, engine="spark")
    session = store.session.engine.session  # type: ignore[attr-defined]
    labels = session.read.parquet(str(folder / "labels.parquet"))

    def plan(count: int) -> Callable[[], None]:
        def run() -> None:
            result = store.get_features(
                build_aggregates("w", count), labels=labels, label_time="at"
            )
            result.native().write.format("noop").mode("overwrite").save()

        return run

    spark_rows = store.get_features(
        build_aggregates("w", 12), labels=labels, label_time="at"
    ).to_arrow()
    duckdb_rows = ours(folder, shape.labels, "w", 12)()
    assert spark_rows.sort_by("id").equals(duckdb_rows.cast(spark_rows.schema)), (
        "the engines differ"
    )
    plans = {"0": plan(0), "12": plan(12)}
    medians = in_turns(plans, trials=trials, processor=_processor_of_all)
    ratio, work = medians["12"] / medians["0"], medians["12 cpu"] / medians["0 cpu"]
    print(f"{shape.name:6} spark: 12 aggregates {verdict(ratio, work, SPARK_LIMIT)}", flush=True)
    add_figure(shape, "Spark: 12 / as-of", ratio, processor=work, at_most=SPARK_LIMIT)
    if not peers:
        return
    frame = _range_between(session, folder, labels)
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    times = (time.perf_counter() - started) / medians["12"]
    print(f"{shape.name:6} spark: rangeBetween takes {times:.1f} times ours (>= 1)", flush=True)
    add_figure(shape, "Spark: `rangeBetween` / 12", times, at_least=1.0)


def _range_between(session: Any, folder: Path, labels: Any) -> Any:
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    rows = session.read.format("delta").load(str(folder / "featuregroups" / "w" / "v1"))
    rows = rows.select(
        "key", F.unix_micros("event").alias("t"), "amount", F.lit(None).cast("bigint").alias("id")
    )
    label_rows = labels.select(
        "key", F.unix_micros("at").alias("t"), F.lit(None).cast("double").alias("amount"), "id"
    )
    functions = {"sum": F.sum, "mean": F.avg, "std": F.stddev_samp, "max": F.max}
    columns = []
    for length in LENGTHS:
        micros = int(length[:-1]) * 86_400_000_000 - 1
        over = Window.partitionBy("key").orderBy("t").rangeBetween(-micros, 0)
        for function in FUNCTIONS:
            columns.append(functions[function]("amount").over(over).alias(f"{function}_{length}"))
    return rows.union(label_rows).select("id", *columns).where("id IS NOT NULL")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", "--shape", nargs="*", choices=[*SHAPES], default=[*SHAPES])
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--no-peers", action="store_true", help="ours alone")
    parser.add_argument("--no-speed", action="store_true", help="only what the next flags name")
    for flag in ("--memory", "--cores", "--spark", "--large-key"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--place", help="keep the stores here")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child == "large":
        large_child(Path(arguments.place))
        return
    if arguments.child:
        child(arguments.child, Path(arguments.place))
        return
    scale = 0.1 if arguments.quick else arguments.scale
    with StoreFolder(arguments.place) as folder:
        if arguments.large_key:
            large_key(folder / f"large-{scale}", scale=scale)
        else:
            for name in arguments.only:
                measure(shape_of(name, scale), folder / f"{name}-{scale}", arguments)
    REPORT.save(quick=arguments.quick)


def measure(shape: Shape, folder: Path, arguments: argparse.Namespace) -> None:
    """Print the selected measurements of one shape."""
    peers, trials = not arguments.no_peers, arguments.trials
    if not folder.exists():
        write(shape, folder)
    if arguments.spark:
        spark(shape, folder, peers=peers, trials=trials)
        return
    if not arguments.no_speed:
        speed(shape, folder, peers=peers, trials=trials)
    if arguments.cores:
        cores(shape, folder, trials=trials)
    if arguments.memory:
        memory(shape, folder)


if __name__ == "__main__":
    main()
