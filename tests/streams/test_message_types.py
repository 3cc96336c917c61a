"""Values of Avro, Protobuf and JSON Schema are stored exactly, or refused with a reason."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import featurestore
from featurestore.arrow.json_schemas import schema_from_json_schema
from featurestore.arrow.proto_schemas import schema_from_proto
from featurestore.arrow.schemas import schema_from_avro
from featurestore.errors import InvalidJob
from featurestore.model.stream import StreamSpec, ValueFormat
from tests.streams import message_types
from tests.streams.message_types import LANGUAGES, avro_of, json_schema_of, proto_of
from tests.streams.registry_server import header, message_class
from tests.streams.test_stream_values import datum, decoded

pytest.importorskip("grpc_tools")

_FORMATS: dict[str, tuple[ValueFormat, Callable[[Any], str], Callable[[str], Any]]] = {
    "Avro": ("avro", avro_of, schema_from_avro),
    "Protobuf": ("protobuf", proto_of, schema_from_proto),
    "JSON Schema": ("json_schema", json_schema_of, schema_from_json_schema),
}


def encoded(language: str, text: str, value: Any) -> bytes:
    """Return a record with the value x, which the library of the language writes."""
    if language == "JSON Schema":
        return header(1) + f'{{"x": {value}}}'.encode()
    if language == "Avro":
        schema = json.loads(text)
        if isinstance(value, int) and "timestamp" in text:  # out of range of datetime
            schema["fields"][0]["type"] = "long"
        return datum(1, schema, {"x": value})
    if isinstance(value, bytes) and "bytes x" not in text:
        return header(1, 0) + value
    message = message_class(text, "Row")
    content: bytes = message(**({} if value is None else {"x": value})).SerializeToString()
    return header(1, 0) + content


def is_same(actual: Any, expected: Any) -> bool:
    if isinstance(expected, float):
        return actual == expected and math.copysign(1, actual) == math.copysign(1, expected)
    return type(actual) is type(expected) and actual == expected


@pytest.mark.parametrize("language", LANGUAGES)
def test_value_is_stored_exactly_or_refused(language: str, subtests: pytest.Subtests) -> None:
    value_format, schema_of, columns_of = _FORMATS[language]
    for case in LANGUAGES[language][0]:
        for declaration in case.declarations:
            text = schema_of(declaration)
            columns = columns_of(text)
            values = [value for value, _ in (*case.stored, *case.refused)]
            records = [encoded(language, text, value) for value in values]
            spec = StreamSpec("e", "t", columns, value_format, message_schema=text)
            rows = decoded(spec, records)
            with subtests.test(declaration):
                assert str(columns.field("x").type) == case.column
                for (value, expected), row in zip(case.stored, rows, strict=False):
                    assert row["record_error"] is None, value
                    assert is_same(row["x"], expected), value
                for (value, reason), row in zip(
                    case.refused, rows[len(case.stored) :], strict=True
                ):
                    assert reason in str(row["record_error"]), value


@pytest.mark.parametrize("language", LANGUAGES)
def test_type_without_column_is_refused_by_name(language: str, subtests: pytest.Subtests) -> None:
    value_format, schema_of, _ = _FORMATS[language]
    for refusal in LANGUAGES[language][1]:
        with subtests.test(refusal.name), pytest.raises(InvalidJob, match="'x") as refused:
            featurestore.stream_job(
                "rows",
                source="e",
                topic="t",
                format=value_format,
                schema=schema_of(refusal.declaration),
            )
        assert refusal.reason in str(refused.value)


def test_page_has_tables_of_types() -> None:
    page = Path(__file__).parents[2] / "docs/how-to/streams.md"
    assert "\n".join(message_types.page_tables()) in page.read_text(encoding="utf-8")
