"""Exports warn about features that repeat a label, and about labels without information."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featurestore import FeatureStore
from featurestore.errors import DataWarning

ROWS = 400


def export(store: FeatureStore, label: Any, **arguments: Any) -> list[warnings.WarningMessage]:
    """Create a dataset with a feature of each correspondence and return the warnings."""
    random = np.random.default_rng(0)
    y = random.normal(size=ROWS)
    outlier, walk = random.normal(size=ROWS), np.cumsum(random.normal(size=ROWS))
    outlier[7] = 1e9
    columns = {
        "id": range(ROWS),
        "x": random.normal(size=ROWS),
        "number": y,
        "negative": pa.array(3 - 1000 * y, pa.float32()),
        "partial": pa.array([None if row % 4 else value for row, value in enumerate(y)]),
        "city": [("Oslo", "Rome")[int(value > 0)] for value in y],
        "flag": y > 0,
        "close": y + 0.05 * random.normal(size=ROWS),
        "outlier": outlier,
        "walk_before": [0.0, *walk[:-1]],
        "seldom": pa.array([None if row < 390 else value for row, value in enumerate(y)]),
        "constant": np.ones(ROWS),
        "items": pa.array([[value] for value in y]),
    }
    other_outlier = random.normal(size=ROWS)
    other_outlier[7] = 2e9
    labels: dict[str, Any] = {
        "number": y,
        "flag": y > 0,
        "text": [("no", "yes")[int(value > 0)] for value in y],
        "outlier": other_outlier,
        "walk": walk,
        "other": random.integers(0, 2, ROWS),
    }
    columns["y"] = labels[label] if isinstance(label, str) else label
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store.create_training_dataset(
            pa.table(columns), "d", label="y", key="id", progress=False, **arguments
        )
    return caught


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("number", ["number", "negative", "partial"]),
        ("flag", ["city", "flag"]),
        ("text", ["city", "flag"]),
        ("outlier", []),
        ("walk", []),
        ("other", []),
    ],
)
def test_feature_that_repeats_label_warns_once(
    empty_store: FeatureStore, label: str, expected: list[str]
) -> None:
    splits = {"train": 0.7, "test": 0.3}
    messages = export(empty_store, label, splits=splits)
    assert len(messages) == bool(expected), [str(each.message) for each in messages]
    if expected:
        assert issubclass(messages[0].category, DataWarning)
        assert messages[0].filename == __file__
        (line,) = re.findall(r"exclude=(\[.*\]) removes them", str(messages[0].message))
        assert sorted(ast.literal_eval(line)) == sorted(expected)
        assert export(empty_store, label, exclude=ast.literal_eval(line), splits=splits) == []


def test_repeated_label_agrees_with_stored_correlation(empty_store: FeatureStore) -> None:
    export(empty_store, "number")
    statistics = empty_store.get_training_dataset("d").statistics("train")
    assert statistics.pearson is not None
    correlations = {
        name: abs(statistics.pearson.value(name, "y") or 0.0)
        for name in statistics.pearson.columns
        if name != "y"
    }
    assert {name for name, value in correlations.items() if f"{value:.3f}" == "1.000"} == {
        "number", "negative", "partial", "seldom",
    }  # fmt: skip


def few(value: Callable[[int], Any], *, every: int) -> pa.Array:
    return pa.array([value(row) if row % every == 0 else None for row in range(ROWS)])


@pytest.mark.parametrize(
    ("label", "policy", "expected"),
    [
        (pa.array([7] * ROWS), "error", ["single value: 7 in 400 rows"]),
        (pa.array(["a"] * ROWS), "error", ["single value: a in 400 rows"]),
        (few(lambda row: 1, every=2), "weight_zero", ["single value: 1 in 200 rows"]),
        (few(lambda row: 1, every=2), "drop", ["single value: 1 in 200 rows"]),
        (few(lambda row: row % 3, every=40), "weight_zero", ["null in 390 of 400 rows"]),
        (few(lambda row: row % 3, every=40), "drop", ["null in 390 of 400 rows"]),
        (few(lambda row: row % 3, every=10), "weight_zero", []),
        (few(lambda row: row % 3, every=10), "drop", []),
    ],
)
def test_label_without_information_warns_once(
    empty_store: FeatureStore, label: pa.Array, policy: str, expected: list[str]
) -> None:
    messages = [str(each.message) for each in export(empty_store, label, missing_labels=policy)]
    assert len(messages) == len(expected), messages
    for message, text in zip(messages, expected, strict=True):
        assert text in message
        assert "look at" in message


def test_label_warnings_follow_warning_filters(empty_store: FeatureStore) -> None:
    table = pa.table({"id": range(ROWS), "a": np.arange(ROWS) * 0.5, "y": np.arange(ROWS) * 1.0})
    create = empty_store.create_training_dataset
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "features of training dataset", DataWarning)
        create(table, "d", label="y", key="id", progress=False)
    assert caught == []
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        with pytest.raises(DataWarning, match="repeat the label 'y'"):
            create(table, "d", label="y", key="id", progress=False)
    # A warning that is raised as an error leaves no version.
    assert empty_store.get_training_dataset("d").version == 1
