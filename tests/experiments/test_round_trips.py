"""Round trips of scikit-learn, XGBoost, LightGBM, Keras 3 and tf_keras."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featurestore
from featurestore import experiments
from featurestore.errors import InvalidArgument
from featurestore.experiments.run import Run
from featurestore.store import FeatureStore
from tests.experiments.round_trips import (
    COMPLETE,
    NAN_VALUE,
    WEIGHTS,
    Case,
    Fitted,
    Shops,
    TrainingRows,
    cells,
    check_cells,
    score,
    to_matrix,
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
    from sklearn.preprocessing import FunctionTransformer

    imputer = SimpleImputer(strategy="constant", fill_value=NAN_VALUE)
    if not rows.is_frame:
        pipeline = make_pipeline(imputer, LinearRegression())
        return Fitted(pipeline.fit(rows.matrix, rows.targets), rows.sum_row)
    # A pipeline that selects columns by their names.
    select = FunctionTransformer(to_matrix, kw_args={"names": rows.names})
    pipeline = make_pipeline(select, imputer, LinearRegression())
    return Fitted(pipeline.fit(rows.values, rows.targets), rows.sum_row, rows.values)


def as_numbers(case: Case, rows: TrainingRows) -> Any:
    """Return a DataFrame with columns of float32, since boosters take only numbers; None for arrays."""
    if not rows.is_frame:
        return None
    import polars

    return (
        rows.values.astype("float32") if case.form == "pandas" else rows.values.cast(polars.Float32)
    )


def fit_xgboost(case: Case, rows: TrainingRows) -> Fitted:
    import xgboost

    names = list(rows.names)
    frame = as_numbers(case, rows)
    values = rows.matrix if frame is None else frame
    # One thread: others of a busy machine would wait for each other.
    if case.framework == "xgboost_wrapper":
        model = xgboost.XGBRegressor(max_depth=6, learning_rate=0.9, n_estimators=4, n_jobs=1)
        booster = model.fit(values, rows.targets).get_booster()
    else:
        data = xgboost.DMatrix(values, rows.targets, feature_names=names)
        parameters = {"max_depth": 6, "eta": 0.9, "nthread": 1}
        model = booster = xgboost.train(parameters, data, num_boost_round=4)
    trees = [json.loads(tree) for tree in booster.get_dump(dump_format="json")]
    config = json.loads(booster.save_config())["learner"]["learner_model_param"]
    base = float(config["base_score"].strip("[]"))

    def leaf_of(node: dict[str, Any], row: Sequence[float]) -> float:
        while "leaf" not in node:
            name = node["split"]  # "f0" for the first column of an array
            value = row[names.index(name) if name in names else int(name[1:])]
            branch = "yes" if value < np.float32(node["split_condition"]) else "no"
            target = node["missing" if math.isnan(value) else branch]
            node = next(child for child in node["children"] if child["nodeid"] == target)
        return float(node["leaf"])

    return Fitted(model, lambda row: base + sum(leaf_of(tree, row) for tree in trees), frame)


def fit_lightgbm(case: Case, rows: TrainingRows) -> Fitted:
    import lightgbm

    frame = as_numbers(case, rows)
    values = rows.matrix if frame is None else frame
    parameters = {"verbose": -1, "min_data_in_leaf": 1, "min_data_in_bin": 1, "learning_rate": 0.9}
    parameters |= {"num_threads": 1}
    if case.framework == "lightgbm_wrapper":
        model = lightgbm.LGBMRegressor(n_estimators=4, **parameters).fit(values, rows.targets)
        booster = model.booster_
    else:
        data = lightgbm.Dataset(values, rows.targets, feature_name=list(rows.names))
        model = booster = lightgbm.train(parameters, data, num_boost_round=4)
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

    return Fitted(model, lambda row: sum(leaf_of(tree, row) for tree in trees), frame)


def fit_keras(case: Case, rows: TrainingRows) -> Fitted:
    keras: Any = importlib.import_module(case.framework)
    if case.framework == "keras":
        where, is_nan = keras.ops.where, keras.ops.isnan
    else:
        tf = importlib.import_module("tensorflow")
        where, is_nan = tf.where, tf.math.is_nan
    if rows.are_columns:
        inputs: Any = {name: keras.Input((1,), name=name) for name in rows.names}
        joined = keras.layers.Concatenate()(list(inputs.values()))
    else:
        joined = inputs = keras.Input((len(rows.names),))
    if case.nulls == "nan":
        joined = where(is_nan(joined), NAN_VALUE, joined)
    layer = keras.layers.Dense(1)
    model = keras.Model(inputs, layer(joined))
    layer.set_weights([np.array(rows.weights, np.float32)[:, None], np.zeros(1, np.float32)])
    return Fitted(model, rows.sum_row)


FITS = {"sklearn": fit_sklearn, "xgboost": fit_xgboost, "lightgbm": fit_lightgbm}


@COMPLETE
@pytest.mark.parametrize("framework", FITS)
def test_fitted_model_predicts_training_values(
    framework: str, is_complete: bool, shops: Shops, subtests: Any
) -> None:
    check_cells(shops, cells(framework, is_complete=is_complete), FITS[framework], subtests)


@pytest.mark.soak
@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_wrapper_of_booster_predicts_training_values(
    library: str, shops: Shops, subtests: Any
) -> None:
    """Wrappers are pickled, and have other rules for names than their boosters."""
    check_cells(shops, cells(f"{library}_wrapper", is_complete=True), FITS[library], subtests)


@pytest.mark.tensorflow
@COMPLETE
@pytest.mark.parametrize("framework", ["keras", "tf_keras"])
def test_network_predicts_training_values(
    framework: str, is_complete: bool, shops: Shops, subtests: Any
) -> None:
    check_cells(shops, cells(framework, is_complete=is_complete), fit_keras, subtests)


# Pipelines of Spark ML take DataFrames of Spark. They are scored in Spark, and not served.
SPARK_CELLS = [("none", "reversed"), ("none", "subset"), ("fill", "dataset"), ("nan", "reversed")]


@pytest.mark.spark
def test_spark_pipeline_predicts_training_values(
    empty_store: FeatureStore, spark: Any, subtests: Any
) -> None:
    from pyspark.ml import Pipeline
    from pyspark.ml.feature import SQLTransformer, VectorAssembler
    from pyspark.ml.regression import LinearRegression

    shops = Shops(empty_store)
    store = featurestore.connect(empty_store.location, engine="spark")
    for nulls, order in SPARK_CELLS:
        case = Case("spark", "spark", nulls, order)
        with subtests.test(nulls=nulls, order=order):
            record = shops.begin(case)
            states: list[dict[str, Any]] = []
            dataset = store.get_training_dataset(shops.dataset_of(case).name)
            frame = replace(dataset, matrices=states).read("train").to_spark()
            if nulls == "fill":
                frame = frame.na.fill(case.fills)
            numbers = [f"coalesce(cast({name} as double), {NAN_VALUE})" for name in case.columns]
            target = " + ".join(
                f"{WEIGHTS[name]} * {number}"
                for name, number in zip(case.columns, numbers, strict=True)
            )
            inputs = [f"{name}_number" for name in case.columns]
            aliases = map("{} as {}".format, numbers, inputs)
            stages = [
                SQLTransformer(statement=f"select *, {', '.join(aliases)} from __THIS__"),
                VectorAssembler(inputCols=inputs, outputCol="inputs"),
                LinearRegression(featuresCol="inputs", labelCol="target"),
            ]
            rows = frame.selectExpr("*", f"{target} as target")
            pipeline = Pipeline(stages=stages).fit(rows)
            run = Run(store.session, shops.finish(record, states).record)
            pipeline.write().save(Path(run.path, "artifacts", "pipeline").as_uri())
            model = experiments.register_model(
                run,
                "spark_sums",
                artifact="artifacts/pipeline",
                columns=case.columns,
                nulls=case.fills if nulls == "fill" else None,
                trust=True,
            )
            read_rows = TrainingRows(case.columns, {})
            expected = map(read_rows.sum_row, shops.input_rows(case, case.columns))
            np.testing.assert_allclose(score(store, model, case), list(expected), atol=0.02)
            with pytest.raises(InvalidArgument, match="has a Spark model"):
                model.server(trust=True)
