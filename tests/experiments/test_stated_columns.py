"""The columns that models state, and the readers of a run that differ."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from featurestore import experiments
from featurestore import transform as t
from featurestore.errors import InvalidArgument
from featurestore.experiments import catalog
from featurestore.experiments.context import Context
from featurestore.experiments.models import spark_pipelines
from featurestore.experiments.models.predictors import NamedMatrix, make_predictor, stated_columns
from featurestore.experiments.run import Run
from featurestore.experiments.tasks import Task
from featurestore.model.run_record import RunDataset, RunRecord
from featurestore.store import FeatureStore
from featurestore.training import TrainingDataset

# All values are 0 or 1, so each order of the columns has other predictions, and trees are exact.
WEIGHTS = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 8.0}
RUN_NUMBERS = itertools.count(1)

Table = dict[str, npt.NDArray[np.float32]]
Build = Callable[[Table, npt.NDArray[np.float64]], Any]


def bits() -> Table:
    numbers = np.arange(64) % 16
    return {name: (numbers >> n & 1).astype(np.float32) for n, name in enumerate(WEIGHTS)}


def weighted_sum(table: Table, columns: Sequence[str]) -> npt.NDArray[np.float64]:
    return np.asarray(sum(WEIGHTS[name] * table[name].astype(np.float64) for name in columns))


@pytest.fixture
def sums(empty_store: FeatureStore) -> TrainingDataset:
    """A dataset whose label is the weighted sum of its columns."""
    table = bits()
    rows = pa.table({"id": range(64), **table, "y": weighted_sum(table, "abcd")})
    return empty_store.create_training_dataset(rows, "sums", label="y", key="id", progress=False)


def finished_run(
    store: FeatureStore, dataset: TrainingDataset, train: Callable[[Context], Any]
) -> Run:
    """Call a training function in this process, and return the finished run with its model."""
    manifest = dataset.manifest
    record = RunRecord(
        id=f"20240101-000000-{next(RUN_NUMBERS):06x}",
        name="sums",
        kind="launch",
        state="finished",
        created=datetime(2024, 1, 1, tzinfo=UTC).isoformat(),
        dataset=RunDataset(manifest.name, manifest.version, manifest.content_hash, dataset.path),
    )
    catalog.save(store.session, record)
    run = Run(store.session, record)
    reference = {"path": dataset.path, "manifest": manifest.content_hash}
    context = Context(Task(run.path, dataset=reference))
    context.save(train(context), "model")
    context.close()
    states = (*(reader.state() for reader in context.readers), *context.matrices)
    record = RunRecord(**{**vars(record), "readers": states})
    catalog.save(store.session, record)
    return Run(store.session, record)


def scores(store: FeatureStore, model: Any, rows: Any) -> npt.NDArray[np.float64]:
    scored = store.score(model, labels=rows, trust=True).to_arrow()
    return np.asarray(scored["prediction"].to_numpy(), np.float64)


def fitted_models() -> dict[str, Build]:
    """Return functions that fit a model on a DataFrame of columns, and return it."""
    compose = importlib.import_module("sklearn.compose")
    model_selection = importlib.import_module("sklearn.model_selection")
    pipeline = importlib.import_module("sklearn.pipeline").make_pipeline
    scaler = importlib.import_module("sklearn.preprocessing").StandardScaler
    line = importlib.import_module("sklearn.linear_model").LinearRegression
    xgboost = importlib.import_module("xgboost")
    lightgbm = importlib.import_module("lightgbm")
    exact = {"n_estimators": 1, "learning_rate": 1.0, "max_depth": 4, "reg_lambda": 0.0}
    leaves = {"min_child_samples": 1, "num_leaves": 16, "min_data_in_bin": 1, "verbose": -1}

    def scaled_columns(x: Table, y: Any) -> Any:
        steps = [("scaled", scaler(), list(x)[::-1])]
        return pipeline(compose.ColumnTransformer(steps), line()).fit(pd.DataFrame(x), y)

    def xgboost_model(x: Table, y: Any) -> Any:
        return xgboost.XGBRegressor(**exact, base_score=0.0).fit(pd.DataFrame(x), y)

    def lightgbm_model(x: Table, y: Any) -> Any:
        return lightgbm.LGBMRegressor(**exact, **leaves).fit(pd.DataFrame(x), y)

    def searched(x: Table, y: Any) -> Any:
        search = model_selection.GridSearchCV(line(), {"fit_intercept": [True]}, cv=2)
        return search.fit(pd.DataFrame(x), y)

    return {
        "pandas": lambda x, y: line().fit(pd.DataFrame(x), y),
        "polars": lambda x, y: line().fit(pl.DataFrame(x), y),
        "pipeline": lambda x, y: pipeline(scaler(), line()).fit(pd.DataFrame(x), y),
        "passthrough": lambda x, y: pipeline("passthrough", line()).fit(pd.DataFrame(x), y),
        "column transformer": scaled_columns,
        "target": lambda x, y: compose.TransformedTargetRegressor(line()).fit(pd.DataFrame(x), y),
        "search": searched,
        "xgboost": xgboost_model,
        "xgboost booster": lambda x, y: xgboost_model(x, y).get_booster(),
        "lightgbm": lightgbm_model,
        "lightgbm booster": lambda x, y: lightgbm_model(x, y).booster_,
    }


def network(library: str, form: str) -> Build:
    """Return a function that returns a network with an input for each column."""

    def build(x: Table, y: Any) -> Any:
        keras = importlib.import_module(library)
        inputs = {name: keras.Input((1,), name=name) for name in x}
        dense = keras.layers.Dense(1, use_bias=False)
        outputs = dense(keras.layers.Concatenate()(list(inputs.values())))
        dense.set_weights([np.array([[WEIGHTS[name]] for name in x])])
        return keras.Model(inputs if form == "dict" else list(inputs.values()), outputs)

    return build


def drawn_orders(random: np.random.Generator) -> Iterator[list[str]]:
    """Yield all columns in another order, and some of them, without the first."""
    yield ["d", *map(str, random.permutation(["a", "b", "c"]))]
    yield ["c", *map(str, random.permutation(["b", "d"])[: random.integers(1, 3)])]


def check_order(
    store: FeatureStore, dataset: TrainingDataset, build: Build, columns: list[str]
) -> None:
    """Register a model of some columns, and compare its scores with plain numpy."""
    table = bits()
    expected = weighted_sum(table, columns)

    def train(context: Context) -> Any:
        context.reader("train", global_batch_size=8)
        return build({name: table[name] for name in columns}, expected)

    model = experiments.register_model(finished_run(store, dataset, train), "sums", trust=True)
    assert sorted(model.inputs) == sorted(columns)
    rows = pa.table({"id": range(64), **{name: table[name] for name in columns}})
    np.testing.assert_allclose(scores(store, model, rows), expected, atol=1e-4)


def test_fitted_models_get_columns_in_their_order(
    empty_store: FeatureStore, sums: TrainingDataset, subtests: pytest.Subtests
) -> None:
    random = np.random.default_rng(7)
    for name, build in fitted_models().items():
        for columns in drawn_orders(random):
            with subtests.test(f"{name} {columns}"):
                check_order(empty_store, sums, build, columns)


@pytest.mark.tensorflow
def test_networks_get_columns_by_input_name(
    empty_store: FeatureStore, sums: TrainingDataset, subtests: pytest.Subtests
) -> None:
    pytest.importorskip("tensorflow")
    random = np.random.default_rng(7)
    for library, form in itertools.product(("keras", "tf_keras"), ("dict", "list")):
        for columns in drawn_orders(random):
            with subtests.test(f"{library} {form} {columns}"):
                check_order(empty_store, sums, network(library, form), columns)


@pytest.mark.tensorflow
def test_networks_without_input_names_get_recorded_order(
    empty_store: FeatureStore, sums: TrainingDataset, subtests: pytest.Subtests
) -> None:
    pytest.importorskip("tensorflow")
    for library in ("keras", "tf_keras"):
        keras = importlib.import_module(library)

        def train(context: Context, keras: Any = keras) -> Any:
            context.reader("train", global_batch_size=8, columns=["d", "b", "a", "y"])
            inputs = [keras.Input((1,)) for _ in range(3)]
            dense = keras.layers.Dense(1, use_bias=False)
            outputs = dense(keras.layers.Concatenate()(inputs))
            dense.set_weights([np.array([[8.0], [2.0], [1.0]])])
            return keras.Model(inputs, outputs)

        with subtests.test(library):
            run = finished_run(empty_store, sums, train)
            model = experiments.register_model(run, "sums")
            rows = pa.table({"id": range(64), **bits()})
            expected = weighted_sum(bits(), "abd")
            np.testing.assert_array_equal(scores(empty_store, model, rows), expected)


@pytest.mark.tensorflow
def test_sequences_of_layers_get_a_matrix(
    empty_store: FeatureStore, sums: TrainingDataset, subtests: pytest.Subtests
) -> None:
    pytest.importorskip("tensorflow")
    weights = np.array([[8.0], [2.0], [1.0]])
    for library in ("keras", "tf_keras"):
        keras = importlib.import_module(library)

        def train(context: Context, keras: Any = keras) -> Any:
            context.dataset.matrix("train", columns=["d", "b", "a"])
            dense = keras.layers.Dense(1, use_bias=False)
            model = keras.Sequential([keras.Input((3,)), dense])
            dense.set_weights([weights])
            return model

        with subtests.test(library):
            run = finished_run(empty_store, sums, train)
            model = experiments.register_model(run, "sums")
            rows = pa.table({"id": range(64), **bits()})
            expected = weighted_sum(bits(), "abd")
            np.testing.assert_array_equal(scores(empty_store, model, rows), expected)


@pytest.mark.tensorflow
def test_signatures_get_columns_by_argument_name(
    empty_store: FeatureStore, sums: TrainingDataset
) -> None:
    tensorflow = pytest.importorskip("tensorflow")
    run = finished_run(empty_store, sums, lambda context: unnamed(bits(), np.zeros(64)))
    specs = [tensorflow.TensorSpec([None], name=name) for name in ("d", "b")]
    module = tensorflow.Module()
    module.sum = tensorflow.function(lambda d, b: {"sum": 8 * d + 2 * b}, input_signature=specs)
    path = os.path.join(run.path, "artifacts", "signature")
    tensorflow.saved_model.save(module, path, signatures=module.sum)
    model = experiments.register_model(run, "m", artifact="artifacts/signature", trust=True)
    assert model.inputs == ("b", "d")
    rows = pa.table({"id": range(64), **bits()})
    expected = weighted_sum(bits(), "bd")
    np.testing.assert_array_equal(scores(empty_store, model, rows), expected)


def test_frames_of_a_run_are_compared_with_its_readers(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    """A look at transformed values before a fit on stored values does not decide."""
    table = bits()
    rows = pa.table({**table, "y": weighted_sum(table, "ab")})
    dataset = empty_store.create_training_dataset(
        rows, "sums", label="y", transformations={"b": t.standardize()}, progress=False
    )

    def train(context: Context, form: str) -> Any:
        context.reader("train", global_batch_size=8)
        frame = context.dataset.read("train").to_pandas()
        columns = {name: frame[name].to_numpy() for name in ("b", "a")}
        return {"array": unnamed, "frame": named}[form](columns, frame["y"])

    for form in ("array", "frame"):
        with subtests.test(form):
            run = finished_run(empty_store, dataset, partial(train, form=form))
            with pytest.raises(InvalidArgument, match=r"(?s)transformed by .*transformed False"):
                experiments.register_model(run, form, trust=True)
            columns = ["b", "a"] if form == "array" else None
            model = experiments.register_model(run, form, reader=1, columns=columns, trust=True)
            np.testing.assert_allclose(
                scores(empty_store, model, rows), weighted_sum(table, "ab"), atol=1e-5
            )


def test_cells_and_masks_are_passed_by_name(empty_store: FeatureStore) -> None:
    cities, sizes = ["x", "y", "z", "y"] * 4, [1.0, None, 3.0, 4.0] * 4
    rows = pa.table({"city": cities, "size": sizes, "y": [0.0, 1.0] * 8})
    dataset = empty_store.create_training_dataset(
        rows, "trips", label="y", transformations={"city": t.one_hot()}, progress=False
    )
    weights = {"city_2": 1.0, "size_present": 10.0, "city_0": 100.0, "size": 1000.0}
    values = {"x": "city_0", "y": "city_1", "z": "city_2"}
    expected = [
        weights.get(values[city], 0.0) + (0.0 if size is None else 10.0 + 1000.0 * size)
        for city, size in zip(cities, sizes, strict=True)
    ]

    def train(context: Context) -> Any:
        reader = context.reader("train", global_batch_size=16, nulls="mask")
        (batch,) = reader.batches()
        columns = {"size": batch["size"], "size_present": batch["size_present"].astype(float)}
        columns |= {f"city_{cell}": batch["city"][:, cell] for cell in range(3)}
        label = sum(weight * columns[name] for name, weight in weights.items())
        return named({name: columns[name] for name in weights}, label)

    run = finished_run(empty_store, dataset, train)
    forms: tuple[Literal["matrix", "pandas", "polars"], ...] = ("matrix", "pandas", "polars")
    for form in forms:
        model = experiments.register_model(run, "m", arrays=form, trust=True)
        assert model.inputs == ("city", "size")
        np.testing.assert_allclose(scores(empty_store, model, rows), expected, rtol=1e-5)


def test_all_regressors_predict_as_on_their_frame(subtests: pytest.Subtests) -> None:
    """A matrix in another order has the predictions of the DataFrame that the model was fitted on."""
    all_estimators = importlib.import_module("sklearn.utils").all_estimators
    random = np.random.default_rng(7)
    frame = pd.DataFrame(random.random((60, 3)), columns=["c", "a", "b"], dtype=np.float32)
    label = frame["a"] + 10 * frame["b"] + 1
    matrix = NamedMatrix(frame[["a", "b", "c"]].to_numpy(), ("a", "b", "c"))
    stating = []
    for name, regressor_class in all_estimators(type_filter="regressor"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                regressor = regressor_class().fit(frame, label)
                expected = regressor.predict(frame)
            except (TypeError, ValueError):  # needs other arguments or labels
                continue
        with subtests.test(name):
            predict = make_predictor(regressor, "pickle", method="predict")
            np.testing.assert_allclose(predict(matrix)[""], expected, rtol=1e-5)
        stating += [name] * (stated_columns(regressor, "pickle") == ("c", "a", "b"))
    assert len(stating) > 40


def unnamed(x: Table, y: Any) -> Any:
    return (
        importlib.import_module("sklearn.linear_model")
        .LinearRegression()
        .fit(np.stack(list(x.values()), axis=1), y)
    )


def named(x: Table, y: Any) -> Any:
    return (
        importlib.import_module("sklearn.linear_model").LinearRegression().fit(pd.DataFrame(x), y)
    )


def test_readers_that_differ_need_a_choice(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    table = bits()
    random = np.random.default_rng(0)
    a = pa.array(table["a"], mask=random.random(64) < 0.1)
    rows = pa.table({**table, "a": a, "e": random.random(64), "y": weighted_sum(table, "bcd")})
    dataset = empty_store.create_training_dataset(
        rows, "sums", label="y", transformations={"e": t.standardize()}, progress=False
    )
    base: dict[str, Any] = {"columns": ["b", "c", "e", "y"], "transformed": False}
    others: dict[str, dict[str, Any]] = {
        "order": {"columns": ["c", "e", "b", "y"]},
        "columns": {"columns": ["b", "c", "d", "y"]},
        "transformed": {"transformed": True},
        "nulls": {"columns": ["b", "c", "a", "y"], "nulls": {"a": 0}},
        "fills": {"columns": ["b", "c", "a", "y"], "nulls": {"a": 1}},
    }
    settings = {"base": base, **{name: {**base, **other} for name, other in others.items()}}
    for first, second in itertools.combinations(settings, 2):

        def train(context: Context, names: tuple[str, str] = (first, second)) -> Any:
            for name in names:
                context.reader("train", global_batch_size=8, **settings[name])
            return unnamed({name: table[name] for name in "bcd"}, table["b"])

        with subtests.test(f"{first} {second}"):
            run = finished_run(empty_store, dataset, train)
            with pytest.raises(InvalidArgument, match="readers of the run differ") as refused:
                experiments.register_model(run, "m", trust=True)
            assert experiments.get_models() == []
            # Each line of the hint can be pasted.
            for position, name in enumerate((first, second)):
                assert f"reader={position}" in str(refused.value.hint)
                model = experiments.register_model(run, "m", reader=position, trust=True)
                assert list(model.inputs) == settings[name]["columns"][:3]
                assert (model.transformations is not None) == (settings[name]["transformed"])
                fills = {column.name: column.fill for column in model.spec.inputs}
                assert fills.get("a") == settings[name].get("nulls", {}).get("a")
                model.delete()


def test_stated_columns_decide_between_readers(
    empty_store: FeatureStore, sums: TrainingDataset
) -> None:
    table, orders = bits(), (["b", "a", "c"], ["a", "c", "b"], ["d", "a"])
    for trained in orders:

        def train(context: Context, trained: list[str] = trained) -> Any:
            context.reader("train", global_batch_size=8, columns=[*orders[0], "y"])
            for columns in orders[1:]:
                context.dataset.matrix("train", columns=columns)
            return named({name: table[name] for name in trained}, weighted_sum(table, trained))

        run = finished_run(empty_store, sums, train)
        model = experiments.register_model(run, "sums", trust=True)
        assert list(model.inputs) == trained
        rows = pa.table({"id": range(64), **table})
        expected = weighted_sum(table, trained)
        np.testing.assert_allclose(scores(empty_store, model, rows), expected, atol=1e-5)


def test_readers_with_equal_inputs_need_no_choice(
    empty_store: FeatureStore, sums: TrainingDataset
) -> None:
    table = bits()

    def train(context: Context) -> Any:
        context.reader("train", global_batch_size=8, class_weights="balanced")
        context.reader("train", global_batch_size=4, shuffle=False, remainder="keep", seed=3)
        context.reader("train", global_batch_size=4, nulls="mask", columns=[*"abcd"])
        context.dataset.matrix("train")
        return unnamed(table, weighted_sum(table, "abcd"))

    run = finished_run(empty_store, sums, train)
    assert len(run.record.readers) == 4
    assert experiments.register_model(run, "sums", trust=True).inputs == tuple("abcd")


def test_frames_with_other_columns_register_what_the_model_uses(
    empty_store: FeatureStore, sums: TrainingDataset, subtests: pytest.Subtests
) -> None:
    """A pipeline that selects columns was fitted on key and label as well, and needs neither."""
    compose = importlib.import_module("sklearn.compose")
    line = importlib.import_module("sklearn.linear_model").LinearRegression
    make_pipeline = importlib.import_module("sklearn.pipeline").make_pipeline
    search = importlib.import_module("sklearn.model_selection").GridSearchCV
    parts = [("first", "passthrough", ["d"]), ("second", "passthrough", ["b"])]

    def selecting() -> Any:
        return make_pipeline(compose.ColumnTransformer([*parts, ("no", "drop", ["a"])]), line())

    models: dict[str, Callable[[], tuple[Any, list[str], str]]] = {
        "selection": lambda: (selecting(), ["b", "d"], "bd"),
        "search": lambda: (search(selecting(), {}, cv=2), ["b", "d"], "bd"),
        "target": lambda: (compose.TransformedTargetRegressor(selecting()), ["b", "d"], "bd"),
        "key": lambda: (line(), ["id", "d", "c"], "cd"),
    }
    for name, make in models.items():
        with subtests.test(name):
            model, inputs, columns = make()

            def train(
                context: Context, model: Any = model, inputs: Any = inputs, columns: Any = columns
            ) -> Any:
                frame = context.dataset.read("train").to_pandas()
                x = frame[inputs] if "id" in inputs else frame.sample(frac=1, axis=1)
                return model.fit(
                    x, weighted_sum({n: frame[n].to_numpy() for n in columns}, columns)
                )

            run = finished_run(empty_store, sums, train)
            registered = experiments.register_model(run, "sums", trust=True)
            assert sorted(registered.inputs) == sorted(inputs)
            rows = pa.table({"id": range(64), **bits()}).drop(["a"])
            expected = weighted_sum(bits(), columns)
            np.testing.assert_allclose(scores(empty_store, registered, rows), expected, atol=1e-4)


def test_unnamed_models_refuse_another_number_of_columns(
    empty_store: FeatureStore, sums: TrainingDataset, subtests: pytest.Subtests
) -> None:
    xgboost = importlib.import_module("xgboost")
    lightgbm = importlib.import_module("lightgbm")
    table = bits()
    x = np.stack([table[name] for name in "abc"], axis=1)
    fits: dict[str, Callable[[], Any]] = {
        "scikit-learn": lambda: unnamed({name: table[name] for name in "abc"}, table["a"]),
        "xgboost": lambda: xgboost.XGBRegressor(n_estimators=1).fit(x, table["a"]),
        "lightgbm": lambda: lightgbm.LGBMRegressor(n_estimators=1, verbose=-1).fit(x, table["a"]),
    }
    fits["xgboost booster"] = lambda: fits["xgboost"]().get_booster()
    fits["lightgbm booster"] = lambda: fits["lightgbm"]().booster_
    for name, fit in fits.items():
        for columns in ("ab", "abcd"):
            with subtests.test(f"{name} {columns}"):

                def train(context: Context, fit: Any = fit, columns: str = columns) -> Any:
                    context.dataset.matrix("train", columns=list(columns))
                    return fit()

                run = finished_run(empty_store, sums, train)
                with pytest.raises(InvalidArgument, match=r"3 (columns|features)|\(3\)|3, got"):
                    experiments.register_model(run, "m", trust=True)


def test_contradictions_name_both_lists(
    empty_store: FeatureStore, sums: TrainingDataset, subtests: pytest.Subtests
) -> None:
    table = bits()
    run_columns, yx = ["a", "b", "y"], {"y": table["a"]}
    renamed = {"first": table["a"], "second": table["b"]}
    cases: list[tuple[Table, dict[str, Any], str, str]] = [
        (
            {"a": table["a"], "c": table["c"]},
            {},
            r"'a', 'c', but the run read 'a', 'b'",
            "columns=['a', 'c']",
        ),
        ({"a": table["a"], **yx}, {}, r"'a', 'y', but the run read 'a', 'b'", "without the label"),
        (renamed, {}, r"'first', 'second', but the run read 'a', 'b'", "columns=['a', 'b']"),
        (
            {"b": table["b"], "second": table["a"]},
            {"columns": ["a", "b"]},
            r"'b', 'second', but columns= has 'a', 'b'",
            "in the order that the model states",
        ),
        (
            {"b": table["b"], "a": table["a"]},
            {"columns": ["a", "b"]},
            r"'b', 'a', but columns= has 'a', 'b'",
            "columns=['b', 'a']",
        ),
        (
            {"a": table["a"], "c": table["c"]},
            {"reader": 0},
            r"'a', 'c', but the run read 'a', 'b'",
            "columns=['a', 'c']",
        ),
    ]
    for fitted_on, options, words, hint in cases:

        def train(context: Context, fitted_on: Table = fitted_on) -> Any:
            context.reader("train", global_batch_size=8, columns=run_columns)
            return named(fitted_on, table["a"] + table["b"])

        with subtests.test(f"{list(fitted_on)} {options}"):
            run = finished_run(empty_store, sums, train)
            with pytest.raises(InvalidArgument, match=re.escape(words)) as refused:
                experiments.register_model(run, "m", trust=True, **options)
            assert hint in str(refused.value.hint)
            assert not os.path.exists(os.path.join(empty_store.location, "models"))
    # The caller says which columns the own names of a model are.
    run = finished_run(empty_store, sums, lambda context: named(renamed, weighted_sum(table, "ab")))
    model = experiments.register_model(run, "m", columns=["a", "b"], trust=True)
    rows = pa.table({"id": range(64), **table})
    np.testing.assert_allclose(
        scores(empty_store, model, rows), weighted_sum(table, "ab"), atol=1e-5
    )


def test_reader_argument_must_be_a_position(
    empty_store: FeatureStore, sums: TrainingDataset
) -> None:
    def train(context: Context) -> Any:
        context.dataset.matrix("train")
        return unnamed(bits(), np.zeros(64))

    run = finished_run(empty_store, sums, train)
    for reader in (1, -1, "train"):
        with pytest.raises(InvalidArgument, match="Available: 0"):
            experiments.register_model(run, "m", reader=reader, trust=True)  # type: ignore[arg-type]


@pytest.mark.spark
def test_pipelines_of_spark_state_columns_that_no_stage_adds(
    spark: Any, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    feature = importlib.import_module("pyspark.ml.feature")
    line = importlib.import_module("pyspark.ml.regression").LinearRegression
    pipeline = importlib.import_module("pyspark.ml").PipelineModel
    index = feature.StringIndexerModel.from_labels(["x", "y"], inputCol="t", outputCol="code")
    assembled = feature.VectorAssembler(inputCols=["c", "code", "a"], outputCol="features")
    joined = feature.VectorAssembler(inputCols=["a", "b"])
    norm = feature.Normalizer(inputCol=joined.getOutputCol(), outputCol="features")
    query = feature.SQLTransformer(statement="SELECT *, a + c AS features FROM __THIS__")
    rows = spark.createDataFrame([(0.0, 1.0), (1.0, 2.0)], "a double, b double")
    formula = feature.RFormula(formula="b ~ a").fit(rows)
    fit = line(labelCol="b", maxIter=1).fit(norm.transform(joined.transform(rows)))
    cases: list[tuple[list[Any], set[str] | None]] = [
        ([index, assembled, fit], {"t", "c", "a"}),
        ([joined, norm, fit], {"a", "b"}),
        ([pipeline([index, assembled]), fit], {"t", "c", "a"}),
        ([formula, fit], None),
        ([query, fit], None),
    ]
    for number, (stages, expected) in enumerate(cases):
        path = str(tmp_path / str(number))
        pipeline(stages).save(path)
        with subtests.test(str(expected)):
            stated = spark_pipelines.stated_columns(path)
            assert (None if stated is None else set(stated)) == expected
