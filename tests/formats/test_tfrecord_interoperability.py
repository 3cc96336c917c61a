"""Other TFRecord readers list exactly the columns of the dataset.

``tf.io.parse_example`` runs here. The PyPI package ``tfrecord``, Ray Data and spark-tfrecord are
not installed in the environment of the tests: the rules by which they infer columns are written
down here, each over ``tf.train.Example``, which all of them parse.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from math import nan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import featurestore
from featurestore.recovery.rebuild import rebuild
from featurestore.testing.format_cases import build_manifest, supported, tables
from featurestore.testing.format_conformance import build_layout, write
from featurestore_connectors.tfrecord import TFRecordFormat

pytestmark = pytest.mark.tensorflow
FORMAT = TFRecordFormat()
ROOT = Path(__file__).parents[2]
OLD_DATASETS = ROOT / "tests" / "assets" / "masked_keys"
Columns = dict[str, str]


def examples_of(path: str, *, compression: str | None = None) -> list[Any]:
    import tensorflow as tf

    records = tf.data.TFRecordDataset(path, compression_type=compression or "")
    return [tf.train.Example.FromString(record.numpy()) for record in records]


# -- rules of inference -------------------------------------------------------


def tfrecord_package(examples: Sequence[Any]) -> Columns:
    """tfrecord 1.14: every key is a column with the kind of its first feature."""
    columns: Columns = {}
    for example in examples:
        for name, feature in example.features.feature.items():
            list_name = feature.ListFields()[0][0].name
            assert columns.setdefault(name, list_name) == list_name
    return columns


def ray_data(examples: Sequence[Any]) -> Columns:
    """Ray 2: a table per record; single values are scalars, others lists; schemas are unified."""
    types = {"int64_list": pa.int64(), "float_list": pa.float32(), "bytes_list": pa.binary()}
    schemas = []
    for example in examples:
        fields = []
        for name, feature in example.features.feature.items():
            list_name = feature.WhichOneof("kind")
            values = getattr(feature, list_name).value
            type_ = types[list_name]
            if len(values) != 1:
                type_ = pa.list_(type_)
            if len(values):
                fields.append((name, type_))
        schemas.append(pa.schema(fields))
    return {field.name: str(field.type) for field in pa.unify_schemas(schemas)}


def spark_tfrecord(examples: Sequence[Any]) -> Columns:
    """spark-tfrecord 0.7: the widest type of all records; empty lists have none."""
    types = {"int64_list": "LongType", "float_list": "FloatType", "bytes_list": "StringType"}
    precedence = list(types.values())
    precedence += [f"ArrayType({item})" for item in precedence]
    columns: Columns = {}
    for example in examples:
        for name, feature in example.features.feature.items():
            list_name = feature.WhichOneof("kind")
            values = getattr(feature, list_name).value
            if not values:
                columns.setdefault(name, "NullType")
                continue
            type_ = types[list_name] if len(values) == 1 else f"ArrayType({types[list_name]})"
            earlier = columns.get(name, "NullType")
            if earlier == "NullType" or precedence.index(type_) > precedence.index(earlier):
                columns[name] = type_
    return columns


RULES: tuple[Callable[[Sequence[Any]], Columns], ...] = (tfrecord_package, ray_data, spark_tfrecord)


# -- what they list -----------------------------------------------------------


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_record_features_are_columns_with_values(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    table = data.draw(tables(supported(FORMAT)))
    compression = data.draw(st.sampled_from([None, "GZIP"]))
    declared = data.draw(st.booleans())
    layout = build_layout(FORMAT, table, compression=compression, declared=declared)
    path, _ = write(FORMAT, tmp_path_factory.mktemp("listed"), table, layout)
    examples = examples_of(path, compression=compression)
    assert len(examples) == table.num_rows
    kinds: dict[str, set[str]] = {}
    for example, row in zip(examples, table.to_pylist(), strict=True):
        expected = {name for name, value in row.items() if value is not None}
        assert set(example.features.feature) == expected
        for name, feature in example.features.feature.items():
            kinds.setdefault(name, set()).add(feature.WhichOneof("kind"))
    assert all(len(names) == 1 for names in kinds.values())


TABLE = pa.table(
    {
        "seats": pa.array([100, 55, 7, 1]),
        "delay": pa.array([1.5, None, float("nan"), 0.0], pa.float32()),
        "code": pa.array(["aa", None, "", "ccc"]),
        "pair": pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
        "stops": pa.array([[1, 300], None, [7, 8, 9], []]),
    }
)
MEANINGS = {
    "seats": "integers",
    "delay": "floats with nulls",
    "code": "texts with nulls",
    "pair": "lists of one size with nulls",
    "stops": "lists of any size with nulls",
}


@pytest.mark.parametrize("declared", [True, False])
def test_documented_types_equal_inferred_types(declared: bool, tmp_path: Path) -> None:
    layout = build_layout(FORMAT, TABLE, declared=declared)
    assert layout["kind"] == ("fixed" if declared else "variable")
    path, shard = write(FORMAT, tmp_path, TABLE, layout)
    examples = examples_of(path)
    parsed = parsed_types(
        examples, FORMAT.feature_spec(build_manifest(FORMAT, TABLE, layout, [shard]))
    )
    inferred = [parsed, *(rule(examples) for rule in RULES)]
    for columns in inferred:
        assert set(columns) == set(TABLE.schema.names)
    lines = []
    for name, meaning in MEANINGS.items():
        cells = [columns[name] for columns in inferred]
        lines.append(f"| {meaning} | `" + "` | `".join(cells) + "` |\n")
    assert "".join(lines) in (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")


def parsed_types(examples: Sequence[Any], spec: dict[str, Any]) -> Columns:
    import tensorflow as tf

    records = [example.SerializeToString() for example in examples]
    columns = {}
    for name, tensor in tf.io.parse_example(records, spec).items():
        tensor_type = "Tensor"
        if isinstance(tensor, tf.SparseTensor | tf.RaggedTensor):
            tensor_type = type(tensor).__name__
        columns[name] = f"{tensor_type} {tensor.dtype.name}"
    return columns


# -- datasets of earlier releases ---------------------------------------------


@pytest.mark.parametrize(("name", "version"), [("fixed", 1), ("lists", 2), ("variable", 1)])
def test_old_datasets_with_masked_keys_are_readable(
    name: str, version: int, tmp_path: Path
) -> None:
    location = str(tmp_path / "store")
    shutil.copytree(OLD_DATASETS, location)
    rebuild(location)
    dataset = featurestore.connect(location).get_training_dataset(name)
    assert dataset.manifest.layout["version"] == version
    assert dataset.verify().ok
    rows = dataset.read("train").to_arrow().sort_by("id")
    assert rows["count"].to_pylist() == [7, None, -300, 0]
    assert rows["delay"].to_pylist() == [1.5, None, pytest.approx(nan, nan_ok=True), 0.0]
    assert rows["flag"].to_pylist() == [True, None, False, None]
    assert rows["code"].to_pylist() == ["aa", None, "bb", "cc"]
    assert rows["text"].to_pylist() == [None, "", "abc", "wxyz"]
    assert rows["pair"].to_pylist() == [[1, 2], None, [3, 4], [5, 6]]
    if name != "fixed":
        assert rows["stops"].to_pylist() == [[1, 300], None, [], [5]]
        assert rows["tags"].to_pylist() == [["a", "bcd"], None, [], [""]]
    reader = dataset.reader(
        "train", columns=["id", "count", "flag"], global_batch_size=4, nulls="mask", shuffle=False
    )
    (batch,) = reader.batches()
    order = batch["id"].argsort()
    assert batch["count_present"][order].tolist() == [True, False, True, True]
    assert batch["flag_present"][order].tolist() == [True, False, True, False]
