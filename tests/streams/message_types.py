"""The types of Avro, Protobuf and JSON Schema: their columns, and the values that are stored or refused.

``docs/how-to/streams.md`` has these tables.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

MAX, MIN = 2**63 - 1, -(2**63)
BIG = 2**53 + 1
YEAR_1 = -62_135_596_800
TINY = math.ulp(0.0)


@dataclass(frozen=True)
class TypeCase:
    """Declarations with the same column type.

    ``stored`` maps values as written to the values of the column, ``refused`` values to a part of
    the reason. ``exact`` and ``inexact`` describe them on the page.
    """

    name: str
    declarations: Sequence[Any]
    column: str
    stored: Sequence[tuple[Any, Any]]
    refused: Sequence[tuple[Any, str]] = ()
    exact: str = "all values"
    inexact: str = ""
    page_column: str = ""


@dataclass(frozen=True)
class Refusal:
    """A type without a column, and a part of the error."""

    name: str
    declaration: Any
    reason: str


def same(*values: Any) -> list[tuple[Any, Any]]:
    return [(value, value) for value in values]


def instant(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[misc,arg-type]


INT32, INT64 = same(0, 2**31 - 1, -(2**31)), same(0, BIG, MAX, MIN)
UINT32, UINT64 = same(0, 2**32 - 1), same(0, BIG, 2**64 - 1)
FLOAT32 = [*same(0.5, -0.0, math.inf), (0.1, 0.10000000149011612)]
FLOAT64 = same(0.1, -0.0, TINY, 1.7e308, -math.inf)
TEXT, BYTES = same("", "é\0"), same(b"", b"\xff\0")
STAMP, DATE = instant(2024, 2, 29, 1, 2, 3, 4), dt.date(2024, 2, 29)
EPOCH = instant(1970, 1, 1)


PROTOBUF = [
    TypeCase("`int32`, `sint32`, `sfixed32`", ["int32 x", "sint32 x", "sfixed32 x"], "int32", INT32),
    TypeCase("`int64`, `sint64`, `sfixed64`", ["int64 x", "sint64 x", "sfixed64 x"], "int64", INT64),
    TypeCase("`uint32`, `fixed32`", ["uint32 x", "fixed32 x"], "uint32", UINT32),
    TypeCase("`uint64`, `fixed64`", ["uint64 x", "fixed64 x"], "uint64", UINT64),
    TypeCase("`float`", ["float x"], "float", FLOAT32),
    TypeCase("`double`", ["double x"], "double", FLOAT64),
    TypeCase(
        "`bool`", ["bool x"], "bool", same(False, True), [(b"\x08\x05", "5 is not a boolean")],
        inexact="a number that is not 0 or 1",
    ),
    TypeCase(
        "`string`", ["string x"], "string", TEXT, [(b"\x0a\x01\xff", "x: the value is not UTF-8 text")],
        inexact="bytes that are not UTF-8",
    ),
    TypeCase("`bytes`", ["bytes x"], "binary", BYTES),
    TypeCase(
        "enum", ["Color x"], "string", [(0, "RED"), (1, "GREEN"), (-5, "BLUE")],
        [(7, "7 is not a value of the enum Color")],
        "the name of the number, of several the first", "a number without a name",
    ),
    TypeCase(
        "message", ["Item x"], "struct<n: int64, tags: list<item: string>>",
        [(None, None), ({}, {"n": 0, "tags": []}), ({"n": BIG, "tags": ["a"]},) * 2],
        exact="all values; absent is null", page_column="struct",
    ),
    TypeCase(
        "`optional`, a member of `oneof`, and a field of proto2",
        ["optional int64 x", "oneof which { int64 x = 1; Item other = 2; }"], "int64",
        [*same(0, MAX), (None, None)], exact="all values; absent is null, or the default of proto2",
        page_column="as declared",
    ),
    TypeCase(
        "another field", ["int64 x"], "int64", [(None, 0), (0, 0)], exact="absent is 0, false, empty, or the enum's 0",
        page_column="as declared",
    ),
    TypeCase(
        "`repeated`", ["repeated int64 x", "repeated int64 x = 1 [packed = false]; reserved 9"],
        "list<item: int64>", same([], [1, MIN]), exact="all values; absent is empty", page_column="list",
    ),
    TypeCase(
        "`map`", ["map<string, int64> x"], "list<item: struct<key: string, value: int64>>",
        [({}, []), ({"b": MAX, "a": 0}, [{"key": "a", "value": 0}, {"key": "b", "value": MAX}])],
        exact="all values, sorted by key; absent is empty", page_column="list of structs `key`, `value`",
    ),
    TypeCase(
        "`google.protobuf.Timestamp`", ["google.protobuf.Timestamp x"], "timestamp[us, tz=UTC]",
        [
            (None, None),
            ({"seconds": -1, "nanos": 999_999_000}, instant(1969, 12, 31, 23, 59, 59, 999_999)),
            ({"seconds": YEAR_1}, instant(1, 1, 1)),
            ({"seconds": 2**33, "nanos": 1000}, EPOCH + dt.timedelta(seconds=2**33, microseconds=1)),
        ],
        [
            ({"nanos": 1}, "finer than microseconds"), ({"seconds": YEAR_1 - 1}, "before year 1"),
            ({"nanos": -1000}, "are not in a second"), ({"seconds": MAX}, "after year 9999"),
        ],
        "microseconds in the years 1 to 9999; absent is null", "nanoseconds, other years",
    ),
    TypeCase(
        "`google.protobuf.Duration`", ["google.protobuf.Duration x"], "int64",
        [(None, None), ({"seconds": -1, "nanos": -5000}, -1_000_005), ({"seconds": 2**40}, 2**40 * 10**6)],
        [
            ({"nanos": 1}, "finer than microseconds"), ({"seconds": 1, "nanos": -1000}, "are not a duration"),
            ({"seconds": MAX}, "x is not int64"),
        ],
        "microseconds; absent is null", "nanoseconds",
    ),
    TypeCase(
        "`google.protobuf.Int64Value` and the other wrappers", ["google.protobuf.Int64Value x"], "int64",
        [(None, None), ({}, 0), ({"value": BIG}, BIG)], exact="its value; absent is null",
        page_column="type of the value",
    ),
]  # fmt: skip
PROTOBUF_REFUSED = [
    Refusal("a recursive message (also `google.protobuf.Struct`)", "Tree x", "recursive"),
    Refusal("a message without fields", "Nothing x", "without fields"),
]
JSON_SCHEMA = [
    TypeCase(
        "`integer`", [{"type": "integer"}], "int64",
        [*((str(value), value) for value in (0, BIG, MAX, MIN)), ("1.0", 1), ("12e2", 1200)],
        [(str(2**63), "x is a number"), ("1.5", "not integer"), ('"1"', "not integer"), ("null", "null")],
        "-2⁶³ to 2⁶³-1, also `1.0`", "other integers",
    ),
    TypeCase(
        "`number`", [{"type": "number"}, {"type": ["number", "integer"]}], "double",
        [("0.1", 0.1), ("-0.0", -0.0), ("5e-324", TINY), (str(2**53), 2.0**53)],
        [(str(BIG), "x is a number"), ("1e400", "outside the range"), ("true", "not number")],
        "the nearest double", "integers that no double has, numbers out of range",
    ),
    TypeCase("`boolean`", [{"type": "boolean"}], "bool", [("true", True)], [("1", "not boolean")]),
    TypeCase(
        "`string`, also with an unknown `format`", [{"type": "string"}, {"type": "string", "format": "uuid"}],
        "string", [('"a"', "a"), (r'"\u00e9"', "é")], [("1", "not string")],
    ),
    TypeCase(
        "`string` with `format: date-time`", [{"type": "string", "format": "date-time"}],
        "timestamp[us, tz=UTC]",
        [('"2024-02-29T03:02:03.000004+02:00"', STAMP), ('"2024-02-29T01:02:03.000004Z"', STAMP)],
        [('"2024-02-29T01:02:03.0000041Z"', "x: "), ('"yesterday"', "x: ")],
        "microseconds in the years 1 to 9999; UTC without an offset", "nanoseconds, other texts",
    ),
    TypeCase(
        "`string` with `format: date`", [{"type": "string", "format": "date"}], "date32[day]",
        [('"2024-02-29"', DATE)], [('"2023-02-29"', "x: ")], "the years 1 to 9999", "other texts",
    ),
    TypeCase(
        "`enum`, `const` (also of numbers and booleans)",
        [{"enum": ["a", "b"]}, {"type": "string", "enum": ["a", "b", "c"]}], "string",
        [('"b"', "b")], [('"d"', "not in the enum")], inexact="other values", page_column="type of the values",
    ),
    TypeCase(
        "`array`", [{"type": "array", "items": {"type": "integer"}}], "list<item: int64>",
        [("[]", []), (f"[1, {MAX}]", [1, MAX])], [("[null]", "x[] is null"), ("1", "not array")],
        page_column="list",
    ),
    TypeCase(
        "`object` with `properties`",
        [{"properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}],
        "struct<n: int64>", [('{"n": 1}', {"n": 1})],
        [
            ("{}", "x.n is required, and missing"), ('{"n": 1, "m": 1}', "the name 'x.m' is not in schema="),
            ("[]", "not object"),
        ],
        inexact="a missing name of `required`, a name against `additionalProperties: false`", page_column="struct",
    ),
    TypeCase(
        "`object` with a schema as `additionalProperties`",
        [{"type": "object", "additionalProperties": {"type": "integer"}}],
        "list<item: struct<key: string, value: int64>>",
        [("{}", []), ('{"b": 1, "a": 2}', [{"key": "a", "value": 2}, {"key": "b", "value": 1}])],
        [('{"a": 0.5}', "x['a'] is a number")], "all values, sorted by key",
        page_column="list of structs `key`, `value`",
    ),
    TypeCase(
        "a union with null",
        [
            {"type": ["null", "integer"]}, {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/id"}]},
        ],
        "int64", [("null", None), ("5", 5)], [('"a"', "not integer")], page_column="type of the other schema",
    ),
    TypeCase(
        "`minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`, lengths and numbers of items",
        [{"type": "integer", "minimum": 1.5, "exclusiveMaximum": BIG}], "int64", [("2", 2), (str(BIG - 1), BIG - 1)],
        [("1", "its minimum is 1.5"), (str(BIG), "exclusiveMaximum")], "valid values", "invalid values",
        page_column="as declared",
    ),
]  # fmt: skip
JSON_SCHEMA_REFUSED = [
    Refusal("a union of several types", {"type": ["string", "integer"]}, "a union of several types"),
    Refusal("`allOf`, `not`, `if`, `pattern` and other keywords", {"type": "string", "pattern": "a"}, "'pattern'"),
    Refusal("a reference to another schema", {"$ref": "https://example.com/a.json"}, "a reference to another schema"),
    Refusal("a recursive reference", {"$ref": "#/$defs/tree"}, "a recursive schema"),
    Refusal("no type, no `properties`", {}, "without a type"),
]  # fmt: skip
_STAMPS = {"type": "long", "logicalType": "timestamp-micros"}
AVRO = [
    TypeCase("`int`", ["int"], "int32", INT32),
    TypeCase("`long`", ["long"], "int64", INT64),
    TypeCase("`float`", ["float"], "float", FLOAT32),
    TypeCase("`double`", ["double"], "double", FLOAT64),
    TypeCase("`boolean`", ["boolean"], "bool", same(True, False)),
    TypeCase("`string`, enum", ["string", {"type": "enum", "name": "e", "symbols": ["a", "b"]}], "string", same("a")),
    TypeCase("`bytes`, fixed", ["bytes", {"type": "fixed", "name": "f", "size": 2}], "binary", same(b"\xff\0")),
    TypeCase("`uuid`", [{"type": "string", "logicalType": "uuid"}], "string", [(UUID(int=5), str(UUID(int=5)))]),
    TypeCase("`date`", [{"type": "int", "logicalType": "date"}], "date32[day]", same(DATE, dt.date(1, 1, 1))),
    TypeCase(
        "`timestamp-micros`, `timestamp-millis`, and their local forms",
        [_STAMPS, {"type": "long", "logicalType": "local-timestamp-micros"}], "timestamp[us, tz=UTC]",
        [(STAMP, STAMP)], [(2**62, "out of range")],
        "the years 1 to 9999; local times are read as UTC", "other years",
    ),
    TypeCase(
        "`time-micros`, `time-millis`", [{"type": "long", "logicalType": "time-micros"}], "int64",
        [(dt.time(0, 0, 2), 2_000_000)], exact="microseconds, or milliseconds, since midnight",
    ),
    TypeCase(
        "`decimal`", [{"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}], "decimal128(38, 2)",
        same(Decimal("0.01"), Decimal("9" * 36 + ".99")), exact="up to 38 digits",
    ),
    TypeCase(
        "record", [{"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}], "struct<n: int64>",
        same({"n": BIG}), page_column="struct",
    ),
    TypeCase(
        "array", [{"type": "array", "items": "long"}], "list<item: int64>", same([], [MAX]), page_column="list",
    ),
    TypeCase(
        "a union with null", [["null", "long"]], "int64", same(None, MIN), page_column="type of the other schema",
    ),
]  # fmt: skip
AVRO_REFUSED = [
    Refusal("map", {"type": "map", "values": "long"}, "'map'"),
    Refusal("a union of several types", ["string", "long"], "a union of several types"),
    Refusal("nanoseconds", {"type": "long", "logicalType": "timestamp-nanos"}, "finer than microseconds"),
]  # fmt: skip
LANGUAGES: Mapping[str, tuple[Sequence[TypeCase], Sequence[Refusal]]] = {
    "Avro": (AVRO, AVRO_REFUSED),
    "Protobuf": (PROTOBUF, PROTOBUF_REFUSED),
    "JSON Schema": (JSON_SCHEMA, JSON_SCHEMA_REFUSED),
}
# Other names of types on the page, as in the schemas of jobs.
_PAGE_TYPES = {
    "timestamp[us, tz=UTC]": "timestamp",
    "date32[day]": "date",
    "decimal128(38, 2)": "decimal",
    "item: ": "",
}


def page_tables() -> Iterator[str]:
    """Yield the lines of the tables on the page."""
    for language, (cases, refusals) in LANGUAGES.items():
        yield f"| {language} | column | stored | refused |"
        yield "| --- | --- | --- | --- |"
        for case in cases:
            column = case.column
            for name, short in _PAGE_TYPES.items():
                column = column.replace(name, short)
            cells = [case.name, case.page_column or f"`{column}`", case.exact, case.inexact]
            yield " | ".join(["", *cells, ""]).replace("|  |", "| |").strip()
        for refusal in refusals:
            yield f"| {refusal.name} | none | | by `job register` |"
        yield ""


PROTOBUF_TYPES = """
enum Color { option allow_alias = true; RED = 0; GREEN = 1; LIME = 1; BLUE = -5; }
message Item { int64 n = 1; repeated string tags = 2; }
message Tree { repeated Tree children = 1; }
message Nothing {}
"""


def proto_of(declaration: str) -> str:
    """Return a schema whose first message has the field x."""
    if "=" not in declaration:
        declaration += " = 1"
    body = declaration if declaration.startswith("oneof") else f"{declaration};"
    imports = "".join(
        f'import "google/protobuf/{file}.proto";'
        for name, file in (
            ("Timestamp", "timestamp"),
            ("Duration", "duration"),
            ("Value", "wrappers"),
        )
        if name in declaration
    )
    return f'syntax = "proto3"; {imports} message Row {{ {body} }} {PROTOBUF_TYPES}'


def json_schema_of(declaration: Mapping[str, Any]) -> str:
    """Return a schema of objects with the property x."""
    defs = {"id": {"type": "integer"}, "tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}
    return json.dumps({"type": "object", "properties": {"x": declaration}, "$defs": defs})


def avro_of(declaration: Any) -> str:
    """Return a record schema with the field x."""
    fields = [{"name": "x", "type": declaration}]
    return json.dumps({"type": "record", "name": "row", "fields": fields})
