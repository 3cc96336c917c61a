"""A store with one file of each kind, damages of its bytes, and the calls that read each file."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from typer.testing import CliRunner

import featurestore
from featurestore import experiments
from featurestore.cli.doctor import run_checks
from featurestore.cli.main import app
from featurestore.cli.state import GlobalOptions
from featurestore.errors import FeatureStoreError
from featurestore.experiments import catalog
from featurestore.experiments.run_files import metrics_checksum
from featurestore.jobs.recovery import restore_runs
from featurestore.model.times import to_python_rows
from featurestore.recovery.rebuild import rebuild
from featurestore.registry.audit_log import Actor
from featurestore.server.access import changes
from featurestore.store import FeatureStore
from tests.server.trained_runs import train

NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
ROOT = Actor("root", "test")
SCHEDULE = 'schedule="0 * * * *", window="1h", start="2024-03-01T12:00Z", catchup=1'
JOBS = f"""
import featurestore

doubled = featurestore.sql_job(
    "doubled",
    sql="select id, t, 2 * x as twice from g where t > $window_start and t <= $window_end", inputs={{"g": "g"}},
    featuregroup="doubled", primary_key=["id"], event_time="t", {SCHEDULE},
)
watch = featurestore.monitor_job("watch", featuregroup="g", volume=(0.5, 2.0), {SCHEDULE})
"""
# The options of each dataset of the store, by name: all layouts of all formats.
DATASETS: dict[str, dict[str, Any]] = {
    "fixed": {"features": ["x"], "label": "y"},
    "variable": {"features": ["x", "words"], "label": "y"},
    "zipped": {"features": ["x", "s"], "label": "y", "compression": "GZIP"},
    "columns": {"features": ["x", "s"], "label": "y", "data_format": "parquet"},
    "lines": {"features": ["x", "s"], "label": "y", "data_format": "csv"},
}
# The options of a reader that a dataset requires.
READERS: dict[str, dict[str, Any]] = {"variable": {"columns": ["x", "words", "y"]}}


def rows(first: int, count: int) -> pa.Table:
    """Return rows of the group "g", with a time, numbers and texts."""
    ids = list(range(first, first + count))
    return pa.table(
        {
            "id": ids,
            "t": pa.array(
                [NOON + timedelta(minutes=number) for number in ids], pa.timestamp("us", "UTC")
            ),
            "day": [str(number % 2) for number in ids],
            "x": [number / 4 for number in ids],
            "y": [number % 2 for number in ids],
            "s": [f"text {number % 5} {'x' * (number % 3)}" for number in ids],
            "words": [["word" * (number % 9)] * (number * 7 % 11) for number in ids],
        }
    )


def create_store(folder: Path) -> Path:
    """Create the store, and return its location."""
    location = folder / "store"
    (folder / "jobs.py").write_text(JOBS)
    with featurestore.connect(location, progress=False) as store:
        store.create_featuregroup(
            rows(0, 20), "g", primary_key="id", event_time="t", partition_by="day",
            tags={"team": "a"}, description="All columns.",
        )  # fmt: skip
        for number in range(1, 12):  # the tenth commit writes a checkpoint
            store.insert_into_featuregroup(rows(20 * number, 3), "g")
        for name, options in DATASETS.items():
            data = store.featuregroup("g").read().select("id", "t", "x", "s", "words", "y")
            store.create_training_dataset(data, name, key="id", **options)
        expectation = {
            "type": "expect_column_values_to_be_between",
            "kwargs": {"column": "x", "max_value": 9},
        }
        store.create_featuregroup(
            rows(0, 20),
            "checked",
            primary_key="id",
            expectations=[expectation],
            validation="quarantine",
        )
        store.insert_into_featuregroup(rows(30, 20), "checked")
        store.create_featuregroup(pa.table({"person": [1, 2]}), "people", primary_key="person")
        store.erase({"person": 1}, dry_run=False)
        store.create_feature_view("v", features=["g.x", "g.s"])
        store.publish("v")
        for run_id in train(store, "fixed", "line"):
            record = catalog.load(store.session, run_id)
            directory = catalog.run_directory(store.session, record)
            catalog.save(store.session, replace(record, files=metrics_checksum(directory)))
        store.register_jobs(folder / "jobs.py")
        for name in ("doubled", "watch"):
            store.backfill_job(name, NOON, NOON + timedelta(hours=1))
        store.add_alert_channel("ops", "log")
        (folder / "orders.csv").write_text("id,price\n1,2.5\n2,3\n")
        store.add_source("shop", f"file://{folder}")
        store.read_source("shop", path="orders.csv").to_arrow()
        store.add_online_store("cache", f"sqlite:///{folder}/cache.db")
        changes.add_user(store.session, ROOT, "ann", role="admin")
        changes.set_private(store.session, ROOT, "doubled", True)
    # The last transactions are only in the write-ahead log.
    with (
        featurestore.connect(location, progress=False) as store,
        closing(sqlite3.connect(location / "registry.db")) as connection,
    ):
        connection.execute("pragma wal_checkpoint(truncate)")
        store.create_feature_view("last", features=["g.x"])
        for name in ("registry.db", "registry.db-wal"):
            shutil.copy(location / name, folder / name)
    for name in ("registry.db", "registry.db-wal"):
        shutil.move(folder / name, location / name)
    return location


class Reported(Exception):
    """A report that lists damage, such as that of a verification."""


# -- reads ------------------------------------------------------------------------------------------


def read_group(store: FeatureStore) -> object:
    """Return the rows and metadata of the group."""
    group = store.featuregroup("g")
    table = store.get_featuregroup("g").to_arrow()
    return (
        to_python_rows(table.sort_by("id")),
        store.get_featuregroup("g", as_of=3).to_arrow().num_rows,
        [(commit.delta_version, commit.rows) for commit in store.get_featuregroup_history("g")],
        store.get_featuregroup_partitions("g"),
        (group.description, store.get_featuregroup_tags("g")),
    )


def read_quarantine(store: FeatureStore) -> object:
    """Return the refused rows of the group with expectations."""
    rows = to_python_rows(store.get_featuregroup_quarantine("checked").to_arrow())
    return sorted(map(repr, rows))


def read_files(store: FeatureStore) -> object:
    """Return the rows of the source, with the types that were stored at its first read."""
    table = store.read_source("shop", path="orders.csv").to_arrow()
    return [str(table.schema), table.to_pylist()]


def verify_erasure(store: FeatureStore) -> object:
    """Verify the certificates in the store."""
    for path in Path(store.location, "_erasures").glob("*.json"):
        check = store.verify_erasure(path.read_bytes())
        if not check.ok:
            raise Reported(str(check))
    return True


def read_dataset(name: str) -> Callable[[FeatureStore], object]:
    """Return a call that reads all rows of a dataset with its reader and its splits."""

    def call(store: FeatureStore) -> object:
        dataset = store.get_training_dataset(name)
        if "compression" in DATASETS[name]:  # a GZIP shard has no random access
            return verify_dataset(name)(store)
        rows = to_python_rows(dataset.read("train").to_arrow())
        reader = dataset.reader("train", global_batch_size=16, **READERS.get(name, {}))
        return rows, [
            {key: repr(value) for key, value in batch.items()} for batch in reader.batches(0)
        ]

    return call


LISTINGS: dict[str, Callable[[FeatureStore], object]] = {
    "groups": lambda store: [(group.name, group.version) for group in store.get_featuregroups()],
    "datasets": lambda store: [(item.name, item.version) for item in store.get_training_datasets()],
    "views": lambda store: [(view.name, view.version) for view in store.get_feature_views()],
    "jobs": lambda store: [status.job.spec.to_json() for status in store.get_jobs()],
    "models": lambda store: [
        (item.name, item.version) for item in experiments.get_models(store=store)
    ],
    "search": lambda store: [match.where for match in store.search("text")],
    "features": lambda store: [str(feature) for feature in store.get_features_list()],
    "channels": lambda store: [channel.name for channel in store.get_alert_channels()],
    "sources": lambda store: [source.name for source in store.get_sources()],
}


def read_everything(store: FeatureStore) -> object:
    """Return what all listings contain."""
    return {name: call(store) for name, call in LISTINGS.items()}


def read_jobs(store: FeatureStore) -> object:
    """Return the runs of the job and the reports of the monitor."""
    return (
        [(run.run_id, run.state, run.rows) for run in store.get_runs("doubled")],
        [report.state for report in store.get_monitor_history("watch")],
    )


def read_runs(store: FeatureStore) -> object:
    """Return the parameters and metrics of the experiment's runs."""
    runs = experiments.get_runs(store=store)
    history = [
        repr(run.history("loss")) for run in runs if run.id.startswith(("20240301", "20240302"))
    ]
    return [(run.id, run.params, run.metrics) for run in runs], history


def read_model(store: FeatureStore) -> object:
    """Return the metadata and predictions of the model."""
    model = experiments.get_model("line", store=store)
    return model.to_json(), type(model.load(trust=True)).__name__


def read_statistics(store: FeatureStore) -> object:
    """Return the statistics of the group and of a dataset."""
    group = store.featuregroup("g").statistics().to_json()
    return group, store.get_training_dataset("fixed").statistics("train").to_json()


def read_online(store: FeatureStore) -> object:
    """Return a vector of the published view, and the lag of the publication."""
    view = store.get_feature_view("v")
    with view.server() as server:
        vectors = server.get_vectors([{"id": 1}, {"id": 61}])
    return vectors, [lag.commits for lag in view.online_lag()]


def verify_online(store: FeatureStore) -> object:
    """Compare the published vectors of the view with its groups."""
    report = store.get_feature_view("v").verify_online(at=NOON + timedelta(days=1))
    if not report.ok:
        raise Reported(str(report))
    return True


def check_monitor(store: FeatureStore) -> object:
    """Check a window of the monitor again."""
    return store.check_monitor("watch", window=NOON).state


def verify_dataset(name: str) -> Callable[[FeatureStore], object]:
    """Return a call that verifies a dataset."""

    def call(store: FeatureStore) -> object:
        report = store.get_training_dataset(name).verify()
        if not report.ok:
            raise Reported(str(report))
        return True

    return call


def verify_groups(store: FeatureStore) -> object:
    """Verify the files of both groups."""
    for name in ("g", "doubled", "checked"):
        report = store.verify_featuregroup(name)
        if not report.ok:
            raise Reported(str(report.problems))
    return True


def connect_again(store: FeatureStore) -> object:
    """Connect to the store, and return what all listings contain."""
    with featurestore.connect(store.location, progress=False) as again:
        return read_everything(again)


def rebuild_registry(store: FeatureStore) -> object:
    """Rebuild the registry; return the restored objects."""
    report = rebuild(store.location, restore=restore_runs)
    if report.unreadable:
        raise Reported(str(report.unreadable))
    return {name: value for name, value in vars(report).items() if name != "moved_away"}


def run_doctor(store: FeatureStore) -> object:
    """Return the checks of the store."""
    checks = run_checks(GlobalOptions(location=store.location))
    problems = [check for check in checks if check.state == "problem"]
    if problems:
        raise Reported(str(problems))
    return True


def run_deep_doctor(store: FeatureStore) -> object:
    """Return True if ``doctor --deep`` finds no problem."""
    result = CliRunner().invoke(app, ["--location", store.location, "doctor", "--deep"])
    if result.exit_code:
        raise Reported(result.output)
    return True


Call = Callable[[FeatureStore], object]
# For each kind of file: a pattern of its path in the store, and the calls that read it.
KINDS: dict[str, tuple[str, dict[str, Call]]] = {
    "registry": (
        r"registry\.db(-wal)?",
        {"doctor": run_doctor, "connect": connect_again, "rebuild": rebuild_registry},
    ),
    "commit": (
        r"featuregroups/\w+/v1/_delta_log/\d+\.json",
        {"read": read_group, "verify": verify_groups, "rebuild": rebuild_registry},
    ),
    "checkpoint": (
        r"featuregroups/\w+/v1/_delta_log/(\d+\.checkpoint\.parquet|_last_checkpoint)",
        {"read": read_group, "verify": verify_groups},
    ),
    "data file": (
        r"featuregroups/\w+/v1/(day=\d/)?[^/]+\.parquet",
        {"read": read_group, "verify": verify_groups},
    ),
    "quarantine": (
        r"featuregroups/\w+/v1_quarantine/.*",
        {"read": read_quarantine, "verify": verify_groups},
    ),
    "types of a source": (r"sources/shop\.decisions/.*", {"read": read_files}),
    "erasure": (r"_erasures/.*", {"verify": verify_erasure}),
    "group statistics": (
        r"featuregroups/\w+/v1_statistics/.*",
        {"statistics": read_statistics, "monitor": check_monitor},
    ),
    "view": (
        r"featureviews/.*",
        {"listing": LISTINGS["views"], "online": read_online, "rebuild": rebuild_registry},
    ),
    "model": (r"models/.*", {"model": read_model, "rebuild": rebuild_registry}),
    "run": (r"experiments/.*", {"runs": read_runs, "rebuild": rebuild_registry}),
    "origins": (r"_origins/.*", {"rebuild": rebuild_registry, "connect": connect_again}),
    "definition": (
        r"(sources|online_stores)/\w+\.json",
        {"connect": connect_again, "rebuild": rebuild_registry},
    ),
    "access": (r"access\.json", {"connect": connect_again, "rebuild": rebuild_registry}),
    "online": (r"online/.*", {"online": read_online, "verify": verify_online}),
    "log": (r"_logs/.*", {"jobs": read_jobs}),
}
for _name in DATASETS:
    KINDS[f"manifest of {_name}"] = (
        rf"trainingdatasets/{_name}/v1/manifest\.json",
        {"read": read_dataset(_name), "verify": verify_dataset(_name), "rebuild": rebuild_registry},
    )
    KINDS[f"shard of {_name}"] = (
        rf"trainingdatasets/{_name}/v1/train/.*",
        {"read": read_dataset(_name), "verify": verify_dataset(_name)},
    )
    KINDS[f"other file of {_name}"] = (
        rf"trainingdatasets/{_name}/v1/(_statistics/.*|schema\.pbtxt)",
        {"verify": verify_dataset(_name), "statistics": read_statistics},
    )


# -- damages ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Damage:
    """A change of the bytes of a file at a position."""

    path: str
    position: int
    change: str

    def apply(self, content: bytes) -> bytes:
        """Return the changed content."""
        start = self.position
        if self.change == "truncate":
            return content[:start]
        if self.change == "zero":
            return content[:start] + bytes(len(content[start : start + 64])) + content[start + 64 :]
        mask = int(self.change.removeprefix("flip "))
        return content[:start] + bytes([content[start] ^ mask]) + content[start + 1 :]


def draw_damage(random_numbers: random.Random, path: str, size: int) -> Damage:
    """Return a random damage of a file: mostly a changed bit, else a zeroed range or a truncation."""
    changes = [f"flip {1 << random_numbers.randrange(8)}"] * 6 + ["zero", "zero", "truncate"]
    return Damage(path, random_numbers.randrange(size), random_numbers.choice(changes))


@dataclass(frozen=True)
class Outcome:
    """The result of a call after a damage: "equal", "different", "error", "without hint" or "unhandled"."""

    damage: Damage
    call: str
    state: str
    text: str = field(default="", compare=False)


class DamagedStore:
    """A store whose files are damaged one at a time, and restored after each damage."""

    def __init__(self, folder: Path) -> None:
        self.template = folder / "template"
        self.location = create_store(folder)
        (folder / "jobs.py").unlink()
        for owner in (self.location / "_owners").iterdir():
            owner.unlink()
        shutil.copytree(self.location, self.template)
        self.paths = sorted(
            path.relative_to(self.template).as_posix()
            for path in self.template.rglob("*")
            if path.is_file()
        )
        self._expected: dict[tuple[str, Call], object] = {}
        self._store = featurestore.connect(self.location, progress=False)
        for _, calls in KINDS.values():
            for name, call in calls.items():
                self._expected[name, call] = self._plain(call(self._store))
                self._restore()

    def outcomes(self, kind: str, damage: Damage) -> Iterator[Outcome]:
        """Damage a file, and yield the outcome of each call that reads it."""
        for name, call in KINDS[kind][1].items():
            yield self.outcome(damage, name, call)

    def outcome(self, damage: Damage, name: str, call: Call) -> Outcome:
        """Damage a file, and return the outcome of a call."""
        path = self.location / damage.path
        path.write_bytes(damage.apply(path.read_bytes()))
        outcome = self._call(damage, name, call)
        self._restore()
        return outcome

    def _call(self, damage: Damage, name: str, call: Call) -> Outcome:
        try:
            with warnings.catch_warnings(record=True) as issued_warnings:
                warnings.simplefilter("always")
                result = self._plain(call(self._store))
        except Reported as report:
            return Outcome(damage, name, "error", str(report))
        except FeatureStoreError as error:
            state = "error" if error.hint else "without hint"
            return Outcome(damage, name, state, f"{type(error).__name__}: {error}")
        except (Exception, RecursionError) as error:
            return Outcome(damage, name, "unhandled", f"{type(error).__name__}: {error}")
        # A listing omits a damaged object with a warning.
        messages = [str(warning.message) for warning in issued_warnings]
        if any("damaged" in message for message in messages):
            return Outcome(damage, name, "error", str(messages))
        state = "equal" if result == self._expected.get((name, call)) else "different"
        return Outcome(damage, name, state, str(result) if state == "different" else "")

    def _plain(self, result: object) -> object:
        return json.loads(json.dumps(result, default=str))

    def _restore(self) -> None:
        """Restore all files that a damage or a call has changed."""
        self._store.session.registry.close()
        expected = set(self.paths)
        for path in list(self.location.rglob("*")):
            name = path.relative_to(self.location).as_posix()
            if path.is_file() and name not in expected and not name.startswith("_owners"):
                path.unlink()
        for name in self.paths:
            source, target = self.template / name, self.location / name
            if not target.exists() or source.read_bytes() != target.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read_bytes())
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.location / "registry.db-journal")
