"""The input features of a model: names, types and shapes, from the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from featurestore.model.manifest import Manifest
from featurestore.readers.selection import PRESENT, Nulls, select_columns
from featurestore.readers.transformed import Transform, transformed_columns

Forms = dict[str, tuple[np.dtype[Any], tuple[int | None, ...]]]


def input_forms(
    manifest: Manifest,
    *,
    columns: Sequence[str] | None,
    nulls: Nulls,
    transform: Transform | None,
) -> Forms:
    """Return numpy type and shape of one value of each feature, without labels and weights.

    Variable-length lists have the shape (None,) and the type of their items.
    """
    null_handling: tuple[str, ...] = ()
    padded: tuple[str, ...] = ()
    if transform is not None:
        null_handling, padded = transform.null_handling, transform.padded
    split = manifest.splits[0]
    selected = select_columns(
        manifest, split, columns=columns, nulls=nulls, null_handling=null_handling, padded=padded
    )
    if transform is not None:
        selected = transformed_columns(selected, transform).columns
    forms: Forms = {}
    for column in selected:
        if column.label or column.weight:
            continue
        forms[column.name] = column.dtype, column.shape
        if column.items is not None:
            forms[column.name] = column.items, (None,)
        if column.masked:
            forms[column.name + PRESENT] = np.dtype(np.bool_), ()
    return forms
