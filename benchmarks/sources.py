"""Rows of Postgres into a feature group, compared with what the driver alone reads.

A server of its own is started (initdb) in a temporary folder; the ratio is of rows a second, and
the limit 0.8. ``--wait 1`` reads of a server that is waited for, a millisecond every 1,000 rows, as
where it has cores of its own behind a network. ``--spark`` has the tasks of Spark read the same
rows instead, in eight parts of one snapshot, one, two and four of them at once, also of a server
that is waited for; ``--jar`` names the driver.

python benchmarks/sources.py [--quick] [--rows 1000000] [--wait 1] [--spark --jar postgresql.jar]
"""

from __future__ import annotations

import argparse
import os
import pwd
import resource
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from report import COMPARISONS, Report

import featurestore

LIMIT = 0.8
TRIALS = 5
REPORT = Report(
    "sources",
    "A Postgres server on the same machine; `far` is a view that waits 50 ms per 1,000 rows.",
)
MAKE = """
    create table readings as
    select n::bigint as id, 'sensor ' || n % 1000 as sensor,
           timestamptz '2024-01-01' + n * interval '1 second' as at,
           {columns}
    from generate_series(1, {rows}) as n
"""

# The same rows of a server that is waited for, by default 50 milliseconds every 1,000 rows.
SLOW = """
    create function waited(id bigint) returns text immutable language plpgsql as $$
    begin
        if id % 1000 = 0 then perform pg_sleep({wait} / 1000.0); end if;
        return '';
    end $$;
    create view far as select *, waited(id) as waited from readings
"""


@contextmanager
def server(*, fsync: str = "off") -> Iterator[str]:
    """Start a Postgres server, and yield its URL."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))[-1].parent
    folder = Path(tempfile.mkdtemp(prefix="featurestore-bench-"))
    account = pwd.getpwnam("nobody") if os.getuid() == 0 else pwd.getpwuid(os.getuid())
    os.chown(folder, account.pw_uid, account.pw_gid)

    def run(program: str, *arguments: str) -> None:
        subprocess.run(
            [str(binaries / program), *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=folder,
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=[] if os.getuid() == 0 else None,
        )

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = str(folder / "data")
    options = f"-p {port} -c unix_socket_directories={folder} -c fsync={fsync}"
    run("initdb", "-D", data, "-U", "store", "-A", "trust", "--no-sync")
    run("pg_ctl", "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
    try:
        yield f"postgresql://store@127.0.0.1:{port}/postgres"
    finally:
        run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def fill(url: str, rows: int, wait: float) -> None:
    """Make the table: rows x 10, and the view that waits so many milliseconds."""
    import psycopg

    columns = ", ".join([f"random() as x{number}" for number in range(7)])
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(MAKE.format(columns=columns, rows=rows))
        database.execute(SLOW.format(wait=wait))
        database.execute("vacuum analyze readings")


def bare(url: str, table: str) -> int:
    """Read all rows by the driver alone, batch by batch."""
    from adbc_driver_postgresql import dbapi

    rows = 0
    with dbapi.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(f"select * from {table}")
        for batch in cursor.fetch_record_batch():
            rows += batch.num_rows
    return rows


def measured(work: Callable[[], int], rows: int) -> tuple[float, float]:
    """Return seconds, and seconds of this process's processor."""
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    assert work() == rows
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, busy


def by_tasks(url: str, rows: int, jar: str, folder: str) -> None:
    """Read all rows by tasks of Spark, with one core and with two."""
    from pyspark.sql import SparkSession

    from featurestore.plugins.source import SourceConfig, SourceQuery
    from featurestore_connectors.sources.postgres import PostgresSource
    from featurestore_connectors.spark_delta import SparkEngine, configure_session

    options = {"partitions": "8", "partition_column": "id"}
    source = PostgresSource(SourceConfig("plant", url, options))
    for cores in (1, 2, 4):
        builder = SparkSession.builder.master(f"local[{cores}]").config("spark.jars", jar)
        builder = builder.config("spark.ui.enabled", "false")
        spark = configure_session(builder).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        engine = SparkEngine(spark)
        for table in ("readings", "far"):
            durations = []
            for trial in range(3):
                snapshot = source.snapshot()
                start = time.perf_counter()
                target = str(Path(folder) / f"{table}-{cores}-{trial}")
                staged = snapshot.stage(SourceQuery(table=table), engine, target)
                durations.append(time.perf_counter() - start)
                assert engine.count(staged) == rows
                snapshot.close()
            rate = rows / statistics.median(durations)
            print(f"{table:8} {cores} tasks at once: {rate:12,.0f} rows/s", flush=True)
            row = f"{rows:,} rows x 10 of `{table}` by JDBC on Spark, {cores} tasks at once"
            REPORT.add(COMPARISONS, row, "ours", rate, "rows/s")
        spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--wait", type=float, help="milliseconds every 1,000 rows")
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--jar", default="")
    arguments = parser.parse_args()
    rows = arguments.rows // 10 if arguments.quick else arguments.rows
    warnings.simplefilter("ignore")
    with server() as url, tempfile.TemporaryDirectory(dir=".") as folder:
        fill(url, rows, 50.0 if arguments.wait is None else arguments.wait)
        table = "readings" if arguments.wait is None else "far"
        if arguments.spark:
            by_tasks(url, rows, arguments.jar, folder)
            REPORT.save(quick=arguments.quick)
            return 0
        store = featurestore.connect(Path(folder) / "store", engine="duckdb")
        store.add_source("plant", url)
        frame = store.read_source("plant", table=table)

        def into_group() -> int:
            group = store.create_featuregroup(frame, "readings", validation="off", statistics=False)
            return group.history()[0].rows

        works = {"driver alone": lambda: bare(url, table), "into a group": into_group}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
        for _ in range(TRIALS):
            for name, work in works.items():
                times[name].append(measured(work, rows))
        group_rows = store.get_featuregroup("readings").to_arrow().sort_by("id")
        assert group_rows.equals(frame.to_arrow().sort_by("id")), "the group holds other rows"
    medians = {}
    for name, costs in times.items():
        seconds = statistics.median([cost[0] for cost in costs])
        busy = statistics.median([cost[1] for cost in costs])
        medians[name] = seconds
        print(f"{name:14} {rows / seconds:12,.0f} rows/s   {busy:6.2f} s of processor time")

    ratio = medians["driver alone"] / medians["into a group"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"ratio {ratio:.2f} (limit {LIMIT}), peak memory {peak:,.0f} MiB")
    row = f"{rows:,} rows x 10 of `{table}` into a group, vs the ADBC driver alone"
    driver_rate, group_rate = (rows / medians[name] for name in works)
    REPORT.compare(row, group_rate, driver_rate, "rows/s", at_least=LIMIT)
    REPORT.save(quick=arguments.quick)
    return 0 if ratio >= LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
