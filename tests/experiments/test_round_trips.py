"""Round trips of scikit-learn, XGBoost, LightGBM, Keras 3 and tf_keras."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.experiments.round_trips import (
    NAN_VALUE,
    Case,
    Fitted,
    Shops,
    TrainingRows,
    check_cells,
)
from tests.store_copies import copy_of


@pytest.fixture(scope="module")
def shops(empty_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shops]:
    with copy_of(empty_template, tmp_path_factory.mktemp("round-trips") / "store") as store:
        yield Shops(store)


def fit_sklearn(case: Case, rows: TrainingRows) -> Fitted:
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline

    imputer = SimpleImputer(strategy="constant", fill_value=NAN_VALUE)
    pipeline = make_pipeline(imputer, LinearRegression())
    return pipeline.fit(rows.matrix, rows.targets), rows.sum_row


def fit_xgboost(case: Case, rows: TrainingRows) -> Fitted:
    import xgboost

    names = list(rows.names)
    data = xgboost.DMatrix(rows.matrix, rows.targets, feature_names=names)
    # One thread: others of a busy machine would wait for each other.
    booster = xgboost.train({"max_depth": 6, "eta": 0.9, "nthread": 1}, data, num_boost_round=4)
    trees = [json.loads(tree) for tree in booster.get_dump(dump_format="json")]
    config = json.loads(booster.save_config())["learner"]["learner_model_param"]
    base = float(config["base_score"].strip("[]"))

    def leaf_of(node: dict[str, Any], row: Sequence[float]) -> float:
        while "leaf" not in node:
            value = row[names.index(node["split"])]
            branch = "yes" if value < np.float32(node["split_condition"]) else "no"
            target = node["missing" if math.isnan(value) else branch]
            node = next(child for child in node["children"] if child["nodeid"] == target)
        return float(node["leaf"])

    return booster, lambda row: base + sum(leaf_of(tree, row) for tree in trees)


def fit_lightgbm(case: Case, rows: TrainingRows) -> Fitted:
    import lightgbm

    data = lightgbm.Dataset(rows.matrix, rows.targets, feature_name=list(rows.names))
    parameters = {"verbose": -1, "min_data_in_leaf": 1, "min_data_in_bin": 1, "learning_rate": 0.9}
    parameters |= {"num_threads": 1}
    booster = lightgbm.train(parameters, data, num_boost_round=4)
    trees = [tree["tree_structure"] for tree in booster.dump_model()["tree_info"]]

    def leaf_of(node: dict[str, Any], row: Sequence[float]) -> float:
        while "leaf_value" not in node:
            value = row[node["split_feature"]]
            if math.isnan(value) and node["missing_type"] == "NaN":
                is_left = node["default_left"]
            else:
                is_left = np.nan_to_num(value) <= node["threshold"]
            node = node["left_child" if is_left else "right_child"]
        return float(node["leaf_value"])

    return booster, lambda row: sum(leaf_of(tree, row) for tree in trees)


def fit_keras(case: Case, rows: TrainingRows) -> Fitted:
    if case.framework == "keras":
        import keras
        from keras import ops
    else:
        import tensorflow as ops
        import tf_keras as keras

        ops.isnan = ops.math.is_nan
    if rows.is_matrix:
        inputs: Any = keras.Input((len(rows.names),))
        joined = inputs
    else:
        inputs = {name: keras.Input((1,), name=name) for name in rows.names}
        joined = inputs[rows.names[0]]
        if len(inputs) > 1:
            joined = keras.layers.Concatenate()(list(inputs.values()))
    if case.nulls == "nan":
        joined = ops.where(ops.isnan(joined), NAN_VALUE, joined)
    layer = keras.layers.Dense(1)
    model = keras.Model(inputs, layer(joined))
    layer.set_weights([np.array(rows.weights, np.float32)[:, None], np.zeros(1, np.float32)])
    return model, rows.sum_row


@pytest.mark.parametrize("framework", ["sklearn", "xgboost", "lightgbm"])
def test_fitted_model_predicts_training_values(framework: str, shops: Shops, subtests: Any) -> None:
    fit = {"sklearn": fit_sklearn, "xgboost": fit_xgboost, "lightgbm": fit_lightgbm}[framework]
    check_cells(shops, framework, fit, subtests, trust=framework == "sklearn")


@pytest.mark.tensorflow
@pytest.mark.parametrize("framework", ["keras", "tf_keras"])
def test_network_predicts_training_values(framework: str, shops: Shops, subtests: Any) -> None:
    check_cells(shops, framework, fit_keras, subtests, trust=False)
