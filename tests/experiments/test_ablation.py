"""Ablation studies and cross-validation folds."""

from __future__ import annotations

import json
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featurestore import experiments
from featurestore.errors import InvalidArgument, InvalidMetric, RunFailed
from featurestore.experiments.planned import features_by_group
from featurestore.experiments.tasks import Fold
from featurestore.readers import open_reader
from featurestore.store import FeatureStore
from featurestore.training import TrainingDataset

KEYS = ("train", "test")


def fitted(context: Any) -> dict[str, float]:
    """Fit by least squares; without the layer "scale" the label has another unit."""
    train = context.reader("train", global_batch_size=1600)
    test = context.reader("test", global_batch_size=390)
    assert train.inputs == context.inputs
    arrays = []
    for reader in (train, test):
        (_, batch), *_ = reader.steps(epochs=1)
        noise = np.random.default_rng(context.seed).normal(0, 0.05, len(batch["y"]))
        columns = [batch[name] for name in reader.inputs]
        arrays.append((np.stack(columns, axis=1), batch["y"] + noise))
    weights = np.linalg.lstsq(*arrays[0], rcond=None)[0]
    inputs, label = arrays[1]
    error = float(((inputs @ weights - label) ** 2).mean())
    return {"mse": error if context.keeps("scale") else 100 * error}


def test_ablate_orders_components_by_effect(
    sums: TrainingDataset,
) -> None:
    before = sorted(path for path in Path(sums.path).rglob("*"))
    actual = experiments.ablate(
        fitted,
        dataset=sums,
        metric="mse",
        direction="min",
        features=["x0", "x1", "x2", "x3", ("x0", "x1")],
        layers=["scale"],
        repeats=3,
        parallel=2,
    )
    order = [row.name for row in actual.rows]
    assert [name for name in order if name.startswith("x") and "+" not in name] == [
        "x2",
        "x1",
        "x0",
        "x3",
    ]
    effects = {row.name: row for row in actual.rows}
    assert effects["layer scale"].mean == pytest.approx(99 * np.mean(actual.whole))
    assert effects["x0 + x1"].mean > effects["x1"].mean
    assert effects["x3"].low is not None
    assert effects["x0"].low is not None
    assert effects["x3"].low < 0.001 < effects["x0"].low  # nothing against something
    assert all(len(row.values) == 3 for row in actual.rows)
    assert [row.mean for row in actual.rows] == sorted(
        (row.mean for row in actual.rows), reverse=True
    )
    runs = experiments.get_runs(function_name := "fitted", trials=True)
    assert Counter(run.kind for run in runs) == {"ablation": 1, "trial": 21}
    assert {run.record.settings["component"] for run in runs if run.kind == "trial"} == {
        "whole",
        *order,
    }
    assert experiments.get_run(actual.id).name == function_name
    assert sorted(path for path in Path(sums.path).rglob("*")) == before
    assert str(actual).splitlines()[0].startswith("mse of the full model: 0.00")
    figure = actual.plot()
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == order
    assert len(actual.to_pandas()) == 6


def test_ablate_groups_removes_features_together(flights_store: FeatureStore) -> None:
    dataset = flights_store.get_training_dataset("late_flights")
    groups = features_by_group(dataset)
    assert groups["weather"] == ("temp", "wind")
    assert groups["planes"] == ("seats",)


def count_rows(context: Any) -> dict[str, float]:
    train = context.reader("train", global_batch_size=10, remainder="pad")
    validation = context.reader("validation", global_batch_size=7, remainder="keep", shuffle=False)
    rows = []
    for reader in (train, validation):
        result = [batch for _, batch in reader.steps(epochs=1)]
        weights = [batch.get("sample_weight", np.ones(len(batch["y"]))) for batch in result]
        labels = np.concatenate([batch["y"] for batch in result])
        rows.append(labels[np.concatenate(weights) > 0])
    np.save(f"{context.artifact_dir}/rows.npy", np.sort(rows[1]))
    both = np.concatenate(rows)
    return {"train": len(rows[0]), "held": len(rows[1]), "sum": float(np.sort(both).sum())}


def test_cross_validate_holds_out_each_row_once(sums: TrainingDataset) -> None:
    actual = experiments.cross_validate(count_rows, dataset=sums, folds=3, parallel=2)
    total = sums.num_rows("train")
    assert [fold["held"] for fold in actual.folds] == [
        total * (k + 1) // 3 - total * k // 3 for k in range(3)
    ]
    assert {fold["train"] + fold["held"] for fold in actual.folds} == {total}
    assert len({fold["sum"] for fold in actual.folds}) == 1
    fold_labels = []
    for run_id in actual.runs:
        fold_labels.append(np.load(Path(experiments.get_run(run_id).path, "artifacts", "rows.npy")))
    labels = np.concatenate(
        [b["y"] for b in sums.reader("train", global_batch_size=50, remainder="keep").batches()]
    )
    assert np.sort(np.concatenate(fold_labels)).tolist() == np.sort(labels).tolist()
    assert actual.mean["train"] == pytest.approx(total * 2 / 3)
    assert actual.std["train"] < 1


@pytest.mark.parametrize("data_format", ["tfrecord", "parquet"])
def test_fold_reader_reads_only_its_rows(empty_store: FeatureStore, data_format: str) -> None:
    rows = [{"n": float(n), "y": n} for n in range(997)]
    dataset = empty_store.create_training_dataset(
        rows, "counted", label="y", data_format=data_format, shards=5
    )
    batches = dataset.reader("train", global_batch_size=1, shuffle=False).batches()
    canonical = [int(batch["y"][0]) for batch in batches]
    for number in range(4):
        fold = Fold("train", "held", number, 4)
        for split in ("train", "held"):
            _, ranges = fold.rows(split, 997)
            assert ranges is not None
            expected = [row for first, end in ranges for row in canonical[first:end]]
            reader = open_reader(
                dataset.path,
                dataset.manifest,
                split="train",
                global_batch_size=8,
                remainder="keep",
                rows=ranges,
            )
            actual = [int(y) for batch in reader.batches(epoch=2) for y in batch["y"]]
            assert sorted(actual) == sorted(expected)
            again, epoch, step = dataset.resume(reader.state(2, 3))
            remaining = [int(y) for b in again.batches(epoch, start_step=step) for y in b["y"]]
            assert remaining == actual[24:]
            plain = open_reader(
                dataset.path,
                dataset.manifest,
                split="train",
                global_batch_size=8,
                remainder="keep",
                shuffle=False,
                rows=ranges,
            )
            assert [int(y) for batch in plain.batches() for y in batch["y"]] == expected


def test_invalid_ablations_and_folds_are_refused(sums: TrainingDataset) -> None:
    options: dict[str, Any] = {"dataset": sums, "metric": "mse"}
    for wrong, text in [
        ({"features": ["temp"]}, "Unknown input 'temp' of 'sums'. Available: x0, x1, x2, x3"),
        ({"features": [["x0", "x1", "x2", "x3"]]}, "The ablation removes all inputs"),
        ({"features": "every"}, "is not 'each', 'groups'"),
        ({"features": "groups"}, "was not created from feature groups"),
        ({"features": None}, "contain no component to ablate"),
        ({"features": ["x0", "x0"]}, "contains 'x0' twice"),
        ({"repeats": 0}, "repeats=0"),
        ({"direction": "down"}, "neither 'max' nor 'min'"),
        ({"dataset": "sums"}, "needs dataset="),
    ]:
        with pytest.raises(InvalidArgument, match=text):
            experiments.ablate(fitted, **{**options, **wrong})
    with pytest.raises(InvalidArgument, match="folds=1"):
        experiments.cross_validate(fitted, dataset=sums, folds=1)
    with pytest.raises(InvalidArgument, match="must differ from split='train'"):
        experiments.cross_validate(fitted, dataset=sums, held_out="train")
    assert experiments.get_runs() == []
    with pytest.raises(InvalidMetric, match="without metric 'auc'; it reported 'mse'"):
        experiments.ablate(fitted, dataset=sums, metric="auc")
    with pytest.raises(RunFailed, match=r"Trial 0 .* failed"):
        experiments.cross_validate(lambda context: 1 / 0, dataset=sums)


def test_ablate_single_repeat_has_no_interval(sums: TrainingDataset) -> None:
    single = experiments.ablate(
        fitted, dataset=sums, metric="mse", direction="min", features=["x0"], repeats=1
    )
    assert str(single).splitlines()[1].endswith("  no interval")
    assert "inf" not in str(single)
    (row,) = single.rows
    assert (row.low, row.high) == (None, None)
    json.dumps(row.to_json(), allow_nan=False)
    if find_spec("matplotlib"):
        single.plot()
