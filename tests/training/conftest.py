"""A small table with every column type of training data."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

START = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture
def example() -> Callable[..., pa.Table]:
    """A function that creates the table; rows are a minute apart, from 2024 on."""
    return make_example


def make_example(rows: int = 1000, *, seed: int = 3) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "user": pa.array(rng.integers(0, rows // 5 + 1, rows), pa.int64()),
            "at": pa.array(
                [START + timedelta(minutes=i) for i in range(rows)], pa.timestamp("us", "UTC")
            ),
            "x": pa.array(rng.normal(size=rows).astype(np.float32)),
            "n": pa.array(rng.integers(-5, 1000, rows), pa.int64(), mask=rng.random(rows) < 0.1),
            "word": pa.array(
                [None if i % 11 == 0 else f"w{i % 7}" for i in range(rows)], pa.string()
            ),
            "label": pa.array((rng.random(rows) < 0.2).astype(np.int64)),
        }
    )
