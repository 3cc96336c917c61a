"""The training datasets of the example: splits by time, and transformations fitted on the first."""

from __future__ import annotations

import featurestore
from featurestore import FeatureStore
from featurestore.retrieval import FeatureFrame
from featurestore.training.dataset import TrainingDataset
from late_flights import network

SPLITS = featurestore.TimeSplit(
    "asked_at",
    {
        "train": (None, "2013-09-01T00:00:00Z"),
        "validation": ("2013-09-01T00:00:00Z", "2013-10-01T00:00:00Z"),
        "test": ("2013-10-01T00:00:00Z", None),
    },
)


def make(
    store: FeatureStore, frame: FeatureFrame, data_format: str, *, until: str | None = None
) -> TrainingDataset:
    """Return the next version of the dataset in a file format; a part of the year is split by hash."""
    splits = SPLITS if until is None else {"train": 0.6, "validation": 0.2, "test": 0.2}
    return store.create_training_dataset(
        frame, f"late_flights_{data_format}", label="late", features=network.OF_THE_QUESTION,
        data_format=data_format, splits=splits, seed=2013, transformations=network.TRANSFORMATIONS,
        description="Will a flight leave more than 15 minutes late?",
    )  # fmt: skip
