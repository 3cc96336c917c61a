"""JSON records are stored if an independent validator accepts them by the job's JSON Schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pyarrow as pa
import pyarrow.types as pat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featurestore
from featurestore.arrow.json_schemas import schema_from_json_schema
from featurestore.errors import FeatureStoreError
from featurestore.model.stream import StreamSpec
from tests.streams.registry_server import Registered, header, schema_registry
from tests.streams.test_stream_values import decoded

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Record",
    "type": "object",
    "properties": {
        "i": {"type": "integer", "minimum": -5, "default": 1},
        "f": {"type": ["number", "null"], "exclusiveMaximum": 1e300},
        "s": {"anyOf": [{"$ref": "#/$defs/short"}, {"type": "null"}]},
        "e": {"enum": ["a", "b", None]},
        "c": {"const": 1, "type": "integer"},
        "l": {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 2},
        "o": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/item"}]},
        "m": {"type": "object", "additionalProperties": {"type": "boolean"}},
        "z": {"oneOf": [{"type": "null"}, {"type": ["string", "null"]}]},
    },
    "required": ["i", "other"],
    "$defs": {
        "short": {"type": "string", "minLength": 1, "maxLength": 3, "format": "email"},
        "item": {
            "type": "object",
            "properties": {"n": {"type": "integer"}, "t": {"type": ["string", "null"]}},
            "required": ["n"],
            "additionalProperties": False,
        },
    },
}
TEXT = json.dumps(SCHEMA)
COLUMNS = schema_from_json_schema(TEXT)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, 1.0, -5.0, 2**53 + 1, 2**63, -(2**63), 1.5, 1e308, -0.0]),
    st.sampled_from(["", "a", "b", "\U0001f600" * 3, "abcd"]),
)
INTEGERS = st.sampled_from([0, 1, 1.0, -5.0, 2**53 + 1, 2**63, -(2**63)])
TEXTS = st.sampled_from(["a", "b", "\U0001f600" * 3, None])
ITEMS = st.fixed_dictionaries({"n": INTEGERS}, optional={"t": TEXTS, "u": LEAVES})
MEMBERS = st.fixed_dictionaries(
    {"i": st.sampled_from([0, 1.0, -5, 2**53 + 1]), "other": LEAVES},
    optional={
        "f": st.sampled_from([0.1, -0.0, 1, None, 2**53 + 1]),
        "s": TEXTS,
        "e": st.sampled_from(["a", "b", None]),
        "c": st.sampled_from([1, 1.0]),
        "l": st.lists(ITEMS, max_size=3),
        "o": ITEMS | st.none(),
        "m": st.dictionaries(st.sampled_from("abc"), st.booleans(), max_size=3),
        "z": st.sampled_from(["", None]),
        "unknown": LEAVES,
    },
)
# Most members are valid, so that few records have several invalid members.
CHANGES = st.dictionaries(st.sampled_from("ifsecomlz"), LEAVES | ITEMS, max_size=1)
RECORDS = st.builds(lambda members, changes: {**members, **changes}, MEMBERS, CHANGES)


def fits(value: Any, column: pa.DataType) -> bool:
    """Return by the rule whether a column has a valid value."""
    if value is None:
        return True
    if pat.is_struct(column):
        return all(fits(value.get(field.name), field.type) for field in column)
    if pat.is_list(column):
        items = value.values() if isinstance(value, dict) else value
        item_type = column.value_type
        if isinstance(value, dict):
            item_type = item_type.field("value").type
        return all(fits(item, item_type) for item in items)
    if pat.is_integer(column):
        return -(2**63) <= value < 2**63
    if pat.is_floating(column) and isinstance(value, int):
        return int(float(value)) == value
    return True


def as_row(value: Any, column: pa.DataType) -> Any:
    """Return a valid value as the column has it."""
    if value is None:
        return None
    if pat.is_struct(column):
        return {field.name: as_row(value.get(field.name), field.type) for field in column}
    if isinstance(value, dict):
        return [{"key": key, "value": value[key]} for key in sorted(value)]
    if pat.is_list(column):
        return [as_row(item, column.value_type) for item in value]
    return int(value) if pat.is_integer(column) else value


@settings(max_examples=150)
@given(st.lists(RECORDS, min_size=1, max_size=10))
def test_record_is_stored_if_validator_accepts_it(records: list[dict[str, Any]]) -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    spec = StreamSpec("e", "t", COLUMNS, "json_schema", message_schema=TEXT)
    rows = decoded(spec, [header(1) + json.dumps(record).encode() for record in records])
    for record, row in zip(records, rows, strict=True):
        fitting = [
            fits(record.get(column.name), column.type)
            for column in COLUMNS
            if validator.is_valid(record)
        ]
        is_good = bool(fitting) and all(fitting)
        assert (row["record_error"] is None) == is_good, (record, row["record_error"])
        if is_good:
            expected = {
                column.name: as_row(record.get(column.name), column.type) for column in COLUMNS
            }
            assert {name: row[name] for name in COLUMNS.names} == expected


def test_registered_schema_must_be_a_json_schema() -> None:
    good = json.dumps({"i": 1, "other": 0}).encode()
    registered = {1: Registered(TEXT, "JSON"), 2: {"type": "string"}}
    with schema_registry(registered) as address:
        spec = StreamSpec(
            "e", "t", COLUMNS, "json_schema", message_schema=TEXT, schema_registry=address
        )
        values = [header(number) + good for number in (1, 2, 3)]
        rows = decoded(spec, [*values, good, header(1) + b"\xff", header(1) + b"[]", None])
    assert [str(row["record_error"]) for row in rows] == [
        "None",
        "schema 2 of the registry has the type AVRO, not JSON",
        "the schema registry has no schema 3",
        "the value does not begin with the header of a schema registry",
        "the value is not UTF-8 text",
        "the value is an array, not an object",
        "the record has no value",
    ]


def doubled(levels: int) -> dict[str, Any]:
    """Return a schema whose number of columns doubles with each level."""
    definitions: dict[str, Any] = {f"d{levels}": {"type": "integer"}}
    for level in range(levels):
        reference = {"$ref": f"#/$defs/d{level + 1}"}
        definitions[f"d{level}"] = {
            "type": "object",
            "properties": {"a": reference, "b": reference},
        }
    return {"$ref": "#/$defs/d0", "$defs": definitions}


INVALID: dict[str, Any] = {
    "not JSON": "{",
    "not an object": "[]",
    "no object": {"type": "string"},
    "no properties": {"type": "object"},
    "many columns": doubled(15),
    "deep": doubled(40),
    "recursive": {"properties": {"a": {"$ref": "#"}}},
    "reference to itself": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    "no target": {"properties": {"a": {"$ref": "#/$defs/b"}}},
    "anchor": {"properties": {"a": {"$ref": "#b"}}},
    "reference and limit": {"properties": {"a": {"$ref": "#/$defs/b", "minimum": 1}}, "$defs": {"b": {}}},
    "limit of draft 4": {"properties": {"a": {"type": "integer", "exclusiveMinimum": True}}},
    "limit out of range": '{"properties": {"a": {"type": "integer", "minimum": 1e-99999999999999999999}}}',
    "all of": {"allOf": [{"type": "object"}]},
    "enum of arrays": {"properties": {"a": {"enum": [[1]]}}},
    "names differ in case": {"properties": {"a": {"properties": {"n": {"type": "integer"}, "N": {"type": "integer"}}}}},
    "invalid required": {"properties": {"a": {"type": "integer"}}, "required": "a"},
    "true": {"properties": {"a": True}},
    "nested text": "[" * 100_000,
    "long text": " " * (1 << 20) + TEXT,
}  # fmt: skip


@pytest.mark.parametrize("schema", INVALID.values(), ids=INVALID)
def test_invalid_or_unsupported_schema_is_refused(schema: Any) -> None:
    with pytest.raises(FeatureStoreError):
        featurestore.stream_job("a", source="e", topic="t", format="json_schema", schema=schema)
