"""Statistics against DuckDB's SUMMARIZE and corr, the gate against bare Great Expectations.

Ratios in one run.

python benchmarks/validation_and_statistics.py [--quick] [--only statistics memory gate spark]

The data of the statistics is one Parquet folder that both sides read; the gate and the bare library
get the same columns. Before it is timed, each comparison asserts that both sides found the same.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from report import COMPARISONS, Report

from featurestore.plugins.engine import Engine, Relation, find_engine
from featurestore.statistics import count_statistics, finish, statistics_accumulator

SECTIONS = ("statistics", "memory", "gate", "spark")
BATCH = 65_536
REPORT = Report(
    "validation_and_statistics",
    "Read from Parquet; Great Expectations has a frame in memory.",
)


def batch(rows: int, start: int) -> pa.Table:
    """Twenty columns.

    An id, a time, 10 floats (two with nulls), 4 whole numbers, a flag, 3 texts.
    """
    random = np.random.default_rng(start)
    base = random.normal(size=rows)
    data: dict[str, Any] = {
        "id": np.arange(start, start + rows),
        "at": pa.array(
            random.integers(1_500_000_000_000_000, 1_600_000_000_000_000, rows),
            pa.timestamp("us", "UTC"),
        ),
    }
    data |= {f"x{number}": base * number / 10 + random.normal(size=rows) for number in range(8)}
    data |= {
        f"h{number}": pa.array(random.normal(size=rows), mask=random.random(rows) < 0.1)
        for number in range(2)
    }
    data |= {f"n{number}": random.integers(0, 10 ** (number + 1), rows) for number in range(4)}
    data["flag"] = random.random(rows) < 0.3
    data["kind"] = np.char.add("kind ", random.integers(0, 20, rows).astype(str))
    data["city"] = np.char.add("city ", random.integers(0, 5_000, rows).astype(str))
    data["text"] = np.char.add("text ", random.integers(0, 10**7, rows).astype(str))
    return pa.table(data)


def write(folder: Path, rows: int) -> list[str]:
    """Write the rows as Parquet files of at most half a million."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for start in range(0, rows, 500_000):
        path = folder / f"{start:09d}.parquet"
        pq.write_table(batch(min(500_000, rows - start), start), path)
        paths.append(str(path))
    return paths


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def in_turns(trials: int, *calls: Callable[[], object]) -> list[float]:
    """Return the median time of each call.

    They run in turns, so that a busy machine hits all alike.
    """
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(trials):
        for durations, call in zip(times, calls, strict=True):
            durations.append(seconds(call))
    return [statistics.median(durations) for durations in times]


def by_sql(paths: list[str]) -> tuple[list[tuple[Any, ...]], tuple[Any, ...]]:
    """Return DuckDB's SUMMARIZE and the pairwise correlations of the numeric columns."""
    connection = duckdb.connect()
    table = f"read_parquet({paths!r})"
    summary = connection.sql(f"SUMMARIZE SELECT * FROM {table}").fetchall()
    numeric = [
        *(f"x{n}" for n in range(8)),
        "h0",
        "h1",
        *(f"n{n}" for n in range(4)),
        "flag::int",
        "id",
    ]
    pairs = ", ".join(
        f"corr({first}, {second})" for first, second in itertools.combinations(numeric, 2)
    )
    return summary, connection.execute(f"SELECT {pairs} FROM {table}").fetchall()[0]


def relation_of(engine: Engine, paths: list[str]) -> Relation:
    return engine.read_files(paths, schema=batch(1, 0).schema)


def bench_statistics(rows: int, trials: int, folder: Path) -> None:
    paths = write(folder, rows)
    engine = find_engine("duckdb")
    relation = relation_of(engine, paths)

    def ours() -> Any:
        return finish(count_statistics(engine, relation, relation.schema))

    result, (summary, corr) = ours(), by_sql(paths)
    by_name = {row[0]: row for row in summary}
    assert result.rows == rows
    assert abs(result.column("x3").mean - float(by_name["x3"][5])) < 1e-9
    assert abs(result.pearson.value("x0", "x1") - corr[0]) < 1e-9
    our_seconds, summarize = in_turns(trials, ours, lambda: by_sql(paths))
    counting_seconds = seconds(lambda: count_statistics(engine, relation, relation.schema))
    print(
        f"statistics of {rows:,} rows x 20 columns: {our_seconds:.2f} s (counting {counting_seconds:.2f} s)"
    )
    print(
        f"  SUMMARIZE and pairwise corr in SQL: {summarize:.2f} s; ratio {our_seconds / summarize:.2f} (limit 1.00)"
    )
    row = f"statistics of {rows:,} rows x 20, vs `SUMMARIZE` and `corr` in DuckDB"
    REPORT.compare(row, our_seconds, summarize, "s", at_most=1.0)


def bench_memory(rows: int, folder: Path) -> None:
    """Memory of counting in a process of its own, above the idle process with its libraries loaded."""
    for count in (rows // 4, rows):
        target = folder / f"memory-{count}"
        write(target, count)
        process = subprocess.run(
            [sys.executable, __file__, "--child", str(target)],
            capture_output=True,
            text=True,
            check=True,
        )
        print(f"memory of counting {count:,} rows x 20 columns: {process.stdout.strip()}")
        peak = float(process.stdout.split()[0].replace(",", ""))
        row = f"statistics of {count:,} rows x 20"
        REPORT.add(COMPARISONS, row, "peak above idle", peak, "MiB")


def child(folder: str) -> None:
    engine = find_engine("duckdb")
    paths = sorted(str(path) for path in Path(folder).iterdir())
    relation = relation_of(engine, paths)
    small = pa.Table.from_batches([next(iter(engine.stream(relation, limit=1_000)))])
    accumulator = statistics_accumulator(small.schema)
    finish(accumulator.update(accumulator.start(), small.to_batches()[0]))
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    finish(count_statistics(engine, relation, relation.schema))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{(peak - idle) / 2**10:,.0f} MiB above {idle / 2**10:,.0f} MiB")


def expectations() -> list[dict[str, Any]]:
    """Ten expectations over six columns."""

    def rule(expectation: str, column: str, **kwargs: Any) -> dict[str, Any]:
        return {"type": f"expect_column_{expectation}", "kwargs": {"column": column, **kwargs}}

    return [
        rule("values_to_not_be_null", "x0"),
        rule("values_to_be_between", "x0", min_value=-100, max_value=100),
        rule("values_to_be_between", "n0", min_value=0, max_value=9),
        rule("values_to_not_be_null", "n0"),
        rule("values_to_be_in_set", "kind", value_set=[f"kind {number}" for number in range(20)]),
        rule("value_lengths_to_be_between", "kind", min_value=1, max_value=20),
        rule("values_to_match_regex", "kind", regex="^kind [0-9]+$"),
        rule("values_to_be_between", "x1", min_value=-100, max_value=100),
        rule("mean_to_be_between", "x2", min_value=-1, max_value=1),
        rule("values_to_not_be_null", "at"),
    ]


def bench_gate(rows: int, trials: int, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import great_expectations as gx
        from great_expectations.expectations.registry import get_expectation_impl
    from featurestore.plugins.validator import find_validator
    from featurestore.validation import Subject, audit

    engine = find_engine("duckdb")
    relation = relation_of(engine, write(folder / "gate", rows))
    validator = find_validator()
    rules = validator.normalize(expectations())
    columns = ["x0", "n0", "kind", "x1", "x2", "at"]
    frame = pa.Table.from_batches(
        list(engine.stream(engine.select(relation, {name: name for name in columns})))
    ).to_pandas()

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    definition = (
        context.data_sources.add_pandas("p")
        .add_dataframe_asset("x")
        .add_batch_definition_whole_dataframe("b")
    )
    gx_expectations = [get_expectation_impl(rule["type"])(**rule["kwargs"]) for rule in rules]
    suite = gx.ExpectationSuite(name="s", expectations=gx_expectations)

    def bare() -> Any:
        return definition.get_batch(batch_parameters={"dataframe": frame}).validate(suite)

    def gate() -> Any:
        subject = Subject("bench", 1, relation.schema)
        return audit(
            relation,
            spec=subject,
            validation="strict",
            engine=engine,
            expectations=rules,
            validator=validator,
        )

    assert bare().success
    assert gate().report.success
    our_seconds, bare_seconds = in_turns(trials, gate, bare)
    print(
        f"gate of {len(rules)} expectations on {rows:,} rows, read from Parquet: {our_seconds:.2f} s"
    )
    print(
        f"  bare Great Expectations on a pandas frame in memory: {bare_seconds:.2f} s; "
        f"ratio {our_seconds / bare_seconds:.2f} (limit 1.50)"
    )
    row = f"{len(rules)} expectations on {rows:,} rows, vs Great Expectations"
    REPORT.compare(row, our_seconds, bare_seconds, "s", at_most=1.5)


def bench_spark(rows: int, folder: Path) -> None:
    engine: Any = find_engine("spark")
    paths = write(folder / "spark", rows)
    relation = relation_of(engine, paths)
    spark = engine.session
    spark.sparkContext.setJobGroup("statistics", "statistics")
    count_statistics(engine, relation, relation.schema, rows=rows)
    jobs = len(spark.sparkContext.statusTracker().getJobIdsForGroup("statistics"))
    duration = seconds(
        lambda: finish(count_statistics(engine, relation, relation.schema, rows=rows))
    )
    print(
        f"statistics of {rows:,} rows x 20 columns on local Spark: {duration:.2f} s, {jobs} job (limit 1)"
    )
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one trial")
    parser.add_argument("--only", nargs="*", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return
    scale, trials = (10, 1) if arguments.quick else (1, 3)
    folder = Path(tempfile.mkdtemp(prefix="statistics-"))
    try:
        if "statistics" in arguments.only:
            bench_statistics(5_000_000 // scale, trials, folder / "statistics")
        if "memory" in arguments.only:
            bench_memory(8_000_000 // scale, folder)
        if "gate" in arguments.only:
            bench_gate(2_000_000 // scale, trials, folder)
        if "spark" in arguments.only:
            bench_spark(1_000_000 // scale, folder)
        REPORT.save(quick=arguments.quick)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    main()
