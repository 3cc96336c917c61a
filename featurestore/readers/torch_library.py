"""The optional import of PyTorch, the only one of the readers.

Modules that use it can be imported without PyTorch; their classes call ``require_torch``.
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
