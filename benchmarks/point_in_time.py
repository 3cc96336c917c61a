"""Point-in-time retrieval against hand-written queries and other libraries.

Medians in one run, equal results.

python benchmarks/point_in_time.py                         duckdb engine against a hand-written ASOF
query python benchmarks/point_in_time.py --peers                 also pandas.merge_asof and polars
join_asof python benchmarks/point_in_time.py --feast                 also Feast, in an environment
of its own (made if need be) python benchmarks/point_in_time.py --memory                peak memory,
and the wide shape with a quarter of its size python benchmarks/point_in_time.py --spark
the spark engine against a range join with row_number python benchmarks/point_in_time.py --quick
--only wide     a tenth of the rows, some shapes
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from report import Report

TRIALS = 5
DAYS = 90
START = 1_700_000_000_000_000
LABELS = "labels.parquet"
FEAST = "feast[duckdb]==0.67.0"
FEAST_TARGETS = {"wide": 12.0, "dense": 200.0}
# A peer that takes longer is stopped, and the figure is a lower bound.
PATIENCE = 240
# Another library that takes longer is run once.
SLOW = 30.0
# Runs of less than a tenth of a second vary more, and are repeated more often.
BRIEF, MANY_TRIALS = 0.1, 25
REPORT = Report(
    "point_in_time",
    "The embedded engine on Delta tables compared with an `ASOF` query written by hand on the same Parquet "
    "files, which ignores the created time. Wide has 200,000 keys, dense 265 keys of 2,880 steps, "
    "skewed Zipf keys, few 200 keys, three three groups; corrected has a created time and 10 % corrected rows, "
    "tied also 1 % of the rows twice. With a created time, pandas and polars join the running maximum of "
    "row numbers in the order of both times. Memory is the growth of the process. Spark runs on two cores, "
    "compared with a range join with `row_number` that is stopped after twelve times our time.",
)


# -- shapes -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """One feature group of a shape."""

    name: str
    rows: pa.Table
    created: bool = False
    ties: bool = False
    features: tuple[str, ...] = field(default=("f0", "f1", "f2", "f3", "f4"))


@dataclass(frozen=True)
class Shape:
    """Labels and groups.

    ``limit`` is the most that ours may take of the hand-written query's time, if any is set.
    """

    name: str
    labels: pa.Table
    groups: tuple[Group, ...]
    limit: float | None = 1.25

    @property
    def features(self) -> list[str]:
        """References with names that differ between groups."""
        return [f"{g.name}.{f} as {g.name}_{f}" for g in self.groups for f in g.features]


def add_figure(shape: Shape, column: str, value: float, unit: str = "", **limits: Any) -> None:
    rows = sum(group.rows.num_rows for group in shape.groups)
    row = f"{shape.name}, {shape.labels.num_rows:,} labels, {rows:,} rows"
    REPORT.add("shape", row, column, value, unit, **limits)


def to_timestamps(micros: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array(micros, pa.timestamp("us", tz="UTC"))


def labels(
    random: np.random.Generator, keys: np.ndarray[Any, Any], first: int, last: int
) -> pa.Table:
    times = random.integers(first, last, len(keys))
    return pa.table(
        {
            "id": np.arange(len(keys)),
            "key": keys,
            "at": to_timestamps(times),
            "y": random.random(len(keys)),
        }
    )


def rows(
    random: np.random.Generator, keys: np.ndarray[Any, Any], times: np.ndarray[Any, Any]
) -> pa.Table:
    columns: dict[str, Any] = {"key": keys, "event": to_timestamps(times)}
    columns |= {f"f{index}": random.random(len(keys)) for index in range(5)}
    return pa.table(columns)


def wide(scale: float, *, name: str = "w", seed: int = 0) -> Group:
    random = np.random.default_rng(seed)
    count, keys = int(5_000_000 * scale), int(200_000 * scale)
    # Different microseconds for every row: no ties, so that the hand-written query has one right
    # answer.
    times = START + random.permutation(count) * (DAYS * 86_400_000_000 // count)
    return Group(name, rows(random, random.integers(0, keys, count), times))


def wide_labels(scale: float) -> pa.Table:
    random = np.random.default_rng(99)
    count, keys = int(1_000_000 * scale), int(200_000 * scale)
    return labels(random, random.integers(0, keys, count), START, START + DAYS * 86_400_000_000)


def corrected(scale: float) -> Group:
    """The wide group with a created time, up to an hour late, and 10 % of the rows corrected within a day."""
    random = np.random.default_rng(7)
    plain = wide(scale).rows
    event = plain["event"].cast(pa.int64()).to_numpy()
    created = event + random.integers(0, 3_600_000_000, len(event))
    late = np.flatnonzero(random.random(len(event)) < 0.1)
    again = created[late] + random.integers(1, 86_400_000_000, len(late))
    first = plain.append_column("created", to_timestamps(created))
    second = plain.take(pa.array(late)).append_column("created", to_timestamps(again))
    both = pa.concat_tables([first, second]).combine_chunks()
    return Group("w", both.take(pa.array(random.permutation(both.num_rows))), created=True)


def tied(scale: float) -> Group:
    """The corrected group with 1 % of its rows twice, so that keys and times do not tell all rows apart."""
    random = np.random.default_rng(8)
    once = corrected(scale).rows
    twice = once.take(pa.array(np.flatnonzero(random.random(once.num_rows) < 0.01)))
    both = pa.concat_tables([once, twice]).combine_chunks()
    return Group(
        "w", both.take(pa.array(random.permutation(both.num_rows))), created=True, ties=True
    )


def dense(scale: float) -> Shape:
    random = np.random.default_rng(1)
    keys, steps = 265, int(2_880 * max(scale, 0.1))
    key = np.repeat(np.arange(keys), steps)
    times = START + np.tile(np.arange(steps), keys) * 900_000_000
    order = random.permutation(len(key))
    group = Group("w", rows(random, key[order], times[order]))
    label_keys = random.integers(0, keys, int(100_000 * scale))
    return Shape("dense", labels(random, label_keys, START, START + steps * 900_000_000), (group,))


def skewed(scale: float) -> Shape:
    random = np.random.default_rng(2)
    count, keys = int(5_000_000 * scale), int(200_000 * scale)
    times = START + random.permutation(count) * (DAYS * 86_400_000_000 // count)
    group = Group("w", rows(random, random.zipf(1.2, count) % keys, times))
    label_keys = random.zipf(1.2, int(1_000_000 * scale)) % keys
    return Shape(
        "skewed", labels(random, label_keys, START, START + DAYS * 86_400_000_000), (group,)
    )


def few(_: float) -> Shape:
    """A small retrieval, of which most is the work of each call; it has one size."""
    random = np.random.default_rng(3)
    count, keys = 10_000, 200
    times = START + random.permutation(count) * (DAYS * 86_400_000_000 // count)
    group = Group("w", rows(random, random.integers(0, keys, count), times))
    label_keys = random.integers(0, keys, 1_000)
    return Shape("few", labels(random, label_keys, START, START + DAYS * 86_400_000_000), (group,))


def three(scale: float) -> Shape:
    groups = tuple(
        wide(scale / 2, name=name, seed=seed) for seed, name in enumerate(("a", "b", "c"))
    )
    return Shape("three", wide_labels(scale / 2), groups)


SHAPES: dict[str, Callable[[float], Shape]] = {
    "wide": lambda scale: Shape("wide", wide_labels(scale), (wide(scale),)),
    "dense": dense,
    "few": few,
    "skewed": skewed,
    "three": three,
    "corrected": lambda scale: Shape(
        "corrected", wide_labels(scale), (corrected(scale),), limit=1.6
    ),
    "tied": lambda scale: Shape("tied", wide_labels(scale), (tied(scale),), limit=None),
}


# -- ours and theirs ----------------------------------------------------------------------


def write(shape: Shape, folder: Path) -> None:
    """Write the groups of a shape into a store of its own, with the embedded engine, and the labels next to it."""
    from pyarrow import parquet

    import featurestore

    store = featurestore.connect(folder, engine="duckdb")
    for group in shape.groups:
        store.create_featuregroup(
            group.rows, group.name, primary_key=["key"], event_time="event",
            created_time="created" if group.created else None, statistics=False,
            validation="off" if group.ties else "strict",
        )  # fmt: skip
    store.close()
    parquet.write_table(shape.labels, folder / LABELS)


def ours(shape: Shape, folder: Path, *, engine: str = "duckdb") -> Callable[[], pa.Table]:
    import featurestore

    store = featurestore.connect(folder, engine=engine)
    return lambda: store.get_features(
        shape.features, labels=shape.labels, label_time="at", dataframe_type="arrow"
    )


def files_of(folder: Path, group: Group) -> list[str]:
    from featurestore.delta.snapshot import read_snapshot

    return [
        file.path for file in read_snapshot(str(folder / "featuregroups" / group.name / "v1")).files
    ]


def by_hand(shape: Shape, folder: Path, *, memory: str | None = None) -> Callable[[], pa.Table]:
    """Return the ASOF query that one would write over the same files, label order included."""
    import duckdb

    connection = duckdb.connect(config={} if memory is None else {"memory_limit": memory})
    connection.execute("SET TimeZone = 'UTC'")
    joins, columns = [], ["l.id", "l.key", "l.at", "l.y"]
    for group in shape.groups:
        columns += [f"{group.name}.{f} AS {group.name}_{f}" for f in group.features]
        joins.append(
            f"ASOF LEFT JOIN read_parquet({files_of(folder, group)!r}) {group.name} "
            f"ON l.key = {group.name}.key AND l.at >= {group.name}.event"
        )
    numbered = shape.labels.append_column("n", pa.array(np.arange(shape.labels.num_rows)))
    connection.register("labels", numbered)
    query = f"SELECT {', '.join(columns)} FROM labels l {' '.join(joins)} ORDER BY l.n"
    return lambda: connection.sql(query).to_arrow_table()


def by_range(shape: Shape, folder: Path) -> Callable[[], pa.Table]:
    """Return the rule itself as a query.

    All rows known at the label's time, of them the greatest. Slow.
    """
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    group = shape.groups[0]
    values = ", ".join(f"{name} := w.{name}" for name in group.features)
    columns = ", ".join(f"m.best.{name} AS w_{name}" for name in group.features)
    connection.register("labels", shape.labels)
    query = (
        f"WITH m AS (SELECT l.id, arg_max(struct_pack({values}), struct_pack(e := w.event, c := w.created)) AS best "
        f"FROM labels l JOIN read_parquet({files_of(folder, group)!r}) w "
        "ON l.key = w.key AND w.event <= l.at AND w.created <= l.at GROUP BY l.id) "
        f"SELECT l.id, l.key, l.at, l.y, {columns} FROM labels l LEFT JOIN m ON l.id = m.id ORDER BY l.id"
    )
    return lambda: connection.sql(query).to_arrow_table()


def by_pandas(shape: Shape, folder: Path) -> Callable[[], pa.Table]:
    import pandas as pd
    from pyarrow import parquet

    def joined(label_rows: pd.DataFrame, group: Group) -> pd.DataFrame:
        right = pa.concat_tables(
            [parquet.read_table(file) for file in files_of(folder, group)]
        ).to_pandas()
        right = right.rename(
            columns={feature: f"{group.name}_{feature}" for feature in group.features}
        )
        if not group.created:
            right = right.sort_values("event", kind="stable")
            result = pd.merge_asof(label_rows, right, left_on="at", right_on="event", by="key")
            return result.drop(columns="event")
        # Rows are numbered by event and created time. The greatest number up to the time at which
        # a row is known identifies the row of a label.
        right = right.sort_values(["event", "created"], ignore_index=True)
        known_rows = pd.DataFrame(
            {"key": right["key"], "known": right[["event", "created"]].max(axis=1)}
        )
        known_rows["number"] = known_rows.index
        known_rows = known_rows.sort_values("known", kind="stable")
        known_rows["number"] = known_rows.groupby("key")["number"].cummax()
        result = pd.merge_asof(label_rows, known_rows, left_on="at", right_on="known", by="key")
        right = right.drop(columns=["key", "event", "created"])
        result = result.merge(right, how="left", left_on="number", right_index=True)
        return result.drop(columns=["known", "number"])

    def run() -> pa.Table:
        result = shape.labels.to_pandas().sort_values("at", kind="stable")
        for group in shape.groups:
            result = joined(result, group)
        result = result.sort_values("id", kind="stable")
        return pa.Table.from_pandas(result, preserve_index=False)

    return run


def by_polars(shape: Shape, folder: Path) -> Callable[[], pa.Table]:
    import polars as pl

    def joined(label_rows: pl.DataFrame, group: Group) -> pl.DataFrame:
        right = pl.read_parquet(files_of(folder, group))
        right = right.rename({feature: f"{group.name}_{feature}" for feature in group.features})
        if not group.created:
            return label_rows.join_asof(
                right.sort("event"),
                left_on="at",
                right_on="event",
                by="key",
                check_sortedness=False,
            ).drop("event")
        # As with pandas: the greatest number of a row that is known.
        right = right.sort("event", "created").with_row_index("number")
        known_rows = (
            right.select("key", "number", known=pl.max_horizontal("event", "created"))
            .sort("known", maintain_order=True)
            .with_columns(pl.col("number").cum_max().over("key"))
        )
        result = label_rows.join_asof(
            known_rows, left_on="at", right_on="known", by="key", check_sortedness=False
        ).drop("known")
        right = right.drop("key", "event", "created")
        return result.join(right, on="number", how="left", maintain_order="left").drop("number")

    def run() -> pa.Table:
        result = pl.from_arrow(shape.labels).sort("at")
        for group in shape.groups:
            result = joined(result, group)
        return result.sort("id").to_arrow()

    return run


def has_equal_rows(first: pa.Table, second: pa.Table) -> bool:
    """Return whether two results have equal rows in equal order; columns by position."""
    return first.num_rows == second.num_rows and all(
        np.array_equal(
            a.cast(pa.float64()).to_numpy()
            if pa.types.is_floating(a.type)
            else a.cast(pa.int64()).to_numpy(),
            b.cast(pa.float64()).to_numpy()
            if pa.types.is_floating(b.type)
            else b.cast(pa.int64()).to_numpy(),
            equal_nan=pa.types.is_floating(a.type),
        )
        for a, b in zip(first.columns, second.columns, strict=True)
    )


# -- measuring ----------------------------------------------------------------------------


def in_turns(
    functions: dict[str, Callable[[], Any]],
    *,
    trials: int = TRIALS,
    processor: Callable[[], float] = time.process_time,
) -> dict[str, float]:
    """Return the median seconds of each, measured in turns after one run to warm up.

    Under ``"<name> cpu"`` also the median of processor seconds, which other work on the machine
    disturbs less.
    """
    seconds: dict[str, list[float]] = {}
    for trial in range(trials + 1):
        for name, function in functions.items():
            started, worked = time.perf_counter(), processor()
            function()
            if trial:
                seconds.setdefault(name, []).append(time.perf_counter() - started)
                seconds.setdefault(f"{name} cpu", []).append(processor() - worked)
    return {name: statistics.median(times) for name, times in seconds.items()}


def speed(shape: Shape, folder: Path, *, peers: bool, trials: int) -> None:
    our_query, hand_query = ours(shape, folder), by_hand(shape, folder)
    peer_queries: dict[str, Callable[[], pa.Table]] = {}
    if peers:
        peer_queries = {
            "pandas.merge_asof": by_pandas(shape, folder),
            "polars join_asof": by_polars(shape, folder),
        }
    checks = (
        {"the rule as a query": by_range(shape, folder)}
        if shape.groups[0].created
        else {"ASOF by hand": hand_query}
    )
    started = time.perf_counter()
    result = our_query()
    if time.perf_counter() - started <= BRIEF:
        trials = MANY_TRIALS
    first = {}
    for name, query in {**checks, **peer_queries}.items():
        started, worked = time.perf_counter(), time.process_time()
        peer_rows = query()
        first[name] = time.perf_counter() - started
        first[f"{name} cpu"] = time.process_time() - worked
        assert has_equal_rows(result, peer_rows), f"{shape.name}: {name} gives other rows"
    del result, peer_rows
    fast = {name: query for name, query in peer_queries.items() if first[name] <= SLOW}
    medians = in_turns({"ours": our_query, "ASOF by hand": hand_query, **fast}, trials=trials)
    ratio, work = (
        medians[f"ours{suffix}"] / medians[f"ASOF by hand{suffix}"] for suffix in ("", " cpu")
    )
    limit = "no limit" if shape.limit is None else f"<= {shape.limit}"
    print(
        f"{shape.name:10} {shape.labels.num_rows:>9,} labels  ours {medians['ours']:6.3f} s  "
        f"ASOF by hand {medians['ASOF by hand']:6.3f} s  ratio {ratio:4.2f} ({limit}), "
        f"of processor time {work:4.2f}",
        flush=True,
    )
    add_figure(shape, "time / ASOF", ratio, processor=work, at_most=shape.limit)
    for name in peer_queries:
        column = f"{name.split()[0].split('.')[0]} / ours"
        if name not in fast:
            times, work = (
                first[f"{name}{suffix}"] / medians[f"ours{suffix}"] for suffix in ("", " cpu")
            )
            print(
                f"{'':10} {name} {times:.1f} times ours (one run), of processor time {work:.2f}",
                flush=True,
            )
            add_figure(shape, column, times, processor=work)
            continue
        times, work = (
            medians[f"{name}{suffix}"] / medians[f"ours{suffix}"] for suffix in ("", " cpu")
        )
        print(f"{'':10} {name} {times:.2f} times ours, of processor time {work:.2f}", flush=True)
        add_figure(shape, column, times, processor=work)


def memory(shape: Shape, folder: Path) -> None:
    """Print the peak memory of both, each in a process of its own, beyond what the process holds before."""
    peaks = {contestant: _child(contestant, shape.name, folder) for contestant in ("hand", "ours")}
    print(
        f"{shape.name:10} peak memory: ours {peaks['ours']:,} MiB, ASOF by hand {peaks['hand']:,} MiB, "
        f"ratio {peaks['ours'] / peaks['hand']:.2f} (<= 1.3)",
        flush=True,
    )
    add_figure(shape, "peak", peaks["ours"], "MiB")
    add_figure(shape, "peak / ASOF", peaks["ours"] / peaks["hand"], at_most=1.3)


def spill(scale: float, folder: Path) -> None:
    """Print that the wide shape finishes with a quarter of its input's size as DuckDB's memory."""
    shape = SHAPES["wide"](scale)
    size = sum(group.rows.nbytes for group in shape.groups) + shape.labels.nbytes
    limit = f"{size // 4 // 2**20}MiB"
    os.environ["FEATURESTORE_DUCKDB_MEMORY_LIMIT"] = limit
    started = time.perf_counter()
    result = ours(shape, folder)()
    del os.environ["FEATURESTORE_DUCKDB_MEMORY_LIMIT"]
    seconds = time.perf_counter() - started
    add_figure(shape, "time in a quarter of the memory", seconds, "s")
    print(
        f"wide with memory_limit {limit} of {size // 2**20} MiB: {result.num_rows:,} rows "
        f"in {seconds:.1f} s",
        flush=True,
    )


def _child(contestant: str, shape_name: str, folder: Path) -> int:
    command = [
        sys.executable,
        __file__,
        "--child",
        contestant,
        "--only",
        shape_name,
        "--place",
        str(folder),
    ]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(process.stdout.split()[-1])


def child(contestant: str, folder: Path) -> None:
    """Print by how many MiB one run lets the process grow.

    Labels and libraries are there before, groups on disk.
    """
    from pyarrow import parquet

    table = parquet.read_table(folder / LABELS)
    nothing = pa.table({})
    names = sorted(group_folder.name for group_folder in (folder / "featuregroups").iterdir())
    shape = Shape("", table, tuple(Group(name, nothing) for name in names))
    if contestant == "ours":
        ours(replace(shape, labels=table.slice(0, 0)), folder)()
    function = ours(shape, folder) if contestant == "ours" else by_hand(shape, folder)
    before = _status("VmRSS")
    function()
    print((_status("VmHWM") - before) // 1024)


def _status(field: str) -> int:
    """Return a field of this process's memory in KiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


# -- Feast ----------------------------------------------------------------------------------

_FEAST_SCRIPT = """
import json, sys, time, statistics
from datetime import timedelta
import pandas as pd
from feast import Entity, FeatureStore, FeatureView, Field, FileSource
from feast.repo_config import RepoConfig
from feast.types import Float64
from feast.value_type import ValueType

files, labels, directory, trials = json.loads(sys.argv[1])
config = RepoConfig(project="bench", registry=directory + "/registry.db", provider="local",
                    offline_store={"type": "duckdb"}, online_store={"type": "sqlite", "path": directory + "/online.db"},
                    entity_key_serialization_version=3)
store = FeatureStore(config=config)
key = Entity(name="key", join_keys=["key"], value_type=ValueType.INT64)
source = FileSource(path=files, timestamp_field="event")
view = FeatureView(name="w", entities=[key], ttl=timedelta(days=0), source=source,
                   schema=[Field(name=f"f{i}", dtype=Float64) for i in range(5)])
store.apply([key, view])
entities = pd.read_parquet(labels).rename(columns={"at": "event_timestamp"})
seconds = []
for _ in range(trials):
    started = time.perf_counter()
    result = store.get_historical_features(entity_df=entities, features=[f"w:f{i}" for i in range(5)]).to_df()
    seconds.append(time.perf_counter() - started)
columns = ["id", "key", "event_timestamp", "y", *(f"f{i}" for i in range(5))]
result[columns].to_parquet(directory + "/found.parquet", index=False)
print(statistics.median(seconds))
"""


def feast(shape: Shape, store_folder: Path, environment: Path) -> None:
    """Print Feast's time on a shape, with its DuckDB offline store over a copy of the rows in one Parquet file."""
    from pyarrow import parquet

    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", FEAST], check=True)
    folder = store_folder / "feast"
    folder.mkdir(exist_ok=True)
    parquet.write_table(shape.groups[0].rows, folder / "rows.parquet")
    trials = 1 if shape.name == "dense" else 5
    arguments = json.dumps(
        [str(folder / "rows.parquet"), str(store_folder / LABELS), str(folder), trials]
    )
    our_query = ours(shape, store_folder)
    table = our_query()
    seconds = in_turns({"ours": our_query})["ours"]
    command = [str(python), "-c", _FEAST_SCRIPT, arguments]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        print(
            f"{shape.name:10} Feast 0.67 did not finish {trials} runs in {PATIENCE} s, ours {seconds:.2f} s: "
            f"more than {PATIENCE / trials / seconds:.0f} times a run",
            flush=True,
        )
        ratio = PATIENCE / trials / seconds
        add_figure(
            shape, "Feast / ours", ratio, at_least=FEAST_TARGETS[shape.name], is_lower_bound=True
        )
        return
    if process.returncode:
        print(
            f"{shape.name:10} Feast failed: {process.stderr.strip().splitlines()[-1]}", flush=True
        )
        return
    feast_seconds = float(process.stdout.split()[-1])
    feast_rows = (
        parquet.read_table(folder / "found.parquet")
        .sort_by("id")
        .rename_columns(table.column_names)
    )
    feast_rows = feast_rows.cast(table.schema)  # times in nanoseconds
    equal = "equal" if has_equal_rows(feast_rows, table) else "NOT equal"
    print(
        f"{shape.name:10} Feast 0.67 {feast_seconds:.1f} s, ours {seconds:.2f} s: {feast_seconds / seconds:.0f} times; "
        f"{feast_rows.num_rows:,} of {table.num_rows:,} rows, {equal}",
        flush=True,
    )
    add_figure(shape, "Feast / ours", feast_seconds / seconds, at_least=FEAST_TARGETS[shape.name])


# -- Spark ----------------------------------------------------------------------------------


def spark(shape: Shape, folder: Path, *, slow_peer: bool) -> None:
    """Print the spark engine against the range join with row_number, in one session and over the same tables."""
    import featurestore

    expected = ours(shape, folder)()
    store = featurestore.connect(folder, engine="spark")
    session = store.session.engine.session  # type: ignore[attr-defined]
    label_rows = session.read.parquet(str(folder / LABELS))

    def retrieve() -> None:
        frame = store.get_features(shape.features, labels=label_rows, label_time="at").native()
        frame.write.format("noop").mode("overwrite").save()

    def range_join() -> None:
        _range_join(session, shape, folder, label_rows).write.format("noop").mode(
            "overwrite"
        ).save()

    spark_rows = (
        store.get_features(shape.features, labels=label_rows, label_time="at")
        .to_arrow()
        .sort_by("id")
    )
    assert has_equal_rows(spark_rows, expected), f"{shape.name}: spark gives other rows than duckdb"
    if slow_peer:
        medians = in_turns({"ours": retrieve}, processor=_processor_of_all)
        worked = _processor_of_all()
        medians["range join"], finished = _bounded(
            session, range_join, patience=12 * medians["ours"]
        )
        medians["range join cpu"] = _processor_of_all() - worked
    else:
        peer_rows = _range_join(session, shape, folder, label_rows).toArrow().sort_by("id")
        assert has_equal_rows(spark_rows, peer_rows), (
            f"{shape.name}: other rows than the range join"
        )
        finished = True
        medians = in_turns(
            {"ours": retrieve, "range join": range_join}, processor=_processor_of_all
        )
    times, work = (
        medians[f"range join{suffix}"] / medians[f"ours{suffix}"] for suffix in ("", " cpu")
    )
    print(
        f"{shape.name:10} spark: ours {medians['ours']:6.2f} s, range join {medians['range join']:6.2f} s"
        f"{'' if finished else ' and then stopped'}, it takes {'' if finished else 'more than '}"
        f"{times:.2f} times ours ({'>= 10' if slow_peer else '>= 1'}), of processor time {work:.2f}",
        flush=True,
    )
    add_figure(shape, "Spark", medians["ours"], "s")
    add_figure(
        shape,
        "range join / Spark",
        times,
        processor=work,
        at_least=10.0 if slow_peer else 1.0,
        is_lower_bound=not finished,
    )


def _processor_of_all() -> float:
    """Return the processor seconds of this process and all below it.

    The JVM and its Python workers.
    """
    parents, seconds = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue  # a process that has just ended
            parents[int(entry.name)] = int(fields[1])
            seconds[int(entry.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(seconds.get(pid, 0.0) for pid in family)


def _bounded(session: Any, function: Callable[[], None], *, patience: float) -> tuple[float, bool]:
    """Return how long a Spark job took, and whether it finished before patience did."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    timer = threading.Timer(patience, session.sparkContext.cancelAllJobs)
    timer.start()
    started = time.perf_counter()
    try:
        function()
    except (Py4JJavaError, PySparkException):
        if time.perf_counter() - started < patience:
            raise
        return time.perf_counter() - started, False
    finally:
        timer.cancel()
    return time.perf_counter() - started, True


def _range_join(session: Any, shape: Shape, folder: Path, label_rows: Any) -> Any:
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    group = shape.groups[0]
    right = session.read.format("delta").load(str(folder / "featuregroups" / group.name / "v1"))
    created = right["created"] if group.created else F.lit(None)
    is_known = (right["event"] <= label_rows["at"]) & (
        (created <= label_rows["at"]) if group.created else F.lit(True)
    )
    joined = label_rows.join(
        right.withColumnRenamed("key", "r_key"),
        (label_rows["key"] == F.col("r_key")) & is_known,
        "left",
    )
    order = [F.col("event").desc(), *([F.col("created").desc()] if group.created else [])]
    # Tied rows of these shapes are equal rows: which of them is first does not show.
    first = F.row_number().over(Window.partitionBy("id").orderBy(*order))
    columns = [
        "id",
        "key",
        "at",
        "y",
        *(F.col(f).alias(f"{group.name}_{f}") for f in group.features),
    ]
    return joined.withColumn("n", first).where("n = 1").select(*columns)


# -- the run --------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=[*SHAPES], default=[*SHAPES])
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--trials", type=int, default=TRIALS)
    for flag in ("--peers", "--memory", "--spark"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument(
        "--feast", nargs="?", const="", default=None, help="directory of Feast's environment"
    )
    parser.add_argument("--place", help="keep the stores here")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    scale = 0.1 if arguments.quick else arguments.scale
    with StoreFolder(arguments.place) as folder:
        if arguments.child:
            child(arguments.child, folder)
            return
        for name in arguments.only:
            shape, shape_folder = SHAPES[name](scale), folder / name
            if not shape_folder.exists():
                write(shape, shape_folder)
            if arguments.spark:
                if name != "three":
                    spark(shape, shape_folder, slow_peer=name in ("dense", "skewed"))
                continue
            speed(shape, shape_folder, peers=arguments.peers, trials=arguments.trials)
            if arguments.memory:
                memory(shape, shape_folder)
            if arguments.memory and name == "wide" and not arguments.quick:
                spill(scale, shape_folder)
            if arguments.feast is not None and name in ("wide", "dense"):
                feast(shape, shape_folder, Path(arguments.feast or folder / "feast-environment"))
    REPORT.save(quick=arguments.quick)


class StoreFolder:
    """The folder of the stores: the given one, or a temporary one."""

    def __init__(self, directory: str | None) -> None:
        self._temporary = None if directory else tempfile.TemporaryDirectory()
        self._path = Path(directory or self._temporary.name)  # type: ignore[union-attr]

    def __enter__(self) -> Path:
        self._path.mkdir(parents=True, exist_ok=True)
        return self._path

    def __exit__(self, *_: object) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()


if __name__ == "__main__":
    main()
