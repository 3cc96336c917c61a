"""What readers use of PyTorch: the one place that imports it.

The modules of readers that build on it can be imported without it; what they make asks for it.
"""

from __future__ import annotations

from featurestore.errors import missing_extra

try:
    import torch
    from torch import distributed
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info
except ImportError:
    torch = distributed = get_worker_info = None
    DataLoader = IterableDataset = object

__all__ = ["DataLoader", "IterableDataset", "distributed", "get_worker_info", "torch"]


def require_torch() -> None:
    """Raise MissingExtra unless PyTorch is installed."""
    if torch is None:
        raise missing_extra("torch", "torch")
