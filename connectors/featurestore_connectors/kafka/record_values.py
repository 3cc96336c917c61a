"""Record values: the decoder interface, JSON values, and semantic types of Kafka Connect.

JSON values are parsed in batches, with an error for each invalid record, by the parser that also
reads JSON files (``arrow.json_columns``). Members that are not in the schema are ignored.

A schema of Kafka Connect or Debezium has the name of a value's semantic type, such as
``io.debezium.time.MicroTimestamp``, while the value itself is a number or bytes. Times are
converted to ISO strings, and decimals to digits. The names are in
https://debezium.io/documentation/reference/stable/connectors/postgresql.html

Other values are strings because JSON has no such numbers (NaN, infinities), or because the
connector is configured so (decimals, and dates with the time zone Z).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.column_names import check_feature_names
from featurestore.arrow.json_columns import JsonColumns, parse_object
from featurestore.arrow.json_schemas import JsonNode, parse_json_schema
from featurestore.arrow.json_text import JsonError, NonFinite, NumberText
from featurestore.arrow.text_values import TextRules
from featurestore.errors import InvalidJob
from featurestore.model.json_object import JsonMapping
from featurestore_connectors.kafka.schema_registry import RecordError, fetch_schema, split_header

_UNITS = {
    "io.debezium.time.Date": "D",
    "org.apache.kafka.connect.data.Date": "D",
    "io.debezium.time.Timestamp": "ms",
    "org.apache.kafka.connect.data.Timestamp": "ms",
    "io.debezium.time.MicroTimestamp": "us",
    "io.debezium.time.NanoTimestamp": "ns",
}
# Logical types of converters that do not use Connect's type names.
_LOGICAL_UNITS = {
    "date": "D",
    "timestamp-millis": "ms",
    "timestamp-micros": "us",
    "timestamp-nanos": "ns",
    "local-timestamp-millis": "ms",
    "local-timestamp-micros": "us",
    "local-timestamp-nanos": "ns",
}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"
_NON_FINITE = {name: NonFinite(name) for name in ("NaN", "Infinity", "-Infinity")}
_NUMBER = re.compile(r"-?[0-9]+(?P<fraction>\.[0-9]+)?")
_ISO_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}Z")
# A parsed Avro schema: the name of a type, a list of branches, or an object.
AvroSchema: TypeAlias = Any
Row = TypeVar("Row")
# Postgres does not log large values that an update does not change. Connectors write a text in place
# of each, converted to the type of the column: bytes, character codes, a UUID (its MD5), an object.
_PLACEHOLDER = "__debezium_unavailable_value"
_PLACEHOLDER_BYTES = _PLACEHOLDER.encode()
_PLACEHOLDER_HASH = hashlib.md5(_PLACEHOLDER_BYTES, usedforsecurity=False).digest()
_PLACEHOLDERS = (
    _PLACEHOLDER,
    _PLACEHOLDER_BYTES,
    base64.b64encode(_PLACEHOLDER_BYTES).decode(),
    str(uuid.UUID(bytes=_PLACEHOLDER_HASH, version=3)),
)
_UNAVAILABLE: tuple[object, ...] = (
    *_PLACEHOLDERS,
    *([placeholder] for placeholder in _PLACEHOLDERS),
    [*_PLACEHOLDER_BYTES],
    [NumberText(code) for code in _PLACEHOLDER_BYTES],
    {_PLACEHOLDER: _PLACEHOLDER},
    f'{{"{_PLACEHOLDER}":"{_PLACEHOLDER}"}}',
)


@dataclass(frozen=True)
class Decoded:
    """Decoded value columns, with an error reason for each unreadable record (otherwise null).

    ``deletes`` is a mask of records that delete their key, or None without deletes. ``fields`` are
    record fields stored in the value (``model.stream.RECORD_FIELDS``).
    """

    columns: Mapping[str, pa.Array]
    reasons: pa.Array
    deletes: pa.Array | None = None
    fields: Mapping[str, pa.Array] = field(default_factory=dict)


class ValueDecoder(Protocol):
    """A decoder for one value format."""

    def decode(self, values: pa.Array) -> Decoded:
        """Decode an array of binary values."""
        ...


def to_strings(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Convert binary values to strings; also return a mask of values that are not text."""
    try:
        # A single cast validates all values. Only invalid batches are decoded one by one.
        texts = values.cast(pa.string())
        return texts, pa.array([False] * len(values), pa.bool_())
    except pa.ArrowInvalid:
        pass
    texts_or_null: list[str | None] = []
    broken = []
    for value in values.to_pylist():
        try:
            text = None if value is None else value.decode()
            is_broken = False
        except UnicodeDecodeError:
            text, is_broken = None, True
        texts_or_null.append(text)
        broken.append(is_broken)
    return pa.array(texts_or_null, pa.string()), pa.array(broken, pa.bool_())


def read_each(
    values: pa.Array, read: Callable[[bytes], Row]
) -> tuple[list[Row | None], list[str | None]]:
    """Read values one by one; return the results, and the reason of each unreadable value."""
    results: list[Row | None] = []
    reasons: list[str | None] = []
    for value in values.to_pylist():
        result, reason = None, None
        try:
            if value is None:
                raise RecordError("the record has no value")
            result = read(value)
        except RecordError as error:
            reason = str(error)
        results.append(result)
        reasons.append(reason)
    return results, reasons


def convert_column(values: list[object], column: pa.Field, reasons: list[str | None]) -> pa.Array:
    """Convert the values of a column; values that do not fit become null and get a reason."""
    try:
        return pa.array(values, column.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        pass
    # Arrow does not report which value is invalid, so the values are converted one by one.
    for number, value in enumerate(values):
        try:
            pa.array([value], column.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            # Only the invalid values become null.
            values[number] = None
            reasons[number] = reasons[number] or f"{column.name} is not {column.type}: {error}"
    return pa.array(values, column.type)


@dataclass(frozen=True)
class JsonValues:
    """Decoder of JSON objects to schema columns."""

    schema: pa.Schema

    def __post_init__(self) -> None:
        check_fields(self.schema)

    def decode(self, values: pa.Array) -> Decoded:
        texts, broken = to_strings(values)
        parser = JsonColumns(self.schema, rules=TextRules(declared=True))
        columns, reasons = parser.decode(texts)
        errors = pc.if_else(
            pc.is_null(texts), "the record has no value", pa.array(reasons, pa.string())
        )
        return Decoded(columns, pc.if_else(broken, "the value is not UTF-8 text", errors))


@dataclass(frozen=True)
class JsonSchemaValues:
    """Decoder of JSON objects after the header of a schema registry.

    An object must be valid by the job's JSON Schema. Clients do not have to validate what they
    write, so the writer's schema is not evaluated; with a registry it must be a JSON Schema.
    """

    schema: pa.Schema
    text: str
    registry: str | None = None
    node: JsonNode = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "node", parse_json_schema(self.text))

    def decode(self, values: pa.Array) -> Decoded:
        rows, reasons = read_each(values, self._read)
        objects = [row or {} for row in rows]
        columns, bad = JsonColumns(self.schema, rules=TextRules(declared=True)).convert(objects)
        for row_number, reason in bad.items():
            reasons[row_number] = reasons[row_number] or reason
        return Decoded(columns, pa.array(reasons, pa.string()))

    def _read(self, value: bytes) -> Any:
        """Return the valid object in a value."""
        number, content = split_header(value)
        if self.registry is not None:
            fetch_schema(self.registry, number, schema_type="JSON")
        try:
            members, reason = parse_object(content.decode(), exact=True)
            if reason is not None:
                raise RecordError(reason)
            return self.node.read(members)
        except UnicodeDecodeError:
            raise RecordError("the value is not UTF-8 text") from None
        except JsonError as error:
            raise RecordError(str(error)) from None


def check_fields(fields: Iterable[pa.Field], prefix: str = "") -> None:
    """Refuse columns of types that JSON cannot represent without loss.

    Raises:
        InvalidJob: A column has such a type.
    """
    fields = list(fields)
    if prefix:  # top-level columns may be renamed
        check_feature_names([column.name for column in fields])
    for column in fields:
        dtype, path = column.type, f"{prefix}{column.name}"
        while pat.is_list(dtype) or pat.is_fixed_size_list(dtype):
            dtype = dtype.value_type
        if pat.is_struct(dtype):
            check_fields([dtype.field(n) for n in range(dtype.num_fields)], f"{path}.")
        elif not _is_representable(dtype):
            name = path.split(".")[0]
            raise InvalidJob(
                f"Column {path!r} of type {dtype} cannot be read from JSON without loss.",
                hint=f'"{name}": "string", or "double"; format="avro" supports more types',
            )


def _is_representable(dtype: pa.DataType) -> bool:
    is_number = pat.is_integer(dtype) or pat.is_floating(dtype) or pat.is_decimal(dtype)
    is_time = pat.is_timestamp(dtype) or pat.is_date(dtype)
    return bool(is_number or is_time or pat.is_boolean(dtype) or pat.is_string(dtype))


def is_unavailable(value: object) -> bool:
    """Return whether a value of a change event is a placeholder, because it is not in the log.

    >>> is_unavailable("X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="), is_unavailable([95, 95])
    (True, False)
    """
    return isinstance(value, str | bytes | list | dict) and value in _UNAVAILABLE


def from_text(value: Any, dtype: pa.DataType, *, has_schema: bool) -> Any:
    """Convert a string to the value of a column type for which connectors write strings.

    Without a schema, a string of digits may also be the base64 text of a decimal, so a decimal
    needs a point. Other strings are unchanged.

    >>> from_text("NaN", pa.float64(), has_schema=False)
    nan
    >>> from_text("2024-02-29Z", pa.date32(), has_schema=False)
    '2024-02-29'
    """
    if isinstance(value, list) and (pat.is_list(dtype) or pat.is_fixed_size_list(dtype)):
        return [from_text(item, dtype.value_type, has_schema=has_schema) for item in value]
    if isinstance(value, Mapping) and pat.is_struct(dtype):
        fields = [dtype.field(number) for number in range(dtype.num_fields)]
        types = {column.name: column.type for column in fields}
        return {
            name: from_text(item, types[name], has_schema=has_schema) if name in types else item
            for name, item in value.items()
        }
    if not isinstance(value, str) or isinstance(value, NumberText):
        return value
    if pat.is_floating(dtype):
        return _NON_FINITE.get(value, value)
    if pat.is_date(dtype) and _ISO_DATE.fullmatch(value):
        return value[:-1]
    if pat.is_decimal(dtype):
        number = _NUMBER.fullmatch(value)
        if number is not None and (has_schema or number["fraction"] is not None):
            return NumberText(value)
    return value


def from_json(value: Any, schema: Any) -> Any:
    """Convert a JSON value by its Connect schema; without a schema it is unchanged.

    >>> from_json(1, {"type": "int32", "name": "io.debezium.time.Date"})
    '1970-01-02'
    """
    if value is None or not isinstance(schema, Mapping) or is_unavailable(value):
        return value
    name = schema.get("name")
    if name in _UNITS:
        return _to_iso_text(value, _UNITS[name])
    if name == _DECIMAL:
        return _to_digits(value, (schema.get("parameters") or {}).get("scale", 0))
    if name == _VARIABLE_DECIMAL and isinstance(value, Mapping):
        return _to_digits(value.get("value"), value.get("scale", 0))
    if schema.get("type") == "struct" and isinstance(value, Mapping):
        fields = {column.get("field"): column for column in schema.get("fields") or ()}
        return {key: from_json(item, fields.get(key)) for key, item in value.items()}
    if schema.get("type") == "array" and isinstance(value, list):
        return [from_json(item, schema.get("items")) for item in value]
    return value


def from_avro(value: Any, schema: AvroSchema, types_by_name: Mapping[str, AvroSchema]) -> Any:
    """Convert a raw Avro value by its schema; ``types_by_name`` has the schema's named types."""
    if isinstance(schema, list):  # a union of null and another type
        branches = [branch for branch in schema if branch != "null"]
        schema = branches[0] if len(branches) == 1 else None
    if isinstance(schema, str):
        schema = types_by_name.get(schema)
    if value is None or not isinstance(schema, Mapping) or is_unavailable(value):
        return value
    if isinstance(schema.get("type"), list | Mapping):
        return from_avro(value, schema["type"], types_by_name)
    if schema.get("type") == "record" and isinstance(value, Mapping):
        fields = {column["name"]: column["type"] for column in schema["fields"]}
        value = {
            key: from_avro(item, fields.get(key), types_by_name) for key, item in value.items()
        }
    if schema.get("type") == "array" and isinstance(value, list):
        return [from_avro(item, schema.get("items"), types_by_name) for item in value]
    return _convert_by_semantic_type(value, schema)


def named_types(schema: AvroSchema, namespace: str = "") -> dict[str, AvroSchema]:
    """Return the records, enums and fixed types of an Avro schema by full name."""
    types_by_name: dict[str, AvroSchema] = {}
    if isinstance(schema, list):
        for branch in schema:
            types_by_name |= named_types(branch, namespace)
    if not isinstance(schema, Mapping):
        return types_by_name
    if schema.get("type") in ("record", "enum", "fixed"):
        name = str(schema.get("name", ""))
        namespace = str(schema.get("namespace") or name.rpartition(".")[0] or namespace)
        short = name.rpartition(".")[2]
        types_by_name |= {short: schema, f"{namespace}.{short}": schema}
    for member in schema.get("fields") or ():
        types_by_name |= named_types(member.get("type"), namespace)
    for key in ("items", "values", "type"):
        types_by_name |= named_types(schema.get(key), namespace)
    return types_by_name


def _convert_by_semantic_type(value: Any, schema: JsonMapping) -> Any:
    """Convert a raw Avro value by the semantic type in its schema."""
    name, logical = schema.get("connect.name"), schema.get("logicalType")
    unit = _UNITS.get(str(name)) or _LOGICAL_UNITS.get(str(logical))
    if unit is not None:
        return _to_iso_text(value, unit)
    if name == _DECIMAL or logical == "decimal":
        parameters = schema.get("connect.parameters") or {}
        return _to_digits(value, schema.get("scale", parameters.get("scale", 0)))
    if name == _VARIABLE_DECIMAL and isinstance(value, Mapping):
        return _to_digits(value.get("value"), value.get("scale", 0))
    return value


def _to_iso_text(value: Any, unit: str) -> Any:
    """Convert a count of days or second fractions since 1970 to an ISO string."""
    text = str(value)
    if isinstance(value, bool) or not text.lstrip("-").isdigit():
        return value  # does not match its schema: the column type decides
    try:
        instant = np.datetime64(int(text), cast(Any, unit))
    except OverflowError:
        return text
    iso = str(np.datetime_as_string(instant))
    # Times in complete microseconds fit into a timestamp column; finer times are refused.
    if unit == "ns" and iso.endswith("000"):
        iso = iso[:-3]
    return iso if unit == "D" else f"{iso}Z"


def _to_digits(value: Any, scale: Any) -> Any:
    """Convert an unscaled integer in bytes (base64 in JSON) to a decimal string."""
    if isinstance(value, str) and not isinstance(value, NumberText):
        try:
            value = base64.b64decode(value, validate=True)
        except binascii.Error:
            return value
    if not isinstance(value, bytes):
        return value
    # Decimal arithmetic would round to 28 digits, but construction from digits is exact.
    unscaled = int.from_bytes(value, "big", signed=True)
    return NumberText(
        f"{Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -int(scale))):f}"
    )
