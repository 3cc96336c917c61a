"""Training datasets: splits, exact equal shards, export, manifest, verify, diff."""

from featurestore.training.dataset import TrainingDataset

__all__ = ["TrainingDataset"]
