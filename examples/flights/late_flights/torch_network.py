"""The network of the example in PyTorch: the same inputs, widths and codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from featurestore.training.dataset import TrainingDataset
from late_flights import network
from late_flights.training import BATCH


class Network(nn.Module):  # type: ignore[misc]
    """Embeddings of the strings, the numbers with their masks, and two hidden layers.

    Args:
        numbers: The inputs that are numbers or masks of numbers.
    """

    def __init__(self, numbers: list[str]) -> None:
        super().__init__()
        self.numbers = numbers
        codes = {name: nn.Embedding(size + 1, 8) for name, size in network.WORDS.items()}
        self.words = nn.ModuleDict(codes)
        width = len(numbers) + 8 * len(codes)
        self.layers = nn.Sequential(
            nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, features: Mapping[str, Any]) -> Any:
        """Return the logits of a batch, (rows,)."""
        parts = [features[name][:, None].float() for name in self.numbers]
        parts += [embedding(features[name]) for name, embedding in self.words.items()]
        return self.layers(torch.cat(parts, dim=1))[:, 0]


def train(dataset: TrainingDataset, *, epochs: int) -> Network:
    """Return the network after some epochs over the split named train."""
    torch.manual_seed(7)
    options: dict[str, Any] = {"columns": network.COLUMNS, "nulls": "mask"}
    reader = dataset.reader("train", global_batch_size=BATCH, seed=7, **options)
    loader = reader.torch_loader()
    first, _ = next(iter(dataset.reader("train", global_batch_size=1, **options).torch_loader()))
    masks = [f"{name}_present" for name in network.NUMBERS]
    model = Network([name for name in first if name in network.NUMBERS or name in masks])
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for features, late in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(features), late.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


def score(dataset: TrainingDataset, model: Network) -> dict[str, float]:
    """Return AUC, base rate and rows of the test split, every row once."""
    reader = dataset.reader(
        "test", global_batch_size=4096, shuffle=False, remainder="keep", columns=network.COLUMNS, nulls="mask"
    )  # fmt: skip
    labels, scores = [], []
    with torch.no_grad():
        for features, late in reader.torch_loader():
            labels.append(late.numpy())
            scores.append(model(features).numpy())
    truth = np.concatenate(labels)
    auc = network.auc(truth, np.concatenate(scores))
    return {"auc": auc, "base_rate": float(truth.mean()), "rows": len(truth)}
