"""Seeding of all random number generators."""

from __future__ import annotations

import importlib
import random
import sys

import numpy as np

_seeded: set[int] = set()


def seed_all(seed: int) -> None:
    """Seed Python and numpy, and TensorFlow where it is loaded."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    _seeded.clear()
    if "tensorflow" in sys.modules:
        seed_tensorflow(seed)


def seed_tensorflow(seed: int) -> None:
    """Seed TensorFlow once for a run, and make its operations deterministic."""
    if seed in _seeded:
        return
    tf = importlib.import_module("tensorflow")
    _seeded.add(seed)
    tf.random.set_seed(seed)
    tf.config.experimental.enable_op_determinism()
