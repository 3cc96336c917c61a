"""From CSV files to one epoch of training: this store and three scripts that a user would write.

Features (5,000,000 rows x 25) and labels (1,024,000) are CSV files. Each script joins the features
as of the time of each label, writes a training dataset, and reads one shuffled epoch of batches of
1,024 rows with tf.data. Each script runs in a process of its own; the clock starts when its
libraries are imported. All print the same checksums of the values that reach the model.

python benchmarks/end_to_end.py [--quick] [--rounds 1] [--only featurestore duckdb]
    [--petastorm .venv-petastorm] [--feast FOLDER]    (environments; created if need be)

The scripts that write ``tf.train.Example`` convert ``--examples`` rows and read these; the time of
both steps is scaled to all rows. Their joins are complete.
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
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

BATCH = 1024
SHUFFLE_BUFFER = 65_536
SHARDS = 8
ROWS, EXAMPLES = 5_000_000, 128_000
ROWS_PER_KEY, DAYS, START = 25, 90, 1_700_000_000
INTEGERS = [f"i{index}" for index in range(10)]
FLOATS = [f"f{index}" for index in range(15)]
FEATURES = [*INTEGERS, *FLOATS]
FEATURES_FILE, LABELS_FILE = "features.csv", "labels.csv"
ROOT = Path(__file__).resolve().parents[1]
FEAST = ["feast[duckdb]==0.67.0", "tensorflow==2.21.0"]
TABLE = "script"


# -- data -------------------------------------------------------------------------------


def write_csv(folder: Path, rows: int) -> int:
    """Write both CSV files in the order of their times and return the number of labels.

    Each key has a row before its first label, so that no value is missing. Floats are multiples of
    1/8, which ``tf.train.Example`` stores exactly.
    """
    import numpy as np
    import polars as pl

    random = np.random.default_rng(0)
    keys, labels = rows // ROWS_PER_KEY, rows * 2 // 10 // BATCH * BATCH + 24 * BATCH
    length = DAYS * 86_400

    def to_times(seconds: Any) -> pl.Series:
        return pl.Series((START + seconds) * 1_000_000).cast(pl.Datetime("us", "UTC"))

    seconds = np.sort(random.choice(length, rows, replace=False))
    key = np.concatenate([random.permutation(keys), random.integers(0, keys, rows - keys)])
    columns = {"key": key, "event": to_times(seconds)}
    for index, name in enumerate(INTEGERS):
        columns[name] = random.integers(0, 10 ** (1 + index % 5), rows)
    for name in FLOATS:
        columns[name] = random.integers(0, 8_000, rows) / 8
    time_format = "%Y-%m-%dT%H:%M:%SZ"
    pl.DataFrame(columns).write_csv(folder / FEATURES_FILE, datetime_format=time_format)
    columns = {
        "id": np.arange(labels),
        "key": random.integers(0, keys, labels),
        "at": to_times(np.sort(random.integers(seconds[keys], length, labels))),
        "label": random.integers(0, 2, labels),
    }
    pl.DataFrame(columns).write_csv(folder / LABELS_FILE, datetime_format=time_format)
    return labels


def expected_checksums(folder: Path, labels: int) -> list[float]:
    """Return the checksums of the first labels from a query over the CSV files."""
    import duckdb

    sums = ", ".join([*(f"sum(f.{name})" for name in FEATURES), "sum(l.label)"])
    products = ", ".join(f"sum(f.{name} * l.label)" for name in FEATURES)
    connection = duckdb.connect()
    query = (
        f"SELECT {sums}, {products} FROM read_csv('{folder / LABELS_FILE}') l "
        f"ASOF JOIN read_csv('{folder / FEATURES_FILE}') f ON l.key = f.key AND l.at >= f.event "
        f"WHERE l.id < {labels}"
    )
    return [float(value) for value in connection.sql(query).fetchall()[0]]


# -- measuring, in the process of a script ----------------------------------------------


@dataclass
class Steps:
    """The steps of a script: seconds and processor seconds of each, scaled to all rows."""

    folder: Path
    examples: int
    labels: int
    costs: dict[str, tuple[float, float]] = field(default_factory=dict)
    sums: list[float] = field(default_factory=list)
    checked_rows: int = 0

    @contextmanager
    def step(self, name: str, *, rows: int | None = None) -> Iterator[None]:
        """Measure a step; ``rows`` is the number of labels in it if it is not all."""
        start, used = time.perf_counter(), time.process_time()
        yield
        scale = self.labels / rows if rows else 1.0
        cost = (time.perf_counter() - start) * scale, (time.process_time() - used) * scale
        self.costs[name] = cost

    def train(self, batches: Any) -> None:
        """Go through an epoch inside the graph, and add up what a model would get.

        Args:
            batches: A tf.data dataset of a dict of features and the label.
        """
        import tensorflow as tf

        def add(total: Any, batch: Any) -> Any:
            features, label = batch
            label = tf.reshape(tf.cast(label, tf.float64), [-1])
            columns = [tf.reshape(tf.cast(features[name], tf.float64), [-1]) for name in FEATURES]
            matrix = tf.stack(columns)
            sums = tf.reduce_sum(matrix, axis=1), tf.reduce_sum(matrix * label, axis=1)
            return total + tf.concat([sums[0], [tf.reduce_sum(label)], sums[1]], axis=0)

        zeros = tf.zeros(2 * len(FEATURES) + 1, tf.float64)
        self.sums = batches.reduce(zeros, add).numpy().tolist()


# -- the scripts ------------------------------------------------------------------------


def run_featurestore(steps: Steps, *, with_statistics: bool = False) -> None:
    import duckdb
    import tensorflow as tf  # noqa: F401  (imported before the clock starts, as by the others)

    import featurestore

    with steps.step("to files"):
        store = featurestore.connect(steps.folder / "store", progress=False)
        store.create_featuregroup(
            duckdb.read_csv(str(steps.folder / FEATURES_FILE)),
            "clicks",
            primary_key="key",
            event_time="event",
            statistics=with_statistics,
        )
        frame = store.get_features(
            [f"clicks.{name}" for name in FEATURES],
            labels=duckdb.read_csv(str(steps.folder / LABELS_FILE)),
            label_time="at",
        )
        dataset = store.create_training_dataset(
            frame, "ctr", label="label", statistics=with_statistics
        )
    with steps.step("epoch"):
        reader = dataset.reader("train", global_batch_size=BATCH)
        steps.train(reader.tf_dataset())
    steps.checked_rows = steps.labels


def run_featurestore_with_statistics(steps: Steps) -> None:
    run_featurestore(steps, with_statistics=True)


def run_polars(steps: Steps) -> None:
    import polars as pl
    import tensorflow as tf  # noqa: F401

    with steps.step("to files"):
        features = pl.read_csv(steps.folder / FEATURES_FILE, try_parse_dates=True)
        labels = pl.read_csv(steps.folder / LABELS_FILE, try_parse_dates=True)
        joined = labels.sort("at").join_asof(
            features.sort("event"),
            left_on="at",
            right_on="event",
            by="key",
            check_sortedness=False,
        )
        del features
    joined = joined.filter(pl.col("id") < steps.examples)
    _examples_and_epoch(steps, joined.select([*FEATURES, "label"]).iter_rows())


def run_feast(steps: Steps) -> None:
    """Feast reads Parquet, so pandas converts the CSV file; DuckDB is its fastest offline store."""
    from datetime import timedelta

    import pandas as pd
    import tensorflow as tf  # noqa: F401
    from feast import Entity, FeatureStore, FeatureView, Field, FileSource
    from feast.repo_config import RepoConfig
    from feast.types import Float64, Int64
    from feast.value_type import ValueType

    with steps.step("to files"):
        rows = pd.read_csv(steps.folder / FEATURES_FILE, engine="pyarrow", parse_dates=["event"])
        path = str(steps.folder / "features.parquet")
        rows.to_parquet(path, index=False)
        del rows
        config = RepoConfig(
            project="bench",
            registry=str(steps.folder / "registry.db"),
            provider="local",
            offline_store={"type": "duckdb"},
            online_store={"type": "sqlite", "path": str(steps.folder / "online.db")},
            entity_key_serialization_version=3,
        )
        store = FeatureStore(config=config)
        key = Entity(name="key", join_keys=["key"], value_type=ValueType.INT64)
        fields = [Field(name=name, dtype=Int64) for name in INTEGERS]
        fields += [Field(name=name, dtype=Float64) for name in FLOATS]
        view = FeatureView(
            name="clicks",
            entities=[key],
            ttl=timedelta(days=0),
            source=FileSource(path=path, timestamp_field="event"),
            schema=fields,
        )
        store.apply([key, view])
        labels = pd.read_csv(steps.folder / LABELS_FILE, engine="pyarrow", parse_dates=["at"])
        joined = store.get_historical_features(
            entity_df=labels.rename(columns={"at": "event_timestamp"}),
            features=[f"clicks:{name}" for name in FEATURES],
        ).to_df()
    joined = joined[joined["id"] < steps.examples]
    rows_in_order = joined[[*FEATURES, "label"]].itertuples(index=False, name=None)
    _examples_and_epoch(steps, rows_in_order)


def _examples_and_epoch(steps: Steps, rows: Iterator[tuple[Any, ...]]) -> None:
    """Write rows as ``tf.train.Example``, as TensorFlow's guide does, and read an epoch of them."""
    import tensorflow as tf

    paths = [str(steps.folder / f"train-{number:05d}.tfrecord") for number in range(SHARDS)]
    with steps.step("Example", rows=steps.examples):
        writers = [tf.io.TFRecordWriter(path) for path in paths]
        for number, row in enumerate(rows):
            values = dict(zip([*FEATURES, "label"], row, strict=True))
            feature = {}
            for name in (*INTEGERS, "label"):
                integers = tf.train.Int64List(value=[values[name]])
                feature[name] = tf.train.Feature(int64_list=integers)
            for name in FLOATS:
                floats = tf.train.FloatList(value=[values[name]])
                feature[name] = tf.train.Feature(float_list=floats)
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writers[number % SHARDS].write(example.SerializeToString())
        for writer in writers:
            writer.close()
    layout = {name: tf.io.FixedLenFeature([], tf.int64) for name in (*INTEGERS, "label")}
    layout |= {name: tf.io.FixedLenFeature([], tf.float32) for name in FLOATS}

    def parse(batch: Any) -> Any:
        features = tf.io.parse_example(batch, layout)
        label = features.pop("label")
        return features, label

    with steps.step("epoch", rows=steps.examples):
        records = tf.data.TFRecordDataset(paths, num_parallel_reads=tf.data.AUTOTUNE)
        batches = records.shuffle(SHUFFLE_BUFFER).batch(BATCH, drop_remainder=True)
        parsed = batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        steps.train(parsed.prefetch(tf.data.AUTOTUNE))
    steps.checked_rows = steps.examples


def run_duckdb(steps: Steps) -> None:
    _duckdb_and_petastorm(steps, by_row=True)


def run_duckdb_rebatched(steps: Steps) -> None:
    _duckdb_and_petastorm(steps, by_row=False)


def _duckdb_and_petastorm(steps: Steps, *, by_row: bool) -> None:
    """Join and write Parquet in one query, and read an epoch with petastorm.

    Args:
        steps: What is measured.
        by_row: Shuffle rows in a buffer, as petastorm's own ``make_tf_dataset`` does. Otherwise
            the query writes the rows in random order, and row groups are cut into batches.
    """
    import duckdb
    import tensorflow as tf
    from petastorm import make_batch_reader
    from petastorm.tf_utils import make_petastorm_dataset

    folder = steps.folder / "parquet"
    folder.mkdir()
    order = "" if by_row else "ORDER BY hash(l.id)"
    columns = ", ".join([*(f"f.{name}" for name in FEATURES), "l.label"])
    with steps.step("to files"):
        connection = duckdb.connect()
        connection.execute("SET preserve_insertion_order = false")
        connection.execute(
            f"COPY (SELECT {columns} FROM read_csv('{steps.folder / LABELS_FILE}') l "
            f"ASOF JOIN read_csv('{steps.folder / FEATURES_FILE}') f "
            f"ON l.key = f.key AND l.at >= f.event {order}) "
            f"TO '{folder}/train.parquet' (FORMAT parquet, ROW_GROUP_SIZE 65536)"
        )
        connection.close()

    def split(row: Any) -> Any:
        return {name: getattr(row, name) for name in FEATURES}, row.label

    with (
        steps.step("epoch"),
        make_batch_reader(
            folder.as_uri(), num_epochs=1, shuffle_row_groups=True, workers_count=2
        ) as reader,
    ):
        rows = make_petastorm_dataset(reader)
        if by_row:
            slices = rows.flat_map(tf.data.Dataset.from_tensor_slices)
            batches = slices.shuffle(SHUFFLE_BUFFER).batch(BATCH, drop_remainder=True)
        else:
            batches = rows.rebatch(BATCH, drop_remainder=True)
        steps.train(batches.map(split).prefetch(tf.data.AUTOTUNE))
    steps.checked_rows = steps.labels


@dataclass(frozen=True)
class Script:
    """A script, its name in the tables, and the limits of its ratios."""

    title: str
    run: Callable[[Steps], None]
    environment: str = ""
    at_least: float | None = None


SCRIPTS = {
    "featurestore": Script("featurestore", run_featurestore),
    "featurestore-counted": Script(
        "featurestore, with statistics", run_featurestore_with_statistics
    ),
    "duckdb": Script("DuckDB, Parquet, petastorm", run_duckdb, "petastorm", 2.0),
    "duckdb-rebatched": Script(
        "DuckDB, Parquet in random order, petastorm with rebatch",
        run_duckdb_rebatched,
        "petastorm",
    ),
    "polars": Script("polars, tf.train.Example", run_polars, at_least=10.0),
    "feast": Script("Feast 0.67 on DuckDB, pandas, tf.train.Example", run_feast, "feast", 10.0),
}


# -- the run ----------------------------------------------------------------------------


def run_child(name: str, folder: Path, examples: int, labels: int) -> None:
    """Run a script and print its steps, checksums and peak memory as a line of JSON."""
    warnings.simplefilter("ignore")
    steps = Steps(folder, examples, labels)
    SCRIPTS[name].run(steps)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    result = {"costs": steps.costs, "sums": steps.sums, "peak": peak, "rows": steps.checked_rows}
    print(json.dumps(result), flush=True)


def run_script(
    name: str, data: Path, python: Path, *, examples: int, labels: int
) -> dict[str, Any]:
    """Run a script in a process and a folder of its own and return what it printed."""
    with tempfile.TemporaryDirectory(prefix="bench-end-to-end-") as folder:
        for file in (FEATURES_FILE, LABELS_FILE):
            Path(folder, file).symlink_to(data / file)
        command = [str(python), __file__, "--child", name, "--folder", folder]
        command += ["--examples", str(examples), "--labels", str(labels)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(f"{name} failed:\n{process.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


def ensure_environment(name: str, folder: Path) -> Path:
    """Return the interpreter of an environment, which is created if it does not exist."""
    python = folder / "bin" / "python"
    if not python.exists():
        requirements = FEAST
        if name == "petastorm":
            pins = str(ROOT / "constraints-petastorm.txt")
            requirements = ["-c", pins, "petastorm", "duckdb", "tensorflow"]
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        command = [str(python), "-m", "pip", "install", "--quiet", *requirements]
        subprocess.run(command, check=True)
    return python


def add_figures(runs: dict[str, list[dict[str, Any]]], labels: int, rows: int) -> None:
    """Print and record the medians of each script, and their ratios to those of the store."""
    from report import Report

    report = Report(
        "end_to_end",
        "Features and labels from CSV, joined as of each label's time, written as a training dataset, "
        "and one shuffled epoch of batches of 1,024 rows in tf.data. Each script runs in a process of "
        "its own, on equal checksums; imports are not counted. `tf.train.Example` and its epoch run on "
        "a part of the labels and are scaled. The number in brackets is processor time.",
    )
    medians: dict[str, dict[str, float]] = {}
    for name, results in runs.items():
        values: dict[str, float] = {"peak": statistics.median(result["peak"] for result in results)}
        for position, suffix in enumerate(("", " processor")):
            for step in results[0]["costs"]:
                costs = [result["costs"][step][position] for result in results]
                values[step + suffix] = statistics.median(costs)
            totals = [
                sum(cost[position] for cost in result["costs"].values()) for result in results
            ]
            values["total" + suffix] = statistics.median(totals)
        medians[name] = values
    ours = medians.get("featurestore")
    for name, values in medians.items():
        script = SCRIPTS[name]
        row = f"{script.title}, {rows:,} rows, {labels:,} labels"
        line = f"{script.title:56}{values['total']:8.1f} s ({values['total processor']:6.1f}) "
        files = values["to files"] + values.get("Example", 0.0)
        files_processor = values["to files processor"] + values.get("Example processor", 0.0)
        figures = {
            "total": (values["total"], values["total processor"]),
            "to files": (files, files_processor),
            "epoch": (values["epoch"], values["epoch processor"]),
        }
        for column, (seconds, processor) in figures.items():
            report.add(TABLE, row, column, seconds, "s", processor=processor)
        report.add(TABLE, row, "peak", values["peak"], "MiB")
        if ours is not None and not name.startswith("featurestore"):
            ratio = values["total"] / ours["total"]
            by_processor = values["total processor"] / ours["total processor"]
            report.add(
                TABLE,
                row,
                "time / featurestore",
                ratio,
                processor=by_processor,
                at_least=script.at_least,
            )
            line += f"{ratio:5.1f} times ({by_processor:.1f}) "
        steps = ", ".join(f"{step} {values[step]:.1f}" for step in runs[name][0]["costs"])
        print(f"{line} {values['peak']:,.0f} MiB; {steps}", flush=True)
    report.save(quick=rows < ROWS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a twentieth of the rows")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=[*SCRIPTS], default=[*SCRIPTS])
    parser.add_argument("--examples", type=int, default=EXAMPLES)
    parser.add_argument("--petastorm", type=Path, default=ROOT / ".venv-petastorm")
    parser.add_argument("--feast", type=Path, help="the folder of an environment with Feast")
    for hidden in ("--child", "--folder"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--labels", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_child(arguments.child, Path(arguments.folder), arguments.examples, arguments.labels)
        return
    rows = arguments.rows // 20 if arguments.quick else arguments.rows
    with tempfile.TemporaryDirectory(prefix="bench-end-to-end-") as data:
        labels = write_csv(Path(data), rows)
        examples = min(arguments.examples, labels)
        expected = {count: expected_checksums(Path(data), count) for count in (labels, examples)}
        pythons = {"": Path(sys.executable)}
        folders = {"petastorm": arguments.petastorm, "feast": arguments.feast}
        runs: dict[str, list[dict[str, Any]]] = {}
        for _ in range(arguments.rounds):
            for name in arguments.only:
                environment = SCRIPTS[name].environment
                if environment and environment not in pythons:
                    folder = folders[environment] or Path(data, "environment")
                    pythons[environment] = ensure_environment(environment, folder)
                result = run_script(
                    name, Path(data), pythons[environment], examples=examples, labels=labels
                )
                assert result["sums"] == expected[result["rows"]], f"{name}: other values"
                print(name, result["costs"], result["peak"], flush=True)
                runs.setdefault(name, []).append(result)
        add_figures(runs, labels, rows)


if __name__ == "__main__":
    main()
