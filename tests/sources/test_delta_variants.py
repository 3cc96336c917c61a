"""Unsupported Delta variants are refused by name, only if they are requested."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from featurestore.errors import UnsupportedType
from featurestore.store import FeatureStore

# The file structure of a variant: https://github.com/apache/parquet-format, VariantEncoding.
VARIANT_TYPE = pa.struct(
    [
        pa.field("metadata", pa.binary(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
    ]
)
VARIANT = {"metadata": b"\x01\x00\x00", "value": b"\x0c\x01"}
FEATURES = ["variantType"]


def write_table(path: Path) -> None:
    """Write a table with a number and two variants, like Spark 4 and Databricks."""
    log = path / "_delta_log"
    log.mkdir(parents=True)
    columns = {
        "id": pa.array([1], pa.int64()),
        "v": pa.array([VARIANT], VARIANT_TYPE),
        "many": pa.array([[VARIANT]], pa.list_(VARIANT_TYPE)),
    }
    parquet.write_table(pa.table(columns), path / "a.parquet")
    array = {"type": "array", "elementType": "variant", "containsNull": True}
    fields = []
    for name, field_type in (("id", "long"), ("v", "variant"), ("many", array)):
        fields.append({"name": name, "type": field_type, "nullable": True, "metadata": {}})
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    actions: list[dict[str, Any]] = [
        {"protocol": {**protocol, "readerFeatures": FEATURES, "writerFeatures": FEATURES}},
        {
            "metaData": {
                "id": "variants",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": [],
                "configuration": {},
            }
        },
        {
            "add": {
                "path": "a.parquet",
                "partitionValues": {},
                "size": os.path.getsize(path / "a.parquet"),
                "modificationTime": 0,
                "dataChange": True,
            }
        },
    ]
    (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)) + "\n")


def test_delta_variant_is_refused_only_if_selected(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    write_table(tmp_path / "variants")
    empty_store.add_source("variants", f"delta+{tmp_path}/variants")
    read = empty_store.read_source("variants", columns=["id"])
    assert read.to_arrow().to_pylist() == [{"id": 1}]
    with pytest.raises(UnsupportedType, match=r"'v' \(variant\), 'many' \(variant\)"):
        empty_store.read_source("variants").to_arrow()
