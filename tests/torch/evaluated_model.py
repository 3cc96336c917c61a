"""The model that one process and several ranks evaluate, and its figures per row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Figures = Callable[..., dict[str, Any]]


def normalized_model() -> torch.nn.Module:
    """Return a network with buffers, which DDP synchronizes at each call."""
    torch.manual_seed(11)
    model = torch.nn.Sequential(
        torch.nn.Linear(1, 4), torch.nn.BatchNorm1d(4), torch.nn.Tanh(), torch.nn.Linear(4, 1)
    )
    model(torch.randn(64, 1))  # moving averages that differ from their initial values
    return model


def figures_of(model: torch.nn.Module) -> Figures:
    """Return a function for ``reader.evaluate``."""

    def figures(features: dict[str, Any], label: Any, weight: Any = None) -> dict[str, Any]:
        logits = model(features["x"][:, None])[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, label.float(), reduction="none"
        )
        return {"loss": loss, "accuracy": (logits > 0) == (label > 0)}

    return figures
