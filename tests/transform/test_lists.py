"""Variable-length lists become codes and numbers of fixed length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featurestore
from featurestore import transform as t
from featurestore.errors import FeatureNotFound, InvalidArgument, UnsupportedType
from featurestore.store import FeatureStore
from featurestore.transform.apply import to_lists
from featurestore.transform.ops import pad_rows

ROWS = 240
CHAINS = {
    "words": t.pad(3) | t.vocabulary(max_size=4),
    "numbers": t.pad(2, keep="last") | t.clip(high=3),
    "ids": t.pad(3) | t.hash_bucket(10),
    "whole": t.pad(4),
}


def lists(rows: int) -> pa.Table:
    random = np.random.default_rng(0)
    words: list[list[str] | None] = []
    for row in range(rows):
        result = [f"w{item}" for item in random.integers(0, 6, int(random.integers(0, 6)))]
        words.append(None if row % 11 == 0 else result)
    return pa.table(
        {
            "id": range(rows),
            "y": [row % 2 for row in range(rows)],
            "words": pa.array(words, pa.list_(pa.string())),
            "numbers": pa.array(
                [[float(item) for item in range(row % 5)] for row in range(rows)],
                pa.list_(pa.float64()),
            ),
            "ids": pa.array([list(range(row % 4)) for row in range(rows)], pa.list_(pa.int64())),
            "whole": pa.array(
                [[row] * (row % 3) for row in range(rows)], pa.large_list(pa.int32())
            ),
        }
    )


# Layouts of lists: records with an index, fixed-width records, row groups.
WAYS: dict[str, dict[str, Any]] = {
    "variable": {},
    "fixed": {"max_lengths": {"words": 5, "numbers": 9, "ids": 3, "whole": 2}},
    "parquet": {"data_format": "parquet"},
}


@pytest.fixture(params=WAYS)
def dataset(request: pytest.FixtureRequest, empty_store: FeatureStore) -> Any:
    return empty_store.create_training_dataset(
        lists(ROWS),
        "lists",
        label="y",
        key="id",
        **WAYS[request.param],
        splits={"train": 0.8, "test": 0.2},
        progress=False,
        transformations=CHAINS,
    )


@given(st.lists(st.lists(st.integers(-9, 9), max_size=6)), st.integers(1, 7), st.booleans())
def test_padded_rows_keeps_first_or_last_items(
    rows: list[list[int]], length: int, first: bool
) -> None:
    cells = np.empty(len(rows), dtype=object)
    for number, row in enumerate(rows):
        cells[number] = np.array(row, dtype=np.int64)
    padded_rows, mask = pad_rows(to_lists(cells, "whole"), length, last=not first)
    for row, items, flags in zip(rows, padded_rows.tolist(), mask.tolist(), strict=True):
        expected = row[:length] if first else row[-length:]
        assert items == expected + [0] * (length - len(expected))
        assert flags == [True] * len(expected) + [False] * (length - len(expected))


def test_max_lengths_keep_fixed_records_and_lists(
    dataset: Any,
) -> None:
    layout = dataset.manifest.layout
    declared = dataset.manifest.max_lengths
    assert layout.get("kind") != "fixed" or layout["version"] == 3
    assert bool(declared) == (layout.get("kind") == "fixed")
    assert dataset.verify().ok
    table = pa.concat_tables([dataset.read(split).to_arrow() for split in dataset.splits])
    rows = {row["id"]: row for row in table.to_pylist()}
    assert [rows[number] for number in range(ROWS)] == lists(ROWS).to_pylist()


def test_values_over_max_lengths_are_refused_before_writing(
    empty_store: FeatureStore,
) -> None:
    def make(lengths: Any) -> None:
        empty_store.create_training_dataset(
            lists(ROWS), "lists", label="y", data_format="parquet", max_lengths=lengths
        )

    with pytest.raises(InvalidArgument, match=r"'words' \(5, declared 4\)") as refused:
        make({"words": 4, "ids": 9})
    assert "max_lengths={'words': 5, 'ids': 9}" in str(refused.value)
    for lengths, words in (
        (["words"], "not a mapping"),
        ({"y": 3}, "have a fixed length"),
        ({"words": 0}, "not a positive integer"),
        ({"words": True}, "not a positive integer"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            make(lengths)
    with pytest.raises(FeatureNotFound, match="'wrods'"):
        make({"wrods": 4})
    assert empty_store.get_training_datasets() == []


def test_reader_lists_are_padded_to_length(dataset: Any) -> None:
    stored_rows = lists(ROWS).to_pylist()
    vocabulary = list(dataset.transformations["words"].chain.steps[1].fitted["values"])
    reader = dataset.reader(
        "train", global_batch_size=50, columns=["id", *CHAINS], remainder="pad", seed=3
    )
    ids = []
    for batch in reader.batches():
        real = batch["sample_weight"] > 0
        ids += batch["id"][real].tolist()
        for name in CHAINS:
            assert not batch[name][~real].any()
        for index in np.flatnonzero(real):
            row = stored_rows[batch["id"][index]]
            codes = [
                2 + vocabulary.index(word) if word in vocabulary else 1
                for word in row["words"] or []
            ]
            assert batch["words"][index].tolist() == (codes + [0] * 3)[:3]
            last = [min(number, 3.0) for number in row["numbers"][-2:]]
            assert batch["numbers"][index].tolist() == (last + [0.0] * 2)[:2]
            assert ((batch["ids"][index] > 0) == (np.arange(3) < len(row["ids"]))).all()
            assert batch["whole"][index].tolist() == (row["whole"] + [0] * 4)[:4]
    assert len(ids) == len(set(ids)) == dataset.num_rows("train")


def test_list_transformations_agree_across_interfaces(dataset: Any, tmp_path: Path) -> None:
    rows = lists(ROWS)
    with featurestore.connect(tmp_path / "store") as store:
        scored = store.transform(rows, dataset).to_arrow()
    by_array = dataset.transformations.apply({name: rows[name].to_pylist() for name in CHAINS})
    batch = next(dataset.reader("test", global_batch_size=8, columns=["id", *CHAINS]).batches())
    for name in CHAINS:
        assert scored[name].to_pylist() == by_array[name].tolist()
        for index, row in enumerate(batch["id"].tolist()):
            assert batch[name][index].tolist() == by_array[name][row].tolist()


@pytest.mark.tensorflow
def test_tf_dataset_lists_have_static_shapes(dataset: Any) -> None:
    reader = dataset.reader("train", global_batch_size=20)
    for (features, _), batch in zip(reader.tf_dataset(), reader.batches(), strict=True):
        assert features["words"].shape == (20, 3)
        for name in CHAINS:
            assert (features[name].numpy() == batch[name]).all()


@pytest.mark.parametrize("remainder", ["drop", "keep", "pad"])
def test_reader_selected_lists_are_values_and_row_splits(dataset: Any, remainder: str) -> None:
    stored_rows = lists(ROWS).to_pylist()
    raw: dict[str, Any] = {
        "transformed": False,
        "nulls": "mask",
        "remainder": remainder,
        "columns": ["id", *CHAINS],
    }
    reader = dataset.reader("train", global_batch_size=50, **raw)
    transformed = dataset.reader("train", **{**raw, "transformed": True}, global_batch_size=50)
    rows = 0
    for batch, expected in zip(reader.batches(), transformed.batches(), strict=True):
        real = batch.get("sample_weight", np.ones(len(batch["id"]))) > 0
        rows += int(real.sum())
        for name in CHAINS:
            values, splits = batch[name]
            assert splits.dtype == np.int64
            assert splits[-1] == len(values)
            cells = np.split(values, splits[1:-1])
            for index in np.flatnonzero(real):
                expected_value = stored_rows[batch["id"][index]][name] or []
                arguments = (
                    [word.decode() for word in cells[index]] if name == "words" else cells[index]
                )
                assert list(arguments) == expected_value
            assert all(not len(cells[index]) for index in np.flatnonzero(~real))
        prepared = dataset.preprocessor()(batch)
        for name in CHAINS:
            assert (prepared[name][real] == expected[name][real]).all()
    assert rows == (dataset.num_rows("train") if remainder != "drop" else 150)
    with pytest.raises(InvalidArgument, match="cannot be filled"):
        dataset.reader("train", global_batch_size=8, **{**raw, "nulls": {"words": "x"}})


@pytest.mark.tensorflow
@pytest.mark.parametrize("framework", ["keras", "tf_keras"])
@pytest.mark.parametrize("dataset", ["fixed"], indirect=True)
def test_saved_preprocessor_accepts_ragged_tensors(
    dataset: Any, framework: str, tmp_path: Path
) -> None:
    keras = pytest.importorskip(framework)
    tf = pytest.importorskip("tensorflow")
    options: dict[str, Any] = {"columns": [*CHAINS, "y"], "nulls": "mask"}
    reader = dataset.reader("train", global_batch_size=20, transformed=False, **options)
    by_numpy = reader.batches()
    inputs = dataset.keras_inputs(transformed=False, framework=framework, **options)
    prepared = dataset.preprocessor(framework)(inputs)
    model = keras.Model(inputs, {name: prepared[name] for name in CHAINS})
    model.save(tmp_path / "model.keras")
    specs = {}
    for name, spec in reader.tf_dataset().element_spec[0].items():
        specs[name] = tf.TensorSpec((None, *spec.shape[1:]), spec.dtype)
        if isinstance(spec, tf.RaggedTensorSpec):
            specs[name] = tf.RaggedTensorSpec((None, None), spec.dtype, ragged_rank=1)
    module = tf.Module()
    module.model = model
    module.serve = tf.function(lambda features: model(features), input_signature=[specs])
    tf.saved_model.save(module, str(tmp_path / "served"))
    served = tf.saved_model.load(str(tmp_path / "served")).serve
    again = keras.models.load_model(tmp_path / "model.keras")
    expected = dataset.reader("train", global_batch_size=20, columns=[*CHAINS, "y"]).batches()
    for (features, _), batch, expected_value in zip(
        reader.tf_dataset(), by_numpy, expected, strict=True
    ):
        assert (features["ids"].values.numpy() == batch["ids"].values).all()
        for actual in (served(features), again(features)):
            for name in CHAINS:
                np.testing.assert_array_equal(actual[name].numpy(), expected_value[name])


def test_reader_lists_without_length_raise_with_hint(dataset: Any) -> None:
    with pytest.raises(UnsupportedType, match=r"t\.pad") as refused:
        dataset.reader("train", global_batch_size=8, transformed=False)
    assert "'words'" in str(refused.value)
    assert "reads lists as values and row splits" in str(refused.value)
    for chains, words in (
        ({"words": t.vocabulary()}, "not variable-length lists"),
        ({"words": t.pad(3)}, "ends with strings"),
        ({"y": t.pad(3)}, r"pad\(\) accepts variable-length lists"),
        ({"numbers": t.pad(3) | t.pad(2)}, r"pad\(\) accepts variable-length lists"),
        ({"words": t.standardize()}, r"t\.pad"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            dataset.fit(chains)
    with pytest.raises(InvalidArgument, match="keep="):
        t.pad(3, keep="middle")


def test_to_numpy_nulls_inside_lists_raise(tmp_path: Path) -> None:
    from featurestore.errors import NullsInColumns
    from featurestore.readers.columns import to_numpy

    with pytest.raises(NullsInColumns, match="'words' contain nulls"):
        to_numpy(pa.array([["a", None]], pa.list_(pa.string())), name="words")
    values, present = to_numpy(pa.array([None, [1, 2], []], pa.list_(pa.int64())), name="x")
    assert [cell.tolist() for cell in values] == [[], [1, 2], []]
    assert present is not None
    sliced, _ = to_numpy(pa.array([[9], [1, 2], [3]], pa.list_(pa.int64())).slice(1), name="x")
    assert [cell.tolist() for cell in sliced] == [[1, 2], [3]]
