"""Time of fresh processes: the command line, and a first retrieval compared with DuckDB by hand.

Each figure is the median of processes that run in turns. Seconds beyond those of an empty program
are reported, so that the start of Python does not count.

python benchmarks/fresh_process.py                 all programs
python benchmarks/fresh_process.py --trials 5      fewer runs of each
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import Report

REPORT = Report(
    "fresh_process",
    "Processes that start, do one thing and end, in turns; seconds beyond an empty Python program. "
    "The first retrieval creates a group of 1,000 rows in a new store and joins it to 1,000 labels; "
    "by hand the rows are written to a Parquet file and joined by an `ASOF` query.",
)
TABLE = "fresh process"
ROWS = 1_000
_DATA = """
import sys
from datetime import UTC, datetime, timedelta
start = datetime(2026, 1, 1, tzinfo=UTC)
rows = {
    "key": [row % 50 for row in range(ROWS)],
    "at": [start + timedelta(minutes=row) for row in range(ROWS)],
    "value": [row * 0.5 for row in range(ROWS)],
}
labels = {
    "key": [row * 7 % 53 for row in range(ROWS)],
    "time": [start + timedelta(minutes=row, seconds=30) for row in range(ROWS)],
}
""".replace("ROWS", str(ROWS))
_PRINT = """
import json
values = result.column("value").to_pylist()
print(json.dumps(values))
"""
_STORE = f"""{_DATA}
import featurestore
import pyarrow as pa
store = featurestore.connect(sys.argv[1] + "/store")
store.create_featuregroup(pa.table(rows), "group", primary_key="key", event_time="at")
result = store.get_features(
    "group.value", labels=pa.table(labels), label_time="time", dataframe_type="arrow"
)
{_PRINT}"""
_BY_HAND = f"""{_DATA}
import duckdb
import pyarrow as pa
connection = duckdb.connect()
group_rows = pa.table(rows)
numbered = pa.table(labels).append_column("number", pa.array(range({ROWS})))
path = sys.argv[1] + "/rows.parquet"
connection.sql("SELECT * FROM group_rows").write_parquet(path)
result = connection.sql(
    f"SELECT l.key, l.time, r.value FROM numbered l ASOF LEFT JOIN '{{path}}' r "
    "ON l.key = r.key AND l.time >= r.at ORDER BY l.number"
).to_arrow_table()
{_PRINT}"""
_LIST_STORE = f"""{_DATA}
import featurestore
import pyarrow as pa
store = featurestore.connect(sys.argv[1])
for number in range(10):
    store.create_featuregroup(pa.table(rows), f"group{{number}}", primary_key="key", event_time="at")
"""


def run(command: list[str], folder: Path) -> tuple[str, float, float]:
    """Run a process and return its output, its seconds and its processor seconds."""
    # As installed: modules are read from byte code, which the first run writes.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    finished = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return finished.stdout, seconds, processor


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=11)
    parser.add_argument("--quick", action="store_true", help="two runs of each")
    options = parser.parse_args()
    trials = 2 if options.quick else options.trials
    cli = str(Path(sys.executable).with_name("featurestore"))
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        run(python(_LIST_STORE, str(folder / "listed")), folder)
        location = str(folder / "listed")
        times: dict[str, list[tuple[float, float]]] = {}
        for trial in range(trials + 1):  # the first run writes byte code
            trial_folder = folder / str(trial)
            trial_folder.mkdir()
            outputs = {}
            for name, command in {
                "empty": python("pass"),
                "help": [cli, "--help"],
                "list": [cli, "--location", location, "fg", "list", "--output", "json"],
                "store": python(_STORE, str(trial_folder)),
                "by hand": python(_BY_HAND, str(trial_folder)),
            }.items():
                outputs[name], seconds, processor = run(command, folder)
                if trial:
                    times.setdefault(name, []).append((seconds, processor))
            assert outputs["store"] == outputs["by hand"], "the retrievals differ"
            assert len(json.loads(outputs["list"])) == 10, "the list is incomplete"
    medians = {
        name: [statistics.median(run_times) for run_times in zip(*runs, strict=True)]
        for name, runs in times.items()
    }
    for row, name, base, limit in (
        ("`featurestore --help`, beyond `python -c pass`", "help", "empty", 0.15),
        ("`featurestore fg list` of ten groups, beyond `python -c pass`", "list", "empty", 0.4),
        ("import, connect, create, retrieve, beyond DuckDB by hand", "store", "by hand", 0.6),
        ("DuckDB by hand, beyond `python -c pass`", "by hand", "empty", None),
    ):
        seconds, processor = (
            more - less for more, less in zip(medians[name], medians[base], strict=True)
        )
        print(f"{row:64} {seconds:5.2f} s, processor {processor:5.2f} s (<= {limit})", flush=True)
        REPORT.add(TABLE, row, "time", seconds, "s", processor=processor, at_most=limit)
    REPORT.save(quick=options.quick)


if __name__ == "__main__":
    main()
