"""A store with a small training dataset of numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

import featurestore
from featurestore.store import FeatureStore
from featurestore.training import TrainingDataset
from tests.experiments.training_functions import sums_of

pytest.importorskip("cloudpickle")
pytest.importorskip("tensorboard")


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    return featurestore.connect(tmp_path / "store")


@pytest.fixture
def sums(store: FeatureStore) -> TrainingDataset:
    return sums_of(store)
