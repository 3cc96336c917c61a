"""Protobuf records equal what protoc and google's library write, also by other versions of a schema."""

from __future__ import annotations

import contextlib
import random
import re
from base64 import b64encode
from collections.abc import Mapping
from datetime import date
from importlib.metadata import distribution
from itertools import count
from operator import methodcaller
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import featurestore
from featurestore.arrow.proto_schemas import (
    EnumType,
    MessageType,
    ProtoSchema,
    default_value,
    schema_from_proto,
)
from featurestore.arrow.proto_text import ProtoError, parse_proto
from featurestore.errors import FeatureStoreError, InvalidJob
from featurestore.model.stream import StreamSpec
from featurestore_connectors.kafka.protobuf_values import parse_registered
from tests.streams.registry_server import (
    Registered,
    descriptors,
    header,
    message_class,
    schema_registry,
)
from tests.streams.test_stream_values import decoded

pytest.importorskip("grpc_tools")
FieldDescriptorProto = pytest.importorskip("google.protobuf.descriptor_pb2").FieldDescriptorProto

PROTO3 = 'syntax = "proto3"; '
PROTO2 = 'syntax = "proto2"; '


def spec_of(text: str, registry: str | None = None, **options: Any) -> StreamSpec:
    columns = schema_from_proto(text)
    return StreamSpec(
        "e", "t", columns, "protobuf", message_schema=text, schema_registry=registry, **options
    )


def test_schema_equals_descriptor_of_protoc(subtests: pytest.Subtests) -> None:
    """For the schemas of the installed packages, and one with all statements, as text and in base64."""
    texts = {"record.proto": ALL_STATEMENTS}
    for package in ("googleapis-common-protos", "opentelemetry-proto", "grpcio-tools"):
        for file in distribution(package).files or ():
            if file.suffix == ".proto":
                name = str(file).removeprefix("grpc_tools/_proto/")
                texts[name] = Path(str(file.locate())).read_text(encoding="utf-8")
    assert len(texts) > 50
    compiled = descriptors(ALL_STATEMENTS, texts)
    parsed = ProtoSchema([parse_proto(text) for text in texts.values()])
    encoded = map(b64encode, map(methodcaller("SerializeToString"), compiled.values()))
    registered = ProtoSchema([parse_registered(content.decode()) for content in encoded])
    for name, descriptor in compiled.items():
        prefix = f"{descriptor.package}." if descriptor.package else ""
        with subtests.test(name):
            for schema in (parsed, registered):
                compare_types(schema, descriptor.message_type, descriptor.enum_type, prefix)


def compare_types(schema: ProtoSchema, messages: Any, enums: Any, prefix: str) -> None:
    """Compare the types of a scope with descriptors."""
    for enum in enums:
        declared = schema.types[prefix + enum.name]
        assert isinstance(declared, EnumType)
        values = [(value.name, value.number) for value in enum.value]
        assert list(declared.declared.values) == values
    for message in messages:
        if message.options.map_entry:
            continue
        declared_message = schema.types[prefix + message.name]
        assert isinstance(declared_message, MessageType)
        compare_fields(schema, declared_message, message)
        compare_types(schema, message.nested_type, message.enum_type, f"{prefix}{message.name}.")


def compare_fields(schema: ProtoSchema, message: MessageType, descriptor: Any) -> None:
    labels = {1: "", 2: "required", 3: "repeated"}
    types = dict(map(reversed, FieldDescriptorProto.Type.items()))  # type: ignore[arg-type]
    entries = {nested.name: nested for nested in descriptor.nested_type}
    assert len(message.fields) == len(descriptor.field)
    for declared, field in zip(message.fields, descriptor.field, strict=True):
        assert (declared.name, declared.number) == (field.name, field.number)
        value_field = field
        if declared.map_key is not None:
            key, value_field = entries[field.type_name.rpartition(".")[2]].field
            assert types[key.type] == f"TYPE_{declared.map_key.upper()}"
        else:
            assert declared.label.replace("optional", "") == labels[field.label]
        field_type = schema.field_type(message, declared)
        if isinstance(field_type, str):
            assert types[value_field.type] == f"TYPE_{field_type.upper()}"
        else:
            assert value_field.type_name == f".{field_type.name}"
        assert declared.is_group == (types[value_field.type] == "TYPE_GROUP")
        has_oneof = field.HasField("oneof_index") and not field.proto3_optional
        assert (declared.oneof is not None) == has_oneof
        if isinstance(field_type, str) and field.default_value and field_type != "bytes":
            default = default_value(declared, field_type)
            text = str(default).lower() if isinstance(default, bool) else str(default)
            assert field.default_value in (
                text,
                f"{default:g}" if isinstance(default, float) else text,
            )


ALL_STATEMENTS = r"""
// A comment; message Not { }
syntax = "proto2"; /* another
comment */ package all.parts;
option java_package = "a.b"; option (own) = { a: 1 b: ["x", '}'] };
import "google/protobuf/descriptor.proto";
extend google.protobuf.FileOptions { optional Own own = 50000; }
message Own { optional int32 a = 1; repeated string b = 2; }
message Record {
  extensions 100 to 199, 1000 to max [verification = UNVERIFIED];
  reserved 50, 60 to 70; reserved "old", 'older';
  required sint64 first = 0x1 [deprecated = true, default = -9223372036854775808];
  optional string text = 02 [default = "a\"\x41\101\n;" "b", json_name = "[", ctype = CORD];
  optional float half = 3 [default = .5e1]; optional double far = 4 [default = -inf];
  optional bool yes = 5 [default = true]; optional Kind kind = 6 [default = B];
  repeated group Pair = 7 { optional int64 optional = 1; optional .all.parts.Record.Kind message = 2; }
  oneof choice { string syntax = 8; group Other = 9 { optional int32 import = 1; } }
  map<sfixed64, parts.Own> maps = 10; optional Record.Deep.Own deeper = 11; optional Own own = 12;
  enum Kind { option allow_alias = true; A = 0; B = -1 [deprecated = true]; C = 0; reserved 5 to max; }
  message Deep { message Own { optional all.parts.Own outer = 1; optional Own inner = 2; } };
}
service Calls { rpc Call(Record) returns (stream Own) { option deprecated = true; } rpc Other(Own) returns (Own); }
"""


INVALID = {
    "end": "message",
    "end of message": "message A {",
    "end of comment": PROTO3 + "/* message A { int32 a = 1; }",
    "end of string": PROTO3 + 'import "',
    "end of option": PROTO3 + "message A { int32 a = 1 [default = ",
    "syntax": 'syntax = "proto4";',
    "edition": 'edition = "2023"; message A { int32 a = 1; }',
    "number 0": PROTO3 + "message A { int32 a = 0; }",
    "large number": PROTO3 + "message A { int32 a = 536870912; }",
    "name repeated": PROTO3 + "message A { int32 a = 1; int32 a = 2; }",
    "number repeated": PROTO3 + "message A { int32 a = 1; int32 b = 1; }",
    "label missing": "message A { int32 a = 1; }",
    "label in oneof": PROTO3 + "message A { oneof o { repeated int32 a = 1; } }",
    "map key": PROTO3 + "message A { map<float, int32> a = 1; }",
    "unknown type": PROTO3 + "message A { missing.Type a = 1; }",
    "empty enum": PROTO3 + "enum E {} message A { E e = 1; }",
    "null character": PROTO3 + "message A { int32 \0 = 1; }",
    "names differ in case": PROTO3
    + "message A { B b = 1; } message B { int32 x = 1; int32 X = 2; }",
    "recursive": PROTO3 + "message A { B b = 1; } message B { repeated A a = 1; }",
    "nested declarations": "message A {" * 40 + "}" * 40,
    "nested types": PROTO3 + "".join(f"message M{n} {{ M{n + 1} a = 1; }}" for n in range(5000)),
    "many columns": PROTO3
    + "".join(f"message M{n} {{ M{n + 1} a = 1; M{n + 1} b = 2; }}" for n in range(15))
    + "message M15 { int32 a = 1; }",
    "long name": PROTO3 + f"package {'a.' * 200_000}a; message A {{ a.B b = 1; }}",
    "long text": " " * (1 << 20) + PROTO3 + "message A { int32 a = 1; }",
}


@pytest.mark.parametrize("text", INVALID.values(), ids=INVALID)
def test_invalid_or_huge_schema_is_refused(text: str) -> None:
    with pytest.raises(FeatureStoreError):
        featurestore.stream_job("a", source="e", topic="t", format="protobuf", schema=text)


@settings(max_examples=100)
@given(st.randoms(use_true_random=False))
def test_changed_schema_text_is_read_or_refused(source: random.Random) -> None:
    tokens = re.findall(r"\w+|\s+|.", ALL_STATEMENTS)
    for _ in range(source.randint(1, 4)):
        position = source.randrange(len(tokens))
        tokens[position : position + source.randint(0, 2)] = source.choices(
            tokens, k=source.randint(0, 2)
        )
    with contextlib.suppress(FeatureStoreError):
        schema_from_proto("".join(tokens))


# A change of a schema: writer, values as written, reader, and the row or a part of the reason.
EVOLUTION: Mapping[str, tuple[str, dict[str, Any], str, Mapping[str, Any] | str]] = {
    "added": ("int64 a = 1;", {"a": 1}, "int64 a = 1; int64 b = 2; repeated int64 c = 3;",
              {"a": 1, "b": None, "c": None}),
    "removed": ("int64 a = 1; Item b = 2;", {"a": 1, "b": {"n": 1}}, "int64 a = 1;", {"a": 1}),
    "reordered": ("string b = 2; int64 a = 1;", {"a": 1, "b": "x"}, "int64 a = 1; string b = 2;", {"a": 1, "b": "x"}),
    "renamed": ("int64 a = 1;", {"a": 1}, "int64 z = 1;", {"z": 1}),
    "number reused": ("int64 a = 1;", {"a": 1}, "string a = 1;", "is int64, and string in schema="),
    "wider": ("int32 a = 1; float b = 2;", {"a": -1, "b": 0.5}, "int64 a = 1; double b = 2;", {"a": -1, "b": 0.5}),
    "narrower": ("int64 a = 1;", {"a": 2**31}, "int32 a = 1;", "a is not int32"),
    "narrower, fits": ("int64 a = 1;", {"a": 2**31 - 1}, "int32 a = 1;", {"a": 2**31 - 1}),
    "unsigned": ("uint64 a = 1;", {"a": 2**63}, "int64 a = 1;", "a is not int64"),
    "signed": ("int32 a = 1;", {"a": -1}, "uint32 a = 1;", "a is not uint32"),
    "other encoding": ("sint64 a = 1;", {"a": -5}, "sfixed64 a = 1;", {"a": -5}),
    "less exact": ("double a = 1;", {"a": 0.1}, "float a = 1;", "is double, and float in schema="),
    "integer to number": ("int64 a = 1;", {"a": 1}, "double a = 1;", "is int64, and double in schema="),
    "text to bytes": ("string a = 1;", {"a": "x"}, "bytes a = 1;", "is string, and bytes in schema="),
    "repeated": ("int64 a = 1;", {"a": 1}, "repeated int64 a = 1;", "is singular, and repeated in schema="),
    "singular": ("repeated int64 a = 1;", {"a": [1]}, "int64 a = 1;", "is repeated, and singular in schema="),
    "not packed": ("repeated int64 a = 1 [packed = false];", {"a": [1, 2]}, "repeated int64 a = 1;", {"a": [1, 2]}),
    "map values": ("map<int32, Item> a = 1;", {"a": {2: {"n": 3}}}, "map<int64, Other> a = 1;",
                   {"a": [{"key": 2, "value": {"m": 3}}]}),
    "into oneof": ("int64 a = 1;", {"a": 0}, "oneof o { int64 a = 1; string b = 2; }", {"a": 0, "b": None}),
    "out of oneof": ("oneof o { int64 a = 1; Item b = 2; }", {"b": {"n": 1}}, "int64 a = 1;", {"a": None}),
    "presence": ("optional int64 a = 1;", {}, "int64 a = 1;", {"a": None}),
    "no presence": ("int64 a = 1;", {}, "optional int64 a = 1;", {"a": 0}),
    "enum value": ("More a = 1;", {"a": 2}, "Few a = 1;", "2 is not a value of the enum Few"),
    "enum name": ("More a = 1;", {"a": 1}, "Few a = 1;", {"a": "FEW_ONE"}),
    "nested": ("Item a = 1;", {"a": {"n": 5}}, "Other a = 1;", {"a": {"m": 5}}),
    "message to number": ("Item a = 1;", {"a": {"n": 5}}, "int64 a = 1;", "is Item, and int64 in schema="),
    "wrapper": ("google.protobuf.Int32Value a = 1;", {"a": {"value": 5}}, "google.protobuf.Int64Value a = 1;",
                "in schema="),
    "time to message": ("google.protobuf.Timestamp a = 1;", {"a": {"seconds": 5}}, "Item a = 1;", "in schema="),
}  # fmt: skip
_TYPES = """
message Item { int64 n = 1; } message Other { int64 m = 1; }
enum More { MORE_ZERO = 0; MORE_ONE = 1; MORE_TWO = 2; } enum Few { FEW_ZERO = 0; FEW_ONE = 1; }
"""
_IMPORTS = (
    PROTO3 + 'import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";'
)


def message_text(body: str) -> str:
    return f"{_IMPORTS if 'google' in body else PROTO3} message Row {{ {body} }} {_TYPES}"


def test_message_of_other_schema_version_is_resolved(subtests: pytest.Subtests) -> None:
    writers = {
        number: message_text(writer) for number, (writer, *_) in enumerate(EVOLUTION.values(), 1)
    }
    registered = {number: Registered(text, "PROTOBUF") for number, text in writers.items()}
    with schema_registry(registered) as address:
        for number, (name, (_, values, reader, expected)) in enumerate(EVOLUTION.items(), 1):
            content = message_class(writers[number], "Row")(**values).SerializeToString()
            record = header(number, 0) + content
            spec = spec_of(message_text(reader), address)
            (row,) = decoded(spec, [record])
            with subtests.test(name):
                if isinstance(expected, str):
                    assert expected in str(row["record_error"])
                else:
                    assert row["record_error"] is None
                    assert {column: row[column] for column in spec.schema.names} == expected


INTEGERS = {
    "int32": 32, "sint32": 32, "sfixed32": 32, "int64": 64, "sint64": 64, "sfixed64": 64,
    "uint32": -32, "fixed32": -32, "uint64": -64, "fixed64": -64,
}  # fmt: skip
ALL_TYPES = (*INTEGERS, "float", "double", "bool", "string", "bytes", "Color", "Inner")
NAMES = {0: "RED", 1: "GREEN", -7: "BLUE"}
_NUMBER = count(1)
ALL_FIELDS = f"""{PROTO3} message Row {{
    {" ".join(f"{name} one_{name} = {next(_NUMBER)};" for name in ALL_TYPES)}
    {" ".join(f"optional {name} maybe_{name} = {next(_NUMBER)};" for name in ALL_TYPES)}
    {" ".join(f"repeated {name} many_{name} = {next(_NUMBER)};" for name in ALL_TYPES)}
    {" ".join(f"map<string, {name}> map_{name} = {next(_NUMBER)};" for name in ALL_TYPES)}
    oneof which {{ {" ".join(f"{name} which_{name} = {next(_NUMBER)};" for name in ALL_TYPES)} }}
}}
message Inner {{ optional int64 n = 1; repeated string tags = 2; Inner2 deep = 3; message Inner2 {{ uint64 m = 1; }} }}
enum Color {{ RED = 0; GREEN = 1; BLUE = -7; }}
"""


def values_of(name: str) -> st.SearchStrategy[Any]:
    """Return values of a type, as google's library accepts them."""
    if name in INTEGERS:
        bits = INTEGERS[name]
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if bits > 0 else (0, 2**-bits - 1)
        return st.sampled_from([0, low, high]) | st.integers(low, high)
    if name == "Inner":
        inner = {"n": values_of("int64"), "tags": st.lists(st.text(max_size=2), max_size=2)}
        deep = st.fixed_dictionaries({}, optional={"m": values_of("uint64")})
        return st.fixed_dictionaries({}, optional={**inner, "deep": deep})
    strategies = {
        "float": st.floats(width=32),
        "double": st.floats(),
        "bool": st.booleans(),
        "string": st.text(max_size=3),
        "bytes": st.binary(max_size=3),
        "Color": st.sampled_from([*NAMES]),
    }
    return strategies[name]


def stored(name: str, value: Any) -> Any:
    """Return the value of a column; of None the value of an absent field without presence."""
    if name == "Color":
        return NAMES[value or 0]
    if name == "Inner":
        if value is None:
            return None
        deep = None if "deep" not in value else {"m": value["deep"].get("m", 0)}
        return {"n": value.get("n"), "tags": value.get("tags", []), "deep": deep}
    zeros = {"bool": False, "string": "", "bytes": b"", "float": 0.0, "double": 0.0}
    return zeros.get(name, 0) if value is None else value


@st.composite
def filled_fields(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of a message, and its row."""
    fields: dict[str, Any] = {}
    row: dict[str, Any] = {}
    which = draw(st.sampled_from([None, *ALL_TYPES]))
    for name in ALL_TYPES:
        for prefix in ("one", "maybe", "many", "map", "which"):
            column, values = f"{prefix}_{name}", values_of(name)
            row[column] = stored(name, None) if prefix == "one" else None
            if prefix in ("many", "map"):
                row[column] = []
            if (prefix == "which" and name != which) or (prefix != "which" and draw(st.booleans())):
                continue
            if prefix == "many":
                fields[column] = draw(st.lists(values, max_size=2))
                row[column] = [stored(name, value) for value in fields[column]]
            elif prefix == "map":
                fields[column] = draw(st.dictionaries(st.text(max_size=2), values, max_size=2))
                items = sorted(fields[column].items())
                row[column] = [{"key": key, "value": stored(name, value)} for key, value in items]
            else:
                fields[column] = draw(values)
                row[column] = stored(name, fields[column])
    return fields, row


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(filled_fields())
def test_row_equals_fields_of_message(filled: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """All types of fields, each singular, optional, repeated, as values of a map and in a oneof."""
    fields, expected = filled
    content = message_class(ALL_FIELDS, "Row")(**fields).SerializeToString()
    (row,) = decoded(spec_of(ALL_FIELDS), [header(1, 0) + content])
    assert row["record_error"] is None
    # By their text, NaN equals NaN, and -0.0 is not 0.0.
    assert repr({name: row[name] for name in expected}) == repr(expected)


def test_proto2_field_has_default_or_is_required() -> None:
    text = (
        PROTO2
        + "message A { required int32 a = 1; optional int32 b = 2; optional int32 c = 3 [default = -0x10]; }"
    )
    rows = decoded(spec_of(text), [header(1, 0) + b"\x08\x00", header(1, 0)])
    assert [rows[0][name] for name in "abc"] == [0, None, -16]
    assert rows[1]["record_error"] == "a is required, and missing"


@pytest.mark.parametrize(
    ("body", "content", "expected"),
    [
        ("int64 a = 1;", b"\x08\x01\x08\x02", 2),  # the last of two
        ("string a = 1;", b"\x08\x01", "a does not have the encoding of its type"),
        ("int32 a = 1;", b"\x08\x80\x80\x80\x80\x80\x01", "a is not int32"),
        ("bool a = 1;", b"\x08\x02", "a: 2 is not a boolean"),
        ("int64 a = 1;", b"\x08", "the value is not a message Row"),
        ("oneof o { int64 a = 1; string b = 2; }", b"\x08\x01\x12\x00", None),
        ("map<int64, Item> a = 1;", b"\x0a\x02\x08\x05\x0a\x00\x0a\x00",
         [{"key": 0, "value": {"n": 0}}, {"key": 5, "value": {"n": 0}}]),
        ("repeated Item a = 1;", b"\x0a\x02\x0a\x00", "a: n does not have the encoding of its type"),
        ("double a = 1;", b"\x08\x01", "a does not have the encoding of its type"),
    ],
)  # fmt: skip
def test_encoded_bytes_are_read_exactly_or_refused(
    body: str, content: bytes, expected: Any
) -> None:
    (row,) = decoded(spec_of(message_text(body)), [header(1, 0) + content])
    if isinstance(expected, str):
        assert expected in row["record_error"]
    else:
        assert (row["record_error"], row["a"]) == (None, expected)


SHOP = f"""{PROTO3} package shop; import "parts/item.proto";
message Order {{
  map<string, int64> counts = 1; message Line {{ int64 n = 1; }}
  message Click {{ parts.Item item = 1; }}
}}
message Click {{ int64 id = 1; }}"""
TIMES = 'import "google/protobuf/timestamp.proto";'
ITEM_MESSAGE = "message Item { google.protobuf.Timestamp at = 1; }"
ITEM = f"{PROTO3} package parts; {TIMES} {ITEM_MESSAGE}"
JOB = f"{PROTO3} {TIMES} message Click {{ Item item = 1; }} {ITEM_MESSAGE}"


def test_message_is_selected_by_indexes_and_imports_are_read() -> None:
    """Clients count the entry messages of maps (2), or not (1). The import is a descriptor."""
    serialized_item = descriptors(ITEM)["record.proto"].SerializeToString()
    message = message_class(SHOP, "shop.Order.Click", {"parts/item.proto": ITEM})
    content = message(item={"at": {"seconds": 1}}).SerializeToString()
    schemas = {
        1: Registered(SHOP, "PROTOBUF", {"parts/item.proto": "item value"}),
        2: Registered(b64encode(serialized_item).decode(), "PROTOBUF"),
        3: {"type": "string"},
    }
    refused = {
        header(1, 0): "shop.Order, not Click",
        header(1, 0, 9): "no message at the indexes [0, 9]",
        header(3, 0): "schema 3 of the registry has the type AVRO, not PROTOBUF",
        header(4, 0): "the schema registry has no schema 4",
        header(1) + b"\xff" * 5: "ends within its message indexes",
    }
    with schema_registry(schemas, {"item value": 2}) as address:
        starts = [header(1, 0, 1), header(1, 0, 2), *refused]
        rows = decoded(spec_of(JOB, address), [start + content for start in starts])
    for row in rows[:2]:
        assert (row["record_error"], row["item"]["at"].timestamp()) == (None, 1)
    for row, reason in zip(rows[2:], refused.values(), strict=True):
        assert reason in str(row["record_error"])


def test_tombstone_has_key_of_registered_schema() -> None:
    """An upsert deletes the row of a key in Protobuf, JSON Schema or Avro."""
    fields = "uint64 id = 1; Kind kind = 2; Key parent = 3;"
    key_text = f"{PROTO3} message Key {{ {fields} }} enum Kind {{ NO = 0; YES = 1; }}"
    columns = pa.schema([("id", pa.uint64()), ("kind", pa.string())])
    schemas = {
        1: Registered(key_text, "PROTOBUF"),
        2: Registered("{}", "JSON"),
        3: {"type": "record", "name": "k", "fields": [{"name": "id", "type": "long"}]},
    }
    message = message_class(key_text, "Key")(id=2**64 - 1, kind=1)
    keys = [
        header(1, 0) + message.SerializeToString(),
        header(1, 0),
        header(2) + b'{"id": 5, "kind": "YES"}',
        header(2) + b"{",
        header(1, 0) + b"\x0a",
        header(3) + b"\x0a",
        header(4),
    ]
    with schema_registry(schemas) as address:
        spec = StreamSpec("e", "t", columns, mode="upsert", schema_registry=address)
        rows = decoded(spec, [None] * len(keys), "id", "kind", keys=keys)
    actual = [(row["id"], row["kind"]) for row in rows[:3]]
    assert actual == [(2**64 - 1, "YES"), (0, "NO"), (5, "YES")]
    assert [row["record_error"] is None for row in rows] == [True] * 3 + [False] * 4


def test_date_message_is_date_or_refused() -> None:
    text = PROTO3 + 'import "google/type/date.proto"; message Row { google.type.Date a = 1; }'
    files = distribution("googleapis-common-protos").files or ()
    (file,) = [file for file in files if str(file) == "google/type/date.proto"]
    imports = {str(file): Path(str(file.locate())).read_text(encoding="utf-8")}
    message = message_class(text, "Row", imports)
    values = [
        None,
        {"year": 2024, "month": 2, "day": 29},
        {"year": 2024, "month": 2},
        {"year": 2**31 - 1},
    ]
    records = [message(a=value).SerializeToString() for value in values]
    rows = decoded(spec_of(text), [header(1, 0) + record for record in records])
    assert [row["a"] for row in rows[:2]] == [None, date(2024, 2, 29)]
    assert all("is not a date" in str(row["record_error"]) for row in rows[2:])


def test_schema_that_imports_itself_is_read_once() -> None:
    text = PROTO3 + 'import "a.proto"; message Row { int64 a = 1; }'
    schemas = {
        1: Registered(text, "PROTOBUF", {"a.proto": "a"}),
        2: Registered(text, "PROTOBUF", {"a.proto": "lost"}),
    }
    with schema_registry(schemas, {"a": 1}) as address:
        spec = spec_of(message_text("int64 a = 1;"), address)
        good, bad = decoded(spec, [header(1, 0) + b"\x08\x05", header(2, 0)])
    assert (good["a"], bad["record_error"]) == (5, "the schema registry has no version 1 of 'lost'")


@pytest.mark.parametrize("schema", [{"a": "int64"}, "", PROTO3, PROTO3 + "message A {}"])
def test_job_needs_text_of_schema_with_columns(schema: Any) -> None:
    with pytest.raises(InvalidJob):
        featurestore.stream_job("a", source="e", topic="t", format="protobuf", schema=schema)


def test_invalid_schema_error_has_line() -> None:
    with pytest.raises(ProtoError, match="line 2: expected '=', not '1'"):
        parse_proto(f"{PROTO3}\nmessage A {{ int32 a 1; }}")
