"""Labeled images: 1,797 scanned digits as PNG files in a feature group, then as TFRecord."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
from PIL import Image
from sklearn.datasets import load_digits

from featurestore import FeatureStore
from featurestore import transform as t
from featurestore.training.dataset import TrainingDataset

SIDE = 8


def labeled() -> pa.Table:
    """Return one row for each scan: its number, the bytes of a PNG file, and the digit."""
    found = load_digits()
    files = []
    for pixels in found.images:
        file = io.BytesIO()
        Image.fromarray((pixels * 15).astype(np.uint8)).save(file, "PNG")
        files.append(file.getvalue())
    scans = np.arange(len(files))
    return pa.table({"scan": scans, "image": files, "digit": found.target})


def make(store: FeatureStore) -> TrainingDataset:
    """Write the group and return the next version of the dataset: stratified, pixels at read time."""
    store.create_featuregroup(
        labeled(), "digits", primary_key="scan", description="Scanned digits of scikit-learn"
    )
    return store.create_training_dataset(
        store.get_featuregroup("digits"),
        "digits",
        label="digit",
        exclude=["scan"],
        splits={"train": 0.7, "validation": 0.15, "test": 0.15},
        stratify="digit",
        seed=8,
        key="scan",
        transformations={"image": t.decode_image(SIDE, channels=1)},
        description="Which digit was written?",
    )
