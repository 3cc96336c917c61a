"""A model gets the values, names and dtypes of its training in each form, in batches and online."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featurestore import experiments
from featurestore import transform as t
from featurestore.arrow.schemas import type_to_json
from featurestore.errors import InvalidArgument, NullsInColumns, PredictionsDiffer
from featurestore.experiments.context import Context
from featurestore.experiments.models.input_rows import to_model_input
from featurestore.model.json_object import seal
from featurestore.model.registered_model import ModelInput, ModelSpec
from featurestore.store import FeatureStore
from featurestore.training import TrainingDataset
from tests.experiments.in_process_runs import run_here
from tests.experiments.test_model_values import model_spec
from tests.store_copies import copy_of

ROWS = 24
DAY = datetime(2024, 1, 1, tzinfo=UTC)
COLUMNS = {
    "flag": pa.array([row % 3 == 0 for row in range(ROWS)]),
    "tiny": pa.array([row % 5 for row in range(ROWS)], pa.int8()),
    "count": pa.array([row * 7 % 11 for row in range(ROWS)], pa.int64()),
    "ratio": pa.array([row / 7 for row in range(ROWS)], pa.float64()),
    "half": pa.array([row / 3 for row in range(ROWS)], pa.float32()),
    "city": pa.array([("rome", "bern", "oslo")[row % 3] for row in range(ROWS)]),
    "day": pa.array([date(2024, 1, 1 + row) for row in range(ROWS)]),
    "price": pa.array([Decimal(row) / 4 for row in range(ROWS)], pa.decimal128(6, 2)),
    "vector": pa.array([[row, row / 2] for row in range(ROWS)], pa.list_(pa.float32(), 2)),
}
NUMBERS = ["flag", "tiny", "count", "ratio", "half", "vector"]
DOUBLES = ["ratio", "count", "half"]
SCALARS = [name for name in COLUMNS if name != "vector"]


class Describes:
    """A model that predicts, per row, a text of the names, dtypes and values that it gets."""

    def predict(self, rows: Any) -> Any:
        if isinstance(rows, np.ndarray):
            return np.array([f"{rows.dtype} {row.tolist()}" for row in rows], dtype=object)
        columns = {name: rows[name] for name in (rows if isinstance(rows, dict) else rows.columns)}
        texts = {name: _describe(column) for name, column in columns.items()}
        size = len(next(iter(texts.values())))
        return np.array(
            [json.dumps({name: text[row] for name, text in texts.items()}) for row in range(size)],
            dtype=object,
        )


def _describe(column: Any) -> list[str]:
    dtype = str(column.dtype)
    if dtype == "category":
        dtype = f"{column.cat.categories.tolist()} {column.cat.ordered}"
    values = list(column)
    return [f"{dtype} {value!r}" for value in values]


class Shops:
    """A store with a published view; ``full`` has no nulls, ``gaps`` has a null in each column."""

    def __init__(self, store: FeatureStore) -> None:
        self.store = store
        table = pa.table({"shop": range(ROWS), **COLUMNS})
        store.create_featuregroup(table, "full", primary_key="shop")
        gaps = {
            name: pa.array(
                [
                    None if (row + position) % 10 == 9 else value
                    for row, value in enumerate(column.to_pylist())
                ],
                column.type,
            )
            for position, (name, column) in enumerate(COLUMNS.items())
        }
        store.create_featuregroup(
            pa.table({"shop": range(ROWS), **gaps}), "gaps", primary_key="shop"
        )
        labels = [{"shop": shop, "at": DAY, "sales": float(shop * 7 % 5)} for shop in range(ROWS)]
        store.create_featuregroup(labels, "labels", primary_key="shop", event_time="at")
        self.datasets = {name: self._create_dataset(name) for name in ("full", "gaps")}

    def _create_dataset(self, name: str) -> TrainingDataset:
        view = self.store.create_feature_view(
            f"{name}_view",
            features=[f"{name}.{column}" for column in COLUMNS],
            labels="labels",
            label="sales",
            transformations={
                "ratio": t.standardize(),
                "city": t.one_hot(),
            },
        )
        dataset = view.create_training_dataset(name, progress=False)
        self.store.publish(view.name)
        return dataset

    def scored(self, model: Any) -> list[str]:
        """Return the predictions in one batch, after checking single rows and the online ones."""
        shops = model.dataset.read("train").to_arrow()["shop"].to_pylist()
        keys = [{"shop": shop} for shop in shops]
        later = datetime.now(UTC) + timedelta(hours=1)

        def score(labels: list[dict[str, int]]) -> list[str]:
            frame = self.store.score(model, labels=labels, label_time=later, trust=True)
            return frame.to_arrow()["prediction"].to_pylist()

        batch = score(keys)
        assert [score([key])[0] for key in keys[7:10]] == batch[7:10]
        server = model.server(trust=True)
        try:
            assert [row["prediction"] for row in server.predict(keys).rows] == batch
        finally:
            server.close()
        return batch


@pytest.fixture(scope="module")
def shops(empty_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shops]:
    with copy_of(empty_template, tmp_path_factory.mktemp("model-forms") / "store") as store:
        yield Shops(store)


def read_pandas(context: Context) -> Any:
    return context.dataset.read("train").select(*COLUMNS).to_pandas()


def with_pandas_dtypes(context: Context) -> Any:
    import pandas as pd

    frame = context.dataset.read("train").to_pandas()[SCALARS[::-1]]
    ordered = pd.CategoricalDtype(["oslo", "rome", "paris", "bern"], ordered=True)
    dtypes = {"city": ordered, "tiny": "category", "flag": "boolean", "ratio": "float32"}
    dtypes |= {"price": "float64", "day": "datetime64[s]"}
    has_nulls = frame["count"].isna().any()
    return frame.astype({**dtypes, "count": "Int64" if has_nulls else "int32"})


def with_float_dtypes(context: Context) -> Any:
    frame = context.dataset.read("train").to_pandas()[["flag", "tiny", "half"]]
    return frame.astype({"flag": "float64", "tiny": "float32", "half": "float64"})


def read_polars(context: Context) -> Any:
    return context.dataset.read("train").select(*COLUMNS).to_polars()


def with_polars_dtypes(context: Context) -> Any:
    import polars as pl

    frame = context.dataset.read("train").select(*SCALARS[::-1]).to_polars()
    city = pl.col("city").cast(pl.Enum(["oslo", "rome", "paris", "bern"]))
    return frame.with_columns(city, pl.col("tiny").cast(pl.Float64), pl.col("count").cast(pl.Int32))


def read_matrix(context: Context) -> Any:
    return context.dataset.matrix("train", columns=NUMBERS, transformed=False).x


def doubles_of_frame(context: Context) -> Any:
    return context.dataset.read("train").select(*DOUBLES).to_numpy()


def doubles_of_matrix(context: Context) -> Any:
    return read_matrix(context).astype(np.float64)


def read_transformed(context: Context) -> Any:
    import pandas as pd

    matrix = context.dataset.matrix("train", columns=["ratio", "city", "count", "vector"])
    return pd.DataFrame(matrix.x, columns=matrix.names)


def matrix_in_polars(context: Context) -> Any:
    import polars as pl

    matrix = context.dataset.matrix("train", columns=NUMBERS, transformed=False)
    return pl.DataFrame(matrix.x, schema=list(matrix.names))


def categories_of_matrix(context: Context) -> Any:
    import pandas as pd

    matrix = context.dataset.matrix("train", columns=["tiny", "ratio", "half"])
    frame = pd.DataFrame(matrix.x, columns=matrix.names)
    return frame.astype({"tiny": "category", "half": "category"})


def reader_in_pandas(context: Context) -> Any:
    import pandas as pd

    batch = reader_of("mask")(context)
    names = [name for name in batch if not name.startswith("vector")]
    return pd.DataFrame({name: batch[name] for name in names})


def reader_of(nulls: Any) -> Callable[[Context], Any]:
    def read(context: Context) -> Any:
        reader = context.reader(
            "train",
            global_batch_size=ROWS,
            shuffle=False,
            columns=list(COLUMNS),
            nulls=nulls,
            transformed=False,
        )
        (batch,) = reader.batches()
        return batch

    return read


FILLS = {
    **{"flag": True, "tiny": 9, "count": -1, "ratio": 0.25, "half": 0.5, "city": "none"},
    **{"day": date(1999, 1, 1), "price": Decimal("0.25"), "vector": 7},
}
FORMS: dict[str, tuple[str, Callable[[Context], Any]]] = {
    "pandas": ("both", read_pandas),
    "pandas dtypes": ("both", with_pandas_dtypes),
    "pandas floats": ("both", with_float_dtypes),
    "polars": ("both", read_polars),
    "polars dtypes": ("both", with_polars_dtypes),
    "matrix": ("both", read_matrix),
    "doubles of a frame": ("both", doubles_of_frame),
    "doubles of a matrix": ("both", doubles_of_matrix),
    "matrix in polars": ("both", matrix_in_polars),
    "transformed": ("both", read_transformed),
    "categories of a matrix": ("both", categories_of_matrix),
    "reader": ("full", reader_of("error")),
    "reader fill": ("gaps", reader_of(FILLS)),
    "reader mask": ("gaps", reader_of("mask")),
    "reader in pandas": ("both", reader_in_pandas),
}


def test_model_gets_the_rows_of_its_training(shops: Shops, subtests: Any) -> None:
    for form, (names, read) in FORMS.items():
        for name in ("full", "gaps") if names == "both" else (names,):
            with subtests.test(form, dataset=name):
                expected: list[str] = []

                def train(
                    context: Context,
                    read: Callable[[Context], Any] = read,
                    expected: list[str] = expected,
                ) -> None:
                    rows = read(context)
                    expected += Describes().predict(rows).tolist()
                    context.save(Describes(), inputs=rows)

                run = run_here(shops.store, shops.datasets[name], train)
                # An array of a frame has no names.
                columns = DOUBLES if form == "doubles of a frame" else None
                model = experiments.register_model(run, "texts", columns=columns, trust=True)
                assert shops.scored(model) == expected


class Averages:
    """A model that predicts the mean of the inputs that it gets, with 100 for missing values."""

    def predict(self, x: Any) -> Any:
        return np.nan_to_num(np.asarray(x, np.float64), nan=100.0).mean(axis=1)


ALTERATIONS: dict[str, Callable[[Any], Any]] = {
    "none": lambda x: x,
    "nulls": lambda x: np.nan_to_num(x, nan=0.0),
    "order": lambda x: x * [1, 2, 3],
    "scale": lambda x: x / 10,
    "rows": lambda x: x[::-1],
    "type": lambda x: x.astype(np.float64),
}


def test_altered_inputs_are_refused_at_registration(shops: Shops, subtests: Any) -> None:
    dataset = shops.datasets["gaps"]
    columns = ["count", "ratio", "half"]
    for name, alter in ALTERATIONS.items():
        with subtests.test(name):

            def train(context: Context, alter: Callable[[Any], Any] = alter) -> None:
                x = context.dataset.matrix("train", columns=columns, transformed=False).x
                context.save(Averages(), inputs=alter(x))

            run = run_here(shops.store, dataset, train)
            if name in ("none", "type"):
                experiments.register_model(run, "mean", trust=True).delete()
            else:
                with pytest.raises(PredictionsDiffer, match=r"The run predicted .* for row \d+ of"):
                    experiments.register_model(run, "mean", trust=True)
    # The record has predictions, but no values of inputs.
    (state,) = [state for state in run.record.readers if state["form"] == "saved"]
    assert set(state) == {
        *("form", "artifact", "split", "manifest", "arrays", "columns", "dtypes", "rows"),
        "predictions",
    }
    nulls = [dataset.read("train").to_arrow()[name].is_null().to_pylist() for name in columns]
    assert all(any(null[row] for row in state["rows"]) for null in nulls)


def test_predictions_choose_among_readers_that_differ(shops: Shops) -> None:
    def train(context: Context) -> None:
        columns = ["count", "ratio", "half"]
        context.reader(
            "train", global_batch_size=4, columns=columns, nulls=dict.fromkeys(columns, 0)
        )
        x = context.dataset.matrix("train", columns=columns, transformed=False).x
        context.dataset.matrix("train", columns=columns[::-1], transformed=True)
        context.save(Averages(), inputs=x)

    run = run_here(shops.store, shops.datasets["gaps"], train)
    model = experiments.register_model(run, "mean", trust=True)
    assert [model_input.nulls for model_input in model.spec.inputs] == ["nan"] * 3
    assert model.spec.transformations is None


class CountsCategories:
    """A model that predicts the number of rows with a category."""

    def predict(self, frame: Any) -> Any:
        return frame["city"].notna().to_numpy()


def test_values_without_category_are_nulls(shops: Shops) -> None:
    def train(context: Context) -> None:
        frame = context.dataset.read("train").to_pandas()[["city"]]
        context.save(CountsCategories(), inputs=frame.astype({"city": "category"}))

    labels = [{"city": "rome"}, {"city": "lima"}]
    for name, nulls in (("full", "error"), ("gaps", "nan")):
        run = run_here(shops.store, shops.datasets[name], train)
        model = experiments.register_model(run, "known", trust=True)
        (model_input,) = model.spec.inputs
        assert model_input.nulls == nulls
        assert model_input.dtype is not None
        assert model_input.dtype.categories == ("bern", "oslo", "rome")
        parsed = ModelSpec.from_bytes(model.spec.to_bytes(), path="model.json")
        assert parsed.inputs == model.spec.inputs
        batch = pa.RecordBatch.from_pylist(labels)
        if nulls == "error":
            with pytest.raises(InvalidArgument, match="'lima' of 'city' is not among the 3 categ"):
                to_model_input(model.spec, None, batch)
        else:
            frame = to_model_input(model.spec, None, batch)
            assert frame["city"].isna().tolist() == [False, True]


def test_pipeline_fitted_on_a_read_frame(shops: Shops) -> None:
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    predicted: list[float] = []

    def train(context: Context) -> None:
        frame = context.dataset.read("train").to_pandas()
        x = frame[["half", "city", "count"]]
        encoder = ColumnTransformer([("city", OneHotEncoder(), ["city"])], remainder="passthrough")
        pipeline = make_pipeline(encoder, LinearRegression()).fit(x, frame["sales"])
        predicted.extend(pipeline.predict(x))
        context.save(pipeline)

    run = run_here(shops.store, shops.datasets["full"], train)
    model = experiments.register_model(run, "pipeline", trust=True)
    assert model.inputs == ("half", "city", "count")
    assert model.spec.arrays == "pandas"
    np.testing.assert_allclose(shops.scored(model), predicted, rtol=1e-12)


def fit_trees(library: str, frame: Any, y: Any) -> Any:
    if library == "sklearn":
        from sklearn.ensemble import HistGradientBoostingRegressor

        trees = HistGradientBoostingRegressor(
            max_iter=5, min_samples_leaf=1, categorical_features="from_dtype"
        )
    elif library == "lightgbm":
        from lightgbm import LGBMRegressor

        trees = LGBMRegressor(n_estimators=5, min_child_samples=1, n_jobs=1, verbose=-1)
    else:
        from xgboost import XGBRegressor

        trees = XGBRegressor(n_estimators=5, enable_categorical=True, n_jobs=1)
    return trees.fit(frame, y)


def test_trees_get_the_categories_of_their_training(shops: Shops, subtests: Any) -> None:
    for library in ("sklearn", "lightgbm", "xgboost"):
        pytest.importorskip(library)
        with subtests.test(library):
            predicted: list[float] = []

            def train(
                context: Context, library: str = library, predicted: list[float] = predicted
            ) -> None:
                frame = context.dataset.read("train").to_pandas()
                x = frame[["count", "city", "ratio"]].astype({"city": "category"})
                trees = fit_trees(library, x, frame["sales"])
                predicted += trees.predict(x).tolist()
                context.save(trees, inputs=x)

            run = run_here(shops.store, shops.datasets["gaps"], train)
            model = experiments.register_model(run, "trees", trust=True)
            assert len(set(predicted)) > 3
            assert shops.scored(model) == predicted


def test_nulls_without_training_are_refused_unless_requested(shops: Shops) -> None:
    def train(context: Context) -> None:
        x = context.dataset.matrix("train", columns=["count", "flag"], transformed=False).x
        context.save(Averages(), inputs=x)

    run = run_here(shops.store, shops.datasets["full"], train)
    batch = pa.RecordBatch.from_pylist([{"count": None, "flag": True}])
    model = experiments.register_model(run, "mean", trust=True)
    with pytest.raises(NullsInColumns, match="'count'"):
        to_model_input(model.spec, None, batch)
    model = experiments.register_model(run, "mean", trust=True, nulls="nan")
    (row,) = to_model_input(model.spec, None, batch).values.tolist()
    assert math.isnan(row[0])
    assert row[1] == 1.0


def test_model_files_of_the_first_format_have_nulls() -> None:
    count = ModelInput("count", type_to_json(pa.int64()))
    spec = replace(
        model_spec(count),
        created="2024-01-01",
        dataset={"name": "d", "version": 1, "manifest": "m"},
    )
    data = {**json.loads(spec.to_bytes()), "format": 1}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"masked": False, "fill": None}, "error"),
        ({"masked": False, "fill": 3}, "fill"),
        ({"masked": True, "fill": None}, "mask"),
    ]
    data.pop("checksum", None)
    for fields, nulls in cases:
        first = {"name": "count", "type": count.type, "narrow": False, **fields}
        old = seal({**data, "inputs": [first]})
        assert ModelSpec.from_bytes(old, path="model.json").inputs == (
            replace(count, nulls=nulls, fill=fields["fill"]),
        )
