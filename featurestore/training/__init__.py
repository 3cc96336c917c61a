"""Training datasets: export into equal shards, reading, verification and comparison."""

from featurestore.training.dataset import TrainingDataset

__all__ = ["TrainingDataset"]
