"""Transformations are fitted on one split, stored, restored and validated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featurestore
import featurestore_schemas
from featurestore import transform as t
from featurestore.errors import (
    DatasetDamaged,
    FeatureNotFound,
    InvalidArgument,
    InvalidSplit,
    NullsInColumns,
    TransformationNotKnown,
)
from featurestore.recovery.rebuild import rebuild
from featurestore.store import FeatureStore
from featurestore.testing.transform_conformance import fit_chains
from featurestore.training import TrainingDataset
from featurestore.transform.fitted import Transformations
from featurestore.transform.rules import functions

ROWS = 3000
TRANSFORMATIONS = {
    "x": t.standardize(),
    "z": t.impute("median") | t.log1p() | t.min_max(),
    "hour": t.cyclical(24),
    "word": t.vocabulary(max_size=4, unknown=2),
    "count": t.quantile_bins(5) | t.one_hot(),
}
SPLITS = {"train": 0.6, "test": 0.4}


def rows(change: np.ndarray[Any, Any] | None = None) -> pa.Table:
    """Return rows; every value in the ``change`` columns is different."""
    random = np.random.default_rng(11)
    x, z = random.normal(3, 2, ROWS), random.gamma(2.0, size=ROWS)
    hour, count = random.integers(0, 24, ROWS), random.integers(0, 50, ROWS)
    word = random.choice(["a", "b", "c", "d", "e", "f g"], ROWS).astype(object)
    if change is not None:
        x[change], z[change], count[change], word[change] = 1e6, 1e5, 10_000, "elsewhere"
    return pa.table(
        {
            "id": np.arange(ROWS),
            "x": x,
            "z": pa.array(z, mask=random.random(ROWS) < 0.1),
            "hour": hour,
            "word": pa.array(word, pa.string()),
            "count": count,
            "label": random.integers(0, 2, ROWS),
        }
    )


def make(store: FeatureStore, data: Any, name: str = "made", **options: Any) -> TrainingDataset:
    options = {"transformations": TRANSFORMATIONS, "splits": SPLITS, **options}
    return store.create_training_dataset(
        data, name, label="label", key="id", progress=False, **options
    )


def fitted_of(dataset: TrainingDataset) -> Transformations:
    result = dataset.transformations
    assert result is not None
    return result


def test_fit_is_independent_of_other_splits(empty_store: FeatureStore) -> None:
    first = make(empty_store, rows())
    train = first.read("train").to_arrow().column("id").to_numpy()
    other_rows = np.setdiff1d(np.arange(ROWS), train)
    second = make(empty_store, rows(other_rows), "changed")
    assert second.read("test").to_arrow().column("x").to_pylist().count(1e6) == len(other_rows)
    assert fitted_of(second).columns == fitted_of(first).columns
    third = make(empty_store, rows(train[:5]), "other_train")
    assert fitted_of(third).columns != fitted_of(first).columns


@pytest.mark.parametrize("data_format", ["tfrecord", "parquet"])
def test_fit_from_statistics_export_and_files_agree(
    empty_store: FeatureStore, data_format: str
) -> None:
    with_statistics = make(empty_store, rows(), data_format=data_format)
    passed = make(empty_store, rows(), "passed", data_format=data_format, statistics=False)
    later = make(empty_store, rows(), "later", data_format=data_format, transformations=None)
    assert later.transformations is None
    if data_format == "parquet":
        # Statistics are of values before a format rounds them, which TFRecord does.
        assert fitted_of(passed).columns == fitted_of(with_statistics).columns
    assert later.fit(TRANSFORMATIONS).columns == fitted_of(with_statistics).columns


@pytest.mark.parametrize("length", [119, 120, 121, 256])
def test_fit_long_strings_from_statistics_equals_fit_from_rows(
    empty_store: FeatureStore, length: int
) -> None:
    words = ["é" * (length - 1) + end for end in "ab"] + ["…"]
    data = pa.table(
        {"id": range(90), "word": words * 30, "same": words * 30, "label": [0, 1, 0] * 30}
    )
    chains = {"word": t.vocabulary(), "same": t.one_hot()}
    datasets = []
    for statistics in (True, False):
        datasets.append(
            make(
                empty_store,
                data,
                f"words_{statistics}".lower(),
                transformations=chains,
                data_format="parquet",
                statistics=statistics,
            )
        )
    assert fitted_of(datasets[0]).columns == fitted_of(datasets[1]).columns
    codes = datasets[0].reader("train", global_batch_size=8, remainder="keep", columns=["word"])
    for batch in codes.batches():
        assert batch["word"].min() > 1  # 0 is missing, 1 is unknown


def test_engines_fit_equal_transformations(spark: Any, tmp_path: Path) -> None:
    datasets = []
    for engine in ("duckdb", "spark"):
        with featurestore.connect(tmp_path / engine, engine=engine) as store:
            datasets.append(make(store, rows(), shards=2))
    assert fitted_of(datasets[0]).to_bytes() == fitted_of(datasets[1]).to_bytes()
    assert datasets[0].manifest.content_hash == datasets[1].manifest.content_hash


def test_transformations_do_not_change_dataset_files(empty_store: FeatureStore) -> None:
    with_some = make(empty_store, rows())
    without = make(empty_store, rows(), transformations=None)
    assert with_some.manifest.content_hash == without.manifest.content_hash
    raw = with_some.reader("train", global_batch_size=64, transformed=False, nulls="mask")
    plain = without.reader("train", global_batch_size=64, nulls="mask")
    for batch, expected_batch in zip(raw.batches(), plain.batches(), strict=True):
        assert all(np.array_equal(batch[name], expected_batch[name]) for name in expected_batch)


@pytest.mark.parametrize("data_format", ["tfrecord", "parquet", "csv"])
def test_reader_equals_transformed_frame_and_arrays(
    empty_store: FeatureStore, data_format: str
) -> None:
    dataset = make(empty_store, rows(), data_format=data_format)
    frame = empty_store.transform(rows(), dataset).to_arrow()
    table = frame.take(np.argsort(frame.column("id").to_numpy()))
    reader = dataset.reader(
        "test", global_batch_size=64, remainder="keep", columns=[*TRANSFORMATIONS, "id"]
    )
    checked = 0
    for batch in reader.batches():
        expected = table.take(batch["id"])
        for name in TRANSFORMATIONS:
            column = expected.column(name).combine_chunks()
            while pa.types.is_fixed_size_list(column.type):
                column = column.flatten()
            values = column.to_numpy(zero_copy_only=False).reshape(batch[name].shape)
            np.testing.assert_array_equal(batch[name], values)
        checked += len(batch["id"])
    assert checked == dataset.num_rows("test")


def test_reader_state_resumes_with_same_transformations(empty_store: FeatureStore) -> None:
    dataset = make(empty_store, rows(), transformations=None)
    fitted = dataset.fit({"z": t.impute(0) | t.standardize(), "x": t.bins([1, 2])})
    reader = dataset.reader("train", global_batch_size=64, transformed=fitted)
    state = json.loads(json.dumps(reader.state(epoch=2, step=3)))
    again, epoch, step = TrainingDataset.open(dataset.path).resume(state)
    expected = list(reader.batches(2))[3:]
    for batch, expected_batch in zip(again.batches(epoch, start_step=step), expected, strict=True):
        assert all(np.array_equal(batch[name], expected_batch[name]) for name in expected_batch)
    (Path(dataset.path) / fitted.path).unlink()
    with pytest.raises(DatasetDamaged, match="SHA-256 of the transformations file"):
        dataset.resume(state)


def test_dataset_keeps_several_transformation_sets(empty_store: FeatureStore) -> None:
    dataset = make(empty_store, rows())
    manifest = (Path(dataset.path) / "manifest.json").read_bytes()
    sets = [
        fitted_of(dataset),
        dataset.fit({"x": t.bins([1, 5]), "word": t.hash_bucket(10)}),
        dataset.fit({"x": t.min_max(), "word": t.one_hot()}),
        dataset.fit({"x": t.min_max(), "word": t.one_hot()}, fit_on="test"),
    ]
    assert dataset.fit({"x": t.min_max(), "word": t.one_hot()}).path == sets[2].path
    assert len({fitted.path for fitted in sets}) == len(sets)
    assert sets[3]["x"].chain != sets[2]["x"].chain
    again = TrainingDataset.open(dataset.path)
    assert again.transformations == sets[0]
    assert (Path(dataset.path) / "manifest.json").read_bytes() == manifest
    assert again.verify().ok
    arguments: dict[str, Any] = {"global_batch_size": 64, "seed": 5, "nulls": "mask"}
    raw = again.reader("train", **arguments, transformed=False).batches()
    readers = [again.reader("train", **arguments, transformed=fitted).batches() for fitted in sets]
    steps = 0
    for batch, *results in zip(raw, *readers, strict=True):
        for fitted, result in zip(sets, results, strict=True):
            expected = fitted.apply(batch)
            for name in ("x", "word"):
                np.testing.assert_array_equal(result[name], expected[name])
        steps += 1
    assert steps > 5


def test_verify_changed_transformations_reports_damage(empty_store: FeatureStore) -> None:
    dataset = make(empty_store, rows())
    later = dataset.fit({"x": t.robust()})
    assert dataset.verify().ok
    for fitted in (fitted_of(dataset), later):
        file = Path(dataset.path) / fitted.path
        content = file.read_bytes()
        file.write_bytes(content.replace(b"train", b"tr4in"))
        report = dataset.verify()
        assert [problem.file for problem in report.problems] == [fitted.path]
        file.write_bytes(content)
    (Path(dataset.path) / fitted_of(dataset).path).unlink()
    assert "is missing" in str(dataset.verify())
    with pytest.raises(DatasetDamaged, match="transformations"):
        dataset.reader("train", global_batch_size=64)


def test_transformations_file_matches_schema(empty_store: FeatureStore) -> None:
    dataset = make(empty_store, rows())
    folder = Path(featurestore_schemas.__path__[0])
    for name, path in (
        ("transformations", Path(dataset.path) / fitted_of(dataset).path),
        ("manifest", Path(dataset.path) / "manifest.json"),
    ):
        schema = json.loads((folder / f"{name}.schema.json").read_text())
        jsonschema.validate(json.loads(path.read_text()), schema)


def test_copied_store_keeps_transformations(tmp_path: Path) -> None:
    with featurestore.connect(tmp_path / "here") as store:
        expected = fitted_of(make(store, rows()))
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    (tmp_path / "there" / "registry.db").unlink(missing_ok=True)
    rebuild(str(tmp_path / "there"))
    with featurestore.connect(tmp_path / "there") as store:
        path = tmp_path / "there" / "trainingdatasets" / "made" / "v1"
        assert fitted_of(TrainingDataset.open(path)) == expected
        assert store.transform(rows(), TrainingDataset.open(path)).count() == ROWS


NUMBERS = pa.table({"x": pa.array([1.0, 2.0, 4.0, None, float("nan")])})
STRANGE = np.array([np.nan, np.inf, -np.inf, 7.0])
TEXTS = pa.table({"s": pa.array(["b", "a", "b", None, ""])})


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (t.standardize() | t.clip(-5, 5), [np.nan, 5, -5, 3.7416575]),
        (t.log1p(), [np.nan, np.inf, np.nan, 2.0794415]),
        (t.cyclical(28), [[np.nan, np.nan], [np.nan, np.nan], [np.nan, np.nan], [1, 0]]),
        (t.impute("mean") | t.min_max(), [4 / 9, np.inf, -np.inf, 2]),
        (t.bins([1, 7]), [0, 3, 1, 3]),
        (t.quantile_bins(2), [0, 2, 1, 2]),
        (t.bins([2]) | t.one_hot(), [[0, 0], [0, 1], [1, 0], [0, 1]]),
        (t.cast("int32"), [0, 2**31 - 1, -(2**31), 7]),
    ],
)
def test_missing_and_infinite_numbers_are_transformed(chain: Any, expected: Any) -> None:
    actual = fit_chains(NUMBERS, {"x": chain}).apply({"x": STRANGE})["x"]
    np.testing.assert_allclose(actual, np.array(expected), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (t.vocabulary(), [2, 4, 3, 0, 1]),
        (t.vocabulary(unknown=0), [1, 3, 2, 0, 0]),
        (t.vocabulary(max_size=1, unknown=1), [2, 1, 1, 0, 1]),
        (t.one_hot(), [[0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]]),
        (t.impute("b") | t.vocabulary(), [2, 4, 3, 2, 1]),
        (t.text_tokens(2), [[2, 0], [3, 0], [0, 0], [0, 0], [1, 0]]),
    ],
)
def test_missing_and_unseen_texts_are_transformed(chain: Any, expected: Any) -> None:
    actual = fit_chains(TEXTS, {"s": chain}).apply({"s": ["b", "a", "", None, "new"]})["s"]
    assert actual.tolist() == expected


def test_reader_remaining_nulls_need_policy(empty_store: FeatureStore) -> None:
    dataset = make(empty_store, rows(), transformations={"z": t.standardize()})
    with pytest.raises(NullsInColumns, match="z"):
        dataset.reader("train", global_batch_size=64)
    reader = dataset.reader("train", global_batch_size=64, nulls="mask", remainder="pad")
    for batch in reader.batches():
        assert not np.isnan(batch["z"]).any()
        assert (batch["z"][~batch["z_present"]] == 0).all()


def test_fit_on_empty_column_publishes_nothing(empty_store: FeatureStore) -> None:
    data = rows().append_column("empty", pa.nulls(ROWS, pa.float64()))
    with pytest.raises(InvalidArgument, match=r"Column 'empty'.*cannot be fitted"):
        make(empty_store, data, transformations={"empty": t.standardize()})
    assert empty_store.get_training_datasets() == []


@pytest.mark.parametrize(
    ("transformations", "error", "words"),
    [
        ({"xx": t.standardize()}, FeatureNotFound, "'xx'"),
        ({"x": "standardize"}, InvalidArgument, "not a transformation"),
        ({"word": t.standardize()}, InvalidArgument, "vocabulary"),
        ({"x": t.vocabulary()}, InvalidArgument, "cast"),
        ({"id": t.standardize()}, InvalidArgument, r"id \(key\)"),
        ({"word": t.impute("none")}, InvalidArgument, "ends with strings"),
        ([t.standardize()], InvalidArgument, "not a mapping"),
    ],
)
def test_invalid_transformations_raise_before_writing(
    empty_store: FeatureStore, transformations: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make(empty_store, rows(), transformations=transformations)
    assert not (Path(empty_store.location) / "trainingdatasets" / "made").exists()


def test_fit_on_unknown_split_lists_available(empty_store: FeatureStore) -> None:
    with pytest.raises(InvalidSplit, match=r"'train', 'test'"):
        make(empty_store, rows(), fit_on="training")


def test_reader_transformations_of_another_dataset_raise(empty_store: FeatureStore) -> None:
    dataset, second_dataset = make(empty_store, rows()), make(empty_store, rows(), "other")
    with pytest.raises(InvalidArgument, match="fitted on 'made' version 1"):
        second_dataset.reader("train", global_batch_size=64, transformed=fitted_of(dataset))


def above(values: Any, limit: float) -> Any:
    return np.stack([values > limit, values], axis=1)


def average(values: Any, counts: Any) -> float:
    return float((values * counts).sum() / counts.sum())


def test_function_is_identified_by_source_hash(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = {"x": t.function(above, fitted=average)}
    dataset = make(empty_store, rows(), transformations=request)
    batch = next(dataset.reader("train", global_batch_size=64, columns=["x"]).batches())
    assert batch["x"].shape == (64, 2)
    step = fitted_of(dataset)["x"].chain.steps[0]
    assert step.options["source"] == functions.hash_source(above)
    monkeypatch.setattr(functions, "_REGISTERED", {})
    with pytest.raises(TransformationNotKnown, match="above"):
        next(dataset.reader("train", global_batch_size=64, columns=["x"]).batches())
    t.function(above, fitted=average)
    again = next(dataset.reader("train", global_batch_size=64, columns=["x"]).batches())
    assert np.array_equal(again["x"], batch["x"])


@settings(max_examples=30)
@given(
    st.lists(
        st.floats(allow_nan=True, allow_infinity=True, width=32) | st.none(),
        min_size=1,
        max_size=40,
    ).filter(lambda values: any(v is not None and np.isfinite(v) for v in values)),
    st.integers(1, 8),
    st.randoms(use_true_random=False),
)
def test_fit_is_independent_of_order_and_batches(
    values: list[float | None], size: int, random: Any
) -> None:
    request = {"x": t.impute("median") | t.standardize() | t.quantile_bins(3)}
    shuffled = list(values)
    random.shuffle(shuffled)
    batches = [shuffled[start : start + size] for start in range(0, len(shuffled), size)]
    chunks = [pa.table({"x": pa.array(batch, pa.float64())}) for batch in batches]
    expected = fit_chains(pa.table({"x": pa.array(values, pa.float64())}), request)
    assert fit_chains(pa.concat_tables(chunks), request).columns == expected.columns


def test_transformations_from_damaged_bytes_raises(empty_store: FeatureStore) -> None:
    content = fitted_of(make(empty_store, rows())).to_bytes()
    random = np.random.default_rng(0)
    for position in random.integers(0, len(content), 200).tolist():
        damaged = bytearray(content)
        damaged[position] ^= 1 << int(random.integers(0, 8))
        with pytest.raises(DatasetDamaged):
            Transformations.from_bytes(bytes(damaged), path="t.json")


def test_transformations_with_wrong_fitted_type_raises() -> None:
    from featurestore.errors import DatasetDamaged
    from featurestore.model.json_object import seal
    from featurestore.transform.fitted import Transformations

    step = {"rule": "impute", "options": {"value": "median"}, "fitted": {"value": 1.5}}
    column = {"name": "x", "type": "double", "narrow": False, "steps": [step]}
    column["output"] = {"dtype": "float32", "shape": []}
    data = {"format": 1, "dataset": "d", "version": 1, "fit_on": "train", "rows": 1}
    good = seal({**data, "columns": [column]})
    assert Transformations.from_bytes(good, path="t.json")["x"].input_form.value_type == "number"
    for wrong in ("a text", 2**70):
        step["fitted"] = {"value": wrong}
        with pytest.raises(DatasetDamaged):
            Transformations.from_bytes(seal({**data, "columns": [column]}), path="t.json")
