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
    options = {"split": "train", "global_batch_size": 12, "columns": NUMBERS, **settings}
    return open_reader(example.path, example.manifest, **options)


def plain(values: Any) -> Any:
    """Return tensors, arrays and containers as (type, values)."""
    if isinstance(values, dict):
        return {name: plain(value) for name, value in values.items()}
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
        features = dict(batch)
        element: list[Any] = [features]
        weight = features.pop(SAMPLE_WEIGHT, None)
        if reader.labels:
            element.append(features.pop("label"))
        if weight is not None:
            element.append(weight)
        elements.append(plain(tuple(element) if len(element) > 1 else features))
    return elements


def row_ids(elements: Iterable[Any]) -> list[list[int]]:
    """Return the canonical row numbers of elements with labels."""
    return [features["row_id"].tolist() for features, *_ in elements]
