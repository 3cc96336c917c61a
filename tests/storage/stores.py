"""Stores at a URI, and rows for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from featurestore.store import FeatureStore

Connect = Callable[..., FeatureStore]


def rows(first: int, count: int, *, x: float | None = None) -> pd.DataFrame:
    ids = np.arange(first, first + count)
    return pd.DataFrame(
        {
            "id": ids,
            "at": pd.Timestamp("2024-01-01", tz="UTC") + pd.to_timedelta(ids, unit="h"),
            "x": ids * 0.5 if x is None else np.full(count, x),
            "city": np.where(ids % 2 == 0, "São Paulo", "a/b c%"),
        }
    )
