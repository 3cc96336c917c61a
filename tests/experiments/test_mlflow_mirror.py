"""Runs mirrored into an MLflow tracking database, read back with the MLflow client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from featurestore import experiments
from featurestore.errors import InvalidArgument, MlflowError, RunFailed
from featurestore.store import FeatureStore
from featurestore.training import TrainingDataset

pytestmark = pytest.mark.filterwarnings("ignore")  # of MLflow's own libraries


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def tracking(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tracking database shared by all tests, since its creation takes seconds."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("mlflow")
    return database


def learning(lr: float, context: Any, units: tuple[int, ...] = ()) -> dict[str, float]:
    context.reader("train", global_batch_size=100)
    for step in range(3):
        context.report(step, **{"val_auc": 0.5 + step * lr, "loss@10": 1.0 - step * lr})
    Path(context.artifact_dir, "note.txt").write_text("kept")
    return {"val_auc": 0.9}


def test_to_mlflow_mirrors_run_and_trials(tracking: str, sums: TrainingDataset) -> None:
    study = experiments.search(
        learning,
        space={"lr": [0.1, 0.2]},
        params={"units": [8, 4]},
        metric="val_auc",
        sampler="grid",
        dataset=sums,
        name="mirrored",
    )
    parent = experiments.to_mlflow(study, tracking)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking)
    experiment = client.get_experiment_by_name("mirrored")
    assert experiment is not None
    actual = {}
    for mlflow_run in client.search_runs([experiment.experiment_id]):
        actual[mlflow_run.data.tags["featurestore.run_id"]] = mlflow_run
    assert set(actual) == {study.id, *(run.id for run in study.runs)}
    assert actual[study.id].info.run_id == parent
    for run in study.runs:
        shown = actual[run.id]
        assert shown.data.params == {"lr": str(run.params["lr"]), "units": "[8, 4]"}
        assert (shown.info.status, shown.data.tags["mlflow.parentRunId"]) == ("FINISHED", parent)
        history = client.get_metric_history(shown.info.run_id, "loss_10")
        assert {point.step: point.value for point in history} == run.history("loss@10")
        assert min(point.timestamp for point in history) >= shown.info.start_time
        assert shown.data.metrics == {"val_auc": 0.9, "loss_10": 1.0 - 2 * run.params["lr"]}
        (read,) = shown.inputs.dataset_inputs
        assert read.dataset.name == "sums@v1"
        assert json.loads(read.dataset.source)["content_hash"] == sums.manifest.content_hash
        note_path = client.download_artifacts(shown.info.run_id, "artifacts/note.txt")
        assert Path(note_path).read_text() == "kept"
        record = client.download_artifacts(shown.info.run_id, "run.json")
        assert json.loads(Path(record).read_text()) == json.loads(
            Path(run.path, "run.json").read_text()
        )


def test_to_mlflow_again_adds_only_new_values(tracking: str, empty_store: FeatureStore) -> None:
    def twice(context: Any) -> dict[str, float]:
        context.report(context.attempt, loss=1 / context.attempt)
        if context.attempt == 1:
            raise ValueError("not yet")
        return {"done": 1}

    with pytest.raises(RunFailed):
        experiments.launch(twice, name="twice", store=empty_store)
    (run,) = experiments.get_runs("twice")
    first = experiments.to_mlflow(run, tracking)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking)
    assert client.get_run(first).info.status == "FAILED"
    assert "not yet" in client.get_run(first).data.tags["featurestore.reason"]
    resumed = run.resume(twice)
    for _ in range(2):
        assert experiments.to_mlflow(resumed.id, tracking) == first
    shown = client.get_run(first)
    assert (shown.info.status, shown.data.metrics) == ("FINISHED", {"loss": 0.5, "done": 1.0})
    history = client.get_metric_history(first, "loss")
    assert [(point.step, point.value) for point in history] == [(1, 1.0), (2, 0.5)]


def test_to_mlflow_refuses_unsupported_values_first(
    tracking: str, empty_store: FeatureStore
) -> None:
    run = experiments.launch(lambda: {"a@b": 1, "a:b": 2}, name="alike", store=empty_store)
    with pytest.raises(InvalidArgument, match=r"metrics '.+' and '.+' have the same name 'a_b'"):
        experiments.to_mlflow(run, tracking)
    with pytest.raises(InvalidArgument, match="Available: 'artifacts'"):
        experiments.to_mlflow(run, tracking, artifacts=["checkpoint"])
    from mlflow.tracking import MlflowClient

    assert MlflowClient(tracking).get_experiment_by_name("alike") is None
    with pytest.raises(MlflowError) as refused:
        experiments.to_mlflow(run, "nowhere://me:secret@host")
    assert "secret" not in str(refused.value)
