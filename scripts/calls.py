#!/usr/bin/env python
"""Count the files and functions that public calls enter: scripts/calls.py prints a line per call.

Each call runs once before it is measured, so that imports, migrations and first uses of caches do
not count. Only named functions of the calling thread count: no comprehensions and no lambdas.
``--check`` compares with ``scripts/calls.json`` and fails if a call enters more; ``--write`` stores
the current figures.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType

import pandas as pd

import featurestore
from featurestore import FeatureStore

ROOT = Path(__file__).resolve().parents[1]
LIMITS = Path(__file__).with_suffix(".json")
PACKAGES = tuple(f"{ROOT / package}/" for package in ("featurestore", "connectors"))
ROUNDS = 5
# A function of few rounds may be missing in the limits.
SLACK = 3
START = datetime(2024, 1, 1, tzinfo=UTC)
JOB = """
import featurestore

totals = featurestore.sql_job(
    "totals{suffix}",
    sql="SELECT shop, sum(sales) AS total FROM sales GROUP BY shop",
    inputs={{"sales": "sales{suffix}"}},
    schedule="0 0 * * *",
    start="2024-01-01T00:00Z",
    featuregroup="totals{suffix}",
    primary_key="shop",
    event_time="day",
)
"""


def entered_functions(call: Callable[[], object]) -> set[CodeType]:
    """Return the functions of the packages that a call enters in this thread."""
    functions = set()

    def record(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            functions.add(frame.f_code)

    sys.setprofile(record)
    try:
        with redirect_stdout(StringIO()):
            call()
    finally:
        sys.setprofile(None)
    return {
        function
        for function in functions
        if function.co_filename.startswith(PACKAGES) and not function.co_name.startswith("<")
    }


def build_calls(store: FeatureStore, folder: Path, suffix: str) -> dict[str, Callable[[], object]]:
    """Return the calls to measure, in order; each uses the results of the previous ones."""
    sales = pd.DataFrame({"shop": [1, 2, 3], "day": [START] * 3, "sales": [1.0, 2.0, 3.0]})
    later_sales = sales.assign(day=START + timedelta(days=1))
    hours = [START + timedelta(days=2, hours=hour) for hour in range(30)]
    labels = pd.DataFrame({"shop": [1, 2, 3] * 10, "time": hours, "label": [0, 1, 0] * 10})
    group, view = f"sales{suffix}", f"view{suffix}"

    def retrieve() -> featurestore.FeatureFrame:
        return store.get_features([f"{group}.sales"], labels=labels, label_time="time")

    jobs = folder / f"jobs{suffix}.py"
    jobs.write_text(JOB.format(suffix=suffix))
    return {
        "create": lambda: store.create_featuregroup(
            sales, group, primary_key=["shop"], event_time="day"
        ),
        "insert": lambda: store.insert_into_featuregroup(later_sales, group),
        "retrieve": lambda: retrieve().to_arrow(),
        "export": lambda: store.create_training_dataset(
            retrieve(), f"dataset{suffix}", label="label", splits={"train": 0.8, "test": 0.2}
        ),
        "register": lambda: store.register_jobs(jobs),
        "job": lambda: store.backfill_job(f"totals{suffix}", START, START + timedelta(days=2)),
        "view": lambda: store.create_feature_view(view, features=[f"{group}.sales"]),
        "publish": lambda: store.publish(view),
    }


def measure() -> dict[str, set[CodeType]]:
    """Return the functions that each call enters in any of several rounds.

    A function that DuckDB calls back runs in the calling thread in some rounds only.
    """
    functions_by_call: dict[str, set[CodeType]] = {}
    with tempfile.TemporaryDirectory() as folder, featurestore.connect(f"{folder}/store") as store:
        for call in build_calls(store, Path(folder), "_before").values():
            with redirect_stdout(StringIO()):
                call()
        for number in range(ROUNDS):
            for name, call in build_calls(store, Path(folder), f"_measured{number}").items():
                functions_by_call.setdefault(name, set()).update(entered_functions(call))
    return functions_by_call


def larger_counts(
    figures: dict[str, dict[str, int]], limits: dict[str, dict[str, int]]
) -> list[str]:
    """Return a line for each count of a call that exceeds its limit."""
    return [
        f"{name} enters {count} {unit}, at most {limits[name][unit]}"
        for name, counts in figures.items()
        for unit, count in counts.items()
        if count > limits[name][unit] + SLACK
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if a call enters more")
    parser.add_argument("--write", action="store_true", help="store the current figures")
    parser.add_argument("--list", metavar="CALL", help="print the files and functions of a call")
    arguments = parser.parse_args()
    functions_by_call = measure()
    if arguments.list:
        names: dict[str, list[str]] = {}
        for function in functions_by_call[arguments.list]:
            path = str(Path(function.co_filename).relative_to(ROOT))
            names.setdefault(path, []).append(function.co_qualname)
        for path, functions in sorted(names.items(), key=lambda item: (len(item[1]), item[0])):
            print(f"{len(functions):4} {path}: {', '.join(sorted(functions))}")
        return
    figures = {
        name: {"files": len({f.co_filename for f in functions}), "functions": len(functions)}
        for name, functions in functions_by_call.items()
    }
    for name, figure in figures.items():
        print(f"{name:10}{figure['files']:5} files{figure['functions']:6} functions")
    if arguments.write:
        LIMITS.write_text(json.dumps(figures, indent=1) + "\n")
    if arguments.check:
        sys.exit("\n".join(larger_counts(figures, json.loads(LIMITS.read_text()))) or None)


if __name__ == "__main__":
    main()
