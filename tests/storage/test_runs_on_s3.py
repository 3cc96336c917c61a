"""Runs of experiments on a dataset in a bucket: the runs in a directory, the dataset at its URI."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import featurestore
from featurestore import experiments
from featurestore.errors import UnsupportedLocation
from featurestore.experiments.context import Context
from tests.object_server import SECRET_KEY, ObjectServer
from tests.storage.stores import Connect


def train(context: Context) -> dict[str, float]:
    total = 0.0
    for batch in context.reader("train", global_batch_size=50).batches(0):
        total += float(batch["x"].sum())
    return {"metric": total}


def test_a_run_trains_on_a_dataset_in_a_bucket_and_is_kept_in_a_directory(
    connect: Connect,
    object_server: ObjectServer,
    tmp_path: Path,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in object_server.options.items():
        monkeypatch.setenv(name.upper(), value)
    frame = pd.DataFrame({"x": np.arange(300.0), "y": np.arange(300) % 2})
    made = connect().create_training_dataset(frame, "d", label="y", transformations=None)
    folder = object_server.root / bucket[5:]
    before = sorted(folder.rglob("*"))
    with pytest.raises(UnsupportedLocation, match="need a directory") as refused:
        experiments.launch(train, name="some", dataset=made)
    assert "store=featurestore.connect(" in str(refused.value.hint)
    with featurestore.connect(tmp_path / "runs") as runs:
        run = experiments.launch(train, name="some", dataset=made, store=runs)
        assert run.state == "finished"
        assert run.metrics["metric"] == frame["x"].sum()
        (kept,) = experiments.get_runs("some", store=runs)
        assert kept.dataset is not None
        assert kept.dataset.path == made.path
    assert sorted(folder.rglob("*")) == before
    for file in (tmp_path / "runs").rglob("*"):
        assert not file.is_file() or SECRET_KEY.encode() not in file.read_bytes()
