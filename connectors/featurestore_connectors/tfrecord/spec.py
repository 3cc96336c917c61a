"""Parsing specs for TensorFlow: a feature spec, and its equivalent ``schema.pbtxt``.

The file is a ``tensorflow.metadata.v0.Schema``:
https://github.com/tensorflow/metadata/blob/master/tensorflow_metadata/proto/v0/schema.proto
"""

from __future__ import annotations

import json
from typing import Any

from featurestore.errors import missing_extra
from featurestore.model.manifest import Manifest, ManifestColumn

SCHEMA_FILE = "schema.pbtxt"
_TYPES = {"int64": "INT", "float32": "FLOAT", "bytes": "BYTES"}


def feature_spec(manifest: Manifest) -> dict[str, Any]:
    """Return ``{column: tf.io feature}`` for ``tf.io.parse_example``.

    Columns without nulls are dense (FixedLenFeature), variable-length lists ragged (RaggedFeature).
    A column with nulls is sparse (VarLenFeature), so that a missing value is not mistaken for a
    number; to fill missing values, replace its entry by a FixedLenFeature with ``default_value=``.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise missing_extra("tensorflow", "tensorflow") from error
    types = {"int64": tf.int64, "float32": tf.float32, "bytes": tf.string}
    nullable = columns_with_nulls(manifest)
    spec: dict[str, Any] = {}
    for column in manifest.columns:
        if column.shape is None:
            spec[column.name] = tf.io.RaggedFeature(types[column.tf_type])
        elif column.name in nullable:
            spec[column.name] = tf.io.VarLenFeature(types[column.tf_type])
        else:
            spec[column.name] = tf.io.FixedLenFeature(column.shape, types[column.tf_type])
    return spec


def columns_with_nulls(manifest: Manifest) -> set[str]:
    """Return the columns that have nulls in any split."""
    names: set[str] = set()
    for split in manifest.splits:
        names.update(split.nulls)
    return names


def schema_text(manifest: Manifest) -> str:
    """Return the schema as protobuf text."""
    nullable = columns_with_nulls(manifest)
    return "".join(
        _feature_text(column, nullable=column.name in nullable) for column in manifest.columns
    )


def _feature_text(column: ManifestColumn, *, nullable: bool) -> str:
    lines = [
        "feature {\n",
        f"  name: {json.dumps(column.name)}\n",
        f"  type: {_TYPES[column.tf_type]}\n",
        "  presence {\n",
    ]
    if not nullable:
        lines.append("    min_fraction: 1.0\n")
    lines.append("    min_count: 1\n  }\n")
    if column.shape is None:
        lines.append("  value_count {\n    min: 0\n  }\n")
    else:
        lines.append("  shape {\n")
        lines += [f"    dim {{\n      size: {size}\n    }}\n" for size in column.shape]
        lines.append("  }\n")
    return "".join([*lines, "}\n"])
