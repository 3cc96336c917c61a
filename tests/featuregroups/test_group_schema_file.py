"""Definitions in tables conform to the published JSON Schema."""

from __future__ import annotations

import datetime as dt
import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import jsonschema
import pyarrow as pa
import pytest

from featurestore.delta import commits
from featurestore.delta.snapshot import read_snapshot
from featurestore.model.featuregroup import FeatureGroupSpec

if TYPE_CHECKING:
    from featurestore.store import FeatureStore

SCHEMA: dict[str, Any] = json.loads(
    (files("featurestore_schemas") / "feature_group.schema.json").read_text()
)
DAY = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def test_table_definition_matches_json_schema(empty_store: FeatureStore) -> None:
    columns = {
        "id": [1],
        "t": [DAY],
        "known": [DAY],
        "day": pa.array([DAY.date()]),
        "money": pa.array([1], pa.decimal128(10, 2)),
        "pixels": pa.array([[1, 2]], pa.list_(pa.uint8(), 2)),
        "record": pa.array([{"a": [b"x"], "b": True}]),
    }
    group = empty_store.create_featuregroup(
        pa.table(columns),
        "g",
        primary_key="id",
        event_time="t",
        created_time="known",
        ttl="36h",
        partition_by="day",
    )
    document = json.loads(read_snapshot(group.path).properties[commits.SPEC])
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(document, SCHEMA)
    assert FeatureGroupSpec.from_json(document) == group.spec
    for wrong in ({"ttl": "soon"}, {"version": 0}, {"validation": "loose"}, {"extra": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**document, **wrong}, SCHEMA)
