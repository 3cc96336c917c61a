"""Checksums of run.json, metrics.jsonl and artifacts; models saved by training functions."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featurestore import experiments
from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    InvalidTrainFunction,
    ModelDamaged,
    ModelNotFound,
    RunDamaged,
    RunFailed,
)
from featurestore.model.json_object import MalformedJson
from featurestore.model.run_record import (
    RunRecord,
    format_metrics_line,
    parse_metrics,
)
from featurestore.store import FeatureStore
from featurestore.training import TrainingDataset


class Sum:
    """A model that adds its inputs."""

    def predict(self, x: Any) -> Any:
        return np.asarray(x).sum(axis=1)


def reported_text() -> str:
    """Return a metrics file with five lines of two attempts."""
    lines = []
    for step in range(5):
        metrics = {"loss": 1 / (step + 1), "größe": 2.0}
        lines.append(format_metrics_line(step, metrics, time=1.7e9 + step, begins=step in (0, 3)))
    return "".join(lines)


def flipped(content: bytes) -> list[bytes]:
    """Yield the content with each of its bits inverted."""
    changed = []
    for position in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << (position % 8)
        changed.append(bytes(damaged))
    return changed


def test_metrics_file_bit_flip_is_detected() -> None:
    text = reported_text()
    assert len(parse_metrics(text)) == 10
    for damaged in flipped(text.encode()):
        with pytest.raises(MalformedJson, match="is damaged"):
            parse_metrics(damaged.decode("utf-8", "replace"))


def test_record_bit_flip_is_detected() -> None:
    record = RunRecord(
        id="20130101-000000-abcdef",
        name="lines",
        kind="launch",
        state="finished",
        created="2013-01-01T00:00:00+00:00",
        params={"lr": 0.1, "units": [8, 4], "name": "größe"},
        metrics={"loss": 0.5},
        files={"metrics.jsonl": "0" * 64},
    )
    content = record.to_bytes()
    assert RunRecord.from_bytes(content) == record
    for damaged in flipped(content):
        with pytest.raises(MalformedJson):
            RunRecord.from_bytes(damaged)


def test_truncated_metrics_file_keeps_complete_lines() -> None:
    text = reported_text()
    again = format_metrics_line(9, {"loss": 0.0}, time=1.8e9, begins=True)
    ends = [end for end, letter in enumerate(text, 1) if letter == "}" and text[end:][:1] == "\n"]
    for length in range(len(text)):
        if text[max(0, length - 2) : length] == "\n\n":
            continue  # no write ends at this offset
        complete = sum(end <= length for end in ends)
        assert len(parse_metrics(text[:length])) == 2 * complete
        values = parse_metrics(text[:length] + again)
        assert len(values) == 2 * complete + 1


def reports_and_saves(context: Any) -> None:
    for step in range(3):
        context.report(step, loss=1 / (step + 1))
    assert context.save(Sum(), "sum") == os.path.join(context.artifact_dir, "sum.joblib")


def change_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_comparison_and_registration_refuse_changed_files(sums: TrainingDataset) -> None:
    run, second_run = [
        experiments.launch(reports_and_saves, dataset=sums, name="saved") for _ in range(2)
    ]
    assert set(run.record.files) == {"metrics.jsonl", "artifacts/sum.joblib"}
    experiments.register_model(run, "sum", trust=True)
    artifact = Path(run.path, "artifacts", "sum.joblib")
    calls: dict[str, Callable[[], object]] = {
        "compare": lambda: experiments.compare(run, second_run),
        "register": lambda: experiments.register_model(run, "sum", trust=True),
    }
    refused = {
        artifact: ["register"],
        Path(run.path, "metrics.jsonl"): ["compare", "register"],
        Path(run.path, "run.json"): ["compare", "register"],
    }
    for path, names in refused.items():
        content = path.read_bytes()
        change_a_byte(path)
        for name in names:
            with pytest.raises(RunDamaged, match=path.name):
                calls[name]()
        path.unlink()
        for name in names:
            with pytest.raises(FeatureStoreError):
                calls[name]()
        path.write_bytes(content)
        for call in calls.values():
            call()
    # Each line has a checksum, but only that of the file shows that lines are missing.
    metrics = Path(run.path, "metrics.jsonl")
    metrics.write_bytes(metrics.read_bytes().splitlines(keepends=True)[0])
    calls["history"] = lambda: run.history("loss")
    for call in calls.values():
        with pytest.raises(RunDamaged, match=r"metrics\.jsonl.* shortened"):
            call()


def saves_and_damages(damage: str, context: Any) -> None:
    path = context.save(Sum(), "sum.joblib")
    if damage == "changed":
        with open(path, "ab") as file:
            file.write(b"more")
    elif damage == "missing":
        os.remove(path)
    else:
        with open(os.path.join(context.artifact_dir, "model.keras"), "wb") as file:
            file.write(b"PK half of an archive")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("changed", "has changed since context.save wrote it"),
        ("missing", "but it is missing"),
        ("keras", r"model\.keras' of a run is damaged"),
    ],
)
def test_damaged_artifact_fails_the_run(
    empty_store: FeatureStore, damage: str, reason: str
) -> None:
    with pytest.raises(RunFailed, match=reason):
        experiments.launch(
            saves_and_damages, params={"damage": damage}, store=empty_store, name="damaged"
        )
    (run,) = experiments.get_runs("damaged")
    assert run.state == "failed"


def workers_save(context: Any) -> None:
    with open(os.path.join(context.artifact_dir, "own.txt"), "w") as file:
        file.write(f"worker {context.worker}")
    path = context.save(Sum(), "sum")
    assert os.path.dirname(path) == os.path.join(context.directory, "artifacts")


def test_artifacts_of_first_worker_are_kept(empty_store: FeatureStore) -> None:
    run = experiments.collective_all_reduce(workers_save, workers=3, store=empty_store)
    assert run.artifacts == ["artifacts/own.txt", "artifacts/sum.joblib"]
    assert Path(run.path, "artifacts", "own.txt").read_text() == "worker 0"
    assert set(run.record.files) == set(run.artifacts)
    assert list(Path(run.path, "work").rglob("own.txt")) == []


def saves_wrongly(context: Any) -> None:
    for model, name in ((Sum(), "../sum"), (Sum(), ""), (object(), "model")):
        with pytest.raises(InvalidArgument, match=r"valid file name|cannot write a object"):
            context.save(model, name)
    with open(os.path.join(context.artifact_dir, "note.txt"), "w") as file:
        file.write("no model")


def test_register_model_names_unsupported_files(sums: TrainingDataset) -> None:
    run = experiments.launch(saves_wrongly, dataset=sums, name="wrongly")
    with pytest.raises(ModelNotFound, match=r"model format: 'artifacts/note\.txt'"):
        experiments.register_model(run, "none")
    Path(run.path, "artifacts", "model.keras").write_bytes(b"PK half of an archive")
    with pytest.raises(ModelDamaged, match=r"model\.keras"):
        experiments.register_model(run, "none")
    Path(run.path, "artifacts", "model.keras").unlink()
    for name in ("a", "b"):
        Path(run.path, "artifacts", f"{name}.pkl").write_bytes(pickle.dumps(Sum()))
    with pytest.raises(ModelNotFound, match="has 2 models") as refused:
        experiments.register_model(run, "two")
    assert refused.value.hint == "register_model(run, name, artifact='artifacts/a.pkl')"


def test_matrix_with_text_column_is_refused(empty_store: FeatureStore) -> None:
    rows = pa.table({"a": [1.0, 2.0], "city": ["x", "y"], "b": [3.0, 4.0], "y": [0.0, 1.0]})
    dataset = empty_store.create_training_dataset(rows, "cities", label="y", transformations=None)
    run = experiments.launch(reports_and_saves, dataset=dataset, name="cities")
    with pytest.raises(InvalidArgument, match="Inputs of other types: 'city'") as refused:
        experiments.register_model(run, "sum", trust=True)
    assert "columns=['a', 'b']" in str(refused.value.hint)
    model = experiments.register_model(run, "sum", trust=True, columns=["a", "b"])
    scored = empty_store.score(model, labels=rows.select(["a", "b"]), trust=True).to_arrow()
    assert scored["prediction"].to_pylist() == [4.0, 6.0]


@pytest.mark.parametrize("mode", ["r", "w", "rb", "r+"])
def test_launch_refuses_function_with_open_file(
    empty_store: FeatureStore, tmp_path: Path, mode: str
) -> None:
    (tmp_path / "data.txt").write_text("rows")
    with open(tmp_path / "data.txt", mode) as file:
        options = {"source": file}

        def reads_it(context: Any) -> None:
            options["source"].read()

        with pytest.raises(InvalidTrainFunction, match="cannot be sent to another process"):
            experiments.launch(reads_it, store=empty_store)
    assert experiments.get_runs() == []
