"""Repeated strings are counted by dictionary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featurestore.statistics import finish
from tests.statistics.example_tables import accumulator_of, count

LONG = "ü" * 300


def texts(values: list[str | None], *, rows: int = 9_000) -> pa.Table:
    indices = np.random.default_rng(4).integers(0, len(values), rows)
    column = pa.array([values[index] for index in indices.tolist()], pa.string())
    return pa.table({"text": column, "id": np.arange(rows)})


@pytest.mark.parametrize(
    "values",
    [
        ["ash", "birch", "", "cedar-é", None],
        [None],
        [f"text {index}" for index in range(900)],
        ["short", LONG],
    ],
)
@pytest.mark.parametrize("limit", [100, 50_000])
def test_text_dictionary_does_not_change_statistics(
    values: list[str | None], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = texts(values)

    def state() -> Any:
        batches = table.slice(11).to_batches(max_chunksize=4_000)
        return count(accumulator_of(table, limit=limit), batches)

    looked_up = state()
    monkeypatch.setattr("featurestore.statistics.counts._has_few_values", lambda column: False)
    plain = state()
    assert finish(looked_up) == finish(plain)
    assert looked_up.counts["text"].values == plain.counts["text"].values
    assert looked_up.counts["text"].nulls == plain.counts["text"].nulls
    assert looked_up.sample.hashes[0].tolist() == plain.sample.hashes[0].tolist()
    assert looked_up.sample.rows().equals(plain.sample.rows())
