"""A store with a small training dataset of numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import featurestore
from featurestore.store import FeatureStore
from featurestore.training import TrainingDataset

pytest.importorskip("cloudpickle")
pytest.importorskip("tensorboard")


@pytest.fixture
def kept(tmp_path: Path) -> FeatureStore:
    return featurestore.connect(tmp_path / "store")


@pytest.fixture
def sums(kept: FeatureStore) -> TrainingDataset:
    """Return 2,000 rows whose label is 1 x0 + 2 x1 + 3 x2 and little of x3."""
    numbers = np.random.default_rng(0).random((2000, 4)).astype(np.float32)
    columns = {f"x{index}": numbers[:, index] for index in range(4)}
    label = numbers @ np.array([1, 2, 3, 0.01], dtype=np.float32)
    return kept.create_training_dataset(
        pa.table({**columns, "y": label}), "sums", label="y", splits={"train": 0.8, "test": 0.2}
    )
