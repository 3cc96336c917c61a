"""Class weights of readers: sample weights by label, in every framework, with weights and padding."""

from __future__ import annotations

import ast
import json
import os
import warnings
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from featurestore import FeatureStore
from featurestore import transform as t
from featurestore.errors import DataWarning, InvalidArgument, NullsInColumns, ReaderConfigError
from featurestore.model.manifest import MissingLabels
from featurestore.readers import open_reader

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

ROWS = 40
RARE = 8  # rows of the second class


def dataset_of(store: FeatureStore, label: Any, **arguments: Any) -> Any:
    """Return a dataset whose label has 32 rows of one class and 8 of another."""
    frame = pa.table(
        {
            "id": range(ROWS),
            "x": np.arange(ROWS, dtype=np.float32),
            "w": np.linspace(0.5, 2.0, ROWS).astype(np.float32),
            "y": label,
        }
    )
    return store.create_training_dataset(
        frame, "d", label="y", features=["x"], key="id", progress=False, **arguments
    )


def of_two(first: Any, second: Any) -> list[Any]:
    return [second if number % 5 == 0 else first for number in range(ROWS)]


BALANCED = (ROWS / (2 * (ROWS - RARE)), ROWS / (2 * RARE))
CASES = {
    "booleans": (pa.array(of_two(False, True)), {}, [0, 1]),
    "integers from 1": (pa.array(of_two(1, 2)), {}, [1, 2]),
    "floats": (pa.array(of_two(0.0, 1.0)), {}, [0.0, 1.0]),
    "coded texts": (
        pa.array(of_two("no", "yes")),
        {"transformations": {"y": t.vocabulary()}},
        [0, 1],
    ),
}


@pytest.mark.parametrize("data_format", ["tfrecord", "parquet"])
@pytest.mark.parametrize("case", CASES)
def test_balanced_class_weights_use_keys_of_reader_values(
    empty_store: FeatureStore, case: str, data_format: str
) -> None:
    label, arguments, classes = CASES[case]
    dataset = dataset_of(empty_store, label, data_format=data_format, **arguments)
    weights = dataset.class_weights
    assert weights == pytest.approx(dict(zip(classes, BALANCED, strict=True)))
    for request in ("balanced", weights, {"y": weights}):
        reader = dataset.reader(
            "train", global_batch_size=16, remainder="pad", class_weights=request
        )
        total = 0.0
        for step, batch in enumerate(reader.batches()):
            real = reader.rows(0, step) >= 0
            expected = [weights[value] for value in batch["y"][real].tolist()]
            np.testing.assert_allclose(batch["sample_weight"][real], expected, rtol=1e-6)
            assert (batch["sample_weight"][~real] == 0).all()
            total += float(batch["sample_weight"].sum())
        assert total == pytest.approx(ROWS, rel=1e-5)  # balanced weights have the mean 1


def test_class_weights_multiply_weight_column(empty_store: FeatureStore) -> None:
    dataset = dataset_of(empty_store, pa.array(of_two(0, 1)), weight="w")
    plain = dataset.reader("train", global_batch_size=16, remainder="pad", shuffle=False)
    weighed = dataset.reader(
        "train", global_batch_size=16, remainder="pad", shuffle=False, class_weights={0: 1, 1: 3}
    )
    for before, after in zip(plain.batches(), weighed.batches(), strict=True):
        expected = before["w"] * np.where(before["y"] == 1, 3, 1)
        np.testing.assert_allclose(after["w"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    "classes",
    [
        ("no", "yes"),
        (date(2024, 1, 1), date(2024, 1, 2)),
        (datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 12, tzinfo=UTC)),
        (Decimal("0.10"), Decimal("3.30")),
        (b"\xff", b"a"),
        (2**53, 2**53 + 1),
    ],
    ids=repr,
)
def test_reader_with_class_weights_resumes_state(empty_store: FeatureStore, classes: Any) -> None:
    dataset = dataset_of(empty_store, pa.array(of_two(*classes)))
    weights = dict(zip(classes, (1, 4), strict=True))
    reader = dataset.reader("train", global_batch_size=8, columns=["x", "y"], class_weights=weights)
    again, epoch, step = dataset.resume(json.loads(json.dumps(reader.state(1, 2))))
    expected = next(reader.batches(1, start_step=2))
    batch = next(again.batches(epoch, start_step=step))
    assert batch["sample_weight"].tolist() == expected["sample_weight"].tolist()
    assert set(batch["sample_weight"].tolist()) <= {1.0, 4.0}


def test_class_weights_ignore_rows_without_label(empty_store: FeatureStore) -> None:
    label = of_two(0, 1)
    label[1] = label[2] = None
    dataset = dataset_of(empty_store, pa.array(label, pa.int64()), missing_labels="weight_zero")
    rows = ROWS - 2
    assert dataset.class_weights == pytest.approx(
        {0: rows / (2 * (rows - RARE)), 1: rows / (2 * RARE)}
    )
    reader = dataset.reader("train", global_batch_size=ROWS, nulls="mask", class_weights="balanced")
    (batch,) = reader.batches()
    assert set(batch) == {"x", "y", "sample_weight"}
    assert sorted(batch["x"][batch["sample_weight"] == 0].tolist()) == [1.0, 2.0]


def test_classes_are_label_values_as_read(empty_store: FeatureStore, subtests: Any) -> None:
    days = (date(2024, 2, 29), date(1969, 12, 31))
    instants = (datetime(2024, 1, 1, 1, 2, 3, 4, tzinfo=UTC), datetime(1969, 7, 20, tzinfo=UTC))
    decimals = (Decimal("0E-10"), Decimal("1000.5"))
    cases = {
        "texts of missing values": (("null", "NaN", "nan"), pa.string()),
        "zeros": ((0.0, -0.0, 1.0), pa.float64()),
        "float32": ((0.1, 0.7), pa.float32()),
        "float64": ((0.1, 0.7), pa.float64()),
        "dates": (days, pa.date32()),
        "times": (instants, pa.timestamp("us", "UTC")),
        "decimals": (decimals, pa.decimal128(20, 10)),
        "booleans": ((True, False), pa.bool_()),
    }
    for data_format in ("tfrecord", "parquet", "csv"):
        for name, (values, kind) in cases.items():
            with subtests.test(data_format=data_format, label=name):
                labels = [values[row % 7 % len(values)] for row in range(ROWS)]
                arrow = pa.array(labels, kind)
                dataset = dataset_of(empty_store, arrow, data_format=data_format)
                # In Python, equal values are one key: 0.0 and -0.0.
                rows = Counter(labels)
                weights = {value: ROWS / (len(rows) * count) for value, count in rows.items()}
                for request in ("balanced", dataset.class_weights, weights):
                    reader = dataset.reader(
                        "train", global_batch_size=ROWS, class_weights=request, shuffle=False
                    )
                    (batch,) = reader.batches()
                    expected = [weights[labels[int(x)]] for x in batch["x"]]
                    np.testing.assert_allclose(batch["sample_weight"], expected, rtol=1e-6)
                # The hint of a missing class works when it is pasted.
                value, weight = next(iter(dataset.class_weights.items()))
                reader = dataset.reader(
                    "train", global_batch_size=ROWS, class_weights={value: weight}
                )
                with pytest.raises(ReaderConfigError, match="has no class weight") as refused:
                    list(reader.batches())
                hinted = ast.literal_eval(
                    str(refused.value.hint).removeprefix("class_weights=").rsplit(", with", 1)[0]
                )
                assert set(hinted) <= set(dataset.class_weights)
                assert len(hinted) == 2


def test_missing_labels_have_weight_zero_in_readers(
    empty_store: FeatureStore, subtests: Any
) -> None:
    labels = [None if row % 4 == 0 else f"c{row % 3}" for row in range(ROWS)]
    weights = np.linspace(0.5, 2.0, ROWS).astype(np.float32)
    chains: dict[str, Any] = {"none": {}, "vocabulary": {"transformations": {"y": t.vocabulary()}}}
    for data_format in ("tfrecord", "parquet", "csv"):
        for chain, arguments in chains.items():
            for weight in (None, "w"):
                with subtests.test(data_format=data_format, chain=chain, weight=weight):
                    dataset = dataset_of(
                        empty_store,
                        pa.array(labels),
                        data_format=data_format,
                        weight=weight,
                        missing_labels="weight_zero",
                        **arguments,
                    )
                    assert dataset.manifest.missing_labels == MissingLabels("weight_zero", 10)
                    reader = dataset.reader("train", global_batch_size=16, remainder="pad")
                    again, _, _ = dataset.resume(reader.state(0, 0))
                    assert again.columns == reader.columns
                    read_rows: list[int] = []
                    for step, batch in enumerate(reader.batches()):
                        assert set(batch) == {"x", "y", weight or "sample_weight"}
                        real = reader.rows(0, step) >= 0
                        for x, value in zip(
                            batch["x"][real], batch[weight or "sample_weight"][real], strict=True
                        ):
                            row = int(x)
                            base = weights[row] if weight else 1.0
                            assert value == pytest.approx(0.0 if labels[row] is None else base)
                            read_rows.append(row)
                        assert (batch[weight or "sample_weight"][~real] == 0).all()
                    assert sorted(read_rows) == list(range(ROWS))
                    doubled = reader.weighed("balanced")
                    total = sum(
                        float(batch["sample_weight"].sum())
                        for batch in doubled.batches()
                        if not weight
                    )
                    assert weight or total == pytest.approx(30)
                    with pytest.raises(NullsInColumns, match="matrix has no weights"):
                        dataset.matrix("train")


def test_null_policies_never_apply_to_labels(empty_store: FeatureStore) -> None:
    labels = [None if row % 4 == 0 else 1 for row in range(ROWS)]
    dataset = dataset_of(empty_store, pa.array(labels), missing_labels="weight_zero")
    with pytest.raises(InvalidArgument, match="A missing label is never filled"):
        dataset.reader("train", global_batch_size=8, nulls={"y": 0})
    # A manifest of an earlier release has no policy for missing labels.
    manifest = replace(dataset.manifest, missing_labels=None)
    for nulls in ("error", "mask"):
        with pytest.raises(NullsInColumns, match="null in 10 of 40 rows"):
            open_reader(dataset.path, manifest, split="train", global_batch_size=8, nulls=nulls)


def test_class_weights_explicit_mapping_is_validated(empty_store: FeatureStore) -> None:
    dataset = dataset_of(empty_store, pa.array(of_two(0, 1)))
    for wrong, text in (
        ({0: 1.0, 1: -1.0}, "is not a valid weight"),
        ({0: 1.0, 1: float("nan")}, "is not a valid weight"),
        ("even", 'class_weights="balanced"'),
        ({"z": {0: 1.0}}, "Available: 'y'"),
        ({}, "not a mapping"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            dataset.reader("train", global_batch_size=8, class_weights=wrong)
    reader = dataset.reader("train", global_batch_size=8, class_weights={0: 1.0})
    with pytest.raises(ReaderConfigError, match="the value 1, which has no class weight"):
        list(reader.batches())


def several_labels(store: FeatureStore) -> tuple[pa.Table, Any]:
    """Return rows with three labels, one of them with nulls, and their dataset."""
    random = np.random.default_rng(7)
    frame = pa.table(
        {
            "id": range(200),
            "x": np.arange(200, dtype=np.float32),
            "a": random.choice(["cat", "dog", "emu"], 200, p=[0.7, 0.2, 0.1]),
            "b": random.random(200) < 0.2,
            "c": pa.array([None if row % 9 == 0 else row % 5 % 3 for row in range(200)]),
        }
    )
    dataset = store.create_training_dataset(
        frame,
        "several",
        label=["a", "b", "c"],
        features=["x"],
        key="id",
        splits={"train": 0.7, "test": 0.3},
        transformations={"a": t.vocabulary()},
        missing_labels="weight_zero",
        progress=False,
    )
    return frame, dataset


def test_balanced_weights_by_label_equal_scikit_learn(empty_store: FeatureStore) -> None:
    class_weight = pytest.importorskip("sklearn.utils.class_weight")
    frame, dataset = several_labels(empty_store)
    columns = {name: np.array(frame[name].to_pylist(), object) for name in ("a", "b", "c")}
    has_labels = columns["c"] != None  # noqa: E711 numpy compares each element
    training_rows = dataset.read("train")["x"].to_numpy().astype(int)
    expected = {}
    for name, values in columns.items():
        labels = values[training_rows]
        labels = labels[labels != None]  # noqa: E711
        classes = np.array(sorted(set(labels)), object)
        weights = class_weight.compute_class_weight("balanced", classes=classes, y=labels)
        expected[name] = dict(zip(classes, weights, strict=True))
    by_hand = {0: 5.0, 1: 0.5, 2: 1.0}
    requests: list[tuple[Any, dict[str, Any]]] = [
        ({"a": "balanced"}, {"a": expected["a"]}),
        ({"b": "balanced", "c": "balanced"}, {"b": expected["b"], "c": expected["c"]}),
        ({"c": by_hand, "a": "balanced"}, {"a": expected["a"], "c": by_hand}),
        (dict.fromkeys(columns, "balanced"), expected),
        ("balanced", expected),
    ]
    for request, by_label in requests:
        reader = dataset.reader(
            "train", global_batch_size=32, remainder="pad", nulls="mask", class_weights=request
        )
        again, _, _ = dataset.resume(json.loads(json.dumps(reader.state(0, 0))))
        seen: list[int] = []
        for step, (batch, resumed) in enumerate(
            zip(reader.batches(), again.batches(), strict=True)
        ):
            real = reader.rows(0, step) >= 0
            numbers = batch["x"][real].astype(int)
            weights = [
                np.prod([by_label[name][columns[name][row]] for name in by_label])
                if has_labels[row]
                else 0.0
                for row in numbers
            ]
            np.testing.assert_allclose(batch["sample_weight"][real], weights, rtol=1e-6)
            np.testing.assert_array_equal(batch["sample_weight"], resumed["sample_weight"])
            assert (batch["sample_weight"][~real] == 0).all()
            seen += numbers.tolist()
        assert sorted(seen) == sorted(training_rows)


def test_class_weights_of_several_labels_refusals_have_working_hints(
    empty_store: FeatureStore,
) -> None:
    _, dataset = several_labels(empty_store)
    requests: list[Any] = [
        {0: 1.0, 1: 2.0, 2: 3.0},
        {"z": "balanced"},
        {"a": "balanced", 0: 1.0},
        {"a": "even"},
        "even",
    ]
    for request in requests:
        with pytest.raises(InvalidArgument) as refused:
            dataset.reader("train", global_batch_size=8, nulls="mask", class_weights=request)
        weights = ast.literal_eval(str(refused.value.hint).removeprefix("class_weights="))
        dataset.reader("train", global_batch_size=8, nulls="mask", class_weights=weights)


def test_balanced_class_weights_many_label_values_raise(empty_store: FeatureStore) -> None:
    label = pa.array(np.random.default_rng(0).normal(size=ROWS))
    dataset = dataset_of(empty_store, label)
    many = pa.table({"id": range(5000), "x": np.zeros(5000), "y": np.arange(5000) / 7})
    dataset = empty_store.create_training_dataset(many, "many", label="y", key="id", progress=False)
    with pytest.raises(InvalidArgument, match="too many values to be classes"):
        dataset.reader("train", global_batch_size=8, class_weights="balanced")


@pytest.mark.parametrize(
    ("common", "late", "warns"),
    [
        ((0, 1), 2, True),
        ((1, 2), 3, True),
        ((0.0, 1.0), 2.0, True),
        (("a", "b"), "c", True),
        ((False, False), True, True),
        ((18, 61), 82, False),
        (tuple(range(19)), 19, False),
        ((date(1696, 6, 23), date(1705, 9, 11)), date(1712, 12, 30), False),
        ((0.5, 1.5), 2.5, False),
    ],
)
def test_class_only_in_other_split_warns(
    empty_store: FeatureStore, common: tuple[Any, Any], late: Any, warns: bool
) -> None:
    times = pd.date_range("2024-01-01", periods=ROWS, freq="D", tz="UTC")
    labels = [*common] * (38 // len(common)) + [late, late]
    frame = pd.DataFrame({"id": range(ROWS), "t": times, "x": 1.0, "y": labels})
    from featurestore.model.requests import TimeSplit

    edge = "2024-02-08T00:00Z"
    splits = TimeSplit("t", {"train": (None, edge), "test": (edge, None)})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        empty_store.create_training_dataset(
            frame, "late", label="y", key="id", splits=splits, progress=False
        )
    messages = [str(warning.message) for warning in caught]
    assert any("classes in split 'test'" in message for message in messages) == warns, messages


def test_nan_labels_warn(empty_store: FeatureStore) -> None:
    label = of_two(0.0, 1.0)
    label[3] = float("nan")
    with pytest.warns(DataWarning, match="is NaN in 1 rows"):
        dataset = dataset_of(empty_store, pa.array(label))
    assert set(dataset.class_weights) == {0.0, 1.0}


@pytest.mark.tensorflow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_fit_applies_class_weights_for_all_label_kinds(
    empty_store: FeatureStore, tmp_path: Path, case: str, library: str
) -> None:
    pytest.importorskip("tensorflow")
    keras = pytest.importorskip(library)
    label, arguments, classes = CASES[case]
    dataset = dataset_of(empty_store, label, **arguments)
    inputs = keras.Input((), name="x")
    constant = keras.layers.Dense(1, kernel_initializer="zeros", bias_initializer="ones")
    model = keras.Model({"x": inputs}, constant(keras.layers.Reshape((1,))(inputs)))
    model.compile(keras.optimizers.SGD(0.0), loss="mse")
    losses = []
    for number, argument in enumerate(("class_weights", "class_weight", "reader")):
        weights = {"class_weights": "balanced"} if argument == "reader" else {}
        options = {} if argument == "reader" else {argument: dataset.class_weights}
        reader = dataset.reader("train", global_batch_size=16, remainder="pad", **weights)
        checkpoint = reader.checkpoint(tmp_path / str(number), objects={})
        losses.append(checkpoint.fit(model, 1, verbose=0, **options).history["loss"][0])
    errors = [BALANCED[index] * (1 - value) ** 2 for index, value in enumerate(classes)]
    expected = (errors[0] * (ROWS - RARE) + errors[1] * RARE) / ROWS
    assert losses == pytest.approx([expected] * 3, rel=1e-5)


@pytest.mark.tensorflow
@pytest.mark.parametrize("case", CASES)
def test_tf_dataset_yields_class_weights_as_sample_weights(
    empty_store: FeatureStore, case: str
) -> None:
    label, arguments, classes = CASES[case]
    dataset = dataset_of(empty_store, label, **arguments)
    by_hand = dict(zip(classes, (1.0, 3.0), strict=True))
    reader = dataset.reader("train", global_batch_size=16, remainder="pad", class_weights=by_hand)
    total = sum(float(weight.numpy().sum()) for _, _, weight in reader.tf_dataset())
    assert total == ROWS - RARE + 3 * RARE
