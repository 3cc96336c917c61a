"""Values of model inputs, fills and outputs are converted without loss, or refused by name."""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featurestore
from featurestore import experiments
from featurestore.arrow.schemas import type_from_json, type_to_json
from featurestore.errors import FeatureStoreError, InvalidArgument
from featurestore.experiments.models import conversion
from featurestore.ingest import to_reader
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.registered_model import ModelInput, ModelOutput, ModelSpec
from featurestore.readers.columns import to_numpy
from featurestore.store import FeatureStore
from tests.experiments.test_models import Line, a_run
from tests.values.cases import REFUSED, TYPES, VALUES, are_equal, fitted, value_of


class Copies:
    """A model that returns its only input."""

    def predict(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return x[:, 0]


class Steps:
    """A model that returns whole numbers as integers while all of them are whole."""

    def predict(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        values = x[:, 0].astype(np.float64)
        return values.astype(np.int64) if (values == values.astype(np.int64)).all() else values


def model_spec(*inputs: ModelInput, output_type: pa.DataType | None = None) -> ModelSpec:
    outputs = (ModelOutput("prediction", type_to_json(output_type or pa.float64())),)
    features = FeatureViewSpec("m", 1, ())
    return ModelSpec(
        *("m", 1, "pickle", "model.pkl", (), {"name": "d", "version": 1}, features),
        *(inputs, outputs),
    )


def test_model_json_has_the_format_after_the_fields_of_the_model() -> None:
    assert list(json.loads(model_spec().to_bytes())) == [
        "name", "version", "flavor", "artifact", "files", "dataset", "features", "inputs", "outputs",
        "label", "arrays", "method", "transformations", "experiment", "run", "created", "libraries",
        "format", "checksum",
    ]  # fmt: skip


def result_of(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except FeatureStoreError:
        return REFUSED


def scored_input(value: Any, input_type: pa.DataType) -> Any:
    """Return the value of an input after its conversion from a row of labels."""
    model_input = ModelInput("x", type_to_json(input_type), narrow=input_type == pa.float32())
    column = to_reader([{"x": value}]).read_all().column("x").combine_chunks()
    return conversion.convert_input(model_spec(model_input), model_input, column)[0].as_py()


def rounded_to_float32(value: Any) -> Any:
    """Return the nearest number of float32, ``REFUSED`` beyond its range."""
    try:
        (rounded,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        return REFUSED
    return REFUSED if math.isinf(rounded) and not math.isinf(value) else rounded


def input_by_rule(value: Any, input_type: pa.DataType) -> Any:
    """Return the value by plain rules: as a column, but rounded like files of float32."""
    if input_type == pa.float32() and isinstance(value, float):
        return rounded_to_float32(float(value))
    is_pair = (
        input_type == pa.list_(pa.float32(), 2) and isinstance(value, list) and len(value) == 2
    )
    if is_pair and any(isinstance(item, float) for item in value):
        return [rounded_to_float32(item) for item in value]
    return fitted(value, input_type)


@pytest.mark.filterwarnings("ignore::featurestore.model.times.NaiveTimeWarning")
def test_inputs_fit_by_the_rule_of_columns() -> None:
    different = []
    for name, code in product(TYPES, VALUES):
        result = result_of(scored_input, value_of(code), TYPES[name])
        expected = input_by_rule(value_of(code), TYPES[name])
        if result is not expected and not are_equal(result, expected):
            different.append((name, code, result, expected))
    assert different == []


@given(st.lists(st.none() | st.floats(), min_size=1, max_size=5), st.booleans())
def test_narrow_inputs_are_rounded_like_the_files(values: list[Any], in_list: bool) -> None:
    item_type = pa.float64()
    column = pa.array(values, item_type)
    if in_list:
        item_type = pa.list_(item_type)
        column = pa.array([values, None], item_type)
    model_input = ModelInput("x", type_to_json(item_type), narrow=True)
    expected = [None if value is None else rounded_to_float32(value) for value in values]
    spec = model_spec(model_input)
    if REFUSED in expected:
        with pytest.raises(InvalidArgument, match=r"'x' as .*double stored as .*float, and"):
            conversion.convert_input(spec, model_input, column)
    else:
        result = conversion.convert_input(spec, model_input, column)
        assert result.type == item_type
        assert str(result.to_pylist()) == str([expected, None] if in_list else expected)


def test_fills_fit_by_the_rule_of_columns() -> None:
    different = []
    fillable = [name for name in TYPES if name != "int64[]" and not name.startswith("struct")]
    for name, code in product(fillable, VALUES):
        input_type, value = TYPES[name], value_of(code)
        expected = fitted(value, input_type)
        if pa.types.is_fixed_size_list(input_type) and fitted(value, pa.float32()) is not REFUSED:
            expected = [value] * 2  # one number fills all items
        json_fill = result_of(conversion.to_stored_fill, "x", value, input_type)
        if json_fill is REFUSED or expected is REFUSED:
            if json_fill is not expected:
                different.append((name, code, json_fill))
            continue
        if isinstance(expected, list) and None in expected:
            continue
        model_input = ModelInput("x", type_to_json(input_type), fill=json_fill)
        data = conversion.fill_array(model_spec(model_input), model_input)
        expected_data, _ = to_numpy(pa.array([expected], input_type), name="x")
        if str(data) != str(expected_data):
            different.append((name, code, data))
    assert different == []


def test_fills_of_readers_have_the_forms_that_readers_yield(subtests: pytest.Subtests) -> None:
    forms: list[tuple[pa.DataType, Any, Any]] = [
        (pa.date32(), 3, {"date": "1970-01-04"}),
        (TYPES["timestamp"], 10, {"time": "1970-01-01T00:00:00.000010+00:00"}),
        (pa.decimal128(5, 2), "0.5", {"decimal": "0.50"}),
        (pa.binary(), "abc", {"bytes": "616263"}),
        (pa.float32(), 0.1, rounded_to_float32(0.1)),
        (pa.float32(), 1e300, REFUSED),
        (pa.int8(), 1.9, REFUSED),
    ]
    for input_type, fill, json_fill in forms:
        with subtests.test(input_type=input_type, fill=fill):
            value = conversion.parse_reader_fill(fill, input_type)
            assert result_of(conversion.to_stored_fill, "x", value, input_type) == json_fill


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn"])
def test_half_precision_outputs_become_float32(dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    numbers = np.array([[0.5, 1.0], [-2.0, math.nan]])
    values = numbers.astype(getattr(ml_dtypes, dtype, np.float16))
    (column,) = conversion.to_columns({"": values}, 2).values()
    assert column.type == pa.list_(pa.float32(), 2)
    assert str(column.to_pylist()) == str(numbers.tolist())


def test_outputs_of_other_types_fit_or_are_refused(subtests: pytest.Subtests) -> None:
    later_values: list[tuple[pa.DataType, Any, Any]] = [
        (pa.int64(), [1.0, 2.0], [1, 2]),
        (pa.int64(), [1.0, 2.5], REFUSED),
        (pa.int64(), ["a", "b"], REFUSED),
        (pa.float32(), [0.5, 0.25], [0.5, 0.25]),
        (pa.float32(), [0.5, 1e300], REFUSED),
        (pa.float64(), [1, 2**53 + 1], REFUSED),
        (pa.decimal128(3, 2), [Decimal("1.5"), None], [Decimal("1.50"), None]),
        (pa.decimal128(3, 2), [Decimal("10.5"), None], REFUSED),
        (pa.string(), [b"a", b"b"], REFUSED),
        (pa.list_(pa.float32(), 2), [[1, 2], [3, 4]], [[1.0, 2.0], [3.0, 4.0]]),
        (pa.list_(pa.float32(), 2), [[1, 2, 3], [3, 4, 5]], REFUSED),
    ]
    for output_type, values, expected in later_values:
        with subtests.test(output_type=output_type, values=values):
            spec, outputs = model_spec(output_type=output_type), {"": np.array(values)}
            if expected is REFUSED:
                with pytest.raises(InvalidArgument, match="in 'prediction', which is"):
                    conversion.convert_outputs(spec, outputs, 2)
            else:
                column = conversion.convert_outputs(spec, outputs, 2)["prediction"]
                assert (column.type, column.to_pylist()) == (output_type, expected)


def registered(
    store: FeatureStore, columns: dict[str, pa.Array], model: Any, **options: Any
) -> Any:
    """Register a pickled model with the inputs ``columns`` and a label."""
    rows = pa.table(
        {**columns, "y": [float(row) for row in range(len(next(iter(columns.values()))))]}
    )
    run = a_run(store, store.create_training_dataset(rows, "d", label="y", progress=False))
    Path(run.path, "artifacts", "model.pkl").write_bytes(pickle.dumps(model))
    return experiments.register_model(run, "m", trust=True, **options)


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
def test_score_refuses_values_that_training_could_not_have(
    empty_store: FeatureStore, engine: str, subtests: pytest.Subtests
) -> None:
    columns = {"whole": pa.array([1, 2], pa.int8()), "real": pa.array([0.5, 1], pa.float64())}
    registered(empty_store, columns, Line())
    store = empty_store
    if engine == "spark":
        store = featurestore.connect(empty_store.location, engine="spark")
    refused: list[tuple[Any, float, str]] = [
        (1.9, 0.5, "1.9"),
        (300, 0.5, "300"),
        (1, 2**53 + 1, str(2**53 + 1)),
    ]
    refused += [(True, 0.5, "bool instead of int8"), ("1", 0.5, "string instead of int8")]
    for integer, number, words in refused:
        with (
            subtests.test(integer=integer, number=number),
            pytest.raises(FeatureStoreError, match=words),
        ):
            store.score("m", labels=[{"whole": integer, "real": number}], trust=True).to_arrow()
    scored = store.score("m", labels=[{"whole": 3.0, "real": 2}], trust=True).to_arrow()
    assert scored["prediction"].to_pylist() == [8.0]


def test_matrix_of_doubles_refuses_numbers_beyond_float32(empty_store: FeatureStore) -> None:
    rows = pa.table({"real": [0.5, 1.0], "y": [0.0, 1.0]})
    dataset = empty_store.create_training_dataset(
        rows, "d", label="y", data_format="parquet", progress=False
    )
    run = a_run(empty_store, dataset)
    Path(run.path, "artifacts", "model.pkl").write_bytes(pickle.dumps(Copies()))
    experiments.register_model(run, "m", trust=True)

    def score(real: float) -> Any:
        return empty_store.score("m", labels=[{"real": real}], trust=True).to_arrow()["prediction"]

    largest = float(np.finfo(np.float32).max)
    for real in (largest, -math.inf, 0.1):
        assert score(real)[0].as_py() == rounded_to_float32(real)
    for real in (1e300, -3.5e38):
        with pytest.raises(FeatureStoreError, match=re.escape(repr(real))):
            score(real)


def test_later_outputs_of_another_type_are_refused(empty_store: FeatureStore) -> None:
    model = registered(empty_store, {"x": pa.array([1.0, 2.0])}, Steps())
    assert type_from_json(model.spec.outputs[0].type) == pa.int64()
    assert empty_store.score(model, labels=[{"x": 4.0}], trust=True).to_arrow()[
        "prediction"
    ].to_pylist() == [4]
    with pytest.raises(InvalidArgument, match=r"returned double in 'prediction'.*2\.5") as caught:
        empty_store.score(model, labels=[{"x": 4.0}, {"x": 2.5}], trust=True).to_arrow()
    assert "float64" in str(caught.value.hint)


def test_register_model_refuses_fills_that_do_not_fit(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    columns = {"n": pa.array([1, 2], pa.int8()), "f": pa.array([0.5, 1], pa.float32())}
    refused: list[tuple[Any, str]] = [
        ({"n": 1.9}, "int8"),
        ({"n": 300}, "int8"),
        ({"f": 1e300}, "float"),
        ({"f": 0.1}, "float"),
        ({"m": 0}, "not inputs: 'm'. Available: 'n', 'f'"),
        ("masks", "nulls='masks'"),
    ]
    model = registered(empty_store, columns, Line(), nulls={"n": 2.0, "f": np.float32(0.1)})
    scored = empty_store.score(model, labels=[{"n": None, "f": None}], trust=True).to_arrow()
    assert scored["prediction"].to_pylist() == [float(np.float32(4) + np.float32(0.1))]
    run = experiments.get_run(model.spec.run)
    for nulls, words in refused:
        with subtests.test(nulls=nulls), pytest.raises(InvalidArgument, match=words):
            experiments.register_model(run, "m", trust=True, nulls=nulls)
    assert [version.version for version in experiments.get_models("m")] == [1]


@pytest.mark.tensorflow
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_networks_score_like_keras(empty_store: FeatureStore, policy: str) -> None:
    keras = pytest.importorskip("keras")
    rows = pa.table({"x": np.arange(20, dtype=np.float32), "y": np.zeros(20)})
    dataset = empty_store.create_training_dataset(rows, "d", label="y", progress=False)
    run = a_run(empty_store, dataset)
    inputs = {"x": keras.Input((1,), name="x")}
    network = keras.Model(inputs, keras.layers.Dense(1, dtype=policy)(inputs["x"]))
    network.save(os.path.join(run.path, "artifacts", "model.keras"))
    model = experiments.register_model(run, "half", artifact="artifacts/model.keras")
    scored = empty_store.score(model, labels=rows.drop_columns("y")).to_arrow()["prediction"]
    assert scored.type == pa.float32()
    expected = network.predict({"x": rows["x"].to_numpy()}, verbose=0)[:, 0]
    np.testing.assert_array_equal(scored.to_numpy(), expected.astype(np.float32))


@pytest.mark.tensorflow
def test_saved_model_with_integer_inputs_refuses_fractions(empty_store: FeatureStore) -> None:
    tf = pytest.importorskip("tensorflow")

    class Doubled(tf.Module):  # type: ignore[misc]
        @tf.function(input_signature=[tf.TensorSpec((None,), tf.int32, name="x")])
        def __call__(self, x: Any) -> Any:
            return {"twice": 2 * x}

    rows = pa.table({"x": [1.0, 2.0], "y": [0.0, 1.0]})
    run = a_run(
        empty_store,
        empty_store.create_training_dataset(rows, "d", label="y", data_format="parquet"),
    )
    module, folder = Doubled(), os.path.join(run.path, "artifacts", "saved")
    tf.saved_model.save(module, folder, signatures={"serving_default": module.__call__})
    model = experiments.register_model(run, "twice", artifact="artifacts/saved", trust=True)
    scored = empty_store.score(model, labels=[{"x": 4.0}], trust=True).to_arrow()
    assert scored["prediction"].to_pylist() == [8]
    for value, words in ((1.9, "1.9 of type float"), (2.0**31, "2147483648")):
        with pytest.raises(InvalidArgument, match=f"'x' as int32, and the input {words}"):
            empty_store.score(model, labels=[{"x": value}], trust=True).to_arrow()
