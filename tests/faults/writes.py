"""Every public call that writes.

What it needs, what it does, and what of a store can be seen afterwards.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from featurestore.store import FeatureStore

ROWS = 200
START = 1_700_000_000_000_000
DEFINITIONS = """
from featurestore import define
define.featuregroup("applied", schema={"id": "int64", "t": "timestamp"}, primary_key="id", event_time="t")
"""
# A group of the template, whose definition is changed.
REDEFINED = DEFINITIONS.replace("applied", "redefined")
JOB_FILE = """
import featurestore

@featurestore.job(featuregroup="hourly", primary_key=["id"], event_time="t", window="1h", schedule="0 * 14-15 11 *",
                  start="2023-11-14T22:00:00Z", inputs={"g": "g"})
def hourly(window, g):
    return g.aggregate("id, max(t) as t, sum(x) as x", "id")
"""
MONITOR_FILE = """
import featurestore

featurestore.monitor_job("g_watch", featuregroup="g", schedule="0 * 14-15 11 *", start="2023-11-14T22:00:00Z")
featurestore.monitor_job("shift_watch", featuregroup="shifted", schedule="0 * 14-15 11 *", window="1h",
                         start="2023-11-14T23:00:00Z", confirm=1, drift={"psi": 0.2},
                         baseline=featurestore.baseline(as_of=1))
"""
# Module-level calls that change nothing in a store.
READS = frozenset(
    [
        "__version__",
        "FeatureStore",
        "FeatureGroup",
        "FeatureFrame",
        "TrainingDataset",
        "FeatureStoreError",
        "TimeSplit",
        "connect",
        "feature",
        "stream_job",
        "job",
        "cast",
        "rename",
        "sql_job",
        "publish_job",
        "catalog_job",
        "training_job",
        "window_job",
        "baseline",
        "model_monitor_job",
        "monitor_job",
        "get_monitors",
        "get_monitor_history",
        "get_alerts",
        "get_alert_channels",
        "get_metrics",
        "visualize_monitor",
        "source",
        "get_sources",
        "get_online_stores",
        "check_source",
        "read_source",
        "plan_dbt_project",
        "write_dbt_exposures",
        "register_in",
        "compare_statistics",
        "featuregroup",
        "get_featuregroup",
        "get_featuregroups",
        "get_latest_featuregroup_version",
        "get_featuregroup_history",
        "get_featuregroup_partitions",
        "get_featuregroup_quarantine",
        "verify_featuregroup",
        "get_features_list",
        "search",
        "get_featuregroup_tags",
        "get_feature",
        "get_features",
        "sql",
        "window",
        "windows",
        "get_featuregroup_quarantine",
        "FeatureView",
        "get_feature_view",
        "get_feature_views",
        "explain_features",
        "check_leakage",
        "get_training_dataset",
        "get_training_datasets",
        "get_latest_training_dataset_version",
        "get_training_dataset_tf_record_schema",
        "get_dataframe_tf_record_schema",
        "get_training_dataset_tags",
        "get_validation_history",
        "get_featuregroup_statistics",
        "visualize_featuregroup_correlations",
        "visualize_featuregroup_distributions",
        "visualize_featuregroup_clusters",
        "visualize_featuregroup_descriptive_stats",
        "visualize_training_dataset_correlations",
        "visualize_training_dataset_distributions",
        "visualize_training_dataset_clusters",
        "visualize_training_dataset_descriptive_stats",
        "get_jobs",
        "plan",
        "plan_job",
        "get_runs",
        "verify_erasure",
    ]
)
# A write of several objects, which tests/erasure kills.
KILLED_ELSEWHERE = frozenset(["erase"])


def rows(first: int, count: int, *, value: int) -> pa.Table:
    """Return rows of the group ``g``, 20 seconds apart."""
    ids = np.arange(first, first + count)
    times = pa.array(START + ids * 20_000_000, pa.timestamp("us", tz="UTC"))
    return pa.table({"id": ids % 50, "t": times, "x": np.full(count, value), "late": ids % 2})


def prepare(location: Path) -> None:
    """Create the store that the writes change, with one object of each kind."""
    import featurestore
    from featurestore.registry import alerts
    from tests.docstrings import weather

    job_file(location).write_text(JOB_FILE)
    job_file(location, "g_watch").write_text(MONITOR_FILE)
    with featurestore.connect(location) as store:
        store.create_featuregroup(rows(0, ROWS, value=1), "g", primary_key="id", event_time="t")
        store.add_featuregroup_tag("g", "owner", "ada")
        store.insert_into_featuregroup(rows(ROWS, 20, value=2), "g")
        store.create_featuregroup(rows(0, 10, value=1), "spare", primary_key="id", event_time="t")
        store.create_training_dataset(
            rows(0, 40, value=1), "spare_d", label="late", key=["id", "t"], tags={"owner": "ada"}
        )
        store.create_feature_view("spare_v", features=["g.x as again"], labels="g", label="late")
        _register_model(store)
        store.register_jobs(job_file(location))
        store.register_jobs(job_file(location, "g_watch"))
        store.create_featuregroup(
            rows(0, 140, value=1), "shifted", primary_key="id", event_time="t"
        )
        store.insert_into_featuregroup(rows(140, 170, value=9), "shifted")
        _apply(store, REDEFINED)
        report = store.check_monitor("shift_watch", window="2023-11-14T23:00:00Z")
        assert report.state == "alarm", report
        store.add_alert_channel("ops", "log")
        store.add_source("spare_s", f"file://{location.parent}")
        weather.shop(location.parent / "shop.db")
        weather.dbt_project(location.parent)
        store.add_source("spare_w", f"sqlite:///{location.parent / 'shop.db'}")
        store.add_online_store("spare_o", "redis://localhost:6379/0")
        codes = location.parent / "codes"
        codes.mkdir()
        pq.write_table(pa.table({"id": [1, 2], "code": [7, 8]}), codes / "part.parquet")
        with store.session.registry.transaction() as connection:
            alerts.enqueue_alert(
                connection, "begin", "g_watch", {"rows": ["there are none"]}, ["ops"]
            )


def job_file(location: Path, name: str = "hourly") -> Path:
    """Return the path of the job file next to the store."""
    return location.parent / f"{name}_job.py"


@dataclass(frozen=True)
class Write:
    """One write; it is repeatable if running it twice equals running it once."""

    public: str
    do: Callable[[FeatureStore], Any]
    before: Callable[[FeatureStore], Any] = lambda store: None


def _insert(mode: str, first: int, *, value: int, **more: Any) -> Callable[[FeatureStore], Any]:
    def do(store: FeatureStore) -> Any:
        data = rows(first, 30, value=value)
        return store.insert_into_featuregroup(data, "g", mode=mode, **more)  # type: ignore[arg-type]

    return do


def _export(data_format: str) -> Callable[[FeatureStore], Any]:
    def do(store: FeatureStore) -> Any:
        return store.create_training_dataset(
            store.get_featuregroup("g"),
            "d",
            label="late",
            version=1,
            data_format=data_format,
            splits={"train": 0.5, "test": 0.5},
            shards=2,
        )

    return do


def _create(name: str, **more: Any) -> Callable[[FeatureStore], Any]:
    def do(store: FeatureStore) -> Any:
        return store.create_featuregroup(
            rows(0, ROWS, value=7), name, version=1, primary_key="id", event_time="t", **more
        )

    return do


def _quarantine(store: FeatureStore) -> Any:
    data = rows(ROWS + 20, 30, value=5)
    data = data.set_column(2, "x", pa.array([None, *[5] * 29], pa.int64()))
    return store.insert_into_featuregroup(
        data, "g", validation="quarantine", transaction=("quarantined", 1)
    )


def _register(store: FeatureStore) -> Any:
    file = job_file(Path(store.location)).with_name("other_job.py")
    file.write_text(JOB_FILE.replace("hourly", "other"))
    return store.register_jobs(file)


def _apply(store: FeatureStore, definitions: str = DEFINITIONS) -> Any:
    folder = Path(store.location).parent / "features"
    folder.mkdir(exist_ok=True)
    (folder / "groups.py").write_text(definitions)
    return store.apply(folder, project="faults")


def _apply_changes(store: FeatureStore) -> Any:
    options = 'ttl="7d", validation="warn", tags={"owner": "bob"}'
    return _apply(store, REDEFINED.replace('event_time="t"', f'event_time="t", {options}'))


def _registered(store: FeatureStore) -> Any:
    return store.register_jobs(job_file(Path(store.location)))


class Line:
    """A model with one input whose file is code."""

    def predict(self, x: Any) -> Any:
        return 2 * x[:, 0]


def _register_model(store: FeatureStore) -> None:
    """Register the model of a finished run."""
    from featurestore import experiments
    from featurestore.experiments import catalog
    from featurestore.experiments.run import Run
    from featurestore.model.run_record import RunDataset, RunRecord

    labels = store.featuregroup("g").read().select(["id", "t", "late"])
    frame = store.get_features(["g.x as before"], labels=labels, label_time="t")
    data = store.create_training_dataset(frame, "lines", label="late", progress=False)
    noted = RunDataset(data.name, data.version, data.manifest.content_hash, data.path)
    run = Run(
        store.session,
        RunRecord(
            id="20130101-000000-000001",
            name="lines",
            kind="launch",
            state="finished",
            created="2013-01-01T00:00:00+00:00",
            dataset=noted,
        ),
    )
    catalog.save(store.session, run.record)
    folder = Path(run.path, "artifacts")
    folder.mkdir(parents=True)
    (folder / "model.pkl").write_bytes(pickle.dumps(Line()))
    experiments.register_model(run, "line", trust=True)


def _misread(store: FeatureStore) -> None:
    """Register a stream with a quarantined record that has become readable."""
    from featurestore.featuregroups.table import open_group
    from featurestore.featuregroups.write import get_or_create
    from featurestore.featuregroups.write_request import WriteRequest
    from featurestore.jobs.stream_jobs import stream_job
    from featurestore.jobs.target import declaration
    from featurestore.model.job import StreamWork
    from featurestore.plugins.source import DecoderRequest, MicroBatch
    from featurestore.registry import jobs
    from featurestore.streams.micro_batches import RecordDecoder, commit_micro_batch
    from featurestore_connectors.kafka import decoding

    store.add_source("topics", "kafka://127.0.0.1:9")
    schema = {"id": "int64", "t": "timestamp"}
    spec = stream_job(
        "read_again", source="topics", topic="t", schema=schema, primary_key="id", event_time="t"
    ).spec
    work = spec.work
    assert isinstance(work, StreamWork)
    with store.session.registry.transaction() as connection:
        jobs.register(connection, spec, origin="jobs.py", watermark=None)
    empty = work.stream.columns.empty_table()
    get_or_create(store.session, empty, WriteRequest(spec.target, options=declaration(work)))
    value = b'{"id": 1, "t": "2024-01-01T00:00:00Z"}'
    fields = {"topic": "t", "partition": 0, "offset": 0, "timestamp": None, "key": b"k"}
    records = pa.Table.from_pylist([{**fields, "value": value}], schema=decoding.RECORDS)
    misreading = decoding.decoder(work.stream, DecoderRequest(("id",)))._unreadable_rows

    def decode(batch: pa.RecordBatch) -> pa.RecordBatch:
        return misreading(batch, "an error that was fixed since")

    commit_micro_batch(
        store.session,
        spec.name,
        work,
        open_group(store.session, spec.target),
        MicroBatch(records, {0: 0}, {0: 1}),
        previous_offsets={0: None},
        decoding=RecordDecoder(decode, decoding.decoded_schema(work.stream)),
        commit_metadata={"job": spec.name, "run": "r", "topic": "t"},
    )


def _watched(store: FeatureStore) -> Any:
    return store.register_jobs(job_file(Path(store.location), "g_watch"))


TWO_HOURS = ("2023-11-14T22:00:00Z", "2023-11-15T00:00:00Z")

WRITES = {
    "create": Write("create_featuregroup", _create("made")),
    "create with partitions": Write("create_featuregroup", _create("made", partition_by="late")),
    "get or create": Write(
        "get_or_create_featuregroup",
        lambda store: store.get_or_create_featuregroup(
            rows(0, ROWS, value=7), "made", version=1, primary_key="id", event_time="t"
        ),
    ),
    "append": Write(
        "insert_into_featuregroup",
        _insert("append", ROWS + 20, value=3, transaction=("appended", 1)),
    ),
    "upsert": Write("insert_into_featuregroup", _insert("upsert", ROWS - 10, value=4)),
    "overwrite": Write("insert_into_featuregroup", _insert("overwrite", 0, value=5)),
    "add a column": Write(
        "insert_into_featuregroup",
        lambda store: store.insert_into_featuregroup(
            rows(ROWS + 20, 30, value=3).append_column("y", pa.array([1.5] * 30)),
            "g",
            schema_change="add",
            transaction=("widened", 1),
        ),
    ),
    "quarantine": Write("insert_into_featuregroup", _quarantine),
    "delete rows": Write(
        "delete_from_featuregroup", lambda store: store.delete_from_featuregroup("g", "x = 2")
    ),
    "tag": Write(
        "add_featuregroup_tag", lambda store: store.add_featuregroup_tag("g", "team", "rust")
    ),
    "untag": Write(
        "remove_featuregroup_tag", lambda store: store.remove_featuregroup_tag("g", "owner")
    ),
    "describe a group": Write(
        "update_featuregroup",
        lambda store: store.update_featuregroup("g", description="rows", descriptions={"x": "1"}),
    ),
    "redefine a group": Write(
        "update_featuregroup",
        lambda store: store.update_featuregroup("g", ttl="7d", validation="quarantine"),
    ),
    "rename a feature": Write(
        "rename_feature", lambda store: store.rename_feature("spare", "x", "y")
    ),
    "compact": Write("compact_featuregroup", lambda store: store.compact_featuregroup("g")),
    "vacuum": Write(
        "vacuum_featuregroup", lambda store: store.vacuum_featuregroup("g", retain="0s")
    ),
    "delete a group": Write(
        "delete_featuregroup", lambda store: store.delete_featuregroup("spare", version=1)
    ),
    "define a view": Write(
        "create_feature_view",
        lambda store: store.create_feature_view(
            "v", features="g.x as again", labels="g", version=1
        ),
    ),
    "delete a view": Write(
        "delete_feature_view", lambda store: store.delete_feature_view("spare_v", version=1)
    ),
    "publish a view": Write("publish", lambda store: store.publish("spare_v")),
    "validate": Write(
        "validate_featuregroup",
        lambda store: store.validate_featuregroup(
            "g",
            expectations=[
                {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "x"}}
            ],
        ),
    ),
    "statistics": Write(
        "update_featuregroup_statistics", lambda store: store.update_featuregroup_statistics("g")
    ),
    "export to tfrecord": Write("create_training_dataset", _export("tfrecord")),
    "export to parquet": Write("create_training_dataset", _export("parquet")),
    "export to petastorm": Write("create_training_dataset", _export("petastorm")),
    "tag a dataset": Write(
        "add_training_dataset_tag",
        lambda store: store.add_training_dataset_tag("spare_d", "team", "rust"),
    ),
    "untag a dataset": Write(
        "remove_training_dataset_tag",
        lambda store: store.remove_training_dataset_tag("spare_d", "owner"),
    ),
    "describe a dataset": Write(
        "update_training_dataset",
        lambda store: store.update_training_dataset("spare_d", description="spare"),
    ),
    "delete a dataset": Write(
        "delete_training_dataset", lambda store: store.delete_training_dataset("spare_d", version=1)
    ),
    "register jobs": Write("register_jobs", _register),
    "apply": Write("apply", _apply),
    "apply a changed group": Write("apply", _apply_changes),
    "run a job": Write(
        "run_job", lambda store: store.run_job("hourly", window="2023-11-14T22:00:00Z"), _registered
    ),
    "backfill": Write(
        "backfill_job", lambda store: store.backfill_job("hourly", *TWO_HOURS), _registered
    ),
    "pause": Write("pause_job", lambda store: store.pause_job("hourly")),
    "unpause": Write(
        "unpause_job",
        lambda store: store.unpause_job("hourly"),
        lambda store: store.pause_job("hourly"),
    ),
    "remove a job": Write("remove_job", lambda store: store.remove_job("hourly")),
    "replay a stream": Write(
        "replay_quarantine", lambda store: store.replay_quarantine("read_again"), _misread
    ),
    "check a monitor": Write(
        "check_monitor",
        lambda store: store.check_monitor("g_watch", window="2023-11-14T22:00:00Z"),
        _watched,
    ),
    "accept a monitor": Write(
        "accept_monitor", lambda store: store.accept_monitor("shift_watch", note="new prices")
    ),
    "add an alert channel": Write(
        "add_alert_channel", lambda store: store.add_alert_channel("night", "log")
    ),
    "remove an alert channel": Write(
        "remove_alert_channel", lambda store: store.remove_alert_channel("ops")
    ),
    "send alerts": Write(
        "send_alerts",
        lambda store: store.send_alerts(),
        lambda store: store.add_alert_channel("ops", "log"),
    ),
    "add a source": Write(
        "add_source", lambda store: store.add_source("shop", "file:///tmp", description="orders")
    ),
    "define a group over a source": Write(
        "create_external_featuregroup",
        lambda store: store.create_external_featuregroup(
            "outside", source="spare_s", path="codes", primary_key="id", version=1
        ),
    ),
    "import a dbt project": Write(
        "add_dbt_project",
        lambda store: store.add_dbt_project(
            Path(store.location).parent / "target" / "manifest.json", source="spare_w"
        ),
    ),
    "score": Write(
        "score",
        lambda store: store.score(
            "line", labels="g", label_time="t", featuregroup="predictions", trust=True
        ),
    ),
    "add an online store": Write(
        "add_online_store",
        lambda store: store.add_online_store("cache", "redis://localhost:6379/0"),
    ),
    "remove an online store": Write(
        "remove_online_store", lambda store: store.remove_online_store("spare_o")
    ),
    "purge an online store": Write("purge_online_store", lambda store: store.purge_online_store()),
    "remove a source": Write("remove_source", lambda store: store.remove_source("spare_s")),
}


def public_writes() -> set[str]:
    """Return the public calls that are not known to be read-only."""
    import featurestore

    return {
        name
        for name in featurestore.__all__
        if name not in READS | KILLED_ELSEWHERE and inspect.isfunction(getattr(featurestore, name))
    }


def visible(location: Path, *, at_work: bool = False) -> dict[str, Any]:
    """Open a store in a new process and return its visible state, with rows as fingerprints."""
    import featurestore
    from featurestore.jobs.monitors.service import get_acceptances
    from featurestore.registry import featuregroups

    state: dict[str, Any] = {}
    with featurestore.connect(location) as store:
        for group in store.get_featuregroups():
            key = f"group {group.name} v{group.version}"
            table = store.get_featuregroup(group.name, version=group.version).to_arrow()
            history = store.get_featuregroup_history(group.name, version=group.version)
            assert group.delta_version == max(commit.delta_version for commit in history)
            assert group.statistics().rows == table.num_rows
            with store.session.registry.reading() as connection:
                registered = featuregroups.get(connection, group.name, group.version)
            assert registered.spec == group.spec
            tags = store.get_featuregroup_tags(group.name, version=group.version)
            state[key] = (
                table.column_names,
                table.num_rows,
                _fingerprint(table),
                sorted(tags.items()),
                group.description,
                dict(group.descriptions),
                group.spec.ttl,
                group.spec.validation,
            )
        for dataset in store.get_training_datasets():
            report = dataset.verify()
            assert report.ok, report.problems
            counts = [(split, dataset.num_rows(split)) for split in sorted(dataset.splits)]
            output = (sorted(dataset.tags.items()), dataset.description)
            state[f"dataset {dataset.name} v{dataset.version}"] = (counts, output)
        for view in store.get_feature_views():
            assert view.problems == []
            state[f"view {view.name} v{view.version}"] = (
                view.features,
                view.get_features().count(),
            )
        for job in store.get_jobs():
            state[f"job {job.name}"] = bool(getattr(job, "paused", False))
        for monitor in store.get_monitors():
            reports = store.get_monitor_history(monitor.name)
            state[f"monitor {monitor.name}"] = (
                [(report.window.start, report.rows) for report in reports],
                [
                    (acceptance.until, acceptance.subjects, acceptance.note)
                    for acceptance in get_acceptances(store.session, monitor.name)
                ],
            )
        state["sources"] = [source.name for source in store.get_sources()]
        state["online stores"] = [online.name for online in store.get_online_stores()]
        state["channels"] = [channel.name for channel in store.get_alert_channels()]
        leftovers = [] if at_work else _leftovers(location)
        assert not leftovers, leftovers
    return state


def _fingerprint(table: pa.Table) -> str:
    lines = sorted(repr(row) for row in table.to_pylist())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _leftovers(location: Path) -> list[str]:
    """Return the files that a finished write must not leave.

    Staged rows, datasets without a manifest, temporary files.
    """
    staging = location / "_staging"
    files = [str(path) for path in staging.iterdir()] if staging.exists() else []
    for version in (location / "trainingdatasets").glob("*/v*"):
        if not (version / "manifest.json").exists():
            files.append(str(version))
    for version in (location / "featureviews").glob("*/v*"):
        if not (version / "view.json").exists():
            files.append(str(version))
    return [os.path.relpath(path, location) for path in files]
