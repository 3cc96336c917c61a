"""Boosters whose trees have wrong indexes are refused before their library loads them."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featurestore.errors import ModelDamaged, UntrustedModel
from featurestore.experiments.models import boosters, loading
from tests.attacks.booster_program import ROWS, written_boosters


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_changed_booster_files_never_end_the_process(library: str) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tests.attacks.booster_program", library, "150"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    refused, predicting = map(int, process.stdout.split()[-2:])
    assert refused > 10
    assert predicting > 10


# Each of these files makes XGBoost 3.2 read other memory or never end.
TREE_CHANGES: dict[str, Any] = {
    "left_children": lambda children: [10**6, *children[1:]],
    "right_children": lambda children: [0, *children[1:]],
    "split_indices": lambda features: [10**6, *features[1:]],
    "parents": lambda parents: [*parents[:-1], -9],
}


def test_xgboost_tree_with_wrong_index_is_damaged(tmp_path: Path, subtests: Any) -> None:
    content = next(written_boosters("xgboost"))
    for name, change in TREE_CHANGES.items():
        with subtests.test(name):
            model = json.loads(content)
            tree = model["learner"]["gradient_booster"]["model"]["trees"][0]
            tree[name] = change(tree[name])
            path = tmp_path / f"{name}.json"
            path.write_text(json.dumps(model))
            with pytest.raises(ModelDamaged, match="do not fit together"):
                loading.load_object(str(path), loading.detect_flavor(str(path)))


def test_lightgbm_tree_with_cycle_is_damaged(tmp_path: Path) -> None:
    text = next(written_boosters("lightgbm")).decode()
    path = tmp_path / "model.txt"
    path.write_text(re.sub(r"\n(left|right)_child=\S+", r"\n\1_child=0", text, count=2))
    with pytest.raises(ModelDamaged, match="children of a node"):
        loading.load_object(str(path), loading.detect_flavor(str(path)))


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_checked_booster_predicts_the_same_bits(library: str, tmp_path: Path) -> None:
    for content in written_boosters(library):
        unchecked, checked = boosters.find_unchecked_parts(content, library, title="it")
        assert unchecked == []
        predicted, expected = (
            boosters.make_predictor(boosters.load_booster(model_bytes, library), library)(ROWS)[""]
            for model_bytes in (checked, content)
        )
        np.testing.assert_array_equal(predicted, expected)


def test_linear_booster_needs_trust(tmp_path: Path) -> None:
    xgboost = importlib.import_module("xgboost")
    data = xgboost.DMatrix(ROWS, ROWS[:, 0])
    booster = xgboost.train({"booster": "gblinear", "nthread": 1}, data, 2)
    path = str(tmp_path / "model.ubj")
    booster.save_model(path)
    with pytest.raises(UntrustedModel, match="'gblinear'"):
        loading.load_object(path, loading.detect_flavor(path))
    loaded = loading.load_object(path, "xgboost", trust=True)
    np.testing.assert_array_equal(loaded.predict(data), booster.predict(data))
