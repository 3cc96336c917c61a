"""A process whose Spark engine uses a Spark Connect session. Prints its results as JSON.

Arguments: the address of a server with the jar and the extension of the store, a folder, and "all"
or "some" for the parts of the program.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from decimal import Decimal
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

import featurestore
from featurestore.delta.history import read_history
from featurestore.errors import FeatureStoreError
from featurestore.plugins.engine import TableWrite

ROWS = 3_000
START, DAY = 1_704_067_200_000_000, 86_400_000_000
FEATURES = ["trips.fare", "trips.word", "trips.pair", "trips.code"]
SPLITS = {"train": 0.7, "test": 0.3}
JOBS = '''
import featurestore
featurestore.sql_job(
    "daily", schedule="0 0 * * *", start="2024-01-01T00:00Z", inputs={"trips": "trips"},
    primary_key=["zone"], event_time="at",
    sql="""SELECT zone, $window_end AS at, count(*) AS rides FROM trips GROUP BY zone""",
)


@featurestore.job(
    featuregroup="sevens", primary_key=["zone"], event_time="at", schedule="0 0 * * *",
    start="2024-01-01T00:00Z", inputs={"trips": "trips"}, closed="left",
)
def sevens(window, trips):
    time = "`at`" if hasattr(trips, "sparkSession") else '"at"'
    times = f"{time} >= '{window.start.isoformat()}' and {time} < '{window.end.isoformat()}'"
    return trips.filter(f"code % 10 = 7 and {times}")
'''


def trips(first: int, last: int) -> pa.Table:
    """Return rows with ties, nulls, NaN and lists."""
    numbers = np.arange(first, last)
    days = START + numbers // 40 * DAY
    fares = np.sin(numbers)
    fares[::50], fares[1::50] = np.nan, -0.0
    return pa.table(
        {
            "zone": pa.array(numbers % 40),
            "at": times(days),
            "known": times(days + numbers % 5 * 3_600_000_000),
            "fare": pa.array(fares, mask=numbers % 7 == 3),
            "word": pa.array(
                [None if number % 11 == 0 else "é" * (number % 9) for number in numbers]
            ),
            "pair": pa.array(
                [[float(number), 1.0] for number in numbers], pa.list_(pa.float32(), 2)
            ),
            "code": pa.array(numbers % 100, pa.int16()),
            "price": pa.array([Decimal(int(number)) for number in numbers], pa.decimal128(6, 0)),
        }
    )


def times(micros: Any) -> pa.Array:
    return pa.array(micros).cast(pa.timestamp("us", "UTC"))


def labels() -> pa.Table:
    numbers = np.arange(400)
    label_times = times(START + numbers * 9_000_000_000)
    return pa.table({"zone": pa.array(numbers % 45), "at": label_times, "y": pa.array(numbers % 2)})


def run_some(store: Any, to_frame: Callable[[pa.Table], Any]) -> dict[str, Any]:
    """Write, join, export and publish groups; return what must be equal on both engines."""
    store.create_featuregroup(
        to_frame(trips(0, 2000)), "trips", primary_key="zone", event_time="at", created_time="known"
    )
    store.insert_into_featuregroup(to_frame(trips(1900, ROWS)), "trips", mode="upsert")
    joined = store.get_features(FEATURES, labels=to_frame(labels()))
    record = {
        "features": sorted_rows(joined),
        "statistics": store.get_featuregroup_statistics("trips").to_json(),
        "joined": export(store, joined, "joined", exclude="pair", label="y"),
        "published": publish(store, to_frame),
    }
    # An upsert leaves one of two stored rows of a key, and deletes keys in the same commit.
    twins = pa.concat_tables([trips(0, 3), trips(0, 2)]).drop_columns("known")
    store.create_featuregroup(twins, "twins", primary_key="zone", event_time="at", validation="off")
    group = store.featuregroup("twins")
    path, engine = store.session.featuregroup_path("twins", group.version), store.session.engine
    keys = engine.from_arrow(trips(2, 3).select(["zone", "at"]).to_reader())
    upsert = TableWrite("upsert", key=("zone", "at"), deletes=keys, transaction=("twins", 1))
    engine.write(path, engine.from_arrow(trips(0, 2).drop_columns("known").to_reader()), upsert)
    record["twins"] = sorted_rows(group.read()), read_history(path)[0].rows_in
    invalid = trips(0, 5).set_column(0, "zone", pa.nulls(5, pa.int64()))
    try:
        store.insert_into_featuregroup(invalid, "trips")
    except FeatureStoreError as error:
        record["refused"] = f"{type(error).__name__}: {error}"
    return record


def run_others(store: Any, jobs: Path, to_frame: Callable[[pa.Table], Any]) -> dict[str, Any]:
    """Change the group in other ways, query and export it, and run jobs."""
    store.insert_into_featuregroup(trips(ROWS, ROWS + 400), "trips")
    store.insert_into_featuregroup(trips(10, 20), "trips", mode="upsert")
    added = trips(ROWS + 400, ROWS + 440).append_column("tip", pa.array(np.arange(40)))
    store.insert_into_featuregroup(added, "trips", mode="upsert", schema_change="add")
    store.delete_from_featuregroup("trips", "zone = 39 and fare > 0.5")
    store.compact_featuregroup("trips")
    store.create_featuregroup(trips(0, 5), "emptied", primary_key="zone")
    store.delete_from_featuregroup("emptied", "true")
    group = store.get_featuregroup("trips")
    query = "SELECT zone, count(*) AS n, max(fare) AS top FROM trips WHERE code < 50 GROUP BY zone"
    recent = featurestore.window("trips.fare", over="3d", function="sum", name="recent")
    joined = store.get_features(FEATURES, labels=to_frame(labels()))
    store.register_jobs(jobs)
    for name in ("daily", "sevens"):
        store.backfill_job(name, "2024-01-02T00:00Z", "2024-01-04T00:00Z")
    table = store.create_training_dataset(group, "table", data_format="parquet")
    return {
        "rows": sorted_rows(group),
        "emptied": sorted_rows(store.get_featuregroup("emptied")),
        "head": len(group.head(5)),
        "sql": sorted_rows(store.sql(query)),
        "windows": sorted_rows(store.get_features([recent], labels=labels())),
        "group": export(store, group, "group", exclude="pair", label="code"),
        "arrays": export(store, joined, "arrays", label="y"),
        "table": [split["rows"] for split in table.manifest.to_json()["splits"]],
        "job": sorted_rows(store.get_featuregroup("daily")),
        "function": sorted_rows(store.get_featuregroup("sevens")),
    }


def run_on_spark(store: Any) -> dict[str, Any]:
    """Return what only an engine on Spark Connect does."""
    frame = store.get_featuregroup("trips").to_spark()
    wider = (
        trips(0, 5).drop_columns("price").append_column("price", pa.array([Decimal(10**20)] * 5))
    )
    result: dict[str, Any] = {"module": type(frame).__module__}
    before = store.featuregroup("trips").delta_version
    try:
        store.insert_into_featuregroup(wider, "trips", schema_change="add")
    except FeatureStoreError as error:
        result["refused"] = str(error)
    result["commits"] = store.featuregroup("trips").delta_version - before
    return result


def verify_groups(store: Any) -> dict[str, Any]:
    """Verify the groups that the session wrote, then one with a changed data file."""
    groups = [group.name for group in store.get_featuregroups()]
    reports = [store.verify_featuregroup(name) for name in groups]
    result: dict[str, Any] = {
        "verified": {report.featuregroup: report.problems + report.unverified for report in reports}
    }
    file = next(Path(store.featuregroup("twins").path).glob("*.parquet"))
    content = bytearray(file.read_bytes())
    content[len(content) // 4] ^= 1
    file.write_bytes(content)
    problems = store.verify_featuregroup("twins").problems
    return result | {"changed": [problem.file for problem in problems] == [file.name]}


def publish(store: Any, to_frame: Callable[[pa.Table], Any]) -> list[Any]:
    """Publish a view over groups with and without event time; return its vectors."""
    zones = pa.table({"zone": pa.array(range(40)), "name": [f"z{zone}" for zone in range(40)]})
    store.create_featuregroup(to_frame(zones), "zones", primary_key="zone")
    view = store.create_feature_view("v", features=["trips.fare", "trips.word", "zones.name"])
    published = [store.publish(view)]
    store.insert_into_featuregroup(
        to_frame(trips(ROWS + 1000, ROWS + 1010)), "trips", mode="upsert"
    )
    store.delete_from_featuregroup("zones", "zone = 7")
    published.append(store.publish(view))
    with view.server() as server:
        vectors = server.get_vectors([{"zone": zone} for zone in range(41)])
    report = view.verify_online()
    return [
        [(publication.mode, dict(publication.rows)) for publication in published],
        repr(vectors),
        repr(report),
    ]


def sorted_rows(frame: Any) -> list[str]:
    return sorted(map(repr, frame.to_arrow().to_pylist()))


def export(store: Any, rows: Any, name: str, **options: Any) -> list[tuple[str, str]]:
    """Write a training dataset; return the names and checksums of its shards."""
    dataset = store.create_training_dataset(rows, name, splits=SPLITS, shards=3, **options)
    dataset.verify()
    shards = sorted(Path(dataset.path).glob("t*/*"))
    return [(path.name, sha256(path.read_bytes()).hexdigest()) for path in shards]


def main() -> None:
    address, folder, scope = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    jobs = folder / "jobs.py"
    jobs.write_text(JOBS)
    session = SparkSession.builder.remote(address).getOrCreate()
    result: dict[str, Any] = {}
    with redirect_stdout(StringIO()):
        for engine in ("duckdb", "spark"):
            with featurestore.connect(folder / engine, engine=engine) as store:
                to_frame = session.createDataFrame if engine == "spark" else pa.table
                result[engine] = run_some(store, to_frame)
                if engine == "spark":
                    result |= run_on_spark(store)
                if scope == "all":
                    result[engine] |= run_others(store, jobs, to_frame)
                if engine == "spark":
                    result |= verify_groups(store)
    print(json.dumps(result, default=str))


if __name__ == "__main__":
    main()
