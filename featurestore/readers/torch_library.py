"""What readers use of PyTorch: the one place that imports it, and says so where it is missing."""

from __future__ import annotations

from featurestore.errors import missing_extra

try:
    import torch
    from torch import distributed
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info
except ImportError as error:
    raise missing_extra("torch", "torch") from error

__all__ = ["DataLoader", "IterableDataset", "distributed", "get_worker_info", "torch"]
