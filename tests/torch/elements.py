"""Elements of PyTorch datasets as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from featurestore.readers import Reader, open_reader
from featurestore.readers.columns import SAMPLE_WEIGHT
from tests.readers.conftest import Example
from tests.torch.conftest import NUMBERS


def open_numbers(example: Example, **settings: Any) -> Reader:
    """Return a reader of the columns that become tensors."""
    chosen = {"split": "train", "global_batch_size": 12, "columns": NUMBERS, **settings}
    return open_reader(example.path, example.manifest, **chosen)


def plain(values: Any) -> Any:
    """Return tensors, arrays and containers as (type, values)."""
    if isinstance(values, dict):
        return {name: plain(each) for name, each in values.items()}
    is_list = isinstance(values, list)
    if isinstance(values, tuple) or (is_list and not isinstance(values[0], bytes)):
        return tuple(map(plain, values))  # a plain DataLoader makes lists of tuples
    if isinstance(values, torch.Tensor):
        return str(values.dtype).removeprefix("torch."), values.tolist()
    if isinstance(values, np.ndarray) and values.dtype != object:
        return str(values.dtype), values.tolist()
    return list(values)


def as_elements(reader: Reader, batches: Iterable[Any]) -> list[Any]:
    """Return batches of the numpy iterator as elements."""
    elements = []
    for batch in batches:
        rest = dict(batch)
        parts: list[Any] = [rest]
        weight = rest.pop(SAMPLE_WEIGHT, None)
        if reader.labels:
            parts.append(rest.pop("label"))
        if weight is not None:
            parts.append(weight)
        elements.append(plain(tuple(parts) if len(parts) > 1 else rest))
    return elements


def row_ids(elements: Iterable[Any]) -> list[list[int]]:
    """Return the canonical row numbers of elements with labels."""
    return [features["row_id"].tolist() for features, *_ in elements]
