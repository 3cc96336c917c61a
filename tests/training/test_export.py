"""Training datasets on each engine.

What was asked for is in the files, once, in the stated order and splits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow as pa
import pytest

import featurestore
import featurestore_schemas
from featurestore import FeatureStore
from featurestore.errors import (
    DatasetDamaged,
    InvalidArgument,
    InvalidName,
    InvalidSplit,
    TrainingDatasetExists,
    TrainingDatasetNotFound,
    UnsupportedType,
)
from featurestore.hashing import canonical_bytes, row_hash
from featurestore.model.manifest import MissingLabels
from featurestore.model.requests import TimeSplit, TrainingRequest
from featurestore.training.dataset import TrainingDataset
from featurestore.training.export.hashed_rows import HashedRows, hash_rows
from featurestore.training.export.request import check_request
from featurestore.training.export.shard_plan import plan_shards
from featurestore.training.export.shards import write_shards

START = datetime(2024, 1, 1, tzinfo=UTC)  # of the example
Example = Callable[..., pa.Table]


def rows_of(dataset: TrainingDataset, split: str) -> list[dict[str, object]]:
    return dataset.read(split).to_arrow().to_pylist()


def every_row(dataset: TrainingDataset) -> list[dict[str, object]]:
    return [row for split in dataset.splits for row in rows_of(dataset, split)]


def as_set(rows: list[dict[str, object]]) -> set[str]:
    return {json.dumps(row, default=str, sort_keys=True) for row in rows}


@pytest.mark.parametrize("data_format", ["tfrecord", "parquet", "petastorm", "csv"])
def test_export_writes_equal_shards_in_hash_order(
    empty_store: FeatureStore, data_format: str, example: Example
) -> None:
    table = example()
    dataset = empty_store.create_training_dataset(
        table,
        "all",
        data_format=data_format,
        splits={"train": 0.7, "test": 0.3},
        key=["user", "at"],
        shards=3,
        label="label",
    )
    actual = every_row(dataset)
    assert len(actual) == table.num_rows
    assert as_set(actual) == as_set(table.to_pylist())
    for split in dataset.manifest.splits:
        sizes = [shard.rows for shard in split.shards]
        assert max(sizes) - min(sizes) <= 1
        rows = dataset.read(split.name).to_arrow()
        hashes = row_hash(rows, columns=["user", "at"], seed=0)
        assert (hashes[1:] >= hashes[:-1]).all()
    assert dataset.verify().ok, str(dataset.verify())


def test_export_same_rows_give_same_bytes_in_any_batches(
    empty_store: FeatureStore, tmp_path: Path, example: Example
) -> None:
    table = example(3000)
    first = empty_store.create_training_dataset(
        table, "one", splits={"train": 0.8, "test": 0.2}, key=["user", "at"], shards=4
    )
    shuffled = table.take(pa.array(np.random.default_rng(0).permutation(table.num_rows)))
    second = empty_store.create_training_dataset(
        shuffled, "two", splits={"train": 0.8, "test": 0.2}, key=["user", "at"], shards=4
    )
    assert first.manifest.content_hash == second.manifest.content_hash
    duckdb = featurestore.connect(tmp_path / "other", engine="duckdb")
    third = duckdb.create_training_dataset(
        table, "one", splits={"train": 0.8, "test": 0.2}, key=["user", "at"], shards=4
    )
    assert third.manifest.content_hash == first.manifest.content_hash
    assert [s.sha256 for p in third.manifest.splits for s in p.shards] == [
        s.sha256 for p in first.manifest.splits for s in p.shards
    ]


def test_export_added_rows_keep_splits_of_earlier_rows(
    empty_store: FeatureStore, example: Example
) -> None:
    table = example(2000)
    splits = {"train": 0.6, "validation": 0.2, "test": 0.2}
    small = empty_store.create_training_dataset(
        table.slice(0, 1000), "small", splits=splits, key=["user", "at"]
    )
    large = empty_store.create_training_dataset(table, "large", splits=splits, key=["user", "at"])
    for split in splits:
        assert as_set(rows_of(small, split)) <= as_set(rows_of(large, split))


def test_split_by_keeps_rows_of_one_user_together(
    empty_store: FeatureStore, example: Example
) -> None:
    dataset = empty_store.create_training_dataset(
        example(), "users", splits={"train": 0.5, "test": 0.5}, split_by="user", key=["user", "at"]
    )
    users = [{row["user"] for row in rows_of(dataset, split)} for split in dataset.splits]
    assert users[0]
    assert users[1]
    assert not users[0] & users[1]
    assert dataset.verify().ok


def test_stratify_is_exact_to_one_row_per_class(store: FeatureStore, example: Example) -> None:
    table = example(5000)
    dataset = store.create_training_dataset(
        table,
        "even",
        splits={"train": 0.7, "test": 0.3},
        stratify="label",
        label="label",
        key=["at"],
        shards=3,
    )
    for value in (0, 1):
        total = table.filter(pa.compute.equal(table["label"], value)).num_rows
        count = dataset.manifest.split("train").label_counts["label"][str(value)]
        assert abs(count - 0.7 * total) <= 1
    assert len(every_row(dataset)) == 5000
    assert as_set(every_row(dataset)) == as_set(table.to_pylist())
    assert dataset.verify().ok


def test_time_split_is_half_open_and_counts_excluded_rows(
    empty_store: FeatureStore, example: Example
) -> None:
    middle = START + timedelta(minutes=500)
    split = TimeSplit(
        "at", {"train": (START + timedelta(minutes=10), middle), "test": (middle, None)}
    )
    dataset = empty_store.create_training_dataset(example(), "times", splits=split, key=["at"])
    assert max(row["at"] for row in rows_of(dataset, "train")) == middle - timedelta(minutes=1)  # type: ignore[type-var]
    assert min(row["at"] for row in rows_of(dataset, "test")) == middle  # type: ignore[type-var]
    assert dataset.manifest.uncovered_rows == 10
    assert dataset.num_rows("train") == 490
    assert dataset.verify().ok


def test_rows_of_one_key_are_ordered_by_canonical_bytes(empty_store: FeatureStore) -> None:
    table = pa.table(
        {"k": pa.array([1, 1, 1, 2, 2, 3] * 50, pa.int64()), "v": pa.array(range(300), pa.int64())}
    )
    dataset = empty_store.create_training_dataset(
        table, "ties", key="k", shards=7, statistics=False
    )
    actual_table = dataset.read("train").to_arrow()
    assert sorted(actual_table["v"].to_pylist()) == list(range(300))
    texts = canonical_bytes(actual_table).to_pylist()
    hashes = row_hash(actual_table, columns=["k"], seed=0)
    pairs = list(zip(hashes.tolist(), texts, strict=True))
    assert pairs == sorted(pairs)


def test_label_counts_and_class_weights_match_rows(
    empty_store: FeatureStore, example: Example
) -> None:
    table = example()
    dataset = empty_store.create_training_dataset(table, "counted", label="label", key=["at"])
    counts = dataset.manifest.split("train").label_counts["label"]
    assert counts == {
        "0": table["label"].to_pylist().count(0),
        "1": table["label"].to_pylist().count(1),
    }
    assert dataset.manifest.split("train").label_weights["label"]["1"] == pytest.approx(
        1000 / 2 / counts["1"]
    )
    assert dataset.manifest.column("label").role == "label"
    assert dataset.manifest.split("train").nulls == {
        "n": table["n"].null_count,
        "word": table["word"].null_count,
    }


def test_label_counts_omit_non_class_labels(empty_store: FeatureStore) -> None:
    vectors = pa.array([[1.0, 2.0], [1.0, 2.0], None], pa.list_(pa.float32(), 2))
    table = pa.table(
        {
            "x": [1, 2, 3],
            "vector": vectors,
            "ragged": pa.array([[1], [], None]),
            "raw": pa.array([b"a", b"b", None]),
        }
    )
    dataset = empty_store.create_training_dataset(
        table, "d", label=["vector", "ragged", "raw"], key="x", missing_labels="weight_zero"
    )
    assert dataset.manifest.split("train").label_counts == {}
    many = pa.table({"x": pa.array(range(5000)), "price": pa.array([n / 7 for n in range(5000)])})
    dataset = empty_store.create_training_dataset(many, "many", label="price", key="x")
    assert dataset.manifest.split("train").label_counts == {}, "thousands of values are no classes"


@pytest.mark.parametrize(("values", "has_counts"), [(1000, True), (1001, False)])
def test_label_counts_cover_1000_values(
    empty_store: FeatureStore, values: int, has_counts: bool
) -> None:
    labels = [n % values / 7 for n in range(3_000)]
    table = pa.table({"x": pa.array(range(3_010)), "y": pa.array([*labels, *[None] * 10])})
    dataset = empty_store.create_training_dataset(
        table, "d", label="y", key="x", shards=1, missing_labels="weight_zero"
    )
    split = dataset.manifest.split("train")
    assert bool(split.label_counts) == has_counts
    assert split.nulls == {"y": 10}
    if has_counts:
        assert (len(split.label_counts["y"]), sum(split.label_counts["y"].values())) == (
            1000,
            3_000,
        )


def test_missing_labels_are_refused_dropped_or_weighted(
    empty_store: FeatureStore, capsys: pytest.CaptureFixture[str], subtests: Any
) -> None:
    rows = [{"id": n, "x": n / 2, "y": n % 5 or None, "order": n % 7 or None} for n in range(70)]
    empty_store.create_featuregroup(rows, "events", primary_key="id")
    table = pa.Table.from_pylist(rows)
    arguments: dict[str, Any] = {"key": "id", "splits": {"train": 0.5, "test": 0.5}}
    forms: dict[str, Any] = {
        "frame": lambda: empty_store.get_featuregroup("events"),
        "df": table.to_pandas,
        "stream": lambda: pa.RecordBatchReader.from_batches(table.schema, table.to_batches(9)),
    }
    for form, make in forms.items():
        for label, missing in (("y", 14), ("order", 10), (["y", "order"], 22)):
            for data_format in ("tfrecord", "parquet", "csv"):
                with subtests.test(form=form, label=label, data_format=data_format):
                    options = {**arguments, "label": label, "data_format": data_format}
                    before = empty_store.get_latest_training_dataset_version("d")
                    with pytest.raises(
                        InvalidArgument, match=r"is null in 1\d of 70 rows"
                    ) as refused:
                        empty_store.create_training_dataset(make(), "d", **options)
                    assert empty_store.get_latest_training_dataset_version("d") == before
                    if form == "frame" and isinstance(label, str):
                        variables = {form: make()}
                        exec(str(refused.value.hint).split(", or ")[0], variables)
                        dataset = empty_store.create_training_dataset(
                            variables[form], "d", **options
                        )
                        assert sum(map(dataset.num_rows, dataset.splits)) == 70 - missing
                    capsys.readouterr()
                    dropped = empty_store.create_training_dataset(
                        make(), "d", missing_labels="drop", **options
                    )
                    assert f"{missing} rows without label were dropped" in capsys.readouterr().out
                    assert dropped.manifest.missing_labels == MissingLabels("drop", missing)
                    ids = [
                        n
                        for split in dropped.splits
                        for n in dropped.read(split).to_arrow()["id"].to_pylist()
                    ]
                    labels = [label] if isinstance(label, str) else label
                    assert sorted(ids) == [
                        row["id"] for row in rows if all(row[name] is not None for name in labels)
                    ]
                    weighted = empty_store.create_training_dataset(
                        make(), "d", missing_labels="weight_zero", **options
                    )
                    assert f"{missing} rows without label have weight 0" in capsys.readouterr().out
                    assert sum(map(weighted.num_rows, weighted.splits)) == 70
                    if form == "frame":
                        assert dropped.verify(recompute=True).ok
                        assert weighted.verify(recompute=True).ok


def test_missing_labels_policy_is_checked(empty_store: FeatureStore) -> None:
    table = pa.table({"x": [1.0, 2.0], "y": pa.array([None, None], pa.int64())})
    for arguments, text in (
        ({"label": "x", "missing_labels": "dorp"}, "missing_labels='drop'"),
        ({"missing_labels": "drop"}, "needs a label"),
        ({"label": "y", "missing_labels": "drop"}, "null in all 2 rows"),
        ({"label": "y", "missing_labels": "weight_zero"}, "null in all 2 rows"),
        ({"label": "y"}, "null in all 2 rows"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            empty_store.create_training_dataset(table, "d", **arguments)  # type: ignore[arg-type]


def test_label_proportions_are_reported_per_split(
    empty_store: FeatureStore, example: Example
) -> None:
    rules = {"splits": {"train": 0.5, "test": 0.5}, "label": ["label", "word"], "key": "at"}
    dataset = empty_store.create_training_dataset(
        example(),
        "d",
        missing_labels="weight_zero",
        **rules,  # type: ignore[arg-type]
    )
    for split in dataset.splits:
        rows = rows_of(dataset, split)
        for label in ("label", "word"):
            shares = dataset.label_proportions[split][label]
            assert sum(shares.values()) == pytest.approx(1)
            values = [row[label] for row in rows if row[label] is not None]
            expected = {str(value): values.count(value) / len(values) for value in set(values)}
            assert shares == pytest.approx(expected)


def test_write_shards_rows_differing_from_counts_raises(
    empty_store: FeatureStore, example: Example
) -> None:
    """Also if every shard received its number of rows."""
    rows, engine = example(200), empty_store.session.engine
    splits = {"train": 0.5, "test": 0.5}
    requested = TrainingRequest(
        name="d", data_format="parquet", splits=splits, split_by="user", key="at", shards=2
    )
    request = check_request(requested, schema=rows.schema)
    relation = engine.from_arrow(pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches()))
    directory = str(Path(empty_store.location, "made"))
    hashed = hash_rows(
        engine, relation, request, plan=None, directory=str(Path(empty_store.location, "rows"))
    )
    plan = plan_shards(hashed)
    written = write_shards(hashed, plan, directory=directory)
    assert sum(shard.rows for shards in written for shard, _ in shards) == 200
    changed = engine.sql(
        'select * replace (case when "at" = (select max("at") from t) then __fs_hash + 1 else __fs_hash end '
        "as __fs_hash) from t",
        tables={"t": hashed.relation},
        parameters={},
    )
    with pytest.raises(DatasetDamaged, match="differ from the counted rows"):
        write_shards(HashedRows(engine, request, changed), plan, directory=directory)


def test_killed_task_attempt_files_are_removed(empty_store: FeatureStore, example: Example) -> None:
    folder = Path(empty_store.location, "trainingdatasets", "d", "v1", "train")
    leftover = folder / ".tfrecord-00000-of-00001.0123456789abcdef.tmp"

    def leave(phase: str, count: int, total: int) -> None:
        if phase == "plan shards":
            folder.mkdir()
            leftover.write_bytes(b"half a shard")

    dataset = empty_store.create_training_dataset(example(50), "d", key="at", progress=leave)
    assert [file.name for file in folder.iterdir()] == ["tfrecord-00000-of-00001"]
    leftover.write_bytes(b"an attempt that ended after the export")
    assert dataset.verify().ok, "readers see no such file"


@pytest.mark.parametrize(
    ("rows", "bytes_per_row", "expected"),
    [
        (1_000_000, 400, 8),  # 3 shards of 128 MiB
        (20_000_000, 436, 72),  # 65 of them
        (8 * 1024, 100, 8),
        (8 * 1024 - 1, 100, 1),  # too few rows for eight blocks
        (300, 2_000_000, 4),  # large rows, few of them
        (0, 100, 1),
    ],
)
def test_shard_count_targets_128_mib_in_multiples_of_8(
    empty_store: FeatureStore, rows: int, bytes_per_row: int, expected: int
) -> None:
    requested = TrainingRequest(name="d", data_format="parquet")
    schema = pa.schema([("x", pa.int64())])
    request = check_request(requested, schema=schema)
    assert request.choose_shard_count(rows, bytes_per_row=bytes_per_row) == expected
    request = check_request(replace(requested, rows_per_shard=7), schema=schema)
    assert request.choose_shard_count(50, bytes_per_row=1) == 8


def test_digit_images_export_in_every_format(empty_store: FeatureStore) -> None:
    from sklearn.datasets import load_digits  # takes longer to import than the other tests

    digits = load_digits()
    pixels = digits.images.astype(np.uint8)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1)), 8)
    table = pa.table(
        {
            "image": pa.FixedSizeListArray.from_arrays(rows, 8),
            "embedding": pa.FixedSizeListArray.from_arrays(
                pa.array(pixels.reshape(-1).astype(np.float32) / 16), 64
            ),
            "raw": [image.tobytes() for image in pixels],
            "digit": digits.target,
            "number": np.arange(len(pixels)),
        }
    )
    for data_format in ("tfrecord", "petastorm", "parquet"):
        dataset = empty_store.create_training_dataset(
            table, data_format, label="digit", key="number", data_format=data_format, shards=2
        )
        assert dataset.verify().ok
        assert dataset.manifest.column("image").shape == (8, 8)
        (batch,) = dataset.reader(
            "train",
            global_batch_size=1797,
            shuffle=False,
            columns=["image", "embedding", "raw", "digit", "number"],
        ).batches()
        order = batch["number"]
        assert (batch["image"] == pixels[order]).all()
        assert (batch["embedding"].reshape(-1, 8, 8) * 16 == pixels[order]).all()
        assert batch["raw"].tolist() == [pixels[number].tobytes() for number in order]
        assert (batch["digit"] == digits.target[order]).all()


@pytest.mark.tensorflow
def test_tensorflow_reads_dataset_with_feature_spec_alone(
    empty_store: FeatureStore, example: Example
) -> None:
    import tensorflow as tf

    dataset = empty_store.create_training_dataset(
        example(300), "plain", key="at", label="label", shards=3
    )
    spec = empty_store.get_training_dataset_tf_record_schema("plain")
    assert spec == dataset.tf_feature_spec()
    files = sorted(str(path) for path in Path(dataset.path, "train").glob("tfrecord-*"))
    parsed = next(
        iter(
            tf.data.TFRecordDataset(files)
            .batch(300)
            .map(lambda records: tf.io.parse_example(records, spec))
        )
    )
    rows = dataset.read("train").to_arrow()
    assert parsed["user"].numpy().tolist() == rows["user"].to_pylist()
    assert parsed["label"].numpy().tolist() == rows["label"].to_pylist()
    assert parsed["x"].numpy().tolist() == rows["x"].to_pylist()
    words = tf.sparse.to_dense(parsed["word"], default_value="none").numpy()[:, 0].tolist()
    assert words == [(word or "none").encode() for word in rows["word"].to_pylist()]
    assert 'name: "word"' in Path(dataset.path, "schema.pbtxt").read_text()


def test_manifest_matches_json_schema(empty_store: FeatureStore, example: Example) -> None:
    dataset = empty_store.create_training_dataset(example(), "schema", label="label", key=["at"])
    schema = json.loads(
        (Path(featurestore_schemas.__path__[0]) / "manifest.schema.json").read_text()
    )
    data = json.loads(Path(dataset.path, "manifest.json").read_text())
    jsonschema.validate(data, schema)
    assert TrainingDataset.open(dataset.path).manifest == dataset.manifest


def test_dataset_versions_increment_and_are_never_overwritten(
    empty_store: FeatureStore, example: Example
) -> None:
    table = example(50)
    assert empty_store.create_training_dataset(table, "d", key=["at"]).version == 1
    assert empty_store.create_training_dataset(table, "d", key=["at"]).version == 2
    with pytest.raises(TrainingDatasetExists):
        empty_store.create_training_dataset(table, "d", key=["at"], version=2)
    empty_store.delete_training_dataset("d", version=2)
    assert empty_store.get_latest_training_dataset_version("d") == 1
    assert [dataset.version for dataset in empty_store.get_training_datasets()] == [1]
    with pytest.raises(TrainingDatasetNotFound, match="d"):
        empty_store.get_training_dataset("d", version=2)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"name": "../up"}, InvalidName),
        ({"splits": {"train": 0.5}}, InvalidSplit),
        ({"splits": {}}, InvalidSplit),
        (
            {"splits": {"train": 0.5, "test": 0.5}, "split_by": "user", "stratify": "label"},
            InvalidSplit,
        ),
        ({"splits": TimeSplit("at", {"a": (None, START)}), "split_by": "user"}, InvalidSplit),
        ({"splits": TimeSplit("at", {"a": (None, START)}), "stratify": "label"}, InvalidSplit),
        ({"splits": TimeSplit("x", {"a": (None, START)})}, InvalidArgument),
        ({"rows_per_shard": 0}, InvalidArgument),
        ({"label": "absent"}, InvalidArgument),
        ({"key": "absent"}, InvalidArgument),
        ({"data_format": "hdf5"}, InvalidArgument),
        ({"shards": 0}, InvalidArgument),
        ({"shards": 2, "rows_per_shard": 5}, InvalidArgument),
        ({"seed": -1}, InvalidArgument),
        ({"validation": "maybe"}, InvalidArgument),
        ({"compression": "lzma"}, InvalidArgument),
    ],
)
def test_export_invalid_arguments_raise_without_writing(
    empty_store: FeatureStore, change: dict[str, object], error: type[Exception], example: Example
) -> None:
    arguments: dict[str, object] = {"name": "d", **change}
    name = arguments.pop("name")
    with pytest.raises(error):
        empty_store.create_training_dataset(example(20), name, **arguments)  # type: ignore[arg-type]
    assert not os.path.exists(os.path.join(empty_store.location, "trainingdatasets", "d", "v1"))


def test_export_unsupported_types_raise_together(empty_store: FeatureStore) -> None:
    table = pa.table(
        {
            "a": pa.array([{"x": 1}], pa.struct([("x", pa.int64())])),
            "b": pa.array([[{"y": 1}]], pa.list_(pa.struct([("y", pa.int64())]))),
            "c": [1],
        }
    )
    with pytest.raises(UnsupportedType, match=r"a.*b|b.*a"):
        empty_store.create_training_dataset(table, "nested", data_format="csv")


@pytest.mark.filterwarnings("ignore::featurestore.errors.DataWarning")
def test_export_empty_data_creates_empty_dataset(store: FeatureStore, example: Example) -> None:
    dataset = store.create_training_dataset(
        example(0), "none", splits={"train": 0.5, "test": 0.5}, key=["at"]
    )
    assert dataset.num_rows("train") == 0
    assert dataset.verify().ok
    assert every_row(dataset) == []


def test_verify_recompute_of_store_features_gives_same_bytes(
    empty_store: FeatureStore, example: Example
) -> None:
    table = example(400)
    empty_store.create_featuregroup(
        table.select(["user", "at", "label"]), "clicks", primary_key=["user"], event_time="at"
    )
    facts = table.select(["user", "at", "x", "n", "word"])
    empty_store.create_featuregroup(facts, "facts", primary_key=["user"], event_time="at")
    frame = empty_store.get_features(["facts.x", "facts.n", "facts.word"], labels="clicks")
    dataset = empty_store.create_training_dataset(
        frame, "proof", label="label", splits={"train": 0.8, "test": 0.2}, shards=2
    )
    assert dataset.manifest.reproducible
    assert dataset.manifest.key == ("user", "at")
    assert {source["featuregroup"] for source in dataset.manifest.sources} == {"clicks", "facts"}
    empty_store.insert_into_featuregroup(
        facts.slice(0, 5), "facts"
    )  # later data does not change the past
    report = dataset.verify(recompute=True)
    assert report.ok, str(report)


def test_dataframe_labels_have_irreproducible_reason(
    empty_store: FeatureStore, example: Example
) -> None:
    table = example(100)
    empty_store.create_featuregroup(
        table.select(["user", "at", "x"]),
        "facts",
        primary_key=["user"],
        event_time="at",
        validation="off",
    )
    frame = empty_store.get_features(
        ["facts.x"], labels=table.select(["user", "at", "label"]), label_time="at"
    )
    dataset = empty_store.create_training_dataset(frame, "d", label="label")
    assert not dataset.manifest.reproducible
    assert (
        dataset.manifest.reproducible_reason == "the labels were a dataframe, not a feature group"
    )
    assert dataset.manifest.key == ("user", "at")
    schema = json.loads(
        (Path(featurestore_schemas.__path__[0]) / "manifest.schema.json").read_text()
    )
    jsonschema.validate(json.loads(Path(dataset.path, "manifest.json").read_text()), schema)
    (source,) = dataset.manifest.sources
    assert (source["featuregroup"], source["version"], source["delta_version"]) == ("facts", 1, 1)
    assert source["table_id"]
    assert dataset.manifest.plan_hash


def test_plain_dataframe_has_irreproducible_reason(
    empty_store: FeatureStore, example: Example
) -> None:
    dataset = empty_store.create_training_dataset(example(20), "loose", key=["at"])
    assert not dataset.manifest.reproducible
    assert "dataframe" in (dataset.manifest.reproducible_reason or "")
    assert not dataset.verify(recompute=True).ok
