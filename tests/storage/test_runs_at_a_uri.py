"""Runs in a local directory on a dataset at a URI."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression

import featurestore
from featurestore import experiments
from featurestore.errors import UnsupportedLocation
from featurestore.experiments.context import Context
from tests.object_server import SECRET_KEY
from tests.storage.stores import StoreLocation, hdfs_in_soak, names_below


def train(context: Context) -> dict[str, float]:
    total = 0.0
    for batch in context.reader("train", global_batch_size=50).batches(0):
        total += float(batch["x"].sum())
    context.save(LinearRegression().fit([[0.0], [1.0]], [0.0, total]), "line")
    return {"metric": total}


@hdfs_in_soak
def test_run_with_remote_dataset_is_stored_locally(
    store_location: StoreLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in store_location.environment.items():
        monkeypatch.setenv(name, value)
    frame = pd.DataFrame({"x": np.arange(300.0), "y": np.arange(300) % 2})
    store = store_location.connect()
    new_dataset = store.create_training_dataset(frame, "d", label="y", transformations=None)
    before = names_below(store.location)
    with pytest.raises(UnsupportedLocation, match="require a store in a directory") as refused:
        experiments.launch(train, name="some", dataset=new_dataset)
    assert "store=featurestore.connect(" in str(refused.value.hint)
    with featurestore.connect(tmp_path / "runs") as runs:
        run = experiments.launch(train, name="some", dataset=new_dataset, store=runs)
        assert run.state == "finished"
        assert run.metrics["metric"] == frame["x"].sum()
        (stored_run,) = experiments.get_runs("some", store=runs)
        assert stored_run.dataset is not None
        assert stored_run.dataset.path == new_dataset.path
        assert (
            set(stored_run.record.files) == {"artifacts/line.joblib"} == set(stored_run.artifacts)
        )
    assert names_below(store.location) == before
    for file in (tmp_path / "runs").rglob("*"):
        assert not file.is_file() or SECRET_KEY.encode() not in file.read_bytes()
