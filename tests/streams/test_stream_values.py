"""Record values that are accepted, and reasons for quarantine."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featurestore
from featurestore.arrow.schemas import schema_from_avro
from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import InvalidJob
from featurestore.model.stream import StreamSpec
from featurestore.plugins.source import DecoderRequest
from tests.streams.registry_server import header, schema_registry

decoding = pytest.importorskip("featurestore_connectors.kafka.decoding")
pytest.importorskip("fastavro")

WRITER: dict[str, Any] = {
    "type": "record",
    "name": "click",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "user", "type": ["null", "string"]},
        {"name": "gone", "type": "int"},
    ],
}
READER: dict[str, Any] = {
    "type": "record",
    "name": "click",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "user", "type": ["null", "string"]},
        {"name": "score", "type": "double", "default": 0.5},
    ],
}


def decoded(
    spec: StreamSpec,
    values: Sequence[bytes | None],
    *required: str,
    keys: Sequence[bytes] | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of records, whose keys are "k" by default."""
    count = len(values)
    columns = {
        "topic": pa.array(["clicks"] * count),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.array([1_700_000_000_000_000] * count, pa.int64()).cast(TIMESTAMP),
        "key": pa.array(keys or [b"k"] * count, pa.binary()),
        "value": pa.array(values, pa.binary()),
    }
    batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=decoding.RECORDS)
    rows: list[dict[str, Any]] = decoding.decoder(spec, DecoderRequest(required))(batch).to_pylist()
    return rows


def datum(number: int, schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    import fastavro

    out = io.BytesIO()
    out.write(header(number))
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


SCALARS = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("o", pa.int8()),
    ]
)
JSON_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
)


def fits(dtype: pa.DataType, value: Any) -> bool:
    """Return by the rule whether a JSON value fits a type."""
    if value is None:
        return True
    if dtype == pa.bool_():
        return isinstance(value, bool)
    if dtype == pa.string():
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if dtype == pa.float64():
        return True
    bits = 8 if dtype == pa.int8() else 64
    return isinstance(value, int) and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)


@settings(max_examples=60)
@given(st.lists(st.fixed_dictionaries(dict.fromkeys(SCALARS.names, JSON_VALUES)), min_size=1))
def test_json_record_with_wrong_type_is_bad(
    rows: list[dict[str, Any]],
) -> None:
    actual = decoded(StreamSpec("e", "t", SCALARS), [json.dumps(row).encode() for row in rows])
    for row, got in zip(rows, actual, strict=True):
        good = all(fits(field.type, row[field.name]) for field in SCALARS)
        assert (got["record_error"] is None) == good, (row, got)
        if good:
            assert {name: got[name] for name in SCALARS.names} == row


def test_json_nested_values_are_type_checked() -> None:
    schema = pa.schema(
        [("tags", pa.list_(pa.int64())), ("g", pa.struct([("x", pa.int32()), ("y", pa.string())]))]
    )
    values = [
        b'{"tags": [1, null, 3], "g": {"x": 1, "y": "a"}}',
        b'{"tags": [1.5], "g": null}',
        b'{"tags": 3}',
        b'{"g": {"x": "1"}}',
        b"{}",
    ]
    actual = decoded(StreamSpec("e", "t", schema), values)
    assert actual[0]["tags"] == [1, None, 3]
    assert actual[0]["g"] == {"x": 1, "y": "a"}
    assert [row["record_error"] is None for row in actual] == [True, False, False, False, True]


def test_avro_is_resolved_from_registered_writer_schema() -> None:
    spec = StreamSpec(
        "e", "t", schema_from_avro(json.dumps(READER)), "avro", message_schema=json.dumps(READER)
    )
    row = {"id": 5, "user": None, "gone": 1}
    good, unknown = datum(7, WRITER, row), datum(8, WRITER, row)
    with schema_registry({7: WRITER}) as address:
        request = StreamSpec(
            "e",
            "t",
            spec.schema,
            "avro",
            message_schema=spec.message_schema,
            schema_registry=address,
        )
        actual = decoded(request, [good, unknown, b"{}", good[:6], None])
    assert (actual[0]["id"], actual[0]["score"], actual[0]["record_error"]) == (5, 0.5, None)
    assert actual[1]["record_error"] == "the schema registry has no schema 8"
    assert all(row["record_error"] for row in actual[2:])
    rows = decoded(spec, [datum(1, READER, {"id": 6, "user": "u", "score": 2.0})])
    assert (rows[0]["id"], rows[0]["user"], rows[0]["record_error"]) == (6, "u", None)


def test_raw_values_have_record_time_and_key() -> None:
    schema = pa.schema([("value", pa.string())])
    fields = {"sent": "timestamp", "who": "key", "n": "offset"}
    spec = StreamSpec("e", "t", schema, "raw", fields=fields)
    good, bad = decoded(spec, ["é".encode(), b"\xff"], "sent")
    assert (good["value"], good["who"], good["n"]) == ("é", "k", 0)
    assert good["sent"].year == 2023
    assert bad["record_error"] == "the value is not UTF-8 text"
    with pytest.raises(InvalidJob, match="one column"):
        decoding.decoder(StreamSpec("e", "t", SCALARS, "raw"), DecoderRequest())


def test_schema_from_avro_unsupported_field_raises() -> None:
    union = {**READER, "fields": [{"name": "either", "type": ["string", "long"]}]}
    with pytest.raises(InvalidJob, match="'either'"):
        schema_from_avro(json.dumps(union))
    with pytest.raises(InvalidJob, match="is not an Avro record schema"):
        schema_from_avro("[]")


FOREIGN = {"Customer Id": "int64", "at": "timestamp", "Año": "int64"}


def foreign_job(**arguments: Any) -> StreamSpec:
    options = {"source": "e", "topic": "t", "schema": FOREIGN, "event_time": "at", **arguments}
    spec = featurestore.stream_job("clicks", **options).spec.work.stream
    assert spec is not None
    return StreamSpec.from_json(json.loads(json.dumps(spec.to_json())))


@pytest.mark.parametrize("rename", ["snake_case", {"Customer Id": "customer_id", "Año": "ano"}])
def test_stream_rename_maps_foreign_field_names(rename: Any) -> None:
    spec = foreign_job(rename=rename, primary_key="customer_id", mode="upsert")
    value = '{"Customer Id": 5, "at": "2024-01-01T00:00:00Z", "Año": 3}'.encode()
    row, bad_row = decoded(spec, [value, None], "customer_id")
    assert (row["customer_id"], row["ano"], row["record_error"]) == (5, 3, None)
    assert bad_row["record_error"] == "the key: customer_id is a string ('k'), which is not int64"


def test_foreign_name_error_hint_is_valid_rename() -> None:
    with pytest.raises(InvalidJob) as refused:
        foreign_job()
    hint = str(refused.value.hint).partition(", or ")[0]
    assert foreign_job(**eval(f"dict({hint})")).schema.names == ["Customer_Id", "at", "Ano"]
    with pytest.raises(InvalidJob, match="'Customer'"):
        foreign_job(rename={"Customer": "customer"})
