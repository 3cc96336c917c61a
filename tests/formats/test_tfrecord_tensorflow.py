"""TensorFlow reads our TFRecord files.

Parse_example, Example.FromString, the graph decoder and our reader agree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from featurestore.arrow.text_values import format_decimals
from featurestore.errors import UnsupportedType
from featurestore.plugins.format import ColumnEncoding
from featurestore.testing.format_cases import (
    apply_losses,
    build_manifest,
    is_identical,
    supported,
    tables,
)
from featurestore.testing.format_conformance import build_layout, write
from featurestore_connectors.tfrecord import TFRecordFormat

pytest.importorskip("google.protobuf")
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

pytestmark = pytest.mark.tensorflow
FORMAT = TFRecordFormat()


def wire_rows(column: pa.ChunkedArray) -> list[list[Any] | None]:
    """Return the values of each row as TensorFlow sees them, None for nulls."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.array([], array.type)
    return [
        None if row is None else row if isinstance(row, list) else [row] for row in _plain(array)
    ]


def _plain(array: pa.Array) -> list[Any]:
    dtype = array.type
    if pa.types.is_list(dtype) or pa.types.is_fixed_size_list(dtype):
        rows = [
            None if row is None else _plain(pa.array(row, dtype.value_type))
            for row in array.to_pylist()
        ]
        return [
            row if not row or not isinstance(row[0], list) else [x for cell in row for x in cell]
            for row in rows
        ]
    if pa.types.is_boolean(dtype):
        array = array.cast(pa.int8())
    if pa.types.is_decimal(dtype):
        array = format_decimals(array)
    if pa.types.is_date(dtype):
        array = array.view(pa.int32())
    if pa.types.is_timestamp(dtype):
        array = array.view(pa.int64())
    if pa.types.is_float64(dtype):
        array = array.cast(pa.float32(), safe=False)
    return [value.encode() if isinstance(value, str) else value for value in array.to_pylist()]


def equal(actual: list[Any] | None, expected: list[Any] | None) -> bool:
    return repr(actual) == repr(expected)


def example_values(example: Any, name: str) -> list[Any] | None:
    feature = example.features.feature
    if name not in feature:
        return None
    list_name = feature[name].WhichOneof("kind")
    values = getattr(feature[name], list_name).value
    if list_name == "float_list":
        return np.array(values, np.float32).tolist()
    return list(values)


def parsed_rows(tensor: Any, encoding: ColumnEncoding, rows: int) -> list[list[Any]]:
    import tensorflow as tf

    if isinstance(tensor, tf.SparseTensor):
        result: list[list[Any]] = [[] for _ in range(rows)]
        for (row, _), value in zip(
            tensor.indices.numpy(), tensor.values.numpy().tolist(), strict=True
        ):
            result[row].append(value)
        return result
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.to_list()
    # As objects: of bytes numpy drops zeros at the end.
    return [
        np.array(row, object).ravel().tolist() if encoding.shape else [row]
        for row in tensor.numpy().tolist()
    ]


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_all_parsers_read_equal_values(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    import tensorflow as tf

    table = data.draw(tables(supported(FORMAT)))
    compression = data.draw(st.sampled_from([None, "GZIP"]))
    declared = data.draw(st.booleans())
    layout = build_layout(FORMAT, table, compression=compression, declared=declared)
    path, shard = write(FORMAT, tmp_path_factory.mktemp("parsed"), table, layout)
    encodings = FORMAT.encodings(layout)
    records = [
        record.numpy()
        for record in tf.data.TFRecordDataset(path, compression_type=compression or "")
    ]
    assert len(records) == table.num_rows
    expected = {name: wire_rows(table[name]) for name in table.schema.names}
    for row, record in enumerate(records):
        example = tf.train.Example.FromString(record)
        for name in table.schema.names:
            assert equal(example_values(example, name), expected[name][row])
    spec = FORMAT.feature_spec(build_manifest(FORMAT, table, layout, [shard]))
    if records:
        parsed = tf.io.parse_example(records, spec)
        for name, encoding in encodings.items():
            actual = parsed_rows(parsed[name], encoding, len(records))
            assert all(equal(a, b or []) for a, b in zip(actual, expected[name], strict=True))
    if compression is None:
        reader = FORMAT.open_shard(path, layout=layout)
        assert is_identical(
            reader.read(0, reader.rows, table.schema.names), apply_losses(table, encodings)
        )
        reader.close()


def test_null_empty_nan_and_zero_stay_distinct(tmp_path: Path) -> None:
    import tensorflow as tf

    table = pa.table(
        {
            "x": pa.array([None, float("nan"), 0.0, -0.0], pa.float32()),
            "text": pa.array([None, "", "0", "nan"]),
            "many": pa.array([None, [], [0], [1]], pa.list_(pa.int64())),
        }
    )
    layout = build_layout(FORMAT, table)
    path, shard = write(FORMAT, tmp_path, table, layout)
    records = [record.numpy() for record in tf.data.TFRecordDataset(path)]
    examples = [tf.train.Example.FromString(record) for record in records]
    assert [repr(example_values(example, "x")) for example in examples] == [
        "None",
        "[nan]",
        "[0.0]",
        "[-0.0]",
    ]
    assert [example_values(example, "text") for example in examples] == [
        None,
        [b""],
        [b"0"],
        [b"nan"],
    ]
    assert [example_values(example, "many") for example in examples] == [None, [], [0], [1]]
    spec = FORMAT.feature_spec(build_manifest(FORMAT, table, layout, [shard]))
    assert isinstance(spec["x"], tf.io.VarLenFeature)
    dense_spec = {**spec, "x": tf.io.FixedLenFeature((), tf.float32, default_value=-7.0)}
    assert (
        repr(tf.io.parse_example(records, dense_spec)["x"].numpy().tolist())
        == "[-7.0, nan, 0.0, -0.0]"
    )
    assert is_identical(
        FORMAT.open_shard(path, layout=layout).read(0, 4, table.schema.names), table
    )


def test_float64_is_rounded_to_float32_within_its_range(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedType, match=r"x: -1e\+300 is infinity in float32"):
        build_layout(FORMAT, pa.table({"x": [0.1, -1e300]}))
    table = pa.table({"x": [0.1, float("inf"), float("-inf"), 1e-300]})
    layout = build_layout(FORMAT, table)
    assert FORMAT.encodings(layout)["x"].loss == "float64 to float32"
    path, _ = write(FORMAT, tmp_path, table, layout)
    actual_table = FORMAT.open_shard(path, layout=layout).read(0, 4, ["x"])
    assert actual_table["x"].to_pylist() == [
        float(np.float32(0.1)),
        float("inf"),
        float("-inf"),
        0.0,
    ]


def test_images_and_embeddings_keep_shapes(tmp_path: Path) -> None:
    import tensorflow as tf
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = digits.images.astype(np.uint8)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1)), 8)
    table = pa.table(
        {
            "image": pa.FixedSizeListArray.from_arrays(rows, 8),
            "flat": pa.FixedSizeListArray.from_arrays(
                pa.array(pixels.reshape(-1).astype(np.float32)), 64
            ),
            "png": [image.tobytes() for image in pixels],
            "digit": digits.target,
        }
    )
    layout = build_layout(FORMAT, table)
    path, shard = write(FORMAT, tmp_path, table, layout)
    assert layout["kind"] == "fixed"
    access = FORMAT.record_access(layout)
    assert access is not None
    decoded = access.decode(access.records(path), table.schema.names)
    assert (decoded["image"][0] == pixels).all()
    assert decoded["image"][0].dtype == np.uint8
    assert (decoded["flat"][0].reshape(-1, 8, 8) == pixels).all()
    assert decoded["png"][0].tolist() == [image.tobytes() for image in pixels]
    spec = FORMAT.feature_spec(build_manifest(FORMAT, table, layout, [shard]))
    assert spec["image"] == tf.io.FixedLenFeature((8, 8), tf.int64)
    batch = next(
        iter(
            tf.data.TFRecordDataset(path)
            .batch(1797)
            .map(lambda record: tf.io.parse_example(record, spec))
        )
    )
    assert (batch["image"].numpy() == pixels).all()
    assert (batch["digit"].numpy() == digits.target).all()
    assert (tf.io.decode_raw(batch["png"], tf.uint8).numpy().reshape(-1, 8, 8) == pixels).all()


def test_schema_file_is_tensorflow_metadata_schema(tmp_path: Path) -> None:
    table = pa.table(
        {
            "sure": pa.array([1, 2]),
            "gaps": pa.array([1.0, None], pa.float32()),
            "image": pa.array([[[1, 2], [3, 4]]] * 2, pa.list_(pa.list_(pa.uint8(), 2), 2)),
            "words": pa.array([["a"], []]),
        }
    )
    layout = build_layout(FORMAT, table)
    _, shard = write(FORMAT, tmp_path, table, layout)
    (file,) = FORMAT.finish(str(tmp_path), build_manifest(FORMAT, table, layout, [shard]))
    assert file.path == "schema.pbtxt"
    schema = text_format.Parse((tmp_path / file.path).read_text(), metadata_schema())
    actual = {feature.name: feature for feature in schema.feature}
    assert [(feature.name, feature.type) for feature in schema.feature] == [
        ("sure", 2),
        ("gaps", 3),
        ("image", 2),
        ("words", 1),
    ]
    assert actual["sure"].HasField("shape")
    assert [dim.size for dim in actual["image"].shape.dim] == [2, 2]
    assert actual["sure"].presence.min_fraction == 1
    assert actual["gaps"].presence.min_fraction == 0
    assert actual["words"].HasField("value_count")


def metadata_schema() -> Any:
    """Return an empty Schema message.

    The parts of tensorflow_metadata/proto/v0/schema.proto that we write.
    """
    file = descriptor_pb2.FileDescriptorProto(name="schema.proto", package="v0", syntax="proto2")
    field_proto = descriptor_pb2.FieldDescriptorProto
    messages: dict[str, list[tuple[str, int, int, str | None, bool]]] = {
        "Dim": [("size", 1, field_proto.TYPE_INT64, None, False)],
        "FixedShape": [("dim", 2, field_proto.TYPE_MESSAGE, ".v0.Dim", True)],
        "ValueCount": [
            ("min", 1, field_proto.TYPE_INT64, None, False),
            ("max", 2, field_proto.TYPE_INT64, None, False),
        ],
        "FeaturePresence": [
            ("min_fraction", 1, field_proto.TYPE_DOUBLE, None, False),
            ("min_count", 2, field_proto.TYPE_INT64, None, False),
        ],
        "Feature": [
            ("name", 1, field_proto.TYPE_STRING, None, False),
            ("value_count", 5, field_proto.TYPE_MESSAGE, ".v0.ValueCount", False),
            ("type", 6, field_proto.TYPE_ENUM, ".v0.FeatureType", False),
            ("presence", 14, field_proto.TYPE_MESSAGE, ".v0.FeaturePresence", False),
            ("shape", 23, field_proto.TYPE_MESSAGE, ".v0.FixedShape", False),
        ],
        "Schema": [("feature", 1, field_proto.TYPE_MESSAGE, ".v0.Feature", True)],
    }
    types = file.enum_type.add(name="FeatureType")
    for number, name in enumerate(("TYPE_UNKNOWN", "BYTES", "INT", "FLOAT")):
        types.value.add(name=name, number=number)
    for message, fields in messages.items():
        described = file.message_type.add(name=message)
        for name, number, type_, type_name, repeated in fields:
            label = field_proto.LABEL_REPEATED if repeated else field_proto.LABEL_OPTIONAL
            described.field.add(
                name=name, number=number, type=type_, type_name=type_name, label=label
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("v0.Schema"))()
