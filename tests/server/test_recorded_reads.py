"""Every way of reading records the read before the first row, and failures of a job are private.

The calls are compared with the public methods: a new method must be classified in this file.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import featurestore
from featurestore import experiments
from featurestore.errors import JobFailed, StatisticsNotFound
from featurestore.experiments.models.catalog import Model
from featurestore.experiments.run import Run
from featurestore.featuregroups import FeatureGroup
from featurestore.registry.hidden import find_hidden_objects
from featurestore.registry.origins import JOB, Object
from featurestore.registry.recorded_reads import ReadRecorder, recording
from featurestore.retrieval import FeatureFrame
from featurestore.server.access import changes
from featurestore.store import FeatureStore
from featurestore.training.dataset import TrainingDataset
from featurestore.views import FeatureView
from tests.server.private_groups import NOON, ROOT, client_of, fill, token_of

LABELS = [{"who": "a", "at": NOON + timedelta(hours=2)}]
PRIVATE = "salaries"
# The objects that the test's store derives from the private group.
RUN, STUDY = "20240301-120000-model-salaries", "20240303-120000-model-salaries"
DATASET, VIEW, MODEL, MONITOR = "of_salaries", "view_salaries", "model_salaries", "watch_pay"


def dataset(store: FeatureStore) -> TrainingDataset:
    return store.get_training_dataset(DATASET, version=1)


def view(store: FeatureStore) -> FeatureView:
    return store.get_feature_view(VIEW)


def group(store: FeatureStore) -> FeatureGroup:
    return store.featuregroup(PRIVATE)


def frame(store: FeatureStore) -> FeatureFrame:
    return store.get_features([f"{PRIVATE}.pay"], labels=LABELS)


def model(store: FeatureStore) -> Model:
    return experiments.get_model(MODEL, store=store)


def run(store: FeatureStore) -> Run:
    return experiments.get_runs("model_salaries", store=store)[0]


# Calls that return rows, values or names of objects.
STORE_READS: dict[str, Callable[[FeatureStore], object]] = {
    "check_leakage": lambda store: store.check_leakage(frame(store)),
    "check_monitor": lambda store: store.check_monitor(MONITOR, window=NOON),
    "explain_features": lambda store: store.explain_features([f"{PRIVATE}.pay"]),
    "featuregroup": lambda store: store.featuregroup(PRIVATE).read(),
    "get_alerts": lambda store: store.get_alerts(),
    "get_feature": lambda store: store.get_feature(f"{PRIVATE}.pay", dataframe_type="python"),
    "get_feature_view": lambda store: store.get_feature_view(VIEW),
    "get_feature_views": lambda store: store.get_feature_views(),
    "get_featuregroup": lambda store: store.get_featuregroup(PRIVATE),
    "get_featuregroup_history": lambda store: store.get_featuregroup_history(PRIVATE),
    "get_featuregroup_partitions": lambda store: store.get_featuregroup_partitions(PRIVATE),
    "get_featuregroup_quarantine": lambda store: store.get_featuregroup_quarantine(PRIVATE),
    "get_featuregroup_statistics": lambda store: store.get_featuregroup_statistics(PRIVATE),
    "get_featuregroup_tags": lambda store: store.get_featuregroup_tags(PRIVATE),
    "get_featuregroups": lambda store: store.get_featuregroups(),
    "get_features": lambda store: frame(store).to_arrow(),
    "get_features_list": lambda store: store.get_features_list(),
    "get_jobs": lambda store: store.get_jobs(),
    "get_metrics": lambda store: store.get_metrics(),
    "get_monitor_history": lambda store: store.get_monitor_history(MONITOR),
    "get_monitors": lambda store: store.get_monitors(),
    "get_runs": lambda store: store.get_runs(MONITOR),
    "get_training_dataset": lambda store: store.get_training_dataset(DATASET),
    "get_training_datasets": lambda store: store.get_training_datasets(),
    "get_training_dataset_tags": lambda store: store.get_training_dataset_tags(DATASET),
    "get_training_dataset_tf_record_schema": lambda store: (
        store.get_training_dataset_tf_record_schema(DATASET)
    ),
    "get_validation_history": lambda store: store.get_validation_history(PRIVATE),
    "plan_job": lambda store: store.plan_job("raise_pay"),
    "score": lambda store: store.score(MODEL, labels=LABELS, trust=True).to_arrow(),
    "search": lambda store: store.search("pay"),
    "sql": lambda store: store.sql("select max(pay) as most from salaries").to_arrow(),
    "validate_featuregroup": lambda store: store.validate_featuregroup(PRIVATE),
    "verify_featuregroup": lambda store: store.verify_featuregroup(PRIVATE),
    "visualize_featuregroup_clusters": lambda store: store.visualize_featuregroup_clusters(PRIVATE),
    "visualize_featuregroup_correlations": lambda store: store.visualize_featuregroup_correlations(
        PRIVATE
    ),
    "visualize_featuregroup_descriptive_stats": lambda store: (
        store.visualize_featuregroup_descriptive_stats(PRIVATE)
    ),
    "visualize_featuregroup_distributions": lambda store: (
        store.visualize_featuregroup_distributions(PRIVATE)
    ),
    "visualize_monitor": lambda store: store.visualize_monitor(MONITOR),
    "visualize_training_dataset_clusters": lambda store: store.visualize_training_dataset_clusters(
        DATASET
    ),
    "visualize_training_dataset_correlations": lambda store: (
        store.visualize_training_dataset_correlations(DATASET)
    ),
    "visualize_training_dataset_descriptive_stats": lambda store: (
        store.visualize_training_dataset_descriptive_stats(DATASET)
    ),
    "visualize_training_dataset_distributions": lambda store: (
        store.visualize_training_dataset_distributions(DATASET)
    ),
    "publish": lambda store: store.publish(VIEW),
}
# Calls that write, configure the store, or return definitions of files and of other systems.
STORE_WRITES = {
    "accept_monitor", "add_alert_channel", "add_dbt_project", "add_featuregroup_tag",
    "add_online_store", "add_source", "add_training_dataset_tag", "apply", "backfill_job",
    "check_source", "close", "compact_featuregroup", "create_external_featuregroup",
    "create_feature_view", "create_featuregroup", "create_training_dataset", "delete_feature_view",
    "delete_featuregroup", "delete_from_featuregroup", "delete_training_dataset", "engine", "erase",
    "get_alert_channels", "get_dataframe_tf_record_schema", "get_latest_featuregroup_version",
    "get_latest_training_dataset_version", "get_online_stores", "get_or_create_featuregroup",
    "get_sources", "insert_into_featuregroup", "location", "pause_job", "plan", "plan_dbt_project",
    "purge_online_store",
    "read_source", "register_in", "register_jobs", "remove_alert_channel",
    "remove_featuregroup_tag", "remove_job", "remove_online_store", "remove_source",
    "remove_training_dataset_tag", "rename_feature", "replay_quarantine", "run_job", "scheduler",
    "send_alerts", "session", "transform", "unpause_job", "update_featuregroup",
    "update_featuregroup_statistics", "update_training_dataset", "vacuum_featuregroup",
    "verify_erasure", "write_dbt_exposures",
}  # fmt: skip
EXPERIMENT_READS: dict[str, Callable[[FeatureStore], object]] = {
    "compare": lambda store: experiments.compare(*experiments.get_runs(MODEL, store=store)[:2]),
    "get_model": model,
    "get_models": lambda store: experiments.get_models(store=store),
    "get_run": lambda store: experiments.get_run(RUN, store=store),
    "get_runs": run,
    "get_study": lambda store: experiments.get_study(STUDY, store=store),
    "register_model": lambda store: experiments.register_model(
        RUN, "second_model", trust=True, store=store
    ),
}
# Calls that start runs, whose own reads are recorded, and definitions.
EXPERIMENT_OTHERS = {
    "Stopped", "ablate", "choice", "collective_all_reduce", "cross_validate", "integers", "launch",
    "loguniform", "mirrored", "parameter_server", "search", "to_mlflow", "uniform",
}  # fmt: skip
# Objects that a program may have obtained before the job, with the calls that read rows or values.
HANDLE_READS: dict[type, tuple[Callable[[FeatureStore], Any], dict[str, Callable[[Any], object]]]] = {
    FeatureGroup: (
        group,
        {
            name: lambda handle, name=name: getattr(handle, name)()  # type: ignore[misc]
            for name in ("read", "history", "quarantine", "statistics", "derived")
        }
        | {
            "explain": lambda handle: handle.explain(key="a"),
            "provenance": lambda handle: handle.provenance("pay"),
        }
        | {
            name: lambda handle, name=name: getattr(handle, name)  # type: ignore[misc]
            for name in (
                "spec", "schema", "description", "descriptions", "tags", "delta_version",
                "primary_key", "event_time", "created_time", "external",
            )
        },
    ),
    FeatureFrame: (
        frame,
        {
            "count": lambda rows: rows.count(),
            "coverage": lambda rows: rows.coverage(),
            "head": lambda rows: rows.head(1),
            "native": lambda rows: rows.native(),
            "relation": lambda rows: rows.relation,
            "show": lambda rows: rows.show(),
            "to_arrow": lambda rows: rows.to_arrow(),
            "to_batches": lambda rows: next(iter(rows.to_batches())),
            "to_numpy": lambda rows: rows.to_numpy(),
            "to_pandas": lambda rows: rows.to_pandas(),
            "to_polars": lambda rows: rows.to_polars(),
        },
    ),
    FeatureView: (
        view,
        {
            "get_features": lambda handle: handle.get_features(labels=LABELS),
            "explain": lambda handle: handle.explain(labels=LABELS),
            "server": lambda handle: handle.server().get_vector({"who": "a"}),
            "verify_online": lambda handle: handle.verify_online(),
        },
    ),
    TrainingDataset: (
        dataset,
        {
            "read": lambda handle: handle.read("train").to_arrow(),
            "reader": lambda handle: handle.reader("train", global_batch_size=1),
            "matrix": lambda handle: handle.matrix("train"),
        },
    ),
}  # fmt: skip
# Without rows or values of a group: settings, and calls whose results are read with other calls.
HANDLE_OTHERS = {
    FeatureGroup: {"explain_window", "find", "insert", "name", "path", "version"},
    FeatureFrame: {
        "columns", "drop", "dropped", "drops", "filter", "inputs", "label_reads", "labels",
        "made_of", "of_view", "plan", "planned", "reads", "sample", "schema", "select", "session",
        "to_spark", "view", "view_labels", "warn_of_nulls",
    },
    FeatureView: {
        "create_training_dataset", "description", "featuregroups", "features", "label",
        "label_time", "labels", "name", "on_demand", "online_lag", "problems", "spec", "tags",
        "training_datasets", "transformations", "version",
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureStore]:
    folder = tmp_path_factory.mktemp("reads")
    with featurestore.connect(folder / "store") as store:
        fill(store, folder)
        store.publish(VIEW)
        yield store


def names_of(owner: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(owner) if not name.startswith("_")}


def test_reads_cover_every_public_name() -> None:
    assert STORE_READS.keys() | STORE_WRITES == names_of(FeatureStore)
    assert not STORE_READS.keys() & STORE_WRITES
    assert EXPERIMENT_READS.keys() | EXPERIMENT_OTHERS == set(experiments.__all__)
    for owner, others in HANDLE_OTHERS.items():
        assert HANDLE_READS[owner][1].keys() | others == names_of(owner), owner


def is_job_hidden(store: FeatureStore, job: str) -> bool:
    """Return whether readers of the store do not see a job, because of what it has read."""
    with store.session.registry.reading() as connection:
        hidden = find_hidden_objects(connection, granted=(), reads_store=True)
    return job in hidden.jobs


def recorder_of(store: FeatureStore, job: str) -> ReadRecorder:
    session = store.session
    return ReadRecorder(session.location, [Object(JOB, job)], registry=session.registry)


@pytest.mark.filterwarnings("ignore")
def test_every_read_of_private_rows_is_recorded(
    filled: FeatureStore, subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, read in (STORE_READS | EXPERIMENT_READS).items():
        with subtests.test(name):
            job = f"reads_by_{name}"
            assert not is_job_hidden(filled, job)
            # Statistics of few rows are missing, after they were looked up.
            with recording(recorder_of(filled, job)), suppress(StatisticsNotFound):
                read(filled)
            assert is_job_hidden(filled, job)
    for owner, (open_handle, calls) in HANDLE_READS.items():
        handle = open_handle(filled)
        for name, call in calls.items():
            with subtests.test(f"{owner.__name__}.{name}"):
                job = f"{owner.__name__.lower()}_{name}"
                with recording(recorder_of(filled, job)):
                    call(handle)
                assert is_job_hidden(filled, job)


def test_reads_of_public_rows_hide_no_job(filled: FeatureStore) -> None:
    with recording(recorder_of(filled, "public_reads")):
        filled.get_features(["visits.pay"], labels=LABELS).to_arrow()
        filled.get_training_dataset("of_visits").read("train").to_arrow()
        filled.search("visits")
    assert not is_job_hidden(filled, "public_reads")


def test_plan_of_private_objects_in_a_job_is_recorded(filled: FeatureStore, tmp_path: Path) -> None:
    (tmp_path / "definitions").mkdir()
    change = f'define.feature_view("{VIEW}", features=["{PRIVATE}.pay"], description="changed")'
    definitions = f"from featurestore import define\n{change}\n"
    (tmp_path / "definitions" / "views.py").write_text(definitions)
    with recording(recorder_of(filled, "plans")):
        plan = filled.plan(tmp_path, project="pay")
    assert VIEW in str(plan)
    assert is_job_hidden(filled, "plans")


@pytest.mark.spark
def test_reads_on_spark_are_recorded(tmp_path: Path, spark_engine: Any) -> None:
    with featurestore.connect(tmp_path / "store", engine=spark_engine) as store:
        store.create_featuregroup([{"k": 1, "v": 2.0}], PRIVATE, primary_key="k")
        changes.set_private(store.session, ROOT, PRIVATE, True)
        rows = store.get_featuregroup(PRIVATE)
        reads: dict[str, Callable[[], object]] = {
            "spark_frame": lambda: rows.to_spark(),
            "spark_query": lambda: store.sql(f"select v from {PRIVATE}").to_spark().collect(),
            "spark_features": lambda: store.get_features([f"{PRIVATE}.v"], dataframe_type="spark"),
        }
        for job, read in reads.items():
            with recording(recorder_of(store, job)):
                read()
            assert is_job_hidden(store, job), job


# The names are not in the definition: they come from outside of it.
FAILING_JOBS = """
import os
from datetime import UTC, datetime

import featurestore

SETTINGS = {"schedule": "0 * * * *", "start": "2024-03-01T12:00Z"}


def secret(store):
    return store.get_features([os.environ["READ_OBJECT"]], labels=LABELS, dataframe_type="python")


LABELS = [{"who": "b", "at": datetime(2024, 3, 1, 14, tzinfo=UTC)}]


@featurestore.training_job(training_dataset="calm", retries=0, **SETTINGS)
def failing(store, window):
    raise ValueError(f"secret {secret(store)[0]['pay']}")


@featurestore.training_job(training_dataset="other", retries=0, **SETTINGS)
def returning(store, window):
    value = secret(store)[0]["pay"]
    return {"data": [{"k": number, "v": value} for number in range(4)]}


@featurestore.job(featuregroup="copied", event_time="at", window="1h", retries=0, **SETTINGS)
def copying(window):
    store = featurestore._current.current_store()
    return [{"at": window.end, "v": secret(store)[0]["pay"]}]
"""


def test_failure_and_output_of_job_that_read_private_rows_are_private(
    filled: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("READ_OBJECT", f"{PRIVATE}.pay")
    path = tmp_path / "calm_jobs.py"
    path.write_text(FAILING_JOBS)
    filled.register_jobs(path)
    with pytest.raises(JobFailed):
        filled.backfill_job("failing", NOON, NOON + timedelta(hours=1))
    for name in ("returning", "copying"):
        filled.backfill_job(name, NOON, NOON + timedelta(hours=1))
    failed = filled.get_runs("failing")[-1]
    assert "secret 10.0" in str(failed.error)
    with client_of(filled) as client:
        headers = {user: token_of(filled, user) for user in ("rea", "wil", "mia", "ann")}
        addresses = [
            "/jobs/failing", "/jobs/failing?format=csv", "/api/v1/jobs/failing/runs",
            f"/jobs/failing/runs/{failed.run_id}/log", "/datasets/other", "/groups/copied",
            "/api/v1/featuregroups/copied", "/jobs/returning", "/jobs/copying",
        ]  # fmt: skip
        for user in ("rea", "wil"):
            for address in addresses:
                response = client.get(address, headers=headers[user])
                assert response.status_code == 404, (user, address)
            listed = [client.get(page, headers=headers[user]).text for page in ("/", "/jobs")]
            listed.append(client.get("/metrics", headers=headers[user]).text)
            for name in ("failing", "returning", "copying", "copied", "secret 10"):
                assert not any(name in text for text in listed), (user, name)
        for user in ("mia", "ann"):
            for address in addresses:
                response = client.get(address, headers=headers[user])
                assert response.status_code in (200, 307), (user, address)
        # What a deleted job wrote stays private.
        filled.remove_job("copying")
        filled.delete_featuregroup("copied", version=1, force=True)
        assert client.get("/groups/copied", headers=headers["rea"]).status_code == 404
    opened = changes.list_opened_objects(filled.session, PRIVATE)
    assert {"job failing", "job returning", "training dataset other@v1"} <= set(opened)
    assert ROOT.name == "root"


def read_salaries(location: str) -> float:
    """Read private rows in the worker process of a run, whose names are not in its record."""
    with featurestore.connect(location) as store:
        features = [os.environ["READ_OBJECT"]]
        rows = store.get_features(features, labels=LABELS, dataframe_type="python")
        return float(rows[0]["pay"])


def count_files(location: str) -> float:
    """Count private rows in the files of a dataset, before the worker connects to the store."""
    rows = TrainingDataset.open(os.environ["READ_OBJECT"]).num_rows("train")
    with featurestore.connect(location) as store:
        store.get_featuregroup("visits")
    return float(rows > 0)


@pytest.mark.services
@pytest.mark.parametrize("reads_files", [False, True])
def test_run_that_reads_private_rows_in_its_worker_is_private(
    filled: FeatureStore, monkeypatch: pytest.MonkeyPatch, reads_files: bool
) -> None:
    dataset_or_feature = dataset(filled).path if reads_files else f"{PRIVATE}.pay"
    monkeypatch.setenv("READ_OBJECT", dataset_or_feature)
    options = {"params": {"location": filled.location}, "store": filled}
    function = count_files if reads_files else read_salaries
    finished = experiments.launch(function, name="calm", **options)
    assert finished.metrics == {"result": float(reads_files)}
    with filled.session.registry.reading() as connection:
        hidden = find_hidden_objects(connection, granted=(), reads_store=True)
    assert ("experiment_run", finished.id, 1) in hidden.outputs
