"""A store with a small training dataset of numbers."""

from __future__ import annotations

import pytest

from featurestore.store import FeatureStore
from featurestore.training import TrainingDataset
from tests.experiments.training_functions import sums_of

pytest.importorskip("cloudpickle")
pytest.importorskip("tensorboard")


@pytest.fixture
def sums(empty_store: FeatureStore) -> TrainingDataset:
    return sums_of(empty_store)
