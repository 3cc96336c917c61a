"""Spark arrays get shapes and lossless casts on the executors."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import featurestore
from featurestore.arrow.types import array_shape
from featurestore.errors import SchemaMismatch, UnsupportedType

if TYPE_CHECKING:
    from pathlib import Path


def test_spark_arrays_get_shapes_and_lossless_casts(spark: Any, tmp_path: Path) -> None:
    store = featurestore.connect(tmp_path / "store", engine="spark")
    frame = spark.range(6, numPartitions=3).selectExpr(
        "id",
        "array(array(float(id), float(1)), if(id < 9, array(float(2), float(3)), null)) AS image",
        "if(id = 3, null, array(id, id)) AS pair",
        "sequence(0L, id) AS tokens",
        "int(id) AS small",
    )
    group = store.create_featuregroup(frame, "images", primary_key="id")
    shapes = {field.name: array_shape(field.type) for field in group.schema}
    assert shapes == {"id": (), "image": (2, 2), "pair": (2,), "tokens": (), "small": ()}
    table = group.read().to_pandas().sort_values("id")
    assert table["image"].iloc[4].tolist() == [[4, 1], [2, 3]]
    assert table["pair"].iloc[3] is None

    more = frame.selectExpr("id + 10 AS id", "image", "pair", "tokens", "double(small) AS small")
    assert group.insert(more).rows == 12
    assert group.read().schema.field("small").type == pa.int32()
    with pytest.raises(
        SchemaMismatch, match=r"'small' is double .* int32, and \d+\.5 does"
    ) as error:
        group.insert(
            more.selectExpr("id + 10 AS id", "image", "pair", "tokens", "small + 0.5 AS small")
        )
    assert str(error.value.hint).startswith("create the next version")
    with pytest.raises(SchemaMismatch, match=r"shape \(3,\) does not fit"):
        group.insert(more.selectExpr("id", "image", "array(id, id, id) AS pair", "tokens", "small"))
    assert group.delta_version == 2

    same = store.get_or_create_featuregroup(frame, "images", primary_key="id")
    assert same.delta_version == 2
    labelled = store.get_features("images.small", labels=frame.select("id", "image"))
    assert array_shape(labelled.schema.field("image").type) == (2, 2)

    wider = frame.selectExpr("*", "array(1D, 2D, 3D) AS extra").where("id < 2")
    group.insert(wider, mode="upsert", schema_change="add")
    assert array_shape(group.read().schema.field("extra").type) == (3,)

    second_store = featurestore.connect(tmp_path / "other")
    copy = second_store.create_featuregroup(frame, "images")
    assert copy.schema.types == group.schema.types[:5]
    pair = copy.read().select("image").to_numpy()
    assert pair.shape == (6, 2, 2)
    assert np.isin(pair[:, 0, 0], range(6)).all()


def test_spark_petastorm_codec_columns_raise_with_hint(spark: Any, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        codecs = pytest.importorskip("petastorm.codecs")
        unischema = pytest.importorskip("petastorm.unischema")
        field = unischema.UnischemaField("image", np.float32, (2, 3), codecs.NdarrayCodec(), False)
        schema = unischema.Unischema("pictures", [field])
        row = unischema.dict_to_spark_row(schema, {"image": np.ones((2, 3), np.float32)})
        frame = spark.createDataFrame([row], schema.as_spark_schema())
    for engine in ("spark", "duckdb"):
        store = featurestore.connect(tmp_path / engine, engine=engine)
        with pytest.raises(UnsupportedType, match=r"'image' hold .* NdarrayCodec") as error:
            store.create_featuregroup(frame, "pictures")
        assert store.get_featuregroups() == []
        namespace = {"featurestore": featurestore, "df": frame}
        exec(str(error.value.hint), namespace)
        group = store.create_featuregroup(namespace["df"], "pictures")
        assert group.read().select("image").to_numpy().tolist() == [np.ones((2, 3)).tolist()]
